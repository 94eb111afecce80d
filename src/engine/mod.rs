//! The one write path. Commands gather while the last batch commits; a batch is one set-based read, [`decide`](crate::core::decide)
//! command by command, a few set-based writes and one commit. Replies go out after it, and so does word of what changed.

mod alarm;
mod board;
mod changes;
mod claims;
mod feed;
mod inbox;
mod lane;
mod pushes;
mod sightings;
mod specs;
mod view;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, broadcast, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::core::Ms;
use crate::core::command::{Command, Op, Rejection, Reply};
use crate::core::ids::TaskId;
use crate::core::task::{Origin, TaskSpec};
use crate::store::{self, Store, Upkeep, UpkeepDone};
use crate::telemetry::Metrics;

pub use alarm::{Alarm, Alarms};
pub use board::Stats;
pub use changes::Changes;
pub use claims::ClaimRequest;
pub use pushes::PushRound;
pub use view::{Directives, Waiting};

use board::Board;
use inbox::{Inbox, Pending};

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
pub struct Options {
    /// For so long a task is kept for the worker that has its session.
    pub session_wait_ms: i64,
    /// After so long without a sighting a worker is lost: sightings are written often enough for that.
    pub worker_offline_after_ms: i64,
    /// Tests set the time; nobody else does.
    pub manual_clock: Option<Arc<AtomicI64>>,
}

#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Store,
    metrics: Metrics,
    board: Mutex<Board>,
    specs: specs::Specs,
    /// Commands that place leases or set up workers, and all others; on SQLite both are one.
    placement: Arc<Inbox>,
    ledger: Arc<Inbox>,
    changes: broadcast::Sender<Arc<Changes>>,
    sightings: sightings::Sightings,
    pages_read: Notify,
    /// The database's clock less this machine's.
    clock_offset_ms: AtomicI64,
    manual_clock: Option<Arc<AtomicI64>>,
    seeds: AtomicU64,
    alarms: Alarms,
    committed: Notify,
    own_lanes: Mutex<Vec<i64>>,
    positions: Mutex<HashMap<i64, i64>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Where tasks run, also those that a lane's thread starts.
    runtime: tokio::runtime::Handle,
}

/// How many commits a slow watcher may fall behind before it is told to read anew.
const CHANGES_KEPT: usize = 1_024;

impl Engine {
    /// Reads the picture of queue and fleet, opens the lanes and starts to serve.
    pub async fn start(store: Store, metrics: Metrics, options: Options) -> Result<Self, store::Error> {
        let ledger = Arc::new(Inbox::default());
        let two_lanes = store.kind() == store::Kind::Postgres;
        let placement = if two_lanes { Arc::new(Inbox::default()) } else { ledger.clone() };
        let engine = Self(Arc::new(Inner {
            store,
            metrics,
            board: Mutex::new(Board { session_wait_ms: options.session_wait_ms, ..Board::default() }),
            specs: specs::Specs::default(),
            placement,
            ledger: ledger.clone(),
            changes: broadcast::channel(CHANGES_KEPT).0,
            sightings: sightings::Sightings::new(options.worker_offline_after_ms),
            pages_read: Notify::new(),
            clock_offset_ms: AtomicI64::new(0),
            manual_clock: options.manual_clock,
            seeds: AtomicU64::new(random_seed()),
            alarms: Alarms::default(),
            committed: Notify::new(),
            own_lanes: Mutex::new(Vec::new()),
            positions: Mutex::new(HashMap::new()),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
        }));
        engine.set_clock(engine.0.store.now().await?);
        engine.read_picture().await?;
        engine.open_lane("ledger", ledger).await?;
        if two_lanes {
            engine.open_lane("placement", engine.0.placement.clone()).await?;
            engine.0.tasks.spawn(feed::follow(engine.clone()));
            engine.0.tasks.spawn(feed::tell(engine.clone()));
        }
        engine.0.tasks.spawn(sightings::flush(engine.clone()));
        Ok(engine)
    }

