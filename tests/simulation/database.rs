//! One replica's way to the database.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::cache::{ReadyRow, Scope};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{Status, TaskSpec, TaskState};
use bloom_core::wakeup::{Waiters, Wakeup, WakeupId};
use bloom_core::worker::{Worker, WorkerStatus};
use bloom_core::working_set::Counts;
use bloom_database::{CountDeltas, CountsAt, Database, Due, Feed, FeedEntry, Position, Result, Service, Writer};
use tokio::sync::Notify;

use crate::mirror::{same_counts, same_due, same_page, same_rows};
use crate::shared::{LeaderRow, Shared, State, WriterRow};
use crate::writer::SimWriter;

/// Batches of one writer that a look at the feed brings.
const STEP: usize = 16;
/// Marks of service that lie further apart are a gap.
const GAP_MS: Ms = 1_500;

/// What is wrong with one replica.
#[derive(Default)]
pub struct Condition {
    pub is_frozen: AtomicBool,
    pub is_dead: AtomicBool,
    pub thawed: Notify,
}

impl Condition {
    /// Returns when the process runs; never if it is dead.
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
    /// A statement on its way: it takes its time, and the process may freeze or die before and after.
    pub async fn trip(&self) -> Result<()> {
        self.condition.runs().await;
        let latency = self.shared.lock().latency();
        tokio::time::sleep(latency).await;
        self.condition.runs().await;
        self.shared.lock().reachable()
    }

    /// One statement that reads: it looks in the middle of its trip, so what it brings is old by the time that it arrives.
    async fn read<T>(&self, look: impl FnOnce(&mut State) -> T + Send) -> Result<T>
    where
        T: Send,
    {
        self.trip().await?;
        let found = look(&mut self.shared.lock());
        self.trip().await?;
        Ok(found)
    }

    /// A read that a mirror is asked for as well.
    async fn read_both<T: Debug + Send, W: Future<Output = Result<T>> + Send>(
        &self,
        look: impl FnOnce(&mut State) -> T + Send,
        ask: impl FnOnce(Arc<dyn Database>) -> W + Send,
        is_same: impl FnOnce(&State, &T, &T) -> bool + Send,
    ) -> Result<T> {
        let what = std::any::type_name::<W>();
        self.read(|state| {
            let found = look(state);
            state.compare(what, &found, ask, is_same);
            found
        })
        .await
    }
}

fn page<T>(rows: impl Iterator<Item = T>, limit: i64) -> Vec<T> {
    rows.take(usize::try_from(limit).expect("a limit")).collect()
}

/// Those due by now, in order, and when the next one is.
fn due<T>(now: Ms, mut deadlines: Vec<(Ms, T)>, limit: i64) -> Due<T>
where
    T: Ord,
{
    deadlines.sort();
    let later = deadlines.split_off(deadlines.partition_point(|(at, _)| *at <= now));
    let next_at = later.first().map(|(at, _)| *at);
    Due { now, items: page(deadlines.into_iter().map(|(_, item)| item), limit), next_at }
}

#[async_trait]
impl Database for SimDatabase {
    fn is_shared(&self) -> bool {
        !self.shared.lock().beside.is_there
    }

    async fn writer(&self) -> Result<Box<dyn Writer>> {
        self.trip().await?;
        let mut state = self.shared.lock();
        let id = state.writers.keys().last().copied().unwrap_or_default() + 1;
        state.writers.insert(id, WriterRow::default());
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
        self.read(move |state| {
            let mut feed = Feed::default();
            for (writer, row) in state.writers.iter().filter(|(writer, _)| !own.contains(writer)) {
                let known = positions.iter().find(|position| position.writer == *writer).map_or(0, |position| position.n);
                let rows: Vec<_> = state.batches.range((*writer, known + 1)..=(*writer, i64::MAX)).take(STEP + 1).collect();
                feed.more |= rows.len() > STEP;
                let first = rows.first().map_or(row.compacted_n.max(known) + 1, |((_, n), _)| *n);
                if first > known + 1 {
                    feed.gap = true;
                }
                for (expected, ((writer, n), batch)) in (first..).zip(rows.into_iter().take(STEP)) {
                    feed.gap |= *n != expected;
                    let at = Position { writer: *writer, n: *n };
                    feed.entries.push(FeedEntry { at, counts: batch.counts.clone(), changes: batch.changes.clone() });
                }
            }
            feed
        })
        .await
    }

