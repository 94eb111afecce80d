-- The ceiling: the same rows for 32 tasks at a time, a statement for all 32, a transaction for each step.
\set n :n + 1
\set id (:n * 1000 + :client_id) * 256
\set now 1760000000000 + :n

-- create
BEGIN;
INSERT INTO tasks (id, context_id, agent_slug, prompt, context_hints, timeout_sec, budget, desired_format, max_attempts, priority, depends_on, labels, session)
    SELECT nid(:id::bigint + i), 'context-' || (:id::bigint + i), 'bench', :text::text, '[]', 120, 0, 'text', 3, 5, '[]', '{}', 'context'
    FROM generate_series(0, 31) i;
INSERT INTO task_state (id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, has_dependencies, status, updated_at, attempts,
        infra_retries, lease_count, cancel_requested, ready_at, has_dependents, event_count,
        event_seq)
    SELECT nid(:id::bigint + i), 'context-' || (:id::bigint + i), 'bench', 4, 'context', 3, 120, FALSE, 'queued', :now::bigint, 0, 0, 0, FALSE,
        :now::bigint, FALSE, 0, 0
    FROM generate_series(0, 31) i;
INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail)
    SELECT nid(:id::bigint + i), :now::bigint, 'task_created', 'llm_task', nid(:id::bigint + i)::text, 'api', 'agent bench'
    FROM generate_series(0, 31) i;
COMMIT;

-- claim
BEGIN;
UPDATE task_state SET status = 'leased', updated_at = :now::bigint, attempts = 1, lease_count = 1, worker_id = 'worker-' || :client_id::bigint,
        lease_id = nid(:id::bigint + i), slot = i, origin = 'claim', started_at = :now::bigint, ttl_ms = 300000, expires_at = :now::bigint + 300000,
        hard_end_at = :now::bigint + 180000, last_heartbeat = :now::bigint, holds_context = TRUE
    FROM generate_series(0, 31) i WHERE task_state.id = nid(:id::bigint + i);
INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail)
    SELECT nid(:id::bigint + 32 + i), :now::bigint, 'task_leased', 'lease', nid(:id::bigint + i)::text, 'reconciler', 'worker bench'
    FROM generate_series(0, 31) i;
COMMIT;

-- heartbeat
BEGIN;
UPDATE task_state SET status = 'running', updated_at = :now::bigint, expires_at = :now::bigint + 301000, last_heartbeat = :now::bigint + 1000
    FROM generate_series(0, 31) i WHERE task_state.id = nid(:id::bigint + i);
COMMIT;

-- complete
BEGIN;
UPDATE task_state SET status = 'completed', updated_at = :now::bigint, lease_id = NULL, slot = NULL, origin = NULL, started_at = NULL, ttl_ms = NULL,
        expires_at = NULL, hard_end_at = NULL, last_heartbeat = NULL, holds_context = NULL, last_lease_id = nid(:id::bigint + i),
        last_lease_worker = worker_id, last_lease_status = 'released', finished_at = :now::bigint
    FROM generate_series(0, 31) i WHERE task_state.id = nid(:id::bigint + i);
INSERT INTO leases (id, task_id, context_id, agent_slug, worker_id, started_at, ttl_ms, expires_at, last_heartbeat, status, ended_at,
        completed)
    SELECT nid(:id::bigint + i), nid(:id::bigint + i), 'context-' || (:id::bigint + i), 'bench', 'worker-' || :client_id::bigint, :now::bigint, 300000,
        :now::bigint + 301000, :now::bigint + 1000, 'released', :now::bigint, TRUE
    FROM generate_series(0, 31) i;
INSERT INTO results (id, artifact_id, task_id, lease_id, worker_id, status, output, duration_ms, tokens_used, completed_at, artifact_type, artifact_tags)
    SELECT nid(:id::bigint + i), nid(:id::bigint + i), nid(:id::bigint + i), nid(:id::bigint + i), 'worker-' || :client_id::bigint, 'success', :text::text,
        1200, 345, :now::bigint, 'LLM_RESULT', '[]'
    FROM generate_series(0, 31) i;
INSERT INTO audit (id, timestamp, action, entity_type, entity_id, actor, detail)
    SELECT nid(:id::bigint + 64 + i), :now::bigint, 'task_completed', 'llm_task', nid(:id::bigint + i)::text, 'worker-' || :client_id::bigint, 'success'
    FROM generate_series(0, 31) i;
COMMIT;
