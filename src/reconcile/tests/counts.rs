use bloom_core::task::Status;
use bloom_test_database::scripted::Call;

use super::*;

fn wrong(replica: &Replica) -> usize {
    replica.database.tables().count_errors().len()
}

#[tokio::test(start_paused = true)]
async fn counts_that_are_wrong_are_corrected_everywhere() {
    let replica = replica().await;
    let other = replica.beside().await;
    replica.create(|_| {}).await;
    pass(2_000).await;
    let key = ("coder".to_owned(), 5, Status::Completed);
    replica.database.tables().compacted.tasks.insert(key, 7);
    replica.database.tables().compacted.leases += 2;
    assert_eq!(wrong(&replica), 2);
    replica.until(|replica| wrong(replica) == 0).await;
    pass(1_000).await;
    for engine in [&replica.engine, &other.engine] {
        let mut counts = engine.replica.counts();
        counts.retain(|_, n| *n != 0);
        assert_eq!((counts, engine.replica.stats().leases_total), (replica.database.tables().counted(), 0));
    }
    assert!(replica.engine.metrics.render().contains("bloom_count_corrections_total 2"));
}

#[tokio::test(start_paused = true)]
async fn they_are_checked_a_minute_after_a_start_and_then_every_hour() {
    let replica = replica().await;
    let checks = |replica: &Replica| replica.database.asked(Call::CountErrors);
    let first = replica.until(|replica| checks(replica) == 1).await;
    assert!((59_000..60_100).contains(&first), "{first}");
    replica.database.step_clock(3_500_000);
    pass(50_000).await;
    assert_eq!(checks(&replica), 1);
    pass(100_000).await;
    assert_eq!(checks(&replica), 2);
}
