use bloom_database::Error;
use bloom_test_database::scripted::Call;

use super::*;

#[tokio::test(start_paused = true)]
async fn every_replica_marks_its_service_twice_a_second() {
    let leader = replica().await;
    let other = leader.beside().await;
    let before = other.database.asked(Call::MarkServed);
    pass(10_000).await;
    let marks = other.database.asked(Call::MarkServed) - before;
    assert!((19..=20).contains(&marks), "{marks}");
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_one_only_if_no_replica_serves() {
    let replica = replica().await;
    let other = replica.beside().await;
    pass(5_000).await;
    let resumed_at = replica.database.tables().resumed_at;
    replica.database.set_unavailable(true);
    pass(5_000).await;
    assert_eq!(replica.database.tables().resumed_at, resumed_at, "the other replica serves");
    other.database.set_unavailable(true);
    pass(2_000).await;
    other.database.set_unavailable(false);
    pass(600).await;
    let tables = replica.database.tables();
    assert!(tables.resumed_at > resumed_at + 5_000 && tables.served_at >= tables.resumed_at);
}

/// A full disk of PostgreSQL causes errors of many kinds, not only those of an unreachable database.
#[tokio::test(start_paused = true)]
async fn a_mark_that_is_not_written_tells_that_the_database_is_not_up() {
    let replica = replica().await;
    let is_up = || replica.engine.metrics.render().contains("\nbloom_database_up 1\n");
    pass(2_000).await;
    assert!(is_up());
    for error in [Error::Other("could not write init file".into()), Error::Corrupt("a row".into())] {
        for _ in 0..2 {
            replica.database.fail(Call::MarkServed, error.clone());
        }
        pass(600).await;
        assert!(!is_up());
        pass(1_600).await;
        assert!(is_up());
    }
}
