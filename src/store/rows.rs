//! The two rows of a task: the spec, which never changes, and the state, which every step rewrites.

use super::error::Error;
use super::table::{part, row};
use bloom_core::cache::{priority, rank};
use bloom_core::namespace::KubernetesObject;
use bloom_core::project::TaskProject;
use bloom_core::question::Question;
use bloom_core::task::{ActiveLease, Failure, LastLease, Parked, Reason, Status, TaskSpec, TaskState};
use bloom_core::usage::Usage;

row! {
    pub(super) SPEC: tasks as tasks_row_9 of spec: TaskSpec {
        id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before,
        depends_on, exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner, suspend;
        {
            let object = spec.object.as_ref();
            namespace: object.map(|o| &o.namespace),
            object_name: object.map(|o| &o.name),
            object_uid: object.map(|o| o.uid),
        }
        traceparent;
        {
            let project = spec.project.as_ref();
            project_id: project.map(|p| p.id),
            project: project.map(|p| &p.name),
            repo_url: project.map(|p| &p.repo_url),
            git_ref: project.and_then(|p| p.git_ref.as_ref()),
            push: project.map(|p| &p.push),
        }
        inputs, outputs, profile_timeout_max, team;
    }
    read {
        project: part(|| Some(TaskProject { id: project_id?, name: project?, repo_url: repo_url?, git_ref, push: push? })),
        object: part(|| Some(KubernetesObject { namespace: namespace?, name: object_name?, uid: object_uid? })),
    }
}

row! {
    pub(super) STATE: task_state as task_state_row_17 of task: TaskState {
        id, context_id, agent_slug;
        { let priority = task.priority; rank: rank(priority) }
        session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies, revision, status, updated_at, attempts,
        infra_retries, lease_count, cancel_requested, not_before;
        { let parked = task.parked.as_ref(); parked: parked.map(written) }
        wake_at, ready_at, session_worker, created_after, has_dependents;
        { let shown = task.shown_lease(); worker_id: shown.map(|(_, worker)| worker) }
        {
            let lease = task.lease.as_ref();
            lease_id: lease.map(|l| l.id),
            slot: lease.map(|l| l.slot),
            origin: lease.map(|l| &l.origin),
            started_at: lease.map(|l| l.started_at),
            ttl_ms: lease.map(|l| l.ttl_ms),
            expires_at: lease.map(|l| l.expires_at),
            check_at: lease.map(|l| l.check_at),
            hard_end_at: lease.and_then(|l| l.hard_end_at),
            last_heartbeat: lease.map(|l| l.last_heartbeat),
            holds_context: lease.and_then(|l| l.holds_context.then_some(true)),
            lease_instance: lease.and_then(|l| l.instance),
        }
        {
            let last = task.last_lease.as_ref();
            last_lease_id: last.map(|l| l.id),
            last_lease_worker: last.map(|l| &l.worker_id),
            last_lease_status: last.map(|l| &l.status),
        }
        session_id;
        {
            let failure = task.failure.as_ref();
            failure_reason: failure.map(|f| stored_reason(&f.reason)),
            failure_message: failure.map(|f| &f.message),
            failure_at: failure.map(|f| f.at),
        }
        {
            let usage = task.usage;
            input_tokens: usage.map(|u| u.input_tokens),
            output_tokens: usage.map(|u| u.output_tokens),
            cost_usd: usage.map(|u| u.cost_usd),
        }
        finished_at, remove_at, event_count, event_seq, last_event_seq, labels, suspend, namespace, made_at, budget, cost_before_requeue;
        { let used = task.usage; cost_estimated: used.is_some_and(|u| u.cost_estimated) }
        { let asked = task.question.as_ref(); question: asked }
        { let project = task.project.as_deref(); project: project.unwrap_or_default() }
        { let reason = task.failure.as_ref().map(|f| &f.reason); newer_failure_reason: reason.and_then(newer_reason) }
        moves_files, event_bytes;
        { let lease = task.lease.as_ref(); context_reset_at: lease.and_then(|l| l.context_reset_at) }
        profile_timeout_max, conversation, owner, team;
    }
    read {
        priority: priority(rank),
        parked: if suspend && status == Status::Queued && parked != Some(Parked::DependsOn) { Some(Parked::Suspended) } else { parked },
        lease: match slot {
            None => None,
            Some(slot) => Some(
                part(|| Some(ActiveLease {
                    id: lease_id?,
                    worker_id: worker_id?,
                    slot,
                    origin: origin?,
                    started_at: started_at?,
                    ttl_ms: ttl_ms?,
                    expires_at: expires_at?,
                    // A replica of the previous version leaves it unset. The lease is then checked at once, which sets it.
                    check_at: check_at.unwrap_or_default(),
                    hard_end_at,
                    last_heartbeat: last_heartbeat?,
                    holds_context: holds_context.unwrap_or(false),
                    instance: lease_instance,
                    context_reset_at,
                }))
                .ok_or_else(|| Error::Corrupt("a task has a slot of a worker, but only a part of a lease".into()))?,
            ),
        },
        last_lease: part(|| Some(LastLease { id: last_lease_id?, worker_id: last_lease_worker?, status: last_lease_status? })),
        failure: part(|| {
            let stored = failure_reason?;
            let reason = read_reason(stored, newer_failure_reason);
            Some(Failure { reason, message: failure_message?, at: failure_at? })
        }),
        project: Some(project).filter(|project| !project.is_empty()),
        // A program without questions (before migration 18) ends a lease and leaves the question.
        question: question.filter(|question: &Question| slot.is_some() && lease_id == Some(question.lease)),
        usage: part(|| Some(Usage { input_tokens: input_tokens?, output_tokens: output_tokens?, cost_usd: cost_usd?, cost_estimated })),
    }
}

