//! Why tasks are parked, and which events make them ready.

use bloom_core::command::Completion;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::task::{Outcome, Parked, Session, Status, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_test_world::world::{START, World, completion, spec, world};

fn two_workers() -> World {
    let mut world = world().worker("w1", 4).worker("w2", 4);
    world.strict = true;
    world
}

fn after(dependencies: &[TaskId], context: &str) -> TaskSpec {
    TaskSpec { depends_on: dependencies.to_vec(), ..spec(context) }
}

fn run_to_the_end(world: &mut World, task: TaskId, end: Outcome) {
    world.lease(task, "w1");
    world.complete(task, end);
}

/// Why the task is parked; a reserved task counts as not parked.
fn parked(world: &World, task: TaskId) -> Option<Parked> {
    assert_eq!(world.task(task).status, Status::Queued);
    world.task(task).parked.filter(|parked| *parked != Parked::Reserved)
}

#[test]
fn dependencies_are_waited_for_one_and_all() {
    let mut world = two_workers();
    let (a, b) = (world.create(spec("a")), world.create(spec("b")));
    let both = world.create(after(&[a, b], "c"));
    run_to_the_end(&mut world, b, Outcome::Success);
    assert_eq!(parked(&world, both), Some(Parked::DependsOn));
    run_to_the_end(&mut world, a, Outcome::Success);
    assert_eq!(parked(&world, both), None);
    let late = world.create(after(&[a], "d"));
    assert_eq!(parked(&world, late), None, "its dependency had completed before");
}

#[test]
fn a_dependency_that_ends_otherwise_cancels_all_that_follows() {
    for end in [
        |world: &mut World, task| run_to_the_end(world, task, Outcome::Error),
        |world: &mut World, task| drop(world.ok(op::Cancel { task })),
    ] {
        let mut world = two_workers();
        let first = world.create(spec("a"));
        let second = world.create(after(&[first], "b"));
        let third = world.create(after(&[second], "c"));
        end(&mut world, first);
        for task in [second, third] {
            let task = world.task(task);
            let failure = task.failure.as_ref().map(|failure| failure.reason.as_str());
            assert_eq!((task.status, failure, task.attempts), (Status::Cancelled, Some("dependency_failed"), 0));
        }
        let late = world.create(after(&[first], "d"));
        assert_eq!(world.task(late).status, Status::Cancelled);
        world.check();
    }
}

#[test]
fn a_task_that_has_run_needs_its_dependency_no_more() {
    let mut world = two_workers();
    let first = world.create(spec("a"));
    let second = world.create(after(&[first], "b"));
    run_to_the_end(&mut world, first, Outcome::Success);
    run_to_the_end(&mut world, second, Outcome::Error);
    // Retention removes a dependency once no queued task waits for it.
    world.db.tasks.remove(&first);
    world.ok(op::Requeue { task: second, limits: LimitChange::default() });
    assert_eq!(parked(&world, second), None);
}

#[test]
fn tasks_of_a_session_run_in_order() {
    let mut world = two_workers();
    let tasks = ["c", "c", "c"].map(|context| world.create(spec(context)));
    let alone = world.create(TaskSpec { session: Session::None, ..spec("c") });
    assert_eq!(tasks.map(|task| parked(&world, task)), [None, Some(Parked::Session), Some(Parked::Session)]);
    assert_eq!(parked(&world, alone), None);
    for (i, task) in tasks.into_iter().enumerate() {
        world.now += 1;
        let leased: Vec<TaskId> = world.claim("w1", 9).into_iter().map(|task| task.id).filter(|id| *id != alone).collect();
        assert_eq!(leased, [task], "number {i}");
        let done = Completion { session_id: Some(format!("s{i}")), ..completion(task, Some(world.lease_of(task)), Outcome::Success) };
        world.ok(done);
        if let Some(next) = tasks.get(i + 1) {
            let next = world.task(*next);
            assert_eq!((next.session_worker.as_deref(), next.session_id.clone()), (Some("w1"), Some(format!("s{i}"))));
        }
    }
}

#[test]
fn the_end_of_a_task_in_the_middle_leaves_its_successor_behind_its_predecessor() {
    let mut world = two_workers();
    let first = world.create(spec("c"));
    // It is parked for its time, so the first task has no flag that says that another one waits for it.
    let middle = world.create(TaskSpec { not_before: Some(START + 60_000), ..spec("c") });
    let last = world.create(spec("c"));
    world.ok(op::Cancel { task: middle });
    assert_eq!(parked(&world, last), Some(Parked::Session));
    run_to_the_end(&mut world, first, Outcome::Success);
    assert_eq!(parked(&world, last), None);
}

#[test]
fn a_requeued_task_stands_before_later_ones_again() {
    let mut world = two_workers();
    let [first, second, third] = ["c", "c", "c"].map(|context| world.create(spec(context)));
    run_to_the_end(&mut world, first, Outcome::Error);
    world.claim("w1", 1);
    world.ok(op::Requeue { task: first, limits: LimitChange::default() });
    assert_eq!(parked(&world, first), Some(Parked::Session), "the second task runs");
    world.complete(second, Outcome::Success);
    assert_eq!((parked(&world, first), parked(&world, third)), (None, Some(Parked::Session)));
    run_to_the_end(&mut world, first, Outcome::Success);
    assert_eq!(parked(&world, third), None);
}

#[test]
fn whoever_is_parked_behind_a_task_that_ends_in_the_same_look_is_looked_at_again() {
    let mut world = two_workers();
    let dependency = world.create(spec("a"));
    let first = world.create(after(&[dependency], "c"));
    let second = world.create(TaskSpec { not_before: Some(START + 60_000), ..spec("c") });
    // The process dies before the dependents learn that the dependency failed.
    world.lease(dependency, "w1");
    world.crashing = true;
    world.complete(dependency, Outcome::Error);
    world.now = START + 60_000;
    world.ok(op::Reevaluate { tasks: vec![first, second], progress: None });
    assert_eq!(world.task(first).status, Status::Cancelled);
    assert_eq!(parked(&world, second), None);
}

#[test]
fn an_exclusive_key_is_held_by_one_run() {
    let mut world = two_workers();
    let keyed = |context: &str, priority| TaskSpec { exclusive_key: Some("k".into()), priority, ..spec(context) };
    let [low, high] = [keyed("a", 1), keyed("b", 9)].map(|spec| world.create(spec));
    // Both are ready: the claim leases the more urgent one and parks the other.
    let leased: Vec<TaskId> = world.claim("w1", 9).into_iter().map(|task| task.id).collect();
    assert_eq!(leased, [high]);
    assert_eq!(parked(&world, low), Some(Parked::ExclusiveKey));
    let third = world.create(keyed("c", 5));
    assert_eq!(parked(&world, third), Some(Parked::ExclusiveKey));
    world.expire(high);
    let waits = Some(Parked::ExclusiveKey);
    assert_eq!([low, high, third].map(|task| parked(&world, task)), [waits, None, None], "the free key goes to one of the waiting tasks");
    for next in [high, third, low] {
        assert_eq!(world.claim("w1", 9).into_iter().map(|task| task.id).collect::<Vec<_>>(), [next]);
        world.complete(next, Outcome::Success);
    }
}

#[test]
fn a_retry_waits_for_its_time_and_then_goes_on() {
    let mut world = two_workers();
    let task = world.create(spec("c"));
    world.lease(task, "w1");
    super::cases::fail_retryably(&mut world, task);
    assert_eq!(parked(&world, task), Some(Parked::NotBefore));
    assert!(world.next_deadline());
    assert_eq!((parked(&world, task), world.now), (None, START + 60_000));
    assert_eq!(world.task(task).session_worker.as_deref(), Some("w1"), "its session is on w1");
}

#[test]
fn attempts_are_given_back_twenty_times_then_it_is_dead() {
    let mut world = two_workers();
    let task = world.create(TaskSpec { max_attempts: 2, ..spec("c") });
    for given_back in 1..=20 {
        let lease = world.lease(task, "w1");
        world.ok(op::Release { task, lease, reason: "shutdown".into() });
        let state = world.task(task);
        assert_eq!((state.status, state.attempts, state.infra_retries), (Status::Queued, 0, given_back));
    }
    let lease = world.lease(task, "w1");
    world.ok(op::Release { task, lease, reason: "shutdown".into() });
    assert_eq!(world.task(task).status, Status::Dead);
    world.ok(op::Requeue { task, limits: LimitChange::default() });
    assert_eq!((world.task(task).attempts, world.task(task).infra_retries), (0, 0));
}

#[test]
fn a_call_makes_all_its_tasks_or_none() {
    let mut world = two_workers();
    let good = spec("a");
    let unknown = after(&[LeaseId::max()], "b");
    let before = world.db.clone();
    let refused = world.run(op::Create { tasks: vec![good.clone(), unknown] });
    assert!(refused.is_err_and(|rejection| rejection.to_string().starts_with("unknown task")));
    assert_eq!(before, world.db);

    let keyed = |prompt: &str| TaskSpec { idempotency_key: Some("once".into()), prompt: prompt.into(), ..spec("a") };
    let refused = world.run(op::Create { tasks: vec![keyed("one"), keyed("two")] });
    assert!(refused.is_err());
    let made = world.ok(op::Create { tasks: vec![keyed("one"), good, keyed("one")] });
    assert_eq!(made.iter().map(|task| task.existed).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!((made[0].spec.id, world.db.tasks.len()), (made[2].spec.id, 2));
    assert!(world.run(op::Create { tasks: vec![keyed("two")] }).is_err());
}
