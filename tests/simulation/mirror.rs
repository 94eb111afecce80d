//! The mirror: a real database beside the simulated one. Every call of the engine is executed on both, and the results must be equal.
//!
//! A call on the mirror takes no virtual time, because the simulation's thread waits until it is done.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bloom_core::Ms;
use bloom_core::audit::AuditEntry;
use bloom_core::command::RowKeys;
use bloom_core::ids::WorkerId;
use bloom_core::working_set::{Loaded, WorkingSet};
use bloom_database::{CountDeltas, Database, Done, DuePage, LockWait, Maintenance, Result, Writer};

use crate::shared::State;
use bloom_test_database::tables::Tables;
use bloom_test_world::memory::{Conflict, Memory};

pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How long a real database keeps the row of a removed worker.
const TOMBSTONE_MS: Ms = 3_600_000;

#[async_trait]
pub trait Mirror: Send + Sync {
    /// Sets its clock, and returns the database.
    fn at(&self, now: Ms) -> Arc<dyn Database>;

    /// Runs the work to its end in another thread; `Err` with the message if it panicked.
    fn carry(&self, work: Work<'_, ()>) -> std::result::Result<(), String>;

    /// Panics if the mirror has loaded other rows than memory.
    fn assert_same(&self, found: &Loaded, expected: &Loaded);

    /// Whether the writer's batch of this number has committed.
    async fn has_batch(&self, writer: i64, n: i64) -> bool;

    /// Panics if any table differs.
    async fn assert_all(&self, memory: &Memory, now: Ms);
}

/// The mirror of a run, and its state.
#[derive(Default)]
pub struct Beside {
    /// Whether the run began with a mirror. `mirror` becomes `None` after the first difference.
    pub is_there: bool,
    pub mirror: Option<Arc<dyn Mirror>>,
    writers: BTreeMap<i64, Box<dyn Writer>>,
    /// All audit entries, because the checker takes those of memory at each commit.
    pub audit: Vec<AuditEntry>,
    pub removed_at: BTreeMap<WorkerId, Ms>,
}

impl Beside {
    pub fn new(mirror: Option<Arc<dyn Mirror>>) -> Self {
        Self { is_there: mirror.is_some(), mirror, ..Self::default() }
    }
}

impl State {
    /// Executes a call on the mirror. `None` if there is no mirror, or if the call panicked, which adds a complaint.
    fn beside<T: Send, W: Future<Output = T> + Send>(&mut self, what: &str, call: impl FnOnce(Arc<dyn Database>) -> W) -> Option<T> {
        let mirror = self.beside.mirror.clone()?;
        let work = call(mirror.at(self.now()));
        let mut answer = None;
        let kept = &mut answer;
        let carried = mirror.carry(Box::pin(async move { *kept = Some(work.await) }));
        if let Err(text) = carried {
            self.differs(format!("{what}: {text}"));
        }
        answer
    }

    /// Records a difference and stops the comparison, because all later differences would follow from this one.
    fn differs(&mut self, text: String) {
        self.beside.mirror = None;
        self.beside.writers.clear();
        self.checker.violations.push(format!("the mirror differs: {text}"));
    }

    fn expect(&mut self, holds: bool, what: &str, found: &dyn Debug, expected: &dyn Debug) {
        if !holds {
            self.differs(format!("{what}: found {found:#?}, expected {expected:#?}"));
        }
    }

    /// Compares the result with that of the mirror.
    pub fn compare<T: Debug + Send, W: Future<Output = Result<T>> + Send>(
        &mut self,
        what: &str,
        expected: &T,
        ask: impl FnOnce(Arc<dyn Database>) -> W,
        is_same: impl FnOnce(&Self, &T, &T) -> bool,
    ) {
        match self.beside(what, ask) {
            Some(Ok(found)) => {
                let holds = is_same(self, &found, expected);
                self.expect(holds, what, &found, expected);
            }
            Some(Err(error)) => self.differs(format!("{what}: {error}")),
            None => {}
        }
    }

    /// Executes a call on a writer of the mirror; `call` returns the writer.
    fn write_beside<T: Send, W: Future<Output = (Box<dyn Writer>, T)> + Send>(
        &mut self,
        what: &str,
        writer: i64,
        call: impl FnOnce(Box<dyn Writer>) -> W,
    ) -> Option<T> {
        let own = self.beside.writers.remove(&writer)?;
        let (own, answer) = self.beside(what, |_| call(own))?;
        self.beside.writers.insert(writer, own);
        Some(answer)
    }

    /// Opens the mirror's writer for a new process. The process before may have died in a transaction, so its connection is dropped.
    pub fn open_beside(&mut self, writer: i64) {
        self.end_transactions(|_| true);
        self.beside.writers.clear();
        match self.beside("opening a writer", |database| async move { database.writer().await }) {
            Some(Ok(opened)) => drop(self.beside.writers.insert(writer, opened)),
            Some(Err(error)) => self.differs(format!("opening a writer: {error}")),
            None => {}
        }
    }

    pub fn load_beside(&mut self, writer: i64, keys: &RowKeys, expected: &Loaded) {
        let Some(mirror) = self.beside.mirror.clone() else { return };
        self.is_in_transaction_beside(writer, true);
        let outcome = self.write_beside("a load", writer, |mut own| async move {
            let found = own.begin_and_load(keys, LockWait::Long).await;
            (own, found.map(|found| mirror.assert_same(&found, expected)))
        });
        if let Some(Err(error)) = outcome {
            self.differs(format!("a load: {error}"));
        }
    }

