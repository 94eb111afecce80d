//! Pausing, resuming and limiting queues, and the effect on leases.

use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue, Closed, MAX_QUEUES};
use bloom_core::command::{Choice, Claim, Op, QueueChange, Rejection, Reply};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::reply::Claimed;
use bloom_core::task::{Outcome, Session, TaskSpec};
use bloom_test_world::world::{START, TTL_MS, World, spec, world};

fn change(world: &mut World, agent_slug: &str, change: QueueChange) -> AgentQueue {
    world.ok(op::ChangeQueue { agent_slug: agent_slug.into(), change })
}

fn lease(task: TaskId) -> op::Lease {
    op::Lease { task, choice: Choice::Named("w".into()), ttl_ms: TTL_MS, origin: Origin::Call }
}

fn push(task: TaskId) -> op::Push {
    op::Push { task, worker: "w".into(), ttl_ms: TTL_MS }
}

fn claim(candidates: &[TaskId]) -> Claim {
    Claim { worker: "w".into(), candidates: candidates.to_vec(), max: 9, held: None, instance: None, ttl_ms: TTL_MS }
}

fn of(agent: &str) -> TaskSpec {
    TaskSpec { agent_slug: agent.into(), session: Session::None, ..spec("c") }
}

/// A worker with room, three tasks for `a` and one for `b`.
fn desk() -> (World, [TaskId; 3], TaskId) {
    let mut world = world().worker("w", 8);
    world.strict = true;
    let of_a = [(); 3].map(|()| world.create(of("a")));
    let of_b = world.create(of("b"));
    (world, of_a, of_b)
}

#[test]
fn no_lease_of_a_paused_queue_is_made() {
    for paused in ["a", ALL_QUEUES] {
        let (mut world, of_a, of_b) = desk();
        change(&mut world, paused, QueueChange::Pause);
        let closed = if paused == "a" { Closed::Paused("a".into()) } else { Closed::AllPaused };
        let rejection = || Some(Rejection::QueueClosed(closed.clone()));
        assert_eq!(world.run(lease(of_a[0])).err(), rejection());
        assert_eq!(world.run(push(of_a[0])).err(), rejection());
        let Claimed { leased, missed, closed, .. } = world.ok(claim(&[of_a[0], of_b]));
        let others = if paused == "a" { (1, vec!["a"]) } else { (0, vec!["a", "b"]) };
        assert_eq!((leased.len(), closed.iter().map(String::as_str).collect::<Vec<_>>()), others);
        assert_eq!(missed, 0, "the tasks are as they were");
        change(&mut world, paused, QueueChange::Resume);
        assert_eq!(world.ok(claim(&of_a)).leased.len(), 3);
        world.check();
    }
}

#[test]
fn leases_of_a_paused_queue_go_on() {
    let (mut world, of_a, _) = desk();
    let claimed = world.ok(Claim { max: 1, held: None, ..claim(&of_a) }).leased;
    let task = claimed[0].id;
    change(&mut world, "a", QueueChange::Pause);
    world.heartbeat(task);
    let again = world.ok(Claim { held: Some(Vec::new()), ..claim(&[]) }).leased;
    assert_eq!(again[0].id, task, "a lease whose delivery was lost is delivered again");
    world.complete(task, Outcome::Success);
    world.check();
}

#[test]
fn a_limit_holds_within_a_batch_too() {
    let (mut world, of_a, of_b) = desk();
    change(&mut world, "a", QueueChange::Limit(Some(2)));
    let ops = vec![lease(of_a[0]).into(), lease(of_a[1]).into(), lease(of_a[2]).into(), claim(&[of_a[2], of_b]).into()];
    let answers = world.run_batch(ops);
    let full = Rejection::QueueClosed(Closed::Full { agent_slug: "a".into(), limit: 2 });
    assert_eq!(answers[2].as_ref().err(), Some(&full));
    let Ok(Reply::Claimed(claimed)) = &answers[3] else { panic!("{:?}", answers[3]) };
    assert_eq!((claimed.leased[0].id, &claimed.closed[..]), (of_b, &["a".to_owned()][..]));
    // An end in the same batch makes room.
    let ended = bloom_test_world::world::completion(of_a[0], Some(world.lease_of(of_a[0])), Outcome::Success);
    let answers = world.run_batch(vec![Op::Complete(Box::new(ended)), lease(of_a[2]).into()]);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(world.db.active_of("a"), 2);
    world.check();
}

#[test]
fn a_change_counts_for_the_commands_behind_it() {
    let (mut world, of_a, _) = desk();
    let queue = |change| op::ChangeQueue { agent_slug: "a".into(), change };
    let limited = vec![lease(of_a[0]).into(), queue(QueueChange::Limit(Some(1))).into(), lease(of_a[1]).into()];
    let answers = world.run_batch(limited);
    assert!(answers[0].is_ok() && answers[2].is_err(), "{answers:?}");
    let paused = vec![queue(QueueChange::Limit(None)).into(), queue(QueueChange::Pause).into(), lease(of_a[1]).into()];
    assert_eq!(world.run_batch(paused)[2].as_ref().err(), Some(&Rejection::QueueClosed(Closed::Paused("a".into()))));
    assert!(world.run_batch(vec![queue(QueueChange::Resume).into(), lease(of_a[1]).into()])[1].is_ok());
}

#[test]
fn a_change_is_numbered_and_audited_once() {
    let (mut world, ..) = desk();
    world.db.audit.clear();
    let paused = change(&mut world, "a", QueueChange::Pause);
    assert_eq!(paused, AgentQueue { paused_at: Some(START), revision: 1, ..AgentQueue::new("a") });
    world.now += 5;
    assert_eq!(change(&mut world, "a", QueueChange::Pause), paused);
    assert_eq!(change(&mut world, "b", QueueChange::Limit(Some(3))).revision, 2);
    assert_eq!(world.db.all_queues().revision, 2);
    assert_eq!(change(&mut world, "a", QueueChange::Limit(Some(3))).paused_at, Some(START));
    change(&mut world, "a", QueueChange::Resume);
    change(&mut world, "a", QueueChange::Limit(None));
    change(&mut world, "c", QueueChange::Resume);
    assert_eq!(world.db.queues.keys().collect::<Vec<_>>(), [ALL_QUEUES, "b"], "a queue for which nothing is set has no row");
    assert_eq!(change(&mut world, ALL_QUEUES, QueueChange::Pause).revision, 6);
    let told: Vec<_> = world.db.audit.iter().map(|entry| format!("{} {} {}", entry.action, entry.entity_id, entry.detail)).collect();
    let expected = [
        "queue_paused a ",
        "queue_limited b to 3",
        "queue_limited a to 3",
        "queue_resumed a ",
        "queue_limited a no limit",
        "queue_paused * ",
    ];
    assert_eq!(told, expected);
}

#[test]
fn there_is_a_limit_of_queues() {
    let mut world = world();
    for n in 0..MAX_QUEUES {
        let queue = AgentQueue { paused_at: Some(START), ..AgentQueue::new(format!("agent{n}")) };
        world.db.queues.insert(queue.agent_slug.clone(), queue);
    }
    let pause = |slug: &str| op::ChangeQueue { agent_slug: slug.into(), change: QueueChange::Pause };
    assert_eq!(world.run(pause("one-more")).err(), Some(Rejection::TooManyQueues));
    change(&mut world, "agent7", QueueChange::Limit(Some(1)));
    world.ok(pause(ALL_QUEUES));
    change(&mut world, "agent7", QueueChange::Limit(None));
    change(&mut world, "agent7", QueueChange::Resume);
    world.ok(pause("one-more"));
}
