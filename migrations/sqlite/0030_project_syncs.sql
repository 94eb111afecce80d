-- When a worker last made a clone of a project; NULL: never, or before this migration.
ALTER TABLE project_nodes ADD COLUMN last_sync_at BIGINT;
