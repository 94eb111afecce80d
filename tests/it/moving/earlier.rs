//! A database of the earlier runtime is taken over: its tables are made by SQL here, as its documents describe them.

use super::*;

const TABLES: &str = "
CREATE TABLE llm_tasks (id VARCHAR PRIMARY KEY, context_id TEXT NOT NULL, agent_slug TEXT NOT NULL, prompt TEXT NOT NULL, context_hints JSONB,
    policy JSONB, desired_format TEXT NOT NULL, status TEXT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, lease_id VARCHAR,
    worker_id VARCHAR, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL);
CREATE TABLE leases (id VARCHAR PRIMARY KEY, task_id VARCHAR NOT NULL, worker_id VARCHAR NOT NULL, started_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL, ttl_seconds INTEGER NOT NULL, status TEXT NOT NULL, last_heartbeat BIGINT NOT NULL, context_id TEXT);
CREATE TABLE workers (id VARCHAR PRIMARY KEY, node_id VARCHAR NOT NULL, url TEXT NOT NULL, status TEXT NOT NULL, capabilities JSONB,
    last_heartbeat BIGINT, ip_addrs JSONB, obs_count INTEGER, db_sha TEXT, registered_at BIGINT NOT NULL, active_leases INTEGER,
    agent_version TEXT, os_info TEXT, install_method TEXT);
CREATE TABLE runtime_artifacts (id VARCHAR PRIMARY KEY, task_id VARCHAR NOT NULL, job_id VARCHAR, type TEXT NOT NULL, created_at BIGINT NOT NULL,
    finalized BOOLEAN NOT NULL, url TEXT, entity_refs JSONB, tags JSONB, content TEXT);
CREATE TABLE llm_results (id VARCHAR PRIMARY KEY, task_id VARCHAR NOT NULL, worker_id VARCHAR NOT NULL, artifact_id VARCHAR, status TEXT NOT NULL,
    output TEXT, error_message TEXT, metrics JSONB, completed_at BIGINT NOT NULL);
CREATE TABLE audit_logs (id VARCHAR PRIMARY KEY, timestamp BIGINT NOT NULL, action TEXT NOT NULL, entity_type TEXT NOT NULL,
    entity_id VARCHAR NOT NULL, actor TEXT NOT NULL, detail TEXT);
