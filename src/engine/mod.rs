//! The one write path, and this replica's cache of the database.
//!
//! Commands are collected while the previous batch commits. A batch is one set-based read, [`decide`](bloom_core::decide) for each
//! command, a few set-based writes and one commit. Replies and notifications of changes are sent after the commit.
//!
//! The parts, each with the parts that it uses. No part uses one that is listed below it:
//!
//! | part | what it does | uses |
//! | --- | --- | --- |
//! | `background`, `clock`, `random`, `alarm` | tasks and their stop, the time, ids and jitter, what reconcilers wait for | |
//! | `reconcilers` | what each reconciler did last | `clock` |
//! | `specs` | recently used task specs | |
//! | `spans` | makes the spans of commits | `specs`, `background` |
//! | `replica` | remembers tasks, workers, counts and open claims; answers from them, and tells watchers what changed | `specs`, `alarm` |
//! | `replica::feed` | keeps the replica cache up to date: commits of other replicas, rebuilds | `replica` |
//! | `inbox`, `writers` | accept commands and maintenance jobs, and reply after the commit | |
//! | `last_seen` | collects signs of life of workers | `replica`, `writers` |
//! | `wakeups` | re-evaluates the tasks that wait for what a commit released | `writers` |
//! | `candidates` | which tasks a worker may have | `replica`, `feed` |
//! | `claims`, `pushes` | long polls of workers, and what the leader pushes | `candidates`, `replica`, `feed`, `writers`, `last_seen` |
//! | `writer` | executes batches: one connection, one batch after the other | `inbox`, `replica`, `feed`, `wakeups`, `spans` |
//!
//! [`Engine`] opens, owns and stops them.

#![warn(missing_docs, unreachable_pub)]

mod alarm;
mod background;
mod candidates;
mod changes;
mod claims;
mod clock;
mod inbox;
mod last_seen;
mod lock_patience;
mod measure;
mod pushes;
mod random;
mod reconcilers;
mod replica;
mod spans;
mod specs;
#[cfg(test)]
mod tests;
mod waiting_reasons;
mod wakeups;
mod writer;
mod writers;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bloom_core::command::{Choice, Command, Rejection, Requester};
use bloom_core::ids::TaskId;
use bloom_core::op::Lease;
use bloom_core::origin::Origin;
use bloom_core::reply::Leased;
use bloom_database::{self as database, Database};
use bloom_telemetry::{Metrics, Traces};
use tokio::sync::oneshot;

pub use alarm::{Alarm, Alarms};
pub use background::Background;
pub use changes::Changes;
pub use claims::{ClaimRequest, Claims};
pub use clock::Clock;
pub use last_seen::LastSeen;
pub use pushes::{PushRound, Pushes};
pub use random::Random;
pub use reconcilers::{Progress, Reconciler, Reconcilers};
pub use replica::{AgentTasks, Directives, Replica, Stats};
pub use specs::Specs;
pub use waiting_reasons::WaitingState;
pub use wakeups::{OpenWakeup, Wakeups};
pub use writers::Writers;

use candidates::Candidates;
use inbox::Inbox;
use replica::feed::Feed;
use spans::Spans;
use writer::WriterTask;

/// Why a command was not executed.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// The state of the tasks and workers does not allow the command. Nothing was changed.
    Rejected(Rejection),
    /// The queue is full, or conflicts persisted. The caller may retry after a second.
    Busy,
    /// Another program keeps rows or a table locked that the command needs. The caller may retry after a second. The text is the database's
    /// message, for the log.
    Locked(String),
    /// The database can't be reached, or the process is stopping.
    Unavailable,
    /// The command caused an error in the database; the log contains it.
    Internal,
}

