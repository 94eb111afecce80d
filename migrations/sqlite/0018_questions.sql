-- What the run of the active lease asks a person, as JSON. NULL: nothing.
ALTER TABLE task_state ADD COLUMN question TEXT;
