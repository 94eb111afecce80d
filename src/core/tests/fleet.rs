//! The fleet follows what commits tell of leases and workers.

use super::support::world::{START, TTL_MS, World, spec, world};
use crate::command::{CordonWish, Loss, Op, WorkerChange};
use crate::fleet::{Fleet, Shortage};
use crate::worker::WorkerStatus;

fn fleet_of(world: &World) -> Fleet {
    let mut fleet = Fleet::default();
    world.db.workers.values().for_each(|worker| fleet.put_worker(worker.clone()));
    world.db.tasks.values().for_each(|task| {
        fleet.put_task(task);
    });
    fleet
}

#[test]
fn places_are_taken_and_given_back() {
    let mut world = world().worker("a", 2);
    let task = world.create(spec("c"));
    let mut fleet = fleet_of(&world);
    assert_eq!((fleet.free("a"), fleet.used("a")), (2, 0));

    let lease = world.lease(task, "a");
    assert_eq!(fleet.put_task(world.task(task)), None);
    assert_eq!((fleet.free("a"), fleet.used("a")), (1, 0b1));
    assert_eq!(fleet.held("a").map(|held| held.lease).collect::<Vec<_>>(), [lease]);

    world.beat(task);
    assert_eq!(fleet.put_task(world.task(task)), None, "a heartbeat frees nothing");
    world.expire(task);
    assert_eq!(fleet.put_task(world.task(task)).as_deref(), Some("a"));
    assert_eq!((fleet.free("a"), fleet.used("a")), (2, 0));
    assert_eq!(fleet.put_task(world.task(task)), None, "told twice, freed once");
}

#[test]
fn a_task_that_moved_leaves_its_old_place() {
    let mut world = world().worker("a", 1).worker("b", 1);
    let task = world.create(spec("c"));
    world.lease(task, "a");
    let mut fleet = fleet_of(&world);
    world.expire(task);
    world.lease(task, "b");
    assert_eq!(fleet.put_task(world.task(task)).as_deref(), Some("a"), "the end of the first lease was missed");
    assert_eq!((fleet.free("a"), fleet.free("b")), (1, 0));
    fleet.remove_task(task);
    assert_eq!(fleet.free("b"), 1);
}

#[test]
fn a_place_that_somebody_else_took_is_not_freed_by_its_last_holder() {
    let mut world = world().worker("a", 1);
    let (first, second) = (world.create(spec("c")), world.create(spec("d")));
    world.lease(first, "a");
    let mut fleet = fleet_of(&world);
    world.expire(first);
    world.lease(second, "a");
    fleet.put_task(world.task(second));
    fleet.put_task(world.task(first));
    assert_eq!(fleet.held("a").map(|held| held.task).collect::<Vec<_>>(), [second]);
}

#[test]
fn leases_that_are_due_and_the_next_one() {
    let mut world = world().worker("a", 4);
    let tasks: Vec<_> = ["c", "d", "e"].map(|context| world.create(spec(context))).into();
    for task in &tasks {
        world.lease(*task, "a");
        world.now += 1_000;
    }
    let mut fleet = fleet_of(&world);
    assert_eq!(fleet.due_leases(START, 10), (vec![], Some(START + TTL_MS)));
    let (due, next) = fleet.due_leases(START + TTL_MS + 1_000, 10);
    assert_eq!((due.len(), next), (2, Some(START + TTL_MS + 2_000)));
    let (due, next) = fleet.due_leases(START + TTL_MS + 1_000, 1);
    assert_eq!(due.len(), 1);
    assert!(next.is_some_and(|at| at <= START + TTL_MS + 1_000), "what did not fit is due at once");
    fleet.defer(tasks[0], START + 2 * TTL_MS);
    assert_eq!(fleet.due_leases(START + TTL_MS, 10), (vec![], Some(START + TTL_MS + 1_000)));
}

#[test]
fn silent_workers_and_the_next_one() {
    let mut world = world().worker("a", 1);
    world.now += 10;
    world = world.worker("b", 1);
    let mut fleet = fleet_of(&world);
    assert_eq!(fleet.silent_workers(START + 60_000, 60_000), (vec![], Some(START + 60_001)), "60 s is not more than 60 s");
    assert_eq!(fleet.silent_workers(START + 60_001, 60_000), (vec!["a".to_owned()], Some(START + 60_011)));
    fleet.seen("a", START + 50_000);
    fleet.seen("a", START);
    assert_eq!(fleet.silent_workers(START + 60_011, 60_000), (vec!["b".to_owned()], Some(START + 110_001)));
}

#[test]
fn why_nobody_takes_a_task() {
    let mut world = world();
    assert_eq!(fleet_of(&world).shortage("coder"), Some(Shortage::NoWorker));
    world.ok(Op::RegisterWorker(Box::new(WorkerChange {
        id: "writer".into(),
        agents: Some(vec!["writer".into()]),
        actor: "api",
        ..WorkerChange::default()
    })));
    assert_eq!(fleet_of(&world).shortage("coder"), Some(Shortage::NoWorker));
    assert_eq!(fleet_of(&world).shortage("writer"), None);

    let mut world = world.worker("a", 1).worker("b", 1);
    assert_eq!(fleet_of(&world).shortage("coder"), None);
    world.ok(Op::Cordon { worker: "a".into(), wish: CordonWish::Cordon });
    world.ok(Op::Cordon { worker: "b".into(), wish: CordonWish::Drain });
    assert_eq!(fleet_of(&world).shortage("coder"), Some(Shortage::Cordoned));
    world.ok(Op::Cordon { worker: "b".into(), wish: CordonWish::Uncordon });
    let task = world.create(spec("c"));
    world.lease(task, "b");
    assert_eq!(fleet_of(&world).shortage("coder"), Some(Shortage::NoCapacity));
}

#[test]
fn a_lost_worker_takes_tasks_by_claiming_unless_its_status_says_otherwise() {
    let mut world = world().worker("a", 1);
    world.now += 100_000;
    world.ok(Op::LoseWorker { worker: "a".into(), cause: Loss::Silent { for_ms: 60_000 } });
    assert!(fleet_of(&world).takes_tasks("a"));
    let change = WorkerChange { id: "a".into(), status: Some(WorkerStatus::Error), actor: "api", ..WorkerChange::default() };
    world.ok(Op::RegisterWorker(Box::new(change)));
    world.now += 100_000;
    world.ok(Op::LoseWorker { worker: "a".into(), cause: Loss::Silent { for_ms: 60_000 } });
    assert!(!fleet_of(&world).takes_tasks("a"));
}

#[test]
fn a_short_list_has_the_best_and_whoever_runs_the_context() {
    let mut world = world().worker("a", 1).worker("b", 5).worker("c", 3).worker("d", 4);
    let task = world.create(spec("x"));
    world.lease(task, "a");
    let fleet = fleet_of(&world);
    assert_eq!(fleet.shortlist("coder", "y", 2, false), ["b", "d"]);
    assert_eq!(fleet.shortlist("coder", "x", 2, false), ["b", "d", "a"]);
    assert_eq!(fleet.shortlist("coder", "x", 9, false), ["b", "d", "c", "a"]);
}