/// Logs a failure of the database. The database itself logs the beginning and the end of an outage, so the many errors in between are
/// logged at debug level only.
pub fn log_failure(error: &bloom_database::Error, what: &str) {
    if error.is_unavailable() {
        tracing::debug!(%error, "{what}");
    } else {
        tracing::warn!(%error, "{what}");
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::Busy => f.write_str("too many commands wait, or conflicts persisted"),
            Self::Locked(text) => write!(f, "another program keeps rows locked: {text}"),
            Self::Unavailable => f.write_str("the database could not be used; the log says why"),
            Self::Internal => f.write_str("a command caused an error in the database; the log has it"),
        }
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How long a task is reserved for the worker that has its session.
    pub session_wait_ms: i64,
    /// How long a task is kept for the workers that name its agent, before one that serves all agents gets it.
    pub named_agent_wait_ms: i64,
    /// A worker without a sign of life for this long is lost. Signs of life are written several times in that period.
    pub worker_offline_after_ms: i64,
    /// Receives the spans of attempts.
    pub traces: Traces,
    /// The clock that a test controls; `None` to follow the database's clock.
    pub manual_clock: Option<Arc<AtomicI64>>,
    /// The seed of ids and jitter, for a reproducible simulation. With a seed, all work runs on the caller's runtime.
    pub seed: Option<u64>,
}

/// The parts of an engine. Each part uses only parts declared before it.
#[derive(Clone)]
pub struct Engine {
    /// The database, for reads that the cache can't answer.
    pub database: Arc<dyn Database>,
    /// The metrics of this process.
    pub metrics: Metrics,
    /// The traces of this process.
    pub traces: Traces,
    /// The background tasks, and the signal that stops them.
    pub background: Background,
    /// The database's time.
    pub clock: Arc<Clock>,
    /// The source of random bits for ids and jitter.
    pub random: Arc<Random>,
    /// The alarms that reconcilers wait for.
    pub alarms: Arc<Alarms>,
    /// The reconcilers that this replica runs, and their last runs.
    pub reconcilers: Arc<Reconcilers>,
    /// The specs of recently used tasks.
    pub specs: Arc<Specs>,
    /// The cache of tasks, workers and queues.
    pub replica: Arc<Replica>,
    /// Executes commands.
    pub writers: Arc<Writers>,
    /// The signs of life of workers.
    pub last_seen: Arc<LastSeen>,
    /// Re-evaluates parked tasks after a change.
    pub wakeups: Arc<Wakeups>,
    /// Leases tasks to workers that claim.
    pub claims: Arc<Claims>,
    /// Leases tasks to workers that are pushed to.
    pub pushes: Arc<Pushes>,
}

impl Engine {
    /// Fills the cache, opens the writers and starts to serve.
    ///
    /// # Errors
    /// The error of the database, if it fails.
    pub async fn start(database: Arc<dyn Database>, metrics: Metrics, options: EngineOptions) -> database::Result<Self> {
        let is_shared = database.is_shared();
        let background = Background::new();
        let clock = Arc::new(Clock::new(options.manual_clock));
        let random = Arc::new(Random::new(options.seed));
        let alarms = Arc::new(Alarms::default());
        let reconcilers = Arc::new(Reconcilers::new(clock.clone(), metrics.clone()));
        let specs = Arc::new(Specs::new(database.clone()));
        let replica = Arc::new(Replica::new(specs.clone(), alarms.clone(), options.named_agent_wait_ms));
        let feed = Arc::new(Feed::new(database.clone(), replica.clone(), clock.clone()));
        let writers = Arc::new(Writers::new(is_shared));
        let last_seen = LastSeen::new(options.worker_offline_after_ms, clock.clone(), replica.clone(), writers.clone());
        let last_seen = Arc::new(last_seen);
        let wakeups = Arc::new(Wakeups::new(database.clone(), writers.clone(), background.clone()));
        let candidates =
            Candidates::new(database.clone(), clock.clone(), replica.clone(), feed.clone(), random.clone(), background.clone());
        let candidates = Arc::new(candidates);
        let claims = Arc::new(Claims {
            database: database.clone(),
            clock: clock.clone(),
            replica: replica.clone(),
            feed: feed.clone(),
            candidates: candidates.clone(),
            writers: writers.clone(),
            last_seen: last_seen.clone(),
            background: background.clone(),
        });
        let pushes = Arc::new(Pushes { clock: clock.clone(), replica: replica.clone(), candidates, writers: writers.clone() });
        let shared = Arc::new(writer::Shared {
            clock: clock.clone(),
            random: random.clone(),
            metrics: metrics.clone(),
            replica: replica.clone(),
            feed: feed.clone(),
            wakeups: wakeups.clone(),
            spans: Spans::start(options.traces.clone(), specs.clone(), &background),
            session_wait_ms: options.session_wait_ms,
            named_agent_wait_ms: options.named_agent_wait_ms,
        });
        let traces = options.traces;
        let engine = Self {
            database,
            metrics,
            traces,
            background,
            clock,
            random,
            alarms,
            reconcilers,
            specs,
            replica,
            writers,
            last_seen,
            wakeups,
            claims,
            pushes,
        };

        feed.rebuild().await?;
        let has_threads = options.seed.is_none();
        engine.open_writer("general", engine.writers.general.clone(), &shared, has_threads).await?;
        if is_shared {
            engine.open_writer("placement", engine.writers.placement.clone(), &shared, has_threads).await?;
            engine.background.spawn(feed.clone().notify(engine.background.clone()));
        }
        engine.background.spawn(feed.follow(engine.background.clone()));
        engine.background.spawn(engine.last_seen.clone().flush(engine.background.clone()));
        Ok(engine)
    }

