//! Candidates: the tasks that a worker may lease. They come from the replica cache and, where its windows end, from the database. While a
//! claim or a push holds a candidate, no other claim or push gets it.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::cache::PageRead;
use bloom_core::ids::TaskId;
use bloom_core::worker::Worker;
use bloom_database::Database;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::Error;
use super::background::Background;
use super::clock::Clock;
use super::random::Random;
use super::replica::feed::Feed;
use super::replica::{QueueState, Replica};

/// Ready tasks per page.
const PAGE: usize = 2_000;
/// The maximum number of pages that one search for candidates reads, in addition to one for each of its windows.
const PAGES: usize = 64;
/// The number of rows that are read to confirm that nothing is left.
const CONFIRMED: usize = 64;
/// The limits of the widened choice: each try that loses candidates to others widens it.
const MAX_SPREAD: usize = 512;
const MAX_EXTRA: usize = 256;
/// How long tasks that another program keeps locked are withheld.
const LOCKED_FOR: Duration = Duration::from_secs(1);
/// The longest time for which a queue is treated as closed after the database has refused candidates of it. Usually the feed delivers the
/// reason earlier.
const REFUSED_FOR: Duration = Duration::from_millis(300);

/// Candidates for a worker, and how many of them it can lease.
#[derive(Default)]
pub(super) struct Offer {
    pub tasks: Vec<TaskId>,
    pub max: usize,
    /// When the worker may have further tasks, which are kept for other workers until then.
    pub kept_until: Option<Ms>,
    /// Whether other claims or pushes in progress hold more candidates.
    pub is_contended: bool,
}

/// The tries of one claim so far.
#[derive(Default)]
pub(super) struct Tries {
    pub number: u32,
    /// Tries in which some candidates were taken or blocked.
    pub missed: u32,
    /// Whether the database has confirmed that there is nothing, and no candidate has been found since.
    pub is_confirmed: bool,
    /// The state of the queues as the database reported it, if some are closed.
    pub queue_state: Option<QueueState>,
}

impl Tries {
    fn spread(&self) -> usize {
        if self.missed == 0 { 0 } else { (4_usize << self.missed.min(16)).min(MAX_SPREAD) }
    }

    /// How many candidates to take in addition to those that are wanted. If many are blocked, each try parks this many more of them.
    fn extra(&self) -> usize {
        if self.missed == 0 { 0 } else { (8_usize << self.missed.min(16)).min(MAX_EXTRA) }
    }
}

pub(crate) struct Candidates {
    database: Arc<dyn Database>,
    clock: Arc<Clock>,
    replica: Arc<Replica>,
    feed: Arc<Feed>,
    random: Arc<Random>,
    background: Background,
    pages_read: Notify,
    /// Notified when a claim or a push has given back its candidates.
    given_back: Notify,
}

impl Candidates {
    pub(crate) fn new(
        database: Arc<dyn Database>,
        clock: Arc<Clock>,
        replica: Arc<Replica>,
        feed: Arc<Feed>,
        random: Arc<Random>,
        background: Background,
    ) -> Self {
        Self { database, clock, replica, feed, random, background, pages_read: Notify::new(), given_back: Notify::new() }
    }

