//! The commands as a user runs them: what they print on each stream, and the exit status.
//!
//! Commands reach the database only through the server, so testing with one database is enough.

mod advice;
mod audit;
mod bulk;
mod checkouts;
mod completions;
mod contexts;
mod conversations;
mod describe;
mod files;
mod follow;
mod from_file;
mod get_and_list;
mod interrupt;
mod key_files;
mod keys;
mod like;
mod many;
mod messages;
mod output;
mod projects;
mod queues;
mod submit;
mod suspend;
mod tables;
mod terminal;
mod time_limits;
pub mod user;
mod waiting;

use crate::support::*;
pub use user::User;

fn sqlite() -> &'static Server {
    shared(Database::Sqlite)
}

/// The part of an id that tables show.
fn short(id: &str) -> &str {
    &id[28..]
}

/// A task claimed by a test worker, which sends events and completes it.
struct Run<'a> {
    api: &'a Api,
    task: Task<'a>,
    lease: String,
    seq: std::cell::Cell<i64>,
}

impl<'a> Run<'a> {
    /// Waits for the next task of the worker's crew and claims it.
    async fn claimed_by(worker: &Worker<'a>) -> Run<'a> {
        let claimed = worker.claim_within(1, 20).await;
        let lease = claimed.first().unwrap_or_else(|| panic!("a task for {}", worker.name))["lease"].clone();
        let text = |key: &str| lease[key].as_str().expect("an id").to_owned();
        Run { api: worker.api, task: worker.api.task(&text("task_id")), lease: text("id"), seq: std::cell::Cell::new(0) }
    }

    async fn tells(&self, kind: &str, data: Value) {
        self.seq.set(self.seq.get() + 1);
        let event = json!({ "seq": self.seq.get(), "kind": kind, "at": now_ms(), "data": data });
        self.api.post(&self.task.path("/events"), json!({ "lease_id": self.lease, "events": [event] })).await.ok();
    }

    async fn answers(&self, output: &str) {
        let end = json!({ "status": "success", "output": output, "lease_id": self.lease, "metrics": { "duration_ms": 5 } });
        self.task.complete(end).await.ok();
    }

    async fn fails(&self, reason: &str, message: &str) {
        let end = json!({
            "status": "error", "error_message": message, "reason": reason, "lease_id": self.lease, "metrics": { "duration_ms": 5 },
        });
        self.task.complete(end).await.ok();
    }
}
