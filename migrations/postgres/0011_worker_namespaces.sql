-- Workers that serve only the tasks of some Kubernetes namespaces, and keys whose workers may do no more; NULL: no such limit. The texts are
-- JSON lists.
ALTER TABLE workers ADD COLUMN namespaces TEXT;
ALTER TABLE api_keys ADD COLUMN namespaces TEXT;
CREATE INDEX task_state_ready_of_namespace ON task_state (namespace, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
CREATE INDEX task_state_ready_of_agent_in_namespace ON task_state (namespace, agent_slug, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
CREATE VIEW workers_row_3 AS SELECT
    id, url, status, lost, capabilities, namespaces, ip_addrs, obs_count, db_sha, registered_at, agent_version, os_info, install_method,
    dispatch, cordoned, draining, revision, updated_at, recount_slots
    FROM workers;
CREATE VIEW api_keys_row_3 AS SELECT name, digest, scope, worker, push, namespaces, created_at, expires_at, created_by FROM api_keys;
