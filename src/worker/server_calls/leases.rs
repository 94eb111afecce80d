//! The leases of this agent: claims, heartbeats, and the run of each lease.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use reqwest::Method;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::machine::boot_clock::{Stamp, millis, now};
use crate::machine::process::TERM_GRACE;
use crate::membridge::Membridge;
use crate::run;
use crate::run::run_dir::{Record, RunDir};
use crate::run::spool::EventLog;
use crate::run::task::{self, Lease, Task};
use crate::run::traced_run::TracedRun;
use crate::run::verdict::{self, Stop, Verdict};
use crate::server_calls::report::{self, Backoff};
use crate::supervisor::cleanup;
use crate::{Agent, HeldLease};
use bloom_api::answers::{Claimed, ClaimedLease, RenewedLeases};
use bloom_api::directives::Directives;
use bloom_api::requests::{Accounts, Claim, WorkerHeartbeat};
use bloom_api::values::{Id, Int, List};
use bloom_client::{self as client, CALL_LIMIT};
use bloom_core::task::Reason;
use bloom_core::worker::WorkerStatus;

/// How long a claim stays open at the server.
const CLAIM_WAIT_SEC: i64 = 30;
/// The interval of heartbeats, or a third of the shortest TTL if that is shorter.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// The time limit of a heartbeat, however short the TTL is.
const SHORTEST_LIMIT: Duration = Duration::from_secs(2);
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// How long the completion of a run waits for its last events to be sent.
const EVENTS_FIRST: Duration = Duration::from_secs(3);

/// How long before its expiry a lease that could not be renewed counts as lost. The run must have ended when the lease expires.
fn safety(ttl: Duration) -> Duration {
    (TERM_GRACE + Duration::from_secs(1)).min(ttl / 5)
}

/// Whether the run of this lease may begin. Of runs that wait for one another, the one with the oldest lease is next.
fn is_next(runs: &BTreeMap<Uuid, HeldLease>, lease: Uuid) -> bool {
    let Some(own) = runs.get(&lease).filter(|own| own.is_renewed) else { return false };
    runs.iter().filter(|(id, other)| **id != lease && !other.is_over).all(|(id, other)| {
        let is_before = other.has_begun || *id < lease;
        let follows = own.context.is_some() && other.context == own.context && (own.follows || other.follows);
        other.task != own.task && !(follows && is_before)
    })
}

impl Agent {
    /// Keeps a claim open while the agent takes new tasks. Cancellations and drains arrive with the answer, or at other times with
    /// heartbeats.
    pub(crate) async fn claim_always(self: Arc<Self>, stopped: CancellationToken) {
        let mut backoff = Backoff::default();
        let path = format!("api/runtime/workers/{}/claim", client::part(&self.name));
        loop {
            let state_changed = self.state_changed.notified();
            if !self.claims() {
                tokio::select! {
                    () = state_changed => {}
                    () = tokio::time::sleep(HEARTBEAT_EVERY) => {}
                    () = stopped.cancelled() => return,
                }
                continue;
            }
            let claim = self.claim(CLAIM_WAIT_SEC);
            let sent = Instant::now();
            let called =
                self.client.send(Method::POST, &path, Some(&claim), Duration::from_secs(CLAIM_WAIT_SEC.unsigned_abs()) + CALL_LIMIT);
            let answer = tokio::select! {
                answer = called => answer.and_then(|answer| answer.json::<Claimed<'static>>()),
                () = stopped.cancelled() => return,
            };
            let wait = match answer {
                Ok(claimed) => {
                    self.key_is_accepted();
                    backoff = Backoff::default();
                    let came_empty = claimed.leases.is_empty();
                    // Before the tasks are taken, because tasks of paused accounts are handed back.
                    if self.heed(&claimed.directives) {
                        self.tell_pauses().await;
                    }
                    for given in claimed.leases {
                        self.take(given);
                    }
                    self.follow(&claimed.directives);
                    // A stopping server answers at once. Without a pause, the agent would claim in a busy loop.
                    (came_empty && sent.elapsed() < Duration::from_millis(100)).then_some(Duration::from_millis(200))
                }
                Err(error) => {
                    self.note_if_replaced(&error);
                    if self.membridge.as_ref().is_some_and(Membridge::is_new) && matches!(error.status(), Some(404 | 409)) {
                        tracing::info!(said = %error, "the server has not taken this worker over from the control plane yet; trying again");
                    } else {
                        self.tell_failure(&error, "no tasks could be claimed");
                        self.register_if_removed(&error).await;
                    }
                    Some(backoff.wait(&error))
                }
            };
            if let Some(wait) = wait {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = stopped.cancelled() => return,
                }
            }
        }
    }

