//! The clock of an agent's machine, which a test sets forward: a time limit passes at a moment that the test chooses, however slow the
//! machine is.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::agent::{Agent, AgentPlan};
use super::janitor;

/// Adds to the clock of each process that is started with it.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let library = janitor::new_path("boot-clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/boot_clock.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status().expect("a C compiler");
    assert!(built.success());
    library
});

/// The clock by which agents and supervisors measure leases, time limits and silence.
pub struct BootClock {
    ahead: PathBuf,
}

impl BootClock {
    /// A line of the profile: supervisors have the environment of their runs.
    pub const PASSED: &str = "pass_env = [\"LD_PRELOAD\", \"SECONDS_AHEAD_FILE\"]";

    pub fn new() -> Self {
        Self { ahead: janitor::new_path("ahead") }
    }

    /// The agent with this clock.
    pub fn of(&self, plan: AgentPlan) -> AgentPlan {
        plan.env("LD_PRELOAD", LIBRARY.display()).env("SECONDS_AHEAD_FILE", self.ahead.display())
    }

    /// So much time passes at once. A lease that ends meanwhile is lost, so the server needs a longer `LEASE_TTL_SECONDS`.
    pub fn advance(&self, seconds: u64) {
        // Renamed, because a process may read it at any time.
        let new = self.ahead.with_extension("new");
        std::fs::write(&new, seconds.to_string()).and_then(|()| std::fs::rename(&new, &self.ahead)).expect("a file");
    }

    /// The machine sleeps for so long: the runs stop, and go on afterwards.
    pub fn sleep(&self, agent: &Agent, seconds: u64) {
        agent.signal_processes("STOP");
        self.advance(seconds);
        agent.signal_processes("CONT");
    }
}
