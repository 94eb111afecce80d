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
