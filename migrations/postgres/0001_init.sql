-- The whole schema. Both dialects have the same tables, columns and indexes; only the type of ids and the storage options differ.
-- Times are milliseconds since the epoch; ids are UUIDs of version 7, so their order is the order of creation.
-- There are no foreign keys: only the engine writes here, and checking them would lock rows that everybody shares.

-- Tasks.

-- What was asked for. Written once, read by id; the big texts stay out of the rows that change.
CREATE TABLE tasks (
    id UUID NOT NULL PRIMARY KEY,
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
    ttl_after_finished_sec BIGINT,
    owner TEXT, -- the submit or member key that created the task
    suspend BOOLEAN NOT NULL DEFAULT false,
    namespace TEXT, -- of the Kubernetes object that the task was created for, with its name and uid
    object_name TEXT,
    object_uid UUID,
    traceparent TEXT, -- of W3C Trace Context: the parent of the attempts' spans
    project_id UUID, -- the project as it was when the task was created
    project TEXT,
    repo_url TEXT,
    git_ref TEXT,
    push TEXT, -- whether the agent pushes the branch of a run
    inputs TEXT NOT NULL DEFAULT '[]',
    outputs TEXT NOT NULL DEFAULT '[]',
    profile_timeout_max BIGINT, -- the longest limit that a profile may set in place of timeout_sec, if the client named none
    team TEXT -- of the key that created the task: the key can be revoked, and its name given to another team
);
CREATE UNIQUE INDEX tasks_idempotency_key ON tasks (idempotency_key) WHERE idempotency_key IS NOT NULL;
-- One object has one task.
CREATE UNIQUE INDEX tasks_object ON tasks (object_uid) WHERE object_uid IS NOT NULL;
-- Lists by what never changes stand on this table: on `task_state` they would cost every step.
CREATE INDEX tasks_context ON tasks (context_id, id);
CREATE INDEX tasks_agent ON tasks (agent_slug, id);
CREATE INDEX tasks_owner ON tasks (owner, id) WHERE owner IS NOT NULL;
CREATE INDEX tasks_team ON tasks (team, id) WHERE team IS NOT NULL;
CREATE INDEX tasks_project ON tasks (project, id) WHERE project IS NOT NULL;
-- The contexts of a project, of a key and of a team are listed without reading the tasks between them.
CREATE INDEX tasks_context_of_project ON tasks (project, context_id, id) WHERE project IS NOT NULL;
CREATE INDEX tasks_context_of_owner ON tasks (owner, context_id, id) WHERE owner IS NOT NULL;
CREATE INDEX tasks_context_of_team ON tasks (team, context_id, id) WHERE team IS NOT NULL;
-- Whether keys of other teams, or of none, have tasks in a context. With `owner IS NOT NULL`, PostgreSQL would also walk it for the contexts
-- of one key, and read the tasks of all others.
CREATE INDEX tasks_context_teams ON tasks (context_id, team) WHERE coalesce(owner, '') <> '';
-- The last four hex digits of ids, which are random; the first ones are the time.
CREATE INDEX tasks_id_end ON tasks (right(id::text, 4));

CREATE TABLE task_labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    task_id UUID NOT NULL,
    PRIMARY KEY (key, value, task_id)
);
CREATE INDEX task_labels_of_task ON task_labels (task_id);

CREATE TABLE task_deps (
    task_id UUID NOT NULL,
    dep_id UUID NOT NULL,
    PRIMARY KEY (task_id, dep_id)
);
CREATE INDEX task_deps_dep ON task_deps (dep_id, task_id);

-- Which tasks use which uploads. What a task needs of them is in its row, too.
CREATE TABLE task_inputs (
    file_id UUID NOT NULL,
    task_id UUID NOT NULL,
    PRIMARY KEY (file_id, task_id)
);
CREATE INDEX task_inputs_task ON task_inputs (task_id);

