//! The cache follows the rows of tasks and workers, in whatever order they arrive.

use bloom_core::audit::Actor;
use bloom_core::cache::{Cache, Shortage};
use bloom_core::command::{CordonChange, Loss, WorkerChange};
use bloom_core::ids::TaskId;
use bloom_core::namespace::KubernetesObject;
use bloom_core::op;
use bloom_core::pause::{Pause, PauseCause, PauseKind};
use bloom_core::requirement::Requirement;
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::worker::{Worker, WorkerStatus};
use bloom_test_world::world::{START, World, in_project, registration, spec, world};

fn hear(cache: &mut Cache, task: &TaskState) -> Option<String> {
    let read = cache.begin_read();
    let effect = cache.put_task(task, &read);
    cache.end_read(&read);
    effect.freed
}

fn hear_of(cache: &mut Cache, worker: &Worker) {
    let read = cache.begin_read();
    cache.put_worker(worker.clone(), &read);
    cache.end_read(&read);
}

fn cache_of(world: &World) -> Cache {
    let mut cache = Cache::default();
    world.db.workers.values().for_each(|worker| hear_of(&mut cache, worker));
    world.db.tasks.values().for_each(|task| {
        hear(&mut cache, task);
    });
    cache
}

#[test]
fn slots_are_taken_and_given_back() {
    let mut world = world().worker("a", 2);
    let task = world.create(spec("c"));
    let mut cache = cache_of(&world);
    assert_eq!((cache.fleet.free("a"), cache.fleet.used("a")), (2, 0));

    let lease = world.lease(task, "a");
    assert_eq!(hear(&mut cache, world.task(task)), None);
    assert_eq!((cache.fleet.free("a"), cache.fleet.used("a")), (1, 0b1));
    assert_eq!(cache.fleet.held("a").map(|held| held.lease).collect::<Vec<_>>(), [lease]);

    world.heartbeat(task);
    assert_eq!(hear(&mut cache, world.task(task)), None, "a heartbeat frees nothing");
    world.expire(task);
    assert_eq!(hear(&mut cache, world.task(task)).as_deref(), Some("a"));
    assert_eq!((cache.fleet.free("a"), cache.fleet.used("a")), (2, 0));
    assert_eq!(hear(&mut cache, world.task(task)), None, "a repeated row frees nothing again");
}

#[test]
fn a_lease_that_is_heard_of_before_its_worker_is_kept() {
    let mut world = world().worker("a", 2);
    let task = world.create(spec("c"));
    world.lease(task, "a");
    let mut cache = Cache::default();
    hear(&mut cache, world.task(task));
    hear_of(&mut cache, &world.db.workers["a"]);
    assert_eq!((cache.fleet.free("a"), cache.fleet.used("a")), (1, 0b1));
}

#[test]
fn an_older_copy_never_replaces_a_newer_one() {
    let mut world = world().worker("a", 2);
    let task = world.create(spec("c"));
    world.lease(task, "a");
    let leased = world.task(task).clone();
    world.complete(task, bloom_core::task::Outcome::Success);
    let mut cache = cache_of(&world);
    // The lease was read before the cache learned of its end, and its row arrives after that.
    let mut cache_two = Cache::default();
    hear_of(&mut cache_two, &world.db.workers["a"]);
    let read = cache_two.begin_read();
    hear(&mut cache_two, world.task(task));
    cache_two.put_task(&leased, &read);
    assert_eq!(cache_two.fleet.used("a"), 0);
    cache_two.end_read(&read);
    assert_eq!(cache_two.shown().count(), 0);
    // If the read began before a rebuild that did not show the task, the task is a suspect.
    let read = cache.begin_read();
    let rebuild = cache.begin_rebuild();
    cache.end_read(&rebuild);
    cache.put_task(&leased, &read);
    assert_eq!(cache.take_suspects().tasks.into_iter().collect::<Vec<_>>(), [task]);
    hear(&mut cache, world.task(task));
    assert_eq!(cache.fleet.used("a"), 0);
}

#[test]
fn a_task_that_moved_leaves_its_old_worker() {
    let mut world = world().worker("a", 1).worker("b", 1);
    let task = world.create(spec("c"));
    world.lease(task, "a");
    let mut cache = cache_of(&world);
    world.expire(task);
    world.lease(task, "b");
    assert_eq!(hear(&mut cache, world.task(task)).as_deref(), Some("a"), "the cache has not seen the end of the first lease");
    assert_eq!((cache.fleet.free("a"), cache.fleet.free("b")), (1, 0));
    cache.remove_task(task);
    assert_eq!(cache.fleet.free("b"), 1);
}

#[test]
fn a_slot_that_another_task_took_is_not_freed_by_its_last_holder() {
    let mut world = world().worker("a", 1);
    let (first, second) = (world.create(spec("c")), world.create(spec("d")));
    world.lease(first, "a");
    let mut cache = cache_of(&world);
    world.expire(first);
    world.lease(second, "a");
    hear(&mut cache, world.task(second));
    hear(&mut cache, world.task(first));
    assert_eq!(cache.fleet.held("a").map(|held| held.task).collect::<Vec<_>>(), [second]);
}