    /// The body of a claim, with the leases that the agent already has.
    pub(crate) fn claim(&self, wait_sec: i64) -> Claim {
        let max = Int(self.settings.max_concurrency.into());
        let held = Some(self.lock().keys().copied().collect());
        Claim { max, wait_sec: Int(wait_sec), held, instance: Some(Id(self.instance)), accounts: self.shared_accounts() }
    }

    fn shared_accounts(&self) -> Accounts {
        self.settings.profiles.shared_accounts().into_iter().collect()
    }

    /// Whether the agent claims tasks at present.
    fn claims(&self) -> bool {
        !self.is_push_only() && !self.is_replaced() && self.drained_since().is_none() && self.offer().status == WorkerStatus::Online
    }

    /// Handles status 404: this worker was removed from the server, and its leases ended with it. Stops all runs and registers again.
    async fn register_if_removed(&self, error: &client::Error) {
        if error.status() == Some(404) {
            self.stop_where(Stop::LeaseLost, |_, _| true);
            self.register_again().await;
        }
    }

    /// Accepts a claimed lease, or hands the task back if this agent can't run it.
    fn take(self: &Arc<Self>, given: ClaimedLease<'_>) {
        let (lease, task) = (given.lease.id, given.task.id);
        match task::taken(&given.lease, &given.task) {
            Ok((lease, task)) => {
                self.accept(lease, task);
            }
            Err(wrong) => {
                tracing::error!(%task, %lease, wrong, "the server gave a task that this agent can't run; it is handed back. Update the agent");
                self.report(task, lease, Verdict::Release { reason: format!("this agent can't run it: {wrong}") });
            }
        }
    }

    /// Reports the verdict of a lease whose run was not started.
    pub(crate) fn report(self: &Arc<Self>, task: Uuid, lease: Uuid, verdict: Verdict) {
        // The lease stays in `runs` until the server has the verdict, so that no claim returns it again.
        let ttl = HEARTBEAT_EVERY * 3;
        let held = HeldLease::over(task, ttl, now().saturating_add(millis(ttl)));
        match self.lock().entry(lease) {
            Entry::Vacant(entry) => entry.insert(held),
            Entry::Occupied(_) => return,
        };
        let agent = self.clone();
        tokio::spawn(async move {
            report::deliver(&agent, &agent.client, task, lease, verdict).await;
            agent.forget(lease);
        });
    }

    /// Starts the run of a lease that the agent does not have yet. Returns false if the lease can't be stored on disk; then the run is not
    /// started.
    pub(crate) fn accept(self: &Arc<Self>, lease: Lease, task: Task) -> bool {
        // The server assigned the task before it knew that the agent takes no new tasks.
        let unwanted = self.draining.load(Ordering::Relaxed) || self.is_closed_for(&task.agent_slug);
        let ttl = lease.ttl();
        // The age of the lease is unknown, so it is renewed before its process starts.
        let in_worktree = self.has_worktree(&task.context_id);
        let held = HeldLease::new(&task, ttl, now().saturating_add(millis(ttl)), in_worktree, unwanted.then_some(Stop::HandBack));
        let stop = held.stop.subscribe();
        if let Entry::Vacant(entry) = self.lock().entry(lease.id) {
            entry.insert(held);
        } else {
            return true;
        }
        let dir = RunDir::new(self.home.run_dir(lease.id));
        let record = Record::new(lease, task);
        if let Err(error) = dir.create(&record) {
            tracing::error!(task = %record.task.id, lease = %record.lease.id, %error, "a task could not be stored on disk; it is handed back, and no others are taken for a while");
            self.pause_for_disk(&error.to_string());
            self.forget(record.lease.id);
            self.report(record.task.id, record.lease.id, Verdict::Release { reason: format!("the worker's disk: {error}") });
            return false;
        }
        self.seen_through.spawn(self.clone().see_through(dir, record, stop));
        self.renew_now.notify_one();
        true
    }

