//! Random histories.

use bloom_core::command::QueueChange;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::step::{End, Named, NewTask, Step};

fn new_task() -> impl Strategy<Value = NewTask> {
    let waits = (option::weighted(0.25, 0..2usize), option::weighted(0.2, 0..3usize), option::weighted(0.25, 0..9usize));
    let held = (prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let object = (option::weighted(0.2, 0..4usize), option::weighted(0.2, 0..2usize));
    let numbers = (0..2usize, 4..6i64, 1..3i64);
    (numbers, prop::bool::weighted(0.7), waits, held, object).prop_map(|(numbers, session, waits, held, object)| {
        let ((context, priority, max_attempts), (key, idempotency, depends_on), (later, suspend), (object, project)) =
            (numbers, waits, held, object);
        NewTask { context, session, key, idempotency, object, project, depends_on, priority, max_attempts, later, suspend }
    })
}

/// More often resumed than paused, so that most of a history makes leases.
fn queue() -> impl Strategy<Value = Step> {
    let limit = option::weighted(0.7, 1..4i64).prop_map(QueueChange::Limit);
    prop_oneof![
        1 => prop::bool::ANY.prop_map(|all| Step::Queue { all, change: QueueChange::Pause }),
        3 => prop::bool::ANY.prop_map(|all| Step::Queue { all, change: QueueChange::Resume }),
        2 => limit.prop_map(|change| Step::Queue { all: false, change }),
    ]
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![1 => Just(Named::Nobody), 4 => Just(Named::Lease), 1 => Just(Named::Worker)]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![3 => Just(End::Success), 1 => Just(End::Error), 1 => Just(End::Again), 1 => Just(End::AgainLater), 1 => Just(End::NoAttempt)]
}

fn command() -> impl Strategy<Value = Step> {
    let any = || 0..12usize;
    prop_oneof![
        5 => vec(new_task(), 1..3).prop_map(Step::Create),
        3 => (any(), option::of(0..3usize), prop::bool::weighted(0.3)).prop_map(|(task, worker, dispatch)| Step::Lease { task, worker, dispatch }),
        3 => any().prop_map(|worker| Step::Push { worker }),
        2 => (any(), 0..3usize).prop_map(|(lease, end)| Step::EndPush { lease, end }),
        8 => (any(), 1..4usize, option::of(prop::bool::ANY), option::weighted(0.3, 1..3u128))
            .prop_map(|(worker, max, held, instance)| Step::Claim { worker, max, held, instance }),
        2 => (any(), named()).prop_map(|(lease, named)| Step::Heartbeat { lease, named }),
        1 => any().prop_map(|worker| Step::Renew { worker }),
        8 => (any(), named(), end()).prop_map(|(lease, named, end)| Step::Complete { lease, named, end }),
        2 => any().prop_map(|sent| Step::Repeat { sent }),
        2 => any().prop_map(|lease| Step::Release { lease }),
        1 => (any(), 1..4i64).prop_map(|(lease, seq)| Step::Events { lease, seq }),
        2 => (any(), 1..3u128, prop::bool::weighted(0.3)).prop_map(|(lease, id, is_over)| Step::Ask { lease, id, is_over }),
        1 => (any(), prop::bool::ANY).prop_map(|(task, allow)| Step::Answer { task, allow }),
        2 => any().prop_map(|task| Step::Cancel { task }),
        4 => any().prop_map(|task| Step::Requeue { task }),
        3 => (any(), option::of(4..6i64), option::of(option::of(prop_oneof![Just(-5_000), Just(20_000)])), option::of(option::of(prop::bool::ANY)))
            .prop_map(|(task, priority, later, label)| Step::Edit { task, priority, later, label }),
        // More often resumed than suspended, so that most tasks run.
        3 => (any(), prop::bool::weighted(0.4)).prop_map(|(task, suspend)| Step::Suspend { task, suspend }),
        1 => any().prop_map(|task| Step::Delete { task }),
        1 => any().prop_map(|lease| Step::Expire { lease }),
        1 => any().prop_map(|lease| Step::Grace { lease }),
        2 => queue(),
        1 => any().prop_map(|context| Step::ResetContext { context }),
        1 => any().prop_map(|worker| Step::Seen { worker }),
        1 => any().prop_map(|worker| Step::Silent { worker }),
        1 => any().prop_map(|name| Step::CreateKey { name }),
        1 => any().prop_map(|name| Step::RevokeKey { name }),
        1 => (any(), any()).prop_map(|(token, worker)| Step::Enroll { token, worker }),
        2 => any().prop_map(|name| Step::CreateProject { name }),
        1 => (any(), any()).prop_map(|(project, prefix)| Step::EditProject { project, prefix }),
        1 => any().prop_map(|project| Step::DeleteProject { project }),
        1 => (any(), vec(0..3usize, 1..4), prop::bool::ANY)
            .prop_map(|(project, workers, propagated)| Step::RecordClones { project, workers, propagated }),
        2 => (any(), any()).prop_map(|(lease, name)| Step::AddFile { lease, name }),
        2 => any().prop_map(|owner| Step::Upload { owner }),
        1 => any().prop_map(|file| Step::DeleteFile { file }),
        5 => (any(), any()).prop_map(|(which, at)| Step::ControlPlane { which, at }),
    ]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = || 0..3usize;
    let step = prop_oneof![
        30 => command(),
        6 => vec(command(), 2..5).prop_map(Step::Batch),
        2 => (any(), 1..4i64, option::weighted(0.3, 0..3usize), option::weighted(0.3, 0..3usize), option::weighted(0.5, 1..3u128))
            .prop_map(|(worker, slots, namespaces, projects, instance)| Step::Register { worker, slots, namespaces, projects, instance }),
        1 => any().prop_map(|worker| Step::Remove { worker }),
        1 => any().prop_map(|worker| Step::ResumeAccount { worker }),
        1 => (any(), any()).prop_map(|(worker, change)| Step::Cordon { worker, change }),
        3 => prop_oneof![Just(1), Just(1_000), Just(61_000), Just(400_000)].prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Crash),
        1 => Just(Step::ProcessWakeups),
        1 => prop::bool::ANY.prop_map(Step::Stale),
    ];
    vec(step, 1..60)
}
