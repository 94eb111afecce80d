//! Cancel, requeue, release, expiry, re-evaluation and the removal of the worker.

use super::cases::Case;
use super::table::check;
use bloom_core::command::{Grace, Op};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task_limits::LimitChange;
use bloom_test_world::world::{spec, world};

#[test]
fn a_cancel() {
    check(
        |case| Op::Cancel(op::Cancel { task: case.task }),
        "
        cancelled 0/3 cancel; task_cancelled by api <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key
        leased 1/3 on w1 till 300 cancel; task_cancelled by api <- leased by a call
        leased 1/3 on w1 till 180 cancel; task_cancelled by api <- leased by a claim | leased by a push
        running 1/3 on w1 till 300 cancel; task_cancelled by api <- running by a call
        running 1/3 on w1 till 179 cancel; task_cancelled by api <- running by a claim | running by a push
        running 1/1 on w1 till 300 cancel; task_cancelled by api <- on its last attempt
        unchanged <- leased, cancel requested | running, cancel requested | cancelled
        cancelled 1/3 cancel cancelled; task_cancelled by api <- queued after an expiry | waits after a failure
        ✗ Cannot cancel task with status 'dead' <- dead by an expiry | dead after a failure
        ✗ Cannot cancel task with status 'completed' <- completed
        ✗ Cannot cancel task with status 'failed' <- failed
        cancelled 0/1 cancel; task_cancelled by api <- requeued after death",
    );
}

#[test]
fn a_requeue() {
    check(
        |case| Op::Requeue(op::Requeue { task: case.task, limits: LimitChange::default() }),
        "
        ✗ Cannot requeue task with status 'queued' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | queued after an expiry | waits after a failure | requeued after death
        ✗ Cannot requeue task with status 'leased' <- leased by a call | leased by a claim | leased by a push | leased, cancel requested
        ✗ Cannot requeue task with status 'running' <- running by a call | running by a claim | running by a push | on its last attempt
            | running, cancel requested
        queued 0/1; task_requeued by admin <- dead by an expiry
        queued 0/1 parked reserved; task_requeued by admin <- dead after a failure
        ✗ Cannot requeue task with status 'completed' <- completed
        queued 0/3 parked reserved; task_requeued by admin <- failed
        queued 0/3; task_requeued by admin <- cancelled",
    );
}

#[test]
fn a_release_of_the_lease() {
    check(
        |case| Op::Release(op::Release { task: case.task, lease: case.lease_or_none(), reason: "shutdown".into() }),
        "
        ✗ Lease not found or already expired <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure
            | completed | failed | cancelled | requeued after death
        queued 0/3 1 back worker_lost; lease released; task_released by w1 <- leased by a call | leased by a claim | leased by a push
            | running by a call | running by a claim | running by a push
        queued 0/1 1 back worker_lost; lease released; task_released by w1 <- on its last attempt
        cancelled 0/3 1 back cancel cancelled; lease released; task_released by w1, task_cancelled by w1
            <- leased, cancel requested
        cancelled 0/1 1 back cancel cancelled; lease released; task_released by w1, task_cancelled by w1
            <- running, cancel requested",
    );
}

#[test]
fn a_release_of_another_lease() {
    check(
        |case| Op::Release(op::Release { task: case.task, lease: Case::no_lease(), reason: "shutdown".into() }),
        "
        ✗ Lease not found or already expired <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure
            | completed | failed | cancelled | requeued after death
        ✗ Lease 'unknown' is not the task's active lease <- leased by a call | leased by a claim | leased by a push | running by a call
            | running by a claim | running by a push | on its last attempt | leased, cancel requested | running, cancel requested",
    );
}