    /// Waits until the server has renewed the lease and no other run of the task or of its context is left on this worker: a dispatch call
    /// pushes a task even while another one of its context runs. Returns false if the run was stopped meanwhile.
    pub(crate) async fn is_ours(&self, lease: Uuid, stop: &mut watch::Receiver<Option<Stop>>) -> bool {
        loop {
            let changed = self.changed.notified();
            if stop.borrow_and_update().is_some() {
                return false;
            }
            {
                let mut runs = self.lock();
                if is_next(&runs, lease)
                    && let Some(held) = runs.get_mut(&lease)
                {
                    held.has_begun = true;
                    return true;
                }
            }
            tokio::select! {
                () = changed => {}
                _ = stop.changed() => {}
            }
        }
    }

    /// When the run of this lease must have ended unless the lease is renewed, on the [`boot_clock`](crate::machine::boot_clock).
    pub(crate) fn run_must_end_by(&self, lease: Uuid) -> Option<u64> {
        self.lock().get(&lease).map(|held| held.valid_until.saturating_sub(millis(safety(held.ttl))))
    }

    pub(crate) fn forget(&self, lease: Uuid) {
        self.lock().remove(&lease);
        self.changed.notify_waiters();
    }

    /// Executes a run and delivers its verdict until the server acknowledges it.
    pub(crate) async fn see_through(self: Arc<Self>, dir: RunDir, record: Record, stop: watch::Receiver<Option<Stop>>) {
        let traced = TracedRun::of(&self, &record);
        let log = self.settings.traces.log_span(traced.context);
        let (task, lease, copy) = (record.task.id, record.lease.id, RunDir::new(dir.path().to_owned()));
        let run = tokio::spawn(self.clone().run_and_report(dir, record, stop, traced).instrument(log));
        let Err(error) = run.await else { return };
        // Otherwise the lease would be renewed forever without a run. A thread that can't be started panics, too.
        tracing::error!(%task, %lease, %error, "the agent failed; the run is ended, and its task is handed back");
        cleanup::end(&copy, None, &lease.to_string(), TERM_GRACE).await;
        self.ended(lease);
        let verdict = copy.verdict().unwrap_or_else(|| Verdict::Release { reason: "the agent failed".into() });
        report::deliver(&self, &self.client, task, lease, verdict).await;
        self.forget(lease);
        copy.remove().await;
    }

    async fn run_and_report(self: Arc<Self>, dir: RunDir, record: Record, stop: watch::Receiver<Option<Stop>>, traced: TracedRun) {
        let (task, lease) = (record.task.id, record.lease.id);
        let mut sending = None;
        let log = EventLog::open(&dir, task, self.home.reserve()).and_then(|log| log.reader().map(|reader| (log, reader)));
        let kept = dir.verdict();
        let is_kept = kept.is_some();
        let verdict = match (kept, log) {
            (kept, Ok((mut log, reader))) => {
                sending = Some(self.events.add(task, lease, reader));
                match kept {
                    Some(verdict) => verdict,
                    None => {
                        let verdict = run::Run { agent: &self, dir: &dir, log: &mut log, stop }.run_to_end(record).await;
                        verdict.after_event(log.last_seq())
                    }
                }
            }
            (Some(verdict), Err(_)) => verdict,
            (None, Err(error)) => {
                cleanup::end(&dir, record.process.map(|running| running.leader), &lease.to_string(), TERM_GRACE).await;
                verdict::not_started(lease, Reason::SpawnFailed, &format!("the run's files can't be used: {error}"), true)
            }
        };
        if !is_kept && let Err(error) = self.home.reserve().helps(|| dir.keep_verdict(&verdict)) {
            tracing::error!(%task, %error, "the end of a run could not be stored on disk; it is only sent");
        }
        if let Some(sending) = &sending {
            self.events.end(sending);
        }
        self.ended(lease);
        if !is_kept {
            traced.end(&self, &verdict);
        }
        if let Verdict::Complete(completion) = &verdict {
            let reason = completion.reason.map(Reason::as_str);
            tracing::info!(%task, %lease, status = %completion.status, reason, duration_ms = completion.metrics.duration_ms.0, "run ended");
        }
        // The last events are sent before the verdict if that takes only a moment. The server also accepts them afterwards.
        if let Some(sending) = &sending {
            let _ = tokio::time::timeout(EVENTS_FIRST, sending.sent()).await;
        }
        report::deliver(&self, &self.client.within(traced.context), task, lease, verdict).await;
        self.forget(lease);
        if let Some(sending) = sending {
            sending.sent().await;
        }
        dir.remove().await;
    }