    fn is_in_transaction_beside(&mut self, writer: i64, is_beside: bool) {
        let own = self.transactions.values_mut().filter(|transaction| transaction.writer == writer);
        own.for_each(|transaction| transaction.is_beside = is_beside);
    }

    pub fn rollback_beside(&mut self, writer: i64) {
        let outcome = self.write_beside("a rollback", writer, |mut own| async move {
            let outcome = own.rollback().await;
            (own, outcome)
        });
        if let Some(Err(error)) = outcome {
            self.differs(format!("a rollback: {error}"));
        }
    }

    /// Saves on the mirror; `n` is the number of the batch if it commits.
    pub fn save_beside(&mut self, writer: i64, n: i64, set: &WorkingSet, expected: std::result::Result<(), Conflict>) {
        // With a mirror there is one replica, so the epoch is not checked.
        let found = self.write_beside("a save", writer, |mut own| async move {
            let saved = own.save(set, None).await.map(|()| own.n());
            (own, saved)
        });
        let Some(found) = found else { return };
        let holds = match (&found, expected) {
            (Ok(found), Ok(())) => *found == n,
            (Err(error), Err(_)) => error.is_conflict(),
            _ => false,
        };
        if found.is_ok() {
            self.beside.removed_at.extend(set.dirty.removed_workers.iter().map(|id| (id.clone(), set.now())));
            self.is_in_transaction_beside(writer, false);
        }
        self.expect(holds, "a save", &(&found, &set.dirty), &expected.map(|()| n));
    }

    /// Compares the outcome of a commit that was unknown. The mirror's connection never broke, so for a commit that arrived, only its row
    /// is checked.
    pub fn resolve_beside(&mut self, writer: i64, n: i64, expected: bool) {
        let Some(mirror) = self.beside.mirror.clone() else { return };
        let outcome = self.write_beside("settling a commit", writer, |mut own| async move {
            let found = if expected { Ok(mirror.has_batch(own.id(), n).await) } else { own.resolve_commit().await };
            (own, found)
        });
        if let Some(found) = outcome {
            self.expect(found == Ok(expected), "settling a commit", &found, &expected);
        }
    }

    pub fn maintain_beside(&mut self, writer: i64, job: &Maintenance, expected: &Done) {
        let found = self.write_beside("maintenance", writer, |mut own| async move {
            let done = own.maintain(job).await;
            (own, done)
        });
        let Some(found) = found else { return };
        let print = |done: &Done| {
            let mut removed = done.removed.clone();
            removed.sort_unstable();
            (removed, done.counts.clone(), done.is_batch)
        };
        let holds = found.as_ref().is_ok_and(|found| print(found) == print(expected));
        self.expect(holds, &format!("{job:?}"), &found, expected);
        let counts = CountDeltas { tasks: self.tables.memory.counts.clone(), leases: self.tables.memory.leases_granted };
        let ask = |database: Arc<dyn Database>| async move { Ok(database.counts().await?.counts) };
        self.compare("the counts after maintenance", &counts, ask, |_, found, expected| same_counts(found, expected));
    }

    /// Removes old rows of removed workers from memory, as the mirror's maintenance does.
    pub fn forget_removed_workers(&mut self) {
        let before = self.now() - TOMBSTONE_MS;
        let Self { tables: Tables { memory, .. }, beside, .. } = self;
        memory.tombstones.retain(|id, _| beside.removed_at.get(id).is_none_or(|at| *at >= before));
    }

    /// Compares all tables at the end of a run.
    pub fn compare_all(&mut self) {
        let Some(mirror) = self.beside.mirror.clone() else { return };
        self.end_transactions(|_| true);
        self.beside.writers.clear();
        let mut memory = self.tables.memory.clone();
        memory.audit = std::mem::take(&mut self.beside.audit);
        let now = self.now();
        self.beside("all tables at the end", |_| async move { mirror.assert_all(&memory, now).await });
    }
}

/// Compares rows in any order.
pub fn same_rows<'a, T: PartialEq, K: Ord>(found: &'a [T], expected: &'a [T], key: impl Fn(&'a T) -> K) -> bool {
    let sorted = |rows: &'a [T]| {
        let mut keys: Vec<_> = rows.iter().enumerate().map(|(at, row)| (key(row), at)).collect();
        keys.sort();
        keys
    };
    let (left, right) = (sorted(found), sorted(expected));
    left.len() == right.len() && left.iter().zip(&right).all(|((_, left), (_, right))| found[*left] == expected[*right])
}

/// Compares what is due: the longest due first, and equal deadlines in any order. At the end of a full page, any of the items with equal
/// deadlines may be missing.
pub fn same_due<T: Ord>(found: &DuePage<T>, expected: &DuePage<T>, limit: i64, at: impl Fn(&T) -> Option<Ms>) -> bool {
    let is_full = expected.items.len() as i64 >= limit;
    let rows = || same_rows(&found.items, &expected.items, |item| item) && found.next_at == expected.next_at;
    found.now == expected.now && found.items.iter().map(&at).eq(expected.items.iter().map(&at)) && (is_full || rows())
}

pub fn same_page<T: Ord>(found: &[T], expected: &[T], limit: i64) -> bool {
    found.len() == expected.len() && (found.len() as i64 >= limit || same_rows(found, expected, |row| row))
}

pub fn same_counts(found: &CountDeltas, expected: &CountDeltas) -> bool {
    let counted =
        |counts: &CountDeltas| counts.tasks.iter().filter(|(_, n)| **n != 0).map(|(key, n)| (key.clone(), *n)).collect::<Vec<_>>();
    found.leases == expected.leases && counted(found) == counted(expected)
}