    /// A lane has a thread of its own, so that it takes up a database's answer at once, however many requests keep the others busy.
    async fn open_lane(&self, name: &'static str, inbox: Arc<Inbox>) -> Result<(), store::Error> {
        let (opened, is_open) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let engine = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let no_thread = |error: std::io::Error| store::Error::Unavailable(format!("no thread for the {name} lane: {error}"));
        let runtime = runtime.map_err(no_thread)?;
        let lane = move || {
            runtime.block_on(async move {
                match engine.0.store.lane().await {
                    Ok(lane) => {
                        let _ = opened.send(Ok(lane.id));
                        lane::run(engine, name, lane, inbox).await;
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
            let _ = ended.send(());
        };
        std::thread::Builder::new().name(format!("lane-{name}")).spawn(lane).map_err(no_thread)?;
        let died = move || {
            // What the lane had in hand is unknown to everybody; the next start reads it from the database.
            tracing::error!(lane = name, "a write lane died; the process ends so that it starts afresh");
            std::process::exit(70);
        };
        match is_open.await {
            Ok(lane) => lock(&self.0.own_lanes).push(lane?),
            Err(_) => died(),
        }
        self.0.tasks.spawn(async move {
            if has_ended.await.is_err() {
                died();
            }
        });
        Ok(())
    }

    /// Carries one command out; returns after its commit.
    pub async fn submit(&self, command: impl Into<Command>) -> Result<Reply, Error> {
        let mut replies = self.submit_all(vec![command.into()]).await;
        replies.pop().unwrap_or(Err(Error::Internal))
    }

    /// Carries commands out, each on its own, in one commit where they fit into one batch.
    pub async fn submit_all(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut answers = Vec::with_capacity(commands.len());
        let mut ledger = Vec::new();
        let mut placement = Vec::new();
        for command in commands {
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            let inbox = if command.op.is_placement() { &mut placement } else { &mut ledger };
            inbox.push(Pending::new(command, reply));
        }
        // Refused commands drop their reply channels; what that means stands here.
        let refused = [self.0.ledger.push(ledger), self.0.placement.push(placement)].into_iter().find_map(Result::err);
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            replies.push(answer.await.unwrap_or_else(|_| Err(refused.clone().unwrap_or(Error::Unavailable))));
        }
        replies
    }

    /// Binds a task to a worker: the one named, or the best.
    pub async fn lease(&self, task: TaskId, worker: Option<String>, ttl_ms: i64, request_id: Option<String>) -> Result<Reply, Error> {
        self.bind(task, worker, ttl_ms, Origin::Call, request_id).await
    }

    /// As [`lease`](Self::lease), to push the task to the worker: whoever gets the answer sends it, once.
    pub async fn dispatch(&self, task: TaskId, worker: Option<String>, ttl_ms: i64, request_id: Option<String>) -> Result<Reply, Error> {
        self.bind(task, worker, ttl_ms, Origin::Dispatch, request_id).await
    }

    async fn bind(
        &self,
        task: TaskId,
        worker: Option<String>,
        ttl_ms: i64,
        origin: Origin,
        request_id: Option<String>,
    ) -> Result<Reply, Error> {
        let choice = match worker {
            Some(worker) => crate::core::command::Choice::Named(worker),
            None => self.shortlist(task, origin.is_pushed()),
        };
        self.submit(Command { op: Op::Lease { task, choice, ttl_ms, origin }, request_id, epoch: None }).await
    }

    /// After each commit, of whichever replica.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Changes>> {
        self.0.changes.subscribe()
    }

    /// The worker showed a sign of life.
    pub fn sighted(&self, worker: &str) {
        let now = self.now();
        let lost = {
            let mut board = lock(&self.0.board);
            board.fleet.seen(worker, now);
            board.fleet.worker(worker).is_some_and(|worker| worker.lost)
        };
        self.0.sightings.note(worker, now, lost);
    }

    /// Specs by id; ids without a task are left out.
    pub async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>, store::Error> {
        let mut specs: Vec<_> = ids.iter().filter_map(|id| self.0.specs.get(*id)).collect();
        if specs.len() < ids.len() {
            let missing: Vec<_> = ids.iter().filter(|id| !specs.iter().any(|spec| spec.id == **id)).copied().collect();
            for spec in self.0.store.specs(&missing).await? {
                self.0.specs.put(spec.clone());
                specs.push(spec);
            }
        }
        Ok(specs)
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The database's time, as well as it is known here.
    pub fn now(&self) -> Ms {
        match &self.0.manual_clock {
            Some(clock) => clock.load(Ordering::SeqCst),
            None => wall_clock() + self.0.clock_offset_ms.load(Ordering::Relaxed),
        }
    }

    fn set_clock(&self, database_now: Ms) {
        self.0.clock_offset_ms.store(database_now - wall_clock(), Ordering::Relaxed);
    }

    pub fn alarms(&self) -> &Alarms {
        &self.0.alarms
    }

    /// Has one of the database's housekeeping jobs done between two batches.
    pub async fn upkeep(&self, job: Upkeep) -> Result<UpkeepDone, Error> {
        let (reply, answer) = oneshot::channel();
        self.0.ledger.push_upkeep(job, reply)?;
        answer.await.unwrap_or(Err(Error::Unavailable))
    }

    /// Runs until the engine stops; the stop waits for it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn_on(task, &self.0.runtime);
    }

    pub async fn stopped(&self) {
        self.0.stop.cancelled().await;
    }

    /// Finishes what was taken in, and closes the lanes.
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

    fn seed(&self) -> u64 {
        self.0.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

/// A lock that a panic elsewhere does not make useless: what it guards is a picture that can be read anew.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wall_clock() -> Ms {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
