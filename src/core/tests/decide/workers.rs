//! What each command does to a worker in each state.

use super::table::compare;
use bloom_core::command::{Choice, Claim, CordonChange, Loss, Op, WorkerChange};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::task::Outcome;
use bloom_core::worker::WorkerStatus;
use bloom_test_world::world::{TTL_MS, World, registration, spec, world};

const NOT_SEEN_MS: i64 = 60_000;

/// Worker `w` in every state, and a queued task.
fn cases() -> Vec<(&'static str, World, TaskId)> {
    let with_status = |world: &mut World, status| {
        world.ok(WorkerChange { status: Some(status), ..registration("w", 1) });
    };
    let cordon = |world: &mut World, change| {
        world.ok(op::Cordon { worker: "w".into(), change });
    };
    let lose = |world: &mut World| {
        world.now += NOT_SEEN_MS + 1;
        world.ok(op::MarkOffline { worker: "w".into(), cause: Loss::Silent { for_ms: NOT_SEEN_MS, served_since: 0, has_started: false } });
    };
    let case = |name, then: &dyn Fn(&mut World)| {
        let mut world = world().worker("w", 1);
        world.strict = true;
        then(&mut world);
        let task = world.create(spec("c"));
        (name, world, task)
    };
    vec![
        case("unknown", &|world| {
            world.ok(op::RemoveWorker { worker: "w".into() });
        }),
        case("online", &|_| {}),
        case("lost", &lose),
        case("set offline", &|world| with_status(world, WorkerStatus::Offline)),
        case("in error", &|world| with_status(world, WorkerStatus::Error)),
        case("in error, lost", &|world| {
            with_status(world, WorkerStatus::Error);
            lose(world);
        }),
        case("cordoned", &|world| cordon(world, CordonChange::Cordon)),
        case("draining", &|world| cordon(world, CordonChange::Drain)),
        case("full", &|world| {
            let task = world.create(spec("other"));
            world.lease(task, "w");
        }),
        case("without claude", &|world| {
            world.ok(WorkerChange { claude_cli: Some(false), ..registration("w", 1) });
        }),
        case("for other agents", &|world| {
            world.ok(WorkerChange { agents: Some(Some(vec!["writer".into()])), ..registration("w", 1) });
        }),
        case("for a namespace", &|world| {
            world.ok(WorkerChange { namespaces: Some(vec!["team".into()]), ..registration("w", 1) });
        }),
    ]
}

/// Like the check for tasks, but describes the worker.
fn check(op: impl Fn(&World, TaskId) -> Op, expected: &str) {
    let rows = cases().into_iter().map(|(name, mut world, task)| {
        let before = world.clone();
        let op = op(&world, task);
        let answer = world.run(op);
        world.check();
        let outcome = match answer {
            Err(rejection) => {
                assert_eq!(before.db, world.db, "a rejection changes nothing");
                format!("✗ {rejection}")
            }
            Ok(_) if before.db == world.db => "unchanged".into(),
            Ok(_) => {
                let audit = world.db.audit[before.db.audit.len()..].iter().map(|entry| format!("; {} by {}", entry.action, entry.actor));
                describe(&world) + &audit.collect::<String>()
            }
        };
        (name, outcome)
    });
    compare(rows, expected);
}

fn describe(world: &World) -> String {
    let Some(worker) = world.db.workers.get("w") else { return "gone".into() };
    let mut text = format!("{} seen {} s ago", worker.shown_status(), (world.now - worker.last_seen) / 1000);
    for (flag, word) in [(worker.cordoned, " cordoned"), (worker.draining, " draining")] {
        text += if flag { word } else { "" };
    }
    format!("{text} {}/{}", world.db.used("w").count_ones(), worker.capabilities.max_concurrency)
}

#[test]
fn it_registers_again() {
    check(
        |_, _| Op::RegisterWorker(Box::new(WorkerChange { max_concurrency: None, ..registration("w", 1) })),
        "
        online seen 0 s ago 0/1; worker_registered by api <- unknown
        unchanged <- online | set offline | in error | cordoned | draining | full | without claude | for other agents | for a namespace
        online seen 0 s ago 0/1; worker_online by w <- lost
        error seen 0 s ago 0/1; worker_online by w <- in error, lost",
    );
}

#[test]
fn it_registers_with_more_places() {
    check(
        |_, _| Op::RegisterWorker(Box::new(registration("w", 3))),
        "
        online seen 0 s ago 0/3; worker_registered by api <- unknown
        online seen 0 s ago 0/3; worker_updated by api <- online | without claude | for other agents | for a namespace
        online seen 0 s ago 0/3; worker_updated by api; worker_online by w <- lost
        offline seen 0 s ago 0/3; worker_updated by api <- set offline
        error seen 0 s ago 0/3; worker_updated by api <- in error
        error seen 0 s ago 0/3; worker_updated by api; worker_online by w <- in error, lost
        online seen 0 s ago cordoned 0/3; worker_updated by api <- cordoned
        online seen 0 s ago cordoned draining 0/3; worker_updated by api <- draining
        online seen 0 s ago 1/3; worker_updated by api <- full",
    );
}

