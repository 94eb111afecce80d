//! The store through its public door, on both databases: what is written is what is read, and what must not happen does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bloom_runtime::core::command::{Choice, Claim, Completion, Holder, NewEvent, Op, Rejection, Reply, WorkerChange};
use bloom_runtime::core::command::{Command, Keys};
use bloom_runtime::core::decide::decide;
use bloom_runtime::core::ids::{LeaseId, TaskId};
use bloom_runtime::core::task::{EventKind, Format, LeaseStatus, Outcome, Session, Status, TaskSpec, TaskState, Usage};
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
async fn execute(url: &str, sql: &str) {
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
    Op::Lease { task, choice: Choice::Named(worker.into()), ttl_ms: 60_000 }
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

crate::on_both! { alone:

async fn what_is_written_is_read(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w1", 2).await;
    let full = TaskSpec {
        labels: [("k".to_owned(), "v'\"".to_owned())].into(),
        idempotency_key: Some("once".into()),
        exclusive_key: Some("repo".into()),
        priority: 9,
        model: Some("opus".into()),
        ttl_after_finished_sec: Some(60),
        session: Session::Context,
        ..spec("c1")
    };
    let ids = create(&mut lane, vec![full.clone(), spec("c2")]).await;
    let again = commit(&mut lane, vec![Op::Create { tasks: vec![full.clone()] }]).await.remove(0);
    assert!(matches!(again, Reply::Created(created) if created[0].existed && created[0].spec.id == ids[0]));
    let row = bench.store.task(ids[0]).await.unwrap().unwrap();
    assert_eq!(*row.spec, TaskSpec { id: ids[0], ..full });
    assert_eq!(row.state, TaskState { ready_at: row.state.ready_at, ..TaskState::new(&row.spec) });

    bench.at(10);
    let leased = commit(&mut lane, vec![lease(ids[0], "w1"), lease(ids[1], "w1")]).await;
    let Reply::Leased { task, .. } = &leased[0] else { panic!("leased") };
    assert_eq!(bench.state(ids[0]).await, *task);
    assert_eq!(bench.store.leases_of("w1").await.unwrap().len(), 2);
    assert_eq!(bench.store.active_tasks(None, 10).await.unwrap().len(), 2);
    assert_eq!(bench.store.active_tasks(Some(ids[0]), 10).await.unwrap().len(), 1);

    bench.at(20);
    commit(&mut lane, vec![Op::Heartbeat { task: ids[0], holder: Holder::default() }]).await;
    bench.at(30);
    let beat = commit(&mut lane, vec![Op::Heartbeat { task: ids[0], holder: Holder::default() }]).await;
    let Reply::Task(task) = &beat[0] else { panic!("a task") };
    assert_eq!(bench.state(ids[0]).await, *task);
    let renew = Op::RenewLeases { worker: "w1".into(), leases: vec![held(&leased[0]), held(&leased[1]), Uuid::max()] };
    let renewed = commit(&mut lane, vec![renew]).await;
    assert!(matches!(&renewed[0], Reply::RenewedLeases { renewed, lost } if renewed.len() == 2 && *lost == [Uuid::max()]));

    bench.at(40);
    let done = commit(&mut lane, vec![success(ids[0], "out \u{1F600} \" \\")]).await;
    let Reply::Completed { task, .. } = &done[0] else { panic!("completed") };
    assert_eq!(bench.state(ids[0]).await, *task);
    let result = bench.store.newest_result(ids[0]).await.unwrap().unwrap();
    assert_eq!(result.output.as_deref(), Some("out \u{1F600} \" \\"));
    assert_eq!(bench.store.result_of_lease(held(&leased[0])).await.unwrap(), Some(result.clone()));
    assert_eq!(bench.store.artifacts(None, &PAGE).await.unwrap().rows, [result.clone()]);
    assert_eq!(bench.store.artifacts(Some(ids[0]), &PAGE).await.unwrap().rows, [result]);
    let ended: Vec<_> = bench.store.leases(None, &PAGE).await.unwrap().into_iter().map(|l| (l.task_id, l.status)).collect();
    assert_eq!(ended, [(ids[1], LeaseStatus::Active), (ids[0], LeaseStatus::Released)]);
    assert_eq!(bench.store.leases(Some(LeaseStatus::Released), &PAGE).await.unwrap().len(), 1);
    assert_eq!(bench.store.leases(Some(LeaseStatus::Failed), &PAGE).await.unwrap().len(), 0);
    let actions: Vec<_> = bench.store.audit(&PAGE).await.unwrap().into_iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["task_completed", "task_leased", "task_leased", "task_created", "task_created", "worker_registered"]);
    let keys = Keys { contexts: ["c1".to_owned(), "none".to_owned()].into(), past_leases: [held(&leased[0])].into(), ..Keys::default() };
    let loaded = lane.begin_and_load(&keys).await.unwrap();
    lane.rollback().await.unwrap();
    assert_eq!(loaded.now, START + 40);
    assert_eq!(loaded.contexts["c1"].last_worker, Some(("w1".to_owned(), START + 40)));
    assert_eq!(loaded.contexts["c1"].session_id.as_deref(), Some("sess"));
    assert_eq!(loaded.contexts["none"], Default::default());
    assert_eq!(loaded.past_leases[&held(&leased[0])].as_ref().unwrap().usage.unwrap().cost_usd, 0.25);
}

async fn settings_and_workers(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    let configure = |key: &str| Op::Configure { membridge_server_url: "http://m".into(), membridge_admin_key: key.into() };
    commit(&mut lane, vec![configure("one")]).await;
    commit(&mut lane, vec![configure("two")]).await;
    let settings = bench.store.settings().await.unwrap();
    assert_eq!(settings.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["two", "http://m"]);
    register(&mut lane, "b", 2).await;
    register(&mut lane, "a", 3).await;
    bench.at(5);
    commit(&mut lane, vec![Op::Touch { sightings: vec![("a".into(), START + 5)] }]).await;
    let workers = bench.store.workers().await.unwrap();
    assert_eq!(workers.iter().map(|w| (w.id.as_str(), w.capabilities.max_concurrency, w.last_seen)).collect::<Vec<_>>(), [("a", 3, START + 5), ("b", 2, START)]);
    let all = lane.begin_and_load(&Keys { all_workers: true, ..Keys::default() }).await.unwrap();
    lane.rollback().await.unwrap();
    assert!(all.all_workers && all.workers.len() == 2 && all.slots["a"].exact);
    commit(&mut lane, vec![Op::RemoveWorker { worker: "a".into() }]).await;
    assert_eq!(bench.store.worker("a").await.unwrap(), None);
    register(&mut lane, "a", 1).await;
    assert!(bench.store.worker("a").await.unwrap().is_some());
}

async fn places_change_hands_within_a_batch(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 1).await;
    let ids = create(&mut lane, vec![spec("a"), spec("b"), spec("c")]).await;
    // The later id has the place and gives it to the earlier one, so the order of ids is the wrong one to write in.
    commit(&mut lane, vec![lease(ids[2], "w")]).await;
    commit(&mut lane, vec![success(ids[2], "x"), lease(ids[0], "w")]).await;
    assert_eq!(bench.state(ids[0]).await.lease.unwrap().slot, 0);
    // And one lets go and takes again, while another takes its old place.
    register(&mut lane, "w", 2).await;
    let lease_id = bench.state(ids[0]).await.lease.unwrap().id;
    let release = Op::Release { task: ids[0], lease: lease_id, reason: "test".into() };
    commit(&mut lane, vec![release, lease(ids[1], "w"), lease(ids[0], "w")]).await;
    let slots = (bench.state(ids[0]).await.lease.unwrap().slot, bench.state(ids[1]).await.lease.unwrap().slot);
    assert_eq!(slots, (1, 0));
}

