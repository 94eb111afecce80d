//! Faults under load. Afterwards, the database is checked independently against its rules and against what clients were told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use crate::on_both;
use crate::replicas::{apis, leader, replicas};
use crate::support::load::Load;
use crate::support::*;

/// Ends the load, waits until the counts are compacted, and compares the tables with what clients were told.
pub async fn examine(server: &Server, load: Load) {
    let told = load.end().await;
    assert!(told.completed.len() > 20, "the load completed too few tasks: {}", told.completed.len());
    let tables = checker::read(&server.database_url()).await;
    tables.are_sound();
    tables.keep_what_was_told(&told);
    // The leader compacts the counts once a second, so the check repeats until they equal the tables.
    eventually("the counts equal the tables", || async {
        let (tables, stats) = (checker::read(&server.database_url()).await, server.get("stats").await.ok());
        let counted = |status: &str| stats["tasks"]["by_status"][status].as_i64().unwrap_or(0);
        let agree = ["queued", "leased", "running", "completed", "failed", "dead", "cancelled"]
            .iter()
            .all(|status| counted(status) == tables.count(status));
        let active = tables.count("leased") + tables.count("running");
        (agree && stats["leases"]["active"] == json!(active)).then_some(())
    })
    .await;
}

on_both! { alone:
    async fn a_killed_server_carries_on_where_it_was(database) {
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 2).start();
        let load = Load::start(&[(*server).clone()]);
        for _ in 0..4 {
            load.goes_on(40).await;
            server.kill9();
            server.start_again();
        }
        load.goes_on(40).await;
        examine(&server, load).await;
    }

    async fn timers_go_on_after_a_kill(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let expiring = crew.task().create().await;
        let lease = expiring.lease_for(&worker, 1).await;
        let waiting = crew.task().with("not_before", json!(now_ms() + 800)).create().await;
        let first = crew.task().create().await;
        let last = crew.task().with("depends_on", json!([first.id])).create().await;
        server.kill9();
        server.start_again();
        expiring.reaches("queued").await;
        lease.reaches("expired").await;
        let mut claimed = Vec::new();
        while claimed.len() < 3 {
            claimed.extend(worker.claim_within(4, 10).await.iter().map(|entry| entry["task"]["id"].as_str().unwrap().to_owned()));
        }
        for task in [&expiring, &waiting, &first] {
            assert!(claimed.contains(&task.id));
        }
        first.succeed("x").await;
        assert_eq!(worker.claim_within(4, 10).await[0]["task"]["id"], json!(last.id));
    }

    async fn after_a_total_outage_leases_get_a_grace(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let worker = crew.worker().slots(4).register().await;
        let short = crew.task().create().await.lease_for(&worker, 2).await;
        let long = crew.task().create().await.lease_for(&worker, 30).await;
        eventually("half a second passes", || async { (now_ms() > short.json["started_at"].as_i64().unwrap() + 500).then_some(()) }).await;
        server.kill9();
        // The whole TTL passes without any server.
        eventually("time passes", || async { (now_ms() > short.json["expires_at"].as_i64().unwrap() + 200).then_some(()) }).await;
        server.start_again();
        let ready = now_ms();
        let answer = short.heartbeat().await.ok();
        assert!(answer["expires_at"].as_i64().unwrap() > ready, "the lease could be renewed");
        assert_eq!(long.now().await["status"], "active");
    }
}

#[test]
fn postgresql_restarting_under_load_loses_nothing() {
    let cluster = postgres::Cluster::start();
    let server = Server::on_url(&cluster.database()).env("LEASE_TTL_SECONDS", 5).start();
    run(async {
        let load = Load::start(&[(*server).clone()]);
        for round in 0..3 {
            load.goes_on(40).await;
            if round == 1 {
                cluster.crash()
            } else {
                cluster.stop()
            }
            cluster.resume();
        }
        load.goes_on(40).await;
        examine(&server, load).await;
    });
}

#[test]
fn a_killed_leader_is_replaced_at_once() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let first = eventually("one replica leads", || leader(&servers)).await;
        let other = &servers[1 - first];
        let crew = other.crew();
        let worker = crew.worker().slots(2).register().await;
        let task = crew.task().create().await;
        let lease = task.lease_for(&worker, 1).await;
        let killed = Instant::now();
        servers[first].kill9();
        eventually("the other replica leads", || async { (leader(&servers[1 - first..2 - first]).await == Some(0)).then_some(()) }).await;
        assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
        let back = task.reaches("queued").await;
        let late = back["updated_at"].as_i64().unwrap() - lease.json["expires_at"].as_i64().unwrap();
        assert!((0..1900).contains(&late), "expired {late} ms late");
    });
}

#[test]
fn a_frozen_leader_does_no_harm() {
    let url = postgres::database();
    let servers = replicas(&url, 3);
    run(async {
        let first = eventually("one replica leads", || leader(&servers)).await;
        let rest = servers.iter().enumerate().filter(|(i, _)| *i != first).map(|(_, server)| Arc::clone(server)).collect::<Vec<_>>();
        let load = Load::start(&apis(&servers));
        load.goes_on(60).await;
        let crew = rest[0].crew();
        let worker = crew.worker().slots(4).register().await;
        let task = crew.task().create().await;
        task.lease_for(&worker, 1).await;
        servers[first].pause();
        let frozen = Instant::now();
        eventually("another replica leads", || async { leader(&rest).await }).await;
        assert!(frozen.elapsed() < Duration::from_secs(4), "{:?}", frozen.elapsed());
        task.reaches("queued").await;
        load.goes_on(60).await;
        servers[first].resume();
        load.goes_on(60).await;
        eventually("exactly one replica leads", || async {
            let mut leading = 0;
            for server in &servers {
                leading += usize::from(leader(std::slice::from_ref(server)).await.is_some());
            }
            (leading == 1).then_some(())
        })
        .await;
        examine(&servers[first], load).await;
    });
}

