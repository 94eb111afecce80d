-- The project of a task, as it was when the task was created; NULL: none. `push` is a word: whether the agent pushes the branch of a run.
ALTER TABLE tasks ADD COLUMN project_id BLOB;
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
