//! Suspending and resuming tasks.

use super::cases::{Case, cases, fail_retryably};
use super::table::{check, check_in};
use bloom_core::command::{Choice, Op, Rejection};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::task::{Outcome, Parked, Session, Status, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_test_world::world::{SESSION_WAIT_MS, START, TTL_MS, World, spec, world};

fn suspend(world: &mut World, task: TaskId) {
    world.ok(op::Suspend { task, suspend: true });
}

fn resume(world: &mut World, task: TaskId) {
    world.ok(op::Suspend { task, suspend: false });
}

fn two_workers() -> World {
    let mut world = world().worker("w1", 4).worker("w2", 4);
    world.strict = true;
    world
}

fn alone(context: &str) -> TaskSpec {
    TaskSpec { session: Session::None, ..spec(context) }
}

#[test]
fn a_suspension() {
    check(
        |case| Op::Suspend(op::Suspend { task: case.task, suspend: true }),
        "
        queued 0/3 parked suspended; task_suspended by admin <- queued | waits for its time | waits in its context | waits for its key
        queued 0/3 parked depends_on; task_suspended by admin <- waits for a dependency
        leased 1/3 on w1 till 300; task_suspended by admin <- leased by a call
        leased 1/3 on w1 till 180; task_suspended by admin <- leased by a claim | leased by a push
        running 1/3 on w1 till 300; task_suspended by admin <- running by a call
        running 1/3 on w1 till 179; task_suspended by admin <- running by a claim | running by a push
        running 1/1 on w1 till 300; task_suspended by admin <- on its last attempt
        leased 1/3 on w1 till 300 cancel; task_suspended by admin <- leased, cancel requested
        running 1/1 on w1 till 300 cancel; task_suspended by admin <- running, cancel requested
        queued 1/3 parked suspended worker_lost; task_suspended by admin <- queued after an expiry
        ✗ Cannot suspend task with status 'dead' <- dead by an expiry | dead after a failure
        queued 1/3 parked suspended agent_error; task_suspended by admin <- waits after a failure
        ✗ Cannot suspend task with status 'completed' <- completed
        ✗ Cannot suspend task with status 'failed' <- failed
        ✗ Cannot suspend task with status 'cancelled' <- cancelled
        queued 0/1 parked suspended; task_suspended by admin <- requeued after death",
    );
}

/// The outcomes of `op` in the states that a suspension changes.
fn check_suspended(op: impl Fn(&mut Case) -> Op, expected: &str) {
    let live = cases().into_iter().filter(|case| !case.world.task(case.task).status.is_final());
    let suspended = live.map(|mut case| {
        suspend(&mut case.world, case.task);
        case
    });
    check_in(suspended, op, expected);
}

#[test]
fn a_resumption() {
    check_suspended(
        |case| Op::Suspend(op::Suspend { task: case.task, suspend: false }),
        "
        queued 0/3; task_resumed by admin <- queued
        queued 0/3 parked depends_on; task_resumed by admin <- waits for a dependency
        queued 0/3 parked not_before; task_resumed by admin <- waits for its time
        queued 0/3 parked session; task_resumed by admin <- waits in its context
        queued 0/3 parked exclusive_key; task_resumed by admin <- waits for its key
        leased 1/3 on w1 till 300; task_resumed by admin <- leased by a call
        leased 1/3 on w1 till 180; task_resumed by admin <- leased by a claim | leased by a push
        running 1/3 on w1 till 300; task_resumed by admin <- running by a call
        running 1/3 on w1 till 179; task_resumed by admin <- running by a claim | running by a push
        running 1/1 on w1 till 300; task_resumed by admin <- on its last attempt
        leased 1/3 on w1 till 300 cancel; task_resumed by admin <- leased, cancel requested
        running 1/1 on w1 till 300 cancel; task_resumed by admin <- running, cancel requested
        queued 1/3 worker_lost; task_resumed by admin <- queued after an expiry
        queued 1/3 parked not_before agent_error; task_resumed by admin <- waits after a failure
        queued 0/1; task_resumed by admin <- requeued after death",
    );
}

#[test]
fn a_lease_call_for_a_suspended_task() {
    check_suspended(
        |case| Op::Lease(op::Lease { task: case.task, choice: Choice::Named("w2".into()), ttl_ms: TTL_MS, origin: Origin::Call }),
        "
        ✗ Task is not ready: suspended <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | queued after an expiry | waits after a failure | requeued after death
        ✗ Task status is 'leased', expected 'queued' <- leased by a call | leased by a claim | leased by a push | leased, cancel requested
        ✗ Task status is 'running', expected 'queued' <- running by a call | running by a claim | running by a push | on its last attempt
            | running, cancel requested",
    );
}

#[test]
fn a_suspended_task_can_be_cancelled() {
    check_suspended(
        |case| Op::Cancel(op::Cancel { task: case.task }),
        "
        cancelled 0/3 cancel; task_cancelled by api <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key
        leased 1/3 on w1 till 300 cancel; task_cancelled by api <- leased by a call
        leased 1/3 on w1 till 180 cancel; task_cancelled by api <- leased by a claim | leased by a push
        running 1/3 on w1 till 300 cancel; task_cancelled by api <- running by a call
        running 1/3 on w1 till 179 cancel; task_cancelled by api <- running by a claim | running by a push
        running 1/1 on w1 till 300 cancel; task_cancelled by api <- on its last attempt
        unchanged <- leased, cancel requested | running, cancel requested
        cancelled 1/3 cancel cancelled; task_cancelled by api <- queued after an expiry | waits after a failure
        cancelled 0/1 cancel; task_cancelled by api <- requeued after death",
    );
}

#[test]
fn claims_and_pushes_of_a_suspended_task_get_nothing() {
    let mut world = two_workers();
    let (task, other) = (world.create(alone("a")), world.create(alone("b")));
    // These are candidates of a claim that was in progress when the task was suspended.
    let late = world.claim_op("w1", 2, None);
    suspend(&mut world, task);
    let claimed = world.ok(late);
    assert_eq!(claimed.leased.iter().map(|task| task.id).collect::<Vec<_>>(), [other]);
    let pushed = world.run(op::Push { task, worker: "w1".into(), ttl_ms: TTL_MS }).unwrap_err();
    assert_eq!(pushed, Rejection::NotReady(Parked::Suspended));
    assert_eq!((world.task(task).check_leasable(), world.task(task).attempts), (Err(pushed), 0));
    resume(&mut world, task);
    assert_eq!(world.claim("w1", 1).len(), 1);
}

#[test]
fn a_run_that_fails_is_queued_suspended_with_its_backoff() {
    let mut world = two_workers();
    let task = world.create(alone("a"));
    world.lease(task, "w1");
    suspend(&mut world, task);
    fail_retryably(&mut world, task);
    let state = world.task(task);
    assert_eq!((state.parked, state.wake_at, state.not_before), (Some(Parked::Suspended), None, Some(START + 60_000)));
    world.check();
    resume(&mut world, task);
    assert_eq!((world.task(task).parked, world.task(task).wake_at), (Some(Parked::NotBefore), Some(START + 60_000)));
    suspend(&mut world, task);
    world.now += 60_000;
    world.do_what_is_due();
    assert_eq!(world.task(task).parked, Some(Parked::Suspended));
    resume(&mut world, task);
    assert_eq!(world.task(task).parked, None);
}

#[test]
fn its_context_waits_behind_it_and_its_key_is_free() {
    let mut world = two_workers();
    let (first, second) = (world.create(TaskSpec { suspend: true, ..spec("c") }), world.create(spec("c")));
    assert_eq!((world.task(first).parked, world.task(second).parked), (Some(Parked::Suspended), Some(Parked::Session)));
    suspend(&mut world, second);
    resume(&mut world, first);
    world.lease(first, "w1");
    world.complete(first, Outcome::Success);
    assert_eq!(world.task(second).parked, Some(Parked::Suspended), "the end of the task before it does not wake it");
    resume(&mut world, second);
    let state = world.task(second);
    assert_eq!((state.parked, state.session_worker.as_deref()), (Some(Parked::Reserved), Some("w1")));
    assert_eq!(state.wake_at, Some(world.now + SESSION_WAIT_MS));
    suspend(&mut world, second);
    assert_eq!((world.task(second).session_worker.as_deref(), world.task(second).ready_at), (None, None));

    // One of the tasks that wait for a key becomes ready, and if that one is suspended, the next one does.
    let keyed = |context| TaskSpec { exclusive_key: Some("k".into()), ..alone(context) };
    let holder = world.create(keyed("d"));
    world.lease(holder, "w1");
    let third = world.create(keyed("e"));
    world.now += 1_000;
    let fourth = world.create(keyed("f"));
    world.complete(holder, Outcome::Success);
    assert_eq!((world.task(third).parked, world.task(fourth).parked), (None, Some(Parked::ExclusiveKey)));
    suspend(&mut world, third);
    assert_eq!((world.task(third).parked, world.task(fourth).parked), (Some(Parked::Suspended), None));
    world.check();
}

#[test]
fn dependencies_are_followed_meanwhile() {
    let mut world = two_workers();
    let on = |tasks: &[TaskId]| TaskSpec { depends_on: tasks.to_vec(), suspend: true, ..alone("b") };
    let (first, other) = (world.create(alone("a")), world.create(alone("a")));
    let (met, failed) = (world.create(on(&[first])), world.create(on(&[first, other])));
    assert_eq!((world.task(met).parked, world.task(met).suspend), (Some(Parked::DependsOn), true));
    assert_eq!(world.task(met).check_leasable(), Err(Rejection::NotReady(Parked::Suspended)));
    world.lease(first, "w1");
    world.complete(first, Outcome::Success);
    assert_eq!((world.task(met).parked, world.task(failed).parked), (Some(Parked::Suspended), Some(Parked::DependsOn)));
    world.ok(op::Cancel { task: other });
    assert_eq!(world.task(failed).status, Status::Cancelled);
    world.ok(op::Delete { task: first });
    resume(&mut world, met);
    assert_eq!((world.task(met).status, world.task(met).parked), (Status::Queued, None), "a dependency that was met once stays met");
}

#[test]
fn a_requeued_task_and_an_edited_one_stay_suspended() {
    let mut world = two_workers();
    let task = world.create(TaskSpec { suspend: true, ..spec("c") });
    world.ok(op::Cancel { task });
    world.ok(op::Requeue { task, limits: LimitChange::default() });
    assert_eq!((world.task(task).parked, world.task(task).suspend), (Some(Parked::Suspended), true));
    for not_before in [Some(world.now + 1_000), None] {
        let (labels, first_labels) = Default::default();
        world.ok(op::Edit { task, priority: Some(9), not_before: Some(not_before), labels, first_labels, limits: LimitChange::default() });
        let state = world.task(task);
        assert_eq!((state.parked, state.wake_at, state.not_before, state.priority), (Some(Parked::Suspended), None, not_before, 9));
    }
    let again = world.ok(op::Create { tasks: vec![TaskSpec { idempotency_key: Some("k".into()), suspend: true, ..spec("d") }] });
    let repeated = world.ok(op::Create { tasks: vec![TaskSpec { idempotency_key: Some("k".into()), ..spec("d") }] });
    assert!(repeated[0].existed && repeated[0].state == again[0].state, "a suspension is no part of what the key compares");
}