    pub(crate) fn ended(&self, lease: Uuid) {
        if let Some(held) = self.lock().get_mut(&lease) {
            held.is_over = true;
        }
        self.changed.notify_waiters();
    }

    /// Stops runs whose leases are about to expire, and hands back runs whose drain grace is over, even while calls hang.
    pub(crate) async fn watch_leases(self: Arc<Self>, stopped: CancellationToken) {
        loop {
            self.stop_where(Stop::LeaseLost, |_, held| held.valid_until <= now().saturating_add(millis(safety(held.ttl))));
            if self.drained_since().is_some_and(|since| since.elapsed() >= self.settings.grace) {
                self.stop_where(Stop::HandBack, |_, _| true);
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = stopped.cancelled() => return,
            }
        }
    }

    /// Renews all leases in one call.
    pub(crate) async fn send_heartbeats(self: Arc<Self>, stopped: CancellationToken) {
        let path = format!("api/runtime/workers/{}/heartbeat", client::part(&self.name));
        loop {
            let (leases, third): (List<Id, 0, _>, _) = {
                let runs = self.lock();
                (runs.keys().copied().collect(), runs.values().map(|held| held.ttl / 3).min().unwrap_or(CALL_LIMIT))
            };
            let every = third.clamp(Duration::from_millis(200), HEARTBEAT_EVERY);
            // A longer limit keeps leases on a slow network, and still leaves time for another call before the TTL is over.
            let limit = third.clamp(SHORTEST_LIMIT, CALL_LIMIT);
            // A claim also shows that the agent is alive, so an agent that claims sends no heartbeats while it has no leases.
            if !leases.0.is_empty() || !self.claims() {
                let sent = Stamp::now();
                let sign = WorkerHeartbeat { leases, instance: Some(Id(self.instance)), accounts: self.shared_accounts() };
                let called = self.client.send(Method::POST, &path, Some(&sign), limit);
                tokio::select! {
                    answer = called => match answer.and_then(|answer| answer.json::<RenewedLeases>()) {
                        Ok(renewed) => {
                            self.key_is_accepted();
                            self.renew(&renewed, &sent);
                            self.heed(&renewed.directives);
                            self.follow(&renewed.directives);
                        }
                        // A failed call does not end the leases: they are valid until they expire.
                        Err(error) => {
                            self.tell_failure(&error, "the leases could not be renewed");
                            self.register_if_removed(&error).await;
                        }
                    },
                    () = stopped.cancelled() => return,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.renew_now.notified() => {}
                () = stopped.cancelled() => return,
            }
        }
    }

    pub(crate) fn drained_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.drained_since.lock()
    }

    pub(crate) fn renew(&self, renewed: &RenewedLeases, sent: &Stamp) {
        self.home.renewed(sent);
        let mut runs = self.lock();
        for lease in &renewed.renewed {
            if let Some(held) = runs.get_mut(lease) {
                held.valid_until = sent.at.saturating_add(millis(held.ttl));
                held.is_renewed = true;
            }
        }
        self.changed.notify_waiters();
        for lease in &renewed.lost {
            if let Some(held) = runs.get(lease).filter(|held| !held.is_over) {
                tracing::warn!(%lease, task = %held.task, "the lease is lost; its run is ended");
                held.end(Stop::LeaseLost);
            }
        }
    }

    pub(crate) fn follow(&self, directives: &Directives) {
        self.stop_where(Stop::Cancelled, |lease, _| directives.cancels(lease));
        for held in self.lock().values().filter(|held| directives.answered.contains(&held.task)) {
            held.answered.notify_one();
        }
        let mut since = self.drained_since();
        let was_drained = since.is_some();
        *since = if directives.drain { since.or_else(|| Some(Instant::now())) } else { None };
        if was_drained && since.is_none() {
            self.state_changed.notify_waiters();
        }
    }

    pub(crate) fn stop_where(&self, reason: Stop, is_meant: impl Fn(Uuid, &HeldLease) -> bool) {
        for (_, held) in self.lock().iter().filter(|(lease, held)| !held.is_over && is_meant(**lease, held)) {
            held.end(reason);
        }
    }
}
