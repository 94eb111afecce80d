//! PostgreSQL: servers that start, or that were paused, and a file that is replaced, while an import runs.

use std::process::{Child, Command, Output, Stdio};

use sqlx::{AssertSqlSafe, Connection, Executor as _, PgConnection};

use super::*;

/// Takes locks in a transaction that stays open until the connection is closed.
async fn hold(url: &str, locks: &[&'static str]) -> PgConnection {
    let mut holder = PgConnection::connect(url).await.unwrap();
    holder.execute(sqlx::raw_sql("BEGIN")).await.unwrap();
    for sql in locks {
        holder.execute(*sql).await.unwrap();
    }
    holder
}

/// Waits until another connection waits for a lock of this table.
async fn is_awaited(url: &str, table: &str) {
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("somebody waits for the table", || async {
        let mut looker = PgConnection::connect(url).await.unwrap();
        let waiting: i64 = sqlx::query_scalar(waiting).bind(table).fetch_one(&mut looker).await.unwrap();
        (waiting > 0).then_some(())
    })
    .await;
}

fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    janitor::spawn(command).unwrap()
}

fn told(child: Child) -> crate::backup::Said {
    let output: Output = child.wait_with_output().unwrap();
    crate::backup::said(output)
}

async fn count(url: &str, table: &str) -> i64 {
    let mut looker = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {table}"))).fetch_one(&mut looker).await.unwrap()
}

/// A server with a task on PostgreSQL, and an export of another one.
async fn server_and_file() -> (Server, PathBuf) {
    let other = Server::on(Database::Sqlite).start();
    other.crew().task().create().await;
    let file = exported(other.plan());
    let server = Server::on(Database::Postgres).start();
    server.crew().task().create().await;
    (server, file)
}

#[test]
fn a_server_that_starts_before_the_import_begins_is_noticed_and_nothing_is_changed() {
    run(async {
        let (other, file) = server_and_file().await;
        other.stop();
        // The import has seen that no server runs, and looks for data in this table, which servers do not read when they start.
        let results = "LOCK TABLE results IN ACCESS EXCLUSIVE MODE";
        // The server can't write its mark.
        let mark = "SELECT 1 FROM served FOR UPDATE";
        for locks in [&[results][..], &[results, mark]] {
            let plan = Server::on(Database::Postgres);
            does(&plan, &["migrate", "up"]).ok();
            let url = plan.database_url();
            let holder = hold(&url, locks).await;
            let import = spawn(plan.command(&["import", text(&file)]));
            is_awaited(&url, "results").await;
            let server = plan.start_unready();
            server.get("/readyz").await.expect(503);
            holder.close().await.unwrap();
            told(import).refuses(&["a server uses this database"]);
            assert_eq!(count(&url, "imports").await, 0, "nothing was begun");
            server.wait_until_ready();
            let task = server.crew().task().create().await.id;
            server.stop();
            server.start_again();
            server.get(&format!("llm-tasks/{task}")).await.ok();
        }
    });
}

const STOPS: &str = "An import into this database has begun since this server started";

#[test]
fn a_server_that_was_paused_during_an_import_stops_at_its_next_mark() {
    run(async {
        let (server, file) = server_and_file().await;
        server.pause();
        does(server.plan(), &["import", "--replace", text(&file)]).ok();
        server.resume();
        let status = server.wait_for_end();
        assert!(!status.success() && server.log().contains(STOPS), "{status}: {}", server.log());
        assert_same(&file, &exported(server.plan()));
        server.start_again();
        assert_eq!(server.get("stats").await.ok()["tasks"]["total"], 1);
        // The same file once more is another import.
        server.pause();
        does(server.plan(), &["import", "--replace", text(&file)]).ok();
        server.resume();
        assert!(!server.wait_for_end().success());
    });
}

#[test]
fn a_server_that_was_paused_during_an_import_stores_nothing_even_before_its_next_mark() {
    run(async {
        let (server, file) = server_and_file().await;
        server.pause();
        does(server.plan(), &["import", "--replace", text(&file)]).ok();
        // The mark can't be written.
        let holder = hold(&server.database_url(), &["SELECT 1 FROM served FOR UPDATE"]).await;
        server.resume();
        // It may have stopped before it has answered.
        let task = json!({ "context_id": "c", "agent_slug": "nobody", "prompt": "p" });
        let answer = server.try_post("llm-tasks", task).await;
        let is_refused = match &answer {
            Ok(answer) => answer.status == 503,
            Err(error) => !error.is_timeout(),
        };
        assert!(is_refused, "{answer:?}");
        holder.close().await.unwrap();
        let status = server.wait_for_end();
        assert!(!status.success() && server.log().contains(STOPS), "{status}: {}", server.log());
        assert_same(&file, &exported(server.plan()));
    });
}

#[test]
fn what_was_checked_is_what_is_imported() {
    run(async {
        let (server, file) = server_and_file().await;
        server.stop();
        let (other, kept) = (exported(server.plan()), place().join("kept"));
        fs::copy(&file, &kept).unwrap();
        let plan = Server::on(Database::Postgres);
        does(&plan, &["migrate", "up"]).ok();
        let holder = hold(&plan.database_url(), &["LOCK TABLE results IN ACCESS EXCLUSIVE MODE"]).await;
        let import = spawn(plan.command(&["import", text(&file)]));
        is_awaited(&plan.database_url(), "results").await;
        fs::rename(&other, &file).unwrap();
        holder.close().await.unwrap();
        told(import).ok();
        assert_same(&kept, &exported(&plan));
    });
}
