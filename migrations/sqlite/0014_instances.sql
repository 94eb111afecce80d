-- Agents under one name are told apart: which of them has the name, since when, and which of them claimed a lease; NULL: it did not tell.
ALTER TABLE workers ADD COLUMN instance BLOB;
ALTER TABLE workers ADD COLUMN instance_since BIGINT;
ALTER TABLE task_state ADD COLUMN lease_instance BLOB;
