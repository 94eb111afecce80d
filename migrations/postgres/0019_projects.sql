-- Projects: repositories that workers clone. `target_path` is below an agent's directory of projects.
CREATE TABLE projects (
    id UUID PRIMARY KEY,
    name TEXT NOT NULL,
    repo_url TEXT NOT NULL,
    target_path TEXT,
    primary_node_id TEXT,
    clone_status TEXT NOT NULL,
    error_message TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX projects_name ON projects (name);

-- What is known of the clones of projects on workers.
CREATE TABLE project_nodes (
    project_id UUID NOT NULL,
    node_id TEXT NOT NULL,
    clone_status TEXT NOT NULL,
    clone_path TEXT,
    error_message TEXT,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (project_id, node_id)
);

-- What agents say of themselves beside what this program knows of: a JSON object of JSON texts, shown as they came.
ALTER TABLE workers ADD COLUMN other_capabilities TEXT NOT NULL DEFAULT '{}';

CREATE VIEW projects_row AS SELECT
    id, name, repo_url, target_path, primary_node_id, clone_status, error_message, created_at, updated_at
    FROM projects;
CREATE VIEW project_nodes_row AS SELECT project_id, node_id, clone_status, clone_path, error_message, updated_at FROM project_nodes;
CREATE VIEW workers_row_5 AS SELECT
    id, url, status, lost, capabilities, namespaces, other_capabilities, ip_addrs, obs_count, db_sha, registered_at, agent_version,
    os_info, install_method, dispatch, cordoned, draining, revision, updated_at, recount_slots, instance, instance_since, pauses
    FROM workers;
