-- The team that the key of an upload had; empty: none. It is not looked up at the key, whose name may have been given to another team.
ALTER TABLE files ADD COLUMN team TEXT NOT NULL DEFAULT '';
UPDATE files SET team = coalesce((SELECT k.team FROM api_keys k WHERE k.name = files.owner), '')
    WHERE task_id IS NULL AND owner <> '';
-- Whether keys of other teams, or of none, have tasks in a context. With `owner IS NOT NULL`, PostgreSQL would also walk it for the contexts
-- of one key, and read the tasks of all others.
CREATE INDEX tasks_context_teams ON tasks (context_id, team) WHERE coalesce(owner, '') <> '';
CREATE VIEW files_row_2 AS SELECT
    id, owner, task_id, lease_id, worker_id, name, content_type, bytes, sha256, kind, created_at, remove_at, object_url,
    team
    FROM files;
