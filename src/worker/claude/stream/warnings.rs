//! Problems in a run that do not make it fail.

use serde_json::{Value, json};

use super::{Found, cut};
use bloom_core::event::EventKind;
use bloom_core::limits;

/// The profile's setting that allows a denied tool use. If a shell command consists of several commands, the first one does not stand for
/// the whole.
fn allowing(tool: &str, input: &Value) -> String {
    let first = input["command"].as_str().and_then(|command| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let is_one = !command.contains(['&', '|', ';', '`', '$', '(', '<', '>', '\n']);
        command.split_whitespace().next().filter(|word| is_one && word.chars().all(is_plain))
    });
    match (tool, first) {
        ("Bash", Some(command)) => format!("allowed_tools = [\"Bash({command} *)\"]"),
        ("Edit" | "MultiEdit" | "NotebookEdit" | "Write", _) => "permission_mode = \"acceptEdits\"".to_owned(),
        ("Bash", None) => "allowed_tools or permission_mode".to_owned(),
        _ => format!("allowed_tools = [\"{tool}\"]"),
    }
}

/// Each warning is reported once as an event, when it is found, and once with the result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings(Vec<String>);

impl Warnings {
    /// If there were more warnings than fit, the last one says so.
    pub(crate) fn texts(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn add(&mut self, text: &str) {
        let text: String = text.replace('\0', "\u{fffd}").chars().take(limits::WARNING_CHARS).collect();
        if self.0.len() < limits::WARNINGS && !text.is_empty() && !self.0.contains(&text) {
            self.0.push(if self.0.len() + 1 < limits::WARNINGS { text } else { "and more, which the events of the run tell".into() });
        }
    }

    /// Warns about MCP servers and plugins that did not start: the CLI continues without their tools.
    pub(super) fn init(&mut self, message: &Value, found: &mut Vec<Found>) {
        let name = |value: &Value, name: &str| cut(value[name].as_str().unwrap_or_default(), 200).to_owned();
        let all = |list: &str| message[list].as_array().into_iter().flatten().take(limits::WARNINGS);
        let servers = all("mcp_servers").filter_map(|server| match server["status"].as_str()? {
            "failed" => Some(format!("the MCP server {} did not start; the run had none of its tools", name(server, "name"))),
            "needs-auth" => Some(format!("the MCP server {} needs a login; the run had none of its tools", name(server, "name"))),
            _ => None,
        });
        let plugins = all("plugin_errors")
            .map(|error| format!("the plugin {} was not loaded as a whole: {}", name(error, "plugin"), name(error, "message")));
        for text in servers.chain(plugins) {
            if !self.0.contains(&text) {
                found.push((EventKind::Log, json!({"stream": "agent", "text": text})));
            }
            self.add(&text);
        }
    }

    /// Warns about a denied tool use, because the run may say that everything is done. `why` is what the model was told; with `asks_human`,
    /// these are the person's words.
    pub(super) fn denied(&mut self, denial: &Value, asks_human: bool, why: Option<&str>) {
        let tool = cut(denial["tool_name"].as_str().unwrap_or_default(), 200);
        let of_person = why.unwrap_or("a person denied it or did not answer within ask_human_seconds of the profile");
        self.add(&match tool {
            "AskUserQuestion" if asks_human => format!("its question was not answered: {of_person}"),
            "AskUserQuestion" => "its question was not answered: ask_human in the profile of its agent has a person asked".to_owned(),
            _ if asks_human => format!("the tool {tool} was denied: {of_person}"),
            _ => {
                let (used, allowed) = (denial["tool_input"]["command"].as_str(), allowing(tool, &denial["tool_input"]));
                let used = used.map_or_else(String::new, |command| format!(" ({})", cut(command, 100)));
                format!("the tool {tool} was denied{used}: to allow it, set {allowed} in the profile of its agent; ask_human = true has a person asked")
            }
        });
    }

    /// A message of the CLI to a person, outside of the conversation. If it affects the value of the answer, it also becomes a warning of
    /// the result: for example another model that answered, a hook that stopped the turn, or a conversation that was not saved.
    pub(super) fn notice(&mut self, message: &Value, found: &mut Vec<Found>) {
        let text = |name: &str| message[name].as_str().unwrap_or_default();
        let subtype = text("subtype");
        let (text, warns) = match subtype {
            "informational" => (text("content").to_owned(), message["level"] == "warning" || message["prevent_continuation"] == true),
            "notification" => (text("text").to_owned(), matches!(text("color"), "warning" | "error")),
            "model_fallback" | "model_refusal_fallback" | "model_consent_fallback" => {
                let models = format!("the model {} answered instead of {}", text("fallback_model"), text("original_model"));
                (format!("{models}: {}", cut(text("content"), 300)), true)
            }
            "session_writes_lost" => {
                let why = text("error_code");
                (format!("the disk was full ({why}): a later run of this context may not know all of this conversation"), true)
            }
            "hook_response" if text("outcome") == "error" => {
                (format!("the hook {} failed with exit status {}: {}", text("hook_name"), message["exit_code"], text("stderr")), true)
            }
            "compact_boundary" => {
                let tokens = &message["compact_metadata"]["pre_tokens"];
                (format!("the conversation was compacted; it had {tokens} tokens"), false)
            }
            "code_change_published" => (format!("{} {}", text("action"), text("url")), false),
            _ => return,
        };
        let text = cut(text.trim(), limits::WARNING_CHARS);
        if !text.is_empty() {
            found.push((EventKind::Log, json!({"stream": "cli", "text": text})));
        }
        if warns {
            self.add(text);
        }
    }
}
