//! Checks that the pages of a namespace are read by an index, however many tasks of other namespaces are in front.

use bloom_test_support::{janitor, postgres, waiting::run};
use sqlx::{Connection as _, PgConnection, SqliteConnection};

use super::args::Args;
use super::dialect::{Kind, Sql};
use super::queue::{READY_OF_AGENT_IN_NAMESPACE, READY_OF_NAMESPACE};
use super::{Store, StoreOptions, all};
use bloom_core::cache::Scope;
use bloom_core::ids::TaskId;

const CROWD: i64 = 10_000;

/// Readers of a store can't write to SQLite.
async fn execute(store: &Store, url: &str, sql: impl Fn(Kind) -> String) {
    let text = sqlx::AssertSqlSafe(sql(store.kind()));
    match store.kind() {
        Kind::Sqlite => drop(sqlx::raw_sql(text).execute(&mut SqliteConnection::connect(url).await.unwrap()).await.unwrap()),
        Kind::Postgres => drop(sqlx::raw_sql(text).execute(&mut PgConnection::connect(url).await.unwrap()).await.unwrap()),
    }
}

/// Inserts ready tasks of the namespace `crowd`, and one of `team` behind them.
async fn fill(store: &Store, url: &str) {
    let (columns, values) = (
        "id, context_id, agent_slug, rank, max_attempts, timeout_sec, has_dependencies, status, updated_at, attempts, infra_retries, \
        lease_count, cancel_requested, has_dependents, event_count, event_seq, session, namespace",
        "'c', 'coder', 4, 3, 120, false, 'queued', 1, 0, 0, 0, false, false, 0, -1, 'none'",
    );
    let insert = |from: i64, to: i64, namespace: &'static str| {
        move |kind| {
            let id = match kind {
                Kind::Sqlite => "randomblob(16)",
                Kind::Postgres => "gen_random_uuid()",
            };
            format!(
                "WITH RECURSIVE n (i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) \
                INSERT INTO task_state ({columns}) SELECT {id}, {values}, '{namespace}' FROM n"
            )
        }
    };
    execute(store, url, insert(1, CROWD, "crowd")).await;
    execute(store, url, insert(1, 1, "team")).await;
    execute(store, url, |_| "UPDATE task_state SET rank = 9 WHERE namespace = 'team'".to_owned()).await;
    execute(store, url, |kind| if kind == Kind::Postgres { "ANALYZE task_state" } else { "SELECT 1" }.to_owned()).await;
}

/// How PostgreSQL finds the rows, as one text.
async fn plan(store: &Store, statement: &Sql, args: Args<'_>) -> String {
    let sql = Sql::new(|kind| format!("EXPLAIN {}", statement.text(kind).as_str()));
    let lines: Vec<String> = all(&store.pool().fetch(&sql, args).await.unwrap(), |row| row.take()).unwrap();
    lines.join("\n")
}

async fn check(url: String) {
    let store = Store::open(&StoreOptions { url: url.clone(), max_connections: 2 }).await.unwrap();
    store.migrate().await.unwrap();
    fill(&store, &url).await;
    let scopes = [None, Some("coder")].map(|agent| Scope::of(Some("team"), agent));
    for scope in &scopes {
        assert_eq!(store.ready_page(scope, None, 9).await.unwrap().len(), 1);
    }
    // For SQLite, the statements name their index, and could not be prepared if it did not fit.
    if store.kind() == Kind::Postgres {
        let args = || Args::new().int(-1).uuid(TaskId::nil()).int(100).text("team");
        let of_namespace = plan(&store, &READY_OF_NAMESPACE, args()).await;
        assert!(of_namespace.contains("task_state_ready_of_namespace"), "{of_namespace}");
        let of_agent = plan(&store, &READY_OF_AGENT_IN_NAMESPACE, args().text("coder")).await;
        assert!(of_agent.contains("task_state_ready_of_agent_in_namespace"), "{of_agent}");
        for plan in [of_namespace, of_agent] {
            assert!(plan.contains("Index Cond") && !plan.contains("Sort"), "{plan}");
        }
    }
    store.close().await;
}

#[test]
fn on_sqlite() {
    run(check(format!("sqlite:{}", janitor::new_path("plans").join("bloom.db").display())));
}

#[test]
fn on_postgresql() {
    run(check(postgres::database()));
}
