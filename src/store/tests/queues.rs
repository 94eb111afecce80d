//! Tests of queues: what is loaded for placement, and the locks that keep a lease from being made while its queue changes.

use super::*;
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::command::QueueChange;

fn change(agent_slug: &str, change: QueueChange) -> Op {
    Op::ChangeQueue(op::ChangeQueue { agent_slug: agent_slug.into(), change })
}

/// The keys that a claim of the worker for the task needs.
fn claim_keys(worker: &str, task: TaskId) -> RowKeys {
    Op::Claim(Claim { worker: worker.into(), candidates: vec![task], max: 1, held: None, instance: None, ttl_ms: 1_000 }).keys()
}

fn of(agent: &str) -> TaskSpec {
    TaskSpec { agent_slug: agent.into(), ..spec(agent) }
}

crate::on_both! {

async fn placement_loads_the_queues_of_its_tasks(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 9).await;
    register(&mut writer, "w2", 9).await;
    let ids = create(&mut writer, vec![of("a"), of("a"), of("b")]).await;
    let mut load = async |task| {
        let loaded = writer.begin_and_load(&claim_keys("w", task), LockWait::Long).await.unwrap();
        writer.rollback().await.unwrap();
        (loaded.queues, loaded.active_leases)
    };
    assert_eq!(load(ids[0]).await.0.get("a"), Some(&None), "nothing is set");
    bench.at(5);
    let mut other = bench.writer().await;
    commit(&mut other, vec![change("a", QueueChange::Limit(Some(2))), change("b", QueueChange::Pause), lease(ids[0], "w")]).await;
    let (queues, active) = load(ids[1]).await;
    let limited = AgentQueue { max_concurrency: Some(2), revision: 1, ..AgentQueue::new("a") };
    assert_eq!((queues["a"].as_ref(), active), (Some(&limited), [("a".to_owned(), 1)].into()));
    let (queues, active) = load(ids[2]).await;
    let paused = AgentQueue { paused_at: Some(START + 5), revision: 2, ..AgentQueue::new("b") };
    assert_eq!((queues["b"].as_ref(), active.len()), (Some(&paused), 0));
    let all = AgentQueue { revision: 2, ..AgentQueue::default() };
    assert_eq!(bench.port().queues().await.unwrap(), [all, limited, paused]);
    assert_eq!(bench.port().closed_queues().await.unwrap(), ["b"]);
    assert_eq!(bench.port().ready_agents().await.unwrap(), ["a", "b"]);

    commit(&mut other, vec![lease(ids[1], "w2"), change(ALL_QUEUES, QueueChange::Pause)]).await;
    let mut closed = bench.port().closed_queues().await.unwrap();
    closed.sort();
    assert_eq!(closed, ["", "a", "b"]);
    assert_eq!(bench.port().ready_agents().await.unwrap(), ["b"]);
    // A queue without any settings loses its row.
    commit(&mut other, vec![change("a", QueueChange::Limit(None)), change("b", QueueChange::Resume)]).await;
    assert_eq!(bench.store.queues().await.unwrap().into_iter().map(|queue| queue.agent_slug).collect::<Vec<_>>(), [ALL_QUEUES]);
}

}

/// `Short` gives up after 50 ms, so a load that waits for the other transaction is an error here.
#[test]
fn a_change_and_a_lease_of_a_queue_exclude_each_other() {
    support::run(async {
        let bench = Bench::new(Database::Postgres).await;
        let (mut one, mut other) = (bench.writer().await, bench.writer().await);
        for worker in ["w1", "w2"] {
            register(&mut one, worker, 9).await;
        }
        let ids = create(&mut one, vec![of("a"), of("a"), of("b")]).await;
        let pause = change("a", QueueChange::Pause).keys();
        let unnamed = RowKeys { places: true, tasks: [ids[0]].into(), ..RowKeys::default() };
        let locked = |loaded: Result<bloom_core::working_set::Loaded, Error>| matches!(loaded, Err(Error::Locked(_)));

        for placement in [claim_keys("w1", ids[0]), unnamed, RowKeys { all_workers: true, ..RowKeys::default() }] {
            one.begin_and_load(&placement, LockWait::Long).await.unwrap();
            assert!(locked(other.begin_and_load(&pause, LockWait::Short).await), "a pause waits for {placement:?}");
            other.rollback().await.unwrap();
            one.rollback().await.unwrap();
            one.begin_and_load(&pause, LockWait::Long).await.unwrap();
            assert!(locked(other.begin_and_load(&placement, LockWait::Short).await), "a pause is waited for by {placement:?}");
            other.rollback().await.unwrap();
            one.rollback().await.unwrap();
        }

        // Two placements can run at the same time as long as no queue is limited.
        one.begin_and_load(&claim_keys("w1", ids[0]), LockWait::Long).await.unwrap();
        other.begin_and_load(&claim_keys("w2", ids[1]), LockWait::Short).await.unwrap();
        one.rollback().await.unwrap();
        other.rollback().await.unwrap();
        commit(&mut one, vec![change("a", QueueChange::Limit(Some(1)))]).await;
        one.begin_and_load(&claim_keys("w1", ids[0]), LockWait::Long).await.unwrap();
        assert!(locked(other.begin_and_load(&claim_keys("w2", ids[1]), LockWait::Short).await), "they would both count the same leases");
        other.rollback().await.unwrap();
        let skipped = other.begin_and_load(&claim_keys("w2", ids[1]), LockWait::Skip).await.unwrap();
        assert!(skipped.locked_queues.contains("a"));
        other.rollback().await.unwrap();
        other.begin_and_load(&claim_keys("w2", ids[2]), LockWait::Short).await.unwrap();
        other.rollback().await.unwrap();
        one.rollback().await.unwrap();
    });
}
