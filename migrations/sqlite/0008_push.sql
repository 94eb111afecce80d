-- Whether the worker of a key may name the URL that the server calls.
ALTER TABLE api_keys ADD COLUMN push BOOLEAN NOT NULL DEFAULT false;