#[test]
fn it_is_removed() {
    check(
        |_, _| Op::RemoveWorker(op::RemoveWorker { worker: "w".into() }),
        "
        ✗ Worker not found <- unknown
        gone; worker_removed by admin <- online | lost | set offline | in error | in error, lost | cordoned | draining
            | without claude | for other agents | for a namespace
        gone; task_released by admin; worker_removed by admin <- full",
    );
}

#[test]
fn it_is_cordoned() {
    check(
        |_, _| Op::Cordon(op::Cordon { worker: "w".into(), change: CordonChange::Cordon }),
        "
        ✗ Worker not found <- unknown
        online seen 0 s ago cordoned 0/1; worker_cordoned by admin <- online | without claude | for other agents | for a namespace
        offline seen 60 s ago cordoned 0/1; worker_cordoned by admin <- lost | in error, lost
        offline seen 0 s ago cordoned 0/1; worker_cordoned by admin <- set offline
        error seen 0 s ago cordoned 0/1; worker_cordoned by admin <- in error
        unchanged <- cordoned | draining
        online seen 0 s ago cordoned 1/1; worker_cordoned by admin <- full",
    );
}

#[test]
fn it_is_drained() {
    check(
        |_, _| Op::Cordon(op::Cordon { worker: "w".into(), change: CordonChange::Drain }),
        "
        ✗ Worker not found <- unknown
        online seen 0 s ago cordoned draining 0/1; worker_draining by admin <- online | cordoned | without claude
            | for other agents | for a namespace
        offline seen 60 s ago cordoned draining 0/1; worker_draining by admin <- lost | in error, lost
        offline seen 0 s ago cordoned draining 0/1; worker_draining by admin <- set offline
        error seen 0 s ago cordoned draining 0/1; worker_draining by admin <- in error
        unchanged <- draining
        online seen 0 s ago cordoned draining 1/1; worker_draining by admin <- full",
    );
}

#[test]
fn it_is_uncordoned() {
    check(
        |_, _| Op::Cordon(op::Cordon { worker: "w".into(), change: CordonChange::Uncordon }),
        "
        ✗ Worker not found <- unknown
        unchanged <- online | lost | set offline | in error | in error, lost | full | without claude | for other agents | for a namespace
        online seen 0 s ago 0/1; worker_uncordoned by admin <- cordoned | draining",
    );
}

#[test]
fn it_is_seen() {
    check(
        |world, _| Op::RecordLastSeen(op::RecordLastSeen { last_seen: vec![("w".into(), world.now + 5_000)] }),
        "
        unchanged <- unknown | online | set offline | in error | cordoned | draining | full | without claude | for other agents | for a namespace
        online seen 0 s ago 0/1; worker_online by w <- lost
        error seen 0 s ago 0/1; worker_online by w <- in error, lost",
    );
}

#[test]
fn it_was_seen_before_what_is_known() {
    check(
        |_, _| Op::RecordLastSeen(op::RecordLastSeen { last_seen: vec![("w".into(), 1)] }),
        "
        unchanged <- unknown | online | lost | set offline | in error | in error, lost | cordoned | draining | full
            | without claude | for other agents | for a namespace",
    );
}

#[test]
fn it_is_silent_but_not_for_long() {
    check(
        |_, _| {
            Op::MarkOffline(op::MarkOffline {
                worker: "w".into(),
                cause: Loss::Silent { for_ms: 10 * NOT_SEEN_MS, served_since: 0, has_started: false },
            })
        },
        "
        unchanged <- unknown | online | lost | set offline | in error | in error, lost | cordoned | draining | full
            | without claude | for other agents | for a namespace",
    );
}

#[test]
fn it_is_silent_for_too_long() {
    check(
        |_, _| {
            Op::MarkOffline(op::MarkOffline { worker: "w".into(), cause: Loss::Silent { for_ms: -1, served_since: 0, has_started: false } })
        },
        "
        unchanged <- unknown | lost | set offline | in error, lost
        offline seen 0 s ago 0/1; worker_offline by reconciler <- online | in error | without claude | for other agents | for a namespace
        offline seen 0 s ago cordoned 0/1; worker_offline by reconciler <- cordoned
        offline seen 0 s ago cordoned draining 0/1; worker_offline by reconciler <- draining
        offline seen 0 s ago 1/1; worker_offline by reconciler <- full",
    );
}

#[test]
fn its_agent_does_not_answer() {
    check(
        |_, _| Op::MarkOffline(op::MarkOffline { worker: "w".into(), cause: Loss::Unreachable("connection refused".into()) }),
        "
        unchanged <- unknown | lost | set offline | in error, lost
        offline seen 0 s ago 0/1; worker_offline by admin <- online | in error | without claude | for other agents | for a namespace
        offline seen 0 s ago cordoned 0/1; worker_offline by admin <- cordoned
        offline seen 0 s ago cordoned draining 0/1; worker_offline by admin <- draining
        offline seen 0 s ago 1/1; worker_offline by admin <- full",
    );
}

