-- The project of a task, as it was when the task was created; NULL: none. `push` is a word: whether the agent pushes the branch of a run.
ALTER TABLE tasks ADD COLUMN project_id UUID;
ALTER TABLE tasks ADD COLUMN project TEXT;
ALTER TABLE tasks ADD COLUMN repo_url TEXT;
ALTER TABLE tasks ADD COLUMN git_ref TEXT;
ALTER TABLE tasks ADD COLUMN push TEXT;
-- The project's name; '' for tasks without one, because an index is read in order behind an equal value, and not behind IS NULL.
ALTER TABLE task_state ADD COLUMN project TEXT NOT NULL DEFAULT '';
-- Whether its agent moves files before and after the run.
ALTER TABLE task_state ADD COLUMN moves_files BOOLEAN NOT NULL DEFAULT false;
-- A reason of the failure that programs before this migration do not know: `failure_reason` has another one that they know then.
ALTER TABLE task_state ADD COLUMN newer_failure_reason TEXT;
CREATE INDEX task_state_ready_of_project ON task_state (project, rank, id) WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_ready_of_agent_in_project ON task_state (project, agent_slug, rank, id)
    WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_ready_of_namespace_and_project ON task_state (namespace, project, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
CREATE INDEX task_state_ready_of_agent_in_namespace_and_project ON task_state (namespace, project, agent_slug, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
-- Who waits for a key, by agent and project: the first of each is found without reading the others.
CREATE INDEX task_state_awaits_key_of_project ON task_state (exclusive_key, agent_slug, project, rank, id)
    WHERE status = 'queued' AND parked = 'exclusive_key';
-- Whether a worker can clone any project, and which projects it serves, as a JSON list; NULL: all if it can, else none.
ALTER TABLE workers ADD COLUMN git BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE workers ADD COLUMN projects TEXT;
-- The branch and the commit that a run has left.
ALTER TABLE results ADD COLUMN branch TEXT;
ALTER TABLE results ADD COLUMN commit_id TEXT;
CREATE VIEW tasks_row_6 AS SELECT
    id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before, depends_on,
    exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner, suspend, namespace, object_name, object_uid,
    traceparent, project_id, project, repo_url, git_ref, push
    FROM tasks;
CREATE VIEW task_state_row_11 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, lease_instance, last_lease_id, last_lease_worker, last_lease_status, session_id,
    failure_reason, failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq,
    last_event_seq, labels, suspend, namespace, made_at, budget, cost_before_requeue, cost_estimated, question, project,
    newer_failure_reason, moves_files
    FROM task_state;
CREATE VIEW workers_row_6 AS SELECT
    id, url, status, lost, capabilities, namespaces, git, projects, other_capabilities, ip_addrs, obs_count, db_sha, registered_at,
    agent_version, os_info, install_method, dispatch, cordoned, draining, revision, updated_at, recount_slots, instance, instance_since,
    pauses
    FROM workers;
CREATE VIEW results_row_3 AS SELECT
    id, artifact_id, task_id, lease_id, worker_id, status, output, error_message, duration_ms, tokens_used, completed_at,
    artifact_type, artifact_tags, object_url, object_bytes, preview, branch, commit_id
    FROM results;
