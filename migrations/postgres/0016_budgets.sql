-- Whether a part of the cost was estimated from tokens and prices, because a run ended without a total.
ALTER TABLE task_state ADD COLUMN cost_estimated BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE leases ADD COLUMN cost_estimated BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE usage_daily ADD COLUMN cost_estimated BOOLEAN NOT NULL DEFAULT false;
-- The budget holds over all attempts since the task was created or requeued; 0: no limit. Tasks of earlier exports have 0 here: their
-- budget limits each of their runs.
ALTER TABLE task_state ADD COLUMN budget DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE task_state ADD COLUMN cost_before_requeue DOUBLE PRECISION NOT NULL DEFAULT 0;
UPDATE task_state SET budget = (SELECT budget FROM tasks WHERE tasks.id = task_state.id)
    WHERE id IN (SELECT id FROM tasks WHERE budget > 0);
CREATE VIEW task_state_row_8 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, lease_instance, last_lease_id, last_lease_worker, last_lease_status, session_id,
    failure_reason, failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq,
    labels, suspend, namespace, made_at, budget, cost_before_requeue, cost_estimated
    FROM task_state;
CREATE VIEW leases_row_2 AS SELECT
    id, task_id, context_id, agent_slug, worker_id, started_at, ttl_ms, expires_at, last_heartbeat, status, ended_at, completed, model,
    input_tokens, output_tokens, cost_usd, cost_estimated
    FROM leases;
