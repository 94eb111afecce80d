use bloom_core::command::WorkerChange;
use bloom_core::ids::InstanceId;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_silent_worker_is_lost_until_it_is_seen() {
    let replica = replica().await;
    replica.register("w").await;
    let silent = replica.until(|replica| replica.worker("w").lost).await;
    assert!((60_000..60_050).contains(&silent), "{silent}");
    replica.engine.last_seen.record("w", None);
    let away = replica.until(|replica| !replica.worker("w").lost).await;
    assert!(away < 50, "a sign of life of a lost worker is written at once: {away}");
    pass(30_000).await;
    replica.engine.last_seen.record("w", None);
    let silent = replica.until(|replica| replica.worker("w").lost).await;
    assert!((60_000..62_000).contains(&silent), "{silent}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_replaced_does_not_keep_the_name_from_others() {
    let replica = replica().await;
    let (gone, replaced) = (InstanceId::from_u128(1), InstanceId::from_u128(2));
    let agent = WorkerChange { instance: Some(gone), ..registration("w", 1) };
    replica.engine.writers.submit(agent).await.unwrap();
    replica.until(|replica| replica.worker("w").lost).await;
    replica.engine.last_seen.record("w", Some(replaced));
    pass(5_000).await;
    assert!(replica.worker("w").lost);
    replica.engine.last_seen.record("w", Some(gone));
    replica.until(|replica| !replica.worker("w").lost).await;
}

#[tokio::test(start_paused = true)]
async fn while_nobody_serves_no_worker_is_silent() {
    let replica = replica().await;
    replica.register("w").await;
    pass(30_000).await;
    replica.database.set_unavailable(true);
    pass(70_000).await;
    replica.database.set_unavailable(false);
    let silent = replica.until(|replica| replica.worker("w").lost).await;
    assert!((60_000..67_000).contains(&silent), "{silent}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_was_seen_in_the_future_is_watched_from_now_on() {
    let replica = replica().await;
    replica.register("w").await;
    pass(10_000).await;
    replica.database.step_clock(-3_600_000);
    let silent = replica.until(|replica| replica.worker("w").lost).await;
    assert!((60_000..67_000).contains(&silent), "{silent}");
}
