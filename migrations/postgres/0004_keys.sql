-- Named keys of the API: only their digests are stored. `worker` is the worker that a key speaks for (scope worker), or the only one
-- that a join token enrolls (scope join).
CREATE TABLE api_keys (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    scope TEXT NOT NULL,
    worker TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    created_by TEXT NOT NULL
);
CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);

-- The submit key that created the task; only that key and keys without such a limit see it.
ALTER TABLE tasks ADD COLUMN owner TEXT;
CREATE INDEX tasks_owner ON tasks (owner, id) WHERE owner IS NOT NULL;

CREATE VIEW api_keys_row AS SELECT * FROM api_keys;
CREATE VIEW tasks_row_2 AS SELECT
    id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, not_before, depends_on,
    exclusive_key, idempotency_key, labels, session, model, ttl_after_finished_sec, owner
    FROM tasks;
