//! Completions, as workers send them.

use super::cases::Case;
use super::table::check;
use bloom_core::command::{Completion, Holder, Op};
use bloom_core::task::Outcome;
use bloom_test_world::world::completion;

fn done(completion: Completion) -> Op {
    Op::Complete(Box::new(completion))
}

fn of_lease(case: &Case, status: Outcome) -> Completion {
    completion(case.task, Some(case.lease_or_none()), status)
}

#[test]
fn a_success_of_the_lease() {
    check(
        |case| done(of_lease(case, Outcome::Success)),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | requeued after death
        completed 1/3; lease released with result; task_completed by w1 <- leased by a call | leased by a claim | leased by a push
            | running by a call | running by a claim | running by a push | queued after an expiry
        completed 1/1; lease released with result; task_completed by w1 <- on its last attempt | dead by an expiry
        completed 1/3 cancel; lease released with result; task_completed by w1 <- leased, cancel requested
        completed 1/1 cancel; lease released with result; task_completed by w1 <- running, cancel requested
        told before; unchanged <- waits after a failure | dead after a failure | completed | failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn a_success_that_names_nobody() {
    check(
        |case| done(completion(case.task, None, Outcome::Success)),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | queued after an expiry | waits after a failure | requeued after death
        completed 1/3; lease released with result; task_completed by w1 <- leased by a call | leased by a claim | leased by a push
            | running by a call | running by a claim | running by a push
        completed 1/1; lease released with result; task_completed by w1 <- on its last attempt
        completed 1/3 cancel; lease released with result; task_completed by w1 <- leased, cancel requested
        completed 1/1 cancel; lease released with result; task_completed by w1 <- running, cancel requested
        ✗ Task status is 'dead', expected 'leased' or 'running' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'leased' or 'running' <- completed
        ✗ Task status is 'failed', expected 'leased' or 'running' <- failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn a_success_that_names_the_worker() {
    check(
        |case| done(Completion { holder: Holder { lease: None, worker: Some("w1".into()) }, ..of_lease(case, Outcome::Success) }),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | queued after an expiry | waits after a failure | requeued after death
        completed 1/3; lease released with result; task_completed by w1 <- leased by a call | leased by a claim | leased by a push
            | running by a call | running by a claim | running by a push
        completed 1/1; lease released with result; task_completed by w1 <- on its last attempt
        completed 1/3 cancel; lease released with result; task_completed by w1 <- leased, cancel requested
        completed 1/1 cancel; lease released with result; task_completed by w1 <- running, cancel requested
        ✗ Task status is 'dead', expected 'leased' or 'running' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'leased' or 'running' <- completed
        ✗ Task status is 'failed', expected 'leased' or 'running' <- failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn a_success_of_another_worker() {
    check(
        |case| done(Completion { holder: Holder { lease: None, worker: Some("w2".into()) }, ..of_lease(case, Outcome::Success) }),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | queued after an expiry | waits after a failure | requeued after death
        ✗ Lease 'w2' is not the task's active lease <- leased by a call | leased by a claim | leased by a push | running by a call
            | running by a claim | running by a push | on its last attempt | leased, cancel requested | running, cancel requested
        ✗ Task status is 'dead', expected 'leased' or 'running' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'leased' or 'running' <- completed
        ✗ Task status is 'failed', expected 'leased' or 'running' <- failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn a_success_of_an_unknown_lease() {
    check(
        |case| done(completion(case.task, Some(Case::no_lease()), Outcome::Success)),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | queued after an expiry | waits after a failure | requeued after death
        ✗ Lease 'unknown' is not the task's active lease <- leased by a call | leased by a claim | leased by a push | running by a call
            | running by a claim | running by a push | on its last attempt | leased, cancel requested | running, cancel requested
        ✗ Task status is 'dead', expected 'leased' or 'running' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'leased' or 'running' <- completed
        ✗ Task status is 'failed', expected 'leased' or 'running' <- failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn a_success_that_comes_after_the_lease_was_due_but_before_its_end() {
    check(
        |case| {
            case.world.now += 3_600_000;
            done(of_lease(case, Outcome::Success))
        },
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | requeued after death
        completed 1/3; lease released with result; task_completed by w1 <- leased by a call | leased by a claim | leased by a push
            | running by a call | running by a claim | running by a push | queued after an expiry
        completed 1/1; lease released with result; task_completed by w1 <- on its last attempt | dead by an expiry
        completed 1/3 cancel; lease released with result; task_completed by w1 <- leased, cancel requested
        completed 1/1 cancel; lease released with result; task_completed by w1 <- running, cancel requested
        told before; unchanged <- waits after a failure | dead after a failure | completed | failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn an_error() {
    check(
        |case| done(of_lease(case, Outcome::Error)),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | requeued after death
        failed 1/3 agent_error; lease released with result; task_completed by w1 <- leased by a call | leased by a claim | leased by a push
            | running by a call | running by a claim | running by a push | queued after an expiry
        failed 1/1 agent_error; lease released with result; task_completed by w1 <- on its last attempt
        cancelled 1/3 cancel cancelled; lease released with result; task_cancelled by w1 <- leased, cancel requested
        cancelled 1/1 cancel cancelled; lease released with result; task_cancelled by w1 <- running, cancel requested
        dead 1/1 agent_error; lease released with result; task_completed by w1 <- dead by an expiry
        told before; unchanged <- waits after a failure | dead after a failure | completed | failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn an_error_that_may_be_tried_again() {
    check(
        |case| done(Completion { retryable: true, retry_at: Some(case.world.now + 1), ..of_lease(case, Outcome::Error) }),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | requeued after death
        queued 1/3 parked not_before agent_error; lease released with result; task_retried by w1 <- leased by a call
            | leased by a claim | leased by a push | running by a call | running by a claim | running by a push | queued after an expiry
        dead 1/1 agent_error; lease released with result; task_dead by w1 <- on its last attempt
        cancelled 1/3 cancel cancelled; lease released with result; task_cancelled by w1 <- leased, cancel requested
        cancelled 1/1 cancel cancelled; lease released with result; task_cancelled by w1 <- running, cancel requested
        dead 1/1 agent_error; lease released with result; task_completed by w1 <- dead by an expiry
        told before; unchanged <- waits after a failure | dead after a failure | completed | failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn an_error_that_is_no_attempt() {
    check(
        |case| done(Completion { retryable: true, keep_attempt: true, retry_at: Some(0), ..of_lease(case, Outcome::Error) }),
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | requeued after death
        queued 0/3 1 back parked reserved agent_error; lease released with result; task_retried by w1 <- leased by a call
            | leased by a claim | leased by a push | running by a call | running by a claim | running by a push | queued after an expiry
        queued 0/1 1 back parked reserved agent_error; lease released with result; task_retried by w1 <- on its last attempt
        cancelled 0/3 1 back cancel cancelled; lease released with result; task_cancelled by w1 <- leased, cancel requested
        cancelled 0/1 1 back cancel cancelled; lease released with result; task_cancelled by w1 <- running, cancel requested
        dead 1/1 agent_error; lease released with result; task_completed by w1 <- dead by an expiry
        told before; unchanged <- waits after a failure | dead after a failure | completed | failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}

#[test]
fn of_the_lease_by_another_worker() {
    check(
        |case| {
            let lease = of_lease(case, Outcome::Success);
            done(Completion { holder: Holder { worker: Some("w9".into()), ..lease.holder.clone() }, ..lease })
        },
        "
        ✗ Task status is 'queued', expected 'leased' or 'running' <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | queued after an expiry | waits after a failure | requeued after death
        ✗ Lease 'known' is not the task's active lease <- leased by a call | leased by a claim | leased by a push | running by a call
            | running by a claim | running by a push | on its last attempt | leased, cancel requested | running, cancel requested
        ✗ Task status is 'dead', expected 'leased' or 'running' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'leased' or 'running' <- completed
        ✗ Task status is 'failed', expected 'leased' or 'running' <- failed
        ✗ Task status is 'cancelled', expected 'leased' or 'running' <- cancelled",
    );
}
