//! The leases that this agent has: how they come, how they are kept, and what becomes of each.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Method;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::report::{self, Backoff};
use super::spool::{EventLog, Record, RunDir};
use super::verdict::{self, Stop, Verdict};
use super::wire::{Claim, Claimed, Directives, Heartbeat, Lease, Renewed, Task};
use super::{Agent, Held, now_ms, run};
use crate::client::{self, CALL_LIMIT};
use crate::core::Ms;
use crate::core::task::Reason;

/// How long a claim stays open at the server.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
/// Leases are renewed so often, or three times in the shortest of them.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// How long a run's end waits for its last events to be told.
const EVENTS_FIRST: Duration = Duration::from_secs(3);

/// How long before its end a lease that could not be renewed is taken for lost: its run has to be gone by then.
fn safety(ttl: Duration) -> Duration {
    (run::TERM_GRACE + Duration::from_secs(1)).min(ttl / 5)
}

impl Agent {
    /// Keeps a claim open always: while there is no room or no wish for tasks, it still brings word of cancels and drains.
    pub(super) async fn claim_always(self: Arc<Self>, stopped: CancellationToken) {
        if self.is_push_only() {
            return;
        }
        let mut backoff = Backoff::default();
        let path = format!("api/runtime/workers/{}/claim", client::part(&self.name));
        loop {
            let held: Vec<Uuid> = self.lock().keys().copied().collect();
            let claim = Claim { max: self.settings.max_concurrency, wait_sec: CLAIM_WAIT.as_secs(), held: &held };
            let sent = Instant::now();
            let called = self.client.send(Method::POST, &path, Some(&claim), CLAIM_WAIT + CALL_LIMIT);
            let answer = tokio::select! {
                answer = called => answer.and_then(|answer| answer.json::<Claimed>()),
                () = stopped.cancelled() => return,
            };
            let wait = match answer {
                Ok(claimed) => {
                    backoff = Backoff::default();
                    for given in claimed.leases {
                        self.accept(given.lease, given.task, sent);
                    }
                    self.follow(&claimed.directives);
                    // A server that can't wait, as while it stops, is not asked without a pause.
                    (sent.elapsed() < Duration::from_millis(100) && held.len() == self.lock().len()).then_some(Duration::from_millis(200))
                }
                Err(error) => {
                    tracing::warn!(%error, "no tasks could be claimed; trying again");
                    if error.status() == Some(404) {
                        // Somebody has removed the worker; it is still here.
                        self.register_again().await;
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

    /// Begins the run of a lease that is new to us. False: it could not be kept on disk, so it is not begun.
    pub(super) fn accept(self: &Arc<Self>, lease: Lease, task: Task, sent: Instant) -> bool {
        if self.lock().contains_key(&lease.id) {
            return true;
        }
        let dir = RunDir::new(self.home.run_dir(lease.id));
        let taken_at = now_ms() - Ms::try_from(sent.elapsed().as_millis()).unwrap_or(0);
        let record = Record { lease, taken_at, task, process: None, starts: 0 };
        if let Err(error) = dir.create(&record) {
            // It is delivered again, or expires.
            tracing::error!(lease = %record.lease.id, %error, "a task can't be kept on disk, so it is not started");
            return false;
        }
        self.begin(dir, record, sent + Duration::from_secs(lease.ttl_seconds));
        true
    }

    pub(super) fn begin(self: &Arc<Self>, dir: RunDir, record: Record, valid_until: Instant) {
        let (task, ttl) = (record.task.id, Duration::from_secs(record.lease.ttl_seconds));
        let first = match record.process {
            Some(_) => None,
            // It came while the server did not know yet that nothing new is taken.
            None if *self.draining.borrow() || self.is_closed_for(&record.task.agent_slug) => Some(Stop::HandBack),
            None => (valid_until <= Instant::now() + safety(ttl)).then_some(Stop::LeaseLost),
        };
        let (stop, stopped) = watch::channel(first);
        self.lock().insert(record.lease.id, Held { task, ttl, valid_until, stop, is_over: dir.verdict().is_some() });
        tokio::spawn(self.clone().see_through(dir, record, stopped));
        if ttl / 3 < HEARTBEAT_EVERY {
            self.hurry.notify_one();
        }
    }

    pub(super) fn is_closed_for(&self, agent_slug: &str) -> bool {
        self.profiles.of(agent_slug).is_some_and(|profile| self.accounts.is_closed(&profile.account, now_ms()))
    }

    /// A run to its acknowledged end.
    pub(super) async fn see_through(self: Arc<Self>, dir: RunDir, record: Record, stop: watch::Receiver<Option<Stop>>) {
        let (task, lease) = (record.task.id, record.lease.id);
        let over = CancellationToken::new();
        let mut sender = None;
        let verdict = match EventLog::open(&dir).and_then(|log| log.reader().map(|reader| (log, reader))) {
            Ok((mut log, reader)) => {
                let (agent, is_over) = (self.clone(), over.clone());
                sender = Some(tokio::spawn(async move { report::send_events(&agent, task, lease, reader, is_over).await }));
                let verdict = match dir.verdict() {
                    Some(verdict) => verdict,
                    None => run::Run { agent: &self, dir: &dir, log: &mut log, stop }.drive(record).await,
                };
                if let Err(error) = dir.keep_verdict(&verdict) {
                    tracing::error!(%task, %error, "a run's end can't be kept on disk; it is only sent");
                }
                over.cancel();
                self.ended(lease);
                verdict
            }
            Err(error) => {
                let why = format!("the run's files can't be used: {error}");
                verdict::not_started(lease, Reason::SpawnFailed, &why, true)
            }
        };
        if let Verdict::Complete(completion) = &verdict {
            let reason = completion.reason.map(Reason::as_str);
            tracing::info!(%task, %lease, status = %completion.status, reason, duration_ms = completion.metrics.duration_ms, "run ended");
        }
        // The last events go first, if that is a matter of moments: the server takes them afterwards as well.
        if let Some(told) = &mut sender
            && tokio::time::timeout(EVENTS_FIRST, told).await.is_ok()
        {
            sender = None;
        }
        report::deliver(&self, task, lease, verdict).await;
        self.lock().remove(&lease);
        self.freed.notify_waiters();
        if let Some(told) = sender {
            let _ = told.await;
        }
        dir.remove();
    }

    pub(super) fn ended(&self, lease: Uuid) {
        if let Some(held) = self.lock().get_mut(&lease) {
            held.is_over = true;
        }
    }

    /// Renews all leases in one call, and ends the runs whose lease is over.
    pub(super) async fn beat(self: Arc<Self>, stopped: CancellationToken) {
        let path = format!("api/runtime/workers/{}/heartbeat", client::part(&self.name));
        loop {
            let (leases, every) = {
                let runs = self.lock();
                let shortest = runs.values().map(|held| held.ttl / 3).min().unwrap_or(HEARTBEAT_EVERY);
                (runs.keys().copied().collect::<Vec<_>>(), shortest.clamp(Duration::from_millis(200), HEARTBEAT_EVERY))
            };
            // Whoever claims is seen by that.
            if !leases.is_empty() || self.is_push_only() {
                let sent = Instant::now();
                let sign = Heartbeat { leases: &leases };
                let called = self.client.send(Method::POST, &path, Some(&sign), every.max(Duration::from_secs(2)));
                tokio::select! {
                    answer = called => match answer.and_then(|answer| answer.json::<Renewed>()) {
                        Ok(renewed) => {
                            self.renew(&renewed, sent);
                            self.follow(&renewed.directives);
                        }
                        // Unknown is not lost: only the time decides.
                        Err(error) => {
                            tracing::warn!(%error, "the leases could not be renewed; trying again");
                            if error.status() == Some(404) {
                                // Removed by somebody: once it is back, it is told what it has lost.
                                self.register_again().await;
                            }
                        }
                    },
                    () = stopped.cancelled() => return,
                }
            }
            self.stop_where(Stop::LeaseLost, |held| held.valid_until <= Instant::now() + safety(held.ttl));
            if self.drained_since().is_some_and(|since| since.elapsed() >= self.settings.grace) {
                self.stop_where(Stop::HandBack, |_| true);
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.hurry.notified() => {}
                () = stopped.cancelled() => return,
            }
        }
    }

    pub(super) fn drained_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.drained_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn renew(&self, renewed: &Renewed, sent: Instant) {
        self.home.renewed(now_ms());
        let mut runs = self.lock();
        for lease in &renewed.renewed {
            if let Some(held) = runs.get_mut(lease) {
                held.valid_until = sent + held.ttl;
            }
        }
        for lease in &renewed.lost {
            if let Some(held) = runs.get(lease).filter(|held| !held.is_over) {
                tracing::warn!(%lease, task = %held.task, "the lease is lost: its run is ended");
                held.stop.send_if_modified(|stop| stop.is_none().then(|| *stop = Some(Stop::LeaseLost)).is_some());
            }
        }
    }

    pub(super) fn follow(&self, directives: &Directives) {
        self.stop_where(Stop::Cancelled, |held| directives.cancel.contains(&held.task));
        let mut since = self.drained_since();
        *since = if directives.drain { since.or_else(|| Some(Instant::now())) } else { None };
    }

    pub(super) fn stop_where(&self, reason: Stop, is_meant: impl Fn(&Held) -> bool) {
        for held in self.lock().values().filter(|held| !held.is_over && is_meant(held)) {
            held.stop.send_if_modified(|stop| stop.is_none().then(|| *stop = Some(reason)).is_some());
        }
    }
}
