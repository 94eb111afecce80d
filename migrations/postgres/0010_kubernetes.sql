-- Tasks that were created for Kubernetes objects: the object's namespace, name and uid; NULL for all others. One object has one task.
-- The names of their contexts and keys have the namespace in front, so the other tables and indexes need not know it.
ALTER TABLE tasks ADD COLUMN namespace TEXT;
ALTER TABLE tasks ADD COLUMN object_name TEXT;
ALTER TABLE tasks ADD COLUMN object_uid UUID;
CREATE UNIQUE INDEX tasks_object ON tasks (object_uid) WHERE object_uid IS NOT NULL;
ALTER TABLE task_state ADD COLUMN namespace TEXT;
CREATE INDEX task_state_unfinished_of_objects ON task_state (id)
    WHERE namespace IS NOT NULL AND status IN ('queued', 'leased', 'running');
CREATE VIEW tasks_row_4 AS SELECT
    id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before, depends_on,
    exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner, suspend, namespace, object_name, object_uid
    FROM tasks;
CREATE VIEW task_state_row_5 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, last_lease_id, last_lease_worker, last_lease_status, session_id, failure_reason,
    failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq, labels, suspend, namespace
    FROM task_state;