/// A program without suspension (before migration 9) does not know the word `suspended`. It takes a suspended task for one that is reserved
/// for no worker: it gives it to nobody, and nothing wakes it. What it writes itself to the row of a suspended task is read as suspended.
fn written(parked: &Parked) -> &Parked {
    if *parked == Parked::Suspended { &Parked::Reserved } else { parked }
}

/// Programs before migration 22 do not know the newer words and could not read the row. They read another one, whose meaning is near.
fn stored_reason(reason: &Reason) -> &Reason {
    match reason {
        Reason::Project | Reason::BadInput => &Reason::SpawnFailed,
        Reason::DiskLimit => &Reason::AgentError,
        known => known,
    }
}

/// What tells a newer word from the one that it is stored as. Programs since migration 22 could not read the row with a word that they don't
/// know either: a word of their own, which does not go with the stored one, tells them nothing.
fn newer_reason(reason: &Reason) -> Option<&Reason> {
    match reason {
        Reason::DiskLimit => Some(&Reason::WorkerDisk),
        known => Some(known).filter(|reason| stored_reason(reason) != *reason),
    }
}

/// A program without the word leaves what tells of it when it writes another failure.
fn read_reason(stored: Reason, newer: Option<Reason>) -> Reason {
    match newer {
        Some(Reason::WorkerDisk) if stored == Reason::AgentError => Reason::DiskLimit,
        Some(newer) if *stored_reason(&newer) == stored => newer,
        _ => stored,
    }
}

/// The columns that never change after the row was created.
pub(super) const STATE_FIXED: &[&str] = STATE.only(&[
    "id",
    "context_id",
    "agent_slug",
    "session",
    "max_attempts",
    "budget",
    "exclusive_key",
    "ttl_after_finished_sec",
    "has_dependencies",
    "namespace",
    "owner",
    "team",
    "project",
    "moves_files",
    "made_at",
]);
/// The columns that a quiet change writes: a later expiry, more events, the flag that tasks wait. None of them is indexed. `check_at` is
/// indexed, so if a quiet change moves it, the whole row is written.
pub(super) const STATE_QUIET: &[&str] =
    STATE.only(&["revision", "updated_at", "has_dependents", "expires_at", "last_heartbeat", "event_count", "event_seq", "event_bytes"]);
