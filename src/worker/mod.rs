//! The worker agent: takes tasks from a server, runs them, and reports how they ended, even after crashes and restarts.
//!
//! The agent stores its state in its directory (`home`). Each run has a supervisor, which stores there what the run prints, so the run
//! continues without the agent. The next agent process watches the run again, or reports how it ended. Nothing is removed before the server
//! has acknowledged it.

#![warn(missing_docs, unreachable_pub)]

mod accounts;
mod claude;
mod contexts;
pub mod git;
mod home;
mod machine;
mod membridge;
pub mod profile;
pub mod profiles;
mod push;
mod run;
mod sandbox;
mod server_calls;
mod supervisor;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use accounts::pause::Pauses;
use bloom_client::{Client, Tls};
use bloom_telemetry::Traces;
pub use claude::option_check::{Access, access};
use git::GitSettings;
pub use git::worktrees::WorktreeLimits;
use git::worktrees::Worktrees;
use home::Home;
pub use home::hostname;
pub use machine::program;
use membridge::Membridge;
pub use membridge::MembridgeSettings;
use profiles::Profiles;
pub use push::push_server::PushServer;
use run::verdict::Stop;
use sandbox::hardening::Hardening;
use server_calls::held_lease::HeldLease;
pub use server_calls::renewal::RenewableFiles;

/// The time limit of the last calls when the agent stops, because the server may be unreachable.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long runs may take to end, and their verdicts to be delivered, after the grace is over.
const HAND_BACK_LIMIT: Duration = machine::process::TERM_GRACE.saturating_add(STOP_LIMIT).saturating_add(STOP_LIMIT);

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The URL of the server.
    pub server: String,
    /// The server's key, if it needs one; a worker key is enough.
    pub key: Option<SecretString>,
    /// The token that is exchanged for the worker's key at the first start; ignored if there is a `key`.
    pub join_token: Option<SecretString>,
    /// The files from which `key` and `join_token` were read.
    pub renewable: RenewableFiles,
    /// For calls to the server.
    pub tls: Tls,
    /// The worker's name; `None` for the stored name. At the first start, one is made from the host name.
    pub name: Option<String>,
    /// The maximum number of concurrent runs.
    pub max_concurrency: u32,
    /// Labels that describe the worker for people.
    pub labels: Vec<String>,
    /// The Kubernetes namespaces whose tasks it serves; `None` for all tasks.
    pub namespaces: Option<Vec<String>>,
    /// The directory with everything that the agent stores, including the directories of contexts.
    pub work_dir: PathBuf,
    /// Files with keys of the agent, which runs in a sandbox must not see.
    pub key_files: Vec<PathBuf>,
    /// How tasks are run, by `agent_slug`.
    pub profiles: Profiles,
    /// The projects whose tasks it takes; `None` for all projects.
    pub projects: Option<Vec<String>>,
    /// Limits for clones of repositories.
    pub git: GitSettings,
    /// When directories of contexts are removed.
    pub worktrees: WorktreeLimits,
    /// How long runs may continue after a stop or a drain.
    pub grace: Duration,
    /// The push server; `None` if the agent accepts no pushes.
    pub push_server: Option<PushServer>,
    /// The control plane at which the agent registers instead of the server.
    pub membridge: Option<MembridgeSettings>,
    /// Collects the spans of runs.
    pub traces: Traces,
}

/// Why the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop. Unfinished tasks were handed back.
    Stopped,
    /// The caller must start the agent again at once. Its runs continue meanwhile.
    Restart,
}

/// The maximum duration of a stop, even on a busy machine, unless threads of the process hang.
pub fn stop_limit(grace: Duration) -> Duration {
    grace + HAND_BACK_LIMIT + STOP_LIMIT * 6
}

/// A running agent.
pub(crate) struct Agent {
    settings: Settings,
    client: Client,
    home: Home,
    membridge: Option<Membridge>,
    /// Where runs get cgroups, if the agent may make some.
    cgroups: Option<machine::cgroup::Parent>,
    hardening: Hardening,
    name: String,
    /// Distinguishes this agent from other agents of the same name.
    instance: Uuid,
    /// Why the server refuses the agent's key, as it was logged; `None` if it does not.
    refused_key: Mutex<Option<String>>,
    /// Why the agent must take no more tasks; set when another agent has its name.
    replaced: watch::Sender<Option<String>>,
    pauses: Pauses,
    worktrees: Worktrees,
    /// Held while a probe finds out why a run failed.
    probing: tokio::sync::Mutex<()>,
    runs: Mutex<BTreeMap<Uuid, HeldLease>>,
    /// The tasks that see runs through. They continue after the end of a lease: they send the last events and remove files.
    seen_through: TaskTracker,
    /// Permits for the connections of runs whose network is a list of hosts.
    egress: Arc<tokio::sync::Semaphore>,
    /// Notified when something changes that decides whether the agent takes new tasks.
    state_changed: Notify,
    /// Notified when a lease must be renewed at once.
    renew_now: Notify,
    /// The runs whose events are to be sent.
    events: server_calls::events::Runs,
    /// Notified when a lease was renewed, has ended or was removed from `runs`.
    changed: Notify,
    draining: AtomicBool,
    /// Since when the server has asked the agent to drain.
    drained_since: Mutex<Option<Instant>>,
    restart: CancellationToken,
    leave: CancellationToken,
}