#[test]
fn the_end_of_a_lease_that_is_due() {
    check(
        |case| {
            case.world.now += 3_600_000;
            Op::ExpireLease(op::ExpireLease { task: case.task, lease: case.lease_or_none(), grace: Grace::default() })
        },
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure | completed | failed
            | cancelled | requeued after death
        queued 1/3 worker_lost; lease expired; lease_expired by reconciler <- leased by a call | running by a call
            | running by a claim | running by a push
        queued 0/3 1 back worker_lost; lease expired; lease_expired by reconciler <- leased by a claim | leased by a push
        dead 1/1 worker_lost; lease expired; lease_expired by reconciler, task_dead by reconciler <- on its last attempt
        cancelled 1/3 cancel cancelled; lease expired; lease_expired by reconciler, task_cancelled by reconciler
            <- leased, cancel requested
        cancelled 1/1 cancel cancelled; lease expired; lease_expired by reconciler, task_cancelled by reconciler
            <- running, cancel requested",
    );
}

#[test]
fn the_end_of_a_lease_that_is_not_due() {
    check(
        |case| Op::ExpireLease(op::ExpireLease { task: case.task, lease: case.lease_or_none(), grace: Grace::default() }),
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure | completed | failed
            | cancelled | requeued after death
        not due; unchanged <- leased by a call | leased by a claim | leased by a push | running by a claim | running by a push
            | leased, cancel requested
        not due; running 1/3 on w1 till 300 <- running by a call
        not due; running 1/1 on w1 till 300 <- on its last attempt
        not due; running 1/1 on w1 till 300 cancel <- running, cancel requested",
    );
}

#[test]
fn the_end_of_another_lease() {
    check(
        |case| {
            case.world.now += 3_600_000;
            Op::ExpireLease(op::ExpireLease { task: case.task, lease: Case::no_lease(), grace: Grace::default() })
        },
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | leased by a call | leased by a claim | leased by a push | running by a call | running by a claim | running by a push
            | on its last attempt
            | leased, cancel requested | running, cancel requested | queued after an expiry | dead by an expiry
            | waits after a failure | dead after a failure | completed | failed | cancelled | requeued after death",
    );
}

#[test]
fn another_look() {
    check(
        |case| Op::Reevaluate(op::Reevaluate { tasks: vec![case.task], progress: None }),
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | leased by a call | leased by a claim | leased by a push | running by a call | running by a claim | running by a push
            | on its last attempt
            | leased, cancel requested | running, cancel requested | queued after an expiry | dead by an expiry
            | waits after a failure | dead after a failure | completed | failed | cancelled | requeued after death",
    );
}

#[test]
fn another_look_when_time_has_passed() {
    check(
        |case| {
            case.world.now += 3_600_000;
            Op::Reevaluate(op::Reevaluate { tasks: vec![case.task], progress: None })
        },
        "
        unchanged <- queued | waits for a dependency | waits in its context | waits for its key | leased by a call
            | leased by a claim | leased by a push | running by a call | running by a claim | running by a push | on its last attempt
            | leased, cancel requested
            | running, cancel requested | queued after an expiry | dead by an expiry | dead after a failure | completed | failed
            | cancelled | requeued after death
        queued 0/3 <- waits for its time
        queued 1/3 parked reserved agent_error <- waits after a failure",
    );
}

#[test]
fn the_end_of_a_lease_that_is_due_after_an_outage() {
    check(
        |case| {
            case.world.now += 3_600_000;
            let grace = Grace { resumed_at: case.world.now, grace_ms: 10_000, ..Grace::default() };
            Op::ExpireLease(op::ExpireLease { task: case.task, lease: case.lease_or_none(), grace })
        },
        "
        unchanged <- queued | waits for a dependency | waits for its time | waits in its context | waits for its key
            | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure | completed | failed
            | cancelled | requeued after death
        not due; leased 1/3 on w1 till -3300 <- leased by a call
        not due; leased 1/3 on w1 till -3420 <- leased by a claim | leased by a push
        not due; running 1/3 on w1 till -3300 <- running by a call
        not due; running 1/3 on w1 till -3421 <- running by a claim | running by a push
        not due; running 1/1 on w1 till -3300 <- on its last attempt
        not due; leased 1/3 on w1 till -3300 cancel <- leased, cancel requested
        not due; running 1/1 on w1 till -3300 cancel <- running, cancel requested",
    );
}

