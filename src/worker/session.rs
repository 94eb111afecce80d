//! The session of a context, which the runs of its tasks continue, and when they do not.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::run_dir::Record;
use super::stream::Reading;
use super::verdict::{End, Verdict};
use bloom_core::Ms;
use bloom_core::task::Reason;

/// How many runs in a row may fail because of what the session contains, until it is replaced: the first may have been a passing fault of the API.
const MAX_REFUSALS: u32 = 2;

/// What the runs of a profile do when the session of their context is lost, or can't go on.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OnSessionLost {
    /// They begin a new one, which knows nothing of what was said before.
    #[default]
    New,
    /// They fail, until a person resets the context.
    Fail,
}

/// The session of a context, as far as the agent knows it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct SessionRecord {
    pub context_id: String,
    /// The profile's program, because another program does not have the session.
    pub program: String,
    pub session_id: String,
    /// The task whose prompt the session got, if it has no result yet.
    pub open_task: Option<Uuid>,
    /// When the context was last reset before the lease whose run began or continued the session.
    #[serde(default)]
    pub context_reset_at: Option<Ms>,
    /// How many of its last runs in a row failed because the conversation is too long, or because the API refuses it.
    #[serde(default)]
    pub refusals: u32,
}

/// Why a session is not continued.
pub struct Ended {
    pub phase: &'static str,
    pub session_id: String,
    pub why: String,
    /// A person wanted it so.
    pub by_person: bool,
}

impl Ended {
    pub fn lost(session_id: &str) -> Self {
        Self { phase: "session_lost", session_id: session_id.to_owned(), why: "the session no longer exists".into(), by_person: false }
    }

    /// The data of the event that tells it.
    pub fn event(&self) -> Value {
        json!({"session_id": self.session_id, "text": format!("{}; the run starts a new one", self.why)})
    }

    /// Warns of it with the result.
    pub fn warning(&self) -> Option<String> {
        let what = "the run knew nothing of what its context had said before, only the files";
        (!self.by_person).then(|| format!("{}: {what}", self.why))
    }
}

impl SessionRecord {
    pub fn of(record: &Record, program: &str, session_id: String, open_task: Option<Uuid>, refusals: u32) -> Self {
        let (context_id, context_reset_at) = (record.task.context_id.clone(), record.lease.context_reset_at);
        Self { context_id, program: program.to_owned(), session_id, open_task, context_reset_at, refusals }
    }

    /// Why a run with this program, and a lease with this reset, does not continue the session.
    pub fn ended_for(&self, program: &str, context_reset_at: Option<Ms>) -> Option<Ended> {
        // The server forgets a reset with the last task of the context, which resets nothing.
        let is_reset = context_reset_at.is_some() && self.context_reset_at != context_reset_at;
        let (phase, why) = if is_reset {
            ("session_replaced", "the session was ended by a person, who reset the context".to_owned())
        } else if self.program != program {
            ("session_lost", format!("the session belongs to {}", self.program))
        } else if self.refusals >= MAX_REFUSALS {
            ("session_replaced", "the session can't go on: its conversation is too long, or the API refuses it".to_owned())
        } else {
            return None;
        };
        Some(Ended { phase, session_id: self.session_id.clone(), why, by_person: is_reset })
    }

    /// Counts the end of a run. `is_resumed`: the run continued the session.
    ///
    /// What the session contains may be the cause of a failure that would not pass by itself: then the task is tried again.
    pub fn learn(&mut self, verdict: &mut Verdict, is_resumed: bool) {
        let Verdict::Complete(completion) = verdict else { return };
        match completion.reason {
            Some(Reason::ContextFull | Reason::InvalidRequest) if is_resumed => {
                self.refusals = self.refusals.saturating_add(1);
                completion.retryable = true;
            }
            // All that it contains is the prompt that was refused.
            Some(Reason::ContextFull | Reason::InvalidRequest) => self.refusals = MAX_REFUSALS,
            None => self.refusals = 0,
            Some(_) => {}
        }
    }
}

/// Whether the CLI refused to resume the session because it does not exist.
pub fn is_gone(reading: &Reading, end: &End) -> bool {
    let result = reading.result.as_ref().map_or("", |ending| ending.text.as_str());
    end.stop.is_none()
        && reading.usage().is_none_or(|usage| usage.output_tokens == 0)
        && [result, &reading.odd, &end.stderr].iter().any(|text| text.contains("No conversation found"))
}

/// What a task is told whose profile wants no new session.
pub fn refusal(record: &Record, ended: &Ended) -> String {
    let context = &record.task.context_id;
    format!(
        "{}, and on_session_lost = \"fail\" of its profile: to begin a new one, reset the context: bloom-runtime conversation reset {context}",
        ended.why
    )
}