CREATE TABLE runtime_settings (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE users (id VARCHAR PRIMARY KEY, username TEXT, password TEXT)";

/// Ids as that runtime made them: random, without a time.
const QUEUED: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
const LEASED: &str = "0b9a4f3e-1c1d-4e5f-8a6b-7c8d9e0f1a2b";
const RUNNING: &str = "c0ffee00-1234-4bcd-9def-000000000003";
const DONE: &str = "9b2d7c1a-aaaa-4bbb-8ccc-dddddddddddd";
const FAILED: &str = "7d444840-9dc0-4f1b-b245-5ffdce74fad2";
const DEAD: &str = "6fa459ea-ee8a-4ca4-894e-db77e160355e";
const IDS: [&str; 6] = [QUEUED, LEASED, RUNNING, DONE, FAILED, DEAD];
/// The time of the first row.
const T: i64 = 1_772_020_800_000;

fn rows() -> String {
    let task = |id: &str, n: i64, status: &str, lease: &str, attempts: i64| {
        let (lease, worker) = if lease.is_empty() { ("NULL".into(), "NULL") } else { (format!("'{lease}'"), "'worker-01'") };
        format!(
            "INSERT INTO llm_tasks VALUES ('{id}', 'ctx', 'writer', 'prompt {n}', '[\"hint\"]', '{{\"timeout_sec\": 60, \"budget\": 1.5}}', \
             'text', '{status}', {}, {}, {lease}, {worker}, {attempts}, 3)",
            T + n,
            T + n + 10
        )
    };
    let lease = |n: i64, task: &str, status: &str| {
        let id = format!("11111111-0000-4000-8000-00000000000{n}");
        let at = T + 100 * n;
        (
            id.clone(),
            format!(
                "INSERT INTO leases VALUES ('{id}', '{task}', 'worker-01', {at}, {}, 300, '{status}', {}, 'ctx')",
                at + 300_000,
                at + 50
            ),
        )
    };
    let ends = |n: i64, task: &str, status: &str, output: &str, error: &str| {
        let (id, artifact) = (format!("22222222-0000-4000-8000-00000000000{n}"), format!("ffffffff-0000-4000-8000-00000000000{n}"));
        let at = T + 100 * n + 60;
        format!(
            "INSERT INTO runtime_artifacts VALUES ('{artifact}', '{task}', NULL, 'LLM_RESULT', {at}, true, NULL, '[]', '[\"tag\"]', {output});
             INSERT INTO llm_results VALUES ('{id}', '{task}', 'worker-01', '{artifact}', '{status}', {output}, {error},
                '{{\"duration_ms\": 1200, \"tokens_used\": 34}}', {at})"
        )
    };
    let (active, leased) = lease(1, LEASED, "active");
    let (beats, running) = lease(2, RUNNING, "active");
    let (released, done) = lease(3, DONE, "released");
    let (lost, failed) = lease(4, FAILED, "released");
    let (expired, dead) = lease(5, DEAD, "expired");
    [
        "INSERT INTO workers VALUES ('worker-01', 'worker-01', 'http://10.0.0.1:8001', 'online', \
         '{\"claude_cli\": true, \"max_concurrency\": 2, \"labels\": [\"gpu\"]}', 1772020800500, '[\"10.0.0.1\"]', 7, 'abc', 1772020800000, 2, \
         '1.2', 'Alpine', 'script')"
            .to_owned(),
        task(QUEUED, 1, "queued", "", 0),
        task(LEASED, 2, "leased", &active, 1),
        task(RUNNING, 3, "running", &beats, 3),
        task(DONE, 4, "completed", &released, 1),
        task(FAILED, 5, "failed", &lost, 1),
        task(DEAD, 6, "dead", &expired, 3),
        leased,
        running,
        done,
        failed,
        dead,
        ends(3, DONE, "success", "'the answer'", "NULL"),
        ends(4, FAILED, "error", "NULL", "'it broke'"),
        format!("INSERT INTO audit_logs VALUES ('ffffffff-0000-4000-8000-0000000000aa', {T}, 'task_created', 'llm_task', '{QUEUED}', 'api', 'x')"),
        "INSERT INTO runtime_settings VALUES ('membridge_server_url', 'http://127.0.0.1:9'), ('membridge_admin_key', '0123456789abcdef'), \
         ('connected', 'true')"
            .to_owned(),
    ]
    .join(";\n")
}

async fn earlier_database() -> String {
    let url = postgres::database();
    direct::execute(&url, TABLES).await;
    direct::execute(&url, &rows()).await;
    url
}

#[test]
fn tasks_keep_their_ids_and_those_that_were_not_done_run() {
    run(async {
        let (url, file) = (earlier_database().await, place().join("x"));
        let told = does(&Server::on(Database::Sqlite), &["export", "--from", &url, text(&file)]).ok();
        assert!(told.contains("2 tasks that workers had will be queued again"), "{told}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for database in KINDS {
            let server = imported(database, &file).start();
            is_as_before(&server).await;
            runs_the_rest(&server).await;
            server.stop();
            server.start_again();
            assert_eq!(server.get("stats").await.ok()["tasks"]["by_status"]["completed"], 5);
        }
    });
}

async fn is_as_before(server: &Server) {
    for (n, id) in IDS.into_iter().enumerate() {
        let task = server.get(&format!("llm-tasks/{id}")).await.ok();
        let n = n as i64 + 1;
        assert_eq!((&task["id"], &task["created_at"], &task["prompt"]), (&json!(id), &json!(T + n), &json!(format!("prompt {n}"))));
        assert_eq!(
            (&task["policy"]["timeout_sec"], &task["policy"]["budget"], &task["context_hints"]),
            (&json!(60), &json!(1.5), &json!(["hint"]))
        );
    }
    let status = async |id: &str| server.get(&format!("llm-tasks/{id}")).await.ok();
    for (id, expected, attempts) in [
        (QUEUED, "queued", 0),
        (LEASED, "queued", 0),
        (RUNNING, "queued", 2),
        (DONE, "completed", 1),
        (FAILED, "failed", 1),
        (DEAD, "dead", 3),
    ] {
        let task = status(id).await;
        assert_eq!((&task["status"], &task["attempts"]), (&json!(expected), &json!(attempts)), "{id}");
    }
    let done = status(DONE).await;
    assert_eq!(done["worker_id"], "worker-01");
    let leases = server.get("leases").await.ok();
    let lease = leases.as_array().unwrap().iter().find(|lease| lease["id"] == done["lease_id"]).expect("its lease");
    assert_eq!((&lease["status"], &lease["started_at"], &lease["ttl_seconds"]), (&json!("released"), &json!(T + 300), &json!(300)));
    assert_eq!(status(FAILED).await["failure"]["message"], "it broke");
    let result = server.get(&format!("llm-tasks/{DONE}/result")).await.ok();
    assert_eq!((&result["output"], &result["metrics"]), (&json!("the answer"), &json!({ "duration_ms": 1200, "tokens_used": 34 })));
    let artifact = server.get(&format!("artifacts?task_id={DONE}")).await.ok()[0].clone();
    assert_eq!(
        (&artifact["content"], &artifact["tags"], &artifact["created_at"]),
        (&json!("the answer"), &json!(["tag"]), &json!(T + 360))
    );
    let worker = server.get("workers/worker-01").await.ok();
    assert_eq!((&worker["url"], &worker["obs_count"], &worker["active_leases"]), (&json!("http://10.0.0.1:8001"), &json!(7), &json!(0)));
    assert_eq!(worker["capabilities"], json!({ "claude_cli": true, "max_concurrency": 2, "labels": ["gpu"] }));
    assert_eq!(server.get("config").await.ok()["membridge_server_url"], "http://127.0.0.1:9");
    let audit = server.get(&format!("audit?task_id={LEASED}")).await.ok();
    assert_eq!((&audit[0]["action"], &audit[0]["entity_id"]), (&json!("task_requeued"), &json!(LEASED)));
    let first = server.get(&format!("audit?task_id={QUEUED}")).await.ok();
    assert_eq!((&first[0]["action"], &first[0]["timestamp"]), (&json!("task_created"), &json!(T)));
    assert_eq!(server.get("stats").await.ok()["tasks"]["by_status"]["queued"], 3);
}

async fn runs_the_rest(server: &Server) {
    let worker = server.worker().slots(8).register().await;
    let mut ran: Vec<String> = Vec::new();
    for claimed in worker.claim_within(8, 20).await {
        let id = claimed["task"]["id"].as_str().unwrap().to_owned();
        server.task(&id).succeed("ran").await;
        ran.push(id);
    }
    ran.sort();
    assert_eq!(ran, [LEASED, RUNNING, QUEUED]);
    // The newest result is found among those that were taken over.
    let failed = server.task(FAILED);
    failed.requeue().await.ok();
    assert_eq!(worker.claim_within(1, 20).await[0]["task"]["id"], FAILED);
    failed.succeed("at last").await;
    assert_eq!(server.get(&format!("llm-tasks/{FAILED}/result")).await.ok()["output"], "at last");
    // New tasks of the same context get ids of today.
    let new = server.crew().task().context("ctx").with("depends_on", json!([QUEUED])).create().await;
    assert!((new.now().await["created_at"].as_i64().unwrap() - now_ms()).abs() < 60_000);
}

#[test]
fn rows_that_cannot_be_taken_are_listed_and_left_out_on_request() {
    run(async {
        let (url, file) = (earlier_database().await, place().join("x"));
        let spoil = "UPDATE llm_tasks SET status = 'paused' WHERE prompt = 'prompt 1'; UPDATE llm_tasks SET id = 'x', policy = '{}' WHERE prompt = 'prompt 6'; \
            UPDATE llm_tasks SET agent_slug = '' WHERE prompt = 'prompt 4'; UPDATE audit_logs SET action = 'danced'; INSERT INTO runtime_settings VALUES ('colour', 'red'); \
            UPDATE workers SET capabilities = '{\"max_concurrency\": 99}'; \
            INSERT INTO runtime_artifacts VALUES ('ffffffff-0000-4000-8000-0000000000bb', 'x', NULL, 'NOTE', 1, true, NULL, '[]', '[]', 'alone')";
        direct::execute(&url, spoil).await;
        let plan = Server::on(Database::Sqlite);
        let reasons = [
            format!("llm_tasks {QUEUED}: status is 'paused', which this program does not know"),
            format!("llm_tasks {DONE}: agent_slug is empty"),
            "llm_tasks x: id is not a UUID".into(),
            "leases 11111111-0000-4000-8000-000000000005: task_id is not the id of a task".into(),
            "leases 11111111-0000-4000-8000-000000000003: task_id is the id of a task that can't be taken".into(),
            "llm_results 22222222-0000-4000-8000-000000000003: task_id is the id of a task that can't be taken".into(),
            "audit_logs ffffffff-0000-4000-8000-0000000000aa: action is 'danced'".into(),
            "workers worker-01: capabilities has a max_concurrency that is not a whole number from 1 to 32".into(),
            "runtime_settings colour: key is no setting".into(),
            "runtime_artifacts ffffffff-0000-4000-8000-0000000000bb: id is not the artifact of a result".into(),
            "10 rows can't be taken".into(),
        ];
        let refused: Vec<&str> = reasons.iter().map(String::as_str).chain(["Nothing was written", "--skip-invalid"]).collect();
        does(&plan, &["export", "--from", &url, text(&file)]).refuses(&refused);
        assert!(!file.exists());
        let told = does(&plan, &["export", "--skip-invalid", "--from", &url, text(&file)]).ok();
        for reason in &reasons {
            assert!(told.contains(reason.as_str()), "{reason}: {told}");
        }
        let server = imported(Database::Sqlite, &file).start();
        assert_eq!(server.get("stats").await.ok()["tasks"]["total"], 3);
        server.get(&format!("llm-tasks/{QUEUED}")).await.expect(404);
    });
}

#[test]
fn rows_that_an_import_would_refuse_are_listed() {
    run(async {
        let (url, file) = (earlier_database().await, place().join("x"));
        let copies = ["workers", "leases", "llm_results", "runtime_artifacts", "audit_logs"].map(|table| {
            format!("ALTER TABLE {table} DROP CONSTRAINT {table}_pkey; INSERT INTO {table} SELECT * FROM {table} ORDER BY id LIMIT 1;")
        });
        let other = |table: &str, change: &str, like: &str| {
            format!(
                "ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {table}_pkey; \
                INSERT INTO {table} SELECT (jsonb_populate_record(t, jsonb_build_object({change}))).* FROM {table} t WHERE id = '{like}';"
            )
        };
        let result = "22222222-0000-4000-8000-000000000004";
        let spoil = [
            copies.concat(),
            other("llm_tasks", "'id', '{' || id || '}'", QUEUED),
            // Its own id gets a time in front, and is that of the result after that.
            other("llm_results", "'id', '33333333-0000-4000-8000-000000000004', 'artifact_id', gen_random_uuid()", result),
            "INSERT INTO runtime_artifacts SELECT artifact_id, task_id, NULL, 'x', 1, true, NULL, NULL, NULL, NULL FROM llm_results \
             WHERE id = '33333333-0000-4000-8000-000000000004';"
                .into(),
            other("llm_results", "'id', '33333333-0000-4000-8000-000000000009', 'artifact_id', artifact_id", result),
            "ALTER TABLE runtime_settings DROP CONSTRAINT runtime_settings_pkey; \
             INSERT INTO runtime_settings VALUES ('membridge_server_url', 'http://127.0.0.1:9'), ('admin_key', 'another'); \
             UPDATE llm_tasks SET policy = '{\"budget\": 1e999}' WHERE prompt = 'prompt 6'"
                .into(),
        ];
        direct::execute(&url, &spoil.concat()).await;
        let plan = Server::on(Database::Sqlite);
        let copy = "id is that of another row, too";
        let reasons = [
            format!("workers worker-01: {copy}"),
            format!("llm_tasks {{{QUEUED}}}: {copy}"),
            format!("llm_tasks {DEAD}: policy has a number that is out of range"),
            format!("leases 11111111-0000-4000-8000-000000000001: {copy}"),
            "leases 11111111-0000-4000-8000-000000000005: task_id is the id of a task that can't be taken".into(),
            format!("llm_results 22222222-0000-4000-8000-000000000003: {copy}"),
            format!("llm_results 33333333-0000-4000-8000-000000000004: {copy}"),
            "llm_results 33333333-0000-4000-8000-000000000009: artifact_id is the id of another result's artifact, too".into(),
            format!("runtime_artifacts ffffffff-0000-4000-8000-000000000003: {copy}"),
            format!("audit_logs ffffffff-0000-4000-8000-0000000000aa: {copy}"),
            "runtime_settings membridge_server_url: key is that of another row, too".into(),
            "11 rows can't be taken".into(),
        ];
        let refused: Vec<&str> = reasons.iter().map(String::as_str).collect();
        does(&plan, &["export", "--from", &url, text(&file)]).refuses(&refused);
        does(&plan, &["export", "--skip-invalid", "--from", &url, text(&file)]).ok();
        assert!(fs::read_to_string(&file).unwrap().contains("\n[\"membridge_admin_key\",\"0123456789abcdef\"]\n"));
        for database in KINDS {
            let server = imported(database, &file).start();
            assert_eq!(server.get("stats").await.ok()["tasks"]["total"], 5);
        }
    });
}

#[test]
fn a_text_that_does_not_fit_into_the_file_is_named() {
    run(async {
        let (url, file) = (earlier_database().await, place().join("x"));
        direct::execute(&url, "UPDATE llm_tasks SET prompt = repeat(chr(1), 23000000) WHERE prompt = 'prompt 1'").await;
        let why = format!("llm_tasks {QUEUED}: prompt is too long");
        does(&Server::on(Database::Sqlite), &["export", "--from", &url, text(&file)]).refuses(&[&why, "1 row can't be taken"]);
    });
}

#[test]
fn only_a_database_with_all_tables_is_taken() {
    run(async {
        let (plan, file) = (Server::on(Database::Sqlite), place().join("x"));
        let refuses = |url: &str, words: &[&str]| does(&plan, &["export", "--from", url, text(&file)]).refuses(words);
        let url = earlier_database().await;
        direct::execute(&url, "DROP TABLE audit_logs").await;
        refuses(&url, &["no table audit_logs", "search_path"]);
        let own = Server::on(Database::Postgres).start();
        refuses(&own.database_url(), &["database of bloom-runtime itself", "without --from"]);
        refuses("sqlite:x", &["must be PostgreSQL"]);
        refuses("postgres://nobody:secret@127.0.0.1:1/x", &["no connection to PostgreSQL"]);
        assert!(!file.exists());
    });
}
