//! Which tasks a worker may have. They come from the replica cache and, where that ends, from the
//! database; those that are handed out are kept from others until they are given back.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::cache::PageRead;
use bloom_core::ids::TaskId;
use bloom_database::Database;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::Error;
use super::background::Background;
use super::random::Random;
use super::replica::Replica;
use super::replica::feed::Feed;

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
/// Tasks for a worker, and how many of them it has room for.
#[derive(Default)]
pub(super) struct Offer {
    pub tasks: Vec<TaskId>,
    pub max: usize,
    /// Others are in the hands of claims that are under way.
    pub is_contended: bool,
}

/// How the tries of one claim went so far.
#[derive(Default)]
pub(super) struct Tries {
    pub number: u32,
    /// In a row, tries in which some candidates could not be had.
    pub missed: u32,
    /// The database was asked since the last candidate.
    pub is_confirmed: bool,
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

pub(crate) struct Candidates {
    database: Arc<dyn Database>,
    replica: Arc<Replica>,
    feed: Arc<Feed>,
    random: Arc<Random>,
    background: Background,
    pages_read: Notify,
    /// A claim or a push that was under way has ended.
    given_back: Notify,
}

impl Candidates {
    pub fn new(database: Arc<dyn Database>, replica: Arc<Replica>, feed: Arc<Feed>, random: Arc<Random>, background: Background) -> Self {
        Self { database, replica, feed, random, background, pages_read: Notify::new(), given_back: Notify::new() }
    }

    /// Waits until a claim or a push gives back what it held.
    pub fn given_back(&self) -> Notified<'_> {
        self.given_back.notified()
    }

    /// The first tasks for the worker, which are its own until they are given back; reads further into the queue where this replica's
    /// windows end.
    pub async fn offer(&self, worker: &str, max: i64, tries: &Tries) -> Result<Offer, Error> {
        let windows = self.replica.lock().scopes(worker).len();
        for _ in 0..PAGES + windows {
            let page_read = self.pages_read.notified();
            let (look, page, max) = {
                let mut remembered = self.replica.lock();
                let max = usize::try_from(max.min(remembered.cache.fleet.claimable(worker))).unwrap_or(0);
                if max == 0 {
                    return Ok(Offer::default());
                }
                let scopes = remembered.scopes(worker);
                let look = remembered.cache.look(&scopes, max + tries.extra(), tries.spread(), self.random.draw());
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
                (None, None) => return Ok(Offer { tasks: look.tasks, max, is_contended: look.is_contended }),
            }
        }
        Ok(Offer::default())
    }

    async fn read_page(&self, page: PageRead) -> Result<(), Error> {
        let mut reading = OpenPage { candidates: self, page: Some(page.clone()) };
        let rows = self.database.ready_page(&page.scope, page.after, PAGE as i64).await.map_err(unreadable)?;
        reading.page = None;
        let mut remembered = self.replica.lock();
        for worker in remembered.cache.end_page(&page, rows, PAGE) {
            remembered.wake(&worker);
        }
        drop(remembered);
        self.feed.check_suspects();
        self.pages_read.notify_waiters();
        Ok(())
    }

    /// What made the worker unfit here, a task that it holds or a cordon, may be over by a commit of another replica.
    pub async fn refresh_if_unfit(&self, worker: &str) -> Result<(), Error> {
        let held: Vec<TaskId> = {
            let remembered = self.replica.lock();
            let fleet = &remembered.cache.fleet;
            if fleet.claimable(worker) > 0 || fleet.worker(worker).is_none() {
                return Ok(());
            }
            fleet.held(worker).map(|held| held.task).collect()
        };
        self.refresh(worker, &held).await
    }

    /// Reads the worker and these tasks: another replica may have changed them since the feed told of it.
    pub async fn refresh(&self, worker: &str, held: &[TaskId]) -> Result<(), Error> {
        if !self.database.is_shared() {
            return Ok(());
        }
        let read = self.replica.begin_read();
        let workers = self.database.workers_by_id(&[worker.to_owned()]).await.map_err(unreadable)?;
        let tasks = if held.is_empty() { Vec::new() } else { self.database.task_states(held).await.map_err(unreadable)? };
        let mut remembered = self.replica.lock();
        workers.into_iter().for_each(|worker| remembered.put_worker(&worker, &read));
        remembered.put_tasks(tasks.iter(), &read);
        Ok(())
    }

    /// Asks the database itself for the first tasks that the worker may have.
    pub async fn confirm(&self, worker: &str) -> Result<(), Error> {
        let scopes = {
            let remembered = self.replica.lock();
            if remembered.cache.fleet.claimable(worker) == 0 {
                return Ok(());
            }
            remembered.scopes(worker)
        };
        let read = self.replica.begin_read();
        for scope in &scopes {
            let rows = self.database.ready_page(scope, None, CONFIRMED as i64).await.map_err(unreadable)?;
            self.replica.lock().put_ready(rows, &read);
        }
        Ok(())
    }

    /// Shows nobody these tasks for a while: another program keeps them locked.
    pub fn withhold(&self, tasks: &[TaskId]) {
        if tasks.is_empty() {
            return;
        }
        self.replica.lock().cache.queue.withhold(tasks);
        let (replica, background, tasks) = (self.replica.clone(), self.background.clone(), tasks.to_vec());
        self.background.spawn(async move {
            tokio::select! {
                biased;
                () = background.stopped() => {}
                () = tokio::time::sleep(LOCKED_FOR) => {}
            }
            replica.lock().show_again(&tasks);
        });
    }
}

fn unreadable(error: bloom_database::Error) -> Error {
    tracing::warn!(%error, "the queue could not be read");
    Error::Unavailable
}

/// Tasks handed to a claim or a push; they are free again when it ends, however it ends.
pub(super) struct Taken<'a> {
    pub candidates: &'a Candidates,
    pub tasks: Vec<TaskId>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.candidates.replica.lock().give_back(&self.tasks);
        self.candidates.given_back.notify_waiters();
    }
}

/// Ends the reading of a page that failed, also when its caller went away in the middle.
struct OpenPage<'a> {
    candidates: &'a Candidates,
    page: Option<PageRead>,
}

impl Drop for OpenPage<'_> {
    fn drop(&mut self) {
        if let Some(page) = self.page.take() {
            self.candidates.replica.lock().cache.abandon_page(&page);
            self.candidates.pages_read.notify_waiters();
        }
    }
}
