-- The whole schema. Both dialects have the same tables, columns and indexes; only the type of ids and the storage options differ.
-- Times are milliseconds since the epoch; ids are UUIDs of version 7, so their order is the order of creation.
-- There are no foreign keys: only the engine writes here, and checking them would lock rows that everybody shares.

-- What was asked for. Written once, read by id; the big texts stay out of the rows that change.
CREATE TABLE tasks (
    id BLOB NOT NULL PRIMARY KEY,
    context_id TEXT NOT NULL,
    agent_slug TEXT NOT NULL,
    prompt TEXT NOT NULL,
    context_hints TEXT NOT NULL,
    timeout_sec BIGINT NOT NULL,
    budget DOUBLE PRECISION NOT NULL,
    desired_format TEXT NOT NULL,
    max_attempts BIGINT NOT NULL,
    priority BIGINT NOT NULL,
    not_before BIGINT,
    depends_on TEXT NOT NULL,
    exclusive_key TEXT,
    idempotency_key TEXT,
    labels TEXT NOT NULL,
    session TEXT NOT NULL,
    model TEXT,
    ttl_after_finished_sec BIGINT
);
CREATE UNIQUE INDEX tasks_idempotency_key ON tasks (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE task_labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    task_id BLOB NOT NULL,
    PRIMARY KEY (key, value, task_id)
) WITHOUT ROWID;
CREATE INDEX task_labels_of_task ON task_labels (task_id);

CREATE TABLE task_deps (
    task_id BLOB NOT NULL,
    dep_id BLOB NOT NULL,
    PRIMARY KEY (task_id, dep_id)
) WITHOUT ROWID;
CREATE INDEX task_deps_dep ON task_deps (dep_id, task_id);

-- How far a task is: the narrow row that every step rewrites, its active lease included (it has one exactly when `slot` is set).
-- Nothing is indexed that a heartbeat changes.
CREATE TABLE task_state (
    id BLOB NOT NULL PRIMARY KEY,
    context_id TEXT NOT NULL,
    agent_slug TEXT NOT NULL,
    rank BIGINT NOT NULL, -- 9 - priority, so that the order of the queue is (rank, id)
    session TEXT NOT NULL,
    max_attempts BIGINT NOT NULL,
    timeout_sec BIGINT NOT NULL,
    exclusive_key TEXT,
    ttl_after_finished_sec BIGINT,
    has_dependencies BOOLEAN NOT NULL,
    status TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    infra_retries BIGINT NOT NULL,
    lease_count BIGINT NOT NULL,
    cancel_requested BOOLEAN NOT NULL,
    not_before BIGINT,
    parked TEXT,
    ready_at BIGINT,
    session_worker TEXT,
    has_dependents BOOLEAN NOT NULL,
    worker_id TEXT, -- as shown: of the active lease or, once final, of the last one
    lease_id BLOB,
    slot BIGINT,
    origin TEXT,
    started_at BIGINT,
    ttl_ms BIGINT,
    expires_at BIGINT,
    hard_end_at BIGINT,
    last_heartbeat BIGINT,
    holds_context BOOLEAN, -- TRUE or NULL, so that a unique index can tell
    last_lease_id BLOB,
    last_lease_worker TEXT,
    last_lease_status TEXT,
    session_id TEXT,
    failure_reason TEXT,
    failure_message TEXT,
    failure_at BIGINT,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cost_usd DOUBLE PRECISION,
    finished_at BIGINT,
    remove_at BIGINT,
    event_count BIGINT NOT NULL,
    event_seq BIGINT NOT NULL
) WITHOUT ROWID;
-- What holds under any concurrency: room, one lease per context's session, one holder of a key.
CREATE UNIQUE INDEX task_state_place ON task_state (worker_id, slot) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX task_state_lease ON task_state (lease_id) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX task_state_context ON task_state (context_id, holds_context) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX task_state_exclusive ON task_state (exclusive_key) WHERE slot IS NOT NULL AND exclusive_key IS NOT NULL;
-- The ready set, and what is kept out of it.
CREATE INDEX task_state_ready ON task_state (rank, id) WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_ready_of_agent ON task_state (agent_slug, rank, id) WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_parked ON task_state (id) WHERE status = 'queued' AND parked IS NOT NULL;
CREATE INDEX task_state_not_before ON task_state (not_before) WHERE status = 'queued' AND parked = 'not_before';
CREATE INDEX task_state_awaits_key ON task_state (exclusive_key, rank, id) WHERE status = 'queued' AND parked = 'exclusive_key';
CREATE INDEX task_state_session ON task_state (context_id, id) WHERE session = 'context' AND status IN ('queued', 'leased', 'running');
-- Lists.
CREATE INDEX task_state_status ON task_state (status, id);
CREATE INDEX task_state_worker ON task_state (worker_id, id) WHERE worker_id IS NOT NULL;
CREATE INDEX task_state_finished_of_agent ON task_state (agent_slug, status, id) WHERE finished_at IS NOT NULL;
-- Removal.
CREATE INDEX task_state_finished ON task_state (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX task_state_remove ON task_state (remove_at) WHERE remove_at IS NOT NULL;
-- Lists by what never changes stand on the table that never changes: they would cost every step here.
CREATE INDEX tasks_context ON tasks (context_id, id);
CREATE INDEX tasks_agent ON tasks (agent_slug, id);

-- Leases that ended.
CREATE TABLE leases (
    id BLOB NOT NULL PRIMARY KEY,
    task_id BLOB NOT NULL,
    context_id TEXT NOT NULL,
    agent_slug TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ttl_ms BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    last_heartbeat BIGINT NOT NULL,
    status TEXT NOT NULL,
    ended_at BIGINT NOT NULL,
    completed BOOLEAN NOT NULL,
    model TEXT,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cost_usd DOUBLE PRECISION
) WITHOUT ROWID;
CREATE INDEX leases_task ON leases (task_id, id);
CREATE INDEX leases_context ON leases (context_id, id) WHERE completed;
CREATE INDEX leases_status ON leases (status, id);
CREATE INDEX leases_ended ON leases (ended_at);

-- A run's result and its artifact, made together; the artifact's content is the output of a success.
CREATE TABLE results (
    id BLOB NOT NULL PRIMARY KEY,
    artifact_id BLOB NOT NULL,
    task_id BLOB NOT NULL,
    lease_id BLOB NOT NULL,
    worker_id TEXT NOT NULL,
    status TEXT NOT NULL,
    output TEXT,
    error_message TEXT,
    duration_ms BIGINT NOT NULL,
    tokens_used BIGINT,
    completed_at BIGINT NOT NULL,
    artifact_type TEXT NOT NULL,
    artifact_tags TEXT NOT NULL
);
CREATE UNIQUE INDEX results_artifact ON results (artifact_id);
CREATE INDEX results_task ON results (task_id, artifact_id);
CREATE INDEX results_lease ON results (lease_id);

CREATE TABLE task_events (
    task_id BLOB NOT NULL,
    number BIGINT NOT NULL,
    lease_id BLOB NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    at BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (task_id, number)
);

CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    status TEXT NOT NULL,
    lost BOOLEAN NOT NULL,
    capabilities TEXT NOT NULL,
    ip_addrs TEXT NOT NULL,
    obs_count BIGINT NOT NULL,
    db_sha TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    agent_version TEXT NOT NULL,
    os_info TEXT NOT NULL,
    install_method TEXT NOT NULL,
    dispatch TEXT NOT NULL,
    cordoned BOOLEAN NOT NULL,
    draining BOOLEAN NOT NULL
);

