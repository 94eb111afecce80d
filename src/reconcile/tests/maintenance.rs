use bloom_database::Error;
use bloom_test_database::scripted::Call;

use super::*;

const DAY_MS: Ms = 86_400_000;
/// Longer than the interval of the retention reconciler, which is five seconds.
const RUN_MS: u64 = 6_000;

async fn keeping(task_days: u32, audit_days: u32) -> Replica {
    Replica::start(ScriptedDatabase::default(), 1, task_days, audit_days).await
}

fn is_there(replica: &Replica, task: TaskId) -> bool {
    replica.database.tables().memory.tasks.contains_key(&task)
}

#[tokio::test(start_paused = true)]
async fn finished_tasks_go_when_their_days_are_over() {
    let replica = keeping(2, 0).await;
    let (done, queued) = (replica.create(|_| {}).await, replica.create(|_| {}).await);
    replica.cancel(done).await;
    replica.database.step_clock(DAY_MS);
    pass(RUN_MS).await;
    assert!(is_there(&replica, done));
    replica.database.step_clock(DAY_MS);
    pass(RUN_MS).await;
    assert!(!is_there(&replica, done) && is_there(&replica, queued));
    assert_eq!(replica.engine.replica.stats().tasks_by_status.values().sum::<i64>(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_days_only_the_tasks_own_time_counts() {
    let replica = keeping(0, 0).await;
    let kept = replica.create(|_| {}).await;
    let short = replica.create(|task| task.ttl_after_finished_sec = Some(60)).await;
    replica.cancel(kept).await;
    replica.cancel(short).await;
    pass(50_000).await;
    assert!(is_there(&replica, short));
    pass(10_000 + RUN_MS).await;
    assert!(!is_there(&replica, short));
    replica.database.step_clock(1_000 * DAY_MS);
    pass(RUN_MS).await;
    assert!(is_there(&replica, kept));
}

#[tokio::test(start_paused = true)]
async fn old_audit_entries_go_and_new_ones_stay() {
    let replica = keeping(0, 3).await;
    replica.create(|_| {}).await;
    replica.database.step_clock(3 * DAY_MS + 1_000);
    let before = replica.database.tables().memory.audit.len();
    replica.create(|_| {}).await;
    let new = replica.database.tables().memory.audit.len() - before;
    pass(RUN_MS).await;
    assert_eq!(replica.database.tables().memory.audit.len(), new);
}

#[tokio::test(start_paused = true)]
async fn counts_are_compacted_and_old_batches_pruned() {
    let replica = keeping(0, 0).await;
    for _ in 0..10 {
        replica.create(|_| {}).await;
    }
    replica.database.fail(Call::Maintain, Error::Unavailable("the connection broke".into()));
    pass(3_000).await;
    {
        let tables = replica.database.tables();
        assert_eq!(tables.compacted.tasks, tables.counted());
        assert_eq!(tables.batches.len(), 10, "other replicas may not have read them yet");
    }
    pass(61_000).await;
    assert_eq!(replica.database.tables().batches.len(), 1, "the newest batch is kept to resolve a commit with an unknown outcome");
}
