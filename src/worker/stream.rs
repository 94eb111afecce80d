//! Parses the output of a run: the Claude CLI's stream of JSON lines, or a command's plain text.
//!
//! The stream decides how a run ended, because the exit status is unreliable: runs may exit with 0 after an error, and with others after a
//! success.

use serde_json::{Value, json};

use super::json_line;
use super::prices::Prices;
use super::token_count::{TokenCount, Total};
use bloom_core::Ms;
use bloom_core::event::EventKind;
use bloom_core::usage::Usage;

/// The maximum text of an event; the result contains the whole text.
pub const MAX_TEXT: usize = 32 * 1024;
/// The maximum size of an answer, which is also the server's default limit.
pub const MAX_OUTPUT: usize = 16 << 20;
/// How many bytes are kept of lines that could not be parsed, for the error message.
const MAX_ODD: usize = 2_000;

/// Denied uses of tools that become events.
const MAX_DENIALS: usize = 100;

/// What has been read so far.
#[derive(Debug, Default)]
pub struct Reading {
    plain: bool,
    pub session_id: Option<String>,
    pub model: Option<String>,
    pub result: Option<Ending>,
    /// The API's name for the last error that the CLI met.
    pub api_error: Option<String>,
    /// When the quota is renewed, if the stream says so.
    pub resets_at: Option<Ms>,
    /// Lines that are not JSON objects.
    pub odd: String,
    /// What a plain command printed.
    pub text: String,
    is_cut: bool,
    tokens: TokenCount,
    total: Option<Total>,
    /// Those of the profile.
    prices: Prices,
    /// Streamed text that is not in an event yet.
    pieces: String,
    had_pieces: bool,
}

/// The `result` message, the last one of the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    pub subtype: String,
    pub is_error: bool,
    pub text: String,
    /// The HTTP status of the API's refusal.
    pub api_status: Option<u64>,
    pub denied: usize,
}

pub type Found = (EventKind, Value);

impl Reading {
    pub fn new(plain: bool, prices: Prices) -> Self {
        Self { plain, prices, ..Self::default() }
    }

    /// Parses a line, given without its line break.
    pub fn line(&mut self, line: &str, found: &mut Vec<Found>) {
        if self.plain {
            self.keep(line);
            self.keep("\n");
            self.pieces.push_str(line);
            self.pieces.push('\n');
            return;
        }
        if line.trim().is_empty() {
            return;
        }
        match json_line::parse(line) {
            Some(message) if message.is_object() => self.message(&message, found),
            _ => {
                if self.odd.len() < MAX_ODD {
                    self.odd.push_str(cut(line, MAX_ODD - self.odd.len()));
                    self.odd.push('\n');
                }
                found.push((EventKind::Log, json!({"stream": "stdout", "text": cut(line, MAX_TEXT)})));
            }
        }
    }

    /// Turns the text streamed since the last call into events.
    pub fn take_pieces(&mut self, found: &mut Vec<Found>) {
        if !self.pieces.is_empty() {
            let text = std::mem::take(&mut self.pieces);
            found.extend(chunks(&text).map(|text| (EventKind::Text, json!({"text": text}))));
        }
    }

    /// Drops pending text that an earlier agent has stored as events.
    pub fn forget_pieces(&mut self) {
        self.pieces.clear();
    }

    /// Tokens and cost: the total of the results, or without a result the sum of the messages and what these cost by their prices.
    pub fn usage(&self) -> Option<Usage> {
        self.tokens.usage(self.total.as_ref(), &self.prices)
    }

