-- The labels of a task, once they were edited; NULL: those of its row in `tasks`, which is written once. The priority (`rank`) and
-- `not_before` are in this table since the first version.
ALTER TABLE task_state ADD COLUMN labels TEXT;
CREATE VIEW task_state_row_3 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, last_lease_id, last_lease_worker, last_lease_status, session_id, failure_reason,
    failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq, labels
    FROM task_state;
