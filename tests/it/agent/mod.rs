//! The worker agent as a process: what it runs, how runs end, and what is left when something dies.

mod claude;
mod crash;
mod dev;
mod door;
mod ending;
mod fleet;
mod push_limits;
mod repositories;
mod running;
mod set_aside;
mod stopping;

use std::path::PathBuf;

use crate::support::*;

/// A gate that a run waits at until the test opens it: a file that a shell script looks for.
struct Gate(PathBuf);

impl Gate {
    fn new() -> Self {
        Self(janitor::new_path("gate"))
    }

    /// Shell words that wait for the gate, for a minute at most.
    fn wait(&self) -> String {
        format!("for i in $(seq 1200); do [ -e {} ] && break; sleep 0.05; done", self.0.display())
    }

    fn open(&self) {
        std::fs::write(&self.0, "").expect("a file");
    }
}

/// A file to which each start of a run adds a line.
struct Tally(PathBuf);

impl Tally {
    fn new() -> Self {
        Self(janitor::new_path("tally"))
    }

    fn mark(&self) -> String {
        format!("echo run >> {}", self.0.display())
    }

    fn count(&self) -> usize {
        std::fs::read_to_string(&self.0).map_or(0, |text| text.lines().count())
    }

    async fn reaches(&self, count: usize) {
        eventually("a run has started", || async { (self.count() >= count).then_some(()) }).await;
    }
}

/// The texts of a task's events, in order.
async fn told(task: &Task<'_>, kind: &str) -> Vec<Value> {
    let events = task.api.get(&task.path("/events")).await.ok();
    let events = events.as_array().expect("events").iter().filter(|event| event["kind"] == json!(kind));
    events.map(|event| event["data"].clone()).collect()
}

async fn result(task: &Task<'_>) -> Value {
    task.api.get(&task.path("/result")).await.ok()
}

/// How often an answer was stored.
async fn answers(task: &Task<'_>) -> usize {
    let artifacts = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
    artifacts.as_array().expect("artifacts").iter().filter(|artifact| artifact["content"].is_string()).count()
}
