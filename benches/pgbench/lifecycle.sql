-- The floor: the rows of one task's life, a transaction a call, one statement a round trip.
\set n :n + 1
\set id (:n * 1000 + :client_id) * 8
\set now 1760000000000 + :n

-- create
BEGIN;
INSERT INTO tasks (id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, depends_on, labels, session)
    VALUES (nid(:id::bigint), 'context-' || :id::bigint, 'bench', :text::text, '[]', 120, 0, 'text', 3, 5, '[]', '{}', 'context');
INSERT INTO task_state (id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, has_dependencies, status, updated_at, attempts,
        infra_retries, lease_count, cancel_requested, ready_at, has_dependents, event_count,
        event_seq)
    VALUES (nid(:id::bigint), 'context-' || :id::bigint, 'bench', 4, 'context', 3, 120, FALSE, 'queued', :now::bigint, 0, 0, 0, FALSE, :now::bigint, FALSE, 0, 0);
INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail)
    VALUES (nid(:id::bigint), :now::bigint, 'task_created', 'llm_task', nid(:id::bigint)::text, 'api', 'agent bench');
COMMIT;

-- lease
BEGIN;
UPDATE task_state SET status = 'leased', updated_at = :now::bigint, attempts = 1, lease_count = 1, worker_id = 'worker-' || :client_id::bigint,
        lease_id = nid(:id::bigint + 1), slot = 0, origin = 'call', started_at = :now::bigint, ttl_ms = 300000, expires_at = :now::bigint + 300000,
        last_heartbeat = :now::bigint
    WHERE id = nid(:id::bigint);
INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail)
    VALUES (nid(:id::bigint + 1), :now::bigint, 'task_leased', 'lease', nid(:id::bigint + 1)::text, 'router', 'worker bench');
COMMIT;

-- heartbeat
BEGIN;
UPDATE task_state SET status = 'running', updated_at = :now::bigint, expires_at = :now::bigint + 301000, last_heartbeat = :now::bigint + 1000
    WHERE id = nid(:id::bigint);
COMMIT;

-- complete
BEGIN;
UPDATE task_state SET status = 'completed', updated_at = :now::bigint, lease_id = NULL, slot = NULL, origin = NULL, started_at = NULL, ttl_ms = NULL,
        expires_at = NULL, last_heartbeat = NULL, last_lease_id = nid(:id::bigint + 1), last_lease_worker = worker_id,
        last_lease_status = 'released', finished_at = :now::bigint
    WHERE id = nid(:id::bigint);
INSERT INTO leases (id, task_id, context_id, agent_slug, worker_id, started_at, ttl_ms, expires_at, last_heartbeat, status, ended_at,
        completed)
    VALUES (nid(:id::bigint + 1), nid(:id::bigint), 'context-' || :id::bigint, 'bench', 'worker-' || :client_id::bigint, :now::bigint, 300000,
        :now::bigint + 301000, :now::bigint + 1000, 'released', :now::bigint, TRUE);
INSERT INTO results (id, artifact_id, task_id, lease_id, worker_id, status, output, duration_ms, tokens_used, completed_at, artifact_type, artifact_tags)
    VALUES (nid(:id::bigint + 2), nid(:id::bigint + 3), nid(:id::bigint), nid(:id::bigint + 1), 'worker-' || :client_id::bigint, 'success', :text::text,
        1200, 345, :now::bigint, 'LLM_RESULT', '[]');
INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail)
    VALUES (nid(:id::bigint + 2), :now::bigint, 'task_completed', 'llm_task', nid(:id::bigint)::text, 'worker-' || :client_id::bigint, 'success');
COMMIT;
