//! The worker agent: takes tasks from a server, runs them, and tells how they ended, whatever dies in between.
//!
//! Its directory ([`home`]) is its memory. A run's process writes to files there, so it goes on while the agent is away; the next agent
//! watches it again, or tells what it left. Nothing is forgotten before the server has acknowledged it.

pub mod account;
mod door;
pub mod echo;
mod home;
mod invocation;
mod machine;
mod process;
pub mod profile;
mod prompt;
mod report;
mod run;
mod spool;
mod stream;
mod verdict;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use reqwest::Method;
use secrecy::SecretString;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::client::{self, CALL_LIMIT, Client};
use crate::core::Ms;
use account::{Accounts, Openness};
use home::Home;
pub use invocation::ECHO;
use profile::Profiles;
use report::Backoff;
use spool::{EventLog, Record, RunDir};
use verdict::{Stop, Verdict};
use wire::{Capabilities, Claim, Claimed, Directives, Heartbeat, Lease, Registration, Renewed, Task};

/// How long a claim stays open at the server.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
/// Leases are renewed so often, or three times in the shortest of them.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// A lease that could not be renewed is taken for lost so long before its end: the run is gone by then.
const SAFETY: Duration = Duration::from_secs(6);
/// How long a run's end waits for its last events to be told.
const EVENTS_FIRST: Duration = Duration::from_secs(3);
/// Last calls at a stop, with a server that may be gone.
const FAREWELL: Duration = Duration::from_secs(5);

/// How an agent is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    pub server: String,
    /// A worker key is enough.
    pub key: Option<SecretString>,
    /// None: the name it had before, else one made of the host's.
    pub name: Option<String>,
    pub max_concurrency: u32,
    pub labels: Vec<String>,
    pub work_dir: PathBuf,
    pub profiles: Profiles,
    /// At a stop or a drain, runs get so long to end by themselves.
    pub grace: Duration,
    /// Where the push protocol is spoken.
    pub door: Option<Door>,
}

/// The agent's own door, for servers that push.
#[derive(Clone, Debug)]
pub struct Door {
    /// What callers have to send as X-MEMBRIDGE-AGENT.
    pub key: SecretString,
    /// Where servers reach it.
    pub url: String,
    /// Tasks are only pushed to it; it does not claim.
    pub push_only: bool,
    /// What `/self-update` runs, in a shell.
    pub update_command: Option<String>,
}

/// Why the agent came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As asked; what was not done is handed back.
    Stopped,
    /// It is to be started again at once, and finds its runs going on.
    Restart,
}

/// The agent at work.
pub(crate) struct Agent {
    settings: Settings,
    client: Client,
    home: Home,
    name: String,
    profiles: Profiles,
    accounts: Accounts,
    runs: Mutex<BTreeMap<Uuid, Held>>,
    /// Something changed that decides whether new tasks are taken.
    turned: Notify,
    /// A lease that has to be renewed soon.
    hurry: Notify,
    /// A run has ended.
    freed: Notify,
    /// This agent stops.
    draining: watch::Sender<bool>,
    /// Since when the server wants it to be drained.
    drained_since: Mutex<Option<Instant>>,
    restart: CancellationToken,
    leave: CancellationToken,
}

/// A lease that this agent has.
struct Held {
    task: Uuid,
    ttl: Duration,
    /// Until then nobody else has the task, by our own clock from when the last renewal was sent.
    valid_until: Instant,
    stop: watch::Sender<Option<Stop>>,
    /// How it ended is known, and kept.
    is_over: bool,
}

pub(crate) fn now_ms() -> Ms {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ms::try_from(since.as_millis()).unwrap_or(Ms::MAX)
}

/// Runs an agent until `shutdown`, and then until its runs have ended or are handed back.
///
/// # Errors
/// It can't work as it is set up; the text says what to do.
pub use home::hostname;

