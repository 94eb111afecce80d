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

/// A task that the worker has claimed, so that its lease has a hard end.
async fn claimed(replica: &Replica, worker: &str) -> TaskId {
    let task = replica.create(|_| {}).await;
    let claim = op::Claim { worker: worker.into(), candidates: vec![task], max: 1, held: None, instance: None, ttl_ms: 15_000 };
    assert_eq!(replica.engine.writers.submit(claim).await.unwrap().leased.len(), 1);
    task
}

/// By how much the latest possible end of the lease moves, whatever its heartbeats say.
fn hard_end_moved(replica: &Replica, task: TaskId, hard_end: Ms) -> Ms {
    replica.task(task).lease.unwrap().hard_end_at.unwrap() - hard_end
}

#[tokio::test(start_paused = true)]
async fn a_step_that_ends_the_leadership_moves_hard_ends_also_if_the_same_replica_leads_again() {
    let replica = replica().await;
    replica.register("w").await;
    let task = claimed(&replica, "w").await;
    let hard_end = replica.task(task).lease.unwrap().hard_end_at.unwrap();
    // The leadership is not renewed before the step is noticed, so the commands for it are refused.
    let mut renewal = replica.database.hold(Call::Lead);
    renewal.is_found().await;
    replica.database.step_clock(HOUR_MS);
    replica.until(|replica| replica.epoch().is_none()).await;
    renewal.let_go();
    replica.until(|replica| replica.epoch() == Some(1)).await;
    for _ in 0..5 {
        pass(5_000).await;
        replica.heartbeat(task).await;
    }
    let moved = hard_end_moved(&replica, task, hard_end);
    assert!((HOUR_MS - 100..HOUR_MS + 100).contains(&moved), "{moved}");
    assert!(replica.is_held(task));
}

/// Lets the clock step while this leader's commands for the task fail; afterwards they succeed again.
async fn follows_late(leader: &Replica, task: TaskId, step: impl AsyncFnOnce()) {
    let hard_end = leader.task(task).lease.unwrap().hard_end_at.unwrap();
    leader.database.refuse(move |set| set.dirty.tasks.contains(&task));
    step().await;
    pass(3_000).await;
    assert!(leader.epoch().is_some());
    assert_eq!(hard_end_moved(leader, task, hard_end), 0);
    leader.database.refuse(|_| false);
    leader.until(|leader| hard_end_moved(leader, task, hard_end) >= HOUR_MS - 100).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_commands_fail_is_followed_when_they_no_longer_do() {
    let replica = replica().await;
    replica.register("w").await;
    let task = claimed(&replica, "w").await;
    follows_late(&replica, task, async || replica.database.step_clock(HOUR_MS)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_whose_commands_for_a_step_fail_follows_it_when_they_no_longer_do() {
    let first = replica().await;
    let other = first.beside().await;
    first.register("w").await;
    let task = claimed(&first, "w").await;
    let step = async || {
        first.database.step_clock(HOUR_MS);
        first.engine.stop().await;
    };
    follows_late(&other, task, step).await;
}

#[tokio::test(start_paused = true)]
async fn every_step_that_the_leader_could_not_follow_at_once_is_followed() {
    let replica = replica().await;
    replica.register("w").await;
    let task = claimed(&replica, "w").await;
    let hard_end = replica.task(task).lease.unwrap().hard_end_at.unwrap();
    replica.database.refuse(move |set| set.dirty.tasks.contains(&task));
    for _ in 0..2 {
        replica.database.step_clock(HOUR_MS);
        pass(1_500).await;
    }
    replica.database.refuse(|_| false);
    replica.until(|replica| hard_end_moved(replica, task, hard_end) >= 2 * HOUR_MS - 100).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_can_not_follow_a_step_delays_the_end_of_others_for_ten_seconds_only() {
    let replica = replica().await;
    replica.register("w").await;
    let refused = claimed(&replica, "w").await;
    let other = replica.leased("w", 5_000).await;
    replica.database.refuse(move |set| set.dirty.tasks.contains(&refused));
    replica.database.step_clock(HOUR_MS);
    let lasted = replica.until(|replica| !replica.is_held(other)).await;
    assert!((10_000..17_000).contains(&lasted), "{lasted}");
}
