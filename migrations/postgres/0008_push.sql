-- Whether the worker of a key may name the URL that the server calls.
ALTER TABLE api_keys ADD COLUMN push BOOLEAN NOT NULL DEFAULT false;
CREATE VIEW api_keys_row_2 AS SELECT name, digest, scope, worker, push, created_at, expires_at, created_by FROM api_keys;