async fn a_place_is_given_once(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 2).await;
    let ids = create(&mut lane, vec![spec("a"), spec("b")]).await;
    commit(&mut lane, vec![lease(ids[0], "w")]).await;
    // A replica that believes that the place is free.
    let keys = lease(ids[1], "w").keys();
    let mut set = WorkingSet::new(lane.begin_and_load(&keys).await.unwrap(), seed());
    decide(&mut set, &Command::from(lease(ids[1], "w"))).unwrap();
    let task = set.loaded.tasks[&ids[1]].clone().unwrap();
    assert_eq!(task.lease.unwrap().slot, 0);
    assert!(lane.save(&set, None).await.unwrap_err().is_conflict());
    lane.rollback().await.unwrap();
    assert_eq!(bench.state(ids[1]).await.status, Status::Queued);
    let exact = Keys { exact_slots: ["w".to_owned()].into(), ..Keys::default() };
    assert_eq!(lane.begin_and_load(&exact).await.unwrap().slots["w"].used, 1);
    lane.rollback().await.unwrap();
}

async fn an_unknown_commit_is_resolved(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    // Nothing of batch 1 arrived: its number is taken, and asking again says the same.
    assert!(!lane.resolve_commit().await.unwrap());
    register(&mut lane, "w", 1).await;
    let (_, _, positions) = bench.store.counts().await.unwrap();
    assert_eq!(positions, [(lane.id, 2)]);
    lane.reconnect().await.unwrap();
    register(&mut lane, "v", 1).await;
    let (_, _, positions) = bench.store.counts().await.unwrap();
    assert_eq!(positions, [(lane.id, 3)]);
    // All of batch 4 arrived, but its answer did not.
    let insert = format!("INSERT INTO batches (lane, n, at, counts, changes) VALUES ({}, 4, 0, '', '')", lane.id);
    execute(&bench.url, &insert).await;
    assert!(lane.resolve_commit().await.unwrap());
    register(&mut lane, "u", 1).await;
    assert_eq!(lane.n(), 5);
}

