//! The interface between a database and its users, the engine and the reconcilers. The store implements it with SQL; tests implement it in
//! memory.
//!
//! A [`Writer`] is one connection for writing. Each of its transactions loads, saves and commits, and each commit leaves a numbered row
//! in the feed, which other replicas follow. Everything else is a separate read, by an index and in pages.

#![warn(missing_docs, unreachable_pub)]

mod error;
mod feed;
mod maintenance;

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::agent_queue::AgentQueue;
use bloom_core::command::RowKeys;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::wakeup::{Waiters, Wakeup, WakeupId};
use bloom_core::worker::Worker;
use bloom_core::working_set::{Loaded, WorkingSet};
use std::sync::Arc;

pub use bloom_core::cache::{ReadyRow, Scope};
pub use error::Error;
pub use feed::{Changed, CountDeltas, CountsAt, Feed, FeedEntry, Position};
pub use maintenance::{Chunk, Done, Maintenance};

/// The result of a database call.
pub type Result<T> = std::result::Result<T, Error>;

/// The items that are due by the database's clock, and when the next one is due.
#[derive(Clone, Debug)]
pub struct DuePage<T> {
    /// The database's time when the items were read.
    pub now: Ms,
    /// The due items, at most as many as the caller asked for.
    pub items: Vec<T>,
    /// The first deadline after those of the items; `None` if there is none.
    pub next_at: Option<Ms>,
}

/// The result of a service mark. Every replica writes one twice a second, so a gap means that no replica could write, or that the
/// database's clock has stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The database's time of the mark.
    pub now: Ms,
    /// When the last gap ended; 0 if there was none.
    pub resumed_at: Ms,
}

/// What the engine needs of a database. It is implemented by the store and, in tests, by a database in memory.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    /// Whether other replicas may share the database, so that there is a feed to follow and a leader to elect.
    fn is_shared(&self) -> bool;

    /// Opens a connection for writing.
    async fn writer(&self) -> Result<Box<dyn Writer>>;

    /// The database's time.
    async fn now(&self) -> Result<Ms>;

    // --- reads of the replica cache ---

    /// The commits after these positions, without those of the caller's own writers.
    async fn feed(&self, positions: &[Position], own: &[i64]) -> Result<Feed>;

    /// Waits until another replica has committed. It may return without a commit, and may miss one. After an error, call it again later. It
    /// never returns if the database is not shared.
    async fn heard(&self) -> Result<()>;

    /// Notifies other replicas of a commit.
    async fn notify(&self) -> Result<()>;

    /// The counts, and the last batch of each writer that they include, from one snapshot.
    async fn counts(&self) -> Result<CountsAt>;

    /// The subset of these tasks that exists.
    async fn task_states(&self, ids: &[TaskId]) -> Result<Vec<TaskState>>;

    /// The subset of these workers that exists.
    async fn workers_by_id(&self, ids: &[WorkerId]) -> Result<Vec<Worker>>;

    /// Workers whose names sort after this one, by name.
    async fn workers_page(&self, after: Option<&str>, limit: i64) -> Result<Vec<Worker>>;

    /// Tasks with an active lease, after this id, by id.
    async fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskState>>;

    /// The next tasks of the scope after this (rank, id), in the order of the queue.
    async fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>>;

    /// The settings of queues, by agent. Those of all queues together come first.
    async fn queues(&self) -> Result<Vec<AgentQueue>>;

    /// The queues that are paused, or that have as many leases as their limits allow. They include `ALL_QUEUES` if all queues are paused.
    async fn closed_queues(&self) -> Result<Vec<String>>;

    /// The agents that have a ready task.
    async fn ready_agents(&self) -> Result<Vec<String>>;

    /// The specs of the subset of these tasks that exists.
    async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>>;

    // --- reads and writes of the reconcilers ---

    /// Active leases whose `check_at` has passed, starting with the most overdue.
    async fn due_leases(&self, limit: i64) -> Result<DuePage<(TaskId, LeaseId)>>;

    /// Active leases whose expiry or `check_at` is further away than their TTL, because the clock has stepped back since they were renewed
    /// or got a grace period.
    async fn leases_beyond_ttl(&self, limit: i64) -> Result<Vec<(TaskId, LeaseId)>>;

    /// Parked tasks whose `wake_at` has passed, starting with the most overdue.
    async fn due_tasks(&self, limit: i64) -> Result<DuePage<TaskId>>;

    /// Workers that are marked as online and were not seen for longer than this, or that were seen in the future.
    async fn silent_workers(&self, silent_for_ms: i64, limit: i64) -> Result<DuePage<WorkerId>>;

    /// Wake-ups that are not finished, the oldest first.
    async fn wakeups(&self, after: Option<WakeupId>, limit: i64) -> Result<Vec<Wakeup>>;

    /// The next page of the tasks that wait for this wake-up.
    async fn waiters(&self, wakeup: &Wakeup, limit: i64) -> Result<Waiters>;

    /// Becomes or stays leader for `ttl_ms`, and returns the epoch. Returns `None` while another holder leads. The epoch rises with each
    /// change of holder.
    async fn lead(&self, holder: &str, ttl_ms: i64) -> Result<Option<i64>>;

    /// Ends the leadership, so that another replica can lead at once.
    async fn resign(&self, holder: &str) -> Result<()>;

    /// Writes the service mark, and returns the last gap in the marks of all replicas together.
    async fn mark_served(&self) -> Result<Service>;

    /// Keeps SQLite's write-ahead log short; does nothing to other databases. Never delays a writer.
    async fn checkpoint(&self) -> Result<()>;

    /// What must be added to the counts to correct them. Reads all tasks while writes go on.
    async fn count_errors(&self) -> Result<CountDeltas>;

    /// The number of bytes that each key stores, for keys whose quota limits it and whose number has changed. Reads all their tasks.
    async fn stored_bytes(&self) -> Result<Vec<(String, i64)>>;
}

