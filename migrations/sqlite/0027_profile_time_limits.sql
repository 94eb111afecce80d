-- The longest time limit that the profile of its agent may set in place of `timeout_sec`, if the client named none; NULL: it named one. The
-- client may name one later, and so the state of a task has its own.
ALTER TABLE tasks ADD COLUMN profile_timeout_max BIGINT;
ALTER TABLE task_state ADD COLUMN profile_timeout_max BIGINT;
