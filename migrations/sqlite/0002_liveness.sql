-- What others wait for no longer depends on anybody's memory: rows have revisions, wake-ups and the next look at a lease are rows.
-- It only widens: a replica of the version before goes on beside this one, and what it leaves unset is found by the indexes here.

-- `revision` rises with each change of the row. `check_at` is when the expiry of the active lease is looked at: never later than its
-- end, and apart from it, so that a heartbeat touches no index. `wake_at` is when the clock alone ends a parking. `created_after` is
-- the unfinished session task that stood before this one when it was made, the nil id for none.
ALTER TABLE task_state ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE task_state ADD COLUMN wake_at BIGINT;
ALTER TABLE task_state ADD COLUMN check_at BIGINT;
ALTER TABLE task_state ADD COLUMN created_after BLOB;
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
    id BLOB NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    task_id BLOB,
    subject TEXT,
    cursor BLOB
) WITHOUT ROWID;
-- Wake-ups that were lost before this version are made up for: everything that is parked is looked at once more.
INSERT INTO wakeups (id, kind, subject)
    SELECT randomblob(16), 'context', c.context_id FROM (SELECT DISTINCT context_id FROM task_state WHERE status = 'queued' AND parked = 'session') AS c;
INSERT INTO wakeups (id, kind, subject)
    SELECT randomblob(16), 'key', k.exclusive_key FROM (SELECT DISTINCT exclusive_key FROM task_state
        WHERE status = 'queued' AND parked = 'exclusive_key' AND exclusive_key IS NOT NULL) AS k;
INSERT INTO wakeups (id, kind, task_id)
    SELECT randomblob(16), 'dependents', d.dep_id FROM (SELECT DISTINCT e.dep_id FROM task_deps e JOIN task_state s ON s.id = e.task_id
        WHERE s.status = 'queued' AND s.parked = 'depends_on') AS d;

-- When the last time ended in which no replica served.
ALTER TABLE served ADD COLUMN resumed_at BIGINT NOT NULL DEFAULT 0;
