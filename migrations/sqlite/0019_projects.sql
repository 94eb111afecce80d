-- Projects: repositories that workers clone. `target_path` is below an agent's directory of projects.
CREATE TABLE projects (
    id BLOB NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    repo_url TEXT NOT NULL,
    target_path TEXT,
    primary_node_id TEXT,
    clone_status TEXT NOT NULL,
    error_message TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX projects_name ON projects (name);

-- What is known of the clones of projects on workers.
CREATE TABLE project_nodes (
    project_id BLOB NOT NULL,
    node_id TEXT NOT NULL,
    clone_status TEXT NOT NULL,
    clone_path TEXT,
    error_message TEXT,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (project_id, node_id)
) WITHOUT ROWID;

-- What agents say of themselves beside what this program knows of: a JSON object of JSON texts, shown as they came.
ALTER TABLE workers ADD COLUMN other_capabilities TEXT NOT NULL DEFAULT '{}';
