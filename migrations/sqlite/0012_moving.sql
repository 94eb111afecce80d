-- Imports: tasks of another program, whose ids do not contain the time of creation, and how far an import is.
ALTER TABLE task_state ADD COLUMN made_at BIGINT;

-- `id` is the checksum of the imported file; `done` counts its rows that are in the database. No server starts on an unfinished import.
CREATE TABLE imports (
    id TEXT NOT NULL PRIMARY KEY,
    done BIGINT NOT NULL,
    is_finished BOOLEAN NOT NULL
) WITHOUT ROWID;
