//! The store through its public door, on both databases.

mod log;
mod reading;
mod writing;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bloom_runtime::core::command::{Choice, Claim, Completion, Holder, NewEvent, Op, Rejection, Reply, WorkerChange};
use bloom_runtime::core::command::{Command, Keys};
use bloom_runtime::core::decide::decide;
use bloom_runtime::core::ids::{LeaseId, TaskId};
use bloom_runtime::core::task::{EventKind, Format, LeaseStatus, Origin, Outcome, Session, Status, TaskSpec, TaskState, Usage};
use bloom_runtime::core::working_set::{Counts, Freed, Halt, WorkingSet};
use bloom_runtime::store::{Clock, Error, Kind, Lane, Options, Page, Store, TaskFilter, Upkeep, UsageBy};
use uuid::Uuid;

use crate::support::{Database, janitor, postgres};

/// A migrated database of its own, with a clock set by hand.
struct Bench {
    url: String,
    store: Store,
    time: Arc<AtomicI64>,
}

const START: i64 = 1_800_000_000_000;
const DAY: i64 = 86_400_000;
const PAGE: Page = Page { limit: 100, before: None };

impl Bench {
    async fn new(database: Database) -> Self {
        let url = match database {
            Database::Sqlite => format!("sqlite:{}", janitor::new_path("store").join("deep").join("bloom.db").display()),
            Database::Postgres => postgres::database(),
        };
        let time = Arc::new(AtomicI64::new(START));
        let store = Store::with_clock(&Options { url: url.clone(), max_connections: 4 }, Clock::Manual(time.clone())).await.expect("opens");
        assert!(store.ping().await.is_err(), "an empty database is not current");
        assert_eq!(store.migrate().await.expect("migrates"), ["0001_init"]);
        assert!(store.migrate().await.expect("migrates again").is_empty());
        store.ping().await.expect("current");
        Self { url, store, time }
    }

    fn at(&self, ms: i64) {
        self.time.store(START + ms, Ordering::SeqCst);
    }

    async fn counted(&self) -> (Counts, i64) {
        let (counts, leases, _) = self.store.counts().await.expect("counts");
        (counts, leases)
    }

    async fn state(&self, id: TaskId) -> TaskState {
        self.store.task(id).await.expect("reads").expect("is there").state
    }
}

type Answers = Vec<Result<Reply, Rejection>>;

/// Loads, decides and saves, with the rows that it turns out to need; conflicts are the caller's.
async fn try_commit(lane: &mut Lane, ops: &[Op]) -> Result<Answers, Error> {
    let mut keys = Keys::default();
    ops.iter().for_each(|op| keys.merge(&op.keys()));
    for _ in 0..20 {
        let mut set = WorkingSet::new(lane.begin_and_load(&keys).await?, seed());
        let mut answers = Vec::new();
        for op in ops {
            match decide(&mut set, &Command::from(op.clone())) {
                Ok(reply) => answers.push(Ok(reply)),
                Err(Halt::Rejected(rejection)) => answers.push(Err(rejection)),
                Err(Halt::Need(more)) => {
                    keys.merge(&more);
                    break;
                }
            }
        }
        if answers.len() == ops.len() {
            lane.save(&set, None).await?;
            return Ok(answers);
        }
        lane.rollback().await?;
    }
    panic!("never had all it needed");
}

/// Past the store, on a connection of its own.
pub async fn execute(url: &str, sql: &str) {
    use sqlx::{AssertSqlSafe, Connection, Executor};
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite") {
        sqlx::SqliteConnection::connect(url).await.unwrap().execute(sql).await.unwrap();
    } else {
        sqlx::PgConnection::connect(url).await.unwrap().execute(sql).await.unwrap();
    }
}

/// Ids of one millisecond differ by it.
pub fn seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub async fn commit(lane: &mut Lane, ops: Vec<Op>) -> Vec<Reply> {
    try_commit(lane, &ops).await.expect("commits").into_iter().map(|answer| answer.expect("is allowed")).collect()
}

pub fn spec(context: &str) -> TaskSpec {
    TaskSpec {
        id: Uuid::nil(),
        context_id: context.into(),
        agent_slug: "writer".into(),
        prompt: "Say \"hi\"\n\tto Zoë \u{1F600} \\".into(),
        context_hints: vec!["a".into(), "b, \"c\"".into()],
        timeout_sec: 120,
        budget: 0.1,
        desired_format: Format::Text,
        max_attempts: 3,
        priority: 5,
        not_before: None,
        depends_on: Vec::new(),
        exclusive_key: None,
        idempotency_key: None,
        labels: Default::default(),
        session: Session::None,
        model: None,
        ttl_after_finished_sec: None,
    }
}

pub async fn create(lane: &mut Lane, specs: Vec<TaskSpec>) -> Vec<TaskId> {
    match commit(lane, vec![Op::Create { tasks: specs }]).await.remove(0) {
        Reply::Created(created) => created.into_iter().map(|task| task.spec.id).collect(),
        other => panic!("{other:?}"),
    }
}

pub async fn register(lane: &mut Lane, name: &str, room: i64) {
    let change = WorkerChange { id: name.into(), max_concurrency: Some(room), actor: "api", ..WorkerChange::default() };
    commit(lane, vec![Op::RegisterWorker(Box::new(change))]).await;
}

fn lease(task: TaskId, worker: &str) -> Op {
    Op::Lease { task, choice: Choice::Named(worker.into()), ttl_ms: 60_000, origin: Origin::Call }
}

pub fn success(task: TaskId, output: &str) -> Op {
    Op::Complete(Box::new(Completion {
        task,
        holder: Holder::default(),
        status: Outcome::Success,
        output: Some(output.into()),
        error_message: None,
        duration_ms: 12,
        tokens_used: None,
        artifact_type: "LLM_RESULT".into(),
        artifact_tags: vec!["t".into()],
        reason: None,
        retryable: false,
        retry_at: None,
        keep_attempt: false,
        usage: Some(Usage { input_tokens: 10, output_tokens: 5, cost_usd: 0.25 }),
        session_id: Some("sess".into()),
        model: Some("m".into()),
    }))
}

fn held(reply: &Reply) -> LeaseId {
    match reply {
        Reply::Leased { task, .. } => task.lease.as_ref().expect("a lease").id,
        other => panic!("{other:?}"),
    }
}
