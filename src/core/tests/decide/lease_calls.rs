//! Lease calls and claims.

use super::cases::Case;
use super::table::check;
use bloom_core::command::{Choice, Claim, Op};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_test_world::world::TTL_MS;

#[test]
fn a_lease_call_that_names_a_worker() {
    check(
        |case| Op::Lease(op::Lease { task: case.task, choice: Choice::Named("w2".into()), ttl_ms: 60_000, origin: Origin::Call }),
        "
        leased 1/3 on w2 till 60; task_leased by router <- queued | waits in its context
        ✗ Task is not ready: depends_on <- waits for a dependency
        ✗ Task is not ready: not_before <- waits for its time | waits after a failure
        ✗ Task is not ready: exclusive_key <- waits for its key
        ✗ Task status is 'leased', expected 'queued' <- leased by a call | leased by a claim | leased by a push | leased, cancel requested
        ✗ Task status is 'running', expected 'queued' <- running by a call | running by a claim | running by a push | on its last attempt
            | running, cancel requested
        leased 2/3 on w2 till 60 worker_lost; task_leased by router <- queued after an expiry
        ✗ Task status is 'dead', expected 'queued' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'queued' <- completed
        ✗ Task status is 'failed', expected 'queued' <- failed
        ✗ Task status is 'cancelled', expected 'queued' <- cancelled
        leased 1/1 on w2 till 60; task_leased by router <- requeued after death",
    );
}

#[test]
fn a_lease_call_that_names_nobody() {
    check(
        |case| {
            Op::Lease(op::Lease {
                task: case.task,
                choice: Choice::Among { workers: vec!["w2".into()], context: None },
                ttl_ms: 60_000,
                origin: Origin::Call,
            })
        },
        "
        leased 1/3 on w2 till 60; task_leased by router <- queued | waits in its context
        ✗ Task is not ready: depends_on <- waits for a dependency
        ✗ Task is not ready: not_before <- waits for its time | waits after a failure
        ✗ Task is not ready: exclusive_key <- waits for its key
        ✗ Task status is 'leased', expected 'queued' <- leased by a call | leased by a claim | leased by a push | leased, cancel requested
        ✗ Task status is 'running', expected 'queued' <- running by a call | running by a claim | running by a push | on its last attempt
            | running, cancel requested
        leased 2/3 on w2 till 60 worker_lost; task_leased by router <- queued after an expiry
        ✗ Task status is 'dead', expected 'queued' <- dead by an expiry | dead after a failure
        ✗ Task status is 'completed', expected 'queued' <- completed
        ✗ Task status is 'failed', expected 'queued' <- failed
        ✗ Task status is 'cancelled', expected 'queued' <- cancelled
        leased 1/1 on w2 till 60; task_leased by router <- requeued after death",
    );
}

#[test]
fn a_claim_that_is_offered_the_task() {
    check(
        |case| claim(case, Some(Vec::new())),
        "
        1 leased, 0 missed; leased 1/3 on w2 till 180; task_leased by reconciler <- queued
        0 leased, 1 missed; unchanged <- waits for a dependency | waits for its time | waits in its context | waits for its key
            | leased by a call | leased by a claim | leased by a push | running by a call | running by a claim | running by a push
            | on its last attempt
            | leased, cancel requested | running, cancel requested | dead by an expiry | waits after a failure | dead after a failure
            | completed | failed | cancelled
        1 leased, 0 missed; leased 2/3 on w2 till 180 worker_lost; task_leased by reconciler <- queued after an expiry
        1 leased, 0 missed; leased 1/1 on w2 till 180; task_leased by reconciler <- requeued after death",
    );
}

fn claim(case: &Case, held: Option<Vec<uuid::Uuid>>) -> Op {
    Op::Claim(Claim { worker: "w2".into(), candidates: vec![case.task], max: 1, held, instance: None, ttl_ms: TTL_MS })
}

#[test]
fn a_claim_of_a_worker_that_has_lost_what_it_holds() {
    check(
        |_| {
            Op::Claim(Claim { worker: "w1".into(), candidates: Vec::new(), max: 1, held: Some(Vec::new()), instance: None, ttl_ms: TTL_MS })
        },
        "
        0 leased, 0 missed; unchanged <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | leased by a call | leased by a push | running by a call | running by a push | on its last attempt
            | leased, cancel requested
            | running, cancel requested | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure
            | completed | failed | cancelled | requeued after death
        1 leased, 0 missed; unchanged <- leased by a claim | running by a claim",
    );
}

#[test]
fn a_claim_of_a_worker_that_knows_what_it_holds() {
    check(
        |case| {
            Op::Claim(Claim {
                worker: "w1".into(),
                candidates: Vec::new(),
                max: 1,
                held: Some(vec![case.lease_or_none()]),
                instance: None,
                ttl_ms: TTL_MS,
            })
        },
        "
        0 leased, 0 missed; unchanged <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | leased by a call | leased by a claim | leased by a push | running by a call | running by a claim
            | running by a push
            | on its last attempt | leased, cancel requested | running, cancel requested | queued after an expiry | dead by an expiry
            | waits after a failure | dead after a failure | completed | failed | cancelled | requeued after death",
    );
}
