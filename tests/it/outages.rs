//! PostgreSQL takes no writes for a while: the server says why, everywhere, and once.

use std::path::Path;
use std::process::Command;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::support::*;

async fn unready(server: &Server, why: &[&str]) -> String {
    eventually(&format!("the server says {why:?}"), || async {
        let answer = server.get("/readyz").await;
        (answer.status == 503).then(|| answer.error(503)).filter(|said| why.iter().all(|word| said.contains(word)))
    })
    .await
}

async fn ready(server: &Server) {
    eventually("the server is ready", || async { (server.get("/readyz").await.status == 200).then_some(()) }).await;
}

async fn metric(server: &Server, line: &str) {
    eventually(line, || async { server.get("/metrics").await.text.lines().any(|known| known == line).then_some(()) }).await;
}

/// The lines of the log that say that the database takes no writes.
fn begun(server: &Server) -> usize {
    server.log().matches("the database can't be written to").count()
}

#[test]
fn the_reason_of_a_lost_connection_is_told() {
    let (admin, role) = (postgres::database(), unique("app").replace('-', "_"));
    let name = admin.rsplit_once('/').expect("a database").1.to_owned();
    postgres::execute(&admin, &format!("CREATE ROLE {role} LOGIN"));
    postgres::execute(&admin, &format!("ALTER DATABASE {name} OWNER TO {role}"));
    let server = Server::on_url(&admin.replacen("bloom@", &format!("{role}@"), 1)).start();
    run(async {
        metric(&server, "bloom_database_up 1").await;
        for (number, (change, back, reason, code)) in [
            ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1", "connections", "53300"),
            ("NOLOGIN", "LOGIN", "authentication", "28000"),
            ("SET default_transaction_read_only = on", "RESET default_transaction_read_only", "read_only", "25006"),
        ]
        .into_iter()
        .enumerate()
        {
            postgres::execute(&admin, &format!("ALTER ROLE {role} {change}"));
            postgres::cut_off_clients(&admin);
            unready(&server, &[reason, code]).await;
            metric(&server, "bloom_database_up 0").await;
            metric(&server, &format!("bloom_database_outage{{reason=\"{reason}\"}} 1")).await;
            let said = server.crew().task().answer().await.error(503);
            assert!(said.contains(reason) && !said.contains(&role) && !said.contains("127.0.0.1"), "{said}");
            let log = server.log();
            let failed = log.lines().filter(|line| line.contains("request failed")).collect::<Vec<_>>();
            assert!(failed.iter().any(|line| line.contains(reason)) && failed.iter().all(|line| line.contains("cause")), "{failed:?}");
            postgres::execute(&admin, &format!("ALTER ROLE {role} {back}"));
            if reason == "read_only" {
                postgres::cut_off_clients(&admin);
            }
            ready(&server).await;
            metric(&server, &format!("bloom_database_outage{{reason=\"{reason}\"}} 0")).await;
            assert!(begun(&server) <= 3 * (number + 1), "one line for each reason: {}", server.log());
        }
        server.crew().task().create().await;
        let log = server.log();
        assert!(log.contains("the database can be written to again"), "{log}");
        let of_driver = ["error returned from after_connect", "while testing the connection"];
        assert!(!of_driver.iter().any(|text| log.contains(text)), "{log}");
    });
}