#[test]
fn the_removal_of_its_worker() {
    check(
        |_| Op::RemoveWorker(op::RemoveWorker { worker: "w1".into() }),
        "
        queued 0/3; worker_removed by admin <- queued
        queued 0/3 parked depends_on; worker_removed by admin <- waits for a dependency
        queued 0/3 parked not_before; worker_removed by admin <- waits for its time
        queued 0/3 parked session; worker_removed by admin <- waits in its context
        queued 0/3 parked exclusive_key; worker_removed by admin <- waits for its key
        queued 0/3 1 back worker_lost; lease failed; task_released by admin, worker_removed by admin <- leased by a call
            | leased by a claim | leased by a push | running by a call | running by a claim | running by a push
        queued 0/1 1 back worker_lost; lease failed; task_released by admin, worker_removed by admin <- on its last attempt
        cancelled 0/3 1 back cancel cancelled; lease failed; task_released by admin, task_cancelled by admin, worker_removed by admin
            <- leased, cancel requested
        cancelled 0/1 1 back cancel cancelled; lease failed; task_released by admin, task_cancelled by admin, worker_removed by admin
            <- running, cancel requested
        queued 1/3 worker_lost; worker_removed by admin <- queued after an expiry
        dead 1/1 worker_lost; worker_removed by admin <- dead by an expiry
        queued 1/3 parked not_before agent_error; worker_removed by admin <- waits after a failure
        dead 1/1 agent_error; worker_removed by admin <- dead after a failure
        completed 1/3; worker_removed by admin <- completed
        failed 1/3 agent_error; worker_removed by admin <- failed
        cancelled 0/3 cancel; worker_removed by admin <- cancelled
        queued 0/1; worker_removed by admin <- requeued after death",
    );
}

#[test]
fn unknown_tasks() {
    let unknown = Case::no_lease();
    let holder = bloom_core::command::Holder::default;
    let said =
        |op: Op| super::cases::cases().remove(0).world.run(op).map(|_| "done".to_owned()).unwrap_or_else(|rejection| rejection.to_string());
    assert_eq!(said(Op::Cancel(op::Cancel { task: unknown })), "Task not found");
    assert_eq!(said(Op::Requeue(op::Requeue { task: unknown, limits: LimitChange::default() })), "Task not found");
    assert_eq!(said(Op::Release(op::Release { task: unknown, lease: unknown, reason: String::new() })), "Task not found");
    assert_eq!(
        said(Op::AppendEvents(op::AppendEvents { task: unknown, lease: unknown, worker: None, events: Vec::new() })),
        "Task not found"
    );
    assert_eq!(said(Op::Heartbeat(op::Heartbeat { task: unknown, holder: holder() })), "Task or lease not found");
    assert_eq!(said(Op::ExpireLease(op::ExpireLease { task: unknown, lease: unknown, grace: Grace::default() })), "done");
    assert_eq!(said(Op::Reevaluate(op::Reevaluate { tasks: vec![unknown], progress: None })), "done");
}

#[test]
fn of_tasks_of_a_context_that_are_queued_again_together_only_the_first_is_ready() {
    let mut world = world();
    world.strict = true;
    let tasks: Vec<TaskId> = (0..4).map(|_| world.create(spec("c"))).collect();
    let requeue = |task: &TaskId| Op::Requeue(op::Requeue { task: *task, limits: LimitChange::default() });
    for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
        for task in &tasks {
            world.ok(op::Cancel { task: *task });
        }
        // The state that other commands see before the wake-ups are processed.
        world.crashing = true;
        world.run_batch(order.iter().map(|at| requeue(&tasks[*at])).collect());
        let ready: Vec<bool> = tasks.iter().map(|task| world.task(*task).is_ready()).collect();
        assert_eq!(ready, [true, false, false, false], "{order:?}");
        world.process_wakeups();
    }
}
