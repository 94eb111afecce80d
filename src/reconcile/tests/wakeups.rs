use bloom_core::command::Holder;
use bloom_core::task::Outcome;
use bloom_database::Error;
use bloom_test_database::scripted::Call;
use bloom_test_world::world::completion;

use super::*;

/// The leader of two replicas. The other one has completed a task that this many tasks wait for, but could not process its wake-up.
async fn abandoned(waiters: usize) -> Replica {
    let (leader, other) = {
        let leader = replica().await;
        let other = leader.beside().await;
        (leader, other)
    };
    other.register("w").await;
    let parent = other.leased("w", 60_000).await;
    let dependent = TaskSpec { session: Session::None, depends_on: vec![parent], ..spec("c") };
    other.engine.writers.submit(op::Create { tasks: vec![dependent; waiters] }).await.unwrap();
    other.database.fail(Call::Waiters, Error::Unavailable("the connection broke".into()));
    let done = bloom_core::command::Completion { holder: Holder::default(), ..completion(parent, None, Outcome::Success) };
    other.engine.writers.submit(done).await.unwrap();
    assert_eq!(leader.database.tables().memory.parked().len(), waiters, "no task was woken");
    leader
}

fn is_worked_off(replica: &Replica) -> bool {
    let tables = replica.database.tables();
    tables.memory.parked().is_empty() && tables.memory.wakeups.is_empty()
}

#[tokio::test(start_paused = true)]
async fn the_leader_works_off_what_another_replica_leaves() {
    let leader = abandoned(3).await;
    let waited = leader.until(is_worked_off).await;
    assert!(waited <= 2_000, "two runs find the wake-up at the same cursor: {waited}");
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_page_by_page() {
    let leader = abandoned(950).await;
    let waited = leader.until(is_worked_off).await;
    assert!(leader.database.asked(Call::Waiters) >= 10, "pages of 100");
    assert!(waited <= 2_500, "the pages follow each other without a pause: {waited}");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_fails_is_done_again() {
    let leader = abandoned(250).await;
    leader.database.fail(Call::Waiters, Error::Unavailable("the connection broke".into()));
    let waited = leader.until(is_worked_off).await;
    assert!((500..3_000).contains(&waited), "the page is tried again soon: {waited}");
}
