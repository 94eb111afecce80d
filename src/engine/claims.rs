//! A worker's claim: answered as soon as there is work for it, a long poll otherwise.
//!
//! Candidates come from the replica's cache. One that turns out to be taken or blocked says nothing of those behind it, so a claim
//! goes on until it has work, or until the cache and then the database itself have nothing for it.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::cache::PageRead;
use bloom_core::command::{Claim, Command, Rejection};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::reply::Claimed;
use bloom_core::task::{Origin, TaskState};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::replica::Remembered;
use super::{Engine, Error};

#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub worker: WorkerId,
    pub max: i64,
    pub wait_ms: i64,
    /// Leases that the worker knows of; others that a claim gave it are delivered again.
    pub held: Option<Vec<LeaseId>>,
    pub ttl_ms: i64,
    pub request_id: Option<String>,
}

/// With a cancel pending a claim is not kept long: its answer carries the word.
const WAIT_WITH_CANCELS: Duration = Duration::from_secs(1);
/// Ready tasks read at once.
const PAGE: usize = 2_000;
/// Pages that one look for candidates reads at most, besides one for each of its windows: a whole window and its surroundings.
const PAGES: usize = 64;
/// Rows of the look that makes sure that nothing is left.
const CONFIRMED: usize = 64;
/// Candidates that were taken by others widen the choice, up to so many.
const MAX_SPREAD: usize = 512;
const MAX_EXTRA: usize = 256;
/// Tasks that another program keeps locked are left alone for so long.
const LOCKED_FOR: Duration = Duration::from_secs(1);
/// Tries of one claim that find nothing but tasks that another program keeps locked.
const LOCKED_TRIES: u32 = 3;
/// Tries of one claim, should it lose every race.
const TRIES: u32 = 1_000;

/// Tasks for a worker, and how many of them it has room for.
#[derive(Default)]
pub(super) struct Candidates {
    pub tasks: Vec<TaskId>,
    pub max: usize,
    /// Others are in the hands of claims that are under way.
    pub is_contended: bool,
}

/// How the tries of one claim went so far.
#[derive(Default)]
pub(super) struct Tries {
    number: u32,
    /// In a row, tries in which some candidates could not be had.
    missed: u32,
    /// The database was asked since the last candidate.
    is_confirmed: bool,
}

impl Tries {
    fn spread(&self) -> usize {
        if self.missed == 0 { 0 } else { (4_usize << self.missed.min(16)).min(MAX_SPREAD) }
    }

    /// Candidates beyond what is wanted: where many are blocked, each try parks so many of them.
    fn extra(&self) -> usize {
        if self.missed == 0 { 0 } else { (8_usize << self.missed.min(16)).min(MAX_EXTRA) }
    }
}

