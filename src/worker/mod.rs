//! The worker agent: takes tasks from a server, runs them, and tells how they ended, whatever dies in between.
//!
//! Its directory ([`home`]) is its memory. A run's process writes to files there, so it goes on while the agent is away; the next agent
//! watches it again, or tells what it left. Nothing is forgotten before the server has acknowledged it.

mod account;
mod availability;
mod command;
mod connections;
pub mod echo;
mod home;
mod invocation;
mod leases;
mod machine;
mod process;
pub mod profile;
mod prompt;
mod push_response;
mod push_server;
mod report;
mod repositories;
mod run;
mod spool;
mod stream;
mod task;
mod verdict;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use account::Accounts;
use bloom_client::Client;
use bloom_core::Ms;
use home::Home;
pub use home::hostname;
pub use invocation::ECHO;
use profile::Profiles;
use spool::{Record, RunDir};
use verdict::{Stop, Verdict};

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
    pub push_server: Option<PushServer>,
}

/// The push server, for servers that push.
#[derive(Clone, Debug)]
pub struct PushServer {
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
    accounts: Accounts,
    runs: Mutex<BTreeMap<Uuid, Held>>,
    /// Something changed that decides whether new tasks are taken.
    state_changed: Notify,
    /// A lease that has to be renewed soon.
    renew_now: Notify,
    /// What is known of the leases has changed.
    changed: Notify,
    /// The disk has failed: no new tasks until then.
    unwell_until: AtomicI64,
    /// This agent stops.
    draining: AtomicBool,
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
    /// The server has confirmed it to this process.
    is_renewed: bool,
    /// How it ended is known, and kept.
    is_over: bool,
}

impl Held {
    fn new(task: Uuid, ttl: Duration, valid_until: Instant, stop: Option<Stop>) -> Self {
        Self { task, ttl, valid_until, stop: watch::Sender::new(stop), is_renewed: false, is_over: false }
    }

    /// Has its run ended, for the first reason that there is.
    fn end(&self, reason: Stop) {
        self.stop.send_if_modified(|stop| stop.is_none().then(|| *stop = Some(reason)).is_some());
    }
}

pub(crate) fn now_ms() -> Ms {
    jiff::Timestamp::now().as_millisecond()
}

/// Runs an agent until `shutdown`, and then until its runs have ended or are handed back.
///
/// # Errors
/// It can't work as it is set up; the text says what to do.
pub async fn run(settings: Settings, listener: Option<TcpListener>, shutdown: CancellationToken) -> Result<Ended, String> {
    let client = Client::new(&settings.server, settings.key.as_ref()).map_err(|error| error.to_string())?;
    // What this process holds in memory, keys among it, is not for the programs that it runs under the same user.
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "runs may be able to read this agent's environment");
    }
    let home = Home::open(&settings.work_dir)?;
    if let Some(mark) = home.uninstalled() {
        tracing::warn!(mark = %mark.display(), "this agent was uninstalled; remove the marker file to run it again");
        return Ok(Ended::Stopped);
    }
    let name = home.name(settings.name.as_deref(), client.server())?;
    let accounts = Accounts::load(home.accounts_path());
    let agent = Arc::new(Agent {
        settings,
        client,
        home,
        name,
        accounts,
        runs: Mutex::default(),
        state_changed: Notify::new(),
        renew_now: Notify::new(),
        changed: Notify::new(),
        unwell_until: AtomicI64::new(0),
        draining: AtomicBool::new(false),
        drained_since: Mutex::default(),
        restart: CancellationToken::new(),
        leave: CancellationToken::new(),
    });
    agent.clone().work(listener, shutdown).await
}

