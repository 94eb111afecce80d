//! Two agents under one name, and agents far from the server.

use std::time::Duration;

use super::*;
use crate::on_both;
use crate::support::Server;
use crate::support::agent::{Agent, AgentPlan};
use crate::support::proxy::Proxy;

on_both! { alone:
    async fn an_agent_whose_name_was_taken_over_ends_its_runs_and_stops(database) {
        let server = Server::on(database).start();
        let (tally, latch) = (Tally::new(), Latch::new());
        let script = format!("{}; {}; echo answer", tally.mark(), latch.wait());
        let first = server.agent("box").shell().slots(2).start();
        let task = server.crew().task().prompt(&script).create().await;
        tally.reaches(1).await;
        let (code, said) = server.agent("box").shell().slots(2).start_in_vain();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("Another agent runs as worker 'box'") && said.contains("bloom-runtime worker remove box"), "{said}");

        // Removed, it registers again at once; set offline, it gives way to the agent that starts then.
        let second = AgentPlan::at(server.base(), "box").shell().slots(2);
        let taken_over = || async {
            server.post("workers", json!({ "name": "box", "status": "offline" })).await.ok();
            let body = json!({ "name": "box", "status": "online", "instance": "019a0000-0000-7000-8000-000000000001" });
            (server.post("workers", body).await.status == 200).then_some(())
        };
        eventually("another agent has the name", taken_over).await;
        eventually("the first agent knows", || async { first.log().contains("takes no more tasks").then_some(()) }).await;
        latch.open();
        task.reaches("completed").await;
        assert_eq!((tally.count(), task.now().await["attempts"].clone()), (1, json!(1)), "nobody has run it again");
        assert_eq!(first.wait_for_end().code(), Some(1));
        assert_eq!(first.kept_runs(), 0);
        // The agent that has the name is gone now, and the next one may have it.
        server.post("workers", json!({ "name": "box", "status": "offline" })).await.ok();
        let second = second.start();
        server.crew().task().prompt("echo again").create().await.reaches("completed").await;
        assert_eq!(second.stop().code(), Some(0));
    }
}

#[test]
fn a_run_survives_a_network_that_is_slower_than_heartbeats_are_frequent() {
    run(async {
        let server = Server::on(Database::Sqlite).env("LEASE_TTL_SECONDS", 24).start();
        let line = Proxy::with_latency(server.base(), Duration::from_secs(6)).await;
        let (tally, latch) = (Tally::new(), Latch::new());
        let _agent = AgentPlan::at(&line.url, "far").shell().start();
        let task = server.crew().task().prompt(&format!("{}; {}; echo answer", tally.mark(), latch.wait())).create().await;
        tally.reaches(1).await;
        let outlives_its_ttl = || async {
            let lease = server.get("workers/far").await.ok()["leases"][0].clone();
            (lease["last_heartbeat"].as_i64()? - lease["started_at"].as_i64()? > 24_000).then_some(())
        };
        eventually("the lease is renewed beyond its TTL", outlives_its_ttl).await;
        latch.open();
        task.reaches("completed").await;
        assert_eq!((tally.count(), task.now().await["attempts"].clone()), (1, json!(1)));
    });
}

#[test]
fn an_agent_that_listens_no_more_has_no_url() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let url = async || server.get("workers/box").await.ok()["url"].clone();
        let plan = || server.agent("box").echo();
        let listening = plan().env("MEMBRIDGE_AGENT_KEY", "secret").arg(&["--listen", "127.0.0.1:0"]).start();
        let registered = async |agent: &Agent| {
            eventually("it is registered", || async { agent.log().contains("registered").then_some(()) }).await;
        };
        registered(&listening).await;
        assert!(url().await.as_str().unwrap().starts_with("http://127.0.0.1:"));
        assert_eq!(listening.stop().code(), Some(0));
        let agent = plan().start();
        registered(&agent).await;
        assert_eq!(url().await, json!(""));
    });
}
