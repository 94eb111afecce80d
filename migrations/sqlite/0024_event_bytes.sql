-- How many bytes of events the newest lease has sent: a run can't fill the database with them.
ALTER TABLE task_state ADD COLUMN event_bytes BIGINT NOT NULL DEFAULT 0;