#[test]
fn its_agent_is_uninstalled() {
    check(
        |_, _| Op::MarkOffline(op::MarkOffline { worker: "w".into(), cause: Loss::Uninstalled }),
        "
        unchanged <- unknown
        offline seen 0 s ago 0/1; agent_uninstalled by admin; worker_offline by admin <- online | in error | without claude
            | for other agents | for a namespace
        offline seen 60 s ago 0/1; agent_uninstalled by admin <- lost | in error, lost
        offline seen 0 s ago 0/1; agent_uninstalled by admin <- set offline
        offline seen 0 s ago cordoned 0/1; agent_uninstalled by admin; worker_offline by admin <- cordoned
        offline seen 0 s ago cordoned draining 0/1; agent_uninstalled by admin; worker_offline by admin <- draining
        offline seen 0 s ago 1/1; agent_uninstalled by admin; worker_offline by admin <- full",
    );
}

#[test]
fn it_is_named_by_a_lease_call() {
    check(
        |_, task| Op::Lease(op::Lease { task, choice: Choice::Named("w".into()), ttl_ms: TTL_MS, origin: Origin::Call }),
        "
        ✗ Worker not found <- unknown
        online seen 0 s ago 1/1; task_leased by router <- online
        ✗ No available worker with free capacity <- lost | set offline | in error | in error, lost | cordoned | draining | full
            | without claude | for other agents | for a namespace",
    );
}

#[test]
fn a_lease_call_looks_for_a_worker() {
    check(
        |_, task| {
            Op::Lease(op::Lease {
                task,
                choice: Choice::Among { workers: Vec::new(), context: None },
                ttl_ms: TTL_MS,
                origin: Origin::Call,
            })
        },
        "
        ✗ No available worker with free capacity <- unknown | lost | set offline | in error | in error, lost | cordoned
            | draining | full | without claude | for other agents | for a namespace
        online seen 0 s ago 1/1; task_leased by router <- online",
    );
}

#[test]
fn it_claims() {
    check(
        |_, task| Op::Claim(Claim { worker: "w".into(), candidates: vec![task], max: 1, held: None, instance: None, ttl_ms: TTL_MS }),
        "
        ✗ Worker not found <- unknown
        online seen 0 s ago 1/1; task_leased by reconciler <- online | without claude
        online seen 0 s ago 1/1; worker_online by w; task_leased by reconciler <- lost
        unchanged <- set offline | in error | cordoned | draining | full | for other agents | for a namespace
        error seen 0 s ago 0/1; worker_online by w <- in error, lost",
    );
}

#[test]
fn a_lease_call_prefers_the_contexts_worker_then_room_then_the_last_seen() {
    let among = |workers: &[&str]| Choice::Among { workers: workers.iter().map(|id| (*id).to_owned()).collect(), context: None };
    let lease = |world: &mut World, context: &str| {
        let task = world.create(spec(context));
        world.ok(op::Lease { task, choice: among(&["a", "b", "c"]), ttl_ms: TTL_MS, origin: Origin::Call });
        let worker = world.task(task).lease.as_ref().unwrap().worker_id.clone();
        (task, worker)
    };
    let mut world = world().worker("a", 3).worker("b", 4).worker("c", 4);
    world.now += 1;
    world.ok(op::RecordLastSeen { last_seen: vec![("c".into(), world.now)] });
    let (first, worker) = lease(&mut world, "x");
    assert_eq!(worker, "c", "c has as many free slots as b and was seen later");
    assert_eq!(lease(&mut world, "y").1, "b", "b has the most free slots");
    assert_eq!(lease(&mut world, "x").1, "c", "c runs a task of the context");
    world.complete(first, Outcome::Success);
    assert_eq!(lease(&mut world, "x").1, "c", "c still runs a task of the context");
    for held in world.db.held_by("c").map(|task| task.id).collect::<Vec<_>>() {
        world.complete(held, Outcome::Success);
    }
    let other = world.create(spec("z"));
    world.lease(other, "c");
    world.now += 24 * 60 * 60 * 1000;
    assert_eq!(lease(&mut world, "x").1, "c", "c completed a task of the context less than a day ago");
}

#[test]
fn a_sign_of_life_from_before_a_worker_was_marked_offline_does_not_bring_it_back() {
    let mut world = world().worker("w", 1);
    let sign = world.now + 500;
    world.now += 1_000;
    world.ok(op::MarkOffline { worker: "w".into(), cause: Loss::Unreachable("connection refused".into()) });
    world.now += 100;
    world.ok(op::RecordLastSeen { last_seen: vec![("w".into(), sign)] });
    assert!(world.db.workers["w"].lost, "`last_seen` is older than the mark");
    world.ok(op::RecordLastSeen { last_seen: vec![("w".into(), world.now)] });
    assert!(!world.db.workers["w"].lost);
}
