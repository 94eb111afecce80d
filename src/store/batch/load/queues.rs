//! The queues of a batch: their lock, their rows, and the active leases of the limited ones.

use std::collections::BTreeSet;

use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::command::RowKeys;
use bloom_core::task::Status;

use super::Load;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement};
use crate::sql::record_rows;
use crate::sql::table::ReadRow as _;

statement!(SHARE_QUEUES, |d| "SELECT {} IS NULL", d.lock_queues(true));
statement!(HOLD_QUEUES, |d| "SELECT {} IS NULL", d.lock_queues(false));
statement!(QUEUES, |d| "SELECT {} FROM queues WHERE agent_slug = '' OR agent_slug {}", record_rows::QUEUE.names(""), d.any(Type::Text, 1));
statement!(QUEUE_ROWS, "SELECT count(*) FROM queues WHERE agent_slug <> ''");
// Transactions that make leases of a limited queue wait for each other, and each counts the leases of those before it.
fn lock_limited(d: Kind, lock: &str) -> String {
    format!("SELECT agent_slug FROM queues WHERE agent_slug {} ORDER BY agent_slug {lock}", d.any(Type::Text, 1))
}
statement!(LOCK_LIMITED, |d| "{}", lock_limited(d, d.lock()));
statement!(LOCK_FREE_LIMITED, |d| "{}", lock_limited(d, d.skip_locked()));
statement!(
    ACTIVE_OF_QUEUES,
    |d| "SELECT agent_slug, count(*) FROM task_state {} WHERE slot IS NOT NULL AND agent_slug {} GROUP BY agent_slug",
    d.by_index("task_state_active_of_agent"),
    d.any(Type::Text, 1)
);

impl Load<'_> {
    /// Keeps others from making leases while a queue changes or a context is reset. So once the change is acknowledged, no lease is made by
    /// the old settings.
    pub(super) async fn hold_queues(&mut self, keys: &RowKeys) -> Result<(), Error> {
        let has_workers = keys.all_workers || !keys.workers.is_empty();
        if !(keys.queues.is_empty() && keys.resets.is_empty()) {
            self.conn.fetch(&HOLD_QUEUES, Args::new()).await?;
        } else if keys.places && !has_workers {
            // If there are workers, the statement that locks them takes this lock too.
            self.conn.fetch(&SHARE_QUEUES, Args::new()).await?;
        }
        Ok(())
    }

    /// Reads the settings of the queues of the queued tasks, and of the queues that change. The lock of the queues is held, so the settings
    /// can't change. Limited queues are also locked one by one, because their leases are counted.
    pub(super) async fn read_queues(&mut self, keys: &RowKeys) -> Result<(), Error> {
        let mut slugs = keys.queues.clone();
        if keys.places {
            let queued = self.loaded.tasks.values().flatten().filter(|task| task.status == Status::Queued);
            slugs.extend(queued.map(|task| task.agent_slug.clone()));
        }
        if slugs.is_empty() {
            return Ok(());
        }
        let is_changed = !keys.queues.is_empty();
        self.loaded.queues = slugs.iter().map(|slug| (slug.clone(), None)).collect();
        self.loaded.queues.entry(ALL_QUEUES.to_owned()).or_default();
        if self.has_queues || is_changed {
            for queue in crate::all(&self.conn.fetch(&QUEUES, Args::new().texts(&slugs)).await?, AgentQueue::read)? {
                self.loaded.queues.insert(queue.agent_slug.clone(), Some(queue));
            }
        }
        if is_changed {
            self.loaded.queue_rows = crate::one(&self.conn.fetch(&QUEUE_ROWS, Args::new()).await?, |row| row.take())?;
        }
        let is_limited = |queue: &&AgentQueue| queue.max_concurrency.is_some();
        let limited: BTreeSet<String> =
            self.loaded.queues.values().flatten().filter(is_limited).map(|queue| queue.agent_slug.clone()).collect();
        if !limited.is_empty() {
            let lock = if self.skip_locked { &LOCK_FREE_LIMITED } else { &LOCK_LIMITED };
            let locked: BTreeSet<String> =
                crate::all(&self.conn.fetch(lock, Args::new().texts(&limited)).await?, |row| row.take())?.into_iter().collect();
            self.loaded.locked_queues = limited.difference(&locked).cloned().collect();
        }
        // A queue that changes may get a limit in this batch.
        let counted: BTreeSet<String> = limited.union(&keys.queues).cloned().collect();
        if !counted.is_empty() {
            self.loaded.active_leases = counted.iter().map(|slug| (slug.clone(), 0)).collect();
            for row in &self.conn.fetch(&ACTIVE_OF_QUEUES, Args::new().texts(&counted)).await? {
                let mut row = row.cells();
                self.loaded.active_leases.insert(row.take()?, row.take()?);
            }
        }
        Ok(())
    }
}
