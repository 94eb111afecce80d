//! Outages of the database, and wall clocks that are set.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::checker::{Link, plain};
use crate::support::*;

#[test]
fn while_postgresql_is_down_no_lease_runs_out() {
    let cluster = postgres::Cluster::start();
    let server = Server::on_url(&cluster.database()).start();
    run(async {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let left = crew.task().create().await.lease_for(&worker, 4).await;
        let renewed = crew.task().create().await.lease_for(&worker, 4).await;
        let long = crew.task().create().await.lease_for(&worker, 60).await;
        let end = left.json["expires_at"].as_i64().unwrap();
        cluster.stop();
        eventually("the leases' TTL passes", || async { (now_ms() > end + 1_000).then_some(()) }).await;
        cluster.resume();
        // Nobody could renew the leases during the outage, so the first answer after it must be a renewal.
        let answer = eventually("the server answers again", || async {
            let answer = renewed.heartbeat().await;
            (answer.status != 503).then_some(answer)
        })
        .await;
        assert!(answer.ok()["expires_at"].as_i64().unwrap() > end);
        assert_eq!(long.now().await["status"], "active");
        // The lease that is not renewed ends, but not before a whole TTL after the end of the outage.
        left.task.reaches("queued").await;
        let mut link = Link::open(&server.database_url()).await;
        let served = link.rows("SELECT CAST(resumed_at AS TEXT) FROM served").await[0][0].clone().unwrap();
        let ended = link.rows(&format!("SELECT CAST(ended_at AS TEXT), status FROM leases WHERE id = '{}'", plain(&left.id))).await;
        let [resumed, ended] = [served, ended[0][0].clone().unwrap()].map(|text| text.parse::<i64>().unwrap());
        assert!(resumed > end, "the outage was recorded: {resumed}, {end}");
        assert!(ended - resumed >= 4_000, "{} ms of grace", ended - resumed);
    });
}

/// From Debian's package `faketime`.
pub fn faketime_library() -> PathBuf {
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let archs = [std::env::consts::ARCH, ""].map(|arch| if arch.is_empty() { String::new() } else { format!("{arch}-linux-gnu/") });
    let mut places = roots.iter().flat_map(|root| archs.iter().map(move |arch| root.join(format!("{arch}faketime/libfaketimeMT.so.1"))));
    places.find(|place| place.exists()).expect("libfaketime (Debian: apt-get install faketime; tests/run does it)")
}

/// A server on SQLite whose wall clock the test sets. Its monotonic clock is real.
struct Clocked {
    server: Server,
    setting: PathBuf,
}

impl Clocked {
    fn start() -> Clocked {
        let setting = janitor::new_path("wall-clock");
        set_wall_clock(&setting, 0);
        let plan = Server::on(Database::Sqlite)
            .env("LD_PRELOAD", faketime_library().display())
            .env("FAKETIME_TIMESTAMP_FILE", setting.display())
            .env("FAKETIME_NO_CACHE", 1)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", 1);
        Clocked { server: plan.start(), setting }
    }

    /// Sets the wall clock this many seconds off the real one.
    fn set(&self, seconds: i64) {
        set_wall_clock(&self.setting, seconds);
    }
}

/// Replaces the file atomically, because the server reads it whenever it reads its clock.
pub fn set_wall_clock(path: &Path, seconds: i64) {
    let new = path.with_extension("new");
    std::fs::write(&new, format!("{seconds:+}\n")).expect("a file");
    std::fs::rename(&new, path).expect("a file in its place");
}

/// The TTL of the leases in this file.
const TTL: i64 = 3;

/// After the clock was set by this many seconds, leases that are renewed stay active, and others end.
fn leases_follow_a_clock_set_by(seconds: i64) {
    let clocked = Clocked::start();
    let server = &clocked.server;
    run(async {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let kept = crew.task().create().await.lease_for(&worker, TTL).await;
        for (round, offset) in [seconds, 0].into_iter().enumerate() {
            kept.heartbeat().await.ok();
            let left = crew.task().create().await.lease_for(&worker, TTL).await;
            let leased = Instant::now();
            clocked.set(offset);
            // Lease calls, heartbeats and timers all run across the change.
            eventually(&format!("round {round}: the lease without heartbeats ends"), || async {
                kept.heartbeat().await.ok();
                (left.task.status().await == "queued").then_some(())
            })
            .await;
            let lived = leased.elapsed();
            assert!(lived >= Duration::from_secs(TTL.unsigned_abs()) - Duration::from_millis(50), "round {round}: ended after {lived:?}");
            assert!(lived < Duration::from_secs(TTL.unsigned_abs() + 5), "round {round}: ended after {lived:?}");
            assert_eq!(left.now().await["status"], "expired");
            assert_eq!(kept.now().await["status"], "active", "round {round}: the renewed lease is active");
            // A lease that is made after the change has its whole TTL, by the new time.
            let fresh = left.task.lease_for(&worker, TTL).await;
            let shown = fresh.json["expires_at"].as_i64().unwrap() - now_ms() - offset * 1000;
            assert!((1_000..=TTL * 1000 + 2_500).contains(&shown), "round {round}: the new lease ends in {shown} ms");
            eventually(&format!("round {round}: the lease made after the change ends"), || async {
                kept.heartbeat().await.ok();
                (left.task.status().await == "queued").then_some(())
            })
            .await;
            left.task.cancel().await.ok();
        }
    });
}

#[test]
fn a_wall_clock_set_back_an_hour_keeps_no_dead_lease() {
    leases_follow_a_clock_set_by(-3600);
}

#[test]
fn a_wall_clock_set_forward_an_hour_ends_no_living_lease() {
    leases_follow_a_clock_set_by(3600);
}

#[test]
fn tasks_become_ready_though_the_wall_clock_was_set() {
    let clocked = Clocked::start();
    let server = &clocked.server;
    run(async {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let next = crew.task().with("not_before", json!(now_ms() + 3_600_000)).create().await;
        assert_eq!(worker.claim(8).await.len(), 0);
        clocked.set(3_600);
        // For the server, an hour has passed.
        assert_eq!(worker.claim_within(8, 20).await[0]["task"]["id"], json!(next.id));
        clocked.set(0);
        let last = crew.task().create().await;
        assert_eq!(worker.claim_within(8, 20).await[0]["task"]["id"], json!(last.id));
    });
}
