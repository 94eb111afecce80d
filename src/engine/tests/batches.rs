//! Batches in which errors occur.

use bloom_core::command::{Command, Op, Rejection};
use bloom_database::{Database, Error as DatabaseError, LockWait};
use bloom_test_database::scripted::Call;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn one_bad_command_fails_alone() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    database.refuse(|set| set.dirty.specs.iter().any(|spec| spec.prompt == "bad"));
    let commands = ["good", "good", "bad", "good"].map(create);
    let answers = engine.writers.submit_all(commands.into()).await;
    let outcomes: Vec<_> = answers.into_iter().map(|answer| answer.map(drop)).collect();
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Error::Internal), Ok(())]);
    assert_eq!(tasks_in(&database), 3);
    assert_cache_is_true(&engine, &database);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_decided_again_a_few_times() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    for (conflicts, answer) in [(1, Ok(())), (3, Ok(())), (4, Err(Error::Busy))] {
        let before = (tasks_in(&database), database.asked(Call::Load));
        for _ in 0..conflicts {
            database.fail(Call::Save, DatabaseError::Conflict("another was first".into()));
        }
        assert_eq!(engine.writers.submit(create("p")).await.map(drop), answer, "{conflicts} conflicts");
        let after = (tasks_in(&database), database.asked(Call::Load));
        assert_eq!(after.0 - before.0, usize::from(answer.is_ok()));
        assert_eq!(after.1 - before.1, if answer.is_ok() { conflicts + 1 } else { conflicts }, "each try loads the rows again");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_lock_time_out_the_batch_does_without_the_locked_rows() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    database.fail(Call::Load, DatabaseError::Locked("rows".into()));
    engine.writers.submit(create("p")).await.unwrap();
    assert_eq!(database.lock_waits(), [LockWait::Long, LockWait::Skip]);
    for (seconds, wait) in [(0, LockWait::Short), (11, LockWait::Long)] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        engine.writers.submit(create("q")).await.unwrap();
        assert_eq!(database.lock_waits().last(), Some(&wait), "{seconds} s later");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_wait_five_seconds_for_a_database_that_is_away() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    database.set_unavailable(true);
    let started = Instant::now();
    assert_eq!(engine.writers.submit(create("p")).await.map(drop), Err(Error::Unavailable));
    assert_eq!(started.elapsed().as_secs(), 5);
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.writers.submit(create("p")).await.map(drop) }
    });
    tokio::time::sleep(Duration::from_secs(4)).await;
    database.set_unavailable(false);
    assert_eq!(waiting.await.unwrap(), Ok(()));
    assert_eq!(tasks_in(&database), 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_database_that_is_unusable() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    database.fail(Call::Load, DatabaseError::Unusable("the file was replaced".into()));
    let started = Instant::now();
    assert_eq!(engine.writers.submit(create("p")).await.map(drop), Err(Error::Unavailable));
    assert!(started.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_former_leaders_commands_are_refused_and_the_others_of_the_batch_carried_out() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    let epoch = database.lead("this", 1_000).await.unwrap();
    let led = |epoch| Command { epoch, ..create("led").into_any() };
    assert!(engine.writers.submit::<Op>(led(epoch)).await.is_ok());
    database.elect_another();
    let answers = engine.writers.submit_all(vec![led(epoch), create("p").into_any()]).await;
    let outcomes: Vec<_> = answers.into_iter().map(|answer| answer.map(drop)).collect();
    assert_eq!(outcomes, [Err(Error::Rejected(Rejection::NotLeader)), Ok(())]);
    assert_eq!(tasks_in(&database), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stop_carries_out_what_was_taken_in() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    let mut hold = database.hold(Call::Save);
    let first = tokio::spawn({
        let engine = engine.clone();
        async move { engine.writers.submit(create("first")).await.map(drop) }
    });
    hold.is_found().await;
    let both = async {
        tokio::join!(engine.writers.submit(create("second")), async {
            hold.let_go();
            engine.stop().await;
        })
    };
    let (second, ()) = timeout(Duration::from_secs(60), both).await.expect("all commands get a reply");
    assert_eq!((first.await.unwrap(), second.map(drop)), (Ok(()), Ok(())));
    assert_eq!(engine.writers.submit(create("late")).await.map(drop), Err(Error::Unavailable));
    assert_eq!(tasks_in(&database), 2);
}
