//! What a person can do about a task that waits or did not succeed.

use crate::when::time_text;
use bloom_api::tasks::Task;
use bloom_api::words::Word;
use bloom_core::pause::DISK_PAUSED;
use bloom_core::task::{NOT_PUSHED, Reason, Status, WaitingReason};

/// The advice for this task; empty if there is nothing to do. `all_paused`: whether all queues are paused; `None` if that is unknown.
pub(crate) fn advice(task: &Task, id: &str, all_paused: Option<bool>) -> String {
    match (&task.status, &task.waiting, &task.failure) {
        (Word::Known(Status::Queued), Some(waiting), _) => match waiting.reason {
            Word::Known(WaitingReason::NoWorker) => {
                let namespace = task.kubernetes.as_ref().map_or_else(String::new, |object| format!(" in namespace '{}'", object.namespace));
                format!("start an agent that serves '{}'{namespace}, or bring one back: bloom-runtime worker list", task.agent_slug)
            }
            Word::Known(WaitingReason::Project) => {
                "start an agent on a machine with git, or one that names the project: bloom-runtime worker list".into()
            }
            Word::Known(WaitingReason::NoCapacity) => {
                format!("wait for a free slot, add workers, or let it go first: bloom-runtime task edit {id} --priority 9")
            }
            Word::Known(WaitingReason::Cordoned) => "put a worker back into service: bloom-runtime worker uncordon NAME".into(),
            Word::Known(WaitingReason::WorkerPaused) if waiting.message.contains(DISK_PAUSED) => {
                "make room on the worker's disk: bloom-runtime worker list; then it goes on by itself".into()
            }
            Word::Known(WaitingReason::WorkerPaused) if waiting.until.is_some() => {
                "wait, start an agent with another account, or give the profile a fallback".into()
            }
            Word::Known(WaitingReason::WorkerPaused) => {
                "do what bloom-runtime account list and worker describe NAME say, or start an agent with another account".into()
            }
            Word::Known(WaitingReason::Suspended) => format!("to let it run: bloom-runtime task resume {id}"),
            Word::Known(WaitingReason::NotBefore) if task.failure.is_some() => {
                let what = match (task.failure.as_ref().map(|failure| &failure.reason), waiting.until) {
                    (Some(Word::Known(Reason::Project)), _) => {
                        "see whether git ls-remote URL works on the worker, as the user of its agent, without a question".to_owned()
                    }
                    // The cause is external or the model's, and passes by itself, so the user has nothing to correct.
                    (Some(Word::Known(Reason::RateLimited | Reason::Overloaded | Reason::WorkerLost | Reason::Stalled)), Some(at)) => {
                        format!("nothing: it is tried again at {}", time_text(at))
                    }
                    _ => "mend what the message says".to_owned(),
                };
                format!("{what}; to try at once: bloom-runtime task edit {id} --not-before now")
            }
            Word::Known(WaitingReason::NotBefore) => format!("to run it at once: bloom-runtime task edit {id} --not-before now"),
            Word::Known(WaitingReason::DependsOn) => "see its dependencies below; it is cancelled if one of them does not complete".into(),
            Word::Known(WaitingReason::ExclusiveKey) => {
                format!("wait for the task that holds the key '{}'", task.exclusive_key.as_deref().unwrap_or_default())
            }
            Word::Known(WaitingReason::SessionWorker) => {
                format!("wait for that worker, or see what else runs in its context: bloom-runtime task list --context {}", task.context_id)
            }
            Word::Known(WaitingReason::SessionOrder) => {
                format!("wait for the task before it: bloom-runtime task list --context {}", task.context_id)
            }
            Word::Known(WaitingReason::Paused) => {
                let all = "resume all queues: bloom-runtime queue resume";
                let own = format!("resume its queue: bloom-runtime queue resume --agent {}", task.agent_slug);
                match all_paused {
                    Some(true) => all.to_owned(),
                    Some(false) => own,
                    None => format!("{own}; or {all}"),
                }
            }
            // Such a task is not queued.
            Word::Known(WaitingReason::NeedsHuman | WaitingReason::WorkerSilent) => String::new(),
            Word::Known(WaitingReason::Limit) => {
                format!("wait for a lease to end, or raise the limit: bloom-runtime queue limit --agent {} N", task.agent_slug)
            }
            Word::Other(_) => String::new(),
        },
        (Word::Known(Status::Failed | Status::Dead | Status::Cancelled), _, failure) => {
            let again = format!("bloom-runtime task retry {id}");
            let unpushed = failure.as_ref().and_then(|failure| unpushed_branch(&failure.message));
            let reset = format!("bloom-runtime conversation reset {}", task.context_id);
            match failure.as_ref().map(|failure| &failure.reason) {
                Some(Word::Known(Reason::Timeout)) => {
                    let hours = task.policy.timeout_sec.saturating_mul(2).unsigned_abs().div_ceil(3600).max(2);
                    format!("give its runs more time: {again} --timeout {hours}h")
                }
                Some(Word::Known(Reason::OutOfMemory)) => {
                    format!("give its runs more memory (limits.memory_mib of the agent's profile, or the machine's), then: {again}")
                }
                Some(Word::Known(Reason::Project)) if unpushed.is_some() => {
                    format!(
                        "mend what the message says, then push its commits by hand, as the user of its agent{}: git --git-dir \
                         WORK_DIR/repositories/ID/git push URL {}; {again} runs its prompt again, and pays for it again",
                        task.worker_id.as_deref().map(|worker| format!(" on {worker}")).unwrap_or_default(),
                        unpushed.unwrap_or_default()
                    )
                }
                Some(Word::Known(Reason::Project)) => {
                    // A retry would begin with the same ref.
                    format!(
                        "do what the message says; with another ref: bloom-runtime task submit --like {id} --ref REF; if the repository, the worker's git or \
                         its directory of the context was mended: {again}"
                    )
                }
                Some(Word::Known(Reason::BadInput)) => {
                    "give the input another path, or upload the file again, as the message says, and submit the task again".into()
                }
                Some(Word::Known(Reason::DiskLimit)) => {
                    format!(
                        "have it write less, or give its runs more room (limits.disk_mib of the agent's profile); what it has written is still there: \
                         do what the message says, then: {again}"
                    )
                }
                Some(Word::Known(Reason::ContextFull)) => {
                    format!("make its prompt shorter, or begin a new conversation: {reset}; then: {again}")
                }
                Some(Word::Known(Reason::InvalidRequest)) => {
                    format!("do what the message says; if its conversation is the cause, begin a new one: {reset}; then: {again}")
                }
                // Errors of a run are retried. This failure is final, so it is one of the agent itself, whose message says what to do.
                Some(Word::Known(Reason::AgentError)) if matches!(task.status, Word::Known(Status::Failed)) => {
                    format!("do what the message says, then: {again}")
                }
                Some(Word::Known(Reason::Refused)) => "change the prompt or the model, then submit it again".into(),
                Some(Word::Known(Reason::WorkerDisk)) => format!("make room on the worker's disk, then: {again}"),
                Some(Word::Known(Reason::BudgetExceeded)) => {
                    format!(
                        "with more to spend: {again} --budget USD (max_budget_usd of the agent's profile may be the limit, too); without it, the same \
                         budget begins anew"
                    )
                }
                Some(Word::Known(Reason::RateLimited | Reason::Overloaded)) => format!("when the provider has room again: {again}"),
                Some(Word::Known(Reason::Auth)) => {
                    format!("sign in again on the worker, or correct the API key if the agent uses one (ANTHROPIC_API_KEY), then: {again}")
                }
                Some(Word::Known(Reason::Billing)) => format!("top up the account of the agent, then: {again}"),
                Some(Word::Known(Reason::ModelUnavailable)) => "submit it again with another --model, or without one".into(),
                Some(Word::Known(Reason::SpawnFailed)) => format!("check the agent's profile and its program on the worker, then: {again}"),
                Some(Word::Known(Reason::WorkerLost)) => format!("check the worker and its connection, then: {again}"),
                None | Some(Word::Known(Reason::Cancelled)) if task.status == Status::Cancelled => format!("to run it after all: {again}"),
                Some(Word::Known(Reason::DependencyFailed)) => format!("see its dependencies below; retry them first, then: {again}"),
                _ => format!("see what its runs did: bloom-runtime task logs {id}; to queue it again: {again}"),
            }
        }
        (Word::Known(Status::Leased | Status::Running), Some(waiting), _) if waiting.reason == WaitingReason::WorkerSilent => {
            let worker = task.worker_id.as_deref().unwrap_or("NAME");
            format!("see whether its worker is up, or wait until it is tried again: bloom-runtime worker describe {worker}")
        }
        (Word::Known(Status::Leased | Status::Running), ..) => format!("follow it: bloom-runtime task logs -f {id}"),
        (Word::Known(Status::Completed), ..) => format!("see its answer: bloom-runtime task result {id}"),
        _ => String::new(),
    }
}