#[test]
fn a_missing_right_is_an_outage_until_it_is_back() {
    let (admin, role) = (postgres::database(), unique("app").replace('-', "_"));
    postgres::execute(&admin, &format!("CREATE ROLE {role} LOGIN"));
    assert!(Server::on_url(&admin).command(&["migrate", "up"]).status().expect("it runs").success());
    postgres::execute(&admin, &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"));
    let url = admin.replacen("bloom@", &format!("{role}@"), 1);
    let server = Server::on_url(&url).start();
    run(async {
        ready(&server).await;
        postgres::execute(&admin, &format!("REVOKE INSERT, UPDATE ON tasks FROM {role}"));
        let crew = server.crew();
        let said = crew.task().answer().await.error(503);
        assert!(said.contains("authentication") && !said.contains(&role), "{said}");
        unready(&server, &["authentication"]).await;
        metric(&server, "bloom_database_outage{reason=\"authentication\"} 1").await;
        let missing = format!("GRANT INSERT, UPDATE ON tasks TO {role}");
        let doctor = Server::on_url(&url).command(&["doctor"]).output().expect("it runs");
        assert!(String::from_utf8_lossy(&doctor.stdout).contains(&missing), "{doctor:?}");
        // DELETE alone is enough for the lock.
        for _ in 0..20 {
            server.get("/readyz").await.expect(503);
        }
        postgres::execute(&admin, &missing);
        ready(&server).await;
        crew.task().create().await;
    });
}

#[test]
fn who_keeps_a_table_locked_is_told() {
    for table in ["task_state", "task_labels"] {
        a_locked_table_is_told(table);
    }
}

fn a_locked_table_is_told(table: &str) {
    let url = postgres::database();
    let server = Server::on_url(&url).start();
    run(async {
        ready(&server).await;
        let mut locker = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql("SET application_name = 'index-build'; BEGIN").execute(&mut locker).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("LOCK TABLE {table} IN SHARE MODE"))).execute(&mut locker).await.unwrap();
        let crew = server.crew();
        let said = eventually("the call is refused because of the lock", || async {
            let said = crew.task().with("labels", json!({ "a": "b" })).answer().await.error(503);
            said.contains("index-build").then_some(said)
        })
        .await;
        assert!(said.contains(table) && said.contains("LOCK TABLE") && said.contains("process "), "{said}");
        unready(&server, &["index-build", "lock"]).await;
        metric(&server, "bloom_database_outage{reason=\"lock\"} 1").await;
        metric(&server, "bloom_database_up 0").await;
        let doctor = Server::on_url(&url).command(&["doctor"]).output().expect("it runs");
        assert!(String::from_utf8_lossy(&doctor.stdout).contains("index-build"), "{doctor:?}");
        let log = server.log();
        assert!(log.contains("index-build"), "{log}");
        // Also the first one, before the outage was known.
        let mut refused = log.lines().filter(|line| line.contains("/llm-tasks") && line.contains("status=503")).peekable();
        assert!(refused.peek().is_some() && refused.all(|line| line.contains("cause=")), "{log}");
        drop(locker);
        ready(&server).await;
        crew.task().create().await;
    });
}

/// A small disk, until this is dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// PostgreSQL has to see it, too, so it is no mount of the test alone.
    fn mount() -> Self {
        let dir = janitor::new_path("small-disk");
        std::fs::create_dir(&dir).expect("a directory");
        let user = Command::new("id").args(["-u", "postgres"]).output().expect("id");
        let user = String::from_utf8_lossy(&user.stdout).trim().to_owned();
        let options = format!("size=24m,uid={user},mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&dir).status().expect("mount");
        assert!(mounted.success(), "a small disk can't be mounted: run this test as root");
        Self(dir)
    }
}

/// Writes this file until its disk is full.
fn fill(filler: &Path) {
    std::fs::write(filler, []).unwrap();
    let _ = Command::new("dd").args(["if=/dev/zero", "bs=64k", "status=none"]).arg(format!("of={}", filler.display())).status();
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_server_whose_database_has_a_full_disk_is_not_ready_until_there_is_room() {
    let disk = SmallDisk::mount();
    let cluster = postgres::Cluster::start();
    let url = cluster.database();
    let name = url.rsplit_once('/').expect("a database").1.to_owned();
    postgres::execute(&url, &format!("CREATE TABLESPACE small LOCATION '{}'", disk.0.display()));
    postgres::execute(&url.replace(&name, "postgres"), &format!("ALTER DATABASE {name} SET TABLESPACE small"));
    let server = Server::on_url(&url).start();
    let filler = disk.0.join("filler");
    run(async {
        ready(&server).await;
        fill(&filler);
        let crew = server.crew();
        let large = "x".repeat(200_000);
        eventually("a task finds no room", || async {
            (crew.task().with("input", json!({ "prompt": large })).answer().await.status == 503).then_some(())
        })
        .await;
        unready(&server, &["disk", "disk_full"]).await;
        // Service marks go on to succeed meanwhile, because they need no room.
        for _ in 0..20 {
            server.get("/readyz").await.expect(503);
            assert!(server.get("/metrics").await.text.contains("bloom_database_up 0\n"));
        }
        std::fs::remove_file(&filler).unwrap();
        ready(&server).await;
        metric(&server, "bloom_database_up 1").await;
        crew.task().with("input", json!({ "prompt": large })).create().await;
        // A server that starts then says so as well, before anybody has written.
        server.stop();
        fill(&filler);
        let again = server.plan().clone().start_unready();
        for _ in 0..20 {
            again.get("/readyz").await.expect(503);
        }
        unready(&again, &["disk", "disk_full"]).await;
        std::fs::remove_file(&filler).unwrap();
        ready(&again).await;
    });
    drop((server, cluster, disk));
}