impl Engine {
    /// Leases for the worker, at once if there are any, else when there are or the wait is over.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Vec<TaskState>, Error> {
        let open = OpenClaim::register(self, &request.worker);
        let cancels = self.0.replica.lock().cancels(&request.worker);
        let mut wait = Duration::from_millis(request.wait_ms.max(0).unsigned_abs());
        if !cancels.is_empty() {
            wait = wait.min(WAIT_WITH_CANCELS);
        }
        let deadline = Instant::now() + wait;
        let mut redeliver = request.held.is_some();
        let mut is_new = true;
        self.refresh_if_unfit(&request.worker).await?;
        let told = |remembered: &Remembered| {
            remembered.cache.fleet.worker(&request.worker).is_some_and(|worker| worker.draining)
                || remembered.cancels(&request.worker) != cancels
        };
        loop {
            self.record_last_seen(&request.worker);
            let leased = self.try_claim(&request, std::mem::take(&mut redeliver), std::mem::take(&mut is_new)).await;
            self.0.replica.lock().pass_on();
            let leased = leased?;
            if !leased.is_empty() {
                return Ok(leased);
            }
            let now = Instant::now();
            if now >= deadline || self.is_stopping() || told(&self.0.replica.lock()) {
                return Ok(Vec::new());
            }
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => {}
                () = open.notify.notified() => {}
                () = tokio::time::sleep((deadline - now).min(self.0.last_seen.every)) => {}
            }
        }
    }

    /// What the worker can get now. Empty only if there was nothing for it at some moment of this call. `is_new`: the claim has just begun.
    async fn try_claim(&self, request: &ClaimRequest, redeliver: bool, is_new: bool) -> Result<Vec<TaskState>, Error> {
        let mut redeliver = redeliver && self.may_have_undelivered(request);
        let mut tries = Tries::default();
        let mut locked_tries = 0;
        while tries.number < TRIES && !self.is_stopping() {
            tries.number += 1;
            let is_unknown = self.0.replica.lock().cache.fleet.worker(&request.worker).is_none();
            let given_back = self.0.given_back.notified();
            let Candidates { tasks: candidates, max, is_contended } = self.candidates(&request.worker, request.max, &tries).await?;
            if candidates.is_empty() && !redeliver && !is_unknown {
                if is_contended {
                    // They take what they want with their next commit, and give the others back.
                    given_back.await;
                    continue;
                }
                if tries.is_confirmed {
                    return Ok(Vec::new());
                }
                // Looked at once more in any case: the feed may have brought a task meanwhile.
                if is_new {
                    self.refresh(&request.worker, &[]).await?;
                }
                self.confirm(&request.worker).await?;
                tries.is_confirmed = true;
                continue;
            }
            let wanted = candidates.len();
            let Claimed { leased, missed, locked, .. } = self.take(request, candidates, max, std::mem::take(&mut redeliver)).await?;
            if !leased.is_empty() {
                return Ok(leased);
            }
            if !locked.is_empty() && locked.len() == missed {
                locked_tries += 1;
                if locked_tries >= LOCKED_TRIES {
                    return Ok(Vec::new());
                }
            }
            if missed > 0 {
                tries.missed += 1;
                // Another replica took them, and more: what it has committed is worth reading now.
                self.0.feed_wanted.notify_one();
            }
            if wanted > 0 {
                tries.is_confirmed = false;
            }
        }
        Err(if self.is_stopping() { Error::Unavailable } else { Error::Busy })
    }

    /// The first tasks for the worker, which are its own until they are given back; reads further into the queue where this replica's
    /// windows end.
    pub(super) async fn candidates(&self, worker: &str, max: i64, tries: &Tries) -> Result<Candidates, Error> {
        let windows = self.0.replica.lock().scopes(worker).len();
        for _ in 0..PAGES + windows {
            let page_read = self.0.pages_read.notified();
            let (look, page, max) = {
                let mut remembered = self.0.replica.lock();
                let max = usize::try_from(max.min(remembered.cache.fleet.claimable(worker))).unwrap_or(0);
                if max == 0 {
                    return Ok(Candidates::default());
                }
                let scopes = remembered.scopes(worker);
                let look = remembered.cache.look(&scopes, max + tries.extra(), tries.spread(), self.0.random.draw());
                let page = look.page.as_ref().and_then(|scope| remembered.cache.begin_page(scope));
                if look.page.is_some() {
                    remembered.cache.queue.give_back(&look.tasks);
                }
                (look, page, max)
            };
            match (page, look.page) {
                (Some(page), _) => self.read_page(page).await?,
                // Somebody else reads that page, for as long as a read may take.
                (None, Some(_)) => page_read.await,
                (None, None) => return Ok(Candidates { tasks: look.tasks, max, is_contended: look.is_contended }),
            }
        }
        Ok(Candidates::default())
    }

    async fn read_page(&self, page: PageRead) -> Result<(), Error> {
        let mut reading = OpenPage { engine: self, page: Some(page.clone()) };
        let rows = self.0.database.ready_page(&page.scope, page.after, PAGE as i64).await.map_err(unreadable)?;
        reading.page = None;
        let mut remembered = self.0.replica.lock();
        for worker in remembered.cache.end_page(&page, rows, PAGE) {
            remembered.wake(&worker);
        }
        drop(remembered);
        self.check_suspects();
        self.0.pages_read.notify_waiters();
        Ok(())
    }

    /// What made the worker unfit here, a task that it holds or a cordon, may be over by a commit of another replica.
    async fn refresh_if_unfit(&self, worker: &str) -> Result<(), Error> {
        let held: Vec<TaskId> = {
            let remembered = self.0.replica.lock();
            let fleet = &remembered.cache.fleet;
            if fleet.claimable(worker) > 0 || fleet.worker(worker).is_none() {
                return Ok(());
            }
            fleet.held(worker).map(|held| held.task).collect()
        };
        self.refresh(worker, &held).await
    }

    /// Reads the worker and these tasks: another replica may have changed them since the feed told of it.
    async fn refresh(&self, worker: &str, held: &[TaskId]) -> Result<(), Error> {
        if !self.0.database.is_shared() {
            return Ok(());
        }
        let read = self.0.replica.begin_read();
        let workers = self.0.database.workers_by_id(&[worker.to_owned()]).await.map_err(unreadable)?;
        let tasks = if held.is_empty() { Vec::new() } else { self.0.database.task_states(held).await.map_err(unreadable)? };
        let mut remembered = self.0.replica.lock();
        workers.into_iter().for_each(|worker| remembered.put_worker(&worker, &read));
        remembered.put_tasks(tasks.iter(), &read);
        Ok(())
    }

    /// Asks the database itself for the first tasks that the worker may have.
    async fn confirm(&self, worker: &str) -> Result<(), Error> {
        let scopes = {
            let remembered = self.0.replica.lock();
            if remembered.cache.fleet.claimable(worker) == 0 {
                return Ok(());
            }
            remembered.scopes(worker)
        };
        let read = self.0.replica.begin_read();
        for scope in &scopes {
            let rows = self.0.database.ready_page(scope, None, CONFIRMED as i64).await.map_err(unreadable)?;
            self.0.replica.lock().put_ready(rows, &read);
        }
        Ok(())
    }

    /// Whether a lease by claim may exist that the worker did not name. Where replicas share the database, another one may have made it
    /// a moment ago.
    fn may_have_undelivered(&self, request: &ClaimRequest) -> bool {
        let Some(held) = &request.held else { return false };
        let remembered = self.0.replica.lock();
        let mut known = remembered.cache.fleet.held(&request.worker);
        self.0.database.is_shared() || known.any(|lease| lease.origin == Origin::Claim && !held.contains(&lease.lease))
    }

    async fn take(&self, request: &ClaimRequest, candidates: Vec<TaskId>, max: usize, redeliver: bool) -> Result<Claimed, Error> {
        let taken = Taken { engine: self, tasks: candidates.clone() };
        let held = request.held.clone().filter(|_| redeliver);
        let claim = Claim { worker: request.worker.clone(), candidates, max, held, ttl_ms: request.ttl_ms };
        let command = Command { op: claim, request_id: request.request_id.clone(), epoch: None };
        let reply = self.submit(command).await;
        match &reply {
            // Before they are given back.
            Ok(claimed) => self.withhold(&claimed.locked),
            // The cache may show a worker that was removed; the feed tells.
            Err(Error::Rejected(Rejection::WorkerNotFound)) => self.0.feed_wanted.notify_one(),
            Err(_) => {}
        }
        drop(taken);
        reply
    }

    /// Shows nobody these tasks for a while: another program keeps them locked.
    pub(super) fn withhold(&self, tasks: &[TaskId]) {
        if tasks.is_empty() {
            return;
        }
        self.0.replica.lock().cache.queue.withhold(tasks);
        let (engine, tasks) = (self.clone(), tasks.to_vec());
        self.spawn(async move {
            tokio::select! {
                biased;
                () = engine.stopped() => {}
                () = tokio::time::sleep(LOCKED_FOR) => {}
            }
            engine.0.replica.lock().show_again(&tasks);
        });
    }
}

