//! Which session has the conversation of a context.

use bloom_core::Ms;
use bloom_core::task::{Session, Status};

use super::memory::Memory;

impl Memory {
    pub(super) fn conversation(&self, context: &str) -> Option<String> {
        let reset_at = self.context_resets.get(context).copied().unwrap_or(Ms::MIN);
        let ended = self.past_leases.values().rev().filter(|lease| lease.context_id == context && lease.completed).take(100);
        ended.filter(|lease| lease.started_at > reset_at).find_map(|lease| {
            let task = self.tasks.get(&lease.task_id)?;
            let has_answered = task.session == Session::Context && task.status == Status::Completed;
            task.session_id.clone().filter(|_| has_answered)
        })
    }
}