async fn a_lost_connection_is_replaced(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 1).await;
    if bench.store.kind() == Kind::Sqlite {
        return;
    }
    bench.store.workers().await.unwrap();
    let mut set = WorkingSet::new(lane.begin_and_load(&Keys::default()).await.unwrap(), seed());
    execute(&bench.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").await;
    set.dirty.settings.push(("key", "value".into()));
    assert!(lane.save(&set, None).await.unwrap_err().is_unavailable());
    assert!(lane.begin_and_load(&Keys::default()).await.unwrap_err().is_unavailable());
    lane.rollback().await.unwrap();
    register(&mut lane, "v", 1).await;
    let again = async || bench.store.workers().await.ok();
    assert_eq!(crate::support::eventually("reading works again", again).await.len(), 2);
    assert!(bench.store.settings().await.unwrap().is_empty());
}

async fn counts_are_kept(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 4).await;
    let ids = create(&mut lane, vec![spec("a"), spec("b"), spec("c")]).await;
    let expect = |queued: i64, leased: i64, completed: i64| -> Counts {
        let all = [(Status::Queued, queued), (Status::Leased, leased), (Status::Completed, completed)];
        all.into_iter().filter(|(_, n)| *n != 0).map(|(status, n)| (("writer".to_owned(), 5, status), n)).collect()
    };
    assert_eq!(bench.counted().await, (expect(3, 0, 0), 0));
    assert_eq!(lane.upkeep(&Upkeep::Fold).await.unwrap().rows, 2);
    assert_eq!(bench.counted().await, (expect(3, 0, 0), 0));
    commit(&mut lane, vec![lease(ids[0], "w"), lease(ids[1], "w")]).await;
    assert_eq!(bench.counted().await, (expect(1, 2, 0), 2));
    commit(&mut lane, vec![success(ids[0], "x")]).await;
    assert_eq!(lane.upkeep(&Upkeep::Fold).await.unwrap().rows, 2);
    assert_eq!(lane.upkeep(&Upkeep::Fold).await.unwrap().rows, 0);
    assert_eq!(bench.counted().await, (expect(1, 1, 1), 2));
    assert_eq!(lane.upkeep(&Upkeep::PruneBatches { older_than: START + 1 }).await.unwrap().rows, 4);
    assert_eq!(bench.counted().await, (expect(1, 1, 1), 2));
    let (_, _, positions) = bench.store.counts().await.unwrap();
    assert_eq!(positions, [(lane.id, 4)]);
}

