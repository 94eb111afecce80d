//! `export` and `import`: everything moves from one database to another, of either kind, and servers go on there.

mod earlier;
mod interrupted;
mod meanwhile;
mod refused;
mod views;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::backup::{does, place, text};
use crate::support::server::Plan;
use crate::support::*;

const KINDS: [Database; 2] = [Database::Sqlite, Database::Postgres];

/// Exports the database of a plan into a new file.
fn exported(plan: &Plan) -> PathBuf {
    let file = place().join("bloom.export");
    let told = does(plan, &["export", text(&file)]).ok();
    assert!(told.contains("exported to") && told.contains(" rows"), "{told}");
    file
}

/// A plan on a new database into which this file was imported.
fn imported(database: Database, file: &Path) -> Plan {
    let plan = Server::on(database);
    let told = does(&plan, &["import", text(file)]).ok();
    assert!(told.contains("imported into") && told.contains("Start the server."), "{told}");
    plan
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (fs::read_to_string(one).unwrap(), fs::read_to_string(other).unwrap());
    for (number, (one, other)) in one.lines().zip(other.lines()).enumerate() {
        assert_eq!(one, other, "line {}", number + 1);
    }
    assert_eq!(one.lines().count(), other.lines().count());
}

/// What a server has after some work: tasks in each state that needs other rows, keys, queues, labels, events, settings.
struct Work {
    finished: String,
    /// Its lease has still long to go.
    leased: String,
    lease: String,
    queued: String,
    dependent: String,
    slug: String,
    worker: String,
}

async fn work(api: &Api) -> Work {
    let crew = api.crew();
    let worker = crew.worker().slots(4).register().await;
    let finished = crew.task().prompt("a \u{1f33c} \"quote\"\\ and\nlines").with("labels", json!({ "größe": "ß" })).create().await;
    let lease = finished.lease_to(&worker).await;
    let event = json!({ "seq": 1, "kind": "text", "at": now_ms(), "data": { "text": "x" } });
    api.post(&finished.path("/events"), json!({ "lease_id": lease.id, "events": [event] })).await.ok();
    let usage = json!({ "usage": { "input_tokens": 3, "output_tokens": 4, "cost_usd": 0.1 }, "output": "done" });
    lease.complete("success", usage).await.ok();
    let failed = crew.task().create().await;
    failed.lease_to(&worker).await;
    failed.fail("no").await;
    let removed = crew.task().create().await;
    removed.cancel().await.ok();
    api.delete(&removed.path("")).await.ok();
    let leased = crew.task().create().await;
    let lease = leased.lease_to(&worker).await;
    let queued = crew.task().with("idempotency_key", json!("once")).create().await;
    let dependent = crew.task().with("depends_on", json!([queued.id])).create().await;
    api.post("queues/other/limit", json!({ "max_concurrency": 3 })).await.ok();
    let config = json!({ "membridge_server_url": "http://127.0.0.1:9", "admin_key": "0123456789abcdef" });
    api.post("config", config).await.ok();
    let (finished, leased, queued, dependent) = (finished.id, leased.id, queued.id, dependent.id);
    Work { finished, leased, lease: lease.id, queued, dependent, slug: crew.slug, worker: worker.name }
}

#[test]
fn from_one_kind_of_database_to_the_other_and_back() {
    run(async {
        for (from, to) in [(Database::Sqlite, Database::Postgres), (Database::Postgres, Database::Sqlite)] {
            let server = Server::on(from).start();
            let work = work(&server).await;
            let stats = server.get("stats").await.ok();
            server.stop();
            let key = "INSERT INTO api_keys (name, digest, scope, created_at, created_by) VALUES ('reader', 'd1', 'read', 1, 'admin')";
            direct::execute(&server.database_url(), key).await;
            let first = exported(server.plan());
            assert!(fs::read_to_string(&first).unwrap().contains("[\"reader\",\"d1\",\"read\","));
            assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o600);
            let there = imported(to, &first);
            let second = exported(&there);
            assert_same(&first, &second);
            let back = imported(from, &second);
            assert_same(&first, &exported(&back));

            for plan in [there, back] {
                let moved = plan.start();
                assert_eq!(moved.get("stats").await.ok(), stats);
                goes_on(&moved, &work).await;
            }
        }
    });
}

