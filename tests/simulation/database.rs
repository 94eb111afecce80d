//! The connection of one replica to the database.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::agent_queue::AgentQueue;
use bloom_core::cache::{ReadyRow, Scope};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{Status, TaskSpec, TaskState};
use bloom_core::wakeup::{Waiters, Wakeup, WakeupId};
use bloom_core::worker::Worker;
use bloom_database::{CountDeltas, CountsAt, Database, DuePage, Feed, Position, Result, Service, Writer};
use tokio::sync::Notify;

use crate::mirror::{same_counts, same_due, same_page, same_rows};
use crate::shared::{Shared, State};
use crate::writer::SimWriter;

/// The faults of one replica.
#[derive(Default)]
pub struct Condition {
    pub is_frozen: AtomicBool,
    pub is_dead: AtomicBool,
    pub thawed: Notify,
}

impl Condition {
    /// Waits until the process runs; forever if it is dead.
    pub async fn runs(&self) {
        loop {
            let thawed = self.thawed.notified();
            if self.is_dead.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if !self.is_frozen.load(Ordering::Relaxed) {
                return;
            }
            thawed.await;
        }
    }

    pub fn is_up(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed) && !self.is_frozen.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
pub struct SimDatabase {
    pub shared: Shared,
    pub condition: Arc<Condition>,
}

impl SimDatabase {
    /// One way of a statement: it takes some time, and the process may freeze or die before and after.
    pub async fn trip(&self) -> Result<()> {
        self.condition.runs().await;
        let latency = self.shared.lock().latency();
        tokio::time::sleep(latency).await;
        self.condition.runs().await;
        self.shared.lock().reachable()
    }

    /// One statement that reads in the middle of its round trip, so its result may be outdated when it arrives.
    async fn read<T>(&self, query: impl FnOnce(&mut State) -> T + Send) -> Result<T>
    where
        T: Send,
    {
        self.trip().await?;
        let found = query(&mut self.shared.lock());
        self.trip().await?;
        Ok(found)
    }

    /// A read that is compared with the mirror.
    async fn read_both<T: Debug + Send, W: Future<Output = Result<T>> + Send>(
        &self,
        query: impl FnOnce(&mut State) -> T + Send,
        ask: impl FnOnce(Arc<dyn Database>) -> W + Send,
        is_same: impl FnOnce(&State, &T, &T) -> bool + Send,
    ) -> Result<T> {
        let what = std::any::type_name::<W>();
        self.read(|state| {
            let found = query(state);
            state.compare(what, &found, ask, is_same);
            found
        })
        .await
    }
}

#[async_trait]
impl Database for SimDatabase {
    fn is_shared(&self) -> bool {
        !self.shared.lock().beside.is_there
    }

    async fn writer(&self) -> Result<Box<dyn Writer>> {
        self.trip().await?;
        let mut state = self.shared.lock();
        let id = state.tables.register_writer();
        state.open_beside(id);
        Ok(Box::new(SimWriter::new(self.clone(), id)))
    }

    async fn now(&self) -> Result<Ms> {
        self.read(|state| state.now()).await
    }

    async fn feed(&self, positions: &[Position], own: &[i64]) -> Result<Feed> {
        if !self.is_shared() {
            return Ok(Feed::default());
        }
        let (positions, own) = (positions.to_vec(), own.to_vec());
        self.read(move |state| state.tables.feed(&positions, &own)).await
    }