async fn the_queue_is_paged(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    let at = |priority: i64| TaskSpec { priority, ..spec("q") };
    let other = TaskSpec { agent_slug: "other".into(), ..spec("q") };
    let later = TaskSpec { not_before: Some(START + 1000), ..spec("q") };
    let ids = create(&mut lane, vec![at(1), at(9), at(5), other, later]).await;
    let page = bench.store.ready_page(None, None, 2).await.unwrap();
    assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[1], ids[2]]);
    let page = bench.store.ready_page(None, Some((page[1].rank, page[1].id)), 9).await.unwrap();
    assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[3], ids[0]]);
    let page = bench.store.ready_page(Some("other"), None, 9).await.unwrap();
    assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[3]]);
    assert_eq!(bench.store.parked_page(None, 9).await.unwrap(), [ids[4]]);
    assert_eq!(bench.store.next_not_before().await.unwrap(), Some(START + 1000));
    assert!(bench.store.due_not_before(START + 999, 9).await.unwrap().is_empty());
    assert_eq!(bench.store.due_not_before(START + 1000, 9).await.unwrap(), [ids[4]]);
}

async fn whoever_waits_is_found(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 4).await;
    let keyed = || TaskSpec { exclusive_key: Some("key".into()), ..spec("k") };
    let chained = || TaskSpec { session: Session::Context, ..spec("chain") };
    let first = create(&mut lane, vec![keyed(), chained()]).await;
    let loaded = commit(&mut lane, vec![lease(first[0], "w"), lease(first[1], "w")]).await;
    assert_eq!(loaded.len(), 2);
    let dependent = TaskSpec { depends_on: vec![first[0]], ..spec("d") };
    bench.at(1);
    let later = create(&mut lane, vec![keyed(), chained(), dependent]).await;
    for id in &later {
        assert!(bench.state(*id).await.parked.is_some());
    }
    let keys = Keys {
        exclusive: ["key".to_owned()].into(),
        predecessors: [("chain".to_owned(), Uuid::max()), ("chain".to_owned(), first[1])].into(),
        dependencies: [later[2]].into(),
        worker_tasks: ["w".to_owned()].into(),
        ..Keys::default()
    };
    let loaded = lane.begin_and_load(&keys).await.unwrap();
    lane.rollback().await.unwrap();
    assert_eq!(loaded.exclusive["key"], Some(first[0]));
    assert_eq!(loaded.predecessors[&("chain".to_owned(), Uuid::max())], Some(later[1]));
    assert_eq!(loaded.predecessors[&("chain".to_owned(), first[1])], None);
    assert_eq!(loaded.dependencies[&later[2]], [first[0]]);
    assert_eq!(loaded.worker_tasks["w"].len(), 2);
    assert!(loaded.tasks[&later[1]].is_some(), "what was found is locked and read");
    commit(&mut lane, vec![success(first[0], "x"), success(first[1], "x")]).await;
    let freed = Freed { task: first[0], context: Some("chain".into()), exclusive_key: Some("key".into()), finished: true };
    let mut waiters = bench.store.waiters(&freed, 10).await.unwrap();
    waiters.sort();
    assert_eq!(waiters, later);
}