-- Apart from `workers`, because it changes all the time. Every worker has its row.
CREATE TABLE worker_seen (
    worker_id TEXT PRIMARY KEY,
    last_seen BIGINT NOT NULL
);

CREATE TABLE audit (
    id BLOB NOT NULL PRIMARY KEY,
    timestamp BIGINT NOT NULL,
    action TEXT NOT NULL,
    entity_type TEXT NOT NULL,
    entity_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    detail TEXT NOT NULL,
    request_id TEXT
) WITHOUT ROWID;

CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- What removed tasks have used, so that usage outlives them. `day` counts from the epoch, UTC; no model is ''.
CREATE TABLE usage_daily (
    day BIGINT NOT NULL,
    agent_slug TEXT NOT NULL,
    model TEXT NOT NULL,
    context_id TEXT NOT NULL,
    runs BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (day, agent_slug, model, context_id)
);

-- A lane is one write connection of one replica; its batches are numbered without a gap.
CREATE TABLE lanes (
    lane INTEGER PRIMARY KEY AUTOINCREMENT,
    replica TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    folded_n BIGINT NOT NULL DEFAULT 0 -- batches up to this one are in `counts`
);

-- One row per commit: it proves the commit, tells other replicas what changed, and carries what it added to the counts.
CREATE TABLE batches (
    lane BIGINT NOT NULL,
    n BIGINT NOT NULL,
    at BIGINT NOT NULL,
    counts TEXT NOT NULL,
    changes TEXT NOT NULL,
    PRIMARY KEY (lane, n)
) WITHOUT ROWID;

-- Tasks by agent, priority and status, so that nobody counts them. The row ('', 0, 'lease') counts leases ever given.
CREATE TABLE counts (
    agent_slug TEXT NOT NULL,
    priority BIGINT NOT NULL,
    status TEXT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (agent_slug, priority, status)
) WITHOUT ROWID;

CREATE TABLE leader (
    id BIGINT PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

-- When any replica served last.
CREATE TABLE served (
    id BIGINT PRIMARY KEY,
    at BIGINT NOT NULL
);
INSERT INTO served (id, at) VALUES (1, 0);
