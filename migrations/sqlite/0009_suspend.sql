-- Whether a client has suspended the task; in `tasks` as it was created. It only widens: while a suspended task is queued, `parked` is
-- 'reserved' without a worker (or 'depends_on'), so a replica of the version before, which does not know of suspension, gives it to nobody.
ALTER TABLE tasks ADD COLUMN suspend BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE task_state ADD COLUMN suspend BOOLEAN NOT NULL DEFAULT false;
