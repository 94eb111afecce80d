//! PgBouncer between the server and PostgreSQL.

use sqlx::{Connection, PgConnection};

use crate::postgres_refused::refusal;
use crate::support::pgbouncer::PgBouncer;
use crate::support::*;

#[test]
fn in_session_mode_the_server_works_without_further_settings() {
    let url = postgres::database();
    // The database's own setting would lose what was acknowledged.
    postgres::execute(&url, &format!("ALTER DATABASE {} SET synchronous_commit = off", url.rsplit_once('/').expect("a database").1));
    let pooler = PgBouncer::start(&url, "session", "");
    let server = Server::on_url(&pooler.url).start();
    run(async {
        let crew = server.crew();
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        task.lease_to(&worker).await;
        task.succeed("x").await;
        // The time limits for locks hold: the row of the task is locked, and the call does not wait for its end.
        let other = crew.task().create().await;
        let mut locker = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql("BEGIN; LOCK TABLE task_state IN ACCESS EXCLUSIVE MODE").execute(&mut locker).await.unwrap();
        let said = other.cancel().await.error(503);
        assert!(said.contains("locked"), "{said}");
        drop(locker);
        eventually("the lock is released", || async { (other.cancel().await.status == 200).then_some(()) }).await;
    });
    let doctor = Server::on_url(&pooler.url).command(&["doctor"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("all migrations of this program are applied"), "{said}");
}

#[test]
fn what_pgbouncer_refuses_is_told_by_its_reason() {
    let url = postgres::database();
    let pooler = PgBouncer::start(&url, "session", "max_client_conn = 2");
    let (user, place) = pooler.url.rsplit_once('@').expect("a user");
    let (place, _) = place.rsplit_once('/').expect("a database");
    for url in [format!("postgres://nobody@{place}/x"), format!("{user}@{place}/nowhere")] {
        let said = refusal(&url);
        assert!(said.contains("refused the connection") && said.contains("check user, password"), "{url}: {said}");
    }
    let said = refusal(&pooler.url);
    assert!(said.contains("no more connections allowed") && said.contains("the limits of the pooler"), "{said}");
    let pooler = PgBouncer::start(&url, "session", "default_pool_size = 1");
    let said = refusal(&pooler.url);
    assert!(said.contains("default_pool_size"), "{said}");
}

#[test]
fn modes_that_share_sessions_are_refused() {
    for (mode, more) in [("transaction", ""), ("transaction", "server_round_robin = 1"), ("statement", "")] {
        let pooler = PgBouncer::start(&postgres::database(), mode, more);
        let said = refusal(&pooler.url);
        assert!(said.contains("PgBouncer in transaction mode") && said.contains("pool_mode = session"), "{mode}: {said}");
        let doctor = Server::on_url(&pooler.url).command(&["doctor"]).output().expect("it runs");
        assert!(!doctor.status.success());
        assert!(String::from_utf8_lossy(&doctor.stdout).contains("pool_mode = session"), "{mode}: {doctor:?}");
    }
}
