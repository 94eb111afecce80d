//! The session of a context, which the runs of its tasks continue, and when they do not continue it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::claude::stream::{Reading, cut};
use crate::run::task::{Lease, Task};
use crate::run::verdict::{End, Verdict};
use bloom_core::Ms;
use bloom_core::task::Reason;

/// How many runs in a row may fail because of the session's content before it is replaced: the first failure may be a temporary fault of
/// the API.
const MAX_REFUSALS: u32 = 2;
/// How many bytes of a refusal are kept.
const MAX_REFUSAL: usize = 500;

/// What the runs of a profile do when the session of their context is lost or can't continue.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OnSessionLost {
    /// They begin a new session, which knows nothing of what was said before.
    #[default]
    New,
    /// They fail, until a person resets the context.
    Fail,
}

/// The agent's record of a context's session.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct SessionRecord {
    pub context_id: String,
    /// The profile's program. Another program can't continue the session.
    pub program: String,
    pub session_id: String,
    /// The task whose prompt the session has received, if there is no result yet.
    pub open_task: Option<Uuid>,
    /// The last reset of the context before the lease whose run began or continued the session.
    #[serde(default)]
    pub context_reset_at: Option<Ms>,
    /// The conversation of the context that the server reported with that lease. If the server later reports another one, and it is not
    /// this session, it is newer.
    #[serde(default)]
    pub after: Option<String>,
    /// Whether a run has answered in it.
    pub has_answered: bool,
    /// The warning for its first answer, if the session replaces one that was lost.
    #[serde(default)]
    pub warning: Option<String>,
    /// How many of its last runs in a row failed because the conversation is too long or the API refuses it.
    #[serde(default)]
    pub refusals: u32,
    /// The last of these failures.
    #[serde(default)]
    pub refused: Option<Refusal>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Refusal {
    reason: Reason,
    message: String,
}

/// Why a session is not continued.
pub(crate) struct Ended {
    pub phase: &'static str,
    pub session_id: String,
    pub why: String,
    /// The reason with which a task fails if its profile wants no new session.
    pub reason: Reason,
    /// Whether a person wanted the session to end.
    pub by_person: bool,
}

impl Ended {
    fn lost(session_id: &str, why: String) -> Self {
        Self { phase: "session_lost", session_id: session_id.to_owned(), why, reason: Reason::AgentError, by_person: false }
    }

    fn elsewhere(newest: &str) -> Self {
        Self::lost(newest, format!("the conversation of this context went on as session {newest}, which this worker does not have"))
    }

    /// The data of the event that reports it.
    pub(crate) fn event(&self) -> Value {
        json!({"session_id": self.session_id, "text": format!("{}; the run starts a new one", self.why)})
    }

    /// The warning about it in the result.
    pub(crate) fn warning(&self) -> Option<String> {
        let what = "the run knew nothing of what its context had said before, only the files";
        (!self.by_person).then(|| format!("{}: {what}", self.why))
    }
}

impl SessionRecord {
    fn new(program: &str, task: &Task, lease: &Lease) -> Self {
        Self {
            context_id: task.context_id.clone(),
            program: program.to_owned(),
            session_id: Uuid::now_v7().to_string(),
            open_task: Some(task.id),
            context_reset_at: lease.context_reset_at,
            after: lease.conversation.clone(),
            has_answered: false,
            warning: None,
            refusals: 0,
            refused: None,
        }
    }

    /// Whether something was said in this session, or in one that it replaces, that a run with another session does not know.
    fn is_conversation(&self) -> bool {
        self.has_answered || self.warning.is_some()
    }

