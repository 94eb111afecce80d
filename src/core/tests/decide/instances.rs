//! Two agents with the same name.

use bloom_core::command::{Claim, Loss, Rejection, WorkerChange};
use bloom_core::ids::InstanceId;
use bloom_core::op;
use bloom_test_world::world::{TTL_MS, World, registration, spec, world};

const FIRST: InstanceId = InstanceId::from_u128(1);
const SECOND: InstanceId = InstanceId::from_u128(2);

fn by(instance: InstanceId) -> WorkerChange {
    WorkerChange { instance: Some(instance), ..registration("w", 4) }
}

/// A claim of all tasks by an agent that has no leases.
fn claim(world: &World, instance: Option<InstanceId>) -> Claim {
    let candidates = world.db.tasks.keys().copied().collect();
    Claim { worker: "w".into(), candidates, max: 9, held: Some(Vec::new()), instance, ttl_ms: TTL_MS }
}

fn is_refused<T>(outcome: Result<T, Rejection>) -> bool {
    matches!(outcome, Err(Rejection::OtherAgent { .. }))
}

#[test]
fn a_name_has_one_agent_until_it_is_offline() {
    let mut world = world();
    world.strict = true;
    world.ok(by(FIRST));
    world.create(spec("a"));
    let op = claim(&world, Some(FIRST));
    assert_eq!(world.ok(op).leased.len(), 1);
    world.create(spec("b"));
    let before = world.db.clone();
    assert!(is_refused(world.run(by(SECOND))));
    let op = claim(&world, Some(SECOND));
    assert!(is_refused(world.run(op)));
    assert_eq!(world.db, before);

    world.ok(op::MarkOffline { worker: "w".into(), cause: Loss::PodEnded });
    assert_eq!(world.ok(by(SECOND)).worker.instance.map(|agent| agent.id), Some(SECOND));
    let op = claim(&world, Some(FIRST));
    assert!(is_refused(world.run(by(FIRST))) && is_refused(world.run(op)));
    // The task that the first agent runs is not delivered to the second one.
    let op = claim(&world, Some(SECOND));
    let leased = world.ok(op).leased;
    assert_eq!(leased.iter().map(|task| &task.context_id[..]).collect::<Vec<_>>(), ["b"]);
    let op = claim(&world, Some(SECOND));
    assert_eq!(world.ok(op).leased, leased, "its own is");
    let op = claim(&world, None);
    assert_eq!(world.ok(op).leased, [], "a client that does not tell who it is gets neither");
}

#[test]
fn a_registration_that_names_no_agent_frees_the_name_of_one_that_is_offline() {
    let mut world = world();
    world.ok(by(FIRST));
    assert_eq!(world.ok(registration("w", 4)).worker.instance.map(|agent| agent.id), Some(FIRST));
    world.ok(op::MarkOffline { worker: "w".into(), cause: Loss::PodEnded });
    // A control plane that does not report instances lists whichever agent has the name now.
    assert_eq!(world.ok(registration("w", 4)).worker.instance, None);
    let op = claim(&world, Some(SECOND));
    assert!(!is_refused(world.run(op)));
}

#[test]
fn what_an_agent_that_does_not_tell_its_instance_runs_is_not_delivered_to_one_that_does() {
    let mut world = world();
    world.ok(registration("w", 4));
    world.create(spec("a"));
    let op = claim(&world, None);
    let leased = world.ok(op).leased;
    assert_eq!(leased.len(), 1);
    world.ok(by(FIRST));
    let op = claim(&world, Some(FIRST));
    assert_eq!(world.ok(op).leased, []);
    let op = claim(&world, None);
    assert_eq!(world.ok(op).leased, leased);
}
