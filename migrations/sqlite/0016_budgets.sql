-- Whether a part of the cost was estimated from tokens and prices, because a run ended without a total.
ALTER TABLE task_state ADD COLUMN cost_estimated BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE leases ADD COLUMN cost_estimated BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE usage_daily ADD COLUMN cost_estimated BOOLEAN NOT NULL DEFAULT false;
-- The budget holds over all attempts since the task was created or requeued; 0: no limit. Tasks of earlier exports have 0 here: their
-- budget limits each of their runs.
ALTER TABLE task_state ADD COLUMN budget DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE task_state ADD COLUMN cost_before_requeue DOUBLE PRECISION NOT NULL DEFAULT 0;
UPDATE task_state SET budget = (SELECT budget FROM tasks WHERE tasks.id = task_state.id)
    WHERE id IN (SELECT id FROM tasks WHERE budget > 0);
