-- Imports: tasks of another program, whose ids do not contain the time of creation, and how far an import is.
ALTER TABLE task_state ADD COLUMN made_at BIGINT;
CREATE VIEW task_state_row_6 AS SELECT
    id, context_id, agent_slug, rank, session, max_attempts, timeout_sec, exclusive_key, ttl_after_finished_sec, has_dependencies,
    revision, status, updated_at, attempts, infra_retries, lease_count, cancel_requested, not_before, parked, wake_at, ready_at,
    session_worker, created_after, has_dependents, worker_id, lease_id, slot, origin, started_at, ttl_ms, expires_at, check_at,
    hard_end_at, last_heartbeat, holds_context, last_lease_id, last_lease_worker, last_lease_status, session_id, failure_reason,
    failure_message, failure_at, input_tokens, output_tokens, cost_usd, finished_at, remove_at, event_count, event_seq, labels, suspend,
    namespace, made_at
    FROM task_state;

-- `id` is the checksum of the imported file; `done` counts its rows that are in the database. No server starts on an unfinished import.
CREATE TABLE imports (
    id TEXT NOT NULL PRIMARY KEY,
    done BIGINT NOT NULL,
    is_finished BOOLEAN NOT NULL
);

-- Views for SQL that people wrote for the earlier runtime: its tables with their columns, to be read only. They have a schema of their own,
-- because `leases` and `workers` are tables here too. Who may not create a schema gets it from an administrator, and calls this then.
CREATE FUNCTION create_documented_views() RETURNS void LANGUAGE plpgsql AS $views$
DECLARE
    view_name TEXT;
BEGIN
    -- IF NOT EXISTS would need the right to create schemas also if this one exists.
    IF to_regnamespace('documented') IS NULL THEN
        CREATE SCHEMA documented;
    END IF;

    -- The time that an id of version 7 contains.
    CREATE OR REPLACE FUNCTION documented.time_of(id UUID) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS
        $time$ SELECT ('x' || left(replace($1::text, '-', ''), 12))::bit(48)::bigint $time$;

    CREATE OR REPLACE VIEW documented.llm_tasks AS SELECT
        t.id::text AS id, t.context_id, t.agent_slug, t.prompt, t.context_hints::jsonb AS context_hints,
        jsonb_build_object('timeout_sec', t.timeout_sec, 'budget', t.budget) AS policy, t.desired_format, s.status,
        coalesce(s.made_at, documented.time_of(t.id)) AS created_at, s.updated_at,
        (CASE WHEN s.slot IS NOT NULL THEN s.lease_id
            WHEN s.status NOT IN ('queued', 'leased', 'running') THEN s.last_lease_id END)::text AS lease_id,
        s.worker_id, s.attempts, s.max_attempts
        FROM tasks t JOIN task_state s ON s.id = t.id;

    CREATE OR REPLACE VIEW documented.leases AS
        SELECT s.lease_id::text AS id, s.id::text AS task_id, s.worker_id, s.started_at, s.expires_at, s.ttl_ms / 1000 AS ttl_seconds,
            'active'::text AS status, s.last_heartbeat, s.context_id
            FROM task_state s WHERE s.slot IS NOT NULL
        UNION ALL
        SELECT l.id::text, l.task_id::text, l.worker_id, l.started_at, l.expires_at, l.ttl_ms / 1000, l.status, l.last_heartbeat, l.context_id
            FROM leases l;

    CREATE OR REPLACE VIEW documented.workers AS SELECT
        w.id, w.id AS node_id, w.url, CASE WHEN w.lost THEN 'offline' ELSE w.status END AS status, w.capabilities::jsonb AS capabilities,
        seen.last_seen AS last_heartbeat, w.ip_addrs::jsonb AS ip_addrs, w.obs_count, w.db_sha, w.registered_at,
        (SELECT count(*) FROM task_state s WHERE s.worker_id = w.id AND s.slot IS NOT NULL) AS active_leases,
        w.agent_version, w.os_info, w.install_method
        FROM workers w LEFT JOIN worker_seen seen ON seen.worker_id = w.id WHERE w.removed_at IS NULL;

    CREATE OR REPLACE VIEW documented.runtime_artifacts AS SELECT
        r.artifact_id::text AS id, r.task_id::text AS task_id, NULL::text AS job_id, r.artifact_type AS type, r.completed_at AS created_at,
        true AS finalized, NULL::text AS url, '[]'::jsonb AS entity_refs, r.artifact_tags::jsonb AS tags,
        CASE WHEN r.status = 'success' THEN r.output END AS content
        FROM results r;

    CREATE OR REPLACE VIEW documented.llm_results AS SELECT
        r.id::text AS id, r.task_id::text AS task_id, r.worker_id, r.artifact_id::text AS artifact_id, r.status, r.output, r.error_message,
        jsonb_strip_nulls(jsonb_build_object('duration_ms', r.duration_ms, 'tokens_used', r.tokens_used)) AS metrics, r.completed_at
        FROM results r;

    CREATE OR REPLACE VIEW documented.audit_logs AS SELECT
        a.id::text AS id, a.timestamp, a.action, a.entity_type, a.entity_id, a.actor, a.detail
        FROM audit a;

    CREATE OR REPLACE VIEW documented.runtime_settings AS SELECT s.key, s.value FROM settings s;

    -- A view of one table could be written to otherwise, past the rules of the program.
    CREATE OR REPLACE FUNCTION documented.refuse() RETURNS trigger LANGUAGE plpgsql AS $refuse$
    BEGIN
        RAISE EXCEPTION 'documented.% can only be read; change it over the HTTP API', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END $refuse$;
    FOREACH view_name IN ARRAY ARRAY['llm_tasks', 'leases', 'workers', 'runtime_artifacts', 'llm_results', 'audit_logs', 'runtime_settings']
    LOOP
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON documented.%I FOR EACH ROW EXECUTE FUNCTION documented.refuse()',
            view_name);
    END LOOP;
END $views$;

-- A migration must not fail for want of a right that no earlier one needed, nor replace a schema of somebody else.
DO $$
BEGIN
    IF has_database_privilege(current_database(), 'CREATE') AND to_regnamespace('documented') IS NULL THEN
        PERFORM create_documented_views();
    END IF;
END $$;
