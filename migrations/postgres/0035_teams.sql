-- The team of a key, and its scope if programs before this migration do not know the word: in `scope` they read one that allows less.
ALTER TABLE api_keys ADD COLUMN team TEXT;
ALTER TABLE api_keys ADD COLUMN newer_scope TEXT;
-- The team of the key that created the task, which is not looked up at the key: a key can be revoked, and its name given to another one.
ALTER TABLE tasks ADD COLUMN team TEXT;
CREATE INDEX tasks_team ON tasks (team, id) WHERE team IS NOT NULL;
CREATE INDEX tasks_context_of_team ON tasks (team, context_id, id) WHERE team IS NOT NULL;
-- The same, for the numbers of a team's open tasks.
ALTER TABLE task_state ADD COLUMN team TEXT;
CREATE INDEX task_state_open_of_team ON task_state (team)
    WHERE team IS NOT NULL AND status IN ('queued', 'leased', 'running');
-- The same of tasks that were removed; empty: none.
ALTER TABLE usage_removed ADD COLUMN team TEXT NOT NULL DEFAULT '';
CREATE VIEW api_keys_row_5 AS SELECT
    name, digest, scope, worker, push, namespaces, created_at, expires_at, created_by, max_open_tasks, max_tasks_per_minute,
    max_stored_bytes, team, newer_scope
    FROM api_keys;
CREATE VIEW tasks_row_9 AS SELECT
    id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before, depends_on,
    exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner, suspend, namespace, object_name, object_uid,
    traceparent, project_id, project, repo_url, git_ref, push, inputs, outputs, profile_timeout_max,
    team
    FROM tasks;
CREATE VIEW task_state_row_17 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, lease_instance, last_lease_id, last_lease_worker, last_lease_status, session_id,
    failure_reason, failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq,
    last_event_seq, labels, suspend, namespace, made_at, budget, cost_before_requeue, cost_estimated, question, project,
    newer_failure_reason, moves_files, event_bytes, context_reset_at, profile_timeout_max, conversation, owner, team
    FROM task_state;
