//! The one write path, and what this replica remembers of it.
//!
//! Commands gather while the last batch commits; a batch is one set-based read, [`decide`](bloom_core::decide) command by command, a few
//! set-based writes and one commit ([`writer`]). Replies go out after it, and so does word of what changed. The [`replica`] cache follows
//! the commits of this process at once and those of others by the [`feed`]; [`claims`] are answered from it. What a commit let go of
//! wakes those who wait for it ([`wakeups`]).

mod alarm;
mod changes;
mod claims;
mod clock;
mod feed;
mod inbox;
mod last_seen;
mod pushes;
mod random;
mod replica;
mod specs;
mod view;
mod wakeups;
mod writer;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bloom_core::Ms;
use bloom_core::command::{Choice, Command, Op, Operation, Rejection};
use bloom_core::ids::TaskId;
use bloom_core::op::Lease;
use bloom_core::reply::Leased;
use bloom_core::task::{Origin, TaskSpec};
use bloom_database::{self as database, Database, Done, Maintenance};
use bloom_telemetry::Metrics;
use tokio::sync::{Notify, broadcast, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use alarm::{Alarm, Alarms};
pub use changes::Changes;
pub use claims::ClaimRequest;
pub use pushes::PushRound;
pub use replica::Stats;
pub use view::{Directives, Waiting};
pub use wakeups::OpenWakeup;

use inbox::{Inbox, Pending};
use replica::Replica;

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    Rejected(Rejection),
    /// Too much waits already, or too many got in each other's way; come again in a second.
    Busy,
    /// The database can't be reached, or the process is stopping.
    Unavailable,
    /// The command met an error of the database that is its own; the log says which.
    Internal,
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// What the engine needs to know of its surroundings.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// For so long a task is kept for the worker that has its session.
    pub session_wait_ms: i64,
    /// After so long without a sign of life a worker is lost: they are written often enough for that.
    pub worker_offline_after_ms: i64,
    /// Tests set the time; nobody else does.
    pub manual_clock: Option<Arc<AtomicI64>>,
    /// For a simulation that is to run the same again: the seed of ids and jitter, and all work on the caller's runtime.
    pub seed: Option<u64>,
}

#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    database: Arc<dyn Database>,
    metrics: Metrics,
    replica: Arc<Replica>,
    specs: specs::Specs,
    wakeups: wakeups::Under,
    /// Commands that place leases or set up workers, and all others; on SQLite both are one.
    placement: Arc<Inbox>,
    ledger: Arc<Inbox>,
    changes: broadcast::Sender<Arc<Changes>>,
    last_seen: last_seen::LastSeen,
    pages_read: Notify,
    /// A claim or a push that was under way has ended.
    given_back: Notify,
    clock: clock::Clock,
    random: random::Random,
    session_wait_ms: i64,
    alarms: Alarms,
    /// There is something to tell other replicas.
    committed: Notify,
    /// Others have committed something that is wanted here at once.
    feed_wanted: Notify,
    /// Something may have been missed.
    rebuild: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Where tasks run, also those that a writer's thread starts.
    runtime: tokio::runtime::Handle,
}

/// How many commits a slow watcher may fall behind before it is told to read anew.
const CHANGES_KEPT: usize = 256;

impl Engine {
    /// Fills the cache, opens the writers and starts to serve.
    ///
    /// # Errors
    /// Of the database.
    pub async fn start(database: Arc<dyn Database>, metrics: Metrics, options: EngineOptions) -> Result<Self, database::Error> {
        let ledger = Arc::new(Inbox::default());
        let is_shared = database.is_shared();
        let placement = if is_shared { Arc::new(Inbox::default()) } else { ledger.clone() };
        let has_threads = options.seed.is_none();
        let engine = Self(Arc::new(Inner {
            database,
            metrics,
            replica: Arc::default(),
            specs: specs::Specs::default(),
            wakeups: wakeups::Under::default(),
            placement,
            ledger: ledger.clone(),
            changes: broadcast::channel(CHANGES_KEPT).0,
            last_seen: last_seen::LastSeen::new(options.worker_offline_after_ms),
            pages_read: Notify::new(),
            given_back: Notify::new(),
            clock: clock::Clock::new(options.manual_clock),
            random: random::Random::new(options.seed),
            session_wait_ms: options.session_wait_ms,
            alarms: Alarms::default(),
            committed: Notify::new(),
            feed_wanted: Notify::new(),
            rebuild: Notify::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
        }));
        engine.rebuild().await?;
        engine.open_writer("ledger", ledger, has_threads).await?;
        if is_shared {
            engine.open_writer("placement", engine.0.placement.clone(), has_threads).await?;
            engine.spawn(feed::tell(engine.clone()));
        }
        engine.spawn(feed::follow(engine.clone()));
        engine.spawn(last_seen::flush(engine.clone()));
        Ok(engine)
    }

    async fn open_writer(&self, name: &'static str, inbox: Arc<Inbox>, has_threads: bool) -> Result<(), database::Error> {
        if has_threads {
            return self.open_writer_thread(name, inbox).await;
        }
        let writer = self.0.database.writer().await?;
        self.0.replica.lock().own(writer.id());
        self.spawn(writer::run(self.clone(), name, writer, inbox));
        Ok(())
    }

