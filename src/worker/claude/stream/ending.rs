//! The `result` messages of the Claude CLI, each of which ends a turn. The answers of a run are the results of its successful turns.

use serde_json::Value;

use super::MAX_OUTPUT;
use bloom_core::task::Reason;

/// A `result` message.
#[derive(Debug)]
pub(crate) struct Ending {
    subtype: String,
    is_error: bool,
    pub text: String,
    /// The HTTP status with which the API refused.
    pub api_status: Option<u64>,
    /// The CLI's names for why the turn ended. Versions differ in which of them they set.
    terminal_reason: String,
    stop_reason: String,
    api_error: String,
}

impl Ending {
    /// `own_text` is the last text of the model in this turn, `api_error` the last error that its messages reported. The CLI reports an
    /// empty result if a tool use or a thought came after the text.
    pub(crate) fn of(result: &Value, own_text: &str, api_error: Option<&str>) -> Self {
        let name = |name: &str| result[name].as_str().unwrap_or_default().to_owned();
        let errors = result["errors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join("; ");
        let structured = Some(&result["structured_output"]).filter(|value| !value.is_null()).map(Value::to_string);
        let said = result["result"].as_str().map(str::to_owned).filter(|text| !text.trim().is_empty());
        let mut ending = Self {
            subtype: name("subtype"),
            is_error: result["is_error"].as_bool().unwrap_or(false),
            text: String::new(),
            api_status: result["api_error_status"].as_u64(),
            terminal_reason: name("terminal_reason"),
            stop_reason: name("stop_reason"),
            api_error: api_error.unwrap_or_default().to_owned(),
        };
        let own = || if ending.is_success() { own_text.to_owned() } else { errors };
        ending.text = said.or(structured).unwrap_or_else(own);
        ending
    }

    pub(crate) fn is_success(&self) -> bool {
        !self.is_error && self.subtype == "success"
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        self.subtype == "error_max_budget_usd"
    }

    /// What to report about a failure without any text.
    pub(crate) fn subtype(&self) -> &str {
        &self.subtype
    }

    /// The reason of a failure that would also happen in another attempt, as far as the result shows it. `None`: it may have been a
    /// temporary fault.
    pub(crate) fn lasting_failure(&self) -> Option<Reason> {
        Some(match (self.terminal_reason.as_str(), self.stop_reason.as_str(), self.api_error.as_str(), self.api_status) {
            // Some versions report the status 400 without the reason.
            ("prompt_too_long" | "blocking_limit" | "rapid_refill_breaker", ..) | (.., Some(413)) => Reason::ContextFull,
            (.., Some(400)) if self.text.starts_with("Prompt is too long") => Reason::ContextFull,
            (_, "refusal", ..) => Reason::Refused,
            (_, _, "max_output_tokens", _) => Reason::BadOutput,
            ("image_error", ..) | (.., Some(400)) => Reason::InvalidRequest,
            _ if self.subtype == "error_max_structured_output_retries" => Reason::BadOutput,
            _ => return None,
        })
    }
}

/// The answers of the successful turns, in order. The CLI continues after a result when a background task has ended.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    texts: Vec<String>,
    bytes: usize,
    /// Why the last turn failed, if an earlier one had succeeded.
    later_failure: Option<String>,
}

impl Answers {
    pub(crate) fn add(&mut self, ending: &Ending) {
        if !ending.is_success() {
            self.later_failure = (!self.texts.is_empty()).then(|| ending.text.clone());
            return;
        }
        self.later_failure = None;
        // The first answer that exceeds the limit is kept, so that the verdict notices that the output is too long.
        if self.bytes <= MAX_OUTPUT {
            self.bytes += ending.text.len();
            self.texts.push(ending.text.clone());
        }
    }

    /// Whether no turn has succeeded.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The answers in the form in which the CLI prints them as text.
    pub(crate) fn text(&self) -> String {
        let texts: Vec<&str> = self.texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        texts.join("\n\n")
    }

    /// The answers, last one first.
    pub(crate) fn backwards(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().rev().map(String::as_str)
    }

    /// Why a turn after these answers failed; `None`: none did.
    pub(crate) fn later_failure(&self) -> Option<&str> {
        self.later_failure.as_deref()
    }
}
