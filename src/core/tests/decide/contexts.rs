//! The reset of a context, and what later leases report of it.

use bloom_core::audit::Action;
use bloom_core::command::Completion;
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{Outcome, Session, TaskSpec};
use bloom_test_world::world::{World, completion, spec, world};

fn told(world: &World, task: TaskId) -> Option<i64> {
    world.task(task).lease.as_ref().expect("a lease").context_reset_at
}

#[test]
fn each_later_lease_tells_of_the_reset() {
    let mut world = world().worker("w", 8);
    world.strict = true;
    let leased = |world: &mut World, context: &str| {
        let task = world.create(TaskSpec { session: Session::None, ..spec(context) });
        world.lease(task, "w");
        task
    };
    let before = leased(&mut world, "talk");
    let reset = || op::ResetContext { context_id: "talk".into() };
    world.ok(reset());
    let first = world.db.context_resets["talk"];
    let between = leased(&mut world, "talk");
    world.ok(reset());
    let second = world.db.context_resets["talk"];
    assert!(second > first, "no two resets of a context have the same time");
    let (after, other) = (leased(&mut world, "talk"), leased(&mut world, "other"));
    assert_eq!([before, between, after, other].map(|task| told(&world, task)), [None, Some(first), Some(second), None]);
    assert_eq!(world.db.audit.iter().filter(|entry| entry.action == Action::ContextReset).count(), 2);
}

#[test]
fn a_lease_tells_of_the_session_in_which_its_context_has_its_conversation() {
    let mut world = world().worker("w", 8);
    world.strict = true;
    let run = |world: &mut World, task: TaskId, outcome: Outcome, retryable: bool, session: &str| {
        world.now += 1;
        world.lease(task, "w");
        let told = world.task(task).conversation.clone();
        let lease = Some(world.lease_of(task));
        world.now += 1;
        world.ok(Completion { session_id: Some(session.into()), retryable, retry_at: Some(0), ..completion(task, lease, outcome) });
        told
    };
    let first = world.create(spec("talk"));
    assert_eq!(run(&mut world, first, Outcome::Error, false, "failed"), None);
    let second = world.create(spec("talk"));
    assert_eq!(run(&mut world, second, Outcome::Success, false, "one"), None, "nothing was said in the session of a task that failed");
    let alone = world.create(TaskSpec { session: Session::None, ..spec("talk") });
    run(&mut world, alone, Outcome::Success, false, "alone");
    let third = world.create(TaskSpec { max_attempts: 3, ..spec("talk") });
    assert_eq!(run(&mut world, third, Outcome::Error, true, "two").as_deref(), Some("one"));
    let told = |world: &World| (world.task(third).session_id.clone(), world.task(third).conversation.clone());
    assert_eq!(told(&world), (Some("two".into()), Some("one".into())), "an attempt without an answer is no conversation");
    world.now += 1;
    world.ok(op::ResetContext { context_id: "talk".into() });
    assert_eq!(run(&mut world, third, Outcome::Success, false, "three"), None, "a reset ends it");
    let last = world.create(spec("talk"));
    assert_eq!(run(&mut world, last, Outcome::Success, false, "three").as_deref(), Some("three"));
}