#[test]
fn replicas_killed_in_turn_lose_nothing() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let load = Load::start(&apis(&servers));
        for round in 0..4 {
            load.goes_on(40).await;
            servers[round % 2].kill9();
            load.goes_on(40).await;
            servers[round % 2].start_again();
        }
        load.goes_on(40).await;
        examine(&servers[0], load).await;
    });
}

#[test]
fn connections_cut_off_under_load_lose_nothing() {
    let url = postgres::database();
    let server = Server::on_url(&url).env("LEASE_TTL_SECONDS", 5).start();
    run(async {
        let load = Load::start(&[(*server).clone()]);
        for _ in 0..10 {
            load.goes_on(20).await;
            postgres::cut_off_clients(&url);
        }
        load.goes_on(40).await;
        examine(&server, load).await;
    });
}

#[test]
fn a_leader_that_is_cut_off_does_no_harm() {
    let url = postgres::database();
    run(async {
        let line = proxy::Proxy::start(&url).await;
        let far = Arc::new(Server::on_url(&line.url).env("LEASE_TTL_SECONDS", 5).start());
        eventually("the first replica leads", || async { leader(std::slice::from_ref(&far)).await }).await;
        let near = Arc::new(Server::on_url(&url).env("LEASE_TTL_SECONDS", 5).start());
        let load = Load::start(&apis(&[Arc::clone(&far), Arc::clone(&near)]));
        for _ in 0..2 {
            load.goes_on(40).await;
            line.hold();
            eventually("the other replica leads", || async { leader(std::slice::from_ref(&near)).await }).await;
            // The other replica can work: the rows that the old leader had locked are free again.
            let crew = near.crew();
            let worker = crew.worker().register().await;
            crew.task().create().await.lease_to(&worker).await;
            load.goes_on(20).await;
            line.release();
            eventually("the old leader is ready again", || async { (far.get("/readyz").await.status == 200).then_some(()) }).await;
        }
        load.goes_on(40).await;
        examine(&near, load).await;
    });
}

#[test]
fn a_newer_program_may_widen_the_schema_under_load() {
    let url = postgres::database();
    let servers = replicas(&url, 2);
    run(async {
        let load = Load::start(&apis(&servers));
        load.goes_on(40).await;
        // The migration of a newer program: a column, an index, and its row in the table of migrations.
        let migration = "BEGIN; ALTER TABLE tasks ADD COLUMN of_a_newer_program TEXT; \
            ALTER TABLE task_state ADD COLUMN of_a_newer_program BIGINT NOT NULL DEFAULT 7; \
            ALTER TABLE workers ADD COLUMN of_a_newer_program TEXT; \
            CREATE INDEX of_a_newer_program ON task_state (of_a_newer_program) WHERE status = 'queued'; \
            INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                VALUES (9000, 'wider', true, ''::bytea, 0); COMMIT";
        // It locks several tables while others use them, so PostgreSQL may end it as a deadlock. Then it is repeated, as after a restart.
        eventually("the migration", || async {
            let mut newer = PgConnection::connect(&url).await.unwrap();
            sqlx::raw_sql(migration).execute(&mut newer).await.ok()
        })
        .await;
        load.goes_on(40).await;
        for server in &servers {
            assert_eq!(server.get("/readyz").await.status, 200, "the server stays ready");
        }
        // A server of the older program starts on the newer schema.
        servers[1].kill9();
        servers[1].start_again();
        load.goes_on(40).await;
        assert_eq!(servers[1].get("/readyz").await.status, 200);
        examine(&servers[0], load).await;
    });
}

/// Frozen backends of PostgreSQL, which go on when this is dropped.
struct Frozen(Vec<u32>);

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| janitor::signal(*pid, "CONT"));
    }
}

/// As after the failover of a database, or when a firewall has forgotten a connection.
#[test]
fn connections_without_answers_do_not_keep_a_server_from_stopping() {
    let cluster = postgres::Cluster::start();
    let url = cluster.database();
    let server = Server::on_url(&url).start();
    run(async {
        let observer = tokio::sync::Mutex::new(PgConnection::connect(&url).await.unwrap());
        let all = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let pids = eventually("the server's connections", || async {
            let pids: Vec<(i32,)> = sqlx::query_as(all).fetch_all(&mut *observer.lock().await).await.unwrap();
            (pids.len() > 4).then_some(pids)
        });
        let frozen = Frozen(pids.await.into_iter().map(|(pid,)| u32::try_from(pid).unwrap()).collect());
        frozen.0.iter().for_each(|pid| janitor::signal(*pid, "STOP"));
        // Reads are under way then, and have got no answer.
        server.get("llm-tasks").await.error(503);
        assert!(server.stop().success());
    });
}