    fn keep(&mut self, text: &str) {
        let fits = cut(text, MAX_OUTPUT - self.text.len());
        if !self.is_cut {
            self.text.push_str(fits);
        }
        self.is_cut |= fits.len() < text.len();
    }

    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// A part of what was printed is missing, because it was too long.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Whether a plain answer was too long and is incomplete.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn message(&mut self, message: &Value, found: &mut Vec<Found>) {
        if let Some(id) = message["session_id"].as_str().filter(|id| !id.is_empty() && id.len() <= 255) {
            self.session_id = Some(id.to_owned());
        }
        match message["type"].as_str().unwrap_or_default() {
            "system" => self.system(message, found),
            "stream_event" => self.piece(message),
            "assistant" => self.assistant(message, found),
            "user" => self.user(message, found),
            "rate_limit_event" => self.rate_limit(message, found),
            "result" => self.ending(message, found),
            _ => {}
        }
    }

    fn system(&mut self, message: &Value, found: &mut Vec<Found>) {
        match message["subtype"].as_str() {
            Some("init") => {
                self.model = message["model"].as_str().map(bare_model);
                found.push((
                    EventKind::Lifecycle,
                    json!({"phase": "session", "session_id": message["session_id"], "model": message["model"], "cli": message["claude_code_version"]}),
                ));
            }
            Some("api_retry") => {
                self.api_error = message["error"].as_str().map(str::to_owned).or_else(|| self.api_error.take());
                found.push((
                    EventKind::Log,
                    json!({"stream": "cli", "text": format!("the API is asked again: {}", cut(&message.to_string(), 500))}),
                ));
            }
            _ => {}
        }
    }

    /// A part of a message, streamed while the model writes it.
    fn piece(&mut self, message: &Value) {
        // The text of a subagent is not part of the answer.
        if !message["parent_tool_use_id"].is_null() {
            return;
        }
        let event = &message["event"];
        match event["type"].as_str() {
            Some("message_start") => self.tokens.begins(&event["message"], self.model.as_deref()),
            Some("message_delta") => self.tokens.ends(&event["usage"]),
            _ => {}
        }
        if let Some(text) = event["delta"]["text"].as_str() {
            self.pieces.push_str(text);
            self.had_pieces = true;
        }
    }

    fn assistant(&mut self, message: &Value, found: &mut Vec<Found>) {
        // An answer without an error means that earlier errors are over.
        self.api_error = message["error"].as_str().map(str::to_owned);
        if self.api_error.is_none() {
            self.resets_at = None;
        }
        let inner = &message["message"];
        if let Some(model) = inner["model"].as_str().filter(|model| !model.starts_with('<')) {
            self.model.get_or_insert_with(|| bare_model(model));
        }
        self.tokens.message(inner, self.model.as_deref());
        self.take_pieces(found);
        let is_own = message["parent_tool_use_id"].is_null();
        for block in inner["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("text") if is_own && !self.had_pieces => {
                    let text = block["text"].as_str().unwrap_or_default();
                    found.extend(chunks(text).map(|text| (EventKind::Text, json!({"text": text}))));
                }
                Some("tool_use") => {
                    found
                        .push((EventKind::ToolUse, json!({"id": block["id"], "name": block["name"], "input": cut_value(&block["input"])})));
                }
                _ => {}
            }
        }
        // The CLI prints a message in several lines, and its text was streamed before the first of them, so the flag lasts until the last.
        if !inner["stop_reason"].is_null() {
            self.had_pieces = false;
        }
    }

    fn user(&mut self, message: &Value, found: &mut Vec<Found>) {
        self.had_pieces = false;
        self.tokens.tool_result(message, self.model.as_deref());
        for block in message["message"]["content"].as_array().into_iter().flatten() {
            if block["type"] == "tool_result" {
                let is_error = block["is_error"].as_bool().unwrap_or(false);
                found.push((
                    EventKind::ToolResult,
                    json!({"id": block["tool_use_id"], "is_error": is_error, "content": cut_value(&block["content"])}),
                ));
            }
        }
    }

    /// The status `allowed` is the normal case and not an error.
    fn rate_limit(&mut self, message: &Value, found: &mut Vec<Found>) {
        let info = &message["rate_limit_info"];
        if info["status"] == "rejected" {
            self.api_error = Some("rate_limit".into());
            self.resets_at = info["resetsAt"].as_f64().map(milliseconds);
        }
        found.push((EventKind::RateLimit, cut_value(info)));
    }

    fn ending(&mut self, message: &Value, found: &mut Vec<Found>) {
        self.take_pieces(found);
        if let Some(model) = self.model.is_none().then(|| message["modelUsage"].as_object()?.keys().next().cloned()).flatten() {
            self.model = Some(bare_model(&model));
        }
        let denials = message["permission_denials"].as_array().into_iter().flatten().take(MAX_DENIALS);
        found.extend(denials.map(|denial| {
            let data = json!({"id": denial["tool_use_id"], "name": denial["tool_name"], "input": cut_value(&denial["tool_input"])});
            (EventKind::PermissionDenied, data)
        }));
        self.total = Some(Total::of(message, self.model.as_deref(), self.total.as_ref()));
        let errors = message["errors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join("; ");
        self.result = Some(Ending {
            subtype: message["subtype"].as_str().unwrap_or_default().to_owned(),
            is_error: message["is_error"].as_bool().unwrap_or(false),
            text: message["result"].as_str().map_or(errors, str::to_owned),
            api_status: message["api_error_status"].as_u64(),
            denied: message["permission_denials"].as_array().map_or(0, Vec::len),
        });
        let usage = self.usage().unwrap_or_default();
        let mut data = json!({
            "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "cost_usd": usage.cost_usd,
            "turns": message["num_turns"], "duration_ms": message["duration_ms"],
        });
        if usage.cost_estimated {
            data["cost_estimated"] = json!(true);
        }
        found.push((EventKind::Usage, data));
    }
}

/// `claude-x[1m]` is the model `claude-x` with a longer context.
fn bare_model(name: &str) -> String {
    cut(name.split('[').next().unwrap_or(name), 128).to_owned()
}

/// The stream contains seconds, but some versions of the CLI print milliseconds, and proxies of its API smaller units. Each unit has its own
/// range of values for the times from 1973 to 5138.
fn milliseconds(at: f64) -> Ms {
    match at as Ms {
        at if at < 100_000_000_000 => at.saturating_mul(1000),
        mut at => {
            while at >= 100_000_000_000_000 {
                at /= 1000;
            }
            at
        }
    }
}