/// The branch that could not be pushed, according to the message.
fn unpushed_branch(message: &str) -> Option<&str> {
    message.split_once(NOT_PUSHED)?.0.trim_end().rsplit(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize as _;
    use serde_json::{Value, json};

    /// The advice for a failed task with these fields.
    fn advised(fields: &Value) -> String {
        let mut task = json!({
            "id": uuid::Uuid::nil(), "context_id": "c", "agent_slug": "a", "prompt": "p", "policy": { "timeout_sec": 60, "timeout_is_default": false, "budget": 0.0 },
            "desired_format": "text", "context_hints": [], "session": "context", "suspend": false, "push": "never", "inputs": [], "outputs": [],
            "status": "failed", "created_at": 1, "updated_at": 1, "attempts": 1, "max_attempts": 3,
            "priority": 5, "depends_on": [], "labels": {}, "infra_retries": 0, "cancel_requested": false,
        });
        let all = task.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        advice(&Task::deserialize(task).unwrap(), "7c0d9e21", None)
    }

    #[test]
    fn a_full_disk_needs_room() {
        let waits = |why: &str| {
            let message = format!("every online worker that serves agent 'a' is paused: {why}; tried again at 2026-01-01T00:00:00Z");
            advised(&json!({ "status": "queued", "waiting": { "reason": "worker_paused", "message": message, "until": 9 } }))
        };
        assert!(waits(DISK_PAUSED).starts_with("make room on the worker's disk"));
        assert!(waits("an account is out of quota").starts_with("wait, start an agent"));
    }

    #[test]
    fn what_passes_by_itself_needs_nothing() {
        let waits = |reason: &str| {
            advised(&json!({
                "status": "queued", "waiting": { "reason": "not_before", "message": "is tried again", "until": 0 },
                "failure": { "reason": reason, "message": "503", "at": 1 },
            }))
        };
        for reason in ["overloaded", "rate_limited", "worker_lost", "stalled"] {
            let told = waits(reason);
            assert!(told.starts_with("nothing: it is tried again at 1970-01-01T00:00:00") && told.contains("--not-before now"), "{told}");
        }
        for reason in ["agent_error", "auth", "spawn_failed"] {
            assert!(waits(reason).starts_with("mend what the message says; to try at once"), "{reason}");
        }
    }

    #[test]
    fn a_branch_is_pushed_by_hand() {
        let failed = |reason: &str, message: &str| {
            advised(&json!({ "worker_id": "box", "failure": { "reason": reason, "message": message, "at": 1 } }))
        };
        let told = failed("project", "timed out; the branch bots/c can't be pushed: rejected");
        assert!(told.contains("on box: git --git-dir WORK_DIR/repositories/ID/git push URL bots/c;"), "{told}");
        assert!(told.contains("task retry 7c0d9e21 runs its prompt again, and pays"), "{told}");
        let told = failed("project", "the project's repository is empty");
        assert!(!told.contains("push URL") && told.contains("task submit --like 7c0d9e21 --ref REF"), "{told}");
        assert!(failed("auth", "401").contains("correct the API key"));
        assert!(failed("budget_exceeded", "the run used 2 USD").contains("max_budget_usd of the agent's profile may be the limit, too"));
    }
}
