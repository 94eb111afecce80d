//! A writer: one connection that executes one batch after the other.
//!
//! Nothing cancels a writer in the middle of a query. After a conflict, a batch is decided again on fresh rows. A batch that causes an
//! error is split until the command that causes it is alone. If the outcome of a commit is unknown, it is determined before any command is
//! answered.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::command::{Rejection, Reply, RowKeys};
use bloom_core::decide::decide;
use bloom_core::wakeup::Wakeup;
use bloom_core::working_set::{Halt, Slots, WorkingSet};
use bloom_database::{self as database, Database, Done, LockWait, Maintenance, Position, Writer};
use bloom_telemetry::Metrics;
use tokio::time::Instant;

use super::clock::Clock;
use super::inbox::{Inbox, Pending, Work};
use super::lock_patience::LockPatience;
use super::measure::measure;
use super::random::Random;
use super::replica::feed::Feed;
use super::replica::{OpenRead, Replica};
use super::spans::Spans;
use super::wakeups::Wakeups;
use super::{Error, log_failure};

/// How often a batch is decided again after conflicts.
const CONFLICTS: u32 = 3;
/// How often a command is tried again because it needs more rows or met a lock.
const TRIES: u32 = 8;
/// How long a batch waits for a database that can't be reached.
const PATIENCE: Duration = Duration::from_secs(5);
const RECONNECT_EVERY: Duration = Duration::from_millis(100);

/// What all writers share.
pub(super) struct Shared {
    pub clock: Arc<Clock>,
    pub random: Arc<Random>,
    pub metrics: Metrics,
    pub replica: Arc<Replica>,
    pub feed: Arc<Feed>,
    pub wakeups: Arc<Wakeups>,
    pub spans: Spans,
    pub session_wait_ms: i64,
    pub named_agent_wait_ms: i64,
}

pub(super) struct WriterTask {
    shared: Arc<Shared>,
    name: &'static str,
    writer: Box<dyn Writer>,
    /// The last commit, while its outcome is unknown.
    in_doubt: Option<Doubt>,
    lock_patience: LockPatience,
}

/// A commit whose outcome is unknown.
enum Doubt {
    Batch(Box<WorkingSet>, OpenRead),
    Maintenance,
}

/// The outcome of one try of a batch.
enum Try {
    /// Committed, or there was nothing to write. The outcomes are in the order of the commands.
    Done(Box<WorkingSet>, Vec<Decided>),
    NotLeader,
    Conflict,
    /// Rows were locked for too long. The text is the database's message.
    Locked(String),
    Away,
    /// The database can't be used any more, and waiting does not help.
    Unusable,
    /// The outcome of the commit is unknown. `None` if it can't be determined any more.
    InDoubt(Option<Box<WorkingSet>>),
    Failed(database::Error),
}

/// The outcome of a command, and the wake-ups that it caused.
type Decided = (Result<Reply, Halt>, Vec<Wakeup>);

impl WriterTask {
    pub(crate) async fn open(shared: Arc<Shared>, database: &dyn Database, name: &'static str) -> database::Result<Self> {
        let writer = database.writer().await?;
        let task = Self { shared, name, writer, in_doubt: None, lock_patience: LockPatience::default() };
        task.own();
        Ok(task)
    }

    /// Executes the work from the inbox until the inbox is closed and empty.
    pub(crate) async fn run(mut self, inbox: Arc<Inbox>) {
        while let Some(work) = inbox.next().await {
            match work {
                Work::Batch(batch) => {
                    let again = self.carry_out(batch).await;
                    for pending in again.into_iter().rev() {
                        inbox.push_again(pending);
                    }
                }
                Work::Maintenance(job, reply) => {
                    let done = self.maintain(&job).await;
                    let _ = reply.send(done);
                }
            }
        }
        self.writer.close().await;
    }

