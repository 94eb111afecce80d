//! Runs the same random histories in memory, on SQLite and on PostgreSQL. All end states, loads, conflicts and pages of waiting tasks must
//! be equal. `EQUIVALENCE_CASES` sets the number of histories.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::cache::{Part, Projects, rank};
use bloom_core::command::{Command, RowKeys};
use bloom_core::decide::decide;
use bloom_core::ids::TaskId;
use bloom_core::task::TaskState;
use bloom_core::working_set::{ContextView, Loaded, WorkingSet};
use bloom_database::{Database as _, LockWait, Scope, Writer};
use bloom_store::{AuditFilter, Clock, Page, Store, StoreOptions, TaskFilter};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::all_workers;
use crate::support::Database;
use bloom_test_world::history::{History, LABEL, NAMESPACES};
use bloom_test_world::memory::Memory;
use bloom_test_world::random::steps;
use bloom_test_world::step::Step;
use bloom_test_world::world::{Asked, Batch, PAGE, SESSION_WAIT_MS, START, World, hint_slots, world};

crate::on_both! {
    async fn histories_end_as_they_do_in_memory(database) {
        let cases = std::env::var("EQUIVALENCE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(6);
        let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        for _ in 0..cases {
            let steps = steps().new_tree(&mut runner).expect("steps").current();
            let lived = live(&steps);
            replay(database, &lived, &steps).await;
        }
    }
}

/// Runs the history in memory and records all calls to the database.
fn live(steps: &[Step]) -> World {
    let mut world = world();
    world.log = Some(Vec::new());
    let mut world = world.worker("w0", 2).worker("w1", 1);
    let mut history = History::default();
    for step in steps {
        let ops = history.begin(&mut world, step);
        if !ops.is_empty() {
            // Only the calls and their outcomes are compared. The tests of `core` check whether they are correct.
            let _ = world.run_batch(ops);
        }
        history.learn(&world.db);
    }
    world
}

async fn replay(database: Database, lived: &World, steps: &[Step]) {
    let time = Arc::new(AtomicI64::new(START));
    let store =
        Store::with_clock(&StoreOptions { url: database.new_url(), max_connections: 2 }, Clock::Manual(time.clone())).await.expect("opens");
    store.migrate().await.expect("migrates");
    let mut writer = store.writer().await.expect("a writer");
    for (i, asked) in lived.log.iter().flatten().enumerate() {
        let told = || format!("{database:?}, number {i}: {asked:#?}\nof {steps:#?}");
        match asked {
            Asked::Batch(batch) => {
                time.store(batch.now, Ordering::SeqCst);
                carry_out(&mut writer, batch, &told).await;
            }
            Asked::Waiters(wakeup, expected) => {
                assert_eq!(store.waiters(wakeup, PAGE as i64).await.expect("reads"), *expected, "{}", told());
            }
        }
    }
    time.store(lived.now, Ordering::SeqCst);
    compare_all(&store, &mut writer, &lived.db, lived.now).await;
    writer.close().await;
    store.close().await;
}

async fn carry_out(writer: &mut Box<dyn Writer>, batch: &Batch, told: &impl Fn() -> String) {
    let loaded = writer.begin_and_load(&batch.keys, LockWait::Long).await.expect("loads");
    assert_same(&loaded, &batch.loaded, told);
    // The batch is decided on the rows in memory, so that both make the same changes even if the database loaded more rows.
    let mut set = WorkingSet::new(batch.loaded.clone(), batch.seed);
    set.exact = batch.exact;
    set.session_wait_ms = SESSION_WAIT_MS;
    hint_slots(&mut set, &batch.view);
    for command in &batch.commands {
        let _ = decide(&mut set, &Command::clone(command));
    }
    match writer.save(&set, None).await {
        Ok(_) => assert!(batch.committed, "a conflict was missed: {}", told()),
        Err(error) => {
            assert!(error.is_conflict() && !batch.committed, "{error}: {}", told());
            writer.rollback().await.expect("rolls back");
        }
    }
}

/// Checks that everything that memory loaded was found and is equal. A database may load more, to save a round trip.
pub fn assert_same(found: &Loaded, expected: &Loaded, told: &impl Fn() -> String) {
    assert_eq!((found.now, found.all_workers), (expected.now, expected.all_workers), "{}", told());
    assert_covers(&found.tasks, &expected.tasks, told);
    assert_covers(&found.workers, &expected.workers, told);
    assert_covers(&found.worker_revisions, &expected.worker_revisions, told);
    assert_covers(&found.observed_workers, &expected.observed_workers, told);
    assert_covers(&found.context_resets, &expected.context_resets, told);
    assert_covers(&found.slots, &expected.slots, told);
    assert_covers(&found.lease_tasks, &expected.lease_tasks, told);
    assert_covers(&found.past_leases, &expected.past_leases, told);
    assert_covers(&found.idempotency, &expected.idempotency, told);
    assert_covers(&found.objects, &expected.objects, told);
    assert_covers(&views(&found.contexts), &views(&expected.contexts), told);
    assert_covers(&found.predecessors, &expected.predecessors, told);
    assert_covers(&found.exclusive, &expected.exclusive, told);
    assert_covers(&found.queues, &expected.queues, told);
    assert_covers(&found.active_leases, &expected.active_leases, told);
    assert_eq!(found.queue_rows, expected.queue_rows, "{}", told());
    assert_covers(&sorted(&found.worker_tasks), &sorted(&expected.worker_tasks), told);
    assert!(expected.projects.is_none() || found.projects == expected.projects, "{}", told());
    assert!(expected.api_keys.is_none() || found.api_keys == expected.api_keys, "{}", told());
    assert!(expected.control_plane.is_none() || found.control_plane == expected.control_plane, "{}", told());
    assert_covers(&sorted(&found.dependencies), &sorted(&expected.dependencies), told);
}

fn assert_covers<K: Eq + Hash + Debug, V: PartialEq + Debug>(found: &HashMap<K, V>, expected: &HashMap<K, V>, told: &impl Fn() -> String) {
    for (key, value) in expected {
        assert_eq!(found.get(key), Some(value), "{key:?}: {}", told());
    }
}

/// If several workers run in a context, any one of them may be returned, so only its presence is compared.
fn views(contexts: &HashMap<String, ContextView>) -> HashMap<String, (ContextView, bool)> {
    let view = |view: &ContextView| (ContextView { active_worker: None, ..view.clone() }, view.active_worker.is_some());
    contexts.iter().map(|(context, found)| (context.clone(), view(found))).collect()
}

fn sorted<K: Clone + Eq + Hash>(lists: &HashMap<K, Vec<TaskId>>) -> HashMap<K, BTreeSet<TaskId>> {
    lists.iter().map(|(key, list)| (key.clone(), list.iter().copied().collect())).collect()
}

/// Compares every table with memory.
pub async fn compare_all(store: &Store, writer: &mut Box<dyn Writer>, memory: &Memory, now: i64) {
    let everything = RowKeys {
        tasks: memory.tasks.keys().copied().collect(),
        all_workers: true,
        past_leases: memory.past_leases.keys().copied().collect(),
        contexts: memory.tasks.values().map(|task| task.context_id.clone()).collect(),
        dependencies: memory.tasks.keys().copied().collect(),
        resets: memory.context_resets.keys().cloned().collect(),
        ..RowKeys::default()
    };
    let loaded = writer.begin_and_load(&everything, LockWait::Long).await.expect("loads");
    writer.rollback().await.expect("rolls back");
    assert_same(&loaded, &memory.load(now, &everything), &|| "at the end".into());

    let page = Page { limit: 100_000, before: None };
    let listed = store.task_ids(&TaskFilter::default(), &page).await.expect("reads");
    let specs: Vec<_> = store.tasks(&listed).await.expect("reads").into_iter().map(|row| row.spec).collect();
    assert_eq!(specs, memory.specs.values().rev().cloned().collect::<Vec<_>>());

    let artifacts: Vec<_> = store.artifact_sizes(None, None, &page).await.expect("reads").rows.into_iter().map(|(id, _)| id).collect();
    let mut results = store.artifacts(&artifacts).await.expect("reads");
    let mut expected: Vec<_> = memory.results.iter().map(|result| result.as_ref().clone()).collect();
    results.sort_by_key(|result| result.id);
    expected.sort_by_key(|result| result.id);
    assert_eq!(results, expected);

    let mut audit = store.audit(&AuditFilter::default(), &page).await.expect("reads");
    let mut expected = memory.audit.clone();
    audit.sort_by_key(|entry| entry.id);
    expected.sort_by_key(|entry| entry.id);
    assert_eq!(audit, expected);

    for value in [true, false] {
        let label = (LABEL.to_owned(), value.to_string());
        let filter = TaskFilter { labels: vec![label.clone()], ..TaskFilter::default() };
        let labeled = memory.tasks.values().rev().filter(|task| task.labels(&memory.specs[&task.id]).get(LABEL) == Some(&label.1));
        assert_eq!(store.task_ids(&filter, &page).await.expect("reads"), labeled.map(|task| task.id).collect::<Vec<_>>());
    }

    for task in memory.tasks.keys() {
        let expected: Vec<_> = memory.events.range((*task, 0)..=(*task, i64::MAX)).map(|(_, event)| event.clone()).collect();
        assert_eq!(store.events(*task, 0, 100_000, i64::MAX).await.expect("reads"), expected);
    }
    let counts = store.counts().await.expect("reads").counts;
    let tasks: Vec<_> = counts.tasks.into_iter().filter(|(_, count)| *count != 0).collect();
    assert_eq!((tasks, counts.leases), (memory.counts.clone().into_iter().collect(), memory.leases_granted));
    assert!(store.count_errors().await.expect("reads").is_empty());
    assert_eq!(store.settings().await.expect("reads"), memory.settings.clone().into_iter().collect::<Vec<_>>());
    assert_eq!(store.api_keys().await.expect("reads"), memory.api_keys.values().cloned().collect::<Vec<_>>());
    assert_eq!(store.projects().await.expect("reads"), memory.projects.values().rev().cloned().collect::<Vec<_>>());
    for (id, project) in &memory.projects {
        let nodes: Vec<_> = memory.project_nodes.values().filter(|node| node.project_id == *id).cloned().collect();
        assert_eq!(store.project_with_nodes(*id).await.expect("reads"), Some((project.clone(), nodes)));
    }
    compare_the_queues(store, memory).await;
    compare_the_control_plane(store, memory).await;
    let active: Vec<_> = store.active_tasks(None, 100_000).await.expect("reads");
    assert_eq!(active, memory.active().cloned().collect::<Vec<_>>());
    assert_eq!(store.wakeups(None, 100_000).await.expect("reads"), memory.wakeups.values().cloned().collect::<Vec<_>>());
    let workers: Vec<_> = memory.workers.values().cloned().collect();
    assert_eq!(all_workers(store).await.expect("reads"), workers);
    assert_eq!(store.workers_page(None, 100).await.expect("reads"), workers);
    compare_the_queue(store, memory, now).await;
}

async fn compare_the_control_plane(store: &Store, memory: &Memory) {
    let rows = &memory.control_plane;
    assert_eq!(store.agents().await.expect("reads"), rows.agents.values().cloned().collect::<Vec<_>>());
    let mut projects = store.memory_projects().await.expect("reads");
    projects.sort_by(|(a, ..), (b, ..)| a.canonical_id.cmp(&b.canonical_id));
    let nodes_of = |id: &str| rows.nodes.values().filter(|node| node.canonical_id == id).cloned().collect::<Vec<_>>();
    let expected: Vec<_> = rows
        .projects
        .values()
        .map(|project| {
            let stored_at = rows.newest_memory(&project.canonical_id).map(|memory| memory.version.created_at);
            (project.clone(), i64::try_from(nodes_of(&project.canonical_id).len()).expect("few"), stored_at)
        })
        .collect();
    assert_eq!(projects, expected);
    for project in rows.projects.keys() {
        assert_eq!(store.nodes_of(project).await.expect("reads"), nodes_of(project));
        let newest = rows.newest_memory(project).map(|memory| (memory.version.clone(), memory.content.to_string()));
        assert_eq!(store.newest_memory(project).await.expect("reads"), newest);
        let versions = rows.memories.iter().rev().filter(|((known, _), _)| known == project);
        let versions: Vec<_> = versions.map(|(_, memory)| memory.version.clone()).collect();
        assert_eq!(store.memory_versions(project).await.expect("reads"), versions);
    }
    let mut jobs = rows.jobs.clone();
    jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
    assert_eq!(store.jobs(100_000).await.expect("reads"), jobs);
}

async fn compare_the_queues(store: &Store, memory: &Memory) {
    let set: Vec<_> = memory.queues.values().filter(|queue| queue.agent_slug != ALL_QUEUES).cloned().collect();
    let expected: Vec<_> = std::iter::once(memory.all_queues()).chain(set).collect();
    assert_eq!(store.queues().await.expect("reads"), expected);
    let closed: BTreeSet<_> = store.closed_queues().await.expect("reads").into_iter().collect();
    let is_closed = |queue: &&AgentQueue| queue.closed(memory.active_of(&queue.agent_slug)).is_some();
    assert_eq!(closed, expected.iter().filter(is_closed).map(|queue| queue.agent_slug.clone()).collect());
    let ready: BTreeSet<_> = memory.tasks.values().filter(|task| task.is_ready()).map(|task| task.agent_slug.clone()).collect();
    assert_eq!(store.ready_agents().await.expect("reads"), ready.into_iter().collect::<Vec<_>>());
}

async fn compare_the_queue(store: &Store, memory: &Memory, now: i64) {
    let wanted = |task: &TaskState, scope: &Scope| match scope {
        Scope::Reserved(worker) => task.is_open_to(worker) && !task.is_ready(),
        Scope::Ready { part: Part { namespace, projects }, agent_slug } => {
            task.is_ready()
                && agent_slug.as_ref().is_none_or(|slug| task.agent_slug == *slug)
                && (namespace.is_none() || task.namespace == *namespace)
                && match projects {
                    Projects::All => true,
                    Projects::None => task.project.is_none(),
                    Projects::One(name) => task.project.as_ref() == Some(name),
                }
        }
    };
    let of_workers = memory.workers.keys().cloned().map(Scope::Reserved);
    let namespaces: Vec<_> = std::iter::once(None).chain(NAMESPACES.iter().map(|&name| Some(name.to_owned()))).collect();
    let projects = [Projects::All, Projects::None, Projects::One("project 0".into()), Projects::One("project 1".into())];
    let mut scopes: Vec<_> = of_workers.collect();
    for namespace in &namespaces {
        for projects in &projects {
            let part = Part { namespace: namespace.clone(), projects: projects.clone() };
            scopes.extend([None, Some("coder"), Some("nobody")].map(|agent| Scope::of(part.clone(), agent)));
        }
    }
    for scope in scopes {
        let mut expected: Vec<_> = memory.tasks.values().filter(|task| wanted(task, &scope)).collect();
        expected.sort_unstable_by_key(|task| (rank(task.priority), task.id));
        let expected: Vec<_> = expected.into_iter().map(|task| (task.id, task.revision)).collect();
        let found = bloom_database::Database::ready_page(store, &scope, None, 100_000).await.expect("reads");
        assert_eq!(found.iter().map(|row| (row.id, row.revision)).collect::<Vec<_>>(), expected, "{scope:?}");
    }
    let checks = || memory.active().filter_map(|task| task.lease.as_ref()).map(|lease| (lease.check_at, lease.id));
    let due = store.due_leases(100_000).await.expect("reads");
    let mut expected: Vec<_> = checks().filter(|(at, _)| *at <= now).collect();
    expected.sort_unstable_by_key(|(at, _)| *at);
    let found: BTreeSet<_> = due.items.iter().map(|(_, lease)| *lease).collect();
    assert_eq!((due.now, found), (now, expected.into_iter().map(|(_, lease)| lease).collect()));
    assert_eq!(due.next_at, checks().map(|(at, _)| at).filter(|at| *at > now).min());
    let wakes = || memory.tasks.values().filter_map(|task| Some((task.wake_at?, task.id)));
    let due = store.due_tasks(100_000).await.expect("reads");
    let found: BTreeSet<_> = due.items.into_iter().collect();
    assert_eq!((due.now, found), (now, wakes().filter(|(at, _)| *at <= now).map(|(_, id)| id).collect()));
    assert_eq!(due.next_at, wakes().map(|(at, _)| at).filter(|at| *at > now).min());
}
