//! The real Claude CLI, and a stub of the API that it calls. The newest user message tells the stub what to answer.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::agent::AgentPlan;
use super::{beside, now_ms};

/// The program as npm installs it; `tests/run` sets its path.
pub fn cli() -> PathBuf {
    let path = std::env::var_os("CLAUDE_CLI").expect("CLAUDE_CLI names the Claude CLI: start the tests with tests/run");
    PathBuf::from(path)
}

/// Whether that is the oldest version which is supported; `tests/run` runs some tests with it too.
pub fn is_oldest() -> bool {
    std::env::var_os("CLAUDE_IS_OLDEST").is_some()
}

type Refusal = (u16, &'static str, &'static str);

#[derive(Clone)]
pub struct Anthropic {
    pub url: String,
    seen: Arc<Mutex<Vec<Value>>>,
    /// How many waiting answers may continue.
    allowed: watch::Sender<usize>,
    /// Once set, the modes that refuse requests no longer do so.
    healed: watch::Sender<bool>,
    /// All requests are refused with this status, kind of error and message.
    refusing: watch::Sender<Option<Refusal>>,
    /// Of these tokens, the quota is used up.
    used_up: Arc<Mutex<Vec<String>>>,
    /// Once set, it is healed when an account is probed without a profile.
    is_mended: Arc<AtomicBool>,
    /// While set, requests wait.
    holding: watch::Sender<bool>,
    /// How the request is refused that was the first to wait.
    refusing_first: watch::Sender<Option<Refusal>>,
    /// The requests that wait because of it.
    held: Arc<AtomicI64>,
    /// How many streams are still broken off in the middle, of those that can be.
    breaks: Arc<AtomicI64>,
}