fn unreadable(error: bloom_database::Error) -> Error {
    tracing::warn!(%error, "the queue could not be read");
    Error::Unavailable
}

/// An open claim on the list of those to wake.
struct OpenClaim {
    engine: Engine,
    worker: WorkerId,
    notify: Arc<Notify>,
}

impl OpenClaim {
    fn register(engine: &Engine, worker: &str) -> Self {
        let notify = engine.0.replica.lock().open_claim(worker);
        Self { engine: engine.clone(), worker: worker.to_owned(), notify }
    }
}

impl Drop for OpenClaim {
    fn drop(&mut self) {
        self.engine.0.replica.lock().close_claim(&self.worker, &self.notify);
    }
}

/// Tasks handed to a claim or a push; they are free again when it ends, however it ends.
pub(super) struct Taken<'a> {
    pub engine: &'a Engine,
    pub tasks: Vec<TaskId>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.engine.0.replica.lock().give_back(&self.tasks);
        self.engine.0.given_back.notify_waiters();
    }
}

/// Ends the reading of a page that failed, also when its caller went away in the middle.
struct OpenPage<'a> {
    engine: &'a Engine,
    page: Option<PageRead>,
}

impl Drop for OpenPage<'_> {
    fn drop(&mut self) {
        if let Some(page) = self.page.take() {
            self.engine.0.replica.lock().cache.abandon_page(&page);
            self.engine.0.pages_read.notify_waiters();
        }
    }
}
