//! The tables that replicas share, and the effects of statements on them. Nothing here takes time or fails; the databases that use these
//! tables add delays and errors.

use std::collections::{BTreeMap, BTreeSet};

use bloom_core::Ms;
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::cache::{ReadyRow, Scope};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{Status, TaskState};
use bloom_core::wakeup::{Waiters, Wakeup, WakeupId};
use bloom_core::worker::{Worker, WorkerStatus};
use bloom_core::working_set::Counts;
use bloom_database::{Changed, CountDeltas, CountsAt, Done, DuePage, Feed, FeedEntry, Position, Service};
use bloom_test_world::memory::Memory;

pub const START: Ms = 1_800_000_000_000;
/// The most batches per writer that one read of the feed returns.
const STEP: usize = 16;
/// More time than this between two service marks is a gap.
const GAP_MS: Ms = 1_500;

/// The row that a commit leaves in the feed.
#[derive(Clone, Debug)]
pub struct BatchRow {
    pub at: Ms,
    pub counts: CountDeltas,
    pub changes: Changed,
    /// The number was taken to resolve a commit with an unknown outcome, so the batch did not commit.
    pub is_void: bool,
}

#[derive(Clone, Debug, Default)]
pub struct WriterRow {
    pub compacted_n: i64,
}

#[derive(Clone, Debug)]
pub struct LeaderRow {
    pub holder: String,
    pub epoch: i64,
    pub expires_at: Ms,
}

#[derive(Debug, Default)]
pub struct Tables {
    pub memory: Memory,
    pub batches: BTreeMap<(i64, i64), BatchRow>,
    pub writers: BTreeMap<i64, WriterRow>,
    pub compacted: CountDeltas,
    pub leader: Option<LeaderRow>,
    pub served_at: Ms,
    pub resumed_at: Ms,
}

/// The first `limit` rows.
fn page<T>(rows: impl Iterator<Item = T>, limit: i64) -> Vec<T> {
    rows.take(usize::try_from(limit).expect("a limit")).collect()
}

/// The items that are due now, in order, and the next deadline.
fn due<T: Ord>(now: Ms, deadlines: impl Iterator<Item = (Ms, T)>, limit: i64) -> DuePage<T> {
    let mut deadlines: Vec<_> = deadlines.collect();
    deadlines.sort();
    let later = deadlines.split_off(deadlines.partition_point(|(at, _)| *at <= now));
    let next_at = later.first().map(|(at, _)| *at);
    DuePage { now, items: page(deadlines.into_iter().map(|(_, item)| item), limit), next_at }
}

// Writes.
impl Tables {
    pub fn register_writer(&mut self) -> i64 {
        let id = self.writers.keys().last().copied().unwrap_or_default() + 1;
        self.writers.insert(id, WriterRow::default());
        id
    }

    /// Adds the row of a commit.
    pub fn record(&mut self, at: Position, now: Ms, counts: CountDeltas, changes: Changed) {
        self.batches.insert((at.writer, at.n), BatchRow { at: now, counts, changes, is_void: false });
    }

    /// Takes the batch's number unless the batch has committed; returns whether it has.
    pub fn resolve(&mut self, batch: Position, now: Ms) -> bool {
        let void = BatchRow { at: now, counts: CountDeltas::default(), changes: Changed::default(), is_void: true };
        !self.batches.entry((batch.writer, batch.n)).or_insert(void).is_void
    }

    pub fn compact(&mut self) {
        for (writer, WriterRow { compacted_n }) in &mut self.writers {
            for ((_, n), batch) in self.batches.range((*writer, *compacted_n + 1)..=(*writer, i64::MAX)) {
                self.compacted.add(&batch.counts);
                *compacted_n = *n;
            }
        }
    }

    /// Removes old batches. The newest of each writer stays, because it resolves a commit whose outcome is unknown.
    pub fn prune_batches(&mut self, before: Ms) {
        let Self { writers, batches, .. } = self;
        let newest: BTreeMap<i64, i64> = batches.keys().copied().collect();
        batches.retain(|(writer, n), batch| batch.at >= before || *n > writers[writer].compacted_n || newest[writer] == *n);
    }

