//! The views with the tables of the earlier runtime, on PostgreSQL.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::*;

/// Each view with its columns.
const VIEWS: [(&str, &[&str]); 7] = [
    (
        "llm_tasks",
        &[
            "id",
            "context_id",
            "agent_slug",
            "prompt",
            "context_hints",
            "policy",
            "desired_format",
            "status",
            "created_at",
            "updated_at",
            "lease_id",
            "worker_id",
            "attempts",
            "max_attempts",
        ],
    ),
    ("leases", &["id", "task_id", "worker_id", "started_at", "expires_at", "ttl_seconds", "status", "last_heartbeat", "context_id"]),
    (
        "workers",
        &[
            "id",
            "node_id",
            "url",
            "status",
            "capabilities",
            "last_heartbeat",
            "ip_addrs",
            "obs_count",
            "db_sha",
            "registered_at",
            "active_leases",
            "agent_version",
            "os_info",
            "install_method",
        ],
    ),
    ("runtime_artifacts", &["id", "task_id", "job_id", "type", "created_at", "finalized", "url", "entity_refs", "tags", "content"]),
    ("llm_results", &["id", "task_id", "worker_id", "artifact_id", "status", "output", "error_message", "metrics", "completed_at"]),
    ("audit_logs", &["id", "timestamp", "action", "entity_type", "entity_id", "actor", "detail"]),
    ("runtime_settings", &["key", "value"]),
];

async fn rows(conn: &mut PgConnection, view: &str) -> Vec<Value> {
    let sql = AssertSqlSafe(format!("SELECT to_jsonb(v) FROM {view} v"));
    sqlx::query_scalar(sql).fetch_all(conn).await.unwrap()
}

/// Each row of a list has the same fields in the view of this name.
async fn as_the_api(conn: &mut PgConnection, view: &str, list: Value) {
    let columns = VIEWS.iter().find(|(name, _)| *name == view).unwrap().1;
    let found = rows(conn, view).await;
    let list = list.as_array().unwrap();
    assert!(!list.is_empty(), "{view}");
    assert_eq!(found.len(), list.len(), "{view}");
    for told in list {
        let row = found.iter().find(|row| row["id"] == told["id"]).unwrap_or_else(|| panic!("{view}: {told}"));
        let names: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = columns.to_vec();
        expected.sort_unstable();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{view}");
        for name in names {
            let (is, should) = (&row[name], &told[name]);
            let is_same = is == should || (is.is_number() && is.as_f64() == should.as_f64());
            let is_policy = name == "policy" && is["timeout_sec"] == should["timeout_sec"];
            // Sightings are written later than they are shown.
            assert!(is_same || is_policy || (view, name) == ("workers", "last_heartbeat"), "{view} {name}: {is}, but {should}");
        }
    }
}

#[test]
fn they_show_what_the_api_shows_and_refuse_writes() {
    run(async {
        let server = Server::on(Database::Postgres).start();
        work(&server).await;
        let mut conn = PgConnection::connect(&server.database_url()).await.unwrap();
        sqlx::query("SET search_path = documented").execute(&mut conn).await.unwrap();
        for (view, list) in [("llm_tasks", "llm-tasks"), ("leases", "leases"), ("workers", "workers"), ("audit_logs", "audit?limit=1000")] {
            as_the_api(&mut conn, view, server.get(list).await.ok()).await;
        }
        as_the_api(&mut conn, "runtime_artifacts", server.get("artifacts").await.ok()).await;
        let results = rows(&mut conn, "llm_results").await;
        assert_eq!(results.len(), 2);
        for result in &results {
            let task = result["task_id"].as_str().unwrap();
            as_one(result, &server.get(&format!("llm-tasks/{task}/result")).await.ok());
        }
        let settings = rows(&mut conn, "runtime_settings").await;
        assert!(settings.contains(&json!({ "key": "membridge_server_url", "value": "http://127.0.0.1:9" })), "{settings:?}");
        for (view, columns) in VIEWS {
            let first = columns[0];
            for write in [
                format!("DELETE FROM {view}"),
                format!("UPDATE {view} SET {first} = 'x'"),
                format!("INSERT INTO {view} ({first}) VALUES ('x')"),
            ] {
                let refused = sqlx::query(AssertSqlSafe(write)).execute(&mut conn).await.unwrap_err().to_string();
                assert!(refused.contains(&format!("documented.{view} can only be read; change it over the HTTP API")), "{refused}");
            }
        }
        assert_eq!(rows(&mut conn, "llm_results").await, results);
    });
}

fn as_one(row: &Value, told: &Value) {
    for (name, value) in row.as_object().unwrap() {
        assert_eq!(*value, told[name], "{name}");
    }
}

#[test]
fn without_the_right_to_create_a_schema_an_administrator_makes_them() {
    run(async {
        let server = Server::on(Database::Postgres);
        let url = server.database_url();
        let user = unique("limited").replace('-', "_");
        let grant = format!("CREATE USER {user}; GRANT CREATE, USAGE ON SCHEMA public TO {user}");
        direct::execute(&url, &grant).await;
        let limited = url.replacen("bloom@", &format!("{user}@"), 1);
        let limited = Server::on_url(&limited).start();
        let mut conn = PgConnection::connect(&limited.database_url()).await.unwrap();
        let missing = sqlx::query("SELECT 1 FROM documented.llm_tasks").execute(&mut conn).await.unwrap_err().to_string();
        assert!(missing.contains("does not exist"), "{missing}");
        direct::execute(&url, &format!("CREATE SCHEMA documented AUTHORIZATION {user}")).await;
        sqlx::query("SELECT create_documented_views()").execute(&mut conn).await.unwrap();
        let task = limited.crew().task().create().await.id;
        assert_eq!(rows(&mut conn, "documented.llm_tasks").await[0]["id"], task);
    });
}
