-- What the branches of a project's contexts begin with, and the prefixes that it had before, as a JSON list, newest first.
ALTER TABLE projects ADD COLUMN branch_prefix TEXT NOT NULL DEFAULT 'bloom';
ALTER TABLE projects ADD COLUMN former_branch_prefixes TEXT NOT NULL DEFAULT '[]';
CREATE VIEW projects_row_2 AS SELECT
    id, name, repo_url, target_path, primary_node_id, clone_status, error_message, created_at, updated_at, branch_prefix,
    former_branch_prefixes
    FROM projects;
