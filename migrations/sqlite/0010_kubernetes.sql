-- Tasks that were created for Kubernetes objects: the object's namespace, name and uid; NULL for all others. One object has one task.
-- The names of their contexts and keys have the namespace in front, so the other tables and indexes need not know it.
ALTER TABLE tasks ADD COLUMN namespace TEXT;
ALTER TABLE tasks ADD COLUMN object_name TEXT;
ALTER TABLE tasks ADD COLUMN object_uid BLOB;
CREATE UNIQUE INDEX tasks_object ON tasks (object_uid) WHERE object_uid IS NOT NULL;
ALTER TABLE task_state ADD COLUMN namespace TEXT;
CREATE INDEX task_state_unfinished_of_objects ON task_state (id)
    WHERE namespace IS NOT NULL AND status IN ('queued', 'leased', 'running');
