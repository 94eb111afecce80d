use bloom_test_database::scripted::Call;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_task_becomes_ready_when_its_time_has_come() {
    let replica = replica().await;
    for wait_ms in [90_000, 250] {
        let not_before = Some(replica.database.clock() + wait_ms);
        let task = replica.create(|task| task.not_before = not_before).await;
        assert!(!replica.task(task).is_ready());
        let waited = replica.until(|replica| replica.task(task).is_ready()).await;
        assert!((wait_ms..wait_ms + 50).contains(&waited), "{waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_that_are_due_become_ready_also_behind_the_first_page() {
    let replica = replica().await;
    let not_before = Some(replica.database.clock() + 30_000);
    let task = TaskSpec { session: Session::None, not_before, ..spec("c") };
    for _ in 0..3 {
        replica.engine.writers.submit(op::Create { tasks: vec![task.clone(); 400] }).await.unwrap();
    }
    pass(29_900).await;
    let waited = replica.until(|replica| replica.database.tables().memory.parked().is_empty()).await;
    assert!(waited < 150, "all pages are processed in one run: {waited}");
}

#[tokio::test(start_paused = true)]
async fn after_an_error_it_looks_again_soon() {
    let replica = replica().await;
    let not_before = Some(replica.database.clock() + 5_000);
    let task = replica.create(|task| task.not_before = not_before).await;
    pass(4_990).await;
    replica.database.fail(Call::DueTasks, bloom_database::Error::Unavailable("a failed query".into()));
    let waited = replica.until(|replica| replica.task(task).is_ready()).await;
    assert!((500..550).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn it_rests_until_the_next_task_is_due_when_the_clock_has_stepped_back() {
    let replica = replica().await;
    let not_before = Some(replica.database.clock() + 60_000);
    replica.create(|task| task.not_before = not_before).await;
    replica.database.step_clock(-3_600_000);
    // The task would have been due by now.
    pass(61_000).await;
    let queries = replica.database.asked(Call::DueTasks);
    pass(10_000).await;
    let queries = replica.database.asked(Call::DueTasks) - queries;
    assert!(queries <= 11, "one query a second: {queries}");
}
