//! A connection for writing. Its transactions lock rows, and may end by the server, by a conflict, or in the middle of a commit.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use bloom_core::command::RowKeys;
use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::working_set::{Loaded, WorkingSet};
use bloom_database::{Changed, CountDeltas, Done, Error, LockWait, Maintenance, Position, Result, Writer};
use bloom_test_database::tables::Tables;
use tokio::time::Instant;

use crate::database::SimDatabase;
use crate::shared::{QueueLocks, State, Transaction};

const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const SHORT_LOCK_TIMEOUT: Duration = Duration::from_millis(50);

pub struct SimWriter {
    database: SimDatabase,
    id: i64,
    n: i64,
    transaction: Option<u64>,
}

impl SimWriter {
    pub fn new(database: SimDatabase, id: i64) -> Self {
        Self { database, id, n: 0, transaction: None }
    }

    /// Waits until no transaction has locked these rows, and locks them. Returns those that it skipped.
    async fn lock(&mut self, keys: &RowKeys, tasks: &BTreeSet<TaskId>, wait: LockWait) -> Result<(BTreeSet<TaskId>, BTreeSet<WorkerId>)> {
        let started = Instant::now();
        loop {
            let unlocked = self.database.shared.unlocked.notified();
            {
                let mut state = self.database.shared.lock();
                state.reachable()?;
                state.end_idle_transactions();
                // Rows that do not exist can't be locked.
                let memory = &state.tables.memory;
                let is_there = |id: &&WorkerId| memory.workers.contains_key(*id) || memory.tombstones.contains_key(*id);
                let all = memory.workers.keys().filter(|_| keys.all_workers);
                let workers: BTreeSet<_> = keys.workers.iter().filter(is_there).chain(all).cloned().collect();
                let others = || state.transactions.values();
                let queues = QueueLocks::of(memory, keys, tasks);
                let are_queues_free = !others().any(|other| other.queues.excludes(&queues) || (other.projects && keys.projects));
                let (taken, tasks): (BTreeSet<_>, _) = tasks.iter().copied().partition(|id| others().any(|other| other.tasks.contains(id)));
                let (taken_workers, workers): (BTreeSet<_>, _) =
                    workers.into_iter().partition(|id| others().any(|other| other.workers.contains(id)));
                // A database that is not shared is locked as a whole.
                let is_free = match state.beside.is_there {
                    true => state.transactions.is_empty(),
                    false => are_queues_free && (wait == LockWait::Skip || taken.is_empty() && taken_workers.is_empty()),
                };
                if is_free {
                    let id = state.next_transaction;
                    state.next_transaction += 1;
                    let transaction = Transaction {
                        writer: self.id,
                        is_beside: false,
                        tasks,
                        workers,
                        queues,
                        projects: keys.projects,
                        active_at: Instant::now(),
                    };
                    state.transactions.insert(id, transaction);
                    self.transaction = Some(id);
                    return Ok((taken, taken_workers));
                }
            }
            if started.elapsed() > if wait == LockWait::Long { LOCK_TIMEOUT } else { SHORT_LOCK_TIMEOUT } {
                return Err(Error::Locked("lock time-out".into()));
            }
            tokio::select! {
                biased;
                () = unlocked => {}
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
            self.database.condition.runs().await;
        }
    }

    /// The next statement of the transaction has arrived. Fails if the server has ended the transaction.
    fn go_on(&self, state: &mut State) -> Result<()> {
        state.reachable()?;
        state.end_idle_transactions();
        let transaction = self.transaction.and_then(|id| state.transactions.get_mut(&id));
        let Some(transaction) = transaction else { return Err(Error::Unavailable("the transaction was ended".into())) };
        transaction.active_at = Instant::now();
        Ok(())
    }

    fn end(&mut self, state: &mut State) {
        if let Some(id) = self.transaction.take() {
            state.end_transaction(id);
        }
        self.database.shared.unlocked.notify_waiters();
    }

    fn record(&mut self, state: &mut State, counts: CountDeltas, changes: Changed) {
        self.n += 1;
        let now = state.now();
        state.tables.record(Position { writer: self.id, n: self.n }, now, counts, changes);
        state.commits += 1;
        state.record((self.id as u64) << 32 | self.n as u64);
    }
}

#[async_trait]
impl Writer for SimWriter {
    fn id(&self) -> i64 {
        self.id
    }

    fn n(&self) -> i64 {
        self.n
    }

    async fn begin_and_load(&mut self, keys: &RowKeys, wait: LockWait) -> Result<Loaded> {
        self.database.trip().await?;
        let (found, tasks) = self.database.shared.lock().tables.memory.look_up(keys);
        self.database.trip().await?;
        let mut locked = tasks.clone();
        locked.extend(keys.tasks.iter().copied());
        let (taken, taken_workers) = self.lock(keys, &locked, wait).await?;
        self.database.trip().await?;
        let mut state = self.database.shared.lock();
        self.go_on(&mut state)?;
        let now = state.now();
        if !state.beside.is_there {
            let mut loaded = state.tables.memory.lock(now, keys, found, tasks);
            loaded.tasks.retain(|id, _| !taken.contains(id));
            loaded.workers.retain(|id, _| !taken_workers.contains(id));
            (loaded.locked_tasks, loaded.locked_workers) = (taken.into_iter().collect(), taken_workers.into_iter().collect());
            return Ok(loaded);
        }
        // Nothing can have changed between the look-up and the lock, so all rows are loaded again at once.
        let loaded = state.tables.memory.load(now, keys);
        state.load_beside(self.id, keys, &loaded);
        Ok(loaded)
    }