async fn lists_filter_and_page(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 4).await;
    let labelled = |n: i64| TaskSpec { labels: [("team".to_owned(), "red".to_owned()), ("n".to_owned(), n.to_string())].into(), ..spec("ctx") };
    let mut ids = Vec::new();
    for n in 0..6 {
        bench.at(n * 10);
        ids.extend(create(&mut lane, vec![if n % 2 == 0 { labelled(n) } else { TaskSpec { agent_slug: "odd".into(), ..spec("other") } }]).await);
    }
    commit(&mut lane, vec![lease(ids[0], "w"), lease(ids[1], "w")]).await;
    let list = async |filter: TaskFilter, page: Page| -> Vec<usize> {
        let rows = bench.store.tasks(&filter, &page).await.unwrap();
        assert!(!rows.cut);
        let found: Vec<TaskId> = rows.rows.iter().map(|row| row.state.id).collect();
        assert!(rows.rows.iter().all(|row| row.spec.id == row.state.id));
        assert_eq!(bench.store.task_ids(&filter, &page).await.unwrap(), found);
        found.iter().map(|id| ids.iter().position(|other| other == id).unwrap()).collect()
    };
    let none = TaskFilter::default;
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(list(none(), PAGE).await, [5, 4, 3, 2, 1, 0]);
    assert_eq!(list(none(), Page { limit: 2, before: Some(ids[4]) }).await, [3, 2]);
    assert_eq!(list(TaskFilter { status: Some(Status::Leased), ..none() }, PAGE).await, [1, 0]);
    assert_eq!(list(TaskFilter { status: Some(Status::Queued), ..none() }, Page { limit: 2, before: None }).await, [5, 4]);
    assert_eq!(list(TaskFilter { agent_slug: Some("odd".into()), ..none() }, PAGE).await, [5, 3, 1]);
    assert_eq!(list(TaskFilter { context_id: Some("ctx".into()), ..none() }, PAGE).await, [4, 2, 0]);
    assert_eq!(list(TaskFilter { worker_id: Some("w".into()), ..none() }, PAGE).await, [1, 0]);
    assert_eq!(list(TaskFilter { labels: vec![label("team", "red")], ..none() }, Page { limit: 2, before: None }).await, [4, 2]);
    assert_eq!(list(TaskFilter { labels: vec![label("team", "red"), label("n", "2")], ..none() }, PAGE).await, [2]);
    assert_eq!(list(TaskFilter { created_after: Some(START + 10), created_before: Some(START + 40), ..none() }, PAGE).await, [3, 2]);
    let everything = TaskFilter {
        status: Some(Status::Leased),
        agent_slug: Some("writer".into()),
        context_id: Some("ctx".into()),
        worker_id: Some("w".into()),
        labels: vec![label("team", "red")],
        created_after: Some(0),
        created_before: Some(i64::MAX),
    };
    assert_eq!(list(everything, PAGE).await, [0]);
    let rare = TaskFilter { status: Some(Status::Leased), agent_slug: Some("odd".into()), ..none() };
    assert_eq!(list(rare, PAGE).await, [1]);
}

async fn a_page_of_large_texts_is_cut(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    let large = || TaskSpec { prompt: "x".repeat(12 << 20), ..spec("l") };
    for _ in 0..4 {
        create(&mut lane, vec![large()]).await;
    }
    let page = bench.store.tasks(&TaskFilter::default(), &PAGE).await.unwrap();
    assert_eq!((page.rows.len(), page.cut), (2, true));
    let before = page.rows.last().map(|row| row.state.id);
    let page = bench.store.tasks(&TaskFilter::default(), &Page { limit: 100, before }).await.unwrap();
    assert_eq!((page.rows.len(), page.cut), (2, false));
}

async fn events_are_numbered_and_bounded(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 1).await;
    let id = create(&mut lane, vec![spec("e")]).await[0];
    let lease_id = held(&commit(&mut lane, vec![lease(id, "w")]).await[0]);
    for page in 0..21 {
        let events = (1..=500).map(|i| NewEvent { seq: page * 500 + i, kind: EventKind::Text, at: START, data: format!("{{\"n\":{i}}}") }).collect();
        commit(&mut lane, vec![Op::AppendEvents { task: id, lease: lease_id, events }]).await;
    }
    assert_eq!(bench.state(id).await.event_count, 10_500);
    let events = bench.store.events(id, 0, 3).await.unwrap();
    assert_eq!(events.iter().map(|event| (event.number, event.seq)).collect::<Vec<_>>(), [(501, 501), (502, 502), (503, 503)]);
    assert_eq!(bench.store.events(id, 10_499, 100).await.unwrap().len(), 1);
    assert!(bench.store.events(id, 10_500, 100).await.unwrap().is_empty());
}

