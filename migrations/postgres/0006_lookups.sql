-- Look-ups for people: audit entries by task and worker, leases by worker, tasks by the end of their id.

-- The task and the worker that an entry concerns, also if its entity is a lease. Entries that an earlier version writes have none.
ALTER TABLE audit ADD COLUMN task_id UUID;
ALTER TABLE audit ADD COLUMN worker_id TEXT;
UPDATE audit SET task_id = entity_id::uuid WHERE entity_type = 'llm_task';
UPDATE audit SET worker_id = actor WHERE entity_type = 'llm_task' AND actor NOT IN ('api', 'admin', 'router', 'reconciler');
UPDATE audit SET worker_id = entity_id WHERE entity_type = 'worker';
-- The detail of a lease's entry: 'task <id> to worker <name>', 'task <id> of worker <name>'.
UPDATE audit SET task_id = substr(detail, 6, 36)::uuid, worker_id = substr(detail, 53) WHERE entity_type = 'lease';
CREATE INDEX audit_task ON audit (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX audit_worker ON audit (worker_id, id) WHERE worker_id IS NOT NULL;
-- Every task leaves entries with the actions and actors that are left out here. They are frequent, so they are found without an index, and
-- an index would cost every task.
CREATE INDEX audit_action ON audit (action, id) WHERE action NOT IN ('task_created', 'task_leased', 'task_completed');
CREATE INDEX audit_actor ON audit (actor, id) WHERE actor NOT IN ('api', 'router', 'reconciler');

CREATE INDEX leases_worker ON leases (worker_id, id);
-- The last four hex digits of ids, which are random; the first ones are the time.
CREATE INDEX tasks_id_end ON tasks (right(id::text, 4));

CREATE VIEW audit_row_2 AS SELECT id, timestamp, action, entity_type, entity_id, actor, detail, request_id, task_id, worker_id FROM audit;
