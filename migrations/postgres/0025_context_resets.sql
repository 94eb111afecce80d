-- When somebody last reset a context: no run whose lease is later continues a session that began before. The row goes with the context's
-- last task.
CREATE TABLE context_resets (
    context_id TEXT NOT NULL PRIMARY KEY,
    reset_at BIGINT NOT NULL
);
-- The same of the active lease's context, when the lease was made.
ALTER TABLE task_state ADD COLUMN context_reset_at BIGINT;
-- The contexts of a project and of a submit key are listed without reading the tasks between them.
CREATE INDEX tasks_context_of_project ON tasks (project, context_id, id) WHERE project IS NOT NULL;
CREATE INDEX tasks_context_of_owner ON tasks (owner, context_id, id) WHERE owner IS NOT NULL;
CREATE VIEW context_resets_row AS SELECT context_id, reset_at FROM context_resets;
CREATE VIEW task_state_row_13 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, lease_instance, last_lease_id, last_lease_worker, last_lease_status, session_id,
    failure_reason, failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq,
    last_event_seq, labels, suspend, namespace, made_at, budget, cost_before_requeue, cost_estimated, question, project,
    newer_failure_reason, moves_files, event_bytes, context_reset_at
    FROM task_state;