    /// Executes a batch and answers its commands. Returns those that must be tried again because they need more rows or met a lock.
    async fn carry_out(&mut self, batch: Vec<Pending>) -> Vec<Pending> {
        let started = Instant::now();
        let mut again = Vec::new();
        let mut parts = vec![batch];
        while let Some(mut batch) = parts.pop() {
            let mut conflicts = 0;
            let mut wait = self.lock_patience.wait();
            loop {
                // The rows that are loaded may be as old as this moment, so the cache must not forget anything that it learns from now on.
                let read = self.shared.replica.begin_read();
                match self.try_once(&batch, conflicts > 0, wait).await {
                    Try::Done(set, outcomes) => {
                        self.shared.metrics.batch(self.name, batch.len(), started.elapsed().as_secs_f64());
                        self.own();
                        let is_committed = !set.dirty.is_empty();
                        self.publish(&set, is_committed.then(|| self.position()), &read);
                        if !set.dirty.queues.is_empty() && self.shared.feed.read_queues().await.is_err() {
                            self.shared.feed.want_rebuild();
                        }
                        again.extend(self.answer(batch, outcomes));
                        break;
                    }
                    Try::NotLeader => {
                        let (led, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|pending| pending.command.epoch.is_some());
                        refuse(led, &Error::Rejected(Rejection::NotLeader));
                        if rest.is_empty() {
                            break;
                        }
                        batch = rest;
                    }
                    Try::Locked(_) if wait != LockWait::Skip => {
                        self.lock_patience.lose(self.name);
                        wait = LockWait::Skip;
                    }
                    Try::Conflict if conflicts < CONFLICTS => conflicts += 1,
                    Try::Conflict if batch.len() == 1 => {
                        refuse(batch, &Error::Busy);
                        break;
                    }
                    Try::Locked(text) if batch.len() == 1 => {
                        refuse(batch, &Error::Locked(text));
                        break;
                    }
                    Try::Away if started.elapsed() < PATIENCE => tokio::time::sleep(RECONNECT_EVERY).await,
                    Try::InDoubt(set) => {
                        self.in_doubt = set.map(|set| Doubt::Batch(set, read));
                        refuse(batch, &Error::Unavailable);
                        break;
                    }
                    Try::Away | Try::Unusable => {
                        refuse(batch, &Error::Unavailable);
                        break;
                    }
                    Try::Failed(error) if batch.len() == 1 => {
                        tracing::error!(writer = self.name, op = batch[0].command.op.name(), %error, "a command failed in the database");
                        refuse(batch, &Error::Internal);
                        break;
                    }
                    Try::Failed(_) | Try::Conflict | Try::Locked(_) => {
                        let half = batch.split_off(batch.len() / 2);
                        parts.push(half);
                        parts.push(batch);
                        break;
                    }
                }
            }
        }
        again
    }

    async fn try_once(&mut self, batch: &[Pending], exact: bool, wait: LockWait) -> Try {
        if let Err(error) = self.settle_doubt().await {
            tracing::debug!(writer = self.name, %error, "the database can't be reached");
            return unavailable(&error);
        }
        let mut keys = RowKeys::default();
        for pending in batch {
            keys.merge(&pending.command.op.keys());
            keys.merge(&pending.extra);
        }
        let loaded = match self.writer.begin_and_load(&keys, wait).await {
            Ok(loaded) => loaded,
            // `Skip` leaves out locked rows, so a whole table must be locked. No command can be executed until that lock is released.
            Err(database::Error::Locked(text)) if wait == LockWait::Skip => return self.failed(database::Error::Unavailable(text)).await,
            Err(error) => return self.failed(error).await,
        };
        self.shared.clock.set(loaded.now);
        let mut set = WorkingSet::new(loaded, self.shared.random.draw());
        set.exact = exact;
        set.session_wait_ms = self.shared.session_wait_ms;
        set.named_agent_wait_ms = self.shared.named_agent_wait_ms;
        self.shared.random.rise_above_last_id(&mut set.ids);
        self.hint_slots(&mut set);
        let outcomes: Vec<Decided> =
            batch.iter().map(|pending| (decide(&mut set, &pending.command), std::mem::take(&mut set.caused))).collect();
        self.shared.random.keep_last_id(&set.ids);
        if set.dirty.is_empty() {
            return match self.writer.rollback().await {
                Ok(()) => Try::Done(Box::new(set), outcomes),
                Err(error) => self.failed(error).await,
            };
        }
        let epoch = batch.iter().find_map(|pending| pending.command.epoch);
        match self.writer.save(&set, epoch).await {
            Ok(()) => Try::Done(Box::new(set), outcomes),
            Err(database::Error::CommitUnknown(text)) => self.settle(text, set, outcomes).await,
            Err(error) => self.failed(error).await,
        }
    }

