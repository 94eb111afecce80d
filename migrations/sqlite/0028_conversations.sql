-- The session in which a task's context has its conversation, when the task became ready: its run continues it, and tells if it can't.
ALTER TABLE task_state ADD COLUMN conversation TEXT;