    /// Removes these finished tasks, except for those that a queued task depends on.
    pub fn remove_tasks(&mut self, is_due: impl Fn(&TaskState) -> bool, limit: i64) -> Done {
        let memory = &self.memory;
        let is_awaited =
            |id: &TaskId| memory.specs.values().any(|spec| spec.depends_on.contains(id) && memory.tasks[&spec.id].status == Status::Queued);
        let over = memory.tasks.values().filter(|task| is_due(task)).map(|task| task.id).filter(|id| !is_awaited(id));
        let removed = page(over, limit);
        let mut counts = CountDeltas::default();
        for id in &removed {
            let task = self.memory.remove_task(*id);
            *counts.tasks.entry((task.agent_slug, task.priority, task.status)).or_default() -= 1;
        }
        Done { rows: removed.len() as u64, is_batch: !removed.is_empty(), removed, counts }
    }
}

// Reads of the replica cache.
impl Tables {
    pub fn feed(&self, positions: &[Position], own: &[i64]) -> Feed {
        let mut feed = Feed::default();
        for (writer, row) in self.writers.iter().filter(|(writer, _)| !own.contains(writer)) {
            let known = positions.iter().find(|position| position.writer == *writer).map_or(0, |position| position.n);
            let rows: Vec<_> = self.batches.range((*writer, known + 1)..=(*writer, i64::MAX)).take(STEP + 1).collect();
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
    }

    pub fn counts(&self) -> CountsAt {
        let mut counts = self.compacted.clone();
        let mut positions = Vec::new();
        for (writer, row) in &self.writers {
            let mut n = row.compacted_n;
            for ((_, number), batch) in self.batches.range((*writer, row.compacted_n + 1)..=(*writer, i64::MAX)) {
                counts.add(&batch.counts);
                n = *number;
            }
            positions.push(Position { writer: *writer, n });
        }
        CountsAt { counts, positions }
    }

    /// What must be added to the counts to correct them.
    pub fn count_errors(&self) -> CountDeltas {
        let CountsAt { counts, .. } = self.counts();
        let mut missing = CountDeltas { tasks: self.counted(), leases: self.memory.leases_granted - counts.leases };
        for (key, n) in counts.tasks {
            *missing.tasks.entry(key).or_default() -= n;
        }
        missing.tasks.retain(|_, n| *n != 0);
        missing
    }

    /// The true counts of the tasks.
    pub fn counted(&self) -> Counts {
        let mut counts = Counts::new();
        for task in self.memory.tasks.values() {
            *counts.entry((task.agent_slug.clone(), task.priority, task.status)).or_default() += 1;
        }
        counts
    }

    pub fn task_states(&self, ids: &[TaskId]) -> Vec<TaskState> {
        ids.iter().filter_map(|id| self.memory.tasks.get(id).cloned()).collect()
    }

    pub fn workers_by_id(&self, ids: &[WorkerId]) -> Vec<Worker> {
        ids.iter().filter_map(|id| self.memory.workers.get(id).cloned()).collect()
    }

    pub fn workers_page(&self, after: Option<&str>, limit: i64) -> Vec<Worker> {
        page(self.memory.workers.values().filter(|worker| after.is_none_or(|after| worker.id.as_str() > after)).cloned(), limit)
    }

    pub fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Vec<TaskState> {
        page(self.memory.active().filter(|task| after.is_none_or(|after| task.id > after)).cloned(), limit)
    }

    pub fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Vec<ReadyRow> {
        let is_in = |row: &ReadyRow| scope.has(row);
        let mut rows: Vec<ReadyRow> = self.memory.tasks.values().filter_map(ReadyRow::of).filter(is_in).collect();
        rows.sort_by_key(ReadyRow::key);
        page(rows.into_iter().filter(|row| after.is_none_or(|after| row.key() > after)), limit)
    }
}

// Reads about queues.
impl Tables {
    pub fn queues(&self) -> Vec<AgentQueue> {
        let mut queues = self.memory.queues.clone();
        queues.entry(ALL_QUEUES.to_owned()).or_default();
        queues.into_values().collect()
    }