    /// Adds the used slots from the cache for workers whose slots were not loaded.
    fn hint_slots(&self, set: &mut WorkingSet) {
        let remembered = self.shared.replica.lock();
        let ids: Vec<_> = set.loaded.workers.keys().filter(|id| !set.loaded.slots.contains_key(*id)).cloned().collect();
        for id in ids {
            let used = remembered.cache.fleet.used(&id);
            set.loaded.slots.insert(id, Slots { used, exact: false });
        }
    }

    /// Determines the outcome of the last commit if it is unknown. If the commit succeeded, its changes are published now, although its
    /// callers got an error.
    async fn settle_doubt(&mut self) -> Result<(), database::Error> {
        if self.in_doubt.is_none() {
            return Ok(());
        }
        let (writer, n) = (self.writer.id(), self.writer.n());
        let committed = self.writer.resolve_commit().await?;
        let is_same_writer = self.writer.id() == writer;
        match self.in_doubt.take() {
            Some(Doubt::Batch(set, read)) if committed && is_same_writer => {
                self.publish(&set, Some(Position { writer, n: n + 1 }), &read);
                if !set.dirty.queues.is_empty() {
                    self.shared.feed.want_rebuild();
                }
                for wakeup in set.dirty.wakeups {
                    self.shared.wakeups.process(wakeup);
                }
            }
            // A writer that was registered again can't determine the outcome, and the changes of a maintenance job are not kept, so the
            // cache is rebuilt.
            Some(_) if committed || !is_same_writer => self.shared.feed.want_rebuild(),
            _ => {}
        }
        self.own();
        Ok(())
    }

    async fn failed(&mut self, error: database::Error) -> Try {
        let outcome = match error {
            database::Error::NotLeader => Try::NotLeader,
            error if error.is_conflict() => {
                self.shared.metrics.conflict(self.name);
                tracing::debug!(writer = self.name, %error, "conflict; the batch is decided again");
                Try::Conflict
            }
            database::Error::Locked(text) => {
                self.shared.metrics.conflict(self.name);
                tracing::debug!(writer = self.name, text, "a lock timeout; the commands on these rows are tried again");
                Try::Locked(text)
            }
            error if error.is_unavailable() => {
                // The database itself logs the beginning and the end of an outage.
                tracing::debug!(writer = self.name, %error, "the database can't be reached");
                self.shared.metrics.database_up(false);
                unavailable(&error)
            }
            error => Try::Failed(error),
        };
        match self.writer.rollback().await {
            Ok(()) => outcome,
            Err(error) => unavailable(&error),
        }
    }

