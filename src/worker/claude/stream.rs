//! Parses the output of a run: the Claude CLI's stream of JSON lines, or a command's plain text.
//!
//! The stream decides how a run ended, because the exit status is unreliable: runs may exit with 0 after an error, and with another status
//! after a success.

mod ending;
mod own_text;
mod pending;
mod warnings;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::claude::cli_version::Version;
use crate::claude::json_line;
use crate::claude::prices::Prices;
use crate::claude::token_count::{TokenCount, Total};
use bloom_core::Ms;
use bloom_core::event::EventKind;
use bloom_core::usage::Usage;
pub(crate) use ending::{Answers, Ending};
use own_text::OwnText;
pub(crate) use pending::Activity;
use pending::Pending;
pub(crate) use warnings::Warnings;

/// The maximum text of an event, in bytes; the result contains the whole text.
pub(crate) const MAX_TEXT: usize = 32 * 1024;
/// The maximum size of an answer, which is also the server's default limit.
pub(crate) const MAX_OUTPUT: usize = 16 << 20;
/// How many bytes of unparsable lines are kept for the error message.
const MAX_ODD: usize = 2_000;

/// The maximum number of denied tool uses that become events.
const MAX_DENIALS: usize = 100;
/// How many bytes are kept of the message that the model got about a denial.
const MAX_DENIAL: usize = 300;

/// What has been read so far.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    plain: bool,
    pub session_id: Option<String>,
    pub model: Option<String>,
    /// The version of the CLI.
    pub cli: Option<Version>,
    /// The end of the last turn.
    pub result: Option<Ending>,
    pub answers: Answers,
    /// The API's name for the last error that the CLI met.
    pub api_error: Option<String>,
    /// The HTTP status of that error.
    pub api_status: Option<u64>,
    /// How many times in a row the API has refused the account since its last answer.
    refusals: u32,
    /// When the quota is renewed, if the stream says so.
    pub resets_at: Option<Ms>,
    /// Lines that are not JSON objects.
    pub odd: String,
    /// What a plain command printed.
    pub text: String,
    is_cut: bool,
    tokens: TokenCount,
    total: Option<Total>,
    /// The prices of the profile.
    prices: Prices,
    own_text: OwnText,
    pending: Pending,
    /// Whether the profile has a person asked about tool uses that nothing allows.
    pub asks_human: bool,
    /// What the model got instead of a tool's result, by the id of the tool use.
    tool_errors: BTreeMap<String, String>,
    /// Whether the run was denied the use of a tool.
    pub has_denials: bool,
    pub warnings: Warnings,
}

pub(crate) type Found = (EventKind, Value);

impl Reading {
    pub(crate) fn new(plain: bool, prices: Prices) -> Self {
        Self { plain, prices, ..Self::default() }
    }

    /// Parses a line, given without its line break.
    pub(crate) fn line(&mut self, line: &str, found: &mut Vec<Found>) {
        if self.plain {
            self.keep(line);
            self.keep("\n");
            self.own_text.tell(line);
            self.own_text.tell("\n");
            return;
        }
        if line.trim().is_empty() {
            return;
        }
        let objects = json_line::objects(line);
        if objects.is_empty() {
            if self.odd.len() < MAX_ODD {
                self.odd.push_str(cut(line, MAX_ODD - self.odd.len()));
                self.odd.push('\n');
            }
            found.push((EventKind::Log, json!({"stream": "stdout", "text": cut(line, MAX_TEXT)})));
        }
        objects.iter().for_each(|message| self.message(message, found));
    }

    /// Turns the text streamed since the last call into events.
    pub(crate) fn take_pieces(&mut self, found: &mut Vec<Found>) {
        let text = self.own_text.take_pending();
        found.extend(chunks(&text).map(|text| (EventKind::Text, json!({"text": text}))));
    }

    /// Drops pending text that an earlier agent has stored as events.
    pub(crate) fn forget_pieces(&mut self) {
        self.own_text.forget_pending();
    }