    /// The session in which the conversation continued without this one.
    fn newer<'a>(&self, lease: &'a Lease) -> Option<&'a str> {
        lease.conversation.as_deref().filter(|newest| *newest != self.session_id && self.after.as_deref() != Some(newest))
    }

    /// Why a run with this program and this lease does not continue the session.
    fn ended_for(&self, program: &str, lease: &Lease) -> Option<Ended> {
        // This also holds after a reset: the server reports only what was said since then.
        if let Some(newest) = self.newer(lease) {
            return Some(Ended::elsewhere(newest));
        }
        // A lease without a reset does not mean one: the server forgets a reset together with the last task of the context.
        if lease.context_reset_at.is_some() && self.context_reset_at != lease.context_reset_at {
            let why = "the session was ended by a person, who reset the context".to_owned();
            return Some(Ended { phase: "session_replaced", by_person: true, ..Ended::lost(&self.session_id, why) });
        }
        if self.program != program {
            return Some(Ended::lost(&self.session_id, format!("the session belongs to {}", self.program)));
        }
        (self.refusals >= MAX_REFUSALS).then(|| {
            let told = self.refused.as_ref().map(|refused| format!(" ({})", refused.message)).unwrap_or_default();
            let why = format!("the session can't go on: its conversation is too long, or the API refuses it{told}");
            let reason = self.refused.as_ref().map_or(Reason::ContextFull, |refused| refused.reason);
            Ended { phase: "session_replaced", reason, ..Ended::lost(&self.session_id, why) }
        })
    }

    /// Learns from the end of a run. `is_resumed`: the run continued the session.
    ///
    /// The content of the session may cause failures that do not pass by themselves. In this case the task is retried.
    fn learn(&mut self, verdict: &mut Verdict, is_resumed: bool) {
        let Verdict::Complete(completion) = verdict else { return };
        match completion.reason {
            Some(reason @ (Reason::ContextFull | Reason::InvalidRequest)) => {
                // A new session contains nothing but the prompt that was refused.
                self.refusals = if is_resumed { self.refusals.saturating_add(1) } else { MAX_REFUSALS };
                completion.retryable |= is_resumed;
                let message = cut(completion.error_message.as_deref().unwrap_or_default(), MAX_REFUSAL).to_owned();
                self.refused = Some(Refusal { reason, message });
            }
            None => (self.refusals, self.refused, self.has_answered, self.warning) = (0, None, true, None),
            Some(_) => {}
        }
    }
}

/// The session of a run, with the context's record from when the run began. So every agent process that sees the run's end draws the same
/// conclusions, however often.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RunSession {
    pub record: SessionRecord,
    /// Whether the run continues the session.
    pub is_resumed: bool,
    /// Whether the session already has the prompt of the task, from a run without a result.
    pub was_open: bool,
}

impl RunSession {
    /// The session for the next run, and why it can't continue the previous one if something was said there. `lost`: a session that the CLI
    /// does not have.
    pub(crate) fn next(
        kept: Option<SessionRecord>,
        lost: Option<SessionRecord>,
        program: &str,
        task: &Task,
        lease: &Lease,
    ) -> (Self, Option<Ended>) {
        let new = || Self { record: SessionRecord::new(program, task, lease), is_resumed: false, was_open: false };
        if let Some(lost) = lost {
            let is_newest = lease.conversation.as_ref() == Some(&lost.session_id);
            let ended = || Ended::lost(&lost.session_id, "the session no longer exists".into());
            return (new(), (is_newest || lost.is_conversation()).then(ended));
        }
        let Some(kept) = kept else { return (new(), lease.conversation.as_deref().map(Ended::elsewhere)) };
        if let Some(ended) = kept.ended_for(program, lease) {
            let is_told = ended.by_person || kept.newer(lease).is_some() || kept.is_conversation();
            return (new(), Some(ended).filter(|_| is_told));
        }
        let was_open = kept.open_task == Some(task.id);
        let after = lease.conversation.clone().or_else(|| kept.after.clone());
        let record = SessionRecord { open_task: Some(task.id), context_reset_at: lease.context_reset_at, after, ..kept };
        (Self { record, is_resumed: true, was_open }, None)
    }

    /// The context's record after the run. May change the run's verdict.
    pub(crate) fn after_run(&self, task: &Task, reading: &Reading, verdict: &mut Verdict) -> SessionRecord {
        let open_task = (reading.result.is_none() || reading.unfinished().is_some()).then_some(task.id);
        let session_id = reading.session_id.clone().unwrap_or_else(|| self.record.session_id.clone());
        let mut record = SessionRecord { session_id, open_task, ..self.record.clone() };
        record.learn(verdict, self.is_resumed);
        record
    }
}

/// Whether the CLI refused to resume the session because it does not exist.
pub(crate) fn is_gone(reading: &Reading, end: &End) -> bool {
    let result = reading.result.as_ref().map_or("", |ending| ending.text.as_str());
    end.stop.is_none()
        && reading.usage().is_none_or(|usage| usage.output_tokens == 0)
        && [result, &reading.odd, &end.stderr].iter().any(|text| text.contains("No conversation found"))
}

/// The error of a task whose profile wants no new session.
pub(crate) fn refusal(context: &str, ended: &Ended) -> String {
    format!(
        "{}, and on_session_lost = \"fail\" of its profile: to begin a new one, reset the context: bloom-runtime conversation reset {context}",
        ended.why
    )
}
