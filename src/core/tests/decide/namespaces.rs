//! Tasks of Kubernetes objects: each is created once, namespaces share no names, and workers that name namespaces get only their tasks.

use bloom_core::command::{Choice, Claim, Rejection, WorkerChange};
use bloom_core::ids::TaskId;
use bloom_core::namespace::{KubernetesObject, qualified};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::task::TaskSpec;
use bloom_test_world::world::{TTL_MS, World, registration, spec, world};
use uuid::Uuid;

pub fn of_object(namespace: &str, uid: u128, context: &str) -> TaskSpec {
    let object = KubernetesObject { namespace: namespace.into(), name: format!("object-{uid}"), uid: Uuid::from_u128(uid) };
    TaskSpec { object: Some(object), ..spec(&qualified(namespace, context)) }
}

fn refused(world: &mut World, task: TaskSpec) -> String {
    let before = world.db.clone();
    let refused = world.run(op::Create { tasks: vec![spec("good"), task] }).unwrap_err().to_string();
    assert_eq!(before, world.db);
    refused
}

#[test]
fn an_object_has_one_task() {
    let mut world = world().worker("w1", 4);
    world.strict = true;
    let made = world.ok(op::Create { tasks: vec![of_object("a", 1, "c"), of_object("a", 2, "c"), of_object("a", 1, "c")] });
    assert_eq!(made.iter().map(|task| task.existed).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(made[0].spec.id, made[2].spec.id);
    // The object is the same, whatever was edited since.
    let edited = TaskSpec { prompt: "other".into(), ..of_object("a", 1, "c") };
    let again = world.ok(op::Create { tasks: vec![edited] });
    assert!(again[0].existed && again[0].spec.id == made[0].spec.id);
    assert_eq!(world.db.tasks.len(), 2);
}

#[test]
fn no_task_enters_another_namespace() {
    let mut world = world().worker("w1", 4);
    world.strict = true;
    let inside = || qualified("a", "c");
    for task in [
        spec(&inside()),
        TaskSpec { exclusive_key: Some(inside()), ..spec("c") },
        TaskSpec { idempotency_key: Some(inside()), ..spec("c") },
        TaskSpec { context_id: "c".into(), ..of_object("a", 1, "c") },
        TaskSpec { context_id: qualified("b", "c"), ..of_object("a", 1, "c") },
        // `a` is not the namespace `ab`, and a name in it may contain anything.
        TaskSpec { context_id: qualified("ab", "c"), ..of_object("a", 1, "c") },
        TaskSpec { exclusive_key: Some("k".into()), ..of_object("a", 1, "c") },
    ] {
        assert!(refused(&mut world, task).contains("must not begin with 'namespace:'"));
    }
    world.ok(op::Create { tasks: vec![of_object("a", 1, "b/../namespace:b/c"), spec("a/c"), spec("the namespace:a/c")] });
}

/// A registration of a worker that serves only these namespaces.
fn serving(worker: &str, namespaces: &[&str]) -> WorkerChange {
    WorkerChange { namespaces: Some(namespaces.iter().map(|&name| name.to_owned()).collect()), ..registration(worker, 4) }
}

/// The workers that get the task by a claim, by a lease call that names them, and by a push.
pub fn takers(world: &World, task: TaskId) -> Vec<String> {
    let workers = world.db.workers.keys().cloned();
    let gets = |worker: &String| {
        let claim = Claim { worker: worker.clone(), candidates: vec![task], max: 1, held: None, instance: None, ttl_ms: TTL_MS };
        let claimed = world.clone().ok(claim);
        let is_leased = !claimed.leased.is_empty();
        assert_eq!(claimed.missed, usize::from(!is_leased));
        let call = op::Lease { task, choice: Choice::Named(worker.clone()), ttl_ms: TTL_MS, origin: Origin::Call };
        let push = op::Push { task, worker: worker.clone(), ttl_ms: TTL_MS };
        let answers = [world.clone().run(call).map(drop), world.clone().run(push).map(drop)];
        let expected = if is_leased { Ok(()) } else { Err(Rejection::NoWorker) };
        assert!(answers.iter().all(|answer| *answer == expected), "{worker}: {answers:?}");
        is_leased
    };
    workers.filter(gets).collect()
}

#[test]
fn a_worker_that_names_namespaces_gets_only_their_tasks() {
    let mut world = world().worker("all", 1);
    world.strict = true;
    world.ok(serving("a", &["a"]));
    world.ok(serving("both", &["b", "a"]));
    world.ok(serving("none", &[]));
    let [of_a, of_b, of_c] = [("a", 1), ("b", 2), ("c", 3)].map(|(namespace, uid)| world.create(of_object(namespace, uid, "c")));
    let of_http = world.create(spec("http"));
    assert_eq!(takers(&world, of_a), ["a", "all", "both"]);
    assert_eq!(takers(&world, of_b), ["all", "both"]);
    assert_eq!(takers(&world, of_c), ["all"]);
    assert_eq!(takers(&world, of_http), ["all"]);
    // The choice among all workers obeys it, too.
    for task in [of_a, of_b, of_c, of_http] {
        let mut world = world.clone();
        let suited = takers(&world, task);
        let choice = Choice::Among { workers: vec!["none".into(), "a".into()], context: None };
        let leased = world.ok(op::Lease { task, choice, ttl_ms: TTL_MS, origin: Origin::Call });
        assert!(suited.contains(&leased.worker.id), "{} of {suited:?}", leased.worker.id);
    }
}

#[test]
fn a_registration_changes_the_namespaces_only_if_it_names_some() {
    let mut world = world();
    let served = |world: &World| world.db.workers["w"].capabilities.namespaces.clone();
    world.ok(serving("w", &["a"]));
    world.ok(registration("w", 4));
    assert_eq!(served(&world), Some(vec!["a".to_owned()]));
    world.ok(serving("w", &["b"]));
    assert_eq!(served(&world), Some(vec!["b".to_owned()]));
}

#[test]
fn a_worker_serves_so_many_pairs_of_a_namespace_and_an_agent() {
    let names = |number: usize| Some((0..number).map(|n| format!("n{n}")).collect::<Vec<_>>());
    let register = |agents: Option<Vec<String>>, namespaces| {
        let mut world = world();
        world
            .run(WorkerChange { agents: Some(agents), namespaces, ..registration("w", 4) })
            .map(|_| ())
            .inspect_err(|_| assert!(world.db.workers.is_empty()))
    };
    assert_eq!(register(names(512), None), Ok(()));
    assert_eq!(register(None, names(512)), Ok(()));
    assert_eq!(register(names(32), names(16)), Ok(()));
    assert_eq!(register(names(512), names(0)), Ok(()));
    assert_eq!(register(names(27), names(19)), Err(Rejection::TooManyCombinations(513)));
    let mut world = world();
    world.ok(WorkerChange { agents: Some(names(512)), ..registration("w", 4) });
    assert_eq!(world.run(serving("w", &["a", "b"])).unwrap_err(), Rejection::TooManyCombinations(1024));
}
