-- The trace that a task belongs to: the `traceparent` of W3C Trace Context that its attempts have as their parent; NULL if there is none.
ALTER TABLE tasks ADD COLUMN traceparent TEXT;
CREATE VIEW tasks_row_5 AS SELECT
    id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before, depends_on,
    exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner, suspend, namespace, object_name, object_uid,
    traceparent
    FROM tasks;
