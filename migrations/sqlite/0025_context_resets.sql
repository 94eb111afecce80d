-- When somebody last reset a context: no run whose lease is later continues a session that began before. The row goes with the context's
-- last task.
CREATE TABLE context_resets (
    context_id TEXT NOT NULL PRIMARY KEY,
    reset_at BIGINT NOT NULL
) WITHOUT ROWID;
-- The same of the active lease's context, when the lease was made.
ALTER TABLE task_state ADD COLUMN context_reset_at BIGINT;
-- The contexts of a project and of a submit key are listed without reading the tasks between them.
CREATE INDEX tasks_context_of_project ON tasks (project, context_id, id) WHERE project IS NOT NULL;
CREATE INDEX tasks_context_of_owner ON tasks (owner, context_id, id) WHERE owner IS NOT NULL;
