//! Kubernetes Events about a task, for people who run `kubectl describe`. An event is published once, when the status that shows the change
//! is written.

use bloom_core::Ms;
use bloom_core::task::{LeaseStatus, TaskState, WaitingReason};
use bloom_engine::WaitingState;
use kube::runtime::events::{Event, EventType};

use crate::crds::task::LLMTaskStatus;
use crate::events::event;

/// How long no worker must have had room for a task before that is worth a warning.
const NO_ROOM_AFTER_MS: Ms = 300_000;

/// The event for the change from one status to the next, if it is worth one.
pub(crate) fn of_change(before: &LLMTaskStatus, after: &LLMTaskStatus, state: &TaskState) -> Option<Event> {
    let (before, lease, phase) = (before.phase.as_deref(), before.lease_name.as_ref(), after.phase.as_deref()?);
    // Between two reconciles, one attempt may have ended and the next one begun.
    if before == Some(phase) && lease == after.lease_name.as_ref() {
        return None;
    }
    let worker = after.worker_name.as_deref().unwrap_or_default();
    let message = || after.message.clone().unwrap_or_default();
    let reason = || after.reason.clone().unwrap_or_else(|| phase.to_owned());
    let has_expired = state.last_lease.as_ref().is_some_and(|last| last.status == LeaseStatus::Expired);
    Some(match phase {
        "Running" => {
            event(EventType::Normal, "Assigned", &format!("Attempt {} of {} runs on worker {worker}", state.attempts, state.max_attempts))
        }
        _ if before == Some(phase) => return None,
        "Queued" if before != Some("Running") => return None,
        "Queued" if has_expired => {
            event(EventType::Warning, "LeaseExpired", &format!("The lease of worker {worker} has expired; the task is queued again"))
        }
        "Queued" => {
            let why = state.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default();
            event(EventType::Warning, "Retry", &format!("The task is queued again: {why}"))
        }
        "Failed" | "Dead" => event(EventType::Warning, &reason(), &format!("{phase}: {}", message())),
        "Cancelled" => event(EventType::Normal, &reason(), &format!("Cancelled: {}", message())),
        _ => return None,
    })
}

/// The event that no worker has had room for a while. It is repeated as long as that lasts.
pub(crate) fn of_waiting(waiting: Option<&WaitingState>, state: &TaskState, now: Ms) -> Option<Event> {
    let has_no_room = |reason| {
        matches!(reason, WaitingReason::NoWorker | WaitingReason::NoCapacity | WaitingReason::Cordoned | WaitingReason::WorkerPaused)
    };
    let waiting = waiting.filter(|waiting| has_no_room(waiting.reason))?;
    let since = state.ready_at?;
    (now - since >= NO_ROOM_AFTER_MS).then(|| {
        event(EventType::Warning, "NoRoom", &format!("Waits for a worker since {} minutes: {}", (now - since) / 60_000, waiting.message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_core::task::LastLease;
    use bloom_test_world::world::spec;

    fn told(before: Option<&str>, phase: &str, state: &TaskState) -> Option<(String, String)> {
        let status = LLMTaskStatus {
            phase: Some(phase.into()),
            reason: Some("BadOutput".into()),
            message: Some("no JSON".into()),
            worker_name: Some("w1".into()),
            lease_name: Some("l1".into()),
            ..LLMTaskStatus::default()
        };
        let before = LLMTaskStatus { phase: before.map(Into::into), lease_name: Some("l1".into()), ..LLMTaskStatus::default() };
        of_change(&before, &status, state).map(|event| (event.reason, event.note.unwrap_or_default()))
    }

    #[test]
    fn steps_that_people_ask_about_are_told() {
        let mut state = TaskState { attempts: 2, ..TaskState::new(&spec("c")) };
        let is = |reason: &str, note: &str| Some((reason.to_owned(), note.to_owned()));
        assert_eq!(told(Some("Queued"), "Running", &state), is("Assigned", "Attempt 2 of 3 runs on worker w1"));
        assert_eq!(told(Some("Running"), "Failed", &state), is("BadOutput", "Failed: no JSON"));
        assert_eq!(told(Some("Running"), "Queued", &state), is("Retry", "The task is queued again: "));
        state.last_lease = Some(LastLease { id: TaskState::new(&spec("c")).id, worker_id: "w1".into(), status: LeaseStatus::Expired });
        assert_eq!(told(Some("Running"), "Queued", &state).unwrap().0, "LeaseExpired");
        for (before, after) in [(None, "Queued"), (Some("Running"), "Running"), (Some("Running"), "Completed"), (Some("Pending"), "Queued")]
        {
            assert_eq!(told(before, after, &state), None, "{before:?} {after}");
        }
    }

    #[test]
    fn an_attempt_that_follows_at_once_is_told() {
        let of_lease = |lease: &str| LLMTaskStatus {
            phase: Some("Running".into()),
            lease_name: Some(lease.into()),
            worker_name: Some("w1".into()),
            ..LLMTaskStatus::default()
        };
        let state = TaskState { attempts: 2, ..TaskState::new(&spec("c")) };
        let told = of_change(&of_lease("l1"), &of_lease("l2"), &state).unwrap();
        assert_eq!(told.note.as_deref(), Some("Attempt 2 of 3 runs on worker w1"));
        assert!(of_change(&of_lease("l2"), &of_lease("l2"), &state).is_none());
    }

    #[test]
    fn a_long_wait_is_told() {
        let state = TaskState { ready_at: Some(1_000), ..TaskState::new(&spec("c")) };
        let waiting = |reason| WaitingState { reason, message: "every worker is full".into(), until: None };
        let no_room = waiting(WaitingReason::NoCapacity);
        assert!(of_waiting(Some(&no_room), &state, 300_999).is_none());
        let event = of_waiting(Some(&no_room), &state, 301_000).unwrap();
        assert_eq!(
            (event.reason.as_str(), event.note.as_deref()),
            ("NoRoom", Some("Waits for a worker since 5 minutes: every worker is full"))
        );
        assert!(of_waiting(Some(&waiting(WaitingReason::WorkerPaused)), &state, 301_000).is_some());
        assert!(of_waiting(Some(&waiting(WaitingReason::Paused)), &state, 400_000).is_none(), "somebody wants it so");
        assert!(of_waiting(None, &state, 400_000).is_none());
    }
}
