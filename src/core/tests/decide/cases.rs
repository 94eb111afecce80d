//! A task in every state, each state reached by commands.

use bloom_core::command::Completion;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::task::{Outcome, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_test_world::world::{START, World, completion, spec, world};

pub struct Case {
    pub name: &'static str,
    pub world: World,
    pub task: TaskId,
    /// The task's newest lease.
    pub lease: Option<LeaseId>,
}

impl Case {
    /// An id that no lease has.
    pub fn no_lease() -> LeaseId {
        LeaseId::max()
    }

    pub fn lease_or_none(&self) -> LeaseId {
        self.lease.unwrap_or_else(Self::no_lease)
    }
}

fn case(name: &'static str, wanted: TaskSpec, then: impl FnOnce(&mut World, TaskId)) -> Case {
    case_after(name, |_| {}, |_| wanted, then)
}

fn case_after(
    name: &'static str,
    first: impl FnOnce(&mut World),
    wanted: impl FnOnce(&World) -> TaskSpec,
    then: impl FnOnce(&mut World, TaskId),
) -> Case {
    let mut world = world().worker("w1", 4).worker("w2", 4);
    world.strict = true;
    first(&mut world);
    let wanted = wanted(&world);
    let task = world.create(wanted);
    then(&mut world, task);
    world.check();
    let state = world.task(task);
    let past = world.db.past_leases.values().rfind(|past| past.task_id == task).map(|past| past.id);
    let lease = state.lease.as_ref().map(|lease| lease.id).or(past);
    Case { name, task, lease, world }
}

pub fn fail_retryably(world: &mut World, task: TaskId) {
    let lease = world.lease_of(task);
    let failed = Completion { retryable: true, retry_at: Some(world.now + 60_000), ..completion(task, Some(lease), Outcome::Error) };
    world.ok(failed);
}

fn lease(world: &mut World, task: TaskId) {
    world.lease(task, "w1");
}

fn claim(world: &mut World, _: TaskId) {
    assert_eq!(world.claim("w1", 1).len(), 1);
}

fn push(world: &mut World, task: TaskId) {
    world.push(task, "w1");
}

fn run(world: &mut World, task: TaskId) {
    lease(world, task);
    world.now += 1_000;
    world.heartbeat(task);
}

fn cancel(world: &mut World, task: TaskId) {
    world.ok(op::Cancel { task });
}

fn once() -> TaskSpec {
    TaskSpec { max_attempts: 1, ..spec("c") }
}

pub fn cases() -> Vec<Case> {
    let first = |world: &World| *world.db.tasks.keys().next().unwrap();
    let keyed = || TaskSpec { exclusive_key: Some("k".into()), ..spec("other") };
    vec![
        case("queued", spec("c"), |_, _| {}),
        case_after(
            "waits for a dependency",
            |world| {
                world.create(spec("other"));
            },
            |world| TaskSpec { depends_on: vec![first(world)], ..spec("c") },
            |_, _| {},
        ),
        case("waits for its time", TaskSpec { not_before: Some(START + 60_000), ..spec("c") }, |_, _| {}),
        case_after(
            "waits in its context",
            |world| {
                world.create(spec("c"));
            },
            |_| spec("c"),
            |_, _| {},
        ),
        case_after(
            "waits for its key",
            |world| {
                let holder = world.create(keyed());
                world.lease(holder, "w2");
            },
            |_| TaskSpec { exclusive_key: Some("k".into()), ..spec("c") },
            |_, _| {},
        ),
        case("leased by a call", spec("c"), lease),
        case("leased by a claim", spec("c"), claim),
        case("leased by a push", spec("c"), push),
        case("running by a call", spec("c"), run),
        case("running by a claim", spec("c"), |world, task| {
            claim(world, task);
            world.now += 1_000;
            world.heartbeat(task);
        }),
        case("running by a push", spec("c"), |world, task| {
            push(world, task);
            world.now += 1_000;
            world.heartbeat(task);
        }),
        case("on its last attempt", once(), run),
        case("leased, cancel requested", spec("c"), |world, task| {
            lease(world, task);
            cancel(world, task);
        }),
        case("running, cancel requested", once(), |world, task| {
            run(world, task);
            cancel(world, task);
        }),
        case("queued after an expiry", spec("c"), |world, task| {
            run(world, task);
            world.expire(task);
        }),
        case("dead by an expiry", once(), |world, task| {
            run(world, task);
            world.expire(task);
        }),
        case("waits after a failure", spec("c"), |world, task| {
            run(world, task);
            fail_retryably(world, task);
        }),
        case("dead after a failure", once(), |world, task| {
            run(world, task);
            fail_retryably(world, task);
        }),
        case("completed", spec("c"), |world, task| {
            run(world, task);
            world.complete(task, Outcome::Success);
        }),
        case("failed", spec("c"), |world, task| {
            run(world, task);
            world.complete(task, Outcome::Error);
        }),
        case("cancelled", spec("c"), cancel),
        case("requeued after death", once(), |world, task| {
            run(world, task);
            world.expire(task);
            world.ok(op::Requeue { task, limits: LimitChange::default() });
        }),
    ]
}