#[test]
fn a_removal_is_a_fact_with_a_revision() {
    let mut world = world().worker("a", 1);
    let old = world.db.workers["a"].clone();
    let mut cache = cache_of(&world);
    let read = cache.begin_read();
    world.ok(op::RemoveWorker { worker: "a".into() });
    cache.remove_worker("a", world.db.tombstones["a"]);
    cache.put_worker(old, &read);
    assert!(cache.fleet.worker("a").is_none(), "the copy was read before the removal");
    cache.end_read(&read);
    let world = world.worker("a", 3);
    hear_of(&mut cache, &world.db.workers["a"]);
    assert_eq!(cache.fleet.free("a"), 3, "the worker was registered again");
}

fn shortage_of(world: &World, agent: &str) -> Option<Shortage> {
    cache_of(world).fleet.shortage(Requirement { agent_slug: agent, namespace: None, project: None }, 0, START)
}

#[test]
fn why_nobody_takes_a_task() {
    let mut world = world();
    assert_eq!(shortage_of(&world, "coder"), Some(Shortage::NoWorker));
    world.ok(WorkerChange { id: "writer".into(), agents: Some(Some(vec!["writer".into()])), actor: Actor::Api, ..WorkerChange::default() });
    assert_eq!(shortage_of(&world, "coder"), Some(Shortage::NoWorker));
    assert_eq!(shortage_of(&world, "writer"), None);

    let namespaces = Some(vec!["team".into()]);
    world.ok(WorkerChange { id: "team".into(), namespaces, actor: Actor::Api, ..WorkerChange::default() });
    let shortage = |namespace| cache_of(&world).fleet.shortage(Requirement { agent_slug: "coder", namespace, project: None }, 0, START);
    assert_eq!(
        (shortage(Some("team")), shortage(Some("other")), shortage(None)),
        (None, Some(Shortage::NoWorker), Some(Shortage::NoWorker))
    );

    let pause = Pause {
        kind: PauseKind::Account,
        name: "default".into(),
        cause: PauseCause::Credentials,
        since: 1,
        until: 2,
        message: "sign in".into(),
        agents: Some(vec!["coder".into()]),
        told_by: None,
        is_resumed: false,
    };
    let paused =
        WorkerChange { id: "paused".into(), agents: Some(Some(vec!["other".into()])), actor: Actor::Api, ..WorkerChange::default() };
    world.ok(WorkerChange { pauses: Some(vec![pause.clone()]), ..paused.clone() });
    let told = || match shortage_of(&world, "coder") {
        Some(Shortage::Paused { cause, .. }) => cause.to_string(),
        other => format!("{other:?}"),
    };
    assert_eq!((told(), shortage_of(&world, "other")), ("credentials".into(), None));
    world.ok(WorkerChange { pauses: Some(vec![Pause { agents: None, ..pause }]), ..paused.clone() });
    assert_eq!(shortage_of(&world, "coder"), Some(Shortage::NoWorker), "it does not serve this agent");
    assert!(matches!(shortage_of(&world, "other"), Some(Shortage::Paused { .. })), "all agents are paused");
    world.ok(WorkerChange { pauses: Some(Vec::new()), ..paused });
    assert_eq!(shortage_of(&world, "coder"), Some(Shortage::NoWorker));

    let mut world = world.worker("a", 1).worker("b", 1);
    assert_eq!(shortage_of(&world, "coder"), None);
    world.ok(op::Cordon { worker: "a".into(), change: CordonChange::Cordon });
    world.ok(op::Cordon { worker: "b".into(), change: CordonChange::Drain });
    assert_eq!(shortage_of(&world, "coder"), Some(Shortage::Cordoned));
    world.ok(op::Cordon { worker: "b".into(), change: CordonChange::Uncordon });
    let task = world.create(spec("c"));
    world.lease(task, "b");
    assert_eq!(shortage_of(&world, "coder"), Some(Shortage::NoCapacity { asks: false }));
}

#[test]
fn nobody_serves_the_project_of_a_task() {
    let mut world = world();
    let of_project =
        |world: &World| cache_of(world).fleet.shortage(Requirement { project: Some("p"), ..spec("c").requirement() }, 0, START);
    world.ok(WorkerChange { agents: Some(Some(vec!["writer".into()])), git: Some(true), ..registration("writer", 1) });
    assert_eq!(of_project(&world), Some(Shortage::NoWorker));
    world.ok(WorkerChange { projects: Some(Some(vec!["other".into()])), git: Some(true), ..registration("a", 1) });
    assert_eq!((of_project(&world), shortage_of(&world, "coder")), (Some(Shortage::Project), None));
    world.ok(WorkerChange { git: Some(true), ..registration("b", 1) });
    assert_eq!(of_project(&world), None);
    world.ok(op::Cordon { worker: "b".into(), change: CordonChange::Cordon });
    assert_eq!(of_project(&world), Some(Shortage::Cordoned), "to uncordon it is easier than to give another one the project");
    world.ok(WorkerChange { git: Some(false), ..registration("b", 1) });
    assert_eq!(of_project(&world), Some(Shortage::Project));
    assert_eq!(cache_of(&world).fleet.shortlist(&of("p"), 9, false), Vec::<String>::new());
    world.ok(WorkerChange { projects: Some(Some(vec!["p".into()])), ..registration("a", 1) });
    assert_eq!(cache_of(&world).fleet.shortlist(&of("p"), 9, false), ["a"]);
}

