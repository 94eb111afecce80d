//! Edits and deletions.

use std::collections::BTreeMap;

use super::cases::Case;
use super::table::check;
use bloom_core::command::{Op, Rejection};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{Outcome, Parked, Reason, Session, Status, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_test_world::world::{spec, world};

fn edit(task: TaskId) -> op::Edit {
    op::Edit {
        task,
        priority: None,
        not_before: None,
        labels: BTreeMap::new(),
        first_labels: BTreeMap::new(),
        limits: LimitChange::default(),
    }
}

#[test]
fn an_edit_of_the_priority() {
    check(
        |case| Op::Edit(op::Edit { priority: Some(9), ..edit(case.task) }),
        "
        queued 0/3; task_edited by admin <- queued
        queued 0/3 parked depends_on; task_edited by admin <- waits for a dependency
        queued 0/3 parked not_before; task_edited by admin <- waits for its time
        queued 0/3 parked session; task_edited by admin <- waits in its context
        queued 0/3 parked exclusive_key; task_edited by admin <- waits for its key
        ✗ Cannot edit task with status 'leased': only a queued task can be edited <- leased by a call | leased by a claim
            | leased by a push | leased, cancel requested
        ✗ Cannot edit task with status 'running': only a queued task can be edited <- running by a call | running by a claim
            | running by a push | on its last attempt | running, cancel requested
        queued 1/3 worker_lost; task_edited by admin <- queued after an expiry
        ✗ Cannot edit task with status 'dead': only a queued task can be edited <- dead by an expiry | dead after a failure
        queued 1/3 parked not_before agent_error; task_edited by admin <- waits after a failure
        ✗ Cannot edit task with status 'completed': only a queued task can be edited <- completed
        ✗ Cannot edit task with status 'failed': only a queued task can be edited <- failed
        ✗ Cannot edit task with status 'cancelled': only a queued task can be edited <- cancelled
        queued 0/1; task_edited by admin <- requeued after death",
    );
}

#[test]
fn a_postponement() {
    let later = |case: &mut Case| Some(Some(case.world.now + 600_000));
    check(
        |case| Op::Edit(op::Edit { not_before: later(case), ..edit(case.task) }),
        "
        queued 0/3 parked not_before; task_edited by admin <- queued | waits for its time | waits in its context | waits for its key
        queued 0/3 parked depends_on; task_edited by admin <- waits for a dependency
        ✗ Cannot edit task with status 'leased': only a queued task can be edited <- leased by a call | leased by a claim
            | leased by a push | leased, cancel requested
        ✗ Cannot edit task with status 'running': only a queued task can be edited <- running by a call | running by a claim
            | running by a push | on its last attempt | running, cancel requested
        queued 1/3 parked not_before worker_lost; task_edited by admin <- queued after an expiry
        ✗ Cannot edit task with status 'dead': only a queued task can be edited <- dead by an expiry | dead after a failure
        queued 1/3 parked not_before agent_error; task_edited by admin <- waits after a failure
        ✗ Cannot edit task with status 'completed': only a queued task can be edited <- completed
        ✗ Cannot edit task with status 'failed': only a queued task can be edited <- failed
        ✗ Cannot edit task with status 'cancelled': only a queued task can be edited <- cancelled
        queued 0/1 parked not_before; task_edited by admin <- requeued after death",
    );
}

#[test]
fn an_edit_that_clears_the_time() {
    check(
        |case| Op::Edit(op::Edit { not_before: Some(None), ..edit(case.task) }),
        "
        unchanged <- queued | waits for a dependency | waits in its context | waits for its key | queued after an expiry
            | requeued after death
        queued 0/3; task_edited by admin <- waits for its time
        ✗ Cannot edit task with status 'leased': only a queued task can be edited <- leased by a call | leased by a claim
            | leased by a push | leased, cancel requested
        ✗ Cannot edit task with status 'running': only a queued task can be edited <- running by a call | running by a claim
            | running by a push | on its last attempt | running, cancel requested
        ✗ Cannot edit task with status 'dead': only a queued task can be edited <- dead by an expiry | dead after a failure
        queued 1/3 parked reserved agent_error; task_edited by admin <- waits after a failure
        ✗ Cannot edit task with status 'completed': only a queued task can be edited <- completed
        ✗ Cannot edit task with status 'failed': only a queued task can be edited <- failed
        ✗ Cannot edit task with status 'cancelled': only a queued task can be edited <- cancelled",
    );
}

#[test]
fn a_deletion() {
    check(
        |case| Op::Delete(op::Delete { task: case.task }),
        "
        ✗ Cannot delete task with status 'queued': cancel it first <- queued | waits for a dependency | waits for its time
            | waits in its context | waits for its key | queued after an expiry | waits after a failure | requeued after death
        ✗ Cannot delete task with status 'leased': cancel it first <- leased by a call | leased by a claim | leased by a push
            | leased, cancel requested
        ✗ Cannot delete task with status 'running': cancel it first <- running by a call | running by a claim | running by a push
            | on its last attempt | running, cancel requested
        removed; task_deleted by admin <- dead by an expiry | dead after a failure | completed | failed | cancelled",
    );
}

#[test]
fn labels_are_merged_into_those_of_the_spec() {
    let mut world = world();
    let label = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
    let first_labels = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
    let task = world.create(TaskSpec { labels: first_labels.clone(), ..spec("c") });
    let edit = |labels: Vec<(String, Option<String>)>| op::Edit {
        labels: labels.into_iter().collect(),
        first_labels: first_labels.clone(),
        ..edit(task)
    };
    world.ok(edit(vec![label("a", None), label("b", Some("2")), label("c", Some("3"))]));
    let labels = |world: &bloom_test_world::world::World| world.task(task).labels.clone();
    assert_eq!(labels(&world), Some(BTreeMap::from([("b".to_owned(), "2".to_owned()), ("c".to_owned(), "3".to_owned())])));
    assert_eq!(world.db.audit.last().unwrap().detail, "labels a c");
    world.ok(edit(vec![label("c", None)]));
    assert_eq!(labels(&world), Some(BTreeMap::from([("b".to_owned(), "2".to_owned())])));
    let before = world.db.clone();
    world.ok(edit(vec![label("a", None), label("b", Some("2"))]));
    let many = (0..32).map(|n| label(&n.to_string(), Some(""))).collect();
    assert_eq!(world.run(edit(many)).unwrap_err(), Rejection::TooManyLabels(33));
    assert_eq!(world.db, before);
}

#[test]
fn a_deleted_task_takes_those_that_wait_for_it_along() {
    let mut world = world().worker("w", 4);
    let alone = |depends_on: Vec<TaskId>| TaskSpec { session: Session::None, depends_on, ..spec("c") };
    let (done, open) = (world.create(alone(vec![])), world.create(alone(vec![])));
    let (both, met) = (world.create(alone(vec![done, open])), world.create(alone(vec![done])));
    world.lease(done, "w");
    world.complete(done, Outcome::Success);
    assert_eq!((world.task(both).parked, world.task(met).parked), (Some(Parked::DependsOn), None));
    world.ok(op::Delete { task: done });
    world.check();
    let failure = world.task(both).failure.as_ref().map(|failure| failure.reason);
    assert_eq!((world.task(both).status, failure), (Status::Cancelled, Some(Reason::DependencyFailed)));
    assert_eq!(world.task(met).status, Status::Queued, "a dependency that was met once stays met");
    assert_eq!(world.run(op::Requeue { task: done, limits: LimitChange::default() }).unwrap_err(), Rejection::TaskNotFound);
    assert!(world.db.past_leases.is_empty() && world.db.results.is_empty());
}

#[test]
fn a_task_that_ends_in_the_same_batch_is_deleted_in_the_next_one() {
    let mut world = world();
    let task = world.create(spec("c"));
    let answers = world.run_batch(vec![
        op::Cancel { task }.into(),
        op::Delete { task }.into(),
        op::Requeue { task, limits: LimitChange::default() }.into(),
    ]);
    let refused: Vec<_> = answers.into_iter().map(Result::err).collect();
    assert_eq!(refused, [None, None, Some(Rejection::TaskNotFound)]);
    assert!(world.db.tasks.is_empty() && world.db.specs.is_empty());
    world.check();
}

#[test]
fn a_lease_lasts_as_long_as_a_profile_may_say_unless_a_client_names_a_limit() {
    for (named, lasts_sec) in [(None, 660), (Some(60), 120)] {
        let mut world = world().worker("w1", 4);
        let task = world.create(TaskSpec { timeout_sec: 60, profile_timeout_max: Some(600), ..spec("c") });
        let limits = LimitChange { timeout_sec: named, ..LimitChange::default() };
        world.ok(op::Edit { limits, ..edit(task) });
        world.claim("w1", 1);
        let lease = world.task(task).lease.as_ref().unwrap();
        assert_eq!(lease.hard_end_at.unwrap() - lease.started_at, lasts_sec * 1000, "{named:?}");
    }
}
