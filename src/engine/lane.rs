//! A lane: one connection, one batch after the other.
//!
//! Nothing cancels a lane in the middle of a query. A batch that meets a conflict is decided again on fresh rows; one that meets an
//! error of its own is split until the culprit stands alone; one whose commit is in doubt is settled before anybody gets an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::changes::Changes;
use super::inbox::{Inbox, Pending, Work};
use super::{Engine, Error, lock};
use crate::core::command::{Keys, Op, Rejection, Reply};
use crate::core::decide::decide;
use crate::core::working_set::{Freed, Halt, Slots, WorkingSet};
use crate::store::{self, Lane, Upkeep, UpkeepDone};

/// After so many conflicts in a row a batch gives up.
const CONFLICTS: u32 = 3;
/// A command may ask for more rows so many times.
const TRIES: u32 = 8;
/// How long a batch waits for a database that is away.
const PATIENCE: Duration = Duration::from_secs(5);
const RECONNECT_EVERY: Duration = Duration::from_millis(100);

pub(super) async fn run(engine: Engine, name: &'static str, lane: Lane, inbox: Arc<Inbox>) {
    let mut worker = Worker { engine, name, lane, in_doubt: false, picture_is_old: false };
    while let Some(work) = inbox.next().await {
        match work {
            Work::Batch(batch) => {
                let again = worker.carry_out(batch).await;
                for pending in again.into_iter().rev() {
                    inbox.push_again(pending);
                }
            }
            Work::Upkeep(job, reply) => {
                let done = worker.upkeep(&job).await;
                let _ = reply.send(done);
            }
        }
    }
    worker.lane.close().await;
}

struct Worker {
    engine: Engine,
    name: &'static str,
    lane: Lane,
    /// The last commit's fate is not known yet.
    in_doubt: bool,
    /// Something was committed that this replica's picture does not show.
    picture_is_old: bool,
}

/// What became of one try of a batch.
enum Try {
    /// Committed; the replies stand beside their commands.
    Done(Box<WorkingSet>, Vec<Decided>),
    NotLeader,
    Conflict,
    Away,
    /// It may or may not have committed.
    InDoubt,
    Failed(store::Error),
}

/// What a command came to, and who may wait for what it let go of.
type Decided = (Result<Reply, Halt>, Vec<Freed>);