-- How far a task is: the narrow row that every step rewrites, its active lease included (it has one exactly when `slot` is set).
-- Nothing is indexed that a heartbeat changes.
CREATE TABLE task_state (
    id UUID NOT NULL PRIMARY KEY,
    context_id TEXT NOT NULL,
    agent_slug TEXT NOT NULL,
    rank BIGINT NOT NULL, -- 9 - priority, so that the order of the queue is (rank, id)
    session TEXT NOT NULL,
    max_attempts BIGINT NOT NULL,
    timeout_sec BIGINT NOT NULL,
    exclusive_key TEXT,
    ttl_after_finished_sec BIGINT,
    has_dependencies BOOLEAN NOT NULL,
    revision BIGINT NOT NULL DEFAULT 1, -- rises with each change of the row
    status TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    infra_retries BIGINT NOT NULL,
    lease_count BIGINT NOT NULL,
    cancel_requested BOOLEAN NOT NULL,
    not_before BIGINT,
    parked TEXT, -- why a queued task is not in the ready set
    wake_at BIGINT, -- when the clock alone ends that
    ready_at BIGINT,
    session_worker TEXT,
    created_after UUID, -- the unfinished task of the context that stood before this one when it was created; the nil id: none
    has_dependents BOOLEAN NOT NULL,
    worker_id TEXT, -- as shown: of the active lease or, once final, of the last one
    lease_id UUID,
    slot BIGINT,
    origin TEXT,
    started_at BIGINT,
    ttl_ms BIGINT,
    expires_at BIGINT,
    check_at BIGINT, -- when the expiry is looked at, never later than it; apart from it, so that a heartbeat touches no index
    hard_end_at BIGINT,
    last_heartbeat BIGINT,
    holds_context BOOLEAN, -- TRUE or NULL, so that a unique index can tell
    lease_instance UUID, -- which of the agents under the worker's name claimed the lease; NULL: it did not tell
    last_lease_id UUID,
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
    event_seq BIGINT NOT NULL,
    last_event_seq BIGINT, -- of the newest run, as its completion told: streams of events wait for it; NULL: none is to come
    labels TEXT, -- once they were edited; NULL: those in `tasks`
    suspend BOOLEAN NOT NULL DEFAULT false,
    namespace TEXT,
    made_at BIGINT, -- of imported tasks, whose ids do not contain the time of creation
    budget DOUBLE PRECISION NOT NULL DEFAULT 0, -- over all attempts since the task was created or requeued; 0: no limit
    cost_before_requeue DOUBLE PRECISION NOT NULL DEFAULT 0,
    cost_estimated BOOLEAN NOT NULL DEFAULT false, -- a part of the cost was estimated from tokens and prices
    question TEXT, -- what the run of the active lease asks a person, as JSON
    project TEXT NOT NULL DEFAULT '', -- '' for none: an index is read in order behind an equal value, and not behind IS NULL
    moves_files BOOLEAN NOT NULL DEFAULT false, -- whether the agent moves files before and after the run
    event_bytes BIGINT NOT NULL DEFAULT 0, -- of events that the newest lease has sent
    context_reset_at BIGINT, -- when the context of the active lease was last reset before the lease was made
    profile_timeout_max BIGINT,
    conversation TEXT, -- the session of the context's conversation when the task became ready
    owner TEXT,
    team TEXT
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- What holds under any concurrency: room, one lease per context's session, one holder of a key.
CREATE UNIQUE INDEX task_state_place ON task_state (worker_id, slot) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX task_state_lease ON task_state (lease_id) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX task_state_context ON task_state (context_id, holds_context) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX task_state_exclusive ON task_state (exclusive_key) WHERE slot IS NOT NULL AND exclusive_key IS NOT NULL;
-- Two replicas that create tasks in one context at once, neither seeing the other's, are told so.
CREATE UNIQUE INDEX task_state_created_after ON task_state (context_id, created_after) WHERE created_after IS NOT NULL;
-- The ready set, for workers of all kinds.
CREATE INDEX task_state_ready ON task_state (rank, id) WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_ready_of_agent ON task_state (agent_slug, rank, id) WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_ready_of_project ON task_state (project, rank, id) WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_ready_of_agent_in_project ON task_state (project, agent_slug, rank, id)
    WHERE status = 'queued' AND parked IS NULL;
CREATE INDEX task_state_ready_of_namespace ON task_state (namespace, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
CREATE INDEX task_state_ready_of_agent_in_namespace ON task_state (namespace, agent_slug, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
CREATE INDEX task_state_ready_of_namespace_and_project ON task_state (namespace, project, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
CREATE INDEX task_state_ready_of_agent_in_namespace_and_project ON task_state (namespace, project, agent_slug, rank, id)
    WHERE status = 'queued' AND parked IS NULL AND namespace IS NOT NULL;
-- What is kept out of it.
CREATE INDEX task_state_parked ON task_state (id) WHERE status = 'queued' AND parked IS NOT NULL;
CREATE INDEX task_state_wake ON task_state (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX task_state_reserved ON task_state (session_worker, rank, id) WHERE status = 'queued' AND parked = 'reserved';
CREATE INDEX task_state_session ON task_state (context_id, id) WHERE session = 'context' AND status IN ('queued', 'leased', 'running');
-- Who waits for a key, by agent, and by agent and project: the first of each is found without reading the others.
CREATE INDEX task_state_awaits_key_of_agent ON task_state (exclusive_key, agent_slug, rank, id)
    WHERE status = 'queued' AND parked = 'exclusive_key';
CREATE INDEX task_state_awaits_key_of_project ON task_state (exclusive_key, agent_slug, project, rank, id)
    WHERE status = 'queued' AND parked = 'exclusive_key';
-- Active leases: those to look at, and those of a queue that is limited.
CREATE INDEX task_state_check ON task_state (check_at) WHERE slot IS NOT NULL;
CREATE INDEX task_state_active_of_agent ON task_state (agent_slug) WHERE slot IS NOT NULL;
-- Lists and numbers.
CREATE INDEX task_state_status ON task_state (status, id);
CREATE INDEX task_state_worker ON task_state (worker_id, id) WHERE worker_id IS NOT NULL;
-- Most tasks never fail.
CREATE INDEX task_state_reason ON task_state (failure_reason, id) WHERE failure_reason IS NOT NULL;
CREATE INDEX task_state_finished_of_agent ON task_state (agent_slug, status, id) WHERE finished_at IS NOT NULL;
CREATE INDEX task_state_unfinished_of_objects ON task_state (id)
    WHERE namespace IS NOT NULL AND status IN ('queued', 'leased', 'running');
CREATE INDEX task_state_open_of_owner ON task_state (owner)
    WHERE owner IS NOT NULL AND status IN ('queued', 'leased', 'running');
CREATE INDEX task_state_open_of_team ON task_state (team)
    WHERE team IS NOT NULL AND status IN ('queued', 'leased', 'running');
-- Removal.
CREATE INDEX task_state_finished ON task_state (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX task_state_remove ON task_state (remove_at) WHERE remove_at IS NOT NULL;

-- When somebody last reset a context: no run whose lease is later continues a session that began before. The row goes with the context's
-- last task.
CREATE TABLE context_resets (
    context_id TEXT NOT NULL PRIMARY KEY,
    reset_at BIGINT NOT NULL
);

-- Who is to be evaluated again: the dependents of `task_id`; the first of the context `subject`, and the one behind `task_id`; those
-- that wait for the key `subject`; those that are reserved for the worker `subject`. Done up to the task `cursor`.
CREATE TABLE wakeups (
    id UUID NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    task_id UUID,
    subject TEXT,
    cursor UUID
);

-- What was set for the queues of agents: since when a queue is paused, and the most active leases that it may have. A queue for which
-- nothing is set has no row. The row '' stands for all queues together and always exists; its `revision` is that of the newest change.
CREATE TABLE queues (
    agent_slug TEXT NOT NULL PRIMARY KEY,
    paused_at BIGINT,
    max_concurrency BIGINT,
    revision BIGINT NOT NULL
);
INSERT INTO queues (agent_slug, revision) VALUES ('', 0);

-- Runs.

-- Leases that ended.
CREATE TABLE leases (
    id UUID NOT NULL PRIMARY KEY,
    task_id UUID NOT NULL,
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
    reason TEXT, -- why its run failed or was interrupted; NULL if it succeeded
    message TEXT, -- the text that came with the reason
    model TEXT,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cost_usd DOUBLE PRECISION,
    cost_estimated BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX leases_task ON leases (task_id, id);
CREATE INDEX leases_context ON leases (context_id, id) WHERE completed;
CREATE INDEX leases_status ON leases (status, id);
CREATE INDEX leases_worker ON leases (worker_id, id);
CREATE INDEX leases_ended ON leases (ended_at);
-- Lists by outcome and by reason: most runs succeed, and are in none of these.
CREATE INDEX leases_error ON leases (id) WHERE completed AND reason IS NOT NULL AND reason <> 'cancelled';
CREATE INDEX leases_interrupted ON leases (id) WHERE NOT completed OR reason = 'cancelled';
CREATE INDEX leases_reason ON leases (reason, id) WHERE reason IS NOT NULL;

-- A run's result and its artifact, made together; the artifact's content is the output of a success.
CREATE TABLE results (
    id UUID NOT NULL PRIMARY KEY,
    artifact_id UUID NOT NULL,
    task_id UUID NOT NULL,
    lease_id UUID NOT NULL,
    worker_id TEXT NOT NULL,
    status TEXT NOT NULL,
    output TEXT, -- NULL as well if it is in an object store
    error_message TEXT,
    duration_ms BIGINT NOT NULL,
    tokens_used BIGINT,
    completed_at BIGINT NOT NULL,
    artifact_type TEXT NOT NULL,
    artifact_tags TEXT NOT NULL,
    object_url TEXT, -- where the output is, its size and its beginning
    object_bytes BIGINT,
    preview TEXT,
    branch TEXT, -- that the run has left, with its commit
    commit_id TEXT,
    warnings TEXT NOT NULL DEFAULT '[]' -- what went wrong without making the run fail, as a JSON list
);
CREATE UNIQUE INDEX results_artifact ON results (artifact_id);
CREATE INDEX results_task ON results (task_id, artifact_id);
CREATE INDEX results_lease ON results (lease_id);
-- Outputs that belong into the object store and are still here.
CREATE INDEX results_to_move ON results (artifact_id) WHERE octet_length(output) > 65536;

CREATE TABLE task_events (
    task_id UUID NOT NULL,
    number BIGINT NOT NULL,
    lease_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    at BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (task_id, number)
);

-- What removed tasks have used, so that usage outlives them. `key` stands for all columns that are no sums; their texts are too long for an
-- index of their own. `day` counts from the epoch, UTC; '' stands for none; `labels` are those of the task, as JSON.
CREATE TABLE usage_removed (
    key TEXT NOT NULL PRIMARY KEY,
    day BIGINT NOT NULL,
    agent_slug TEXT NOT NULL,
    model TEXT NOT NULL,
    context_id TEXT NOT NULL,
    project TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    created_by TEXT NOT NULL,
    labels TEXT NOT NULL,
    team TEXT NOT NULL,
    runs BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    cost_estimated BOOLEAN NOT NULL
);
CREATE INDEX usage_removed_day ON usage_removed (day);

-- Files: what clients upload for tasks (`task_id` is NULL), and what agents upload of their runs. `owner` is the submit or member key that
-- uploaded it, or '', and `team` the team that it had then. `remove_at` is when an upload is removed unless a task uses it by then; NULL: a task
-- uses it, or it belongs to one. `object_url` says where it is in an object store; NULL: it is in `file_chunks`.
CREATE TABLE files (
    id UUID NOT NULL PRIMARY KEY,
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
    object_url TEXT,
    team TEXT NOT NULL DEFAULT ''
);
CREATE INDEX files_task ON files (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX files_lease ON files (lease_id) WHERE lease_id IS NOT NULL;
CREATE INDEX files_of_owner ON files (owner, id) WHERE owner <> '' AND task_id IS NULL;
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
    file_id UUID NOT NULL PRIMARY KEY,
    due_at BIGINT NOT NULL
);
CREATE INDEX chunk_removals_due ON chunk_removals (due_at);

-- How far the object store is: `database_id` tells the databases that write to one bucket apart, `audit_flushed` is the last audit entry
-- that is in the object store.
CREATE TABLE object_marks (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

-- Workers.

CREATE TABLE workers (
    id TEXT NOT NULL PRIMARY KEY,
    url TEXT NOT NULL,
    status TEXT NOT NULL,
    lost BOOLEAN NOT NULL,
    capabilities TEXT NOT NULL,
    namespaces TEXT, -- the only Kubernetes namespaces that it serves, as a JSON list; NULL: no limit
    git BOOLEAN NOT NULL DEFAULT false, -- whether it can clone any project
    projects TEXT, -- which projects it serves, as a JSON list; NULL: all if it can clone them, else none
    other_capabilities TEXT NOT NULL DEFAULT '{}', -- what this program does not know: a JSON object of JSON texts, shown as they came
    ip_addrs TEXT NOT NULL,
    obs_count BIGINT NOT NULL,
    db_sha TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    agent_version TEXT NOT NULL,
    os_info TEXT NOT NULL,
    install_method TEXT NOT NULL,
    dispatch TEXT NOT NULL,
    cordoned BOOLEAN NOT NULL,
    draining BOOLEAN NOT NULL,
    revision BIGINT NOT NULL DEFAULT 1,
    updated_at BIGINT NOT NULL DEFAULT 0,
    recount_slots BOOLEAN NOT NULL DEFAULT false,
    instance UUID, -- which of the agents under one name has the name, and since when
    instance_since BIGINT,
    pauses TEXT NOT NULL DEFAULT '[]', -- why it takes no tasks, or none of some agents, as a JSON list
    removed_at BIGINT -- the row stays for a while, so that a new worker of the name goes on from its revision
) WITH (fillfactor = 50);
CREATE INDEX workers_awake ON workers (id) WHERE removed_at IS NULL AND NOT lost AND status <> 'offline';

-- Apart from `workers`, because it changes all the time. Every worker has its row.
CREATE TABLE worker_seen (
    worker_id TEXT NOT NULL PRIMARY KEY,
    last_seen BIGINT NOT NULL
) WITH (fillfactor = 50);

-- Projects: repositories that workers clone. `target_path` is below an agent's directory of projects. The branches of its contexts begin with
-- `branch_prefix`; the prefixes that it had before are a JSON list, newest first.
CREATE TABLE projects (
    id UUID NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    repo_url TEXT NOT NULL,
    target_path TEXT,
    primary_node_id TEXT,
    clone_status TEXT NOT NULL,
    error_message TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    branch_prefix TEXT NOT NULL DEFAULT 'bloom',
    former_branch_prefixes TEXT NOT NULL DEFAULT '[]'
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
    last_sync_at BIGINT, -- when the worker last made the clone; NULL: never
    PRIMARY KEY (project_id, node_id)
);

-- People.

-- `task_id` and `worker_id` are the task and the worker that an entry concerns, also if its entity is a lease. Entries of reconcilers have no
-- request.
CREATE TABLE audit (
    id UUID NOT NULL PRIMARY KEY,
    timestamp BIGINT NOT NULL,
    action TEXT NOT NULL,
    entity_type TEXT NOT NULL,
    entity_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    detail TEXT NOT NULL,
    request_id TEXT,
    task_id UUID,
    worker_id TEXT
);
CREATE INDEX audit_task ON audit (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX audit_worker ON audit (worker_id, id) WHERE worker_id IS NOT NULL;
-- Every task leaves entries with the actions and actors that are left out here. They are frequent, so they are found without an index, and
-- an index would cost every task.
CREATE INDEX audit_action ON audit (action, id) WHERE action NOT IN ('task_created', 'task_leased', 'task_completed');
CREATE INDEX audit_actor ON audit (actor, id) WHERE actor NOT IN ('api', 'router', 'reconciler');
-- The server counts its own ids of requests up, so most entries of this index are appended.
CREATE INDEX audit_request ON audit (request_id, id) WHERE request_id IS NOT NULL;

-- Named keys of the API: only their digests are stored. `worker` is the worker that a key speaks for (scope worker), or the only one
-- that a join token enrolls (scope join); `push` is whether it may name the URL that the server calls, `namespaces` the only Kubernetes
-- namespaces that it may serve, as a JSON list. The key that stood under the name before opens the same until `former_until`. Of a quota, NULL is no limit; `refilled_at` and `stored_bytes` are how much of it is used.
CREATE TABLE api_keys (
    name TEXT NOT NULL PRIMARY KEY,
    digest TEXT NOT NULL,
    scope TEXT NOT NULL,
    worker TEXT,
    push BOOLEAN NOT NULL DEFAULT false,
    namespaces TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    created_by TEXT NOT NULL,
    former_digest TEXT,
    former_until BIGINT,
    max_open_tasks BIGINT,
    max_tasks_per_minute BIGINT,
    max_stored_bytes BIGINT,
    team TEXT,
    refilled_at BIGINT NOT NULL DEFAULT 0,
    stored_bytes BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);

-- When each named key was used last. Apart from `api_keys`, because it changes all the time, and calls with quotas lock the rows of their keys.
CREATE TABLE api_key_uses (
    name TEXT NOT NULL PRIMARY KEY,
    last_used_at BIGINT NOT NULL
);

-- What the reconcilers did last; the replica that runs one writes its row every few seconds.
CREATE TABLE reconcilers (
    name TEXT NOT NULL PRIMARY KEY,
    every_ms BIGINT,
    started_at BIGINT NOT NULL,
    running_since BIGINT,
    duration_ms BIGINT,
    items BIGINT NOT NULL,
    runs BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    succeeded_at BIGINT,
    failed_at BIGINT,
    error TEXT,
    recorded_at BIGINT NOT NULL
);

CREATE TABLE settings (
    key TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

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
);

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
);
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
);

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
    id UUID NOT NULL PRIMARY KEY,
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
);

-- Replicas.

-- A lane is one write connection of one replica; its batches are numbered without a gap.
CREATE TABLE lanes (
    lane BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    replica TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    folded_n BIGINT NOT NULL DEFAULT 0 -- batches up to this one are in `counts`
) WITH (fillfactor = 50);

-- One row per commit: it proves the commit, tells other replicas what changed, and carries what it added to the counts.
CREATE TABLE batches (
    lane BIGINT NOT NULL,
    n BIGINT NOT NULL,
    at BIGINT NOT NULL,
    counts TEXT NOT NULL,
    changes TEXT NOT NULL,
    PRIMARY KEY (lane, n)
);

-- Tasks by agent, priority and status, so that nobody counts them. The row ('', 0, 'lease') counts leases ever given.
CREATE TABLE counts (
    agent_slug TEXT NOT NULL,
    priority BIGINT NOT NULL,
    status TEXT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (agent_slug, priority, status)
) WITH (fillfactor = 50);

CREATE TABLE leader (
    id BIGINT NOT NULL PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
) WITH (fillfactor = 50);

-- When any replica served last, and when the last time ended in which none did.
CREATE TABLE served (
    id BIGINT NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    resumed_at BIGINT NOT NULL
) WITH (fillfactor = 50);
INSERT INTO served (id, at, resumed_at) VALUES (1, 0, 0);

-- `id` is the checksum of the imported file; `done` counts its rows that are in the database. No server starts on an unfinished import.
-- Imports are numbered in the order in which they began, so that a server notices one that began after its start.
CREATE TABLE imports (
    id TEXT NOT NULL PRIMARY KEY,
    done BIGINT NOT NULL,
    is_finished BOOLEAN NOT NULL,
    number BIGINT NOT NULL
);

-- Which programs can work with this schema: those that know at least migration number `since`. Migrations only widen the schema, so that
-- replicas of the version before go on while new ones start. A migration that must exclude older programs sets `since` to its own number.
CREATE TABLE schema_compatibility (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    since BIGINT NOT NULL
);
INSERT INTO schema_compatibility (id, since) VALUES (1, 1);

-- The shapes in which the program sends sets of rows. They stay as they are when a table gets a new column, because an older replica may
-- still be running; the new shape gets a new name, such as tasks_row_2.
CREATE VIEW tasks_row AS SELECT * FROM tasks;
CREATE VIEW task_labels_row AS SELECT * FROM task_labels;
CREATE VIEW task_deps_row AS SELECT * FROM task_deps;
CREATE VIEW task_inputs_row AS SELECT * FROM task_inputs;
CREATE VIEW task_state_row AS SELECT * FROM task_state;
CREATE VIEW context_resets_row AS SELECT * FROM context_resets;
CREATE VIEW wakeups_row AS SELECT * FROM wakeups;
CREATE VIEW queues_row AS SELECT * FROM queues;
CREATE VIEW leases_row AS SELECT * FROM leases;
CREATE VIEW results_row AS SELECT * FROM results;
CREATE VIEW task_events_row AS SELECT * FROM task_events;
CREATE VIEW files_row AS SELECT * FROM files;
CREATE VIEW workers_row AS SELECT
    id, url, status, lost, capabilities, namespaces, git, projects, other_capabilities, ip_addrs, obs_count, db_sha, registered_at,
    agent_version, os_info, install_method, dispatch, cordoned, draining, revision, updated_at, recount_slots, instance, instance_since,
    pauses
    FROM workers;
CREATE VIEW worker_seen_row AS SELECT * FROM worker_seen;
CREATE VIEW projects_row AS SELECT * FROM projects;
CREATE VIEW project_nodes_row AS SELECT * FROM project_nodes;
CREATE VIEW audit_row AS SELECT * FROM audit;
CREATE VIEW api_keys_row AS SELECT
    name, digest, scope, worker, push, namespaces, created_at, expires_at, created_by, former_digest, former_until,
    max_open_tasks, max_tasks_per_minute, max_stored_bytes, team
    FROM api_keys;
CREATE VIEW rotated_keys_row AS SELECT name, digest, former_digest, former_until, expires_at FROM api_keys;
CREATE VIEW api_key_uses_row AS SELECT * FROM api_key_uses;
CREATE VIEW quotas_row AS SELECT
    name, max_open_tasks, max_tasks_per_minute, max_stored_bytes, refilled_at, stored_bytes
    FROM api_keys;
CREATE VIEW reconcilers_row AS SELECT * FROM reconcilers;
CREATE VIEW settings_row AS SELECT * FROM settings;
CREATE VIEW counts_row AS SELECT * FROM counts;
CREATE VIEW membridge_agents_row AS SELECT * FROM membridge_agents;
CREATE VIEW membridge_projects_row AS SELECT * FROM membridge_projects;
CREATE VIEW membridge_nodes_row AS SELECT * FROM membridge_nodes;
CREATE VIEW membridge_memories_row AS SELECT * FROM membridge_memories;
CREATE VIEW membridge_jobs_row AS SELECT * FROM membridge_jobs;
CREATE TYPE wakeup_cursor_row AS (id UUID, cursor UUID);
CREATE TYPE worker_removal_row AS (id TEXT, revision BIGINT, removed_at BIGINT);
CREATE TYPE lane_position_row AS (lane BIGINT, n BIGINT);
CREATE TYPE context_task_row AS (context_id TEXT, id UUID);

-- Views for SQL that people wrote for the earlier runtime: its tables with their columns, to be read only. They have a schema of their own,
-- because `leases` and `workers` are tables here too. Who may not create a schema gets it from an administrator, and calls this then.
CREATE FUNCTION create_documented_views() RETURNS void LANGUAGE plpgsql AS $views$
DECLARE
    view_name TEXT;
BEGIN
    -- IF NOT EXISTS would need the right to create schemas also if this one exists.
    IF to_regnamespace('documented') IS NULL THEN
        CREATE SCHEMA documented;
    END IF;

    -- The time that an id of version 7 contains.
    CREATE OR REPLACE FUNCTION documented.time_of(id UUID) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS
        $time$ SELECT ('x' || left(replace($1::text, '-', ''), 12))::bit(48)::bigint $time$;

    CREATE OR REPLACE VIEW documented.llm_tasks AS SELECT
        t.id::text AS id, t.context_id, t.agent_slug, t.prompt, t.context_hints::jsonb AS context_hints,
        jsonb_build_object('timeout_sec', t.timeout_sec, 'budget', t.budget) AS policy, t.desired_format, s.status,
        coalesce(s.made_at, documented.time_of(t.id)) AS created_at, s.updated_at,
        (CASE WHEN s.slot IS NOT NULL THEN s.lease_id
            WHEN s.status NOT IN ('queued', 'leased', 'running') THEN s.last_lease_id END)::text AS lease_id,
        s.worker_id, s.attempts, s.max_attempts
        FROM tasks t JOIN task_state s ON s.id = t.id;

    CREATE OR REPLACE VIEW documented.leases AS
        SELECT s.lease_id::text AS id, s.id::text AS task_id, s.worker_id, s.started_at, s.expires_at, s.ttl_ms / 1000 AS ttl_seconds,
            'active'::text AS status, s.last_heartbeat, s.context_id
            FROM task_state s WHERE s.slot IS NOT NULL
        UNION ALL
        SELECT l.id::text, l.task_id::text, l.worker_id, l.started_at, l.expires_at, l.ttl_ms / 1000, l.status, l.last_heartbeat, l.context_id
            FROM leases l;

    CREATE OR REPLACE VIEW documented.workers AS SELECT
        w.id, w.id AS node_id, w.url, CASE WHEN w.lost THEN 'offline' ELSE w.status END AS status, w.capabilities::jsonb AS capabilities,
        seen.last_seen AS last_heartbeat, w.ip_addrs::jsonb AS ip_addrs, w.obs_count, w.db_sha, w.registered_at,
        (SELECT count(*) FROM task_state s WHERE s.worker_id = w.id AND s.slot IS NOT NULL) AS active_leases,
        w.agent_version, w.os_info, w.install_method
        FROM workers w LEFT JOIN worker_seen seen ON seen.worker_id = w.id WHERE w.removed_at IS NULL;

    CREATE OR REPLACE VIEW documented.runtime_artifacts AS SELECT
        r.artifact_id::text AS id, r.task_id::text AS task_id, NULL::text AS job_id, r.artifact_type AS type, r.completed_at AS created_at,
        true AS finalized, NULL::text AS url, '[]'::jsonb AS entity_refs, r.artifact_tags::jsonb AS tags,
        CASE WHEN r.status = 'success' THEN r.output END AS content
        FROM results r;

    CREATE OR REPLACE VIEW documented.llm_results AS SELECT
        r.id::text AS id, r.task_id::text AS task_id, r.worker_id, r.artifact_id::text AS artifact_id, r.status, r.output, r.error_message,
        jsonb_strip_nulls(jsonb_build_object('duration_ms', r.duration_ms, 'tokens_used', r.tokens_used)) AS metrics, r.completed_at
        FROM results r;

    CREATE OR REPLACE VIEW documented.audit_logs AS SELECT
        a.id::text AS id, a.timestamp, a.action, a.entity_type, a.entity_id, a.actor, a.detail
        FROM audit a;

    CREATE OR REPLACE VIEW documented.runtime_settings AS SELECT s.key, s.value FROM settings s;

    -- A view of one table could be written to otherwise, past the rules of the program.
    CREATE OR REPLACE FUNCTION documented.refuse() RETURNS trigger LANGUAGE plpgsql AS $refuse$
    BEGIN
        RAISE EXCEPTION 'documented.% can only be read; change it over the HTTP API', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END $refuse$;
    FOREACH view_name IN ARRAY ARRAY['llm_tasks', 'leases', 'workers', 'runtime_artifacts', 'llm_results', 'audit_logs', 'runtime_settings']
    LOOP
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON documented.%I FOR EACH ROW EXECUTE FUNCTION documented.refuse()',
            view_name);
    END LOOP;
END $views$;

-- A migration must not fail for want of a right that no earlier one needed, nor replace a schema of somebody else.
DO $$
BEGIN
    IF has_database_privilege(current_database(), 'CREATE') AND to_regnamespace('documented') IS NULL THEN
        PERFORM create_documented_views();
    END IF;
END $$;
