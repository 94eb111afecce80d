//! Commits whose outcome is unknown, because the answer of the database was lost.

use bloom_test_database::scripted::Call;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// Submits a command whose commit reaches the database. Its answer is lost, and `then` runs at that moment.
async fn commit_lost(database: &ScriptedDatabase, engine: &Engine, then: impl FnOnce()) -> JoinHandle<Result<(), Error>> {
    database.lose_commit(true);
    let mut hold = database.hold(Call::Save);
    let engine = engine.clone();
    let call = tokio::spawn(async move { engine.writers.submit(create("in doubt")).await.map(drop) });
    hold.is_found().await;
    then();
    hold.let_go();
    call
}

#[tokio::test(start_paused = true)]
async fn one_that_arrived_is_answered_once() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    let mut changes = engine.replica.subscribe();
    database.lose_commit(true);
    let id = created(&engine).await;
    assert_eq!((tasks_in(&database), database.asked(Call::Save)), (1, 1));
    assert_eq!(changes.try_recv().unwrap().tasks[0].id, id);
    assert!(changes.try_recv().is_err(), "the change is announced once");
    assert_cache_is_true(&engine, &database);
    created(&engine).await;
    assert_cache_is_true(&engine, &database);
}

#[tokio::test(start_paused = true)]
async fn one_that_did_not_arrive_is_decided_again() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    database.lose_commit(false);
    created(&engine).await;
    assert_eq!((tasks_in(&database), database.asked(Call::Load), database.asked(Call::Save)), (1, 2, 2));
    assert_cache_is_true(&engine, &database);
}

#[tokio::test(start_paused = true)]
async fn one_that_stays_unknown_is_no_success_and_is_told_when_it_is_known() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    read_queue(&engine).await;
    let mut changes = engine.replica.subscribe();
    let started = Instant::now();
    let call = commit_lost(&database, &engine, || database.set_unavailable(true)).await;
    assert_eq!(call.await.unwrap(), Err(Error::Unavailable));
    assert_eq!(started.elapsed().as_secs(), 5, "the caller waits for the whole time limit");
    assert!(changes.try_recv().is_err());
    assert_eq!(engine.replica.shown_tasks(), []);

    database.set_unavailable(false);
    let next = created(&engine).await;
    let late = changes.try_recv().unwrap();
    assert_ne!(late.tasks[0].id, next);
    assert_eq!(changes.try_recv().unwrap().tasks[0].id, next);
    assert_eq!((tasks_in(&database), engine.replica.shown_tasks().len()), (2, 2));
    assert_cache_is_true(&engine, &database);
}

#[tokio::test(start_paused = true)]
async fn one_that_turns_out_not_to_have_arrived_leaves_nothing() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    let mut changes = engine.replica.subscribe();
    database.lose_commit(false);
    for _ in 0..60 {
        database.fail(Call::ResolveCommit, bloom_database::Error::Unavailable("away".into()));
    }
    assert_eq!(engine.writers.submit(create("lost")).await.map(drop), Err(Error::Unavailable));
    let id = loop {
        if let Ok(created) = engine.writers.submit(create("next")).await {
            break created[0].state.id;
        }
    };
    assert_eq!(changes.try_recv().unwrap().tasks[0].id, id);
    assert_eq!(tasks_in(&database), 1);
    assert_cache_is_true(&engine, &database);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_was_forgotten_meanwhile_has_the_cache_rebuilt() {
    let database = ScriptedDatabase::default();
    let engine = engine(&database, 1).await;
    let mut changes = engine.replica.subscribe();
    let forget_writers = || {
        let mut tables = database.tables();
        tables.compact();
        tables.writers.clear();
        tables.batches.clear();
        // Ids of writers are never reused.
        for _ in 0..3 {
            tables.register_writer();
        }
        tables.writers.retain(|id, _| *id == 3);
    };
    let call = commit_lost(&database, &engine, forget_writers).await;
    assert_eq!(call.await.unwrap(), Err(Error::Unavailable), "the outcome can't be found out any more");
    heard(&mut changes, |change| change.reset).await;
    assert_eq!(tasks_in(&database), 1);
    assert_cache_is_true(&engine, &database);
    created(&engine).await;
    assert_cache_is_true(&engine, &database);
}
