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
