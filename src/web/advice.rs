//! Why a task waits or did not succeed, in plain words, and what to do about it on these pages.

use bloom_api::tasks::Task;
use bloom_api::words::Word;
use bloom_core::task::{Reason, Status, WaitingReason};

pub struct Advice {
    /// What happened.
    pub title: &'static str,
    /// The details, as the server or the agent told them.
    pub message: String,
    pub to_do: &'static str,
    /// `bad` or `wait`.
    pub kind: &'static str,
}

/// `None` if there is nothing to say: the task runs, or has completed.
pub fn of(task: &Task<'_>) -> Option<Advice> {
    let Word::Known(status) = task.status else { return None };
    if let Some(waiting) = &task.waiting {
        let Word::Known(reason) = waiting.reason else {
            return Some(Advice { title: "It waits", message: waiting.message.clone(), to_do: "", kind: "wait" });
        };
        let (title, to_do) = waits(reason);
        return Some(Advice { title, message: waiting.message.clone(), to_do, kind: "wait" });
    }
    let message = task.failure.as_ref().map(|failure| failure.message.to_string()).unwrap_or_default();
    let (title, to_do) = match (status, task.failure.as_ref().map(|failure| &failure.reason)) {
        (Status::Cancelled, None) => ("It was cancelled", "Requeue it to run it after all."),
        (Status::Failed | Status::Dead | Status::Cancelled, Some(Word::Known(reason))) => failed(*reason),
        (Status::Failed | Status::Dead, _) => ("It failed", "Look at the events of its run, then requeue it."),
        (Status::Queued, Some(_)) => {
            return Some(Advice { title: "The last attempt failed", message, to_do: "It is tried again by itself.", kind: "wait" });
        }
        _ => return None,
    };
    Some(Advice { title, message, to_do, kind: "bad" })
}

fn waits(reason: WaitingReason) -> (&'static str, &'static str) {
    match reason {
        WaitingReason::NoWorker => ("No worker serves its agent", "Start an agent that serves it, or bring a worker back: see Workers."),
        WaitingReason::Project => {
            ("No worker serves its project", "Start an agent on a machine with git, or one that names the project: see Workers.")
        }
        WaitingReason::NoCapacity => ("All workers are busy", "It runs when a slot is free. Add a worker if this takes too long."),
        WaitingReason::Cordoned => ("Its workers are cordoned", "Uncordon a worker: see Workers."),
        WaitingReason::WorkerPaused => ("Its workers are paused", "Do what the message says, or start an agent with another account."),
        WaitingReason::Suspended => ("It is suspended", "Resume it to let it run."),
        WaitingReason::NotBefore => ("It is not time yet", "It runs by itself at its time."),
        WaitingReason::DependsOn => {
            ("It waits for other tasks", "It runs when they have completed, and is cancelled if one of them does not.")
        }
        WaitingReason::ExclusiveKey => ("Another task has its exclusive key", "It runs when that task has ended."),
        WaitingReason::SessionWorker => (
            "The worker that has its conversation is busy or away",
            "It runs there when a slot is free, and elsewhere if that takes too long.",
        ),
        WaitingReason::SessionOrder => ("An earlier task of its context has not finished", "It runs when that task has ended."),
        WaitingReason::Paused => ("Its queue is paused", "Resume the queue: bloom-runtime queue resume."),
        WaitingReason::Limit => ("Its queue is at its limit", "It runs when another task of the queue has ended."),
        WaitingReason::NeedsHuman => ("It needs your answer", "Answer below. Without an answer, the tool is denied when the time is over."),
    }
}

fn failed(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Timeout => ("The run took longer than it may", "Submit it again with a longer time limit, or requeue it."),
        Reason::Stalled => ("The run said nothing for too long", "Look at its last events, then requeue it."),
        Reason::Cancelled => ("It was cancelled", "Requeue it to run it after all."),
        Reason::RateLimited | Reason::Overloaded => ("The provider had no room", "Requeue it when the provider has room again."),
        Reason::Auth => (
            "The provider refused the worker's Claude account",
            "Sign in again on the worker, or correct the profile's credentials. Then requeue it.",
        ),
        Reason::Billing => ("The worker's Claude account has no credit", "Top up the account, then requeue it."),
        Reason::ModelUnavailable => ("The model is not available", "Submit it again with another model, or without one."),
        Reason::BudgetExceeded => {
            ("It has cost its whole budget", "Submit it again with a higher budget, or requeue it with the same budget again.")
        }
        Reason::BadOutput => {
            ("The answer is not what was asked for", "It should have been JSON. Make the prompt clearer, then submit it again.")
        }
        Reason::WorkerLost => ("The worker was lost during the run", "Check the worker and its connection, then requeue it."),
        Reason::SpawnFailed => {
            ("The run could not be started", "Check the agent's profile and its program on the worker, then requeue it.")
        }
        Reason::DependencyFailed => ("A task that it depends on did not complete", "Requeue that task first, then this one."),
        Reason::OutOfMemory => ("The run needed more memory than it may use", "Give the runs of its profile more memory, then requeue it."),
        Reason::Project => (
            "Its repository could not be used",
            "Check the project's URL, the ref and the worker's git credentials, as the message says. Then requeue it.",
        ),
        Reason::BadInput => (
            "A file that the task is to have could not be put in its place",
            "Give the input another path, or upload the file again, as the message says, and submit the task again.",
        ),
        Reason::WorkerDisk => ("The worker's disk is full", "Make room on the worker's disk, then requeue it."),
        Reason::AgentError => ("The agent ended with an error", "Look at the events of its run, then requeue it."),
    }
}