impl Agent {
    async fn work(self: Arc<Self>, listener: Option<TcpListener>, shutdown: CancellationToken) -> Result<Ended, String> {
        self.find_runs().await;
        let stopped = CancellationToken::new();
        // Before anything else: leases of before may be over, whether the server can be reached or not.
        let heartbeats = tokio::spawn(self.clone().beat(stopped.clone()));
        let watcher = tokio::spawn(self.clone().watch_leases(stopped.clone()));
        tokio::select! {
            registered = self.register_first() => registered?,
            () = shutdown.cancelled() => {}
        }
        let offer = tokio::spawn(self.clone().keep_offer(stopped.clone()));
        let claims = tokio::spawn(self.clone().claim_always(stopped.clone()));
        let push_server = listener.map(|listener| tokio::spawn(push_server::serve(self.clone(), listener, stopped.clone())));
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ended::Stopped,
            () = self.leave.cancelled() => {
                self.home.uninstall();
                Ended::Stopped
            }
            () = self.restart.cancelled() => Ended::Restart,
        };
        if ended == Ended::Stopped {
            tracing::info!(
                runs = self.lock().len(),
                grace_s = self.settings.grace.as_secs(),
                "stopping: no new tasks; a second signal ends the agent at once"
            );
            self.draining.store(true, Ordering::Relaxed);
            self.state_changed.notify_waiters();
            self.drain().await;
        }
        stopped.cancel();
        // Nobody outside may hold up the end: neither a server nor a caller of the push server.
        for mut task in [Some(offer), Some(claims), Some(heartbeats), Some(watcher), push_server].into_iter().flatten() {
            if tokio::time::timeout(FAREWELL, &mut task).await.is_err() {
                task.abort();
            }
        }
        if ended == Ended::Stopped {
            let _ = tokio::time::timeout(FAREWELL, self.say_goodbye()).await;
        }
        Ok(ended)
    }

    fn is_push_only(&self) -> bool {
        self.settings.push_server.as_ref().is_some_and(|push_server| push_server.push_only)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, Held>> {
        self.runs.lock()
    }

    /// Goes on with what an earlier process left.
    async fn find_runs(self: &Arc<Self>) {
        let mut found: Vec<(RunDir, Record)> = Vec::new();
        let mut unusable = Vec::new();
        for path in self.home.run_dirs() {
            let dir = RunDir::new(path);
            match dir.record() {
                Ok(record) => found.push((dir, record)),
                // It was never begun: without a record nothing was started.
                Err(error) if error.kind() == io::ErrorKind::NotFound => dir.remove(),
                Err(error) => unusable.push((dir, error)),
            }
        }
        // What was started is watched again; what was not starts.
        for (dir, record) in &mut found {
            record.process = record.process.or_else(|| dir.find_process(record));
        }
        let started = |record: &Record| record.process.is_some().then(|| record.lease.id.to_string());
        let keep: Vec<String> = found.iter().filter_map(|(_, record)| started(record)).collect();
        process::sweep(self.home.root(), &keep).await;
        for (dir, error) in unusable {
            self.set_aside(&dir, &error);
        }
        let renewed = self.home.renewed_at().unwrap_or(0);
        for (dir, record) in found {
            let age = Duration::from_millis(u64::try_from(now_ms().saturating_sub(renewed.max(record.taken_at))).unwrap_or(u64::MAX));
            let left = record.lease.ttl().saturating_sub(age);
            tracing::info!(lease = %record.lease.id, task = %record.task.id, "continuing an earlier run");
            self.take_up(dir, record, Instant::now() + left);
        }
    }

    /// A run whose record is damaged, or of a newer agent, must not keep this agent from its work. Its processes have been ended.
    fn set_aside(self: &Arc<Self>, dir: &RunDir, error: &io::Error) {
        if let Some((task, lease)) = dir.names() {
            let unusable = || Verdict::Release { reason: format!("the agent can't use its files of the run: {error}") };
            self.report(task, lease, dir.verdict().unwrap_or_else(unusable));
        }
        match self.home.set_aside(dir.path()) {
            Ok(place) => tracing::error!(
                place = %place.display(),
                %error,
                "the files of an earlier run can't be used and were set aside; its task is handed back. Were they written by a newer \
                 version of the agent, use that one; else check the disk. Remove the files when nobody needs them"
            ),
            Err(moving) => {
                tracing::error!(run = %dir, %error, %moving, "the files of an earlier run can't be used: check them, then remove them")
            }
        }
    }

    /// Lets runs end by themselves for the time of grace, then hands them back.
    async fn drain(&self) {
        if !self.settled_within(self.settings.grace).await {
            self.stop_where(Stop::HandBack, |_| true);
            if !self.settled_within(run::TERM_GRACE + FAREWELL * 2).await {
                tracing::warn!("some results could not be delivered to the server; the next start of this agent delivers them");
            }
        }
    }

    /// Whether all runs have ended, and their ends are acknowledged, in that time.
    async fn settled_within(&self, limit: Duration) -> bool {
        let settled = async {
            loop {
                let changed = self.changed.notified();
                if self.lock().is_empty() {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, settled).await.is_ok()
    }
}
