-- When a worker last made a clone of a project; NULL: never, or before this migration.
ALTER TABLE project_nodes ADD COLUMN last_sync_at BIGINT;
CREATE VIEW project_nodes_row_2 AS SELECT
    project_id, node_id, clone_status, clone_path, error_message, updated_at, last_sync_at
    FROM project_nodes;