/// Runs the internal program that `word`, the first argument, stands for. This program starts itself with such words, which are no user
/// commands. `None` for other words.
pub fn called_by_itself(word: &OsStr) -> Option<io::Result<()>> {
    match word.to_str() {
        Some(run::invocation::ECHO) => Some(run::echo::run()),
        Some(supervisor::control::SUPERVISOR) => Some(supervisor::run()),
        Some(sandbox::egress::HELPER) => Some(sandbox::egress::run_helper()),
        Some(run::question_files::ASK_HUMAN) => Some(claude::permission_server::run()),
        _ => None,
    }
}

/// Runs an agent until `shutdown`, and then until its runs have ended or are handed back.
///
/// # Errors
/// The agent can't work with these settings; the text says what to do.
pub async fn run(mut settings: Settings, listener: Option<TcpListener>, shutdown: CancellationToken) -> Result<Ended, String> {
    let client = server_calls::renewal::client(&settings)?;
    // Programs that the agent runs must not inherit files that its own parent left open.
    close_fds::set_fds_cloexec(3, &[]);
    // Otherwise programs that the agent runs could read the keys in its memory, because they belong to the same user.
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "runs may be able to read this agent's environment");
    }
    claude::option_check::check(&mut settings.profiles).await?;
    if settings.projects.is_some() && !git::is_installed() {
        return Err(
            "git is not installed, which the tasks of projects need: install it, or leave out --project (BLOOM_PROJECTS)".to_owned()
        );
    }
    let home = Home::open(&settings.work_dir)?;
    let hidden: Vec<PathBuf> = settings.key_files.iter().cloned().chain([home.root().to_owned()]).collect();
    let hardening = sandbox::check::check(&settings.profiles, &hidden, &home).await?;
    if let Some(mark) = home.uninstalled() {
        tracing::warn!(mark = %mark.display(), "this agent was uninstalled; remove the marker file to run it again");
        return Ok(Ended::Stopped);
    }
    let name = home.name(settings.name.as_deref(), client.server())?;
    if settings.key.is_none() {
        let key = tokio::select! {
            key = server_calls::enrollment::key(&home, &client, &name, settings.join_token.as_ref()) => key?,
            () = shutdown.cancelled() => return Ok(Ended::Stopped),
        };
        key.as_ref().map_or(Ok(()), |key| client.use_key(key)).map_err(|error| error.to_string())?;
    }
    let pauses = Pauses::load(home.accounts_path(), bloom_client::now_ms());
    let cgroups = machine::cgroup_check::check(&settings.profiles)?;
    let (instance, is_known) = home.instance()?;
    let membridge = settings.membridge.clone().map(|membridge| Membridge::new(membridge, &settings.tls)).transpose()?;
    let agent = Arc::new(Agent {
        settings,
        client,
        home,
        membridge,
        cgroups,
        hardening,
        name,
        instance,
        refused_key: Mutex::default(),
        replaced: watch::Sender::new(None),
        pauses,
        worktrees: Worktrees::default(),
        probing: tokio::sync::Mutex::default(),
        runs: Mutex::default(),
        seen_through: TaskTracker::new(),
        egress: sandbox::egress::connections(),
        state_changed: Notify::new(),
        renew_now: Notify::new(),
        events: server_calls::events::Runs::default(),
        changed: Notify::new(),
        draining: AtomicBool::new(false),
        drained_since: Mutex::default(),
        restart: CancellationToken::new(),
        leave: CancellationToken::new(),
    });
    agent.clone().work(listener, shutdown, is_known).await
}

