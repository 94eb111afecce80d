-- Outputs in an object store: where one is, its size and its beginning. `output` is NULL then.
ALTER TABLE results ADD COLUMN object_url TEXT;
ALTER TABLE results ADD COLUMN object_bytes BIGINT;
ALTER TABLE results ADD COLUMN preview TEXT;
-- Outputs that belong into the object store and are still here.
CREATE INDEX results_to_move ON results (artifact_id) WHERE octet_length(output) > 65536;
-- How far the object store is: `database_id` tells the databases that write to one bucket apart, `audit_flushed` is the last audit entry
-- that is in the object store.
CREATE TABLE object_marks (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