impl Anthropic {
    pub async fn start() -> Anthropic {
        Self::on(tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port"))
    }

    pub fn on(listener: tokio::net::TcpListener) -> Anthropic {
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let stub = Anthropic {
            url,
            seen: Arc::default(),
            allowed: watch::Sender::new(0),
            healed: watch::Sender::new(false),
            refusing: watch::Sender::new(None),
            used_up: Arc::default(),
            is_mended: Arc::default(),
            holding: watch::Sender::new(false),
            refusing_first: watch::Sender::new(None),
            held: Arc::default(),
            breaks: Arc::new(AtomicI64::new(1)),
        };
        let app = Router::new().fallback(answer).with_state(stub.clone());
        beside(async move { axum::serve(listener, app).await });
        stub
    }

    /// The requests for messages so far.
    pub fn seen(&self) -> Vec<Value> {
        self.seen.lock().expect("what was seen").clone()
    }

    /// The requests whose conversation contains this text.
    pub fn seen_with(&self, text: &str) -> Vec<Value> {
        self.seen().into_iter().filter(|request| request["messages"].to_string().contains(text)).collect()
    }

    /// Lets all waiting answers continue, also later ones.
    pub fn go_on(&self) {
        self.allowed.send_replace(usize::MAX);
    }

    /// From now on, the quota of the account with this token is used up.
    pub fn use_up(&self, token: &'static str) {
        self.used_up.lock().expect("the tokens").push(token.to_owned());
    }

    pub fn heal(&self) {
        self.used_up.lock().expect("the tokens").clear();
        self.healed.send_replace(true);
        self.refusing.send_replace(None);
    }

    /// Somebody mends the account while the agent probes it: after the probe of the profile, and before that of the account.
    pub fn heal_between_probes(&self) {
        self.is_mended.store(true, Ordering::Relaxed);
    }

    /// From now on, requests wait, as if nothing answered; or no longer.
    pub fn hold(&self, holds: bool) {
        self.holding.send_replace(holds);
    }

    /// Requests no longer wait. The first that did is refused as all were before; the others are answered.
    pub fn heal_and_release(&self) {
        self.refusing_first.send_replace(*self.refusing.borrow());
        self.heal();
        self.hold(false);
    }

    /// Whether a request waits. One whose client has gone does not.
    pub fn holds_one(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Refuses all requests until it is healed.
    pub fn refuse_all(&self, status: u16, kind: &'static str, message: &'static str) {
        self.refusing.send_replace(Some((status, kind, message)));
    }
}

impl AgentPlan {
    /// Runs the real CLI against the stub, without any settings of this machine.
    pub fn claude(self, api: &Anthropic, more: &str) -> Self {
        let profile = self.claude_profile("default", api, "sk-ant-oat01-dummy", more);
        self.profiles(&profile)
    }

    /// A profile for the real CLI, with the account of this token. It ends with the table of environment variables.
    pub fn claude_profile(&self, name: &str, api: &Anthropic, token: &str, more: &str) -> String {
        let home = self.dir().join("home");
        std::fs::create_dir_all(&home).expect("a directory");
        format!(
            "[profiles.{name}]\nprogram = {:?}\n{more}\n[profiles.{name}.env]\nHOME = {:?}\nANTHROPIC_BASE_URL = {:?}\n\
             CLAUDE_CODE_OAUTH_TOKEN = {token:?}\nCLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC = \"1\"\nDISABLE_TELEMETRY = \"1\"\n\
             CLAUDE_CODE_MAX_RETRIES = \"0\"\n",
            cli().display().to_string(),
            home.display().to_string(),
            api.url
        )
    }
}

/// Counts a request that waits, until it is answered or its client is gone.
struct Held(Arc<AtomicI64>);

impl Held {
    fn new(count: Arc<AtomicI64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The text of the newest user message.
fn asked(request: &Value) -> String {
    let mut asked = String::new();
    for message in request["messages"].as_array().into_iter().flatten().filter(|message| message["role"] == "user") {
        let texts: Vec<String> = match &message["content"] {
            Value::String(text) => vec![text.clone()],
            blocks => blocks.as_array().into_iter().flatten().filter_map(|block| block["text"].as_str().map(str::to_owned)).collect(),
        };
        if let Some(text) = texts.iter().rev().find(|text| !text.trim_start().starts_with("<system-reminder>")) {
            asked = text.clone();
        }
    }
    asked
}

async fn answer(State(stub): State<Anthropic>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    if method != Method::POST || !uri.path().starts_with("/v1/messages") {
        return Response::new(Body::empty());
    }
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut prompt = asked(&request);
    if request["messages"].to_string().contains("MODE-THINK") {
        // The CLI asks for more than a thought, in words of its own.
        "MODE-THINK".clone_into(&mut prompt);
    }
    let last = request["messages"].as_array().and_then(|messages| messages.last()).map(Value::to_string).unwrap_or_default();
    let (has_tool_result, is_notified) = (last.contains("tool_result"), last.contains("<task-notification>"));
    let results = request["messages"].to_string().matches(r#""type":"tool_result""#).count();
    let has_spoiled_history = request["messages"].to_string().contains("SPOILED");
    let was_notified = request["messages"].to_string().contains("<task-notification>");
    let model = request["model"].as_str().unwrap_or_default().to_owned();
    let is_account_probe = request["system"].to_string().contains("Answer with one word.");
    stub.seen.lock().expect("what was seen").push(request);
    let has = |word: &str| prompt.contains(word);
    let is_first = *stub.holding.borrow() && stub.held.load(Ordering::Relaxed) == 0;
    let waits = Held::new(stub.held.clone());
    let _ = stub.holding.subscribe().wait_for(|holds| !holds).await;
    drop(waits);
    if let Some((status, kind, message)) = stub.refusing_first.borrow().filter(|_| is_first) {
        return refuse(status, kind, message, None);
    }
    if is_account_probe && stub.is_mended.load(Ordering::Relaxed) {
        stub.heal();
    }
    if let Some((status, kind, message)) = *stub.refusing.borrow() {
        return refuse(status, kind, message, None);
    }
    let healed = *stub.healed.borrow();
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_used_up = stub.used_up.lock().expect("the tokens").iter().any(|used_up| token.ends_with(used_up.as_str()));
    if has("MODE-429") && !healed {
        // This takes what was left.
        stub.used_up.lock().expect("the tokens").push(token.to_owned());
    }
    if is_used_up || has("MODE-429") && !healed {
        let reset = now_ms() / 1000 + 3600;
        return refuse(429, "rate_limit_error", "the quota is used up", Some(reset));
    }
    if has("MODE-529") && !healed {
        return refuse(529, "overloaded_error", "too much to do", None);
    }
    const REFUSALS: [(&str, Refusal); 5] = [
        ("MODE-TOO-LONG", (400, "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum")),
        ("MODE-400", (400, "invalid_request_error", "messages.1: the history is not valid")),
        ("MODE-413", (413, "request_too_large", "Request exceeds the maximum size")),
        ("MODE-401", (401, "authentication_error", "invalid x-api-key")),
        ("MODE-403", (403, "permission_error", "the gateway does not let this pass")),
    ];
    // A conversation that the API no longer takes, once it is continued.
    let is_spoiled = has_spoiled_history && !has("SPOILED");
    let refused = REFUSALS.iter().find(|(mode, _)| has(mode) && !healed);
    let then_refused = has("THEN-REFUSED") && was_notified;
    if let Some((_, (status, kind, message))) = refused.or_else(|| REFUSALS.get(1).filter(|_| then_refused || is_spoiled)) {
        return refuse(*status, kind, message, None);
    }
    // A key that has no right to use one model.
    if model.contains("forbidden") {
        return refuse(403, "permission_error", "Your API key does not have permission to use the specified resource.", None);
    }
    // A model that has a quota of its own.
    if model.contains("limited") && !healed {
        return refuse(429, "rate_limit_error", "Extra usage is required for this model", None);
    }
    if model.contains("unknown") {
        return refuse(404, "not_found_error", "model: there is none of this name", None);
    }
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    let turn = if is_notified {
        Turn::Notified
    } else if let Some((_, next)) = prompt.split_once("NEXT:").filter(|_| has_tool_result && results == 1) {
        // A second command, after that of `RUN:`.
        prompt = format!("MODE-TOOL RUN: {}", next.lines().next().unwrap_or_default());
        Turn::Asked
    } else if has_tool_result {
        Turn::ToolResult
    } else {
        Turn::Asked
    };
    beside(speak(stub, prompt, turn, sender));
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from_stream(ReceiverStream::new(receiver).map(|piece| piece)))
        .expect("an answer")
}

fn refuse(status: u16, kind: &str, message: &str, reset: Option<i64>) -> Response<Body> {
    let mut response =
        Response::builder().status(StatusCode::from_u16(status).expect("a status")).header("content-type", "application/json");
    if let Some(reset) = reset {
        response = response
            .header("anthropic-ratelimit-unified-status", "rejected")
            .header("anthropic-ratelimit-unified-reset", reset)
            .header("anthropic-ratelimit-unified-representative-claim", "five_hour")
            .header("retry-after", "3600");
    }
    let body = json!({"type": "error", "error": {"type": kind, "message": message}});
    response.body(Body::from(body.to_string())).expect("an answer")
}

type Sender = mpsc::Sender<Result<Bytes, std::io::Error>>;

async fn say(to: &Sender, kind: &str, mut data: Value) {
    data["type"] = json!(kind);
    let _ = to.send(Ok(Bytes::from(format!("event: {kind}\ndata: {data}\n\n")))).await;
}

/// What the newest message is.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Asked,
    ToolResult,
    /// Something in the background has ended.
    Notified,
}

async fn speak(stub: Anthropic, prompt: String, turn: Turn, to: Sender) {
    let has = |word: &str| prompt.contains(word);
    let has_tool_result = turn == Turn::ToolResult;
    if has("MODE-GARBAGE") {
        let _ = to.send(Ok(Bytes::from_static(b"this is no stream\n\n"))).await;
        return;
    }
    let message = json!({
        "id": format!("msg_{}", now_ms()), "type": "message", "role": "assistant", "model": "claude-stub", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 10, "output_tokens": 1},
    });
    say(&to, "message_start", json!({"message": message})).await;
    let uses_agent = has("MODE-AGENT") && !has_tool_result;
    let asks = has("MODE-ASK") || turn == Turn::Notified && has("THEN-ASKS");
    // `CALL: NAME JSON` uses any tool.
    let calls = prompt.split_once("CALL: ").and_then(|(_, call)| call.lines().next()?.split_once(' ')).filter(|_| turn == Turn::Asked);
    let uses_tool = (has("MODE-TOOL") || uses_agent || asks || calls.is_some()) && !has_tool_result;
    if let Some((name, input)) = calls {
        let block = json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}});
        say(&to, "content_block_start", json!({"index": 0, "content_block": block})).await;
        say(&to, "content_block_delta", json!({"index": 0, "delta": {"type": "input_json_delta", "partial_json": input}})).await;
    } else if uses_agent {
        let block = json!({"type": "tool_use", "id": "toolu_1", "name": "Agent", "input": {}});
        say(&to, "content_block_start", json!({"index": 0, "content_block": block})).await;
        let input = json!({"description": "a part", "prompt": "SAY: done", "subagent_type": "general-purpose", "run_in_background": false});
        let delta = json!({"type": "input_json_delta", "partial_json": input.to_string()});
        say(&to, "content_block_delta", json!({"index": 0, "delta": delta})).await;
    } else if asks && !has_tool_result {
        let block = json!({"type": "tool_use", "id": "toolu_1", "name": "AskUserQuestion", "input": {}});
        say(&to, "content_block_start", json!({"index": 0, "content_block": block})).await;
        let option = |label: &str| json!({"label": label, "description": "as it is"});
        let question =
            |text: &str, options: [Value; 2]| json!({"question": text, "header": "Choose", "options": options, "multiSelect": false});
        let input = json!({"questions": [
            question("Which colour?", [option("red"), option("green")]), question("Which size?", [option("small"), option("big")]),
        ]});
        say(&to, "content_block_delta", json!({"index": 0, "delta": {"type": "input_json_delta", "partial_json": input.to_string()}}))
            .await;
    } else if has("MODE-THINK") {
        say(&to, "content_block_start", json!({"index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}})).await;
        say(&to, "content_block_delta", json!({"index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}})).await;
        say(&to, "content_block_delta", json!({"index": 0, "delta": {"type": "signature_delta", "signature": "a"}})).await;
    } else if uses_tool {
        let command = prompt.split_once("RUN:").map_or("true", |(_, command)| command.lines().next().unwrap_or("true")).trim();
        let block = json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}});
        say(&to, "content_block_start", json!({"index": 0, "content_block": block})).await;
        let input = json!({"command": command, "description": "as asked"}).to_string();
        say(&to, "content_block_delta", json!({"index": 0, "delta": {"type": "input_json_delta", "partial_json": input}})).await;
    } else {
        say(&to, "content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}})).await;
        let word = if turn == Turn::Notified { "THEN:" } else { "SAY:" };
        let text = prompt.split_once(word).map_or("Hello from the stub", |(_, text)| text.lines().next().unwrap_or("")).trim().to_owned();
        let middle = text.len() / 2;
        let middle = (0..=middle).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        say(&to, "content_block_delta", json!({"index": 0, "delta": {"type": "text_delta", "text": &text[..middle]}})).await;
        if has("MODE-BREAK") && stub.breaks.fetch_sub(1, Ordering::Relaxed) > 0 {
            let _ = to.send(Err(std::io::Error::other("the connection is closed"))).await;
            return;
        }
        if has("MODE-WAIT") {
            let mut allowed = stub.allowed.subscribe();
            tokio::select! {
                _ = allowed.wait_for(|allowed| *allowed > 0) => {}
                () = to.closed() => return,
            }
        }
        say(&to, "content_block_delta", json!({"index": 0, "delta": {"type": "text_delta", "text": &text[middle..]}})).await;
    }
    say(&to, "content_block_stop", json!({"index": 0})).await;
    let output = if has("MODE-EXPENSIVE") { 2_000_000 } else { 9 };
    let reason = match uses_tool {
        true => "tool_use",
        false if has("MODE-REFUSAL") => "refusal",
        false => "end_turn",
    };
    say(&to, "message_delta", json!({"delta": {"stop_reason": reason, "stop_sequence": null}, "usage": {"output_tokens": output}})).await;
    say(&to, "message_stop", json!({})).await;
}