/// What was running ends, what waited runs, and new ids follow the old ones.
async fn goes_on(api: &Api, work: &Work) {
    let done = api.get(&format!("llm-tasks/{}/result", work.finished)).await.ok();
    assert_eq!(done["output"], "done");
    let events = api.get(&format!("llm-tasks/{}/events", work.finished)).await.ok();
    assert_eq!(events.as_array().map(Vec::len), Some(1), "{events}");
    let leased = api.task(&work.leased);
    leased.heartbeat(json!({ "lease_id": work.lease })).await.ok();
    leased.complete(json!({ "status": "success", "lease_id": work.lease, "metrics": { "duration_ms": 1 } })).await.ok();
    let again = api.crew().task().with("agent_slug", json!(work.slug)).with("idempotency_key", json!("once"));
    again.answer().await.expect(409);
    let worker = Worker { api, name: work.worker.clone() };
    for id in [&work.queued, &work.dependent] {
        let claimed = worker.claim_within(1, 20).await;
        assert_eq!(claimed[0]["task"]["id"], **id);
        api.task(id).succeed("ran").await;
    }
    let new = api.crew().task().create().await;
    assert!(new.id > work.dependent);
    assert_eq!(api.get("llm-tasks?limit=1").await.ok()[0]["id"], new.id);
}

#[test]
fn an_export_beside_a_server_is_of_one_moment() {
    run(async {
        for database in KINDS {
            let server = Server::on(database).start();
            let crew = server.crew();
            let writes = async {
                for _ in 0..40 {
                    crew.task().create().await;
                }
            };
            let plan = server.plan().clone();
            let (file, ()) = tokio::join!(async { tokio::task::spawn_blocking(move || exported(&plan)).await.unwrap() }, writes);
            let told = fs::read_to_string(&file).unwrap();
            // Each task has a row in two tables and its audit entry in a third.
            let created = told.matches("\"task_created\"").count();
            let moved = imported(database, &file).start();
            assert_eq!(moved.get("stats").await.ok()["tasks"]["total"], created);
            assert_eq!(moved.get("llm-tasks?limit=1000").await.ok().as_array().map(Vec::len), Some(created));
        }
    });
}

#[test]
fn a_second_import_changes_nothing() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        server.crew().task().create().await;
        let file = exported(server.plan());
        for database in KINDS {
            let plan = imported(database, &file);
            let before = exported(&plan);
            let told = does(&plan, &["import", text(&file)]).ok();
            assert!(told.contains("was imported into") && told.contains("nothing was changed"), "{told}");
            let moved = plan.start();
            let later = moved.crew().task().create().await.id;
            moved.stop();
            does(moved.plan(), &["import", text(&file)]).ok();
            assert!(fs::read_to_string(exported(moved.plan())).unwrap().contains(&later.replace('-', "")), "it was changed since");
            does(moved.plan(), &["import", "--replace", text(&file)]).ok();
            assert_same(&before, &exported(moved.plan()));
        }
    });
}

#[test]
fn what_a_migration_adds_is_exported() {
    run(async {
        for database in KINDS {
            let server = Server::on(database).start();
            server.crew().task().create().await;
            server.stop();
            let sql = "CREATE TABLE brand_new (id TEXT PRIMARY KEY, size BIGINT); INSERT INTO brand_new VALUES ('x', 7); \
                ALTER TABLE tasks ADD COLUMN flavour TEXT; UPDATE tasks SET flavour = 'sweet'";
            direct::execute(&server.database_url(), sql).await;
            let told = fs::read_to_string(exported(server.plan())).unwrap();
            assert!(told.contains("\n{\"table\":\"brand_new\",\"columns\":[\"id\",\"size\"]}\n[\"x\",7]\n"), "{told}");
            assert!(told.contains(",\"flavour\"]}") && told.contains(",\"sweet\"]\n"), "{told}");
        }
    });
}
