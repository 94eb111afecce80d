-- Agents under one name are told apart: which of them has the name, since when, and which of them claimed a lease; NULL: it did not tell.
-- `pauses` is a JSON list: why a worker takes no tasks, or none of some agents.
ALTER TABLE workers ADD COLUMN instance BLOB;
ALTER TABLE workers ADD COLUMN instance_since BIGINT;
ALTER TABLE workers ADD COLUMN pauses TEXT NOT NULL DEFAULT '[]';
ALTER TABLE task_state ADD COLUMN lease_instance BLOB;
