//! The state that all replicas share: the database, its clock, and its current faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::command::RowKeys;
use bloom_core::ids::{IdSource, TaskId, WorkerId};
use bloom_core::task::Status;
use bloom_database::Error;
use bloom_test_database::tables::{START, Tables};
use bloom_test_world::memory::Memory;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::invariants::InvariantChecker;
use crate::mirror::{Beside, Mirror};

/// The server ends a transaction whose client has been silent for this long.
pub const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(1);

/// The writer id of another program that locks rows.
pub const OUTSIDER: i64 = -1;

/// Random choices from one seed.
pub struct Dice(IdSource);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(IdSource::new(0, seed))
    }

    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A short random range below `of`.
    pub fn some(&mut self, of: usize) -> std::ops::Range<usize> {
        let from = self.below(of as u64) as usize;
        from..(from + self.below(4) as usize).min(of)
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// An open transaction, its locks, and when its client was last active.
#[derive(Debug)]
pub struct Transaction {
    pub writer: i64,
    /// The mirror has also begun this transaction.
    pub is_beside: bool,
    pub tasks: BTreeSet<TaskId>,
    pub workers: BTreeSet<WorkerId>,
    pub queues: QueueLocks,
    /// It changes projects, which no other does meanwhile.
    pub projects: bool,
    pub active_at: Instant,
}

/// What a transaction has locked of the queues.
#[derive(Debug, Default)]
pub struct QueueLocks {
    /// It may make leases, so no queue may change.
    pub is_shared: bool,
    /// It changes queues, so no lease may be made.
    pub is_exclusive: bool,
    /// The limited queues whose leases it counts.
    pub limited: BTreeSet<String>,
}

impl QueueLocks {
    pub fn of(memory: &Memory, keys: &RowKeys, tasks: &BTreeSet<TaskId>) -> Self {
        let queued = tasks.iter().filter_map(|id| memory.tasks.get(id)).filter(|task| task.status == Status::Queued);
        let slugs = queued.filter(|_| keys.places).map(|task| task.agent_slug.clone()).chain(keys.queues.iter().cloned());
        Self {
            // The statement that locks workers locks the queues too.
            is_shared: keys.places || keys.all_workers || !keys.workers.is_empty(),
            is_exclusive: !keys.queues.is_empty(),
            limited: slugs.filter(|slug| memory.limit(slug).is_some()).collect(),
        }
    }

    pub fn excludes(&self, other: &Self) -> bool {
        let both = |a: &Self, b: &Self| a.is_exclusive && (b.is_shared || b.is_exclusive);
        both(self, other) || both(other, self) || !self.limited.is_disjoint(&other.limited)
    }
}

/// The delays and the error rates of statements at the moment.
#[derive(Clone, Copy, Debug)]
pub struct FaultRates {
    /// The most time that a statement takes, in milliseconds.
    pub latency_ms: u64,
    /// The percentage of statements that take up to a hundred times as long.
    pub slow_percent: u64,
    /// How many of a thousand commits lose their connection.
    pub doubt_per_mille: u64,
    /// The percentage of notifications that are lost.
    pub lost_percent: u64,
}

pub const NO_FAULTS: FaultRates = FaultRates { latency_ms: 2, slow_percent: 0, doubt_per_mille: 0, lost_percent: 0 };

pub struct State {
    pub tables: Tables,
    pub transactions: BTreeMap<u64, Transaction>,
    pub next_transaction: u64,
    pub is_unavailable: bool,
    pub fault_rates: FaultRates,
    pub clock_offset: Ms,
    /// The largest offset that the clock has had.
    furthest_offset: Ms,
    pub dice: Dice,
    pub started: Instant,
    /// A hash of what happened; two runs of a seed must have the same.
    pub trace: u64,
    pub commits: u64,
    pub checker: InvariantChecker,
    pub is_quiet_phase: bool,
    pub beside: Beside,
}

#[derive(Clone)]
pub struct Shared {
    state: Arc<Mutex<State>>,
    /// Locks were released.
    pub unlocked: Arc<Notify>,
    /// There was a commit.
    pub committed: Arc<Notify>,
}

impl Shared {
    pub fn new(seed: u64, mirror: Option<Arc<dyn Mirror>>) -> Self {
        let state = State {
            tables: Tables::default(),
            transactions: BTreeMap::new(),
            next_transaction: 1,
            is_unavailable: false,
            fault_rates: NO_FAULTS,
            clock_offset: 0,
            furthest_offset: 0,
            dice: Dice::new(seed),
            started: Instant::now(),
            trace: seed,
            commits: 0,
            checker: InvariantChecker::default(),
            is_quiet_phase: false,
            beside: Beside::new(mirror),
        };
        Self { state: Arc::new(Mutex::new(state)), unlocked: Arc::new(Notify::new()), committed: Arc::new(Notify::new()) }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the state")
    }
}

impl State {
    /// The database's clock.
    pub fn now(&self) -> Ms {
        START + self.elapsed_ms() + self.clock_offset
    }

    pub fn elapsed_ms(&self) -> Ms {
        Ms::try_from(self.started.elapsed().as_millis()).expect("a short run")
    }

    pub fn step_clock(&mut self, step: Ms) {
        self.checker.has_clock_steps = true;
        self.clock_offset += step;
        self.furthest_offset = self.furthest_offset.max(self.clock_offset);
    }

    /// Sets the clock to the furthest time that it has shown, so that no task waits for a time that only a clock ahead has shown.
    pub fn put_clock_right(&mut self) {
        self.clock_offset = self.furthest_offset;
    }

    pub fn latency(&mut self) -> Duration {
        let FaultRates { latency_ms, slow_percent, .. } = self.fault_rates;
        let most = if self.dice.chance(slow_percent) { latency_ms * 100 } else { latency_ms };
        // Whole milliseconds, because the runtime's timers are not finer, and rounding would depend on the machine's clock.
        Duration::from_millis(self.dice.below(most + 1))
    }

    pub fn reachable(&self) -> Result<(), Error> {
        if self.is_unavailable { Err(Error::Unavailable("the database is away".into())) } else { Ok(()) }
    }

    pub fn record(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
    }

    /// Locks those of these rows that no transaction has locked.
    pub fn lock_from_outside(&mut self, tasks: &[TaskId], workers: &[WorkerId]) {
        let others = || self.transactions.values();
        let tasks = tasks.iter().filter(|id| !others().any(|other| other.tasks.contains(*id))).copied().collect();
        let workers = workers.iter().filter(|id| !others().any(|other| other.workers.contains(*id))).cloned().collect();
        let id = self.next_transaction;
        self.next_transaction += 1;
        self.transactions.insert(
            id,
            Transaction {
                writer: OUTSIDER,
                is_beside: false,
                tasks,
                workers,
                queues: QueueLocks::default(),
                projects: false,
                active_at: Instant::now(),
            },
        );
    }

    /// Ends transactions whose clients are silent, as the server does.
    pub fn end_idle_transactions(&mut self) {
        self.end_transactions(|transaction| transaction.writer != OUTSIDER && transaction.active_at.elapsed() >= IDLE_IN_TRANSACTION);
    }

    pub fn end_transactions(&mut self, is_over: impl Fn(&Transaction) -> bool) {
        let over: Vec<u64> = self.transactions.iter().filter(|(_, transaction)| is_over(transaction)).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.end_transaction(id));
    }

    pub fn end_transaction(&mut self, id: u64) {
        if let Some(transaction) = self.transactions.remove(&id).filter(|transaction| transaction.is_beside) {
            self.rollback_beside(transaction.writer);
        }
    }
}
