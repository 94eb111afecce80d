//! Which tasks are woken by the end of something, reservations, and two replicas that create tasks in one context.

use bloom_core::agent_queue::ALL_QUEUES;
use bloom_core::command::{CordonChange, Grace, Loss, Op, QueueChange, WorkerChange};
use bloom_core::decide::decide;
use bloom_core::ids::{TaskId, created_at};
use bloom_core::op;
use bloom_core::reply::Due;
use bloom_core::task::{Outcome, Parked, Session, Status, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_core::wakeup::{Progress, Subject};
use bloom_core::working_set::WorkingSet;
use bloom_test_world::world::{SESSION_WAIT_MS, START, TTL_MS, World, registration, spec, world};

use super::namespaces::of_object;

fn two_workers() -> World {
    let mut world = world().worker("w1", 4).worker("w2", 4);
    world.strict = true;
    world
}

fn parked(world: &World, task: TaskId) -> Option<Parked> {
    assert_eq!(world.task(task).status, Status::Queued);
    world.task(task).parked
}

fn leased(world: &mut World, worker: &str) -> Vec<TaskId> {
    world.claim(worker, 9).into_iter().map(|task| task.id).collect()
}

fn keyed(context: &str, priority: i64) -> TaskSpec {
    TaskSpec { exclusive_key: Some("k".into()), priority, ..spec(context) }
}

/// Like [`World::create`], but one millisecond later, because ids that two batches make in the same millisecond do not sort by creation.
fn create_next(world: &mut World, spec: TaskSpec) -> TaskId {
    world.now += 1;
    world.create(spec)
}

/// The second task of a context, reserved for `w1`, which ran the first one.
fn reserved() -> (World, TaskId) {
    reserved_of([spec("c"), spec("c")])
}

/// Like [`reserved`], with tasks of this namespace.
fn reserved_in(namespace: &str) -> (World, TaskId) {
    reserved_of([1, 2].map(|uid| of_object(namespace, uid, "c")))
}

fn reserved_of(specs: [TaskSpec; 2]) -> (World, TaskId) {
    let mut world = two_workers();
    let [first, second] = specs.map(|spec| world.create(spec));
    world.lease(first, "w1");
    world.complete(first, Outcome::Success);
    assert_eq!(parked(&world, second), Some(Parked::Reserved));
    (world, second)
}

#[test]
fn a_task_that_was_called_out_of_turn_goes_back_behind_its_predecessor() {
    let ends: [fn(&mut World, TaskId); 2] = [
        |world, task| world.expire(task),
        |world, task| {
            let lease = world.lease_of(task);
            world.ok(op::Release { task, lease, reason: "shutdown".into() });
        },
    ];
    for end in ends {
        let mut world = two_workers();
        let [first, second] = ["c", "c"].map(|context| world.create(spec(context)));
        world.lease(second, "w1");
        end(&mut world, second);
        assert_eq!((parked(&world, first), parked(&world, second)), (None, Some(Parked::Session)));
        assert_eq!(leased(&mut world, "w2"), [first]);
        world.complete(first, Outcome::Success);
        assert_eq!(leased(&mut world, "w2"), [second]);
    }
}

#[test]
fn of_two_that_create_in_one_context_at_once_the_second_looks_again() {
    let mut world = two_workers();
    for before in 0..2 {
        let create = Op::Create(op::Create { tasks: vec![spec("c")] });
        let mut late = WorkingSet::new(world.db.load(world.now, &create.keys()), 99 + before);
        assert!(decide(&mut late, &create.clone().into()).is_ok());
        let first = world.create(spec("c"));
        assert_eq!(world.db.clone().write(&late), Err("one successor per task"));
        let second = world.create(spec("c"));
        assert_eq!((world.task(second).created_after, parked(&world, second)), (Some(first), Some(Parked::Session)));
    }
}

#[test]
fn of_those_that_wait_for_a_key_the_first_of_each_agent_goes_on() {
    let mut world = two_workers();
    let holder = world.create(keyed("h", 5));
    world.lease(holder, "w1");
    let of = |agent: &str, priority| TaskSpec { agent_slug: agent.into(), session: Session::None, ..keyed("x", priority) };
    let tasks = [of("a", 1), of("a", 9), of("b", 1), of("b", 5), of("b", 5)].map(|spec| create_next(&mut world, spec));
    world.complete(holder, Outcome::Success);
    let waits = Some(Parked::ExclusiveKey);
    assert_eq!(tasks.map(|task| parked(&world, task)), [waits, None, waits, None, waits]);
    assert!([tasks[1], tasks[3]].iter().all(|task| world.task(*task).has_dependents), "more tasks wait behind them");
    // One of them takes the key, the others are parked again, and in the end every task has had it.
    for expected in [tasks[1], tasks[3], tasks[4], tasks[0], tasks[2]] {
        assert_eq!(leased(&mut world, "w2"), [expected]);
        world.complete(expected, Outcome::Success);
    }
}

#[test]
fn whoever_is_to_have_the_key_and_does_not_take_it_passes_it_on() {
    let ends: [fn(&mut World, TaskId); 2] = [
        |world, head| drop(world.ok(op::Cancel { task: head })),
        |world, head| {
            // An earlier task of its context is requeued and runs.
            let earlier = *world.db.tasks.keys().next().unwrap();
            world.ok(op::Requeue { task: earlier, limits: LimitChange::default() });
            assert!(leased(world, "w1").contains(&earlier));
            let again = Op::Claim(bloom_core::command::Claim {
                worker: "w1".into(),
                candidates: vec![head],
                max: 1,
                held: None,
                instance: None,
                ttl_ms: TTL_MS,
            });
            world.ok(again);
            assert_eq!(parked(world, head), Some(Parked::Session));
        },
    ];
    for end in ends {
        let mut world = two_workers();
        let earlier = world.create(spec("s"));
        world.lease(earlier, "w1");
        world.complete(earlier, Outcome::Error);
        let holder = world.create(keyed("h", 5));
        world.lease(holder, "w1");
        let [head, next] = [keyed("s", 1), keyed("t", 0)].map(|spec| world.create(spec));
        world.complete(holder, Outcome::Success);
        assert_eq!((parked(&world, next), world.task(head).has_dependents), (Some(Parked::ExclusiveKey), true));
        assert!(parked(&world, head).is_none_or(|parked| parked == Parked::Reserved));
        // This test is not about reservations, so they end first.
        world.now += SESSION_WAIT_MS;
        world.do_what_is_due();
        end(&mut world, head);
        assert!(world.task(next).lease.is_some() || parked(&world, next).is_none(), "the key is free, and the next task was woken");
    }
}

#[test]
fn the_word_is_passed_on_though_its_hearer_has_moved_since_it_was_looked_up() {
    let moves: [fn(&mut World, TaskId); 3] = [
        |world, head| drop(world.ok(op::Cancel { task: head })),
        |world, head| {
            // Another re-evaluation finds that an earlier task of its context was requeued.
            let earlier = *world.db.tasks.keys().next().unwrap();
            world.ok(op::Requeue { task: earlier, limits: LimitChange::default() });
            world.ok(op::Reevaluate { tasks: vec![head], progress: None });
            assert_eq!(parked(world, head), Some(Parked::Session));
        },
        // Another re-evaluation has made it ready.
        |world, head| {
            world.ok(op::Reevaluate { tasks: vec![head], progress: None });
        },
    ];
    for moved in moves {
        let mut world = two_workers();
        let earlier = world.create(spec("s"));
        world.lease(earlier, "w1");
        world.complete(earlier, Outcome::Error);
        let holder = create_next(&mut world, keyed("h", 5));
        world.lease(holder, "w1");
        let [head, next] = [keyed("s", 1), keyed("t", 0)].map(|spec| create_next(&mut world, spec));
        world.crashing = true;
        world.complete(holder, Outcome::Success);
        let word = world.db.wakeups.values().find(|wakeup| wakeup.subject == Subject::Key("k".into())).unwrap().clone();
        let page = world.db.waiters(&word, 9);
        assert_eq!((page.tasks.as_slice(), page.more_want_key), ([head].as_slice(), true));
        moved(&mut world, head);
        assert_eq!(parked(&world, next), Some(Parked::ExclusiveKey));
        let progress = Progress { wakeup: word.id, next: None, more_want_key: true };
        world.ok(op::Reevaluate { tasks: page.tasks, progress: Some(progress) });
        if world.task(head).status == Status::Queued && parked(&world, head).is_none() {
            world.ok(op::Cancel { task: head });
        }
        assert_eq!(parked(&world, next), None);
    }
}

#[test]
fn a_reserved_task_is_for_its_worker_until_its_time_is_over() {
    let (mut world, task) = reserved();
    let state = world.task(task);
    assert_eq!((state.session_worker.as_deref(), state.wake_at), (Some("w1"), Some(START + SESSION_WAIT_MS)));
    assert!(state.is_open_to("w1") && !state.is_open_to("w2") && !state.is_ready());
    let claim = |worker: &str| bloom_core::command::Claim {
        worker: worker.into(),
        candidates: vec![task],
        max: 1,
        held: None,
        instance: None,
        ttl_ms: TTL_MS,
    };
    let claimed = world.ok(claim("w2"));
    assert!(claimed.leased.is_empty() && claimed.missed == 1);

    let mut kept = world.clone();
    assert_eq!(leased(&mut kept, "w1"), [task]);
    let mut called = world.clone();
    called.lease(task, "w2");
    assert_eq!((called.task(task).parked, called.task(task).wake_at), (None, None));

    world.now += SESSION_WAIT_MS - 1;
    world.do_what_is_due();
    assert_eq!(parked(&world, task), Some(Parked::Reserved));
    world.now += 1;
    world.do_what_is_due();
    assert_eq!((parked(&world, task), &world.task(task).session_worker), (None, &None));
    // It is not reserved a second time.
    world.ok(op::Reevaluate { tasks: vec![task], progress: None });
    assert_eq!(parked(&world, task), None);
    assert_eq!(leased(&mut world, "w2"), [task]);
}

#[test]
fn a_reservation_is_not_over_while_no_worker_may_get_the_task() {
    for slug in ["coder", ALL_QUEUES] {
        let (mut world, task) = reserved();
        let set = |world: &mut World, change| drop(world.ok(op::ChangeQueue { agent_slug: slug.into(), change }));
        set(&mut world, QueueChange::Pause);
        for round in 1..=3 {
            world.now += SESSION_WAIT_MS;
            world.do_what_is_due();
            let state = world.task(task);
            assert_eq!((state.parked, state.wake_at), (Some(Parked::Reserved), Some(START + (round + 1) * SESSION_WAIT_MS)), "{slug}");
        }
        set(&mut world, QueueChange::Resume);
        let mut taken = world.clone();
        assert_eq!(leased(&mut taken, "w1"), [task]);
        world.now += SESSION_WAIT_MS;
        world.do_what_is_due();
        assert_eq!((parked(&world, task), &world.task(task).session_worker), (None, &None));
        world.check();
    }
}

#[test]
fn a_reservation_ends_with_the_hope_for_its_worker() {
    let agents = |agents: &[&str]| {
        let agents = Some(Some(agents.iter().map(|agent| (*agent).to_owned()).collect()));
        Op::RegisterWorker(Box::new(WorkerChange { agents, ..registration("w1", 4) }))
    };
    let namespaces = |names: &[&str]| {
        let namespaces = Some(names.iter().map(|name| (*name).to_owned()).collect());
        Op::RegisterWorker(Box::new(WorkerChange { namespaces, ..registration("w1", 4) }))
    };
    let cordon = |change| Op::Cordon(op::Cordon { worker: "w1".into(), change });
    for (op, ends) in [
        (cordon(CordonChange::Cordon), true),
        (cordon(CordonChange::Drain), true),
        (cordon(CordonChange::Uncordon), false),
        (Op::MarkOffline(op::MarkOffline { worker: "w1".into(), cause: Loss::Unreachable("refused".into()) }), true),
        (Op::RemoveWorker(op::RemoveWorker { worker: "w1".into() }), true),
        (agents(&["writer"]), true),
        (agents(&["writer", "coder"]), false),
        (namespaces(&["other"]), true),
        (namespaces(&["other", "team"]), false),
        (Op::RegisterWorker(Box::new(registration("w1", 3))), false),
    ] {
        let (mut world, task) = reserved_in("team");
        let name = format!("{op:?}");
        world.ok(op);
        assert_eq!(parked(&world, task), (!ends).then_some(Parked::Reserved), "{name}");
        assert!(world.db.wakeups.is_empty());
        world.check();
    }
}

#[test]
fn there_is_no_reservation_for_a_worker_that_takes_no_tasks() {
    let mut world = two_workers();
    let [first, second] = ["c", "c"].map(|context| world.create(spec(context)));
    world.lease(first, "w1");
    world.ok(op::Cordon { worker: "w1".into(), change: CordonChange::Cordon });
    world.complete(first, Outcome::Success);
    assert_eq!((parked(&world, second), world.task(second).session_worker.as_deref()), (None, Some("w1")));
}

#[test]
fn what_a_process_leaves_behind_is_worked_off() {
    let mut world = two_workers();
    let first = world.create(keyed("c", 5));
    let second = world.create(spec("c"));
    let dependents = [0; 5].map(|_| world.create(TaskSpec { depends_on: vec![first], session: Session::None, ..spec("d") }));
    world.lease(first, "w1");
    let wants = world.create(keyed("e", 5));
    world.crashing = true;
    world.complete(first, Outcome::Success);
    assert_eq!(world.db.wakeups.len(), 3);
    assert!(dependents.iter().chain([&second, &wants]).all(|task| parked(&world, *task).is_some()));
    world.process_wakeups();
    assert!(dependents.iter().chain([&wants]).all(|task| parked(&world, *task).is_none()));
    assert_eq!(parked(&world, second), Some(Parked::Reserved));
    assert!(world.db.wakeups.is_empty());
}

#[test]
fn room_that_shrank_below_what_is_held_is_counted_truly() {
    let mut world = world().worker("w", 3);
    world.strict = true;
    let tasks = [0; 5].map(|_| create_next(&mut world, TaskSpec { session: Session::None, ..spec("c") }));
    assert_eq!(leased(&mut world, "w"), tasks[..3]);
    // This replica does not know of those leases.
    let mut late = world.clone();
    late.ok(registration("w", 1));
    assert!(late.db.workers["w"].recount_slots);
    for done in &tasks[..2] {
        late.complete(*done, Outcome::Success);
        late.blind();
        assert!(leased(&mut late, "w").is_empty(), "the worker is at its lowered capacity");
    }
    late.complete(tasks[2], Outcome::Success);
    late.blind();
    assert_eq!(leased(&mut late, "w").len(), 1);
}

#[test]
fn a_gap_in_service_puts_the_end_of_leases_off() {
    let mut world = two_workers();
    let task = world.create(spec("c"));
    let lease = world.lease(task, "w1");
    world.now += TTL_MS + 60_000;
    let resumed_at = world.now;
    let expire = |grace_ms| op::ExpireLease { task, lease, grace: Grace { resumed_at, grace_ms, ..Grace::default() } };
    assert!(matches!(world.ok(expire(10_000)), Due::Later(at) if at == resumed_at + 10_000));
    assert_eq!(world.task(task).lease.as_ref().unwrap().check_at, resumed_at + 10_000);
    assert!(matches!(world.ok(expire(10 * TTL_MS)), Due::Later(at) if at == resumed_at + TTL_MS), "the grace is not longer than the TTL");
    world.now += 10_000;
    assert!(matches!(world.ok(expire(10_000)), Due::Done));
    assert_eq!(world.task(task).status, Status::Queued);
}

#[test]
fn a_thousand_tasks_of_one_context_are_made_in_a_moment() {
    let mut world = two_workers();
    world.strict = false;
    let made = world.ok(op::Create { tasks: vec![spec("c"); 1_000] });
    let ids: Vec<TaskId> = made.iter().map(|task| task.spec.id).collect();
    assert!(ids.is_sorted() && created_at(ids[999]) - START <= 3, "{}", created_at(ids[999]) - START);
    assert!(made.iter().skip(1).zip(&ids).all(|(task, before)| task.state.created_after == Some(*before)));
}

#[test]
fn the_trail_of_a_task_sorts_as_it_happened_within_a_millisecond() {
    let mut world = two_workers();
    let task = world.create(spec("c"));
    for _ in 0..3 {
        let lease = world.lease(task, "w1");
        world.ok(op::Release { task, lease, reason: "shutdown".into() });
    }
    world.ok(op::Cancel { task });
    world.ok(op::Requeue { task, limits: LimitChange::default() });
    let own = world.db.audit.iter().filter(|entry| entry.entity_id == task.to_string() || entry.detail.contains(&task.to_string()));
    let ids: Vec<_> = own.map(|entry| entry.id).collect();
    assert!(ids.len() == 9 && ids.is_sorted(), "{:#?}", world.db.audit);
}