    async fn heard(&self) -> Result<()> {
        if !self.is_shared() {
            std::future::pending::<()>().await;
        }
        self.shared.committed.notified().await;
        let is_lost = {
            let mut state = self.shared.lock();
            let percent = state.fault_rates.lost_percent;
            state.dice.chance(percent)
        };
        if is_lost {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn notify(&self) -> Result<()> {
        self.trip().await?;
        self.shared.committed.notify_waiters();
        Ok(())
    }

    async fn counts(&self) -> Result<CountsAt> {
        let query = |state: &mut State| state.tables.counts();
        let ask = |beside: Arc<dyn Database>| async move { beside.counts().await };
        // The two give their writers different ids, so positions are not compared.
        self.read_both(query, ask, |_, found, expected| same_counts(&found.counts, &expected.counts)).await
    }

    async fn task_states(&self, ids: &[TaskId]) -> Result<Vec<TaskState>> {
        let query = |state: &mut State| state.tables.task_states(ids);
        let ask = |beside: Arc<dyn Database>| async move { beside.task_states(ids).await };
        self.read_both(query, ask, |_, found, expected: &Vec<TaskState>| same_rows(found, expected, |task| task.id)).await
    }

    async fn workers_by_id(&self, ids: &[WorkerId]) -> Result<Vec<Worker>> {
        let query = |state: &mut State| state.tables.workers_by_id(ids);
        let ask = |beside: Arc<dyn Database>| async move { beside.workers_by_id(ids).await };
        self.read_both(query, ask, |_, found, expected: &Vec<Worker>| same_rows(found, expected, |worker| worker.id.clone())).await
    }

    async fn workers_page(&self, after: Option<&str>, limit: i64) -> Result<Vec<Worker>> {
        let query = |state: &mut State| state.tables.workers_page(after, limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.workers_page(after, limit).await };
        self.read_both(query, ask, |_, found, expected| found == expected).await
    }

    async fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskState>> {
        let query = |state: &mut State| state.tables.active_tasks(after, limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.active_tasks(after, limit).await };
        self.read_both(query, ask, |_, found, expected| found == expected).await
    }

    async fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>> {
        let query = |state: &mut State| state.tables.ready_page(scope, after, limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.ready_page(scope, after, limit).await };
        self.read_both(query, ask, |_, found, expected| found == expected).await
    }

    async fn queues(&self) -> Result<Vec<AgentQueue>> {
        let query = |state: &mut State| state.tables.queues();
        let ask = |beside: Arc<dyn Database>| async move { beside.queues().await };
        self.read_both(query, ask, |_, found, expected| found == expected).await
    }

    async fn closed_queues(&self) -> Result<Vec<String>> {
        let query = |state: &mut State| state.tables.closed_queues();
        let ask = |beside: Arc<dyn Database>| async move { beside.closed_queues().await };
        self.read_both(query, ask, |_, found, expected: &Vec<String>| same_rows(found, expected, Clone::clone)).await
    }

    async fn ready_agents(&self) -> Result<Vec<String>> {
        let query = |state: &mut State| state.tables.ready_agents();
        let ask = |beside: Arc<dyn Database>| async move { beside.ready_agents().await };
        self.read_both(query, ask, |_, found, expected: &Vec<String>| same_rows(found, expected, Clone::clone)).await
    }

    async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>> {
        let query = |state: &mut State| ids.iter().filter_map(|id| state.tables.memory.specs.get(id).cloned()).collect();
        let ask = |beside: Arc<dyn Database>| async move { beside.specs(ids).await };
        self.read_both(query, ask, |_, found, expected: &Vec<Arc<TaskSpec>>| same_rows(found, expected, |spec| spec.id)).await
    }

    async fn due_leases(&self, limit: i64) -> Result<DuePage<(TaskId, LeaseId)>> {
        let query = |state: &mut State| state.tables.due_leases(state.now(), limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.due_leases(limit).await };
        let at = |state: &State, task: &TaskId| state.tables.memory.tasks.get(task)?.lease.as_ref().map(|lease| lease.check_at);
        self.read_both(query, ask, |state, found, expected| same_due(found, expected, limit, |(task, _)| at(state, task))).await
    }

    async fn leases_beyond_ttl(&self, limit: i64) -> Result<Vec<(TaskId, LeaseId)>> {
        let query = |state: &mut State| state.tables.leases_beyond_ttl(state.now(), limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.leases_beyond_ttl(limit).await };
        self.read_both(query, ask, |_, found, expected: &Vec<_>| same_page(found, expected, limit)).await
    }

    async fn due_tasks(&self, limit: i64) -> Result<DuePage<TaskId>> {
        let query = |state: &mut State| state.tables.due_tasks(state.now(), limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.due_tasks(limit).await };
        let at = |state: &State, task: &TaskId| state.tables.memory.tasks.get(task)?.wake_at;
        self.read_both(query, ask, |state, found, expected| same_due(found, expected, limit, |task| at(state, task))).await
    }

    async fn silent_workers(&self, silent_for_ms: i64, limit: i64) -> Result<DuePage<WorkerId>> {
        let query = |state: &mut State| state.tables.silent_workers(state.now(), silent_for_ms, limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.silent_workers(silent_for_ms, limit).await };
        self.read_both(query, ask, |_, found, expected| same_due(found, expected, limit, |_| None)).await
    }

    async fn wakeups(&self, after: Option<WakeupId>, limit: i64) -> Result<Vec<Wakeup>> {
        let query = |state: &mut State| state.tables.wakeups(after, limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.wakeups(after, limit).await };
        self.read_both(query, ask, |_, found, expected| found == expected).await
    }

    async fn waiters(&self, wakeup: &Wakeup, limit: i64) -> Result<Waiters> {
        let query = |state: &mut State| state.tables.waiters(wakeup, limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.waiters(wakeup, limit).await };
        self.read_both(query, ask, |_, found, expected| found == expected).await
    }

    async fn lead(&self, holder: &str, ttl_ms: i64) -> Result<Option<i64>> {
        if !self.is_shared() {
            return Ok(Some(1));
        }
        let holder = holder.to_owned();
        self.read(move |state| {
            let now = state.now();
            state.tables.lead(now, &holder, ttl_ms)
        })
        .await
    }

    async fn resign(&self, holder: &str) -> Result<()> {
        let holder = holder.to_owned();
        self.read(move |state| state.tables.resign(&holder)).await
    }

    async fn mark_served(&self) -> Result<Service> {
        self.read(|state| {
            let now = state.now();
            state.tables.mark_served(now)
        })
        .await
    }

    async fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    async fn count_errors(&self) -> Result<CountDeltas> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let ask = |beside: Arc<dyn Database>| async move { beside.count_errors().await };
        let none = CountDeltas::default();
        self.shared.lock().compare("count_errors", &none, ask, |_, found, none| same_counts(found, none));
        Ok(none)
    }

    async fn stored_bytes(&self) -> Result<Vec<(String, i64)>> {
        Ok(Vec::new())
    }
}

/// Whether all tasks have finished and no wake-up is left.
pub fn is_quiet(state: &State) -> bool {
    state.tables.memory.tasks.values().all(|task| task.status.is_final() && task.status != Status::Queued)
        && state.tables.memory.wakeups.is_empty()
}
