//! Dispatch calls, pushes of the leader, and the end of a push that failed.

use super::cases::Case;
use super::table::check;
use bloom_core::command::{Choice, Op, PushEnd, Rejection, WorkerChange};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::reply::Pushed;
use bloom_core::task::{Outcome, Parked, Session, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_core::worker::DispatchMode;
use bloom_test_world::world::{TTL_MS, World, registration, spec, world};

#[test]
fn a_dispatch_call() {
    check(
        |case| Op::Lease(op::Lease { task: case.task, choice: Choice::Named("w2".into()), ttl_ms: TTL_MS, origin: Origin::Dispatch }),
        "
        leased 1/3 on w2 till 180; task_leased by router, task_dispatched by router <- queued | waits in its context
        ✗ Task is not ready: depends_on <- waits for a dependency
        ✗ Task is not ready: not_before <- waits for its time | waits after a failure
        ✗ Task is not ready: exclusive_key <- waits for its key
        ✗ Task status is 'leased', expected 'queued' <- leased by a call | leased by a claim | leased by a push | leased, cancel requested
        ✗ Task status is 'running', expected 'queued' <- running by a call | running by a claim | running by a push
            | on its last attempt | running, cancel requested
        leased 2/3 on w2 till 180 worker_lost; task_leased by router, task_dispatched by router <- queued after an expiry
        ✗ Task status is 'dead', expected 'queued' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'queued' <- completed
        ✗ Task status is 'failed', expected 'queued' <- failed
        ✗ Task status is 'cancelled', expected 'queued' <- cancelled
        leased 1/1 on w2 till 180; task_leased by router, task_dispatched by router <- requeued after death",
    );
}

#[test]
fn a_push() {
    check(
        |case| Op::Push(op::Push { task: case.task, worker: "w2".into(), ttl_ms: TTL_MS }),
        "
        leased 1/3 on w2 till 180; task_leased by reconciler, task_dispatched by reconciler <- queued
        ✗ Task is not ready: depends_on <- waits for a dependency
        ✗ Task is not ready: not_before <- waits for its time | waits after a failure
        ✗ Task is not ready: session <- waits in its context
        ✗ Task is not ready: exclusive_key <- waits for its key
        ✗ Task status is 'leased', expected 'queued' <- leased by a call | leased by a claim | leased by a push | leased, cancel requested
        ✗ Task status is 'running', expected 'queued' <- running by a call | running by a claim | running by a push
            | on its last attempt | running, cancel requested
        leased 2/3 on w2 till 180 worker_lost; task_leased by reconciler, task_dispatched by reconciler <- queued after an expiry
        ✗ Task status is 'dead', expected 'queued' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'queued' <- completed
        ✗ Task status is 'failed', expected 'queued' <- failed
        ✗ Task status is 'cancelled', expected 'queued' <- cancelled
        leased 1/1 on w2 till 180; task_leased by reconciler, task_dispatched by reconciler <- requeued after death",
    );
}

fn end(case: &Case, end: PushEnd) -> Op {
    Op::EndPush(op::EndPush { task: case.task, lease: case.lease_or_none(), end })
}

fn undelivered(unless_running: bool) -> PushEnd {
    PushEnd::Undelivered { message: "no answer".into(), unless_running }
}

#[test]
fn a_refusal() {
    check(
        |case| end(case, PushEnd::Refused { message: "no".into() }),
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure | completed | failed
            | cancelled | requeued after death
        failed 1/3 agent_error; lease failed; dispatch_failed by router <- leased by a call | running by a call
        failed 1/3 agent_error; lease failed; dispatch_failed by reconciler <- leased by a claim | leased by a push
            | running by a claim | running by a push
        failed 1/1 agent_error; lease failed; dispatch_failed by router <- on its last attempt
        cancelled 1/3 cancel cancelled; lease failed; dispatch_failed by router, task_cancelled by router <- leased, cancel requested
        cancelled 1/1 cancel cancelled; lease failed; dispatch_failed by router, task_cancelled by router <- running, cancel requested",
    );
}

#[test]
fn a_push_that_did_not_arrive() {
    check(
        |case| end(case, undelivered(false)),
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure | completed | failed
            | cancelled | requeued after death
        queued 0/3 1 back worker_lost; lease failed; dispatch_failed by router <- leased by a call | running by a call
        queued 0/3 1 back worker_lost; lease failed; dispatch_failed by reconciler <- leased by a claim | leased by a push
            | running by a claim | running by a push
        queued 0/1 1 back worker_lost; lease failed; dispatch_failed by router <- on its last attempt
        cancelled 0/3 1 back cancel cancelled; lease failed; dispatch_failed by router, task_cancelled by router <- leased, cancel requested
        cancelled 0/1 1 back cancel cancelled; lease failed; dispatch_failed by router, task_cancelled by router <- running, cancel requested",
    );
}

#[test]
fn a_push_whose_answer_did_not_arrive() {
    check(
        |case| end(case, undelivered(true)),
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | running by a call | running by a claim | running by a push | on its last attempt | running, cancel requested
            | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure | completed | failed
            | cancelled | requeued after death
        queued 0/3 1 back worker_lost; lease failed; dispatch_failed by router <- leased by a call
        queued 0/3 1 back worker_lost; lease failed; dispatch_failed by reconciler <- leased by a claim | leased by a push
        cancelled 0/3 1 back cancel cancelled; lease failed; dispatch_failed by router, task_cancelled by router <- leased, cancel requested",
    );
}

#[test]
fn an_attempt_is_given_back_twenty_times() {
    let mut world = world().worker("w", 1);
    let task = world.create(spec("c"));
    for n in 1..=20 {
        let lease = world.push(task, "w");
        world.ok(op::EndPush { task, lease, end: undelivered(false) });
        assert_eq!((world.task(task).attempts, world.task(task).infra_retries), (0, n));
    }
    let lease = world.push(task, "w");
    world.ok(op::EndPush { task, lease, end: undelivered(false) });
    assert_eq!(world.task(task).status.as_str(), "dead");
}

fn without_url(name: &str) -> WorkerChange {
    WorkerChange { url: Some(String::new()), ..registration(name, 1) }
}

fn dispatch(world: &mut World, task: TaskId, worker: Option<&str>) -> Result<String, Rejection> {
    let choice = match worker {
        Some(worker) => Choice::Named(worker.into()),
        None => Choice::Among { workers: Vec::new(), context: None },
    };
    world.run(op::Lease { task, choice, ttl_ms: TTL_MS, origin: Origin::Dispatch }).map(|leased| leased.worker.id)
}

#[test]
fn a_dispatch_call_needs_a_worker_with_a_url() {
    let mut world = world();
    world.strict = true;
    let task = world.create(spec("c"));
    assert_eq!(dispatch(&mut world, task, None), Err(Rejection::NoWorker));
    world.ok(without_url("a"));
    assert_eq!(dispatch(&mut world, task, Some("a")), Err(Rejection::NoUrl("a".into())));
    assert_eq!(dispatch(&mut world, task, None), Err(Rejection::NoUrl("a".into())));
    let mut world = world.worker("b", 1);
    assert_eq!(dispatch(&mut world, task, None).as_deref(), Ok("b"));
    let other = world.create(spec("d"));
    assert_eq!(dispatch(&mut world, other, Some("b")), Err(Rejection::NoWorker));
    assert_eq!(dispatch(&mut world, other, None), Err(Rejection::NoUrl("a".into())), "it is the only worker with a free slot");
}

#[test]
fn only_workers_that_are_pushed_to_are() {
    let push = |change: WorkerChange| {
        let mut world = world();
        world.strict = true;
        world.ok(change);
        let task = world.create(spec("c"));
        world.run(op::Push { task, worker: "w".into(), ttl_ms: TTL_MS }).map(|_| ())
    };
    assert_eq!(push(registration("w", 1)), Ok(()));
    assert_eq!(push(without_url("w")), Err(Rejection::NoWorker));
    assert_eq!(push(WorkerChange { dispatch: Some(DispatchMode::Manual), ..registration("w", 1) }), Err(Rejection::NoWorker));
    assert_eq!(push(WorkerChange { claude_cli: Some(false), ..registration("w", 1) }), Err(Rejection::NoWorker));
    assert_eq!(push(WorkerChange { agents: Some(Some(vec!["writer".into()])), ..registration("w", 1) }), Err(Rejection::NoWorker));
}

#[test]
fn a_push_goes_to_the_contexts_worker() {
    let mut world = world().worker("a", 1).worker("b", 2);
    for session in [Session::Context, Session::None] {
        let new = || TaskSpec { session, ..spec("c") };
        let first = world.create(new());
        world.push(first, "a");
        world.complete(first, Outcome::Success);
        let second = world.create(new());
        if session == Session::Context {
            let elsewhere = world.run(op::Push { task: second, worker: "b".into(), ttl_ms: TTL_MS });
            assert_eq!(elsewhere.unwrap_err(), Rejection::NotReady(Parked::Reserved));
            world.push(second, "a");
        } else {
            world.push(second, "b");
        }
        assert_eq!(world.task(second).lease.as_ref().unwrap().worker_id, "a", "{session}");
        world.complete(second, Outcome::Success);
    }
}

#[test]
fn a_push_that_finds_its_context_taken_waits() {
    let mut world = world().worker("a", 2);
    world.strict = true;
    let first = world.create(spec("c"));
    let second = world.create(spec("c"));
    world.push(first, "a");
    world.complete(first, Outcome::Error);
    // The wake-up that would park the second task behind the requeued first one is not processed.
    world.crashing = true;
    world.ok(op::Requeue { task: first, limits: LimitChange::default() });
    world.push(first, "a");
    match world.run(op::Push { task: second, worker: "a".into(), ttl_ms: TTL_MS }) {
        Ok(Pushed::Parked(task)) => assert_eq!(task.parked, Some(Parked::Session)),
        other => panic!("{other:?}"),
    }
    world.complete(first, Outcome::Success);
    world.push(second, "a");
}