/// How long a load waits for rows that another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// Longer than any transaction of a replica lasts.
    Long,
    /// Briefly, because another program recently kept rows locked.
    Short,
    /// Locked rows are not loaded. A command that needs one of them is halted.
    Skip,
}

/// One connection for writing. The future of a call must not be dropped before it ends, because its statement would stay on the connection.
#[async_trait]
pub trait Writer: Send {
    /// The id of the writer, which is never reused. It changes if the writer had to be registered again.
    fn id(&self) -> i64;

    /// The number of its last committed batch.
    fn n(&self) -> i64;

    /// Starts a transaction, locks the rows that the keys lead to (workers by id, then tasks by id), and reads them.
    ///
    /// # Errors
    /// [`Error::Locked`] if a lock took longer than `wait`. After any error, the caller must call [`rollback`](Self::rollback).
    async fn begin_and_load(&mut self, keys: &RowKeys, wait: LockWait) -> Result<Loaded>;

    /// Writes what the batch changed, and commits. With `check_epoch`, this happens only if that leadership still lasts.
    ///
    /// # Errors
    /// After [`Error::CommitUnknown`], the caller must call [`resolve_commit`](Self::resolve_commit). After any other error nothing was
    /// written, and the caller must call [`rollback`](Self::rollback).
    async fn save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> Result<()>;

    /// Rolls the transaction back, or replaces a lost connection.
    async fn rollback(&mut self) -> Result<()>;

    /// Returns whether the batch of a [`Error::CommitUnknown`] was committed. The answer is final. After an error, the call may be
    /// repeated.
    async fn resolve_commit(&mut self) -> Result<bool>;

    /// Does a maintenance job in transactions of its own.
    ///
    /// # Errors
    /// The same as for [`save`](Self::save).
    async fn maintain(&mut self, job: &Maintenance) -> Result<Done>;

    /// Closes the connection; an open transaction is rolled back.
    async fn close(self: Box<Self>);
}