    /// Waits until a claim or a push gives back its candidates.
    pub(crate) fn given_back(&self) -> Notified<'_> {
        self.given_back.notified()
    }

    /// The first candidates for the worker. No other claim or push gets them until they are given back. Reads further pages where this
    /// replica's windows end.
    pub(crate) async fn offer(&self, worker: &str, max: i64, tries: &Tries) -> Result<Offer, Error> {
        let windows = self.replica.lock().scopes(worker, tries.queue_state.as_ref()).len();
        for _ in 0..PAGES + windows {
            let page_read = self.pages_read.notified();
            let (ready, page, max) = {
                let mut remembered = self.replica.lock();
                let remembered = &mut *remembered;
                let max = usize::try_from(max.min(remembered.cache.fleet.claimable(worker))).unwrap_or(0);
                if max == 0 {
                    return Ok(Offer::default());
                }
                let scopes = remembered.scopes(worker, tries.queue_state.as_ref());
                let queues = &remembered.queues;
                let is_open =
                    |slug: &str| tries.queue_state.as_ref().map_or_else(|| queues.is_open(slug), |queue_state| queue_state.is_open(slug));
                let names_any = remembered.cache.fleet.worker(worker).is_some_and(|worker| worker.capabilities.agents.is_some());
                let names_none_at = (!names_any).then(|| self.clock.now());
                let (wanted, spread) = (max + tries.extra(), tries.spread());
                let ready = remembered.cache.take_ready(&scopes, is_open, names_none_at, wanted, spread, self.random.draw());
                let page = ready.page.as_ref().and_then(|scope| remembered.cache.begin_page(scope));
                if ready.page.is_some() {
                    remembered.cache.queue.give_back(&ready.tasks);
                }
                (ready, page, max)
            };
            match (page, ready.page) {
                (Some(page), _) => self.read_page(page).await?,
                // Another claim or push is already reading this page, and its read has a time limit.
                (None, Some(_)) => page_read.await,
                (None, None) => {
                    return Ok(Offer { tasks: ready.tasks, max, is_contended: ready.is_contended, kept_until: ready.kept_until });
                }
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

    /// If the cache shows that the worker can't take tasks, reads the worker and its tasks again, because a commit of another replica may
    /// have freed a slot or lifted a cordon.
    pub(crate) async fn refresh_if_unfit(&self, worker: &str) -> Result<(), Error> {
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

    /// Reads the worker and these tasks again, because another replica may have changed them since the feed was last read.
    pub(crate) async fn refresh(&self, worker: &str, held: &[TaskId]) -> Result<(), Error> {
        if !self.database.is_shared() {
            return Ok(());
        }
        let read = self.replica.begin_read();
        let workers = self.database.workers_by_id(&[worker.to_owned()]).await.map_err(unreadable)?;
        let tasks = if held.is_empty() { Vec::new() } else { self.database.task_states(held).await.map_err(unreadable)? };
        let mut remembered = self.replica.lock();
        for worker in &workers {
            remembered.put_worker(worker, &read);
        }
        remembered.put_tasks(tasks.iter(), &read);
        Ok(())
    }

    /// Reads the first tasks for the worker from the database, in case the cache has missed some.
    pub(crate) async fn confirm(&self, worker: &str, tries: &mut Tries) -> Result<(), Error> {
        let is_any_closed = {
            let remembered = self.replica.lock();
            if remembered.cache.fleet.claimable(worker) == 0 {
                return Ok(());
            }
            let known = remembered.cache.fleet.worker(worker);
            remembered.queues.is_any_closed() || known.is_some_and(Worker::has_closed_agents)
        };
        tries.queue_state = if is_any_closed { Some(self.ask_about_queues().await?) } else { None };
        let scopes = self.replica.lock().scopes(worker, tries.queue_state.as_ref());
        let read = self.replica.begin_read();
        for scope in &scopes {
            let rows = self.database.ready_page(scope, None, CONFIRMED as i64).await.map_err(unreadable)?;
            self.replica.lock().put_ready(rows, &read);
        }
        Ok(())
    }

    /// Reads which queues are closed, and which agents have ready tasks.
    async fn ask_about_queues(&self) -> Result<QueueState, Error> {
        let closed = self.database.closed_queues().await.map_err(unreadable)?.into_iter().collect();
        let ready = self.database.ready_agents().await.map_err(unreadable)?.into_iter().collect();
        Ok(QueueState { closed, ready })
    }

    /// Handles the database's refusal of candidates of these queues. If the cache shows a queue as open because another replica has just
    /// closed it, it is treated as closed for a moment. Otherwise the tasks that are given back would wake claims that would be refused as
    /// well.
    pub(crate) fn refuse(&self, agents: &[String]) {
        let Some(number) = self.replica.lock().queues.refuse(agents) else { return };
        self.feed.want();
        let (replica, background) = (self.replica.clone(), self.background.clone());
        self.background.spawn(async move {
            tokio::select! {
                biased;
                () = background.stopped() => {}
                () = tokio::time::sleep(REFUSED_FOR) => {}
            }
            replica.forget_refusal(number);
        });
    }

    /// Hides these tasks from claims for a while, because another program keeps them locked.
    pub(crate) fn withhold(&self, tasks: &[TaskId]) {
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
    super::log_failure(&error, "the queue could not be read");
    Error::Unavailable
}

/// Tasks that a claim or a push holds. They are given back when it ends, even by an error or an abort.
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

/// Abandons the read of a page if it fails or if its caller is dropped.
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
