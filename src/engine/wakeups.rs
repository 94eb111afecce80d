//! Processes wake-ups: re-evaluates, page by page, the tasks that wait for what a commit released.
//!
//! The replica whose commit made a wake-up starts at once. The wake-up stays in the database until its last page is done, so the leader can
//! take over the wake-ups of a dead or busy replica.

use std::collections::HashSet;
use std::sync::Arc;

use bloom_core::command::{Command, Op, Reply, Requester};
use bloom_core::op;
use bloom_core::reply;
use bloom_core::task::TaskState;
use bloom_core::wakeup::{Progress, Wakeup, WakeupId};
use bloom_database::Database;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::Error;
use super::background::Background;
use super::inbox::Pending;
use super::writers::Writers;

/// Waiting tasks per re-evaluation.
const PAGE: i64 = 100;
/// The maximum number of wake-ups that this replica processes at a time. The leader processes the rest.
const AT_ONCE: usize = 65_536;
/// The number of pages that are read at a time. It is low, because claims and reconcilers share the connections.
const READS: usize = 2;
/// While this many wake-ups are in progress, replies do not wait for re-evaluations. A call that ends a thousand tasks is therefore
/// answered as soon as the tasks have ended.
const BUSY: usize = 128;

/// Re-evaluates the parked tasks that wake-ups name, page by page.
pub struct Wakeups {
    database: Arc<dyn Database>,
    writers: Arc<Writers>,
    background: Background,
    /// The wake-ups that this replica is processing.
    under_way: Mutex<HashSet<WakeupId>>,
    reads: Semaphore,
}

impl Wakeups {
    pub(super) fn new(database: Arc<dyn Database>, writers: Arc<Writers>, background: Background) -> Self {
        Self { database, writers, background, under_way: Mutex::default(), reads: Semaphore::new(READS) }
    }

    /// Answers a command. First it re-evaluates the first page of each wake-up that the command caused, so that the caller finds these
    /// tasks ready. The other pages follow in the background.
    pub(super) fn answer(self: &Arc<Self>, pending: Pending, answer: Result<Reply, Error>, caused: Vec<Wakeup>) {
        let is_busy = self.under_way.lock().len() >= BUSY;
        if caused.is_empty() || is_busy || matches!(pending.command.op, Op::Reevaluate(_)) {
            // A re-evaluation may cause another one, along a chain of tasks. Replies must not wait for the whole chain.
            self.send(pending, answer);
            caused.into_iter().for_each(|wakeup| self.process(wakeup));
            return;
        }
        let wakeups = self.clone();
        self.background.spawn(async move {
            let mut open = Vec::new();
            for wakeup in caused {
                if let Some(mut work) = Work::begin(&wakeups, wakeup, None)
                    && let Ok(true) = work.page().await
                {
                    open.push(work);
                }
            }
            wakeups.send(pending, answer);
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

    /// Releases the leases of a claim whose caller is gone, so that the tasks need not wait until the leases expire.
    fn hand_back(&self, leased: &[TaskState]) {
        for task in leased {
            let Some(lease) = &task.lease else { continue };
            let release = op::Release { task: task.id, lease: lease.id, reason: "the claim was abandoned".into() };
            let writers = self.writers.clone();
            self.background.spawn(async move {
                // If this fails, the lease expires.
                let _ = writers.submit(release).await;
            });
        }
    }

    /// Processes the whole wake-up in the background.
    pub(super) fn process(self: &Arc<Self>, wakeup: Wakeup) {
        let wakeups = self.clone();
        self.background.spawn(async move {
            if let Some(mut work) = Work::begin(&wakeups, wakeup, None) {
                while let Ok(true) = work.page().await {}
            }
        });
    }

    /// Processes a page of the wake-up for the leader of this epoch, and returns what is left. Does nothing if this replica is already
    /// processing the wake-up.
    ///
    /// # Errors
    /// If the page failed. The wake-up then stays at this page.
    pub async fn process_page(self: &Arc<Self>, open: OpenWakeup, epoch: i64) -> Result<Option<OpenWakeup>, Error> {
        let Some(mut work) = Work::begin(self, open.wakeup, Some(epoch)) else { return Ok(None) };
        work.is_whole = open.is_whole;
        let is_left = work.page().await?;
        Ok(is_left.then(|| OpenWakeup { wakeup: work.wakeup.clone(), is_whole: work.is_whole }))
    }
}

/// A wake-up between two pages.
pub struct OpenWakeup {
    /// The wake-up. Its cursor says where the next page begins.
    pub wakeup: Wakeup,
    /// Whether all waiters of the pages so far were re-evaluated.
    pub is_whole: bool,
}

struct Work {
    wakeups: Arc<Wakeups>,
    wakeup: Wakeup,
    epoch: Option<i64>,
    is_whole: bool,
}

impl Work {
    /// Starts the work. Returns `None` if this replica is already processing the wake-up, or too many others.
    fn begin(wakeups: &Arc<Wakeups>, wakeup: Wakeup, epoch: Option<i64>) -> Option<Self> {
        let mut under_way = wakeups.under_way.lock();
        (under_way.len() < AT_ONCE && under_way.insert(wakeup.id)).then(|| Self { wakeups: wakeups.clone(), wakeup, epoch, is_whole: true })
    }

    /// Re-evaluates one page. Returns whether there are more.
    async fn page(&mut self) -> Result<bool, Error> {
        if self.wakeups.background.is_stopping() && self.epoch.is_some() {
            return Ok(false);
        }
        let reading = self.wakeups.reads.acquire().await.map_err(|_| Error::Unavailable)?;
        let waiters = self.wakeups.database.waiters(&self.wakeup, PAGE).await.map_err(|error| {
            tracing::debug!(%error, "waiting tasks could not be read; the leader will retry");
            Error::Unavailable
        })?;
        drop(reading);
        // If a page was not completely re-evaluated, the wake-up must neither advance past it nor end, so that the leader repeats it.
        let progress = Progress { wakeup: self.wakeup.id, next: waiters.next, more_want_key: waiters.more_want_key };
        let progress = self.is_whole.then_some(progress);
        let op = op::Reevaluate { tasks: waiters.tasks, progress };
        let done = self.wakeups.writers.submit(Command { op, by: Requester::default(), epoch: self.epoch }).await?;
        self.is_whole &= done.is_whole;
        self.wakeup.cursor = waiters.next;
        Ok(waiters.next.is_some())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.wakeups.under_way.lock().remove(&self.wakeup.id);
    }
}