    async fn heard(&self) -> Result<()> {
        if !self.is_shared() {
            std::future::pending::<()>().await;
        }
        self.shared.committed.notified().await;
        let is_lost = {
            let mut state = self.shared.lock();
            let percent = state.weather.lost_percent;
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
        let look = |state: &mut State| {
            let mut counts = state.compacted.clone();
            let mut positions = Vec::new();
            for (writer, row) in &state.writers {
                let mut n = row.compacted_n;
                for ((_, number), batch) in state.batches.range((*writer, row.compacted_n + 1)..=(*writer, i64::MAX)) {
                    counts.add(&batch.counts);
                    n = *number;
                }
                positions.push(Position { writer: *writer, n });
            }
            CountsAt { counts, positions }
        };
        let ask = |beside: Arc<dyn Database>| async move { beside.counts().await };
        // Each names its writers in its own way.
        self.read_both(look, ask, |_, found, expected| same_counts(&found.counts, &expected.counts)).await
    }

    async fn task_states(&self, ids: &[TaskId]) -> Result<Vec<TaskState>> {
        let look = |state: &mut State| ids.iter().filter_map(|id| state.memory.tasks.get(id).cloned()).collect();
        let ask = |beside: Arc<dyn Database>| async move { beside.task_states(ids).await };
        self.read_both(look, ask, |_, found, expected: &Vec<TaskState>| same_rows(found, expected, |task| task.id)).await
    }

    async fn workers_by_id(&self, ids: &[WorkerId]) -> Result<Vec<Worker>> {
        let look = |state: &mut State| ids.iter().filter_map(|id| state.memory.workers.get(id).cloned()).collect();
        let ask = |beside: Arc<dyn Database>| async move { beside.workers_by_id(ids).await };
        self.read_both(look, ask, |_, found, expected: &Vec<Worker>| same_rows(found, expected, |worker| worker.id.clone())).await
    }

    async fn workers_page(&self, after: Option<&str>, limit: i64) -> Result<Vec<Worker>> {
        let behind = |worker: &&Worker| after.is_none_or(|after| worker.id.as_str() > after);
        let look = |state: &mut State| page(state.memory.workers.values().filter(behind).cloned(), limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.workers_page(after, limit).await };
        self.read_both(look, ask, |_, found, expected| found == expected).await
    }

    async fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskState>> {
        let behind = |task: &&TaskState| after.is_none_or(|after| task.id > after);
        let look = |state: &mut State| page(state.memory.active().filter(behind).cloned(), limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.active_tasks(after, limit).await };
        self.read_both(look, ask, |_, found, expected| found == expected).await
    }

    async fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>> {
        let look = |state: &mut State| {
            let is_in = |row: &ReadyRow| match scope {
                Scope::All => row.reserved_for.is_none(),
                Scope::Agent(slug) => row.reserved_for.is_none() && row.agent_slug == *slug,
                Scope::Reserved(worker) => row.reserved_for.as_ref() == Some(worker),
            };
            let mut rows: Vec<ReadyRow> = state.memory.tasks.values().filter_map(ReadyRow::of).filter(is_in).collect();
            rows.sort_by_key(ReadyRow::key);
            page(rows.into_iter().filter(|row| after.is_none_or(|after| row.key() > after)), limit)
        };
        let ask = |beside: Arc<dyn Database>| async move { beside.ready_page(scope, after, limit).await };
        self.read_both(look, ask, |_, found, expected| found == expected).await
    }

    async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>> {
        let look = |state: &mut State| ids.iter().filter_map(|id| state.memory.specs.get(id).cloned()).collect();
        let ask = |beside: Arc<dyn Database>| async move { beside.specs(ids).await };
        self.read_both(look, ask, |_, found, expected: &Vec<Arc<TaskSpec>>| same_rows(found, expected, |spec| spec.id)).await
    }

    async fn due_leases(&self, limit: i64) -> Result<Due<(TaskId, LeaseId)>> {
        let look = |state: &mut State| {
            let leases = state.memory.active().filter_map(|task| task.lease.as_ref().map(|lease| (lease.check_at, (task.id, lease.id))));
            due(state.now(), leases.collect(), limit)
        };
        let ask = |beside: Arc<dyn Database>| async move { beside.due_leases(limit).await };
        let at = |state: &State, task: &TaskId| state.memory.tasks.get(task)?.lease.as_ref().map(|lease| lease.check_at);
        self.read_both(look, ask, |state, found, expected| same_due(found, expected, limit, |(task, _)| at(state, task))).await
    }

    async fn leases_beyond_ttl(&self, limit: i64) -> Result<Vec<(TaskId, LeaseId)>> {
        let look = |state: &mut State| {
            let now = state.now();
            let leases = state.memory.active().filter_map(|task| Some((task.id, task.lease.as_ref()?)));
            page(
                leases.filter(|(_, lease)| lease.expires_at.max(lease.check_at) > now + lease.ttl_ms).map(|(task, lease)| (task, lease.id)),
                limit,
            )
        };
        let ask = |beside: Arc<dyn Database>| async move { beside.leases_beyond_ttl(limit).await };
        self.read_both(look, ask, |_, found, expected: &Vec<_>| same_page(found, expected, limit)).await
    }

    async fn due_tasks(&self, limit: i64) -> Result<Due<TaskId>> {
        let look = |state: &mut State| {
            let tasks = state.memory.tasks.values().filter_map(|task| Some((task.wake_at?, task.id)));
            due(state.now(), tasks.collect(), limit)
        };
        let ask = |beside: Arc<dyn Database>| async move { beside.due_tasks(limit).await };
        let at = |state: &State, task: &TaskId| state.memory.tasks.get(task)?.wake_at;
        self.read_both(look, ask, |state, found, expected| same_due(found, expected, limit, |task| at(state, task))).await
    }

    async fn silent_workers(&self, silent_for_ms: i64, limit: i64) -> Result<Due<WorkerId>> {
        let look = |state: &mut State| {
            let now = state.now();
            let counted = state.memory.workers.values().filter(|worker| !worker.lost && worker.status != WorkerStatus::Offline);
            let deadline = |worker: &Worker| if worker.last_seen > now + 1_000 { now } else { worker.last_seen + silent_for_ms + 1 };
            due(now, counted.map(|worker| (deadline(worker), worker.id.clone())).collect(), limit)
        };
        let ask = |beside: Arc<dyn Database>| async move { beside.silent_workers(silent_for_ms, limit).await };
        self.read_both(look, ask, |_, found, expected| same_due(found, expected, limit, |_| None)).await
    }

    async fn wakeups(&self, after: Option<WakeupId>, limit: i64) -> Result<Vec<Wakeup>> {
        let behind = |wakeup: &&Wakeup| after.is_none_or(|after| wakeup.id > after);
        let look = |state: &mut State| page(state.memory.wakeups.values().filter(behind).cloned(), limit);
        let ask = |beside: Arc<dyn Database>| async move { beside.wakeups(after, limit).await };
        self.read_both(look, ask, |_, found, expected| found == expected).await
    }

    async fn waiters(&self, wakeup: &Wakeup, limit: i64) -> Result<Waiters> {
        let look = |state: &mut State| state.memory.waiters(wakeup, usize::try_from(limit).expect("a limit"));
        let ask = |beside: Arc<dyn Database>| async move { beside.waiters(wakeup, limit).await };
        self.read_both(look, ask, |_, found, expected| found == expected).await
    }

    async fn lead(&self, holder: &str, ttl_ms: i64) -> Result<Option<i64>> {
        if !self.is_shared() {
            return Ok(Some(1));
        }
        let holder = holder.to_owned();
        self.read(move |state| {
            let now = state.now();
            let epoch = match &state.leader {
                Some(leader) if leader.holder == holder => leader.epoch,
                Some(leader) if leader.expires_at >= now && leader.expires_at <= now + ttl_ms => return None,
                Some(leader) => leader.epoch + 1,
                None => 1,
            };
            state.leader = Some(LeaderRow { holder, epoch, expires_at: now + ttl_ms });
            Some(epoch)
        })
        .await
    }

    async fn resign(&self, holder: &str) -> Result<()> {
        let holder = holder.to_owned();
        self.read(move |state| {
            if let Some(leader) = state.leader.as_mut().filter(|leader| leader.holder == holder) {
                leader.expires_at = 0;
            }
        })
        .await
    }

    async fn mark_served(&self) -> Result<Service> {
        self.read(|state| {
            let now = state.now();
            if (now - state.served_at).abs() > GAP_MS {
                state.resumed_at = now;
            }
            state.served_at = now;
            Service { now, resumed_at: state.resumed_at }
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
}

/// The tasks by what is counted.
pub fn counted(state: &State) -> Counts {
    let mut counts = Counts::new();
    for task in state.memory.tasks.values() {
        *counts.entry((task.agent_slug.clone(), task.priority, task.status)).or_default() += 1;
    }
    counts
}

/// Whether all tasks are over.
pub fn is_quiet(state: &State) -> bool {
    state.memory.tasks.values().all(|task| task.status.is_final() && task.status != Status::Queued) && state.memory.wakeups.is_empty()
}
