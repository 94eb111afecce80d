//! The two rows of a task: the spec, which never changes, and the state, which every step rewrites.

use crate::error::Error;
use crate::sql::table::{part, row};
use bloom_core::cache::{priority, rank};
use bloom_core::namespace::KubernetesObject;
use bloom_core::project::TaskProject;
use bloom_core::task::{ActiveLease, Failure, LastLease, TaskSpec, TaskState};
use bloom_core::usage::Usage;

row! {
    pub(crate) SPEC: tasks as tasks_row of spec: TaskSpec {
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
    pub(crate) STATE: task_state as task_state_row of task: TaskState {
        id, context_id, agent_slug;
        { let priority = task.priority; rank: rank(priority) }
        session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies, revision, status, updated_at, attempts,
        infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at, session_worker, created_after, has_dependents;
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
            failure_reason: failure.map(|f| &f.reason),
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
        question;
        { let project = task.project.as_deref(); project: project.unwrap_or_default() }
        moves_files, event_bytes;
        { let lease = task.lease.as_ref(); context_reset_at: lease.and_then(|l| l.context_reset_at) }
        profile_timeout_max, conversation, owner, team;
    }
    read {
        priority: priority(rank),
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
                    check_at: check_at?,
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
        failure: part(|| Some(Failure { reason: failure_reason?, message: failure_message?, at: failure_at? })),
        project: Some(project).filter(|project| !project.is_empty()),
        usage: part(|| Some(Usage { input_tokens: input_tokens?, output_tokens: output_tokens?, cost_usd: cost_usd?, cost_estimated })),
    }
}

/// The columns that never change once the row was created.
pub(crate) const STATE_FIXED: &[&str] = STATE.only(&[
    "id",
    "context_id",
    "agent_slug",
    "session",
    "max_attempts",
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
/// The columns that a quiet change writes: a later expiry, more events, or the flag that other tasks wait for the task. None of them is
/// indexed. `check_at` is indexed, so if a quiet change moves it, the whole row is written.
pub(crate) const STATE_QUIET: &[&str] =
    STATE.only(&["revision", "updated_at", "has_dependents", "expires_at", "last_heartbeat", "event_count", "event_seq", "event_bytes"]);
