//! A machine that slept: other workers may have got its tasks meanwhile, and only the clock tells it.

use super::crash::{Begun, begun, ended_once};
use super::*;
use crate::on_both;
use crate::support::Server;
use crate::support::agent::AgentPlan;
use crate::support::proxy::Proxy;

on_both! { alone:
    async fn a_run_does_not_go_on_when_its_machine_wakes_up(database) {
        // Much longer than this test.
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 900).start();
        let line = Proxy::start(server.base()).await;
        let clock = BootClock::new();
        let Begun { agent, task, tally, latch } = begun(&server, clock.of(AgentPlan::at(&line.url, "laptop"))).await;
        task.reaches("running").await;
        // A machine that wakes up has no network yet.
        line.hold();
        agent.signal("STOP");
        clock.sleep(&agent, 3_600);
        agent.signal("CONT");
        agent.has_no_processes().await;
        assert_eq!(task.status().await, "running", "the server has not told the agent");
        line.release();
        latch.open();
        ended_once(&server, &task).await;
        assert_eq!(tally.count(), 2);
    }

    async fn a_run_does_not_go_on_without_its_agent_either(database) {
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 900).start();
        let clock = BootClock::new();
        let Begun { agent, task, tally, latch } = begun(&server, clock.of(server.agent("laptop"))).await;
        task.reaches("running").await;
        agent.kill9();
        clock.sleep(&agent, 3_600);
        agent.has_no_processes().await;
        assert_eq!(task.status().await, "running");
        agent.start_again();
        latch.open();
        ended_once(&server, &task).await;
        assert_eq!(tally.count(), 2);
    }
}