impl Worker {
    /// Answers every command but those that need more rows, which it hands back.
    async fn carry_out(&mut self, batch: Vec<Pending>) -> Vec<Pending> {
        let started = Instant::now();
        let mut again = Vec::new();
        let mut parts = vec![batch];
        while let Some(mut batch) = parts.pop() {
            let mut conflicts = 0;
            loop {
                match self.try_once(&batch, conflicts > 0).await {
                    Try::Done(set, outcomes) => {
                        self.engine.0.metrics.batch(self.name, batch.len(), started.elapsed().as_secs_f64());
                        again.extend(self.publish(*set, batch, outcomes));
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
                    Try::Conflict if conflicts < CONFLICTS => conflicts += 1,
                    Try::Conflict if batch.len() == 1 => {
                        refuse(batch, &Error::Busy);
                        break;
                    }
                    Try::Away if started.elapsed() < PATIENCE => tokio::time::sleep(RECONNECT_EVERY).await,
                    Try::Away | Try::InDoubt => {
                        refuse(batch, &Error::Unavailable);
                        break;
                    }
                    Try::Failed(error) if batch.len() == 1 => {
                        tracing::error!(lane = self.name, op = batch[0].command.op.name(), %error, "a command failed in the database");
                        refuse(batch, &Error::Internal);
                        break;
                    }
                    Try::Failed(_) | Try::Conflict => {
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

    async fn try_once(&mut self, batch: &[Pending], exact: bool) -> Try {
        if let Err(error) = self.clear_up().await {
            tracing::warn!(lane = self.name, %error, "the database is away");
            return Try::Away;
        }
        let mut keys = Keys::default();
        for pending in batch {
            keys.merge(&pending.command.op.keys());
            keys.merge(&pending.extra);
        }
        let loaded = match self.lane.begin_and_load(&keys).await {
            Ok(loaded) => loaded,
            Err(error) => return self.failed(error).await,
        };
        self.engine.set_clock(loaded.now);
        self.engine.0.metrics.database_up(true);
        let mut set = WorkingSet::new(loaded, self.engine.seed());
        set.exact = exact;
        self.hint_slots(&mut set);
        let outcomes: Vec<Decided> =
            batch.iter().map(|pending| (decide(&mut set, &pending.command), std::mem::take(&mut set.freed))).collect();
        if set.dirty.is_empty() {
            return match self.lane.rollback().await {
                Ok(()) => Try::Done(Box::new(set), outcomes),
                Err(error) => self.failed(error).await,
            };
        }
        let epoch = batch.iter().find_map(|pending| pending.command.epoch);
        match self.lane.save(&set, epoch).await {
            Ok(_) => Try::Done(Box::new(set), outcomes),
            Err(store::Error::CommitUnknown(text)) => self.settle(text, set, outcomes).await,
            Err(error) => self.failed(error).await,
        }
    }

    /// Places in use as this replica knows them, for workers whose true ones were not asked for.
    fn hint_slots(&self, set: &mut WorkingSet) {
        let board = lock(&self.engine.0.board);
        let ids: Vec<_> = set.loaded.workers.keys().filter(|id| !set.loaded.slots.contains_key(*id)).cloned().collect();
        for id in ids {
            let used = board.fleet.used(&id);
            set.loaded.slots.insert(id, Slots { used, exact: false });
        }
    }

    /// What is still open from before: a commit in doubt. A batch that nobody got an answer for may turn out to have committed; then
    /// this replica's picture is read anew.
    async fn clear_up(&mut self) -> Result<(), store::Error> {
        if self.in_doubt {
            self.picture_is_old |= self.lane.resolve_commit().await?;
            self.in_doubt = false;
        }
        if self.picture_is_old {
            self.engine.read_picture().await?;
            self.picture_is_old = false;
            self.engine.announce(Changes { reset: true, ..Changes::default() });
        }
        Ok(())
    }

    async fn failed(&mut self, error: store::Error) -> Try {
        let outcome = match error {
            store::Error::NotLeader => Try::NotLeader,
            error if error.is_conflict() => {
                self.engine.0.metrics.conflict(self.name);
                tracing::debug!(lane = self.name, %error, "conflict, deciding again");
                Try::Conflict
            }
            error if error.is_unavailable() => {
                tracing::warn!(lane = self.name, %error, "the database is away");
                self.engine.0.metrics.database_up(false);
                Try::Away
            }
            error => Try::Failed(error),
        };
        match self.lane.rollback().await {
            Ok(()) => outcome,
            Err(_) => Try::Away,
        }
    }

    /// The connection broke at COMMIT: asks a new one what became of the batch, as long as the callers are patient.
    async fn settle(&mut self, text: String, set: WorkingSet, outcomes: Vec<Decided>) -> Try {
        tracing::warn!(lane = self.name, error = text, "a commit is in doubt");
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            match self.lane.resolve_commit().await {
                Ok(true) => return Try::Done(Box::new(set), outcomes),
                Ok(false) => return Try::Conflict,
                Err(error) => tracing::warn!(lane = self.name, %error, "the commit is still in doubt"),
            }
            tokio::time::sleep(RECONNECT_EVERY).await;
        }
        // Never a success that is not known.
        self.in_doubt = true;
        Try::InDoubt
    }

    async fn upkeep(&mut self, job: &Upkeep) -> Result<UpkeepDone, Error> {
        if self.clear_up().await.is_err() {
            return Err(Error::Unavailable);
        }
        let done = match self.lane.upkeep(job).await {
            Ok(done) => done,
            Err(error) => {
                tracing::warn!(lane = self.name, %error, ?job, "housekeeping failed; it comes again");
                self.in_doubt = matches!(error, store::Error::CommitUnknown(_));
                if !self.in_doubt {
                    let _ = self.lane.rollback().await;
                }
                return Err(Error::Unavailable);
            }
        };
        self.own();
        if !done.removed.is_empty() {
            let changes = Changes { removed_tasks: done.removed.clone(), ..Changes::default() };
            self.engine.take_over(&changes, (self.lane.id, self.lane.n()), &done.counts.tasks, done.counts.leases);
            self.engine.announce(changes);
        }
        if matches!(job, Upkeep::CorrectCounts { .. }) {
            self.picture_is_old = true;
            // Should this fail, it is tried again before the next work.
            let _ = self.clear_up().await;
        }
        Ok(done)
    }

    /// A lane that was removed for its long silence has come back under another number.
    fn own(&self) {
        let mut own = lock(&self.engine.0.own_lanes);
        if !own.contains(&self.lane.id) {
            own.push(self.lane.id);
        }
    }

    /// Takes the commit into this replica's picture, tells who watches, answers.
    fn publish(&self, set: WorkingSet, batch: Vec<Pending>, outcomes: Vec<Decided>) -> Vec<Pending> {
        let changes = Changes::of(&set);
        for spec in &set.dirty.specs {
            self.engine.0.specs.put(spec.clone());
        }
        self.own();
        if !set.dirty.is_empty() {
            self.engine.take_over(&changes, (self.lane.id, self.lane.n()), &set.counts, set.leases_granted);
        }
        self.engine.measure(&set);
        if !set.dirty.is_empty() {
            self.engine.0.committed.notify_one();
        }
        self.engine.announce(changes);
        let mut again = Vec::new();
        for (mut pending, (outcome, freed)) in batch.into_iter().zip(outcomes) {
            let answer = match outcome {
                Err(Halt::Need(keys)) if pending.tries < TRIES => {
                    pending.extra.merge(&keys);
                    pending.tries += 1;
                    again.push(pending);
                    continue;
                }
                Err(Halt::Need(_)) => Err(Error::Busy),
                Err(Halt::Rejected(rejection)) => Err(Error::Rejected(rejection)),
                Ok(reply) => Ok(reply),
            };
            let outcome = match &answer {
                Ok(_) => "ok",
                Err(Error::Rejected(_)) => "rejected",
                Err(_) => "error",
            };
            self.engine.0.metrics.command(pending.command.op.name(), outcome);
            if freed.is_empty() {
                self.engine.answer(pending, answer);
            } else {
                self.engine.answer_after_waiters(pending, answer, freed);
            }
        }
        again
    }
}

fn refuse(batch: Vec<Pending>, error: &Error) {
    for pending in batch {
        let _ = pending.reply.send(Err(error.clone()));
    }
}

impl Engine {
    /// Whoever claimed is gone: the leases go back unharmed instead of waiting for their time.
    fn hand_back(&self, leased: &[crate::core::task::TaskState]) {
        for task in leased {
            let Some(lease) = &task.lease else { continue };
            let release = Op::Release { task: task.id, lease: lease.id, reason: "the claim was abandoned".into() };
            let engine = self.clone();
            self.spawn(async move {
                // A failure is made good by the lease's expiry.
                let _ = engine.submit(release).await;
            });
        }
    }

    fn answer(&self, pending: Pending, answer: Result<Reply, Error>) {
        if let Err(Ok(Reply::Claimed { leased, .. })) = pending.reply.send(answer) {
            self.hand_back(&leased);
        }
    }

    /// First has those looked at again that wait for what was let go of, so that whoever got the answer finds them ready. Should the
    /// process end here, the resync does it.
    fn answer_after_waiters(&self, pending: Pending, answer: Result<Reply, Error>, freed: Vec<Freed>) {
        let engine = self.clone();
        self.spawn(async move {
            for freed in freed {
                engine.reconsider_waiters(&freed).await;
            }
            engine.answer(pending, answer);
        });
    }

    async fn reconsider_waiters(&self, freed: &Freed) {
        const PAGE: i64 = 500;
        const PAGES: usize = 200;
        for _ in 0..PAGES {
            let tasks = match self.0.store.waiters(freed, PAGE).await {
                Ok(tasks) if tasks.is_empty() => return,
                Ok(tasks) => tasks,
                Err(error) => {
                    tracing::warn!(%error, "waiting tasks were not looked at; the resync will");
                    return;
                }
            };
            let page_was_full = i64::try_from(tasks.len()).is_ok_and(|found| found >= PAGE);
            if self.submit(Op::Reconsider { tasks }).await.is_err() || !page_was_full {
                return;
            }
        }
    }
}
