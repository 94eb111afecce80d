//! What the engine and the reconcilers ask of a database. The store implements it over SQL, tests in memory.
//!
//! A [`Writer`] is one connection for writing: its transactions are a load, a save, a commit, and each commit leaves a numbered row in
//! the feed that other replicas follow. Everything else is a read of its own, by an index and in pages.

mod error;
mod feed;
mod maintenance;

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::command::Keys;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::wakeup::{Waiters, Wakeup, WakeupId};
use bloom_core::worker::Worker;
use bloom_core::working_set::{Loaded, WorkingSet};
use std::sync::Arc;

pub use bloom_core::cache::{ReadyRow, Scope};
pub use error::Error;
pub use feed::{Changed, CountDeltas, CountsAt, Feed, FeedEntry, Position};
pub use maintenance::{Done, Maintenance};

pub type Result<T> = std::result::Result<T, Error>;

/// What is due by the database's clock, and when the next one is.
#[derive(Clone, Debug)]
pub struct Due<T> {
    pub now: Ms,
    pub items: Vec<T>,
    /// The first deadline behind those; `None`: there is none at present.
    pub next_at: Option<Ms>,
}

/// What the service mark tells: every replica makes one each second, so a gap means that no replica could write, or that the
/// database's clock has stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub now: Ms,
    /// When the last gap ended; 0 if there was none.
    pub resumed_at: Ms,
}

#[async_trait]
pub trait Database: Send + Sync + 'static {
    /// Other replicas may share it: there is a feed to follow, and a leader to be elected.
    fn is_shared(&self) -> bool;

    /// Opens a connection for writing.
    async fn writer(&self) -> Result<Box<dyn Writer>>;

    async fn now(&self) -> Result<Ms>;

    // --- what a replica cache follows ---

    /// What others have committed behind these positions; own writers are left out.
    async fn feed(&self, positions: &[Position], own: &[i64]) -> Result<Feed>;

    /// Waits until another replica has committed; it may be wrong, and may miss one. `Err`: listen again later. Never returns where the
    /// database is not shared.
    async fn heard(&self) -> Result<()>;

    /// Tells other replicas that there was a commit.
    async fn notify(&self) -> Result<()>;

    /// The counts of tasks, and the positions that they include, of one snapshot.
    async fn counts(&self) -> Result<CountsAt>;

    /// Those of these tasks that exist.
    async fn task_states(&self, ids: &[TaskId]) -> Result<Vec<TaskState>>;

    /// Those of these workers that exist.
    async fn workers_by_id(&self, ids: &[WorkerId]) -> Result<Vec<Worker>>;

    /// Workers behind this name, by name.
    async fn workers_page(&self, after: Option<&str>, limit: i64) -> Result<Vec<Worker>>;

    /// Tasks with an active lease, behind this id, by id.
    async fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskState>>;

    /// The next tasks of the scope, in the queue's order, behind this (rank, id).
    async fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>>;

    /// Those of these tasks that exist, as they were asked for.
    async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>>;

    // --- what the reconcilers look at ---

    /// Active leases that are to be looked at, the longest due first.
    async fn due_leases(&self, limit: i64) -> Result<Due<(TaskId, LeaseId)>>;

    /// Active leases that seem to last longer than their TTL, or are to be looked at later than that: the clock has stepped back since they
    /// were renewed, or since they got a grace.
    async fn leases_beyond_ttl(&self, limit: i64) -> Result<Vec<(TaskId, LeaseId)>>;

    /// Parked tasks whose parking the clock ends, the longest due first.
    async fn due_tasks(&self, limit: i64) -> Result<Due<TaskId>>;

    /// Workers that count as online and were not seen for longer than this, or were seen in the future.
    async fn silent_workers(&self, silent_for_ms: i64, limit: i64) -> Result<Due<WorkerId>>;

    /// Wake-ups that are not done, the oldest first.
    async fn wakeups(&self, after: Option<WakeupId>, limit: i64) -> Result<Vec<Wakeup>>;

    /// The next page of those that wait for it.
    async fn waiters(&self, wakeup: &Wakeup, limit: i64) -> Result<Waiters>;

    /// Becomes or stays leader for so long. `None` while somebody else is. The epoch rises with each change of holder.
    async fn lead(&self, holder: &str, ttl_ms: i64) -> Result<Option<i64>>;

    /// Lets another lead at once.
    async fn resign(&self, holder: &str) -> Result<()>;

    /// Notes that this replica serves, and tells of the last gap in service of all replicas together.
    async fn mark_served(&self) -> Result<Service>;

    /// Keeps the database's log short, where that is ours to do. Never holds up a writer.
    async fn checkpoint(&self) -> Result<()>;

    /// What has to be added to the counts to make them true. Reads all tasks, beside those who write.
    async fn count_errors(&self) -> Result<CountDeltas>;
}

/// How long a load waits for rows that another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// Longer than any transaction of a replica lasts.
    Long,
    Short,
    /// Rows that are locked are not loaded; a command that needs one finds it missing.
    Skip,
}

/// One connection for writing. The future of a call must run to its end: dropped midway, it would leave a statement behind on the
/// connection.
#[async_trait]
pub trait Writer: Send {
    /// Never used twice; changes when the writer had to be registered anew.
    fn id(&self) -> i64;

    /// The number of its last batch that committed.
    fn n(&self) -> i64;

    /// Starts a transaction, locks the rows that the keys lead to (workers by id, then tasks by id), and reads them.
    ///
    /// # Errors
    /// [`Error::Locked`] when `wait` was over. After any error, [`rollback`](Self::rollback) comes next.
    async fn begin_and_load(&mut self, keys: &Keys, wait: LockWait) -> Result<Loaded>;

    /// Writes what the batch changed, and commits. With `check_epoch`, only if that leadership still lasts.
    ///
    /// # Errors
    /// [`Error::CommitUnknown`] asks for [`resolve_commit`](Self::resolve_commit); after any other, [`rollback`](Self::rollback) comes
    /// next and nothing was written.
    async fn save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> Result<()>;

    /// Gives the transaction up; a lost connection is replaced.
    async fn rollback(&mut self) -> Result<()>;

    /// After [`Error::CommitUnknown`]: did that batch commit? Either way it is settled from then on. May be called until it answers.
    async fn resolve_commit(&mut self) -> Result<bool>;

    /// Does a maintenance job in transactions of its own.
    ///
    /// # Errors
    /// As of [`save`](Self::save).
    async fn maintain(&mut self, job: &Maintenance) -> Result<Done>;

    /// Closes the connection; an open transaction is given up.
    async fn close(self: Box<Self>);
}
