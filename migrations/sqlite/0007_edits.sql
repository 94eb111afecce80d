-- The labels of a task, once they were edited; NULL: those of its row in `tasks`, which is written once. The priority (`rank`) and
-- `not_before` are in this table since the first version.
ALTER TABLE task_state ADD COLUMN labels TEXT;
