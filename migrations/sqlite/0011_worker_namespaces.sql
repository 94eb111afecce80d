-- Workers that serve only the tasks of some Kubernetes namespaces, and keys whose workers may do no more; NULL: no such limit. The texts are
-- JSON lists.
ALTER TABLE workers ADD COLUMN namespaces TEXT;
ALTER TABLE api_keys ADD COLUMN namespaces TEXT;
CREATE INDEX task_state_ready_of_namespace ON task_state (namespace, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
CREATE INDEX task_state_ready_of_agent_in_namespace ON task_state (namespace, agent_slug, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
