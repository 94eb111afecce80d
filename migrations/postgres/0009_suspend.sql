-- Whether a client has suspended the task; in `tasks` as it was created. It only widens: while a suspended task is queued, `parked` is
-- 'reserved' without a worker (or 'depends_on'), so a replica of the version before, which does not know of suspension, gives it to nobody.
ALTER TABLE tasks ADD COLUMN suspend BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE task_state ADD COLUMN suspend BOOLEAN NOT NULL DEFAULT false;

CREATE VIEW tasks_row_3 AS SELECT
    id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before, depends_on,
    exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner, suspend
    FROM tasks;
CREATE VIEW task_state_row_4 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, last_lease_id, last_lease_worker, last_lease_status, session_id, failure_reason,
    failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq, labels, suspend
    FROM task_state;