    /// A writer has a thread of its own, so that it takes up a database's answer at once, however many requests keep the others busy.
    async fn open_writer_thread(&self, name: &'static str, inbox: Arc<Inbox>) -> Result<(), database::Error> {
        let (opened, is_open) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let engine = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let no_thread = |error: std::io::Error| database::Error::Unavailable(format!("no thread for the {name} writer: {error}"));
        let runtime = runtime.map_err(no_thread)?;
        let thread = move || {
            runtime.block_on(async move {
                match engine.0.database.writer().await {
                    Ok(writer) => {
                        let _ = opened.send(Ok(writer.id()));
                        writer::run(engine, name, writer, inbox).await;
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
            let _ = ended.send(());
        };
        std::thread::Builder::new().name(format!("writer-{name}")).spawn(thread).map_err(no_thread)?;
        let writer = is_open.await.unwrap_or_else(|_| Err(database::Error::Unavailable(format!("the {name} writer did not start"))));
        self.0.replica.lock().own(writer?);
        // A stop waits for what the writer has in hand.
        self.0.tasks.spawn(async move { drop(has_ended.await) });
        Ok(())
    }

    /// Carries one command out; returns after its commit.
    pub async fn submit<O: Operation + Into<Op>>(&self, command: impl Into<Command<O>>) -> Result<O::Reply, Error> {
        let mut replies = self.submit_all(vec![command.into()]).await;
        replies.pop().unwrap_or(Err(Error::Internal))
    }

    /// Carries commands out, each on its own, in one commit where they fit into one batch.
    pub async fn submit_all<O: Operation + Into<Op>>(&self, commands: Vec<Command<O>>) -> Vec<Result<O::Reply, Error>> {
        let mut answers = Vec::with_capacity(commands.len());
        let mut ledger = Vec::new();
        let mut placement = Vec::new();
        for command in commands {
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            let inbox = if command.op.is_placement() { &mut placement } else { &mut ledger };
            inbox.push(Pending::new(command.into_any(), reply));
        }
        // Refused commands drop their reply channels; what that means stands here.
        let refused = [self.0.ledger.push(ledger), self.0.placement.push(placement)].into_iter().find_map(Result::err);
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            let reply = answer.await.unwrap_or_else(|_| Err(refused.clone().unwrap_or(Error::Unavailable)));
            // An operation's reply is of its own type, so this never fails.
            replies.push(reply.and_then(|reply| reply.try_into().map_err(|_| Error::Internal)));
        }
        replies
    }

    /// Binds a task to a worker: the one named, or the best.
    pub async fn lease(&self, task: TaskId, worker: Option<String>, ttl_ms: i64, request_id: Option<String>) -> Result<Leased, Error> {
        self.bind(task, worker, ttl_ms, Origin::Call, request_id).await
    }

    /// As [`lease`](Self::lease), to push the task to the worker: whoever gets the answer sends it, once.
    pub async fn dispatch(&self, task: TaskId, worker: Option<String>, ttl_ms: i64, request_id: Option<String>) -> Result<Leased, Error> {
        self.bind(task, worker, ttl_ms, Origin::Dispatch, request_id).await
    }

    async fn bind(
        &self,
        task: TaskId,
        worker: Option<String>,
        ttl_ms: i64,
        origin: Origin,
        request_id: Option<String>,
    ) -> Result<Leased, Error> {
        let choice = match worker {
            Some(worker) => Choice::Named(worker),
            None => self.shortlist(task, origin.is_pushed()),
        };
        self.submit(Command { op: Lease { task, choice, ttl_ms, origin }, request_id, epoch: None }).await
    }

    /// After each commit, of whichever replica.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Changes>> {
        self.0.changes.subscribe()
    }

    /// The worker showed a sign of life.
    pub fn record_last_seen(&self, worker: &str) {
        let now = self.now();
        let lost = {
            let mut remembered = self.0.replica.lock();
            let fleet = &mut remembered.cache.fleet;
            fleet.seen(worker, now);
            fleet.worker(worker).is_some_and(|worker| worker.lost)
        };
        self.0.last_seen.note(worker, now, lost);
    }

    /// Specs by id; ids without a task are left out.
    pub async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>, database::Error> {
        let mut specs: Vec<_> = ids.iter().filter_map(|id| self.0.specs.get(*id)).collect();
        if specs.len() < ids.len() {
            let missing: Vec<_> = ids.iter().filter(|id| !specs.iter().any(|spec| spec.id == **id)).copied().collect();
            for spec in self.0.database.specs(&missing).await? {
                self.0.specs.put(spec.clone());
                specs.push(spec);
            }
        }
        Ok(specs)
    }

    pub fn database(&self) -> &dyn Database {
        &*self.0.database
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The database's time, as well as it is known here.
    pub fn now(&self) -> Ms {
        self.0.clock.now()
    }

    /// What has passed here since the start, whatever the database's clock says.
    pub fn elapsed_ms(&self) -> Ms {
        self.0.clock.elapsed_ms()
    }

    /// A well-mixed number.
    pub fn draw(&self) -> u64 {
        self.0.random.draw()
    }

    pub fn alarms(&self) -> &Alarms {
        &self.0.alarms
    }

    /// Has a maintenance job done between two batches.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it failed: it is to be asked for again.
    pub async fn maintain(&self, job: Maintenance) -> Result<Done, Error> {
        let (reply, answer) = oneshot::channel();
        self.0.ledger.push_maintenance(job, reply)?;
        answer.await.unwrap_or(Err(Error::Unavailable))
    }

    /// What the cache shows of each task, by revision, for comparison with the database.
    pub fn shown_tasks(&self) -> Vec<(TaskId, i64)> {
        self.0.replica.lock().cache.shown().collect()
    }

    /// Runs until the engine stops; the stop waits for it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn_on(task, &self.0.runtime);
    }

    pub async fn stopped(&self) {
        self.0.stop.cancelled().await;
    }

    /// Finishes what was taken in, and closes the writers.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        self.0.placement.close();
        self.0.ledger.close();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    pub fn is_stopping(&self) -> bool {
        self.0.stop.is_cancelled()
    }
}