    async fn open_writer(
        &self,
        name: &'static str,
        inbox: Arc<Inbox>,
        shared: &Arc<writer::Shared>,
        has_thread: bool,
    ) -> database::Result<()> {
        if has_thread {
            return self.open_writer_thread(name, inbox, shared.clone()).await;
        }
        let writer = WriterTask::open(shared.clone(), &*self.database, name).await?;
        self.background.spawn(writer.run(inbox));
        Ok(())
    }

    /// Runs a writer on its own thread, so that requests that keep the other threads busy never delay a batch.
    async fn open_writer_thread(&self, name: &'static str, inbox: Arc<Inbox>, shared: Arc<writer::Shared>) -> database::Result<()> {
        let (opened, is_open) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let database = self.database.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let no_thread =
            |error: std::io::Error| database::Error::Unavailable(format!("the thread of the {name} writer could not be started: {error}"));
        let runtime = runtime.map_err(no_thread)?;
        let thread = move || {
            runtime.block_on(async move {
                match WriterTask::open(shared, &*database, name).await {
                    Ok(writer) => {
                        let _ = opened.send(Ok(()));
                        writer.run(inbox).await;
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
            let _ = ended.send(());
        };
        std::thread::Builder::new().name(format!("writer-{name}")).spawn(thread).map_err(no_thread)?;
        is_open.await.unwrap_or_else(|_| Err(database::Error::Unavailable(format!("the {name} writer did not start"))))?;
        // A stop waits until the writer has executed its commands.
        self.background.spawn(async move { drop(has_ended.await) });
        Ok(())
    }

    /// Leases a task to the named worker, or to the best one.
    ///
    /// # Errors
    /// The errors of [`Writers::submit`].
    pub async fn lease(&self, task: TaskId, worker: Option<String>, ttl_ms: i64, by: Requester) -> Result<Leased, Error> {
        self.bind(task, worker, ttl_ms, Origin::Call, by).await
    }

    /// Like [`lease`](Self::lease), but for a push: the caller sends the task to the worker, once.
    ///
    /// # Errors
    /// The errors of [`Writers::submit`].
    pub async fn dispatch(&self, task: TaskId, worker: Option<String>, ttl_ms: i64, by: Requester) -> Result<Leased, Error> {
        self.bind(task, worker, ttl_ms, Origin::Dispatch, by).await
    }

    async fn bind(&self, task: TaskId, worker: Option<String>, ttl_ms: i64, origin: Origin, by: Requester) -> Result<Leased, Error> {
        let choice = match worker {
            Some(worker) => Choice::Named(worker),
            None => self.replica.shortlist(task, origin.is_pushed()),
        };
        self.writers.submit(Command { op: Lease { task, choice, ttl_ms, origin }, by, epoch: None }).await
    }

    /// Executes the commands that were already accepted, then closes the writers.
    pub async fn stop(&self) {
        self.background.begin_stop();
        self.writers.close();
        self.background.ended().await;
    }
}