    /// Tokens and cost: the total of the results, or without a result the sum over the messages, at their models' prices.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.tokens.usage(self.total.as_ref(), &self.prices)
    }

    /// What the CLI is doing now; `None`: no turn has ended yet.
    pub(crate) fn activity(&self, now: Ms) -> Option<Activity> {
        self.result.as_ref().map(|_| self.pending.activity(now))
    }

    /// What the end of the run cut off after its last answer; `None`: nothing.
    pub(crate) fn unfinished(&self) -> Option<String> {
        self.pending.unfinished()
    }

    fn keep(&mut self, text: &str) {
        let fits = cut(text, MAX_OUTPUT - self.text.len());
        if !self.is_cut {
            self.text.push_str(fits);
        }
        self.is_cut |= fits.len() < text.len();
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Records that a part of the output is missing, because it was too long.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Whether a plain answer is incomplete because it was too long.
    pub(crate) fn is_cut(&self) -> bool {
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
            "command_lifecycle" => self.pending.prompt(message),
            "result" => self.ending(message, found),
            _ => {}
        }
    }

    /// Whether the API keeps refusing the account: the CLI would go on retrying for minutes.
    pub(crate) fn is_refused(&self) -> bool {
        self.refusals >= LASTING_REFUSALS
    }

    fn system(&mut self, message: &Value, found: &mut Vec<Found>) {
        self.pending.system(message);
        match message["subtype"].as_str() {
            Some("init") => {
                self.warnings.init(message, found);
                self.cli = message["claude_code_version"].as_str().and_then(Version::told);
                self.model = message["model"].as_str().map(bare_model);
                found.push((
                    EventKind::Lifecycle,
                    json!({"phase": "session", "session_id": message["session_id"], "model": message["model"], "cli": message["claude_code_version"]}),
                ));
            }
            Some("api_retry") => {
                self.api_error = message["error"].as_str().map(str::to_owned).or_else(|| self.api_error.take());
                self.api_status = message["error_status"].as_u64();
                let is_refusal = self.api_error.as_deref() == Some("authentication_failed");
                self.refusals = if is_refusal { self.refusals + 1 } else { 0 };
                found.push((EventKind::Log, json!({"stream": "cli", "text": asked_again(message)})));
            }
            _ => self.warnings.notice(message, found),
        }
    }

    /// A part of a message, streamed while the model writes it.
    fn piece(&mut self, message: &Value) {
        // The text of a subagent is not part of the answer.
        if !message["parent_tool_use_id"].is_null() {
            return;
        }
        self.pending.works();
        let event = &message["event"];
        match event["type"].as_str() {
            Some("message_start") => {
                // The API works again.
                (self.api_error, self.api_status, self.refusals) = (None, None, 0);
                self.own_text.message_begins();
                self.tokens.begins(&event["message"], self.model.as_deref());
            }
            Some("message_delta") => self.tokens.ends(&event["usage"]),
            _ => {}
        }
        if let Some(text) = event["delta"]["text"].as_str() {
            self.own_text.piece(text);
        }
    }

    fn assistant(&mut self, message: &Value, found: &mut Vec<Found>) {
        // An answer without an error means that earlier errors are over.
        self.api_error = message["error"].as_str().map(str::to_owned);
        self.api_status = message["api_error_status"].as_u64();
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
        if is_own {
            self.pending.works();
        }
        for block in inner["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("text") if is_own => {
                    let text = self.own_text.whole(block["text"].as_str().unwrap_or_default());
                    found.extend(chunks(text).map(|text| (EventKind::Text, json!({"text": text}))));
                }
                Some("tool_use") => {
                    found
                        .push((EventKind::ToolUse, json!({"id": block["id"], "name": block["name"], "input": cut_value(&block["input"])})));
                }
                _ => {}
            }
        }
    }

    fn user(&mut self, message: &Value, found: &mut Vec<Found>) {
        self.pending.tool_result(message);
        self.tokens.tool_result(message, self.model.as_deref());
        for block in message["message"]["content"].as_array().into_iter().flatten() {
            if block["type"] == "tool_result" {
                let is_error = block["is_error"].as_bool().unwrap_or(false);
                if is_error && self.asks_human {
                    self.keep_tool_error(block);
                }
                found.push((
                    EventKind::ToolResult,
                    json!({"id": block["tool_use_id"], "is_error": is_error, "content": cut_value(&block["content"])}),
                ));
            }
        }
    }

    /// Keeps the error text of a tool. If a person denied the tool use, this is what that person said.
    fn keep_tool_error(&mut self, block: &Value) {
        let content = &block["content"];
        let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_default().trim();
        if let Some(id) = block["tool_use_id"].as_str()
            && self.tool_errors.len() < MAX_DENIALS
        {
            self.tool_errors.insert(cut(id, 128).to_owned(), cut(text, MAX_DENIAL).to_owned());
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
            let why = denial["tool_use_id"].as_str().and_then(|id| self.tool_errors.get(id)).filter(|why| !why.is_empty());
            self.warnings.denied(denial, self.asks_human, why.map(String::as_str));
            let data = json!({"id": denial["tool_use_id"], "name": denial["tool_name"], "input": cut_value(&denial["tool_input"])});
            (EventKind::PermissionDenied, data)
        }));
        self.total = Some(Total::of(message, self.model.as_deref(), self.total.as_ref()));
        self.has_denials |= message["permission_denials"].as_array().is_some_and(|denials| !denials.is_empty());
        let ending = Ending::of(message, &self.own_text.take_last(), self.api_error.as_deref());
        self.answers.add(&ending);
        self.result = Some(ending);
        self.pending.turn_ends(message);
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

/// After this many refusals in a row, an account stays refused. If somebody signs in meanwhile, or the token is renewed, the next request
/// succeeds.
const LASTING_REFUSALS: u32 = 4;

/// The text for an `api_retry` message.
fn asked_again(message: &Value) -> String {
    let error = cut(message["error"].as_str().unwrap_or("an unknown error"), 200);
    let status = message["error_status"].as_u64().map_or_else(|| "no connection".to_owned(), |status| format!("status {status}"));
    let wait = message["retry_delay_ms"].as_u64().unwrap_or_default() as f64 / 1000.0;
    let number = |name: &str| message[name].as_u64().unwrap_or_default();
    format!("the API failed ({status}, {error}) and is asked again in {wait:.1} s: {} of {}", number("attempt"), number("max_retries"))
}

/// `claude-x[1m]` is the model `claude-x` with a longer context.
fn bare_model(name: &str) -> String {
    cut(name.split('[').next().unwrap_or(name), 128).to_owned()
}

/// The stream contains seconds, but some versions of the CLI print milliseconds, and proxies of its API smaller units. Each unit has its
/// own range of values for the times from 1973 to 5138.
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
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The text in parts that fit into an event.
pub(crate) fn chunks(text: &str) -> impl Iterator<Item = String> + '_ {
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
mod tests;
