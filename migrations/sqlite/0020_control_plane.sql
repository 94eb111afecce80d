-- The control plane of this program: agents, projects with their nodes and leaders, the memories that nodes push, and the jobs that did it.
-- Texts named capabilities, details and ip_addrs are JSON.
CREATE TABLE membridge_agents (
    name TEXT NOT NULL PRIMARY KEY,
    url TEXT NOT NULL,
    status TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    details TEXT NOT NULL,
    obs_count BIGINT NOT NULL,
    db_sha TEXT NOT NULL,
    ip_addrs TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    last_seen BIGINT
) WITHOUT ROWID;

-- The leader leads until lease_until, and term counts the leaderships.
CREATE TABLE membridge_projects (
    canonical_id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    source TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    last_seen BIGINT,
    leader TEXT,
    term BIGINT NOT NULL,
    lease_ms BIGINT NOT NULL,
    lease_until BIGINT,
    memory_version BIGINT NOT NULL,
    memory_sha TEXT NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX membridge_projects_name ON membridge_projects (name);

CREATE TABLE membridge_nodes (
    canonical_id TEXT NOT NULL,
    node_id TEXT NOT NULL,
    obs_count BIGINT NOT NULL,
    db_sha TEXT NOT NULL,
    ip_addrs TEXT NOT NULL,
    project_id TEXT,
    last_seen BIGINT NOT NULL,
    registered_at BIGINT NOT NULL,
    PRIMARY KEY (canonical_id, node_id)
) WITHOUT ROWID;

-- content is base64.
CREATE TABLE membridge_memories (
    canonical_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    node_id TEXT NOT NULL,
    term BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (canonical_id, version)
);

CREATE TABLE membridge_jobs (
    id BLOB NOT NULL PRIMARY KEY,
    action TEXT NOT NULL,
    project TEXT NOT NULL,
    agent TEXT NOT NULL,
    canonical_id TEXT NOT NULL,
    status TEXT NOT NULL,
    detail TEXT NOT NULL,
    stdout TEXT NOT NULL,
    stderr TEXT NOT NULL,
    returncode BIGINT NOT NULL,
    dryrun BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    request_id TEXT
) WITHOUT ROWID;
