-- Named keys of the API: only their digests are stored. `worker` is the worker that a key speaks for (scope worker), or the only one
-- that a join token enrolls (scope join).
CREATE TABLE api_keys (
    name TEXT NOT NULL PRIMARY KEY,
    digest TEXT NOT NULL,
    scope TEXT NOT NULL,
    worker TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    created_by TEXT NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);

-- The submit key that created the task; only that key and keys without such a limit see it.
ALTER TABLE tasks ADD COLUMN owner TEXT;
CREATE INDEX tasks_owner ON tasks (owner, id) WHERE owner IS NOT NULL;
