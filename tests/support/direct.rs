//! Direct access without the HTTP API: SQL, and operations for the engine or the store.

use bloom_core::command::{Completion, Op};
use bloom_core::ids::TaskId;
use bloom_core::task::Outcome;
use bloom_core::usage::Usage;
use bloom_test_world::world::completion;

/// Executes SQL, for changes that the program itself never makes.
pub async fn execute(url: &str, sql: &str) {
    use sqlx::{AssertSqlSafe, Connection, Executor};
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite") {
        sqlx::SqliteConnection::connect(url).await.unwrap().execute(sql).await.unwrap();
    } else {
        sqlx::PgConnection::connect(url).await.unwrap().execute(sql).await.unwrap();
    }
}

/// A completion as a worker sends it.
pub fn success(task: TaskId, output: &str) -> Op {
    Op::Complete(Box::new(Completion {
        output: Some(output.into()),
        duration_ms: 12,
        artifact_tags: vec!["t".into()],
        warnings: vec!["w".into()],
        object: None,
        usage: Some(Usage { input_tokens: 10, output_tokens: 5, cost_usd: 0.25, cost_estimated: true }),
        session_id: Some("sess".into()),
        branch: Some("bloom/c".into()),
        commit: Some("c0ffee".into()),
        model: Some("m".into()),
        ..completion(task, None, Outcome::Success)
    }))
}
