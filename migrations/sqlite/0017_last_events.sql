-- The `seq` of the last event of the newest run, as its completion told: streams of the task's events wait for it. NULL: no event is to come.
ALTER TABLE task_state ADD COLUMN last_event_seq BIGINT;