/// A task of this project.
fn of(project: &str) -> TaskSpec {
    TaskSpec { project: Some(in_project(project)), ..spec("y") }
}

#[test]
fn a_lost_worker_takes_tasks_by_claiming_unless_its_status_says_otherwise() {
    let mut world = world().worker("a", 1);
    world.now += 100_000;
    world.ok(op::MarkOffline { worker: "a".into(), cause: Loss::Silent { for_ms: 60_000, served_since: 0, has_started: false } });
    assert!(cache_of(&world).fleet.takes_tasks("a"));
    let change = WorkerChange { id: "a".into(), status: Some(WorkerStatus::Error), actor: Actor::Api, ..WorkerChange::default() };
    world.ok(change);
    world.now += 100_000;
    world.ok(op::MarkOffline { worker: "a".into(), cause: Loss::Silent { for_ms: 60_000, served_since: 0, has_started: false } });
    assert!(!cache_of(&world).fleet.takes_tasks("a"));
}

#[test]
fn a_short_list_has_the_best_and_whoever_runs_the_context() {
    let mut world = world().worker("a", 1).worker("b", 5).worker("c", 3).worker("d", 4);
    let namespaces = Some(vec!["team".into()]);
    world.ok(WorkerChange { namespaces, ..registration("team", 9) });
    let task = world.create(spec("x"));
    world.lease(task, "a");
    let cache = cache_of(&world);
    assert_eq!(cache.fleet.shortlist(&spec("y"), 2, false), ["b", "d"]);
    assert_eq!(cache.fleet.shortlist(&spec("x"), 2, false), ["b", "d", "a"]);
    assert_eq!(cache.fleet.shortlist(&spec("x"), 9, false), ["b", "d", "c", "a"]);
    let object = KubernetesObject { namespace: "team".into(), name: "o".into(), uid: TaskId::nil() };
    assert_eq!(cache.fleet.shortlist(&TaskSpec { object: Some(object), ..spec("y") }, 2, false), ["team", "b"]);
}

#[test]
fn a_task_is_kept_for_those_who_name_its_agent() {
    const WAIT: i64 = 30_000;
    let mut world = world().worker("general", 2);
    let names = |names: &[&str]| Some(Some(names.iter().map(|&name| name.to_owned()).collect()));
    world.ok(WorkerChange { agents: names(&["coder", "writer"]), ..registration("named", 1) });
    let told = |world: &World, ready_at: i64| {
        let mut cache = cache_of(world);
        cache.fleet.named_agent_wait_ms = WAIT;
        let required = Requirement { agent_slug: "coder", namespace: None, project: None };
        (cache.fleet.kept_until(required, ready_at, START), cache.fleet.shortage(required, ready_at, START))
    };
    assert_eq!(told(&world, START - 1), (Some(START - 1 + WAIT), None), "it has room");
    assert_eq!(told(&world, START - WAIT), (None, None), "the wait is over");
    let held = world.create(TaskSpec { agent_slug: "coder".into(), ..spec("c") });
    world.lease(held, "named");
    let until = START + WAIT;
    assert_eq!(told(&world, START), (Some(until), Some(Shortage::Kept { until })));
    assert_eq!(cache_of(&world).fleet.shortlist(&TaskSpec { agent_slug: "coder".into(), ..spec("d") }, 1, false), ["general", "named"]);
    world.ok(WorkerChange { agents: names(&["writer"]), ..registration("named", 1) });
    assert_eq!(told(&world, START), (None, None), "it names another one now");
    world.ok(WorkerChange { agents: names(&["coder"]), ..registration("named", 1) });
    for change in [CordonChange::Cordon, CordonChange::Drain] {
        world.ok(op::Cordon { worker: "named".into(), change });
        assert_eq!(told(&world, START), (None, None), "{change:?}");
        world.ok(op::Cordon { worker: "named".into(), change: CordonChange::Uncordon });
        assert_eq!(told(&world, START).0, Some(until));
    }
}

#[test]
fn tasks_are_kept_for_no_longer_than_the_setting_says() {
    let kept = |ready_at, wait, now| bloom_core::placement::kept_until(ready_at, wait, now);
    assert_eq!([kept(0, 3_000, 0), kept(0, 3_000, 2_999), kept(0, 3_000, 3_000)], [Some(3_000), Some(3_000), None]);
    // The clock was set back since then, or the time is that of another replica.
    assert_eq!([kept(3_600_000, 3_000, 0), kept(100, 3_000, 0), kept(100, 0, 0)], [None, Some(3_100), None]);
}