    /// Handles a connection that broke at COMMIT: determines the outcome with a new connection, for at most [`PATIENCE`].
    async fn settle(&mut self, text: String, set: WorkingSet, outcomes: Vec<Decided>) -> Try {
        tracing::warn!(writer = self.name, error = text, "the outcome of a commit is unknown");
        let writer = self.writer.id();
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            match self.writer.resolve_commit().await {
                Ok(true) if self.writer.id() == writer => return Try::Done(Box::new(set), outcomes),
                Ok(committed) if committed || self.writer.id() != writer => {
                    self.shared.feed.want_rebuild();
                    return Try::InDoubt(None);
                }
                Ok(_) => return Try::Conflict,
                Err(error) => {
                    tracing::debug!(writer = self.name, %error, "the outcome of the commit is still unknown");
                    if error.is_lasting() {
                        break;
                    }
                }
            }
            tokio::time::sleep(RECONNECT_EVERY).await;
        }
        // A commit must not be reported as a success while its outcome is unknown.
        Try::InDoubt(Some(Box::new(set)))
    }

    async fn maintain(&mut self, job: &Maintenance) -> Result<Done, Error> {
        if self.settle_doubt().await.is_err() {
            return Err(Error::Unavailable);
        }
        let done = match self.writer.maintain(job).await {
            Ok(done) => done,
            Err(error) => {
                log_failure(&error, &format!("maintenance failed and will be tried again: {job:?}"));
                if matches!(error, database::Error::CommitUnknown(_)) {
                    self.in_doubt = Some(Doubt::Maintenance);
                } else {
                    let _ = self.writer.rollback().await;
                }
                return Err(if error == database::Error::NotLeader { Error::Rejected(Rejection::NotLeader) } else { Error::Unavailable });
            }
        };
        self.own();
        if matches!(job, Maintenance::CorrectCounts { .. }) {
            // The cached counts may be wrong in a different way than those in the database were. If this read fails, the rebuild repeats
            // it.
            if self.shared.feed.read_counts().await.is_err() {
                self.shared.feed.want_rebuild();
            }
            self.shared.feed.announce_commit();
        } else if done.is_batch {
            self.shared.replica.publish_removal(&done.removed, &done.counts, self.position());
            self.shared.feed.announce_commit();
        }
        Ok(done)
    }

    /// Registers this writer's id as one of this process. The id changes if the writer was removed after a long silence and registered
    /// again.
    fn own(&self) {
        self.shared.replica.lock().own(self.writer.id());
    }

    fn position(&self) -> Position {
        Position { writer: self.writer.id(), n: self.writer.n() }
    }

    /// Adds the batch to this replica's cache, and notifies watchers and other replicas.
    fn publish(&self, set: &WorkingSet, committed: Option<Position>, read: &OpenRead) {
        self.shared.replica.publish(set, committed, read);
        self.shared.feed.check_suspects();
        measure(&self.shared.metrics, set);
        if committed.is_some() {
            self.shared.spans.observe(set);
            self.shared.feed.announce_commit();
        }
    }

    /// Answers the commands, except those that must be tried again, which it returns.
    fn answer(&self, batch: Vec<Pending>, outcomes: Vec<Decided>) -> Vec<Pending> {
        let mut again = Vec::new();
        for (mut pending, (outcome, caused)) in batch.into_iter().zip(outcomes) {
            let answer = match outcome {
                Err(halt @ (Halt::Need(_) | Halt::Locked)) if pending.tries < TRIES => {
                    if let Halt::Need(keys) = halt {
                        pending.extra.merge(&keys);
                    }
                    pending.tries += 1;
                    again.push(pending);
                    continue;
                }
                Err(Halt::Need(_)) => Err(Error::Busy),
                Err(Halt::Locked) => Err(Error::Locked("a row is locked by another transaction, and was skipped".into())),
                Err(Halt::Rejected(rejection)) => Err(Error::Rejected(rejection)),
                Ok(reply) => Ok(reply),
            };
            let outcome = match &answer {
                Ok(_) => "ok",
                Err(Error::Rejected(_)) => "rejected",
                Err(_) => "error",
            };
            self.shared.metrics.command(pending.command.op.name(), outcome);
            self.shared.wakeups.answer(pending, answer, caused);
        }
        again
    }
}

/// The outcome for a database that can't serve, either at the moment or until a fault is fixed.
fn unavailable(error: &database::Error) -> Try {
    if error.is_lasting() { Try::Unusable } else { Try::Away }
}

fn refuse(batch: Vec<Pending>, error: &Error) {
    for pending in batch {
        let _ = pending.reply.send(Err(error.clone()));
    }
}
