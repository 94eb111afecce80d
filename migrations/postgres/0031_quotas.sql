-- Quotas of submit keys; NULL: no limit. `refilled_at` and `stored_bytes` are how much of them is used.
ALTER TABLE api_keys ADD COLUMN max_open_tasks BIGINT;
ALTER TABLE api_keys ADD COLUMN max_tasks_per_minute BIGINT;
ALTER TABLE api_keys ADD COLUMN max_stored_bytes BIGINT;
ALTER TABLE api_keys ADD COLUMN refilled_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN stored_bytes BIGINT NOT NULL DEFAULT 0;
-- The submit key that created the task, for the number of its open tasks.
ALTER TABLE task_state ADD COLUMN owner TEXT;
UPDATE task_state SET owner = (SELECT t.owner FROM tasks t WHERE t.id = task_state.id)
    WHERE id IN (SELECT id FROM tasks WHERE owner IS NOT NULL);
CREATE INDEX task_state_open_of_owner ON task_state (owner)
    WHERE owner IS NOT NULL AND status IN ('queued', 'leased', 'running');
CREATE INDEX files_of_owner ON files (owner) WHERE owner <> '' AND task_id IS NULL;
CREATE VIEW api_keys_row_4 AS SELECT
    name, digest, scope, worker, push, namespaces, created_at, expires_at, created_by, max_open_tasks, max_tasks_per_minute,
    max_stored_bytes
    FROM api_keys;
CREATE VIEW quotas_row AS SELECT
    name, max_open_tasks, max_tasks_per_minute, max_stored_bytes, refilled_at, stored_bytes
    FROM api_keys;
CREATE VIEW task_state_row_16 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, lease_instance, last_lease_id, last_lease_worker, last_lease_status, session_id,
    failure_reason, failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq,
    last_event_seq, labels, suspend, namespace, made_at, budget, cost_before_requeue, cost_estimated, question, project,
    newer_failure_reason, moves_files, event_bytes, context_reset_at, profile_timeout_max, conversation, owner
    FROM task_state;