/// The beginning of the text, at most `max` bytes.
pub fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The text in parts that fit into an event.
pub fn chunks(text: &str) -> impl Iterator<Item = String> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        let piece = cut(rest, MAX_TEXT);
        rest = &rest[piece.len()..];
        // PostgreSQL can't store NUL in text.
        (!piece.is_empty()).then(|| piece.replace('\0', "\u{fffd}"))
    })
}

/// Cuts a value so that it fits into an event.
fn cut_value(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= MAX_TEXT { value.clone() } else { json!(format!("{}…", cut(&text, MAX_TEXT))) }
}

#[cfg(test)]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[Value]) -> (Reading, Vec<Found>) {
        let (mut reading, mut found) = (Reading::new(false, Prices::default()), Vec::new());
        lines.iter().for_each(|line| reading.line(&line.to_string(), &mut found));
        (reading, found)
    }

    fn texts(found: &[Found]) -> Vec<&str> {
        found.iter().filter(|(kind, _)| *kind == EventKind::Text).filter_map(|(_, data)| data["text"].as_str()).collect()
    }

    fn delta(text: &str) -> Value {
        json!({"type": "stream_event", "parent_tool_use_id": null, "event": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}})
    }

    #[test]
    fn text_that_came_in_pieces_is_not_told_twice() {
        let whole = json!({"type": "assistant", "message": {"id": "1", "content": [{"type": "text", "text": "ab"}], "stop_reason": null}});
        assert_eq!(texts(&read(&[delta("a"), delta("b"), whole.clone()]).1), ["ab"]);
        assert_eq!(texts(&read(&[whole]).1), ["ab"], "a stream without partial messages");
    }

    #[test]
    fn an_allowed_rate_limit_event_is_no_error() {
        let event = |status: &str| json!({"type": "rate_limit_event", "rate_limit_info": {"status": status, "resetsAt": 1_800_000_000}});
        let (reading, found) = read(&[event("allowed"), event("allowed_warning")]);
        assert_eq!((reading.api_error, reading.resets_at, found.len()), (None, None, 2));
        let (reading, _) = read(&[event("rejected")]);
        assert_eq!(reading.resets_at, Some(1_800_000_000_000));
        for at in [1.8e9, 1.8e12, 1.8e15, 1.8e18] {
            assert_eq!(milliseconds(at), 1_800_000_000_000, "{at}");
        }
    }

    #[test]
    fn usage_of_a_run_without_a_result_is_that_of_its_messages_and_sub_agents() {
        let usage = |output: u64| json!({"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": output});
        let message = |id: &str, output: u64, parent: Value| json!({"type": "assistant", "parent_tool_use_id": parent, "message": {"id": id, "usage": usage(output)}});
        let started = json!({"type": "stream_event", "parent_tool_use_id": null, "event": {"type": "message_start", "message": {"id": "3", "usage": usage(1)}}});
        let result = json!({"type": "user", "tool_use_result": {"usage": usage(20)}, "message": {"content": [{"type": "tool_result", "tool_use_id": "t"}]}});
        let init = json!({"type": "system", "subtype": "init", "model": "claude-sonnet-5"});
        let own = [init, message("1", 1, Value::Null), message("1", 7, Value::Null), started];
        let (reading, _) = read(&own);
        let Usage { input_tokens, output_tokens, cost_usd, cost_estimated } = reading.usage().unwrap();
        assert_eq!((input_tokens, output_tokens, (cost_usd * 1e9).round(), cost_estimated), (30, 8, 122_000.0, true));
        let (reading, _) = read(&[&own[..], &[message("2", 2, json!("t")), result]].concat());
        let all = reading.usage().unwrap();
        assert_eq!((all.input_tokens, all.output_tokens), (60, 30), "a sub-agent's messages are its own, and its result is its last one");
    }

    #[test]
    fn the_event_of_usage_tells_what_the_run_used() {
        let ended = |more: Value| {
            let mut ended = json!({"type": "result", "subtype": "success", "result": "", "usage": {"input_tokens": 1, "output_tokens": 1}});
            ended.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(&[json!({"type": "system", "subtype": "init", "model": "claude-haiku-4-5"}), ended]).1.pop().unwrap().1
        };
        assert_eq!(
            ended(json!({"total_cost_usd": 0.5, "modelUsage": {"m": {"inputTokens": 3, "outputTokens": 2}}})),
            json!({
                "input_tokens": 3, "output_tokens": 2, "cost_usd": 0.5, "turns": null, "duration_ms": null,
            })
        );
        assert_eq!(ended(json!({}))["cost_estimated"], json!(true));
    }

    #[test]
    fn garbage_is_kept_to_be_shown() {
        let (mut reading, mut found) = (Reading::new(false, Prices::default()), Vec::new());
        for line in ["", "Segmentation fault", "[1]", "{\"type\":\"new\"}"] {
            reading.line(line, &mut found);
        }
        assert_eq!(reading.odd, "Segmentation fault\n[1]\n");
    }
}
