-- Files: what clients upload for tasks (`task_id` is NULL), and what agents upload of their runs. `owner` is the submit key that uploaded it,
-- or empty. `remove_at` is when an upload is removed unless a task uses it by then; NULL: a task uses it, or it belongs to one. `object_url`
-- says where it is in an object store; NULL: it is in `file_chunks`.
CREATE TABLE files (
    id UUID PRIMARY KEY,
    owner TEXT NOT NULL,
    task_id UUID,
    lease_id UUID,
    worker_id TEXT,
    name TEXT NOT NULL,
    content_type TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    kind TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    remove_at BIGINT,
    object_url TEXT
);
CREATE VIEW files_row AS SELECT
    id, owner, task_id, lease_id, worker_id, name, content_type, bytes, sha256, kind, created_at, remove_at, object_url
    FROM files;
CREATE INDEX files_task ON files (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX files_lease ON files (lease_id) WHERE lease_id IS NOT NULL;
CREATE INDEX files_unused ON files (owner, remove_at) WHERE remove_at IS NOT NULL;
CREATE INDEX files_to_remove ON files (remove_at) WHERE remove_at IS NOT NULL;
-- Files that belong into the object store and are still here.
CREATE INDEX files_to_move ON files (id) WHERE object_url IS NULL AND bytes > 65536;

-- The content of files, in pieces of 256 KiB, the last one shorter. They are written while a file arrives, before it has its row in `files`.
CREATE TABLE file_chunks (
    file_id UUID NOT NULL,
    number BIGINT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (file_id, number)
);
-- Most files are compressed already.
ALTER TABLE file_chunks ALTER COLUMN content SET STORAGE EXTERNAL;
-- When the chunks of a file are removed. A file that arrives has a row here until it is complete, so that nothing is left of one that was cut
-- off; a file that was removed, or moved to the object store, gets one.
CREATE TABLE chunk_removals (
    file_id UUID PRIMARY KEY,
    due_at BIGINT NOT NULL
);
CREATE INDEX chunk_removals_due ON chunk_removals (due_at);

-- Which tasks use which uploads. What a task needs of them is in its row, too.
CREATE TABLE task_inputs (
    file_id UUID NOT NULL,
    task_id UUID NOT NULL,
    PRIMARY KEY (file_id, task_id)
);
CREATE VIEW task_inputs_row AS SELECT file_id, task_id FROM task_inputs;
CREATE INDEX task_inputs_task ON task_inputs (task_id);
ALTER TABLE tasks ADD COLUMN inputs TEXT NOT NULL DEFAULT '[]';
ALTER TABLE tasks ADD COLUMN outputs TEXT NOT NULL DEFAULT '[]';
CREATE VIEW tasks_row_7 AS SELECT
    id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before, depends_on,
    exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner, suspend, namespace, object_name, object_uid,
    traceparent, project_id, project, repo_url, git_ref, push, inputs, outputs
    FROM tasks;