    async fn save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> Result<()> {
        self.database.trip().await?;
        let shared = self.database.shared.clone();
        let (is_in_doubt, before);
        {
            let mut state = shared.lock();
            self.go_on(&mut state)?;
            if let Some(epoch) = check_epoch.filter(|_| !state.beside.is_there) {
                let now = state.now();
                if !state.tables.is_led(now, epoch) {
                    return Err(Error::NotLeader);
                }
            }
            before = self.n;
            let per_mille = state.fault_rates.doubt_per_mille;
            is_in_doubt = state.dice.below(1000) < per_mille;
            if is_in_doubt && state.dice.chance(50) {
                self.end(&mut state);
                return Err(Error::CommitUnknown("cut before it arrived".into()));
            }
            let saved = state.tables.memory.save(set);
            let is_empty = state.beside.is_there && set.dirty.is_empty();
            state.save_beside(self.id, if is_empty { self.n } else { self.n + 1 }, set, saved);
            saved.map_err(|index| Error::Conflict(index.into()))?;
            let revision = |id| state.tables.memory.tasks.get(id).map_or(0, |task| task.revision);
            let prints: Vec<u64> = set.dirty.tasks.iter().map(|id| id.as_u128() as u64 ^ revision(id) as u64).collect();
            prints.into_iter().for_each(|print| state.record(print));
            let State { tables: Tables { memory, resumed_at, .. }, checker, is_quiet_phase, beside, .. } = &mut *state;
            let audit = std::mem::take(&mut memory.audit);
            checker.heed_queues(memory, set);
            checker.check_commit(memory, set, &audit, *is_quiet_phase, *resumed_at);
            beside.audit.extend(audit.into_iter().filter(|_| beside.is_there));
            if !is_empty {
                self.record(&mut state, CountDeltas::of(set), Changed::of(set));
            }
            if is_in_doubt {
                // The writer does not learn of its commit.
                self.n = before;
            }
            self.end(&mut state);
        }
        if is_in_doubt {
            return Err(Error::CommitUnknown("cut after it arrived".into()));
        }
        // The batch is committed, and its answer is on its way. If the process freezes here, other replicas learn of the commit first.
        match self.database.trip().await {
            Ok(()) => Ok(()),
            Err(_) => {
                self.n = before;
                Err(Error::CommitUnknown("the database went away".into()))
            }
        }
    }

    async fn rollback(&mut self) -> Result<()> {
        let shared = self.database.shared.clone();
        self.end(&mut shared.lock());
        self.database.trip().await
    }

    async fn resolve_commit(&mut self) -> Result<bool> {
        self.database.trip().await?;
        let shared = self.database.shared.clone();
        let mut state = shared.lock();
        let now = state.now();
        let committed = state.tables.resolve(Position { writer: self.id, n: self.n + 1 }, now);
        state.resolve_beside(self.id, self.n + 1, committed);
        self.n += 1;
        Ok(committed)
    }

    async fn maintain(&mut self, job: &Maintenance) -> Result<Done> {
        self.database.trip().await?;
        let shared = self.database.shared.clone();
        let mut state = shared.lock();
        match job {
            Maintenance::CompactCounts => {
                state.tables.compact();
                state.maintain_beside(self.id, job, &Done::default());
                Ok(Done::default())
            }
            Maintenance::PruneBatches { older_than_ms } => {
                let before = state.now() - older_than_ms.min(&PRUNED_AFTER_MS);
                state.tables.prune_batches(before);
                let job = Maintenance::PruneBatches { older_than_ms: *older_than_ms.min(&PRUNED_AFTER_MS) };
                state.maintain_beside(self.id, &job, &Done::default());
                state.forget_removed_workers();
                Ok(Done::default())
            }
            Maintenance::RemoveTasks { .. } => {
                let now = state.now();
                let done = state.tables.remove_tasks(|task| task.remove_at.is_some_and(|at| at <= now), i64::MAX);
                if done.is_batch {
                    self.record(&mut state, done.counts.clone(), Changed { removed_tasks: done.removed.clone(), ..Changed::default() });
                }
                state.maintain_beside(self.id, job, &done);
                Ok(done)
            }
            Maintenance::PruneAudit { .. }
            | Maintenance::MoveOutput { .. }
            | Maintenance::SetMark { .. }
            | Maintenance::StoreChunk { .. }
            | Maintenance::DropChunks { .. }
            | Maintenance::RemoveFiles { .. }
            | Maintenance::MoveFile { .. }
            | Maintenance::RecordKeyUses { .. }
            | Maintenance::RecordReconcilers { .. }
            | Maintenance::SetStoredBytes { .. }
            | Maintenance::CorrectCounts { .. } => Ok(Done::default()),
        }
    }

    async fn close(mut self: Box<Self>) {
        let shared = self.database.shared.clone();
        self.end(&mut shared.lock());
    }
}

/// Short, so that a replica that was frozen for some seconds finds a gap in the feed.
const PRUNED_AFTER_MS: i64 = 3_000;
