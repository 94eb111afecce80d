//! Why a queued task does not run yet, or why a running one does not go on.

use bloom_core::Ms;
use bloom_core::agent_queue::Closed;
use bloom_core::cache::Shortage;
use bloom_core::pause::{DISK_PAUSED, PauseCause};
use bloom_core::question::Question;
use bloom_core::requirement::Requirement;
use bloom_core::task::{ActiveLease, Parked, TaskState, WaitingReason};

/// Why a task waits, for the API.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingState {
    /// What it waits for.
    pub reason: WaitingReason,
    /// The same reason in words, for people.
    pub message: String,
    /// When the wait ends by itself, if known.
    pub until: Option<Ms>,
}

/// A run that asks a question occupies the slot or the place in the queue that other tasks wait for.
const SOME_ASK: &str = "; some of their runs wait for the answer of a person; see bloom-runtime task list --asks";

/// How many characters of a failure are shown. The task has the whole text.
const FAILURE_CHARS: usize = 500;

fn beginning(message: &str) -> &str {
    message.char_indices().nth(FAILURE_CHARS).map_or(message, |(end, _)| &message[..end])
}

fn time(at: Ms) -> String {
    let time = jiff::Timestamp::from_millisecond(at).and_then(|at| at.round(jiff::Unit::Second));
    time.map_or_else(|_| format!("{at} (ms since the epoch)"), |time| time.to_string())
}

/// The cause of a pause, for everyone who sees the task. What the agent reports about its account is only for those who may see workers.
fn why_paused(cause: PauseCause) -> &'static str {
    match cause {
        PauseCause::Quota => "an account is out of quota",
        PauseCause::Credentials => "an account was refused, and somebody must sign in there: start `claude` as the user of the agent",
        PauseCause::Billing => "an account has no credit",
        PauseCause::Model => "the model of a profile was refused",
        PauseCause::Start => "the runs of a profile end before they begin",
        PauseCause::Disk => DISK_PAUSED,
    }
}

impl WaitingState {
    /// Why the task is parked.
    pub(super) fn parked(task: &TaskState, parked: Parked) -> Self {
        let (reason, message) = match parked {
            Parked::DependsOn => (WaitingReason::DependsOn, "waits until the tasks that it depends on are completed".into()),
            Parked::Suspended => (WaitingReason::Suspended, "suspended until it is resumed".into()),
            Parked::NotBefore => {
                let at = task.not_before.unwrap_or_default();
                let time = time(at);
                let message = match &task.failure {
                    Some(failure) => format!("is tried again at {time}, because: {}", beginning(&failure.message)),
                    None => format!("does not run before {time}"),
                };
                (WaitingReason::NotBefore, message)
            }
            Parked::Session => (WaitingReason::SessionOrder, "an earlier task of its context is not finished".into()),
            Parked::Reserved => {
                let worker = task.session_worker.as_deref().unwrap_or_default();
                (WaitingReason::SessionWorker, format!("reserved for worker '{worker}', which has its session"))
            }
            Parked::ExclusiveKey => (WaitingReason::ExclusiveKey, "another task holds its exclusive key".into()),
        };
        Self { reason, message, until: task.not_before.filter(|_| parked == Parked::NotBefore) }
    }

    /// The task's run waits for the answer to this question.
    pub(super) fn asked(question: &Question) -> Self {
        let message = match question.texts.first() {
            None => format!("a person must decide whether it may use {}", question.tool),
            Some(text) => format!("it asks: {text}"),
        };
        Self { reason: WaitingReason::NeedsHuman, message, until: Some(question.until) }
    }

    /// The worker of the task's run is offline, so it is unknown whether the run goes on.
    pub(super) fn silent(last_seen: Ms, lease: &ActiveLease) -> Self {
        let (since, end) = (time(last_seen), time(lease.expires_at));
        let message = format!(
            "its worker has been silent since {since}; unless it is back before, its lease ends at {end}, and its run counts as lost"
        );
        Self { reason: WaitingReason::WorkerSilent, message, until: Some(lease.expires_at) }
    }

    /// Why the queue grants no lease for the task. `asks` returns whether a run of the agent waits for a person; it is a closure because it
    /// searches all leases.
    pub(super) fn closed(closed: &Closed, asks: impl FnOnce() -> bool) -> Self {
        let (reason, why) = match closed {
            Closed::AllPaused | Closed::Paused(_) => (WaitingReason::Paused, ""),
            Closed::Full { .. } if asks() => (WaitingReason::Limit, SOME_ASK),
            Closed::Full { .. } => (WaitingReason::Limit, ""),
        };
        Self { reason, message: format!("{closed}{why}"), until: None }
    }

    /// Why no worker takes a ready task.
    pub(super) fn short(required: Requirement<'_>, shortage: Shortage) -> Self {
        let Requirement { agent_slug, namespace, project } = required;
        let in_namespace = namespace.map_or_else(String::new, |namespace| format!(" in namespace '{namespace}'"));
        let rest = format!("agent '{agent_slug}'{in_namespace}");
        let project = project.unwrap_or_default();
        let of = if project.is_empty() { rest.clone() } else { format!("{rest} and project '{project}'") };
        let until = match &shortage {
            Shortage::Paused { is_passing: true, until, .. } => Some(until.0),
            Shortage::Kept { until } => Some(*until),
            _ => None,
        };
        let (reason, message) = match shortage {
            Shortage::NoWorker => (WaitingReason::NoWorker, format!("no online worker serves {rest}")),
            Shortage::Project => (WaitingReason::Project, format!("no online worker that serves {rest} serves project '{project}'")),
            Shortage::Paused { cause, until, .. } => {
                let (why, again) = (why_paused(cause), time(until.0));
                (WaitingReason::WorkerPaused, format!("every online worker that serves {of} is paused: {why}; tried again at {again}"))
            }
            Shortage::Cordoned => (WaitingReason::Cordoned, format!("every online worker that serves {of} is cordoned")),
            Shortage::NoCapacity { asks } => {
                let why = if asks { SOME_ASK } else { "" };
                (WaitingReason::NoCapacity, format!("every worker that serves {of} is full{why}"))
            }
            Shortage::Kept { until } => {
                let at = time(until);
                let message = format!("every worker that names {of} is full; at {at}, one that serves all agents may take it");
                (WaitingReason::NoCapacity, message)
            }
        };
        Self { reason, message, until }
    }
}
