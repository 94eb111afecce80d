//! Tests of the store through its public interface, on both databases.
// A test may panic, because that is how it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod api_keys;
mod artifacts;
mod enrollment;
mod equivalence;
mod files;
mod liveness;
mod log;
mod migration;
mod objects;
mod queues;
mod reading;
mod simulation;
mod support;
mod suspension;
mod task_projects;
mod waking;
mod writing;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use support::direct::{execute, success};

use bloom_core::audit::Actor;
use bloom_core::cache::{Part, Projects};
use bloom_core::command::{Choice, Claim, Holder, NewEvent, Op, Rejection, Reply, WorkerChange};
use bloom_core::command::{Command, RowKeys};
use bloom_core::decide::decide;
use bloom_core::event::EventKind;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::namespace::{KubernetesObject, qualified};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::project::{PushMode, TaskProject};
use bloom_core::reply;
use bloom_core::task::{LeaseStatus, Reason, Session, Status, TaskSpec, TaskState};
use bloom_core::worker::Worker;
use bloom_core::working_set::{Counts, Halt, WorkingSet};
use bloom_database::{CountsAt, Error, LockWait, Maintenance, Position, Scope, Writer};
use bloom_store::{AuditFilter, Clock, Kind, LeaseFilter, Page, Store, StoreOptions, TaskFilter, UsageBy, UsageFilter};
use uuid::Uuid;

use crate::support::Database;

/// A migrated database for one test, with a manual clock.
struct Bench {
    url: String,
    store: Store,
    time: Arc<AtomicI64>,
}

const START: i64 = 1_800_000_000_000;
const DAY: i64 = 86_400_000;
const PAGE: Page = Page { limit: 100, before: None };

/// All workers, by id.
async fn all_workers(store: &Store) -> Result<Vec<Worker>, bloom_store::Error> {
    let ids: Vec<_> = store.worker_keys().await?.into_iter().map(|key| key.id).collect();
    let mut workers = store.workers(&ids).await?;
    workers.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(workers)
}

impl Bench {
    async fn new(database: Database) -> Self {
        let url = database.new_url();
        let time = Arc::new(AtomicI64::new(START));
        let store =
            Store::with_clock(&StoreOptions { url: url.clone(), max_connections: 4 }, Clock::Manual(time.clone())).await.expect("opens");
        assert!(store.ping().await.is_err(), "an empty database is not current");
        assert_eq!(store.migrate().await.expect("migrates").applied[0], "0001_init");
        assert!(store.migrate().await.expect("migrates again").applied.is_empty());
        store.ping().await.expect("current");
        Self { url, store, time }
    }

    /// A database on SQLite with the real clock, so that service marks work.
    async fn with_own_time() -> Self {
        let url = Database::Sqlite.new_url();
        let store = Store::open(&StoreOptions { url: url.clone(), max_connections: 4 }).await.expect("opens");
        store.migrate().await.expect("migrates");
        Self { url, store, time: Arc::default() }
    }

    fn at(&self, ms: i64) {
        self.time.store(START + ms, Ordering::SeqCst);
    }

    /// The interface of the engine and the reconcilers. Some of its methods have the same names as those for requests.
    fn port(&self) -> &dyn bloom_database::Database {
        &self.store
    }

    async fn writer(&self) -> Box<dyn Writer> {
        self.port().writer().await.expect("a writer")
    }

    async fn counted(&self) -> (Counts, i64) {
        let CountsAt { counts, .. } = self.port().counts().await.expect("counts");
        (counts.tasks, counts.leases)
    }

    async fn positions(&self) -> Vec<Position> {
        self.port().counts().await.expect("counts").positions
    }

    async fn state(&self, id: TaskId) -> TaskState {
        self.store.task(id).await.expect("reads").expect("is there").state
    }
}

type Answers = Vec<Result<Reply, Rejection>>;

/// Loads, decides and saves, and loads again if more rows are needed. Conflicts are returned to the caller.
async fn try_commit(writer: &mut Box<dyn Writer>, ops: &[Op]) -> Result<Answers, Error> {
    let mut keys = RowKeys::default();
    ops.iter().for_each(|op| keys.merge(&op.keys()));
    for _ in 0..20 {
        let mut set = WorkingSet::new(writer.begin_and_load(&keys, LockWait::Long).await?, seed());
        let mut answers = Vec::new();
        for op in ops {
            match decide(&mut set, &Command::from(op.clone())) {
                Ok(reply) => answers.push(Ok(reply)),
                Err(Halt::Rejected(rejection)) => answers.push(Err(rejection)),
                Err(Halt::Locked) => panic!("nothing is locked"),
                Err(Halt::Need(more)) => {
                    keys.merge(&more);
                    break;
                }
            }
        }
        if answers.len() == ops.len() {
            writer.save(&set, None).await?;
            return Ok(answers);
        }
        writer.rollback().await?;
    }
    panic!("the commands always need more rows");
}

/// A new seed, so that ids of the same millisecond differ.
fn seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

async fn commit(writer: &mut Box<dyn Writer>, ops: Vec<Op>) -> Vec<Reply> {
    try_commit(writer, &ops).await.expect("commits").into_iter().map(|answer| answer.expect("is allowed")).collect()
}

fn spec(context: &str) -> TaskSpec {
    TaskSpec {
        agent_slug: "writer".into(),
        prompt: "Say \"hi\"\n\tto Zoë \u{1F600} \\".into(),
        context_hints: vec!["a".into(), "b, \"c\"".into()],
        budget: 0.1,
        session: Session::None,
        ..bloom_test_world::world::spec(context)
    }
}

async fn create(writer: &mut Box<dyn Writer>, specs: Vec<TaskSpec>) -> Vec<TaskId> {
    match commit(writer, vec![Op::Create(op::Create { tasks: specs })]).await.remove(0) {
        Reply::Created(created) => created.into_iter().map(|task| task.spec.id).collect(),
        other => panic!("{other:?}"),
    }
}

async fn register(writer: &mut Box<dyn Writer>, name: &str, slots: i64) {
    let change =
        WorkerChange { id: name.into(), max_concurrency: Some(slots), git: Some(true), actor: Actor::Api, ..WorkerChange::default() };
    commit(writer, vec![Op::RegisterWorker(Box::new(change))]).await;
}

fn lease(task: TaskId, worker: &str) -> Op {
    Op::Lease(op::Lease { task, choice: Choice::Named(worker.into()), ttl_ms: 60_000, origin: Origin::Call })
}

fn held(reply: &Reply) -> LeaseId {
    match reply {
        Reply::Leased(reply::Leased { task, .. }) => task.lease.as_ref().expect("a lease").id,
        other => panic!("{other:?}"),
    }
}

fn in_context(context: &str) -> TaskSpec {
    TaskSpec { session: Session::Context, ..spec(context) }
}