impl Agent {
    async fn work(self: Arc<Self>, listener: Option<TcpListener>, shutdown: CancellationToken, is_known: bool) -> Result<Ended, String> {
        let stopped = CancellationToken::new();
        let _stop = stopped.clone().drop_guard();
        let files = tokio::spawn(self.clone().follow_files(stopped.clone()));
        if !is_known {
            // If the directory is a copy, its runs may belong to an agent that is still working. Only the server knows.
            tokio::select! {
                registered = self.register_safely() => registered?,
                () = shutdown.cancelled() => return Ok(Ended::Stopped),
            }
            self.home.registered();
        }
        self.check_disk();
        // This task is never awaited or aborted; it ends with the process. If it dropped a run, the run would count as sent and its
        // directory would be removed.
        tokio::spawn(self.clone().send_events());
        let over = self.continue_runs().await;
        // Started before the registration, because leases of an earlier process may expire while the server can't be reached.
        let heartbeats = tokio::spawn(self.clone().send_heartbeats(stopped.clone()));
        let watcher = tokio::spawn(self.clone().watch_leases(stopped.clone()));
        if is_known {
            tokio::select! {
                registered = self.register_and_report(&over) => registered?,
                () = shutdown.cancelled() => {}
            }
        }
        let offer = tokio::spawn(self.clone().keep_offer(stopped.clone()));
        let claims = tokio::spawn(self.clone().claim_always(stopped.clone()));
        let probes = tokio::spawn(self.clone().probe_paused(stopped.clone()));
        let beats = tokio::spawn(self.clone().beat_at_membridge(stopped.clone()));
        let contexts = tokio::spawn(self.clone().keep_contexts(stopped.clone()));
        let push_server = listener.map(|listener| tokio::spawn(push::push_server::serve(self.clone(), listener, stopped.clone())));
        let mut failure = None;
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ended::Stopped,
            () = self.leave.cancelled() => {
                self.home.uninstall();
                Ended::Stopped
            }
            () = self.restart.cancelled() => Ended::Restart,
            why = self.until_replaced() => {
                self.let_runs_end(&why, &shutdown).await;
                failure = Some(why);
                Ended::Stopped
            }
        };
        if ended == Ended::Stopped {
            tracing::info!(
                runs = self.lock().len(),
                grace_s = self.settings.grace.as_secs(),
                "stopping: no new tasks, and waiting for the runs to end; a second signal ends the agent at once: the runs go on, and it continues with them \
                 if it is started again before their leases end"
            );
            self.draining.store(true, Ordering::Relaxed);
            self.state_changed.notify_waiters();
            self.drain().await;
        }
        stopped.cancel();
        let until = tokio::time::Instant::now() + STOP_LIMIT;
        // With a time limit, because neither a server nor a caller of the push server may block the stop.
        for mut task in [offer, claims, probes, beats, contexts, heartbeats, watcher, files].into_iter().chain(push_server) {
            if tokio::time::timeout_at(until, &mut task).await.is_err() {
                task.abort();
            }
        }
        if ended == Ended::Stopped {
            self.seen_through.close();
            let _ = tokio::time::timeout_at(until, self.seen_through.wait()).await;
        }
        if let Some(why) = failure {
            if let Some(membridge) = &self.membridge {
                let _ = tokio::time::timeout(STOP_LIMIT, membridge.remove(&self.name)).await;
            }
            return Err(why);
        }
        if ended == Ended::Stopped {
            let _ = tokio::time::timeout(STOP_LIMIT, self.go_offline()).await;
        }
        Ok(ended)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, HeldLease>> {
        self.runs.lock()
    }

    /// Waits for runs to end until the grace is over, then hands back the remaining ones. Results that the server refuses because of the
    /// agent's key wait on the disk for a start with another one.
    async fn drain(&self) {
        if !self.settled_within(self.settings.grace).await {
            self.stop_where(Stop::HandBack, |_, _| true);
            self.settled_within(HAND_BACK_LIMIT).await;
        }
        let undelivered = self.lock().len();
        if undelivered > 0 {
            tracing::warn!(undelivered, "some results could not be delivered to the server; the next start of this agent delivers them");
        }
    }

    /// Waits until the condition holds for the runs. A run is listed until it has ended and its verdict is acknowledged.
    async fn until_runs(&self, are_so: impl Fn(&BTreeMap<Uuid, HeldLease>) -> bool) {
        loop {
            let changed = self.changed.notified();
            if are_so(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    async fn settled_within(&self, limit: Duration) -> bool {
        let are_settled = |runs: &BTreeMap<Uuid, HeldLease>| runs.values().all(HeldLease::is_for_next_start);
        tokio::time::timeout(limit, self.until_runs(are_settled)).await.is_ok()
    }
}
