use bloom_core::op;
use bloom_test_database::scripted::Call;

use super::*;

fn lead(one: &Replica, other: &Replica) -> (Option<i64>, Option<i64>) {
    (one.epoch(), other.epoch())
}

#[tokio::test(start_paused = true)]
async fn one_that_stops_hands_over_at_once() {
    let one = replica().await;
    let other = one.beside().await;
    pass(5_000).await;
    assert_eq!(lead(&one, &other), (Some(1), None));
    one.engine.stop().await;
    let waited = other.until(|other| other.epoch().is_some()).await;
    assert_eq!((other.epoch(), one.epoch()), (Some(2), None));
    assert!(waited <= 300, "{waited}");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_cut_off_is_followed_when_its_leadership_has_run_out() {
    let one = replica().await;
    let other = one.beside().await;
    other.register("w").await;
    let task = other.leased("w", 5_000).await;
    pass(1_000).await;
    one.database.set_unavailable(true);
    let waited = other.until(|other| other.epoch().is_some()).await;
    assert!((700..1_400).contains(&waited), "{waited}");
    one.until(|one| one.epoch().is_none()).await;
    one.database.set_unavailable(false);
    let rest = other.until(|other| !other.is_held(task)).await;
    assert!(rest <= 4_100, "the reconcilers of the new leader end the lease: {rest}");
    assert_eq!(lead(&one, &other), (None, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_single_failure_to_renew_ends_nothing() {
    let replica = replica().await;
    replica.database.fail(Call::Lead, bloom_database::Error::Unavailable("the connection broke".into()));
    for _ in 0..1_000 {
        pass(1).await;
        assert_eq!(replica.epoch(), Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_was_replaced_learns_it_from_its_next_commit() {
    let replica = replica().await;
    let task = replica.create(|_| {}).await;
    replica.database.elect_another();
    let cancelled = replica.context.submit_led([op::Cancel { task }]).await;
    assert!(cancelled.unwrap().is_none() && replica.task(task).is_ready());
    assert_eq!(replica.epoch(), None);
    replica.until(|replica| replica.epoch() == Some(3)).await;
    assert!(replica.context.submit_led([op::Cancel { task }]).await.unwrap().is_some());
}
