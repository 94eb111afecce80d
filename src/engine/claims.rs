//! Claims: a worker's long poll for work. It is answered as soon as there is work for the worker.
//!
//! Candidates come from the replica cache. If one turns out to be taken or blocked, the candidates behind it may still be free. A claim
//! therefore continues until it has work, or until neither the cache nor the database has any for it.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::Ms;
use bloom_core::command::{Claim, Command, Rejection, Requester};
use bloom_core::ids::{InstanceId, LeaseId, TaskId, WorkerId};
use bloom_core::origin::Origin;
use bloom_core::reply::Claimed;
use bloom_core::task::TaskState;
use bloom_database::Database;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Error;
use super::background::Background;
use super::candidates::{Candidates, Offer, Taken, Tries};
use super::clock::Clock;
use super::last_seen::LastSeen;
use super::replica::Replica;
use super::replica::feed::Feed;
use super::replica::remembered::Remembered;
use super::writers::Writers;

/// A worker's request for tasks.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The worker that the tasks are for.
    pub worker: WorkerId,
    /// The maximum number of tasks that it takes now.
    pub max: i64,
    /// How long to wait if there is nothing for the worker, in milliseconds; 0 = not at all.
    pub wait_ms: i64,
    /// Leases that the worker already has. Its other leases from earlier claims are delivered again.
    pub held: Option<Vec<LeaseId>>,
    /// The agent that claims; `None` if it did not send its instance.
    pub instance: Option<InstanceId>,
    /// How long the leases last without a heartbeat, in milliseconds.
    pub ttl_ms: i64,
    /// Who asks, for the audit trail.
    pub by: Requester,
}

/// The longest wait of a claim while a cancellation or an answer is pending, because the reply to the claim reports it to the worker.
const WAIT_WITH_ORDERS: Duration = Duration::from_secs(1);
/// The shortest time between two searches for tasks that are kept for other workers. All idle workers search, and there may be many such
/// tasks.
const LOOKS_APART: Duration = Duration::from_millis(200);
/// The maximum number of tries of one claim that find only tasks that another program keeps locked.
const LOCKED_TRIES: u32 = 3;
/// The maximum number of tries of one claim if other claims always take its candidates first.
const TRIES: u32 = 1_000;

/// Leases ready tasks to workers that ask for them.
pub struct Claims {
    pub(super) database: Arc<dyn Database>,
    pub(super) clock: Arc<Clock>,
    pub(super) replica: Arc<Replica>,
    pub(super) feed: Arc<Feed>,
    pub(super) candidates: Arc<Candidates>,
    pub(super) writers: Arc<Writers>,
    pub(super) last_seen: Arc<LastSeen>,
    pub(super) background: Background,
}

