//! Mixed load with slow readers and faults: what is due happens soon, and nothing is forgotten.

use std::sync::Arc;

use crate::replicas::{apis, leader};
use crate::support::checker::Link;
use crate::support::load::Load;
use crate::support::slow::SlowReaders;
use crate::support::*;

const STATUSES: [&str; 7] = ["queued", "leased", "running", "completed", "failed", "dead", "cancelled"];

fn plan(url: Option<&str>) -> server::Plan {
    let plan = url.map_or_else(|| Server::on(Database::Sqlite), Server::on_url);
    plan.env("LEASE_TTL_SECONDS", 2).env("SESSION_WAIT_SECONDS", 1)
}

/// Waits until all work is done, then checks tables, delays, and the counts of every replica.
async fn ends_well(servers: &[Arc<Server>], load: Load) {
    let url = servers[0].database_url();
    load.has_enough_delays(&url).await;
    load.drains(&url).await;
    let told = load.end().await;
    assert!(told.completed.len() >= 50, "the load completed too few tasks: {}", told.completed.len());
    let tables = checker::read(&url).await;
    tables.are_sound();
    tables.keep_what_was_told(&told);
    delays::read(&url, &told).await.are_short();
    eventually("no wake-up is left", || async { (Link::open(&url).await.count("wakeups").await == 0).then_some(()) }).await;
    let mut link = Link::open(&url).await;
    assert_eq!(link.count("task_state WHERE slot IS NOT NULL").await, 0, "no lease is active");
    assert_eq!(link.count("task_state WHERE wake_at IS NOT NULL").await, 0, "no task waits for its time");
    let finals = STATUSES.map(|status| tables.count(status));
    for server in servers {
        eventually(&format!("{} agrees with the tables", server.base()), || async {
            (shown(server).await == Some((finals, finals, finals))).then_some(())
        })
        .await;
    }
}

/// Tasks by status in stats, metrics and lists; `None` while the server does not answer.
async fn shown(server: &Server) -> Option<([i64; 7], [i64; 7], [i64; 7])> {
    let (stats, metrics) = (server.try_get("stats").await.ok()?, server.try_get("/metrics").await.ok()?);
    if stats.status != 200 || metrics.status != 200 {
        return None;
    }
    let stats = stats.json();
    assert_eq!(stats["leases"]["active"], 0, "{stats}");
    let of_stats = STATUSES.map(|status| stats["tasks"]["by_status"][status].as_i64().unwrap_or(0));
    let gauge = |status: &str| {
        let name = format!("bloom_tasks{{status=\"{status}\"}} ");
        metrics.text.lines().find_map(|line| line.strip_prefix(&name)).and_then(|value| value.parse::<i64>().ok()).unwrap_or(0)
    };
    let of_metrics = STATUSES.map(gauge);
    let mut of_lists = [0; 7];
    for (status, number) in STATUSES.iter().zip(&mut of_lists) {
        let mut page = Some(format!("/api/runtime/llm-tasks?status={status}&limit=1000"));
        while let Some(path) = page {
            let answer = server.try_get(&path).await.ok()?;
            page = answer.next_page();
            *number += i64::try_from(answer.json().as_array()?.len()).ok()?;
        }
    }
    Some((of_stats, of_metrics, of_lists))
}

/// Runs load and slow readers on these servers, and the given part of the test beside them, until all work is done.
fn under_load(servers: &[Arc<Server>], part: impl AsyncFnOnce(&Load)) {
    run(async {
        let slow = SlowReaders::start(&apis(servers), &servers[0].database_url());
        let load = Load::start(&apis(servers));
        part(&load).await;
        ends_well(servers, load).await;
        slow.end().await;
    });
}

fn three_replicas(url: &str) -> Vec<Arc<Server>> {
    (0..3).map(|_| Arc::new(plan(Some(url)).start())).collect()
}

#[test]
fn three_replicas_under_load_are_quick_beside_slow_readers() {
    under_load(&three_replicas(&postgres::database()), async |load| load.goes_on(60).await);
}

#[test]
fn one_server_on_sqlite_is_quick_beside_slow_readers() {
    under_load(&[Arc::new(plan(None).start())], async |load| load.goes_on(60).await);
}

#[test]
fn three_replicas_forget_nothing_while_things_break() {
    let cluster = postgres::Cluster::start();
    let servers = three_replicas(&cluster.database());
    under_load(&servers, async |load| {
        load.goes_on(15).await;
        load.faults_begin();
        // The leader is frozen, then another replica; others are killed; and the database is down for longer than a lease lasts.
        for round in 0..2 {
            let first = eventually("one replica leads", || leader(&servers)).await;
            let frozen = &servers[(first + round) % 3];
            frozen.pause();
            load.goes_on(15).await;
            frozen.resume();
            load.goes_on(15).await;
            let killed = &servers[(first + round + 1) % 3];
            killed.kill9();
            load.goes_on(15).await;
            killed.start_again();
        }
        is_away_for_a_while(&cluster).await;
        load.goes_on(15).await;
        load.faults_end();
        load.goes_on(60).await;
    });
}

/// PostgreSQL stops, and starts again after three seconds.
async fn is_away_for_a_while(cluster: &postgres::Cluster) {
    cluster.stop();
    let back = now_ms() + 3_000;
    eventually("three seconds pass", || async { (now_ms() > back).then_some(()) }).await;
    cluster.resume();
}

#[test]
fn one_server_on_sqlite_forgets_nothing_when_it_is_killed() {
    let servers = [Arc::new(plan(None).start())];
    under_load(&servers, async |load| {
        load.goes_on(15).await;
        load.faults_begin();
        for _ in 0..3 {
            servers[0].kill9();
            servers[0].start_again();
            load.goes_on(15).await;
        }
        load.faults_end();
        load.goes_on(50).await;
    });
}
