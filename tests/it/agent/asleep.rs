//! A machine that slept: other workers may have got its tasks meanwhile, and only the clock tells it.

use std::process::Command;

use super::crash::{Begun, begun, ended_once};
use super::*;
use crate::on_both;
use crate::support::Server;
use crate::support::agent::AgentPlan;
use crate::support::proxy::Proxy;

/// An agent's machine, which the test lets sleep.
struct Machine {
    slept: PathBuf,
}

impl Machine {
    fn new() -> Self {
        Self { slept: janitor::new_path("slept") }
    }

    /// The agent with a clock that goes on by [`Self::sleep`].
    fn with(&self, plan: AgentPlan) -> AgentPlan {
        let library = janitor::new_path("boot-clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/agent/boot_clock.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status().expect("a C compiler");
        assert!(built.success());
        plan.env("LD_PRELOAD", library.display()).env("SLEPT_SECONDS_FILE", self.slept.display())
    }

    /// The runs stop, and go on an hour later.
    fn sleep(&self, agent: &agent::Agent) {
        agent.signal_processes("STOP");
        std::fs::write(&self.slept, "3600").expect("a file");
        agent.signal_processes("CONT");
    }
}

on_both! { alone:
    async fn a_run_does_not_go_on_when_its_machine_wakes_up(database) {
        // Much longer than this test.
        let server = Server::on(database).env("LEASE_TTL_SECONDS", 900).start();
        let line = Proxy::start(server.base()).await;
        let machine = Machine::new();
        let Begun { agent, task, tally, latch } = begun(&server, machine.with(AgentPlan::at(&line.url, "laptop"))).await;
        task.reaches("running").await;
        // A machine that wakes up has no network yet.
        line.hold();
        agent.signal("STOP");
        machine.sleep(&agent);
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
        let machine = Machine::new();
        let Begun { agent, task, tally, latch } = begun(&server, machine.with(server.agent("laptop"))).await;
        task.reaches("running").await;
        agent.kill9();
        machine.sleep(&agent);
        agent.has_no_processes().await;
        assert_eq!(task.status().await, "running");
        agent.start_again();
        latch.open();
        ended_once(&server, &task).await;
        assert_eq!(tally.count(), 2);
    }
}
