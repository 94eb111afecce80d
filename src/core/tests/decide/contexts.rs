//! The reset of a context, and what later leases tell of it.

use bloom_core::audit::Action;
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{Session, TaskSpec};
use bloom_test_world::world::{World, spec, world};

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
