//! An import that ends in the middle goes on when it is repeated, and no server starts before.

use std::process::Stdio;

use sqlx::{Connection, PgConnection};

use super::*;

async fn file_of_many_tasks() -> (Server, PathBuf) {
    let server = Server::on(Database::Sqlite).start();
    let crew = server.crew();
    let tasks: Vec<Value> = (0..1000).map(|_| crew.task().json()).collect();
    server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.expect(201);
    server.stop();
    let file = exported(server.plan());
    (server, file)
}

#[track_caller]
fn finishes(plan: &Plan, file: &Path) {
    let refused = plan.clone().start_in_vain();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("was interrupted: repeat `bloom-runtime import` with the same file"), "{said}");
    let other = place().join("other");
    fs::copy(file, &other).unwrap();
    does(plan, &["import", text(&other)]).ok();
    assert_same(file, &exported(plan));
}

#[test]
fn killed_on_postgresql() {
    run(async {
        let (_server, file) = file_of_many_tasks().await;
        let plan = Server::on(Database::Postgres);
        does(&plan, &["migrate", "up"]).ok();
        let url = plan.database_url();
        // The import waits in the middle, before its rows of `task_state`.
        let halt = "CREATE FUNCTION halt() RETURNS boolean LANGUAGE plpgsql AS \
            'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN true; END'; \
            ALTER TABLE task_state ADD CONSTRAINT halt CHECK (halt())";
        direct::execute(&url, halt).await;
        let mut holder = PgConnection::connect(&url).await.unwrap();
        sqlx::query("SELECT pg_advisory_lock(1)").execute(&mut holder).await.unwrap();
        let mut command = plan.command(&["import", text(&file)]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut import = janitor::spawn(command).unwrap();
        let mut looker = PgConnection::connect(&url).await.unwrap();
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 1 \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        loop {
            let waiting: i64 = sqlx::query_scalar(waits).fetch_one(&mut looker).await.unwrap();
            if waiting > 0 {
                break;
            }
            assert!(import.try_wait().unwrap().is_none(), "the import must wait");
            tokio::task::yield_now().await;
        }
        let done: i64 = sqlx::query_scalar("SELECT done FROM imports").fetch_one(&mut looker).await.unwrap();
        assert!(done > 1000, "{done}");
        does(&plan, &["import", text(&file)]).refuses(&["another import into this database runs"]);
        import.kill().unwrap();
        import.wait().unwrap();
        sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 1")
            .execute(&mut looker)
            .await
            .unwrap();
        holder.close().await.unwrap();
        direct::execute(&url, "ALTER TABLE task_state DROP CONSTRAINT halt").await;
        finishes(&plan, &file);
    });
}

#[test]
fn failed_on_sqlite() {
    run(async {
        let (_server, file) = file_of_many_tasks().await;
        let plan = Server::on(Database::Sqlite);
        does(&plan, &["migrate", "up"]).ok();
        let url = plan.database_url();
        direct::execute(&url, "ALTER TABLE task_state ADD COLUMN halted BIGINT DEFAULT 1 CHECK (halted = 0)").await;
        does(&plan, &["import", text(&file)]).refuses(&["of table task_state", "can't be stored", "halted"]);
        let empty = Server::on(Database::Sqlite);
        does(&empty, &["migrate", "up"]).ok();
        let another = exported(&empty);
        does(&plan, &["import", text(&another)]).refuses(&["of another file", "was interrupted", "--replace"]);
        direct::execute(&url, "ALTER TABLE task_state DROP COLUMN halted").await;
        finishes(&plan, &file);
    });
}
