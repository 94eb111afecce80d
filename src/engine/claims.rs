//! A worker's claim: answered as soon as there is work for it, a long poll otherwise.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{Engine, Error, lock};
use crate::core::command::{Claim, Command, Op, Rejection, Reply};
use crate::core::ids::{LeaseId, TaskId, WorkerId};
use crate::core::queue::{PageRead, Ready, Scope};
use crate::core::task::{Origin, TaskState};

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

impl Engine {
    /// Leases for the worker, at once if there are any, else when there are or the wait is over.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Vec<TaskState>, Error> {
        let waker = Waker::register(self, &request.worker);
        let cancels = lock(&self.0.board).cancels(&request.worker);
        let mut wait = Duration::from_millis(request.wait_ms.max(0).unsigned_abs());
        if !cancels.is_empty() {
            wait = wait.min(WAIT_WITH_CANCELS);
        }
        let deadline = Instant::now() + wait;
        let mut first = true;
        loop {
            self.sighted(&request.worker);
            let (candidates, next_at) = self.candidates(&request.worker, request.max, deadline).await?;
            let redeliver = first && self.may_have_undelivered(&request);
            let unknown = lock(&self.0.board).fleet.worker(&request.worker).is_none();
            if !candidates.is_empty() || redeliver || unknown {
                let leased = self.take(&request, candidates, redeliver).await?;
                if !leased.is_empty() {
                    return Ok(leased);
                }
            }
            first = false;
            let now = Instant::now();
            let told = |board: &super::Board| {
                board.fleet.worker(&request.worker).is_some_and(|worker| worker.draining) || board.cancels(&request.worker) != cancels
            };
            if now >= deadline || self.is_stopping() || told(&lock(&self.0.board)) {
                return Ok(Vec::new());
            }
            let mut pause = (deadline - now).min(self.0.sightings.every);
            if let Some(at) = next_at {
                pause = pause.min(Duration::from_millis((at - self.now()).max(1).unsigned_abs()));
            }
            tokio::select! {
                () = waker.notify.notified() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.0.stop.cancelled() => {}
            }
        }
    }

    /// The first tasks for the worker; reads further into the queue where this replica's window ends.
    pub(super) async fn candidates(&self, worker: &str, max: i64, deadline: Instant) -> Result<(Vec<TaskId>, Option<i64>), Error> {
        const PAGES: usize = 64;
        for _ in 0..PAGES {
            let page_read = self.0.pages_read.notified();
            let (look, page) = {
                let mut board = lock(&self.0.board);
                let free = if board.fleet.takes_tasks(worker) { board.fleet.free(worker) } else { 0 };
                let max = usize::try_from(max.min(free).max(0)).unwrap_or(0);
                if max == 0 {
                    return Ok((Vec::new(), None));
                }
                let scopes = board.scopes(worker);
                let look = board.look(worker, &scopes, max, self.now());
                let page = look.pages.iter().find_map(|scope| board.queue.begin_page(scope));
                (look, page)
            };
            match page {
                Some(page) => {
                    lock(&self.0.board).queue.give_back(&look.tasks);
                    self.read_page(&page).await?;
                }
                // Somebody else reads that page.
                None if look.tasks.is_empty() && !look.pages.is_empty() => {
                    let patience = (deadline.saturating_duration_since(Instant::now())).max(Duration::from_secs(1));
                    if tokio::time::timeout(patience, page_read).await.is_err() {
                        return Ok((Vec::new(), None));
                    }
                }
                None => return Ok((look.tasks, look.next_at)),
            }
        }
        Ok((Vec::new(), None))
    }

    async fn read_page(&self, page: &PageRead) -> Result<(), Error> {
        let reading = PageGuard { engine: self, page };
        let agent = match &page.scope {
            Scope::All => None,
            Scope::Agent(slug) => Some(slug.as_str()),
        };
        let rows = self.0.store.ready_page(agent, page.after, PAGE as i64).await.map_err(|error| {
            tracing::warn!(%error, "the queue could not be read");
            Error::Unavailable
        })?;
        let mut board = lock(&self.0.board);
        let wait_ms = board.session_wait_ms;
        let ready = rows
            .into_iter()
            .map(|row| Ready {
                key: (row.rank, row.id),
                agent_slug: row.agent_slug,
                reserved_for: row.session_worker.map(|worker| (worker, row.ready_at.unwrap_or_default() + wait_ms)),
            })
            .collect();
        board.queue.end_page(page, ready, PAGE);
        drop(board);
        drop(reading);
        Ok(())
    }

    /// Whether a lease by claim may exist that the worker did not name.
    fn may_have_undelivered(&self, request: &ClaimRequest) -> bool {
        let Some(held) = &request.held else { return false };
        let board = lock(&self.0.board);
        board.fleet.held(&request.worker).any(|lease| lease.origin == Origin::Claim && !held.contains(&lease.lease))
    }

    async fn take(&self, request: &ClaimRequest, candidates: Vec<TaskId>, redeliver: bool) -> Result<Vec<TaskState>, Error> {
        let taken = Taken { engine: self, tasks: candidates.clone() };
        let claim =
            Claim { worker: request.worker.clone(), candidates, held: request.held.clone().filter(|_| redeliver), ttl_ms: request.ttl_ms };
        let command = Command { op: Op::Claim(claim), request_id: request.request_id.clone(), epoch: None };
        let reply = self.submit(command).await;
        if matches!(reply, Err(Error::Rejected(Rejection::WorkerNotFound))) {
            lock(&self.0.board).fleet.remove_worker(&request.worker);
        }
        match reply? {
            Reply::Claimed { worker, leased, stale } => {
                let mut board = lock(&self.0.board);
                if board.fleet.worker(&worker.id).is_none() {
                    board.fleet.put_worker(worker);
                }
                board.queue.forget(&stale);
                drop(board);
                drop(taken);
                Ok(leased)
            }
            _ => Err(Error::Internal),
        }
    }
}

/// An open claim on the list of those to wake.
struct Waker {
    engine: Engine,
    worker: WorkerId,
    notify: Arc<Notify>,
}

impl Waker {
    fn register(engine: &Engine, worker: &str) -> Self {
        let notify = Arc::new(Notify::new());
        lock(&engine.0.board).pollers.entry(worker.to_owned()).or_default().push(notify.clone());
        Self { engine: engine.clone(), worker: worker.to_owned(), notify }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        let mut board = lock(&self.engine.0.board);
        if let Some(open) = board.pollers.get_mut(&self.worker) {
            open.retain(|other| !Arc::ptr_eq(other, &self.notify));
            if open.is_empty() {
                board.pollers.remove(&self.worker);
            }
        }
    }
}

/// Tasks handed to a claim or a push; they are free again when it ends, however it ends.
pub(super) struct Taken<'a> {
    pub engine: &'a Engine,
    pub tasks: Vec<TaskId>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        lock(&self.engine.0.board).queue.give_back(&self.tasks);
    }
}

/// Ends the reading of a page, also when its caller went away in the middle.
struct PageGuard<'a> {
    engine: &'a Engine,
    page: &'a PageRead,
}

impl Drop for PageGuard<'_> {
    fn drop(&mut self) {
        lock(&self.engine.0.board).queue.abandon_page(self.page);
        self.engine.0.pages_read.notify_waiters();
    }
}