pub async fn run(settings: Settings, listener: Option<TcpListener>, shutdown: CancellationToken) -> Result<Ended, String> {
    let client = Client::new(&settings.server, settings.key.as_ref()).map_err(|error| error.to_string())?;
    let home = Home::open(&settings.work_dir)?;
    let name = home.name(settings.name.as_deref())?;
    let accounts = Accounts::load(home.accounts_path());
    let agent = Arc::new(Agent {
        profiles: settings.profiles.clone(),
        settings,
        client,
        home,
        name,
        accounts,
        runs: Mutex::default(),
        turned: Notify::new(),
        hurry: Notify::new(),
        freed: Notify::new(),
        draining: watch::Sender::new(false),
        drained_since: Mutex::default(),
        restart: CancellationToken::new(),
        leave: CancellationToken::new(),
    });
    agent.clone().work(listener, shutdown).await
}

impl Agent {
    async fn work(self: Arc<Self>, listener: Option<TcpListener>, shutdown: CancellationToken) -> Result<Ended, String> {
        self.take_up().await;
        tokio::select! {
            registered = self.register_first() => registered?,
            () = shutdown.cancelled() => return Ok(Ended::Stopped),
        }
        let stopped = CancellationToken::new();
        let posture = tokio::spawn(self.clone().keep_posture(stopped.clone()));
        let claims = tokio::spawn(self.clone().claim_always(stopped.clone()));
        let heartbeats = tokio::spawn(self.clone().beat(stopped.clone()));
        let door = listener.map(|listener| tokio::spawn(door::serve(self.clone(), listener, stopped.clone())));
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ended::Stopped,
            () = self.leave.cancelled() => Ended::Stopped,
            () = self.restart.cancelled() => Ended::Restart,
        };
        if ended == Ended::Stopped {
            tracing::info!(
                runs = self.lock().len(),
                grace_s = self.settings.grace.as_secs(),
                "stopping: no new tasks; a second signal ends at once"
            );
            self.draining.send_replace(true);
            self.turned.notify_one();
            self.drain().await;
        }
        stopped.cancel();
        for task in [Some(posture), Some(claims), Some(heartbeats), door].into_iter().flatten() {
            let _ = task.await;
        }
        if ended == Ended::Stopped {
            let _ = tokio::time::timeout(FAREWELL, self.say_goodbye()).await;
        }
        Ok(ended)
    }

    fn is_push_only(&self) -> bool {
        self.settings.door.as_ref().is_some_and(|door| door.push_only)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, Held>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with what an earlier process left.
    async fn take_up(self: &Arc<Self>) {
        let mut found: Vec<(RunDir, Record)> = Vec::new();
        for path in self.home.run_dirs() {
            let dir = RunDir::new(path);
            match dir.record() {
                Some(record) => found.push((dir, record)),
                // It was never begun: without a record nothing was started.
                None => dir.remove(),
            }
        }
        // What was started is watched again; what was not starts.
        for (dir, record) in &mut found {
            record.process = record.process.or_else(|| dir.find_process(record));
        }
        let started = |record: &Record| record.process.is_some().then(|| record.lease.id.to_string());
        let keep: Vec<String> = found.iter().filter_map(|(_, record)| started(record)).collect();
        process::sweep(self.home.root(), &keep).await;
        let renewed = self.home.renewed_at().unwrap_or(0);
        for (dir, record) in found {
            let age = Duration::from_millis(u64::try_from(now_ms() - renewed).unwrap_or(u64::MAX));
            let left = Duration::from_secs(record.lease.ttl_seconds).saturating_sub(age);
            tracing::info!(lease = %record.lease.id, task = %record.task.id, "taking up a run of before");
            self.begin(dir, record, Instant::now() + left);
        }
    }

    /// The first registration tells a person what is wrong; later ones are tried for ever.
    async fn register_first(&self) -> Result<(), String> {
        let mut backoff = Backoff::default();
        loop {
            match self.register(self.status()).await {
                Ok(()) => {
                    tracing::info!(worker = self.name, server = self.client.server(), slots = self.settings.max_concurrency, "registered");
                    return Ok(());
                }
                Err(error) if !error.is_passing() => {
                    return Err(format!("the server {} did not register this worker: {error}", self.client.server()));
                }
                Err(error) => {
                    let wait = backoff.wait(&error);
                    tracing::warn!(%error, "the server can't be reached; trying again");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    async fn register(&self, status: &'static str) -> Result<(), client::Error> {
        let door = self.settings.door.as_ref();
        let registration = Registration {
            name: self.name.clone(),
            status,
            capabilities: self.capabilities(),
            agent_version: env!("CARGO_PKG_VERSION"),
            os_info: machine::os_info(),
            ip_addrs: machine::addresses(self.client.server()),
            url: door.map(|door| door.url.clone()),
            dispatch: if self.is_push_only() { "push" } else { "manual" },
        };
        self.client.post::<Value>("api/runtime/workers", &registration).await.map(drop)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Servers lease and push only to workers that say so; one with a door wants that.
            claude_cli: self.profiles.run_claude() || self.settings.door.is_some(),
            max_concurrency: self.settings.max_concurrency,
            labels: self.settings.labels.clone(),
            agents: self.profiles.slugs(),
        }
    }

    /// What the server is to think of this worker: only an `online` one gets new tasks.
    fn status(&self) -> &'static str {
        if *self.draining.borrow() {
            return "syncing";
        }
        match self.accounts.openness(&self.profiles, now_ms()) {
            Openness::Open => "online",
            Openness::Paused { .. } => "syncing",
            Openness::Refused { .. } => "error",
        }
    }

    /// Tells the server whenever the worker opens or closes, for whatever reason.
    async fn keep_posture(self: Arc<Self>, stopped: CancellationToken) {
        let mut told = "online";
        let mut backoff = Backoff::default();
        loop {
            let status = self.status();
            if status != told {
                match self.register(status).await {
                    Ok(()) => {
                        tracing::info!(status, "told the server how this worker is");
                        told = status;
                        backoff = Backoff::default();
                    }
                    Err(error) => {
                        tracing::warn!(%error, status, "the server could not be told how this worker is; trying again");
                        tokio::time::sleep(backoff.wait(&error)).await;
                        continue;
                    }
                }
            }
            let reopens = match self.accounts.openness(&self.profiles, now_ms()) {
                Openness::Paused { until, .. } => Duration::from_millis(u64::try_from(until - now_ms()).unwrap_or(0)),
                _ => Duration::from_secs(3600),
            };
            tokio::select! {
                () = stopped.cancelled() => return,
                () = self.turned.notified() => {}
                () = tokio::time::sleep(reopens) => {}
            }
        }
    }

    pub(crate) fn pause(&self, account: &str, until: Ms) {
        tracing::warn!(account, until, "the account is out of quota: no new tasks until then");
        self.accounts.pause(account, until, now_ms());
        self.turned.notify_one();
    }

    pub(crate) fn refuse(&self, account: &str) {
        tracing::error!(account, "the account's credentials were refused: no new tasks; log the CLI in again, then restart the agent");
        self.accounts.refuse(account);
        self.turned.notify_one();
    }

    /// Keeps a claim open always: while there is no room or no wish for tasks, it still brings word of cancels and drains.
    async fn claim_always(self: Arc<Self>, stopped: CancellationToken) {
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

    async fn register_again(&self) {
        if let Err(error) = self.register(self.status()).await {
            tracing::warn!(%error, "the worker could not be registered again");
        }
    }

    /// Begins the run of a lease that is new to us. False: it could not be kept on disk, so it is not begun.
    fn accept(self: &Arc<Self>, lease: Lease, task: Task, sent: Instant) -> bool {
        if self.lock().contains_key(&lease.id) {
            return true;
        }
        let dir = RunDir::new(self.home.run_dir(lease.id));
        let record = Record { lease, task, process: None, starts: 0 };
        if let Err(error) = dir.create(&record) {
            // It is delivered again, or expires.
            tracing::error!(lease = %record.lease.id, %error, "a task can't be kept on disk, so it is not started");
            return false;
        }
        self.begin(dir, record, sent + Duration::from_secs(lease.ttl_seconds));
        true
    }

    fn begin(self: &Arc<Self>, dir: RunDir, record: Record, valid_until: Instant) {
        let (stop, stopped) = watch::channel(None);
        if *self.draining.borrow() && record.process.is_none() {
            stop.send_replace(Some(Stop::HandBack));
        }
        let (task, ttl) = (record.task.id, Duration::from_secs(record.lease.ttl_seconds));
        self.lock().insert(record.lease.id, Held { task, ttl, valid_until, stop, is_over: dir.verdict().is_some() });
        tokio::spawn(self.clone().see_through(dir, record, stopped));
        if ttl / 3 < HEARTBEAT_EVERY {
            self.hurry.notify_one();
        }
    }

    /// A run to its acknowledged end.
    async fn see_through(self: Arc<Self>, dir: RunDir, record: Record, stop: watch::Receiver<Option<Stop>>) {
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
                verdict::not_started(lease, crate::core::task::Reason::SpawnFailed, &why, true)
            }
        };
        if let Verdict::Complete(completion) = &verdict {
            let reason = completion.reason.map(crate::core::task::Reason::as_str);
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

    fn ended(&self, lease: Uuid) {
        if let Some(held) = self.lock().get_mut(&lease) {
            held.is_over = true;
        }
    }

    /// Renews all leases in one call, and ends the runs whose lease is over.
    async fn beat(self: Arc<Self>, stopped: CancellationToken) {
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
            self.stop_where(Stop::LeaseLost, |held| held.valid_until <= Instant::now() + SAFETY.min(held.ttl / 5));
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

    fn drained_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.drained_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self, renewed: &Renewed, sent: Instant) {
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

    fn follow(&self, directives: &Directives) {
        self.stop_where(Stop::Cancelled, |held| directives.cancel.contains(&held.task));
        let mut since = self.drained_since();
        *since = if directives.drain { since.or_else(|| Some(Instant::now())) } else { None };
    }

    fn stop_where(&self, reason: Stop, is_meant: impl Fn(&Held) -> bool) {
        for held in self.lock().values().filter(|held| !held.is_over && is_meant(held)) {
            held.stop.send_if_modified(|stop| stop.is_none().then(|| *stop = Some(reason)).is_some());
        }
    }

    /// Lets runs end by themselves for the time of grace, then hands them back.
    async fn drain(&self) {
        if !self.settled_within(self.settings.grace).await {
            self.stop_where(Stop::HandBack, |_| true);
            if !self.settled_within(run::TERM_GRACE + FAREWELL * 2).await {
                tracing::warn!("not everything could be told to the server; the next start of this agent does it");
            }
        }
    }

    /// Whether all runs have ended, and their ends are acknowledged, in that time.
    async fn settled_within(&self, limit: Duration) -> bool {
        let settled = async {
            loop {
                let freed = self.freed.notified();
                if self.lock().is_empty() {
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(limit, settled).await.is_ok()
    }

    /// Gets no more tasks from here on; one that was on its way to us goes back.
    async fn say_goodbye(&self) {
        if let Err(error) = self.register("offline").await {
            return tracing::warn!(%error, "the server could not be told that this worker stops");
        }
        let held: Vec<Uuid> = self.lock().keys().copied().collect();
        let path = format!("api/runtime/workers/{}/claim", client::part(&self.name));
        let Ok(claimed) = self.client.post::<Claimed>(&path, &Claim { max: 1, wait_sec: 0, held: &held }).await else { return };
        for given in claimed.leases {
            let verdict = Verdict::Release { reason: "the agent stops".into() };
            report::deliver(self, given.task.id, given.lease.id, verdict).await;
        }
    }
}
