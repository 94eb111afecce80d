-- What was set for the queues of agents: since when a queue is paused, and the most active leases that it may have. A queue for which
-- nothing is set has no row. The row '' stands for all queues together and always exists; its `revision` is that of the newest change.
-- It only widens; but a replica of the version before knows of no queues, and makes leases as if none were paused or limited.
CREATE TABLE queues (
    agent_slug TEXT PRIMARY KEY,
    paused_at BIGINT,
    max_concurrency BIGINT,
    revision BIGINT NOT NULL
);
INSERT INTO queues (agent_slug, revision) VALUES ('', 0);
-- Counts the active leases of a queue that is limited.
CREATE INDEX task_state_active_of_agent ON task_state (agent_slug) WHERE slot IS NOT NULL;

-- The shape of the rows, for sets that are bound as one array.
CREATE VIEW queues_row AS SELECT * FROM queues;
