//! Budgets apply to all attempts of a task together, and the usage of a run is counted even if its completion comes too late.

use std::collections::BTreeMap;

use bloom_core::command::{Completion, Holder, Rejection};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::reply::StoredResult;
use bloom_core::task::{Outcome, Reason, Status, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_core::usage::Usage;
use bloom_test_world::world::{World, completion, spec, world};

fn used(cost_usd: f64) -> Usage {
    Usage { input_tokens: 1, output_tokens: 1, cost_usd, cost_estimated: false }
}

/// A run that ended by a time-out.
fn timed_out(task: TaskId, lease: LeaseId, usage: Usage) -> Completion {
    Completion {
        retryable: true,
        reason: Some(Reason::Timeout),
        error_message: Some("too slow".into()),
        usage: Some(usage),
        retry_at: Some(0),
        ..completion(task, Some(lease), Outcome::Error)
    }
}

fn with_budget(budget: f64) -> (World, TaskId) {
    let mut world = world().worker("w1", 4);
    world.strict = true;
    let task = world.create(TaskSpec { budget, max_attempts: 5, ..spec("c") });
    (world, task)
}

fn attempt(world: &mut World, task: TaskId, more: impl FnOnce(Completion) -> Completion) {
    let lease = world.lease(task, "w1");
    let ended = timed_out(task, lease, used(0.1));
    world.ok(more(ended));
}

#[test]
fn attempts_share_the_budget_until_nothing_is_left() {
    let (mut world, task) = with_budget(0.3);
    let left = |world: &World| world.task(task).budget_left();
    assert_eq!(left(&world), Some(0.3));
    let (tiny, cent) = with_budget(1e-9);
    assert_eq!(tiny.task(cent).budget_left(), Some(1e-6));
    attempt(&mut world, task, |ended| ended);
    assert_eq!((world.task(task).status, left(&world)), (Status::Queued, Some(0.2)));
    // An attempt that is given back costs just as much.
    attempt(&mut world, task, |ended| Completion { keep_attempt: true, ..ended });
    assert_eq!((world.task(task).status, left(&world)), (Status::Queued, Some(0.1)));
    attempt(&mut world, task, |ended| ended);
    let dead = world.task(task);
    assert_eq!((dead.status, dead.attempts, left(&world)), (Status::Dead, 2, Some(0.0)));
    let failure = dead.failure.clone().unwrap();
    let told = "its attempts have cost 0.3000 USD, which leaves nothing of its budget of 0.3000 USD; the last one: timeout: too slow";
    assert_eq!((failure.reason, failure.message.as_str()), (Reason::BudgetExceeded, told));
}

#[test]
fn a_requeued_task_has_its_whole_budget_again() {
    let (mut world, task) = with_budget(0.15);
    attempt(&mut world, task, |ended| ended);
    attempt(&mut world, task, |ended| Completion { usage: Some(Usage { cost_estimated: true, ..used(0.2) }), ..ended });
    let dead = world.task(task);
    assert!(dead.failure.as_ref().unwrap().message.starts_with("its attempts have cost about 0.3000 USD"), "{dead:?}");
    world.ok(op::Requeue { task, limits: LimitChange::default() });
    let again = world.task(task);
    assert_eq!((again.status, again.budget_left()), (Status::Queued, Some(0.15)));
    assert!((again.usage.unwrap().cost_usd - 0.3).abs() < 1e-9, "the usage goes on");
    attempt(&mut world, task, |ended| ended);
    assert_eq!((world.task(task).status, world.task(task).budget_left()), (Status::Queued, Some(0.05)));
}

#[test]
fn a_requeue_or_an_edit_gives_another_budget() {
    let (mut world, task) = with_budget(0.05);
    attempt(&mut world, task, |ended| ended);
    assert_eq!(world.task(task).status, Status::Dead);
    let to = |usd: f64| LimitChange { budget: Some(usd), ..LimitChange::default() };
    world.ok(op::Requeue { task, limits: to(0.25) });
    assert_eq!((world.task(task).budget, world.task(task).budget_left()), (0.25, Some(0.25)));
    assert_eq!(world.db.audit.last().unwrap().detail, "budget 0.05 to 0.25");
    attempt(&mut world, task, |ended| ended);
    assert_eq!((world.task(task).status, world.task(task).budget_left()), (Status::Queued, Some(0.15)));
    let edit =
        |usd| op::Edit { task, priority: None, not_before: None, limits: to(usd), labels: BTreeMap::new(), first_labels: BTreeMap::new() };
    // The next run could not do anything.
    assert_eq!(world.run(edit(0.1)).unwrap_err(), Rejection::BudgetIsSpent(0.1));
    assert_eq!(world.task(task).budget, 0.25);
    world.ok(edit(0.3));
    assert_eq!(world.task(task).budget_left(), Some(0.2));
    world.ok(edit(0.0));
    assert_eq!((world.task(task).budget_left(), world.db.audit.last().unwrap().detail.as_str()), (None, "budget 0.3 to none"));
}

#[test]
fn a_budget_ends_only_what_would_be_tried_again() {
    let dear = |ended: Completion| Completion { usage: Some(used(7.0)), ..ended };
    let (mut world, task) = with_budget(0.0);
    attempt(&mut world, task, dear);
    assert_eq!((world.task(task).status, world.task(task).budget_left()), (Status::Queued, None), "it has no budget");

    let (mut world, task) = with_budget(0.1);
    attempt(&mut world, task, |ended| Completion { status: Outcome::Success, ..dear(ended) });
    assert_eq!(world.task(task).status, Status::Completed);

    let (mut world, task) = with_budget(0.1);
    attempt(&mut world, task, |ended| Completion { retryable: false, ..dear(ended) });
    assert_eq!((world.task(task).status, world.task(task).failure.as_ref().unwrap().reason), (Status::Failed, Reason::Timeout));

    let (mut world, task) = with_budget(0.1);
    let lease = world.lease(task, "w1");
    world.ok(op::Cancel { task });
    world.ok(timed_out(task, lease, used(7.0)));
    assert_eq!(world.task(task).status, Status::Cancelled);

    let (mut world, task) = with_budget(0.1);
    attempt(&mut world, task, |ended| Completion { usage: None, ..ended });
    assert_eq!(world.task(task).status, Status::Queued, "nothing is known of its cost");
}

#[test]
fn what_a_lost_run_has_used_is_counted_once() {
    let (mut world, task) = with_budget(1.0);
    let lost = world.lease(task, "w1");
    world.expire(task);
    let second = world.lease(task, "w1");
    let late = Completion { model: Some("m".into()), ..timed_out(task, lost, used(0.4)) };
    for _ in 0..2 {
        let answer = world.ok(late.clone());
        assert!(matches!(answer.result, StoredResult::UsageOnly(_)), "{answer:?}");
        let state = world.task(task);
        assert_eq!((state.status, state.usage, state.budget_left()), (Status::Leased, Some(used(0.4)), Some(0.6)));
        let past = &world.db.past_leases[&lost];
        assert_eq!((past.usage, past.model.as_deref(), past.completed), (Some(used(0.4)), Some("m"), false));
    }
    assert_eq!(world.lease_of(task), second, "the other run goes on");
    let before = world.db.clone();
    assert!(world.run(Completion { usage: None, ..late.clone() }).is_err(), "a completion without usage is refused");
    assert!(world.run(Completion { holder: Holder { lease: Some(lost), worker: Some("w2".into()) }, ..late }).is_err());
    assert_eq!(world.db, before);
    world.ok(timed_out(task, second, used(0.6)));
    assert_eq!(world.task(task).failure.as_ref().unwrap().reason, Reason::BudgetExceeded);
}

#[test]
fn a_queued_task_whose_budget_a_lost_run_has_spent_is_dead() {
    let (mut world, task) = with_budget(1.0);
    let lost = world.lease(task, "w1");
    world.expire(task);
    let second = world.lease(task, "w1");
    world.ok(timed_out(task, second, used(0.3)));
    assert_eq!(world.task(task).status, Status::Queued);
    let answer = world.ok(timed_out(task, lost, used(1.5)));
    assert!(matches!(answer.result, StoredResult::UsageOnly(_)), "{answer:?}");
    let state = world.task(task);
    let failure = state.failure.as_ref().unwrap();
    assert_eq!((state.status, failure.reason), (Status::Dead, Reason::BudgetExceeded));
    assert!(failure.message.contains("cost 1.8000 USD") && failure.message.contains("the last one: timeout"), "{}", failure.message);
}

#[test]
fn what_a_run_has_used_is_counted_however_its_lease_ended() {
    let ends: [fn(&mut World, TaskId, LeaseId); 2] = [
        |world, task, lease| {
            world.ok(op::Release { task, lease, reason: "why".into() });
        },
        |world, _, _| {
            world.ok(op::RemoveWorker { worker: "w1".into() });
        },
    ];
    for end in ends {
        let (mut world, task) = with_budget(1.0);
        let lease = world.lease(task, "w1");
        end(&mut world, task, lease);
        for _ in 0..2 {
            let answer = world.ok(timed_out(task, lease, used(0.4)));
            assert!(matches!(answer.result, StoredResult::UsageOnly(_)), "{answer:?}");
            assert_eq!(world.task(task).budget_left(), Some(0.6));
        }
    }
}
