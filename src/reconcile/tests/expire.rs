use bloom_test_database::scripted::Call;

use super::*;

const HOUR_MS: Ms = 3_600_000;

#[tokio::test(start_paused = true)]
async fn a_lease_ends_on_time() {
    let replica = replica().await;
    replica.register("w").await;
    let task = replica.leased("w", 5_000).await;
    let lasted = replica.until(|replica| !replica.is_held(task)).await;
    assert!((5_000..5_050).contains(&lasted), "{lasted}");
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_ends_after_its_last_renewal() {
    let replica = replica().await;
    replica.register("w").await;
    let task = replica.leased("w", 5_000).await;
    for _ in 0..3 {
        pass(2_700).await;
        replica.heartbeat(task).await;
    }
    let lasted = replica.until(|replica| !replica.is_held(task)).await;
    assert!((5_000..5_050).contains(&lasted), "{lasted}");
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_in_service_leases_have_a_grace() {
    let replica = replica().await;
    replica.register("w").await;
    let task = replica.leased("w", 15_000).await;
    pass(14_000).await;
    replica.database.set_unavailable(true);
    pass(3_000).await;
    replica.database.set_unavailable(false);
    let grace = replica.until(|replica| !replica.is_held(task)).await;
    assert!((10_000..11_100).contains(&grace), "{grace}");
}

#[tokio::test(start_paused = true)]
async fn a_gap_between_the_look_and_the_command_gives_a_grace_as_well() {
    let replica = replica().await;
    replica.register("w").await;
    let task = replica.leased("w", 15_000).await;
    let ends_at = replica.task(task).lease.unwrap().expires_at;
    pass(14_990).await;
    let mut hold = replica.database.hold(Call::DueLeases);
    hold.is_found().await;
    assert!(replica.database.clock() >= ends_at, "the query finds the lease");
    replica.database.set_unavailable(true);
    pass(3_000).await;
    replica.database.set_unavailable(false);
    hold.let_go();
    let grace = replica.until(|replica| !replica.is_held(task)).await;
    assert!((10_000..11_100).contains(&grace), "{grace}");
}

#[tokio::test(start_paused = true)]
async fn when_the_clock_steps_a_lease_lasts_as_if_renewed_then() {
    for step_ms in [HOUR_MS, -HOUR_MS] {
        let replica = replica().await;
        replica.register("w").await;
        let task = replica.leased("w", 30_000).await;
        pass(10_000).await;
        replica.database.step_clock(step_ms);
        let lasted = 10_000 + replica.until(|replica| !replica.is_held(task)).await;
        assert!((30_000..42_100).contains(&lasted), "a step by {step_ms}: {lasted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_made_by_a_clock_that_was_ahead_for_a_moment_does_not_last() {
    let replica = replica().await;
    replica.register("w").await;
    pass(10_010).await;
    replica.database.step_clock(HOUR_MS);
    let task = replica.leased("w", 20_000).await;
    replica.database.step_clock(-HOUR_MS);
    assert!(replica.task(task).lease.unwrap().check_at > replica.database.clock() + HOUR_MS);
    let lasted = replica.until(|replica| !replica.is_held(task)).await;
    assert!((20_000..26_100).contains(&lasted), "{lasted}");
}

#[tokio::test(start_paused = true)]
async fn after_an_error_it_looks_again_soon() {
    let replica = replica().await;
    replica.register("w").await;
    let task = replica.leased("w", 5_000).await;
    pass(4_990).await;
    replica.database.fail(Call::DueLeases, bloom_database::Error::Other("a failed query".into()));
    let late = replica.until(|replica| !replica.is_held(task)).await;
    assert!((500..550).contains(&late), "{late}");
}