    pub fn closed_queues(&self) -> Vec<String> {
        let memory = &self.memory;
        memory
            .queues
            .values()
            .filter(|queue| queue.closed(memory.active_of(&queue.agent_slug)).is_some())
            .map(|queue| queue.agent_slug.clone())
            .collect()
    }

    pub fn ready_agents(&self) -> Vec<String> {
        let agents: BTreeSet<String> =
            self.memory.tasks.values().filter(|task| task.is_ready()).map(|task| task.agent_slug.clone()).collect();
        agents.into_iter().collect()
    }
}

// Reads and writes of the reconcilers.
impl Tables {
    pub fn due_leases(&self, now: Ms, limit: i64) -> DuePage<(TaskId, LeaseId)> {
        let leases = self.memory.active().filter_map(|task| task.lease.as_ref().map(|lease| (lease.check_at, (task.id, lease.id))));
        due(now, leases, limit)
    }

    pub fn leases_beyond_ttl(&self, now: Ms, limit: i64) -> Vec<(TaskId, LeaseId)> {
        let leases = self.memory.active().filter_map(|task| Some((task.id, task.lease.as_ref()?)));
        let beyond = leases.filter(|(_, lease)| lease.expires_at.max(lease.check_at) > now + lease.ttl_ms);
        page(beyond.map(|(task, lease)| (task, lease.id)), limit)
    }

    pub fn due_tasks(&self, now: Ms, limit: i64) -> DuePage<TaskId> {
        due(now, self.memory.tasks.values().filter_map(|task| Some((task.wake_at?, task.id))), limit)
    }

    pub fn silent_workers(&self, now: Ms, silent_for_ms: i64, limit: i64) -> DuePage<WorkerId> {
        let counted = self.memory.workers.values().filter(|worker| !worker.lost && worker.status != WorkerStatus::Offline);
        let deadline = |worker: &Worker| if worker.last_seen > now + 1_000 { now } else { worker.last_seen + silent_for_ms + 1 };
        due(now, counted.map(|worker| (deadline(worker), worker.id.clone())), limit)
    }

    pub fn wakeups(&self, after: Option<WakeupId>, limit: i64) -> Vec<Wakeup> {
        page(self.memory.wakeups.values().filter(|wakeup| after.is_none_or(|after| wakeup.id > after)).cloned(), limit)
    }

    pub fn waiters(&self, wakeup: &Wakeup, limit: i64) -> Waiters {
        self.memory.waiters(wakeup, usize::try_from(limit).expect("a limit"))
    }

    pub fn lead(&mut self, now: Ms, holder: &str, ttl_ms: i64) -> Option<i64> {
        let epoch = match &self.leader {
            Some(leader) if leader.holder == holder => leader.epoch,
            Some(leader) if leader.expires_at >= now && leader.expires_at <= now + ttl_ms => return None,
            Some(leader) => leader.epoch + 1,
            None => 1,
        };
        self.leader = Some(LeaderRow { holder: holder.to_owned(), epoch, expires_at: now + ttl_ms });
        Some(epoch)
    }

    pub fn resign(&mut self, holder: &str) {
        if let Some(leader) = self.leader.as_mut().filter(|leader| leader.holder == holder) {
            leader.expires_at = 0;
        }
    }

    /// Whether the leadership of this epoch still lasts.
    pub fn is_led(&self, now: Ms, epoch: i64) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.epoch == epoch && leader.expires_at > now)
    }

    pub fn mark_served(&mut self, now: Ms) -> Service {
        if (now - self.served_at).abs() > GAP_MS {
            self.resumed_at = now;
        }
        self.served_at = now;
        Service { now, resumed_at: self.resumed_at }
    }
}
