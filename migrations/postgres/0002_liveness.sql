-- What others wait for no longer depends on anybody's memory: rows have revisions, wake-ups and the next look at a lease are rows.
-- It only widens: a replica of the version before goes on beside this one, and what it leaves unset is found by the indexes here.

-- `revision` rises with each change of the row. `check_at` is when the expiry of the active lease is looked at: never later than its
-- end, and apart from it, so that a heartbeat touches no index. `wake_at` is when the clock alone ends a parking. `created_after` is
-- the unfinished session task that stood before this one when it was made, the nil id for none.
ALTER TABLE task_state ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE task_state ADD COLUMN wake_at BIGINT;
ALTER TABLE task_state ADD COLUMN check_at BIGINT;
ALTER TABLE task_state ADD COLUMN created_after UUID;
UPDATE task_state SET check_at = expires_at WHERE slot IS NOT NULL;
UPDATE task_state SET wake_at = not_before WHERE status = 'queued' AND parked = 'not_before';

CREATE INDEX task_state_check ON task_state (check_at) WHERE slot IS NOT NULL;
CREATE INDEX task_state_wake ON task_state (wake_at) WHERE wake_at IS NOT NULL;
-- Left by a replica of the version before, which knows of no `wake_at`.
CREATE INDEX task_state_wake_unset ON task_state (id) WHERE status = 'queued' AND parked = 'not_before' AND wake_at IS NULL;
CREATE INDEX task_state_reserved ON task_state (session_worker, rank, id) WHERE status = 'queued' AND parked = 'reserved';
-- Who waits for a key, by agent: the first of each is found without reading the others.
CREATE INDEX task_state_awaits_key_of_agent ON task_state (exclusive_key, agent_slug, rank, id)
    WHERE status = 'queued' AND parked = 'exclusive_key';
-- Two replicas that create tasks in one context at once, neither seeing the other's, are told so.
CREATE UNIQUE INDEX task_state_created_after ON task_state (context_id, created_after) WHERE created_after IS NOT NULL;
DROP INDEX task_state_not_before;
DROP INDEX task_state_awaits_key;

-- A removed worker's row stays for a while (`removed_at`), so that a new one of its name goes on from its revision.
ALTER TABLE workers ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE workers ADD COLUMN updated_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN recount_slots BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE workers ADD COLUMN removed_at BIGINT;
CREATE INDEX workers_awake ON workers (id) WHERE removed_at IS NULL AND NOT lost AND status <> 'offline';

-- Who is to be evaluated again: the dependents of `task_id`; the first of the context `subject`, and the one behind `task_id`; those
-- that wait for the key `subject`; those that are reserved for the worker `subject`. Done up to the task `cursor`.
CREATE TABLE wakeups (
    id UUID NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    task_id UUID,
    subject TEXT,
    cursor UUID
);
-- Wake-ups that were lost before this version are made up for: everything that is parked is looked at once more.
INSERT INTO wakeups (id, kind, subject)
    SELECT gen_random_uuid(), 'context', c.context_id FROM (SELECT DISTINCT context_id FROM task_state WHERE status = 'queued' AND parked = 'session') AS c;
INSERT INTO wakeups (id, kind, subject)
    SELECT gen_random_uuid(), 'key', k.exclusive_key FROM (SELECT DISTINCT exclusive_key FROM task_state
        WHERE status = 'queued' AND parked = 'exclusive_key' AND exclusive_key IS NOT NULL) AS k;
INSERT INTO wakeups (id, kind, task_id)
    SELECT gen_random_uuid(), 'dependents', d.dep_id FROM (SELECT DISTINCT e.dep_id FROM task_deps e JOIN task_state s ON s.id = e.task_id
        WHERE s.status = 'queued' AND s.parked = 'depends_on') AS d;

-- When the last time ended in which no replica served.
ALTER TABLE served ADD COLUMN resumed_at BIGINT NOT NULL DEFAULT 0;

-- The new shapes of sets of rows. Those of the version before stay as they are.
CREATE VIEW task_state_row_2 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, last_lease_id, last_lease_worker, last_lease_status, session_id, failure_reason,
    failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq
    FROM task_state;
CREATE VIEW workers_row_2 AS SELECT
    id, url, status, lost, capabilities, ip_addrs, obs_count, db_sha, registered_at, agent_version, os_info, install_method, dispatch,
    cordoned, draining, revision, updated_at, recount_slots
    FROM workers;
CREATE VIEW wakeups_row AS SELECT * FROM wakeups;
CREATE TYPE wakeup_cursor_row AS (id UUID, cursor UUID);
CREATE TYPE worker_removal_row AS (id TEXT, revision BIGINT, removed_at BIGINT);
