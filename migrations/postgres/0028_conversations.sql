-- The session in which a task's context has its conversation, when the task became ready: its run continues it, and tells if it can't.
ALTER TABLE task_state ADD COLUMN conversation TEXT;
CREATE VIEW task_state_row_15 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, lease_instance, last_lease_id, last_lease_worker, last_lease_status, session_id,
    failure_reason, failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq,
    last_event_seq, labels, suspend, namespace, made_at, budget, cost_before_requeue, cost_estimated, question, project,
    newer_failure_reason, moves_files, event_bytes, context_reset_at, profile_timeout_max, conversation
    FROM task_state;