async fn old_tasks_go_and_their_usage_stays(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 4).await;
    let brief = || TaskSpec { ttl_after_finished_sec: Some(1), labels: [("a".to_owned(), "b".to_owned())].into(), ..spec("c") };
    let ids = create(&mut lane, vec![brief(), spec("c"), spec("c"), spec("c")]).await;
    for id in &ids[..3] {
        commit(&mut lane, vec![lease(*id, "w"), success(*id, "x")]).await;
    }
    let dependent = TaskSpec { depends_on: vec![ids[3], ids[2]], ..spec("d") };
    create(&mut lane, vec![dependent]).await;
    let usage = bench.store.usage(None, None, UsageBy::Model).await.unwrap();
    assert_eq!(usage.iter().map(|u| (u.key.as_str(), u.runs, u.input_tokens, u.cost_usd)).collect::<Vec<_>>(), [("m", 3, 30, 0.75)]);
    bench.at(1000);
    let due = Upkeep::RemoveTasks { finished_before: None, remove_due_at: START + 1000, limit: 100 };
    let done = lane.upkeep(&due).await.unwrap();
    assert_eq!((done.removed.as_slice(), done.rows), (&ids[..1], 1));
    assert_eq!(done.counts.tasks, [(("writer".to_owned(), 5, Status::Completed), -1)].into());
    let old = Upkeep::RemoveTasks { finished_before: Some(START + 1), remove_due_at: START + 1000, limit: 100 };
    assert_eq!(lane.upkeep(&old).await.unwrap().removed, [ids[1]], "a queued task still depends on the other");
    assert!(lane.upkeep(&old).await.unwrap().removed.is_empty());
    assert!(bench.store.task(ids[0]).await.unwrap().is_none());
    assert!(bench.store.newest_result(ids[0]).await.unwrap().is_none());
    assert_eq!(bench.store.leases(None, &PAGE).await.unwrap().len(), 1);
    assert_eq!(bench.counted().await.0[&("writer".to_owned(), 5, Status::Completed)], 1);
    assert_eq!(bench.store.usage(None, None, UsageBy::Model).await.unwrap(), usage);
    for by in [UsageBy::Day, UsageBy::AgentSlug, UsageBy::ContextId] {
        assert_eq!(bench.store.usage(Some(START - DAY), Some(START + DAY), by).await.unwrap()[0].runs, 3);
    }
    assert_eq!(bench.store.usage(None, None, UsageBy::Day).await.unwrap()[0].key, "2027-01-15");
    assert!(bench.store.usage(Some(START + 2 * DAY), None, UsageBy::Day).await.unwrap().is_empty());
    let audited = bench.store.audit(&Page { limit: 1000, before: None }).await.unwrap().len();
    assert_eq!(lane.upkeep(&Upkeep::PruneAudit { before: START + 1, limit: 3 }).await.unwrap().rows, 3);
    assert_eq!(bench.store.audit(&Page { limit: 1000, before: None }).await.unwrap().len(), audited - 3);
}

async fn signs_of_life(database) {
    let bench = Bench::new(database).await;
    assert_eq!(bench.store.last_served().await.unwrap(), None);
    bench.store.mark_served().await.unwrap();
    assert_eq!(bench.store.last_served().await.unwrap(), Some(START));
    bench.store.checkpoint().await.unwrap();
    bench.store.notify().await.unwrap();
    assert_eq!(bench.store.now().await.unwrap(), START);
    assert!(bench.store.pool_figures().size > 0);
    let database_clock = match bench.store.kind() {
        Kind::Postgres => Store::open(&Options { url: bench.url.clone(), max_connections: 2 }).await.unwrap().now().await.unwrap(),
        Kind::Sqlite => {
            let refused = Store::open(&Options { url: bench.url.clone(), max_connections: 2 }).await.err().expect("one process a file").to_string();
            assert!(refused.contains(&format!("process {}", std::process::id())) && refused.contains("DATABASE_URL"), "{refused}");
            crate::support::now_ms()
        }
    };
    assert!((database_clock - crate::support::now_ms()).abs() < 5000);
}

async fn one_leads(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    assert_eq!(bench.store.lead("a", 1000).await.unwrap(), Some(1));
    if bench.store.kind() == Kind::Sqlite {
        return;
    }
    assert_eq!(bench.store.lead("b", 1000).await.unwrap(), None);
    bench.at(900);
    assert_eq!(bench.store.lead("a", 1000).await.unwrap(), Some(1));
    bench.at(1901);
    assert_eq!(bench.store.lead("b", 1000).await.unwrap(), Some(2));
    assert_eq!(bench.store.lead("a", 1000).await.unwrap(), None);
    let mut set = WorkingSet::new(lane.begin_and_load(&Keys::default()).await.unwrap(), seed());
    set.dirty.settings.push(("key", "value".into()));
    assert!(matches!(lane.save(&set, Some(1)).await, Err(Error::NotLeader)));
    lane.rollback().await.unwrap();
    set.loaded = lane.begin_and_load(&Keys::default()).await.unwrap();
    lane.save(&set, Some(2)).await.unwrap();
    bench.store.resign("b").await.unwrap();
    assert_eq!(bench.store.lead("a", 1000).await.unwrap(), Some(3));
}

