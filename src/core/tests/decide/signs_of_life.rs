//! Heartbeats, renewals and events.

use super::cases::Case;
use super::table::check;
use bloom_core::command::{Holder, NewEvent, Op};
use bloom_core::event::EventKind;
use bloom_core::op;

fn heartbeat(case: &mut Case, holder: Holder) -> Op {
    case.world.now += 1_000;
    Op::Heartbeat(op::Heartbeat { task: case.task, holder })
}

#[test]
fn a_heartbeat_that_names_nobody() {
    check(
        |case| heartbeat(case, Holder::default()),
        "
        ✗ Task or lease not found <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | cancelled
        running 1/3 on w1 till 300 <- leased by a call | running by a call
        running 1/3 on w1 till 179 <- leased by a claim | leased by a push
        running 1/3 on w1 till 178 <- running by a claim | running by a push
        running 1/1 on w1 till 300 <- on its last attempt
        running 1/3 on w1 till 300 cancel <- leased, cancel requested
        running 1/1 on w1 till 300 cancel <- running, cancel requested
        ✗ Lease not found or already expired <- queued after an expiry | dead by an expiry | waits after a failure
            | dead after a failure | completed | failed | requeued after death",
    );
}

#[test]
fn a_heartbeat_of_the_lease() {
    check(
        |case| {
            let lease = case.lease;
            heartbeat(case, Holder { lease, worker: Some("w1".into()) })
        },
        "
        ✗ Task or lease not found <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | cancelled
        running 1/3 on w1 till 300 <- leased by a call | running by a call
        running 1/3 on w1 till 179 <- leased by a claim | leased by a push
        running 1/3 on w1 till 178 <- running by a claim | running by a push
        running 1/1 on w1 till 300 <- on its last attempt
        running 1/3 on w1 till 300 cancel <- leased, cancel requested
        running 1/1 on w1 till 300 cancel <- running, cancel requested
        ✗ Lease not found or already expired <- queued after an expiry | dead by an expiry | waits after a failure
            | dead after a failure | completed | failed | requeued after death",
    );
}

#[test]
fn a_heartbeat_of_another_lease() {
    check(
        |case| heartbeat(case, Holder { lease: Some(Case::no_lease()), worker: None }),
        "
        ✗ Task or lease not found <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | cancelled
        ✗ Lease 'unknown' is not the task's active lease <- leased by a call | leased by a claim | leased by a push | running by a call
            | running by a claim | running by a push | on its last attempt | leased, cancel requested | running, cancel requested
        ✗ Lease not found or already expired <- queued after an expiry | dead by an expiry | waits after a failure
            | dead after a failure | completed | failed | requeued after death",
    );
}

#[test]
fn a_heartbeat_of_another_worker() {
    check(
        |case| heartbeat(case, Holder { lease: None, worker: Some("w2".into()) }),
        "
        ✗ Task or lease not found <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | cancelled
        ✗ Lease 'w2' is not the task's active lease <- leased by a call | leased by a claim | leased by a push | running by a call
            | running by a claim | running by a push | on its last attempt | leased, cancel requested | running, cancel requested
        ✗ Lease not found or already expired <- queued after an expiry | dead by an expiry | waits after a failure
            | dead after a failure | completed | failed | requeued after death",
    );
}

#[test]
fn a_renewal_of_the_lease() {
    check(
        |case| {
            case.world.now += 1_000;
            Op::RenewLeases(op::RenewLeases { worker: "w1".into(), leases: vec![case.lease_or_none()] })
        },
        "
        0 renewed, 1 lost; unchanged <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure
            | completed | failed | cancelled | requeued after death
        1 renewed, 0 lost; running 1/3 on w1 till 300 <- leased by a call | running by a call
        1 renewed, 0 lost; running 1/3 on w1 till 179 <- leased by a claim | leased by a push
        1 renewed, 0 lost; running 1/3 on w1 till 178 <- running by a claim | running by a push
        1 renewed, 0 lost; running 1/1 on w1 till 300 <- on its last attempt
        1 renewed, 0 lost; running 1/3 on w1 till 300 cancel <- leased, cancel requested
        1 renewed, 0 lost; running 1/1 on w1 till 300 cancel <- running, cancel requested",
    );
}

#[test]
fn a_renewal_by_another_worker() {
    check(
        |case| Op::RenewLeases(op::RenewLeases { worker: "w2".into(), leases: vec![case.lease_or_none()] }),
        "
        0 renewed, 1 lost; unchanged <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | leased by a call | leased by a claim | leased by a push | running by a call | running by a claim
            | running by a push
            | on its last attempt | leased, cancel requested | running, cancel requested | queued after an expiry | dead by an expiry
            | waits after a failure | dead after a failure | completed | failed | cancelled | requeued after death",
    );
}

/// The outcomes of sending three events of the lease, in each state of a task.
const THREE_ARE_KEPT: &str = "
        ✗ Lease not found or already expired <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | cancelled | requeued after death
        newest 3; leased 1/3 on w1 till 300 <- leased by a call
        newest 3; leased 1/3 on w1 till 180 <- leased by a claim | leased by a push
        newest 3; running 1/3 on w1 till 300 <- running by a call
        newest 3; running 1/3 on w1 till 179 <- running by a claim | running by a push
        newest 3; running 1/1 on w1 till 300 <- on its last attempt
        newest 3; leased 1/3 on w1 till 300 cancel <- leased, cancel requested
        newest 3; running 1/1 on w1 till 300 cancel <- running, cancel requested
        newest 3; queued 1/3 worker_lost <- queued after an expiry
        newest 3; dead 1/1 worker_lost <- dead by an expiry
        newest 3; queued 1/3 parked not_before agent_error <- waits after a failure
        newest 3; dead 1/1 agent_error <- dead after a failure
        newest 3; completed 1/3 <- completed
        newest 3; failed 1/3 agent_error <- failed";

#[test]
fn events_of_the_lease() {
    check(
        |case| {
            Op::AppendEvents(op::AppendEvents {
                task: case.task,
                lease: case.lease_or_none(),
                worker: None,
                events: events(&[1, 2, 2, 1, 5]),
            })
        },
        THREE_ARE_KEPT,
    );
}

#[test]
fn events_of_another_lease() {
    check(
        |case| Op::AppendEvents(op::AppendEvents { task: case.task, lease: Case::no_lease(), worker: None, events: events(&[1]) }),
        "
        ✗ Lease not found or already expired <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure
            | completed | failed | cancelled | requeued after death
        ✗ Lease 'unknown' is not the task's active lease <- leased by a call | leased by a claim | leased by a push | running by a call
            | running by a claim | running by a push | on its last attempt | leased, cancel requested | running, cancel requested",
    );
}

/// A client that holds a lease can't fill the database.
#[test]
fn a_run_has_room_for_so_many_events() {
    check(
        |case| {
            let large = |seq| NewEvent { seq, kind: EventKind::Text, at: 0, data: "x".repeat(30 << 20) };
            let events = (1..=5).map(large).collect();
            Op::AppendEvents(op::AppendEvents { task: case.task, lease: case.lease_or_none(), worker: None, events })
        },
        THREE_ARE_KEPT,
    );
}

fn events(numbers: &[i64]) -> Vec<NewEvent> {
    numbers.iter().map(|seq| NewEvent { seq: *seq, kind: EventKind::Text, at: 0, data: "{}".into() }).collect()
}