impl Claims {
    /// Leases tasks to the worker: at once if there are any, otherwise as soon as there are. The result is empty when the wait is over.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Vec<TaskState>, Error> {
        let open = OpenClaim::register(&self.replica, &request.worker);
        let orders = |remembered: &Remembered| (remembered.cancels(&request.worker), remembered.answered(&request.worker));
        let known = orders(&self.replica.lock());
        let mut wait = Duration::from_millis(request.wait_ms.max(0).unsigned_abs());
        if known != (Vec::new(), Vec::new()) {
            wait = wait.min(WAIT_WITH_ORDERS);
        }
        let deadline = Instant::now() + wait;
        let mut redeliver = request.held.is_some();
        let mut is_new = true;
        self.candidates.refresh_if_unfit(&request.worker).await?;
        let is_ready = |remembered: &Remembered| {
            remembered.cache.fleet.worker(&request.worker).is_some_and(|worker| worker.draining) || orders(remembered) != known
        };
        loop {
            self.last_seen.record(&request.worker, request.instance);
            let leased = self.try_claim(&request, std::mem::take(&mut redeliver), std::mem::take(&mut is_new)).await;
            self.replica.lock().pass_on();
            let (leased, kept_until) = leased?;
            if !leased.is_empty() {
                return Ok(leased);
            }
            let now = Instant::now();
            if now >= deadline || self.background.is_stopping() || is_ready(&self.replica.lock()) {
                return Ok(Vec::new());
            }
            let kept_for = kept_until.map(|at| Duration::from_millis((at - self.clock.now()).max(0).unsigned_abs()).max(LOOKS_APART));
            let again = (deadline - now).min(self.last_seen.every).min(kept_for.unwrap_or(Duration::MAX));
            tokio::select! {
                biased;
                () = self.background.stopped() => {}
                () = open.notify.notified() => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// Leases what the worker can get now. The result is empty only if there was nothing for the worker at some moment during this call, or
    /// if everything that there was is locked. The returned time is then when the worker may have tasks that are kept for others. `is_new`
    /// marks the first try of the claim.
    async fn try_claim(&self, request: &ClaimRequest, redeliver: bool, is_new: bool) -> Result<(Vec<TaskState>, Option<Ms>), Error> {
        let mut redeliver = redeliver && self.may_have_undelivered(request);
        let mut tries = Tries::default();
        let mut locked_tries = 0;
        // The cache may lag behind a registration, so the database decides once for each try whether another agent has the name.
        let mut is_doubtful = self.replica.is_of_other(&request.worker, request.instance);
        while tries.number < TRIES && !self.background.is_stopping() {
            tries.number += 1;
            let is_unknown = self.replica.lock().cache.fleet.worker(&request.worker).is_none();
            let given_back = self.candidates.given_back();
            let Offer { tasks: candidates, max, is_contended, kept_until } =
                self.candidates.offer(&request.worker, request.max, &tries).await?;
            if candidates.is_empty() && !redeliver && !is_unknown && !std::mem::take(&mut is_doubtful) {
                if is_contended {
                    // Other claims take what they need with their next commit, and give back the rest.
                    given_back.await;
                    continue;
                }
                if tries.is_confirmed {
                    return Ok((Vec::new(), kept_until));
                }
                // The cache is always searched once more, because the feed may have delivered a task meanwhile.
                if is_new {
                    self.candidates.refresh(&request.worker, &[]).await?;
                }
                self.candidates.confirm(&request.worker, &mut tries).await?;
                tries.is_confirmed = true;
                continue;
            }
            let wanted = candidates.len();
            let Claimed { leased, missed, locked, closed, .. } =
                self.take(request, candidates, max, std::mem::take(&mut redeliver)).await?;
            if !leased.is_empty() {
                return Ok((leased, None));
            }
            if !locked.is_empty() && locked.len() == missed {
                locked_tries += 1;
                if locked_tries >= LOCKED_TRIES {
                    return Ok((Vec::new(), kept_until));
                }
            }
            if !closed.is_empty() {
                // From now on the cached state of the queues is used again, because it shows the refused queues as closed.
                tries.queue_state = None;
            }
            if missed > 0 {
                tries.missed += 1;
                // Another replica has probably taken them, and more. Read its commits now.
                self.feed.want();
            }
            if wanted > 0 {
                tries.is_confirmed = false;
            }
        }
        Err(if self.background.is_stopping() { Error::Unavailable } else { Error::Busy })
    }

    /// Whether the worker may have a lease from a claim that it did not list. On a shared database, another replica may just have made one.
    fn may_have_undelivered(&self, request: &ClaimRequest) -> bool {
        let Some(held) = &request.held else { return false };
        let remembered = self.replica.lock();
        let mut known = remembered.cache.fleet.held(&request.worker);
        self.database.is_shared() || known.any(|lease| lease.origin == Origin::Claim && !held.contains(&lease.lease))
    }

    async fn take(&self, request: &ClaimRequest, candidates: Vec<TaskId>, max: usize, redeliver: bool) -> Result<Claimed, Error> {
        let taken = Taken { candidates: &self.candidates, tasks: candidates.clone() };
        let held = request.held.clone().filter(|_| redeliver);
        let claim = Claim { worker: request.worker.clone(), candidates, max, held, instance: request.instance, ttl_ms: request.ttl_ms };
        let command = Command { op: claim, by: request.by.clone(), epoch: None };
        let reply = self.writers.submit(command).await;
        match &reply {
            // This must be done before `taken` gives the candidates back.
            Ok(claimed) => {
                self.candidates.withhold(&claimed.locked);
                self.candidates.refuse(&claimed.closed);
            }
            // The cache may still show a worker that was removed. The feed delivers the removal.
            Err(Error::Rejected(Rejection::WorkerNotFound | Rejection::OtherAgent { .. })) => self.feed.want(),
            Err(_) => {}
        }
        drop(taken);
        reply
    }
}

/// An open claim, which is registered to be woken until this is dropped.
struct OpenClaim {
    replica: Arc<Replica>,
    worker: WorkerId,
    notify: Arc<Notify>,
}

impl OpenClaim {
    fn register(replica: &Arc<Replica>, worker: &str) -> Self {
        let notify = replica.lock().open_claim(worker);
        Self { replica: replica.clone(), worker: worker.to_owned(), notify }
    }
}

impl Drop for OpenClaim {
    fn drop(&mut self) {
        self.replica.lock().close_claim(&self.worker, &self.notify);
    }
}