async fn replicas_hear_of_each_other(database) {
    let bench = Bench::new(database).await;
    let mut here = bench.store.lane().await.unwrap();
    if bench.store.kind() == Kind::Sqlite {
        assert!(bench.store.feed(&[], &[]).await.unwrap().entries.is_empty());
        assert!(bench.store.listener().await.unwrap().is_none());
        return;
    }
    let mut listener = bench.store.listener().await.unwrap().expect("a listener");
    let mut there = bench.store.lane().await.unwrap();
    let (_, _, positions) = bench.store.counts().await.unwrap();
    register(&mut there, "w", 1).await;
    let id = create(&mut there, vec![spec("f")]).await[0];
    create(&mut here, vec![spec("g")]).await;
    bench.store.notify().await.unwrap();
    listener.recv().await.unwrap();
    let feed = bench.store.feed(&positions, &[here.id]).await.unwrap();
    assert!(!feed.gap);
    assert_eq!(feed.entries.iter().map(|entry| (entry.lane, entry.n)).collect::<Vec<_>>(), [(there.id, 1), (there.id, 2)]);
    assert_eq!(feed.entries[0].changes.workers, ["w"]);
    assert_eq!(feed.entries[1].changes.tasks, [id]);
    assert_eq!(feed.entries[1].counts.tasks[&("writer".to_owned(), 5, Status::Queued)], 1);
    let newer = bench.store.lane().await.unwrap();
    assert!(bench.store.feed(&[(there.id, 2)], &[here.id]).await.unwrap().entries.is_empty());
    drop(newer);
    here.upkeep(&Upkeep::Fold).await.unwrap();
    here.upkeep(&Upkeep::PruneBatches { older_than: START + 1 }).await.unwrap();
    assert!(bench.store.feed(&positions, &[here.id]).await.unwrap().gap);
    assert!(!bench.store.feed(&[(there.id, 2)], &[here.id]).await.unwrap().gap);
}

async fn claims_by_two_lanes_never_collide_for_long(database) {
    let bench = Bench::new(database).await;
    let mut lane = bench.store.lane().await.unwrap();
    register(&mut lane, "w", 32).await;
    let ids = create(&mut lane, (0..32).map(|n| spec(&format!("c{n}"))).collect()).await;
    let lanes = if bench.store.kind() == Kind::Sqlite { 1 } else { 4 };
    let mut crowd = Vec::new();
    for first in 0..lanes {
        let mut lane = bench.store.lane().await.unwrap();
        let mine: Vec<TaskId> = ids.iter().copied().skip(first).step_by(lanes).collect();
        crowd.push(crate::support::beside(async move {
            for task in mine {
                let claim = Op::Claim(Claim { worker: "w".into(), candidates: vec![task], held: None, ttl_ms: 1000 });
                while let Err(error) = try_commit(&mut lane, std::slice::from_ref(&claim)).await {
                    assert!(error.is_conflict(), "{error}");
                    lane.rollback().await.unwrap();
                    // As the engine does: what it did not know is loaded before the next try.
                    let mut keys = claim.keys();
                    keys.exact_slots.insert("w".into());
                    let mut set = WorkingSet::new(lane.begin_and_load(&keys).await.unwrap(), seed());
                    decide(&mut set, &Command::from(claim.clone())).unwrap();
                    if lane.save(&set, None).await.is_ok() {
                        break;
                    }
                    lane.rollback().await.unwrap();
                }
            }
        }));
    }
    for one in crowd {
        one.await.unwrap();
    }
    let exact = Keys { exact_slots: ["w".to_owned()].into(), ..Keys::default() };
    assert_eq!(lane.begin_and_load(&exact).await.unwrap().slots["w"].used, u32::MAX);
    lane.rollback().await.unwrap();
}

}
