-- Agents under one name are told apart: which of them has the name, since when, and which of them claimed a lease; NULL: it did not tell.
-- `pauses` is a JSON list: why a worker takes no tasks, or none of some agents.
ALTER TABLE workers ADD COLUMN instance UUID;
ALTER TABLE workers ADD COLUMN instance_since BIGINT;
ALTER TABLE workers ADD COLUMN pauses TEXT NOT NULL DEFAULT '[]';
ALTER TABLE task_state ADD COLUMN lease_instance UUID;
CREATE VIEW workers_row_4 AS SELECT
    id, url, status, lost, capabilities, namespaces, ip_addrs, obs_count, db_sha, registered_at, agent_version, os_info, install_method,
    dispatch, cordoned, draining, revision, updated_at, recount_slots, instance, instance_since, pauses
    FROM workers;
CREATE VIEW task_state_row_7 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, lease_instance, last_lease_id, last_lease_worker, last_lease_status, session_id,
    failure_reason, failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq,
    labels, suspend, namespace, made_at
    FROM task_state;
