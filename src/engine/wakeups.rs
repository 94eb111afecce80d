//! Works off wake-ups: whoever waits for what a commit let go of is re-evaluated, page by page.
//!
//! The replica whose commit made a wake-up begins at once. The wake-up stands in the database until its last page is done, so the leader
//! goes on with what a dead or busy replica leaves.

use std::collections::HashSet;

use bloom_core::command::{Command, Op, Reply};
use bloom_core::op;
use bloom_core::reply;
use bloom_core::wakeup::{Progress, Wakeup, WakeupId};
use parking_lot::Mutex;

use tokio::sync::Semaphore;

use super::inbox::Pending;
use super::{Engine, Error};

/// Waiters of one re-evaluation.
const PAGE: i64 = 100;
/// Wake-ups that this replica keeps in mind; what is beyond is left to the leader.
const AT_ONCE: usize = 65_536;
/// Pages of waiters that are read at a time: the connections are shared with claims and reconcilers.
const READS: usize = 2;
/// While so many are under way, answers do not wait for those that they wake: a call that ends a thousand tasks is answered when they have
/// ended.
const BUSY: usize = 128;

/// Those that this replica works on.
#[derive(Debug)]
pub(super) struct Under {
    ids: Mutex<HashSet<WakeupId>>,
    reads: Semaphore,
}

impl Default for Under {
    fn default() -> Self {
        Self { ids: Mutex::default(), reads: Semaphore::new(READS) }
    }
}

impl Engine {
    /// Answers a command. First those are re-evaluated that wait for what it let go of, a page of each: so whoever got the answer finds
    /// them ready. What is left goes on beside.
    pub(super) fn answer(&self, pending: Pending, answer: Result<Reply, Error>, caused: Vec<Wakeup>) {
        let is_busy = self.0.wakeups.ids.lock().len() >= BUSY;
        if caused.is_empty() || is_busy || matches!(pending.command.op, Op::Reevaluate(_)) {
            // A re-evaluation may cause the next one, and so on along a chain: nobody waits for all of that.
            self.send(pending, answer);
            caused.into_iter().for_each(|wakeup| self.work_off(wakeup));
            return;
        }
        let engine = self.clone();
        self.spawn(async move {
            let mut open = Vec::new();
            for wakeup in caused {
                if let Some(mut work) = Work::begin(&engine, wakeup, None)
                    && let Ok(true) = work.page().await
                {
                    open.push(work);
                }
            }
            engine.send(pending, answer);
            for mut work in open {
                while let Ok(true) = work.page().await {}
            }
        });
    }

    fn send(&self, pending: Pending, answer: Result<Reply, Error>) {
        if let Err(Ok(Reply::Claimed(reply::Claimed { leased, .. }))) = pending.reply.send(answer) {
            self.hand_back(&leased);
        }
    }

    /// Whoever claimed is gone: the leases go back unharmed instead of waiting for their time.
    fn hand_back(&self, leased: &[bloom_core::task::TaskState]) {
        for task in leased {
            let Some(lease) = &task.lease else { continue };
            let release = op::Release { task: task.id, lease: lease.id, reason: "the claim was abandoned".into() };
            let engine = self.clone();
            self.spawn(async move {
                // A failure is made good by the lease's expiry.
                let _ = engine.submit(release).await;
            });
        }
    }

    /// Works the whole wake-up off, beside.
    pub(super) fn work_off(&self, wakeup: Wakeup) {
        let engine = self.clone();
        self.spawn(async move {
            if let Some(mut work) = Work::begin(&engine, wakeup, None) {
                while let Ok(true) = work.page().await {}
            }
        });
    }

    /// Works off a page of the wake-up for the leader of this epoch; answers what is left. One that this replica works on already is
    /// left alone.
    ///
    /// # Errors
    /// Of the page; the wake-up stands where it was.
    pub async fn work_off_page(&self, open: OpenWakeup, epoch: i64) -> Result<Option<OpenWakeup>, Error> {
        let Some(mut work) = Work::begin(self, open.wakeup, Some(epoch)) else { return Ok(None) };
        work.is_whole = open.is_whole;
        let is_left = work.page().await?;
        Ok(is_left.then(|| OpenWakeup { wakeup: work.wakeup.clone(), is_whole: work.is_whole }))
    }
}

/// A wake-up between two pages.
pub struct OpenWakeup {
    pub wakeup: Wakeup,
    /// All waiters of the pages so far were re-evaluated.
    pub is_whole: bool,
}

struct Work {
    engine: Engine,
    wakeup: Wakeup,
    epoch: Option<i64>,
    is_whole: bool,
}

impl Work {
    /// `None`: somebody is at it here, or too many are.
    fn begin(engine: &Engine, wakeup: Wakeup, epoch: Option<i64>) -> Option<Self> {
        let mut under = engine.0.wakeups.ids.lock();
        (under.len() < AT_ONCE && under.insert(wakeup.id)).then(|| Self { engine: engine.clone(), wakeup, epoch, is_whole: true })
    }

    /// Has one page re-evaluated; answers whether there are more.
    async fn page(&mut self) -> Result<bool, Error> {
        if self.engine.is_stopping() && self.epoch.is_some() {
            return Ok(false);
        }
        let reading = self.engine.0.wakeups.reads.acquire().await.map_err(|_| Error::Unavailable)?;
        let waiters = self.engine.0.database.waiters(&self.wakeup, PAGE).await.map_err(|error| {
            tracing::debug!(%error, "waiting tasks could not be read; the leader will retry");
            Error::Unavailable
        })?;
        drop(reading);
        // Behind a page of which something is left, the wake-up must not be moved on or ended: the leader comes back to that page.
        let progress = Progress { wakeup: self.wakeup.id, next: waiters.next, more_want_key: waiters.more_want_key };
        let progress = self.is_whole.then_some(progress);
        let op = op::Reevaluate { tasks: waiters.tasks, progress };
        let done = self.engine.submit(Command { op, request_id: None, epoch: self.epoch }).await?;
        self.is_whole &= done.is_whole;
        self.wakeup.cursor = waiters.next;
        Ok(waiters.next.is_some())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.engine.0.wakeups.ids.lock().remove(&self.wakeup.id);
    }
}
