//! Tests of deadlines, service marks, leadership, rows of removed workers, and conflicts found by unique indexes.

use std::collections::BTreeSet;

use super::*;
use bloom_core::audit::Actor;
use bloom_core::command::{Grace, Loss};
use bloom_core::op;
use bloom_core::reply::Due;
use bloom_core::task::Parked;
use bloom_database::Service;

/// Decides a command on the current rows, to save it after another command was saved.
async fn decided(writer: &mut Box<dyn Writer>, op: &Op) -> WorkingSet {
    let mut set = WorkingSet::new(writer.begin_and_load(&op.keys(), LockWait::Long).await.unwrap(), seed());
    decide(&mut set, &Command::from(op.clone())).unwrap();
    writer.rollback().await.unwrap();
    set
}

/// Saves an earlier decision, and returns the conflict.
async fn save_late(writer: &mut Box<dyn Writer>, set: &WorkingSet) -> Result<(), Error> {
    writer.begin_and_load(&RowKeys::default(), LockWait::Long).await.unwrap();
    let saved = writer.save(set, None).await;
    if saved.is_err() {
        writer.rollback().await.unwrap();
    }
    saved
}

crate::on_both! {

async fn a_removed_worker_leaves_its_revision(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    for name in ["a", "b"] {
        register(&mut writer, name, 2).await;
    }
    commit(&mut writer, vec![Op::RemoveWorker(op::RemoveWorker { worker: "a".into() })]).await;
    let keys = RowKeys { workers: ["a".to_owned(), "b".to_owned(), "c".to_owned()].into(), ..RowKeys::default() };
    let loaded = writer.begin_and_load(&keys, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert!(loaded.workers["a"].is_none() && loaded.workers["b"].is_some() && loaded.workers["c"].is_none());
    assert_eq!(loaded.worker_revisions, [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
    let loaded = writer.begin_and_load(&RowKeys { all_workers: true, ..RowKeys::default() }, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert_eq!((loaded.workers.get("a"), loaded.worker_revisions["a"]), (Some(&None), 2));

    let named = |workers: Vec<bloom_core::worker::Worker>| workers.into_iter().map(|worker| (worker.id, worker.revision)).collect::<Vec<_>>();
    let b = || vec![("b".to_owned(), 1)];
    assert_eq!(named(all_workers(&bench.store).await.unwrap()), b());
    assert_eq!(named(bench.port().workers_page(None, 9).await.unwrap()), b());
    assert!(bench.port().workers_page(Some("b"), 9).await.unwrap().is_empty());
    assert_eq!(named(bench.port().workers_by_id(&["a".into(), "b".into()]).await.unwrap()), b());
    assert!(bench.store.worker("a").await.unwrap().is_none());
    let observed = RowKeys { observed_workers: ["a".to_owned(), "b".to_owned()].into(), ..RowKeys::default() };
    let loaded = writer.begin_and_load(&observed, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert!(loaded.workers.is_empty() && loaded.observed_workers["a"].is_none() && loaded.observed_workers["b"].is_some());

    register(&mut writer, "a", 5).await;
    assert_eq!(named(all_workers(&bench.store).await.unwrap()), [("a".to_owned(), 3), ("b".to_owned(), 1)]);

    // After an hour the row is removed as well.
    commit(&mut writer, vec![Op::RemoveWorker(op::RemoveWorker { worker: "b".into() })]).await;
    bench.at(3_600_000);
    writer.maintain(&Maintenance::PruneBatches { older_than_ms: DAY }).await.unwrap();
    let loaded = writer.begin_and_load(&keys, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert_eq!(loaded.worker_revisions["b"], 2);
    bench.at(3_600_001);
    writer.maintain(&Maintenance::PruneBatches { older_than_ms: DAY }).await.unwrap();
    let loaded = writer.begin_and_load(&keys, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert_eq!((loaded.worker_revisions.get("b"), loaded.worker_revisions["a"]), (None, 3));
    register(&mut writer, "b", 1).await;
    assert_eq!(bench.store.worker("b").await.unwrap().unwrap().revision, 1);
}

async fn of_two_that_register_one_name_the_second_looks_again(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let change = WorkerChange { id: "w".into(), max_concurrency: Some(7), actor: Actor::Api, ..WorkerChange::default() };
    let late = decided(&mut writer, &Op::RegisterWorker(Box::new(change))).await;
    register(&mut writer, "w", 2).await;
    assert!(save_late(&mut writer, &late).await.unwrap_err().is_conflict());
    let worker = bench.store.worker("w").await.unwrap().unwrap();
    assert_eq!((worker.capabilities.max_concurrency, worker.revision), (2, 1));
}

async fn of_two_that_create_in_one_context_the_second_looks_again(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    for known in [0, 1] {
        let late = decided(&mut writer, &Op::Create(op::Create { tasks: vec![in_context("c")] })).await;
        let first = create(&mut writer, vec![in_context("c")]).await[0];
        assert!(save_late(&mut writer, &late).await.unwrap_err().is_conflict(), "{known} before");
        let second = create(&mut writer, vec![in_context("c")]).await[0];
        let state = bench.state(second).await;
        assert_eq!((state.created_after, state.parked), (Some(first), Some(Parked::Session)));
    }
    // Tasks of other contexts, and tasks without a session, do not conflict.
    let late = decided(&mut writer, &Op::Create(op::Create { tasks: vec![in_context("d"), spec("c")] })).await;
    create(&mut writer, vec![spec("c"), in_context("e")]).await;
    save_late(&mut writer, &late).await.unwrap();
}

async fn a_session_s_worker_comes_with_its_context(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 2).await;
    let first = create(&mut writer, vec![in_context("c")]).await[0];
    commit(&mut writer, vec![lease(first, "w")]).await;
    commit(&mut writer, vec![success(first, "x")]).await;
    let create = Op::Create(op::Create { tasks: vec![in_context("c")] });
    let loaded = writer.begin_and_load(&create.keys(), LockWait::Long).await.unwrap();
    assert_eq!(loaded.observed_workers["w"].as_ref().map(|worker| worker.id.as_str()), Some("w"));
    let mut set = WorkingSet::new(loaded, seed());
    set.session_wait_ms = 30_000;
    let Ok(Reply::Created(made)) = decide(&mut set, &Command::from(create)) else { panic!("needs no second round") };
    writer.save(&set, None).await.unwrap();
    let made = &made[0].state;
    assert_eq!((made.parked, made.wake_at), (Some(Parked::Reserved), Some(START + 30_000)));
    assert_eq!(bench.state(made.id).await, *made);
    let kept = bench.port().ready_page(&Scope::Reserved("w".into()), None, 9).await.unwrap();
    assert_eq!(kept.iter().map(|row| (row.id, row.reserved_for.as_deref())).collect::<Vec<_>>(), [(made.id, Some("w"))]);
    assert!(bench.port().ready_page(&Scope::Reserved("v".into()), None, 9).await.unwrap().is_empty());
    assert!(bench.port().ready_page(&Scope::of(Part::default(), None), None, 9).await.unwrap().is_empty());
    let due = bench.port().due_tasks(9).await.unwrap();
    assert_eq!((due.items, due.next_at), (vec![], Some(START + 30_000)));
}

async fn a_heartbeat_leaves_the_deadline_where_it_is(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, vec![spec("a"), spec("b"), spec("c")]).await;
    let none = bench.port().due_leases(9).await.unwrap();
    assert_eq!((none.now, none.items, none.next_at), (START, vec![], None));
    let leases: Vec<LeaseId> = commit(&mut writer, ids.iter().map(|id| lease(*id, "w")).collect()).await.iter().map(held).collect();
    bench.at(30_000);
    commit(&mut writer, vec![Op::Heartbeat(op::Heartbeat { task: ids[0], holder: Holder::default() })]).await;
    bench.at(31_000);
    commit(&mut writer, vec![Op::Heartbeat(op::Heartbeat { task: ids[0], holder: Holder::default() })]).await;
    let due = bench.port().due_leases(9).await.unwrap();
    assert_eq!((due.items, due.next_at), (vec![], Some(START + 60_000)));

    bench.at(60_000);
    let due = bench.port().due_leases(9).await.unwrap();
    let found: BTreeSet<_> = due.items.iter().copied().collect();
    assert_eq!((found, due.next_at), (ids.iter().copied().zip(leases.iter().copied()).collect(), None));
    let due = bench.port().due_leases(2).await.unwrap();
    assert_eq!((due.items.len(), due.next_at), (2, Some(START + 60_000)), "the next one is due now");

    // The check of a live lease moves `check_at`. The change is quiet, but the whole row is written.
    let expire = |grace| Op::ExpireLease(op::ExpireLease { task: ids[0], lease: leases[0], grace });
    let told = commit(&mut writer, vec![expire(Grace::default())]).await;
    assert!(matches!(told[0], Reply::Due(Due::Later(at)) if at == START + 91_000));
    for (id, lease) in ids.iter().zip(&leases).skip(1) {
        commit(&mut writer, vec![Op::ExpireLease(op::ExpireLease { task: *id, lease: *lease, grace: Grace::default() })]).await;
    }
    let due = bench.port().due_leases(9).await.unwrap();
    assert_eq!((due.items, due.next_at), (vec![], Some(START + 91_000)));
    assert_eq!(bench.state(ids[0]).await.lease.unwrap().check_at, START + 91_000);
    // A grace after a gap in service moves `check_at` too.
    bench.at(91_000);
    commit(&mut writer, vec![expire(Grace { resumed_at: START + 90_000, grace_ms: 10_000, found_due_at: None })]).await;
    assert_eq!(bench.port().due_leases(9).await.unwrap().next_at, Some(START + 100_000));
}

async fn leases_from_before_the_clock_stepped_back_are_found(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, vec![spec("a"), spec("b")]).await;
    let leases: Vec<LeaseId> = commit(&mut writer, ids.iter().map(|id| lease(*id, "w")).collect()).await.iter().map(held).collect();
    assert!(bench.port().leases_beyond_ttl(9).await.unwrap().is_empty());
    bench.at(-1);
    assert_eq!(bench.port().leases_beyond_ttl(9).await.unwrap().len(), 2);
    assert_eq!(bench.port().leases_beyond_ttl(1).await.unwrap().len(), 1);
    bench.at(-3_600_000);
    let told = commit(&mut writer, vec![Op::ExpireLease(op::ExpireLease { task: ids[0], lease: leases[0], grace: Grace::default() })]).await;
    assert!(matches!(told[0], Reply::Due(Due::Later(at)) if at == START - 3_540_000));
    assert_eq!(bench.port().leases_beyond_ttl(9).await.unwrap(), [(ids[1], leases[1])]);
    assert_eq!(bench.port().due_leases(9).await.unwrap().next_at, Some(START - 3_540_000));
}

async fn tasks_whose_time_has_come_are_found(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let at = |ms| TaskSpec { not_before: Some(START + ms), ..spec("t") };
    let ids = create(&mut writer, vec![at(3_000), at(1_000), at(2_000)]).await;
    let due = bench.port().due_tasks(9).await.unwrap();
    assert_eq!((due.now, due.items, due.next_at), (START, vec![], Some(START + 1_000)));
    bench.at(2_000);
    let due = bench.port().due_tasks(9).await.unwrap();
    assert_eq!((due.items, due.next_at), (vec![ids[1], ids[2]], Some(START + 3_000)));
    let due = bench.port().due_tasks(1).await.unwrap();
    assert_eq!((due.items, due.next_at), (vec![ids[1]], Some(START + 2_000)));
    commit(&mut writer, vec![Op::Reevaluate(op::Reevaluate { tasks: vec![ids[1], ids[2]], progress: None })]).await;
    let due = bench.port().due_tasks(9).await.unwrap();
    assert_eq!((due.items, due.next_at), (vec![], Some(START + 3_000)));
}

async fn silent_workers_are_found(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let silent = async |limit| {
        let due = bench.port().silent_workers(60_000, limit).await.unwrap();
        (due.items, due.next_at.map(|at| at - START))
    };
    assert_eq!(silent(9).await, (vec![], None));
    for (i, name) in ["a", "b", "gone", "off"].into_iter().enumerate() {
        bench.at(i as i64 * 1_000);
        register(&mut writer, name, 1).await;
    }
    let off = WorkerChange { id: "off".into(), status: Some(bloom_core::worker::WorkerStatus::Offline), actor: Actor::Api, ..WorkerChange::default() };
    commit(&mut writer, vec![Op::RemoveWorker(op::RemoveWorker { worker: "gone".into() }), Op::RegisterWorker(Box::new(off))]).await;
    bench.at(60_000);
    assert_eq!(silent(9).await, (vec![], Some(60_001)));
    bench.at(60_001);
    assert_eq!(silent(9).await, (vec!["a".into()], Some(61_001)));
    bench.at(100_000);
    assert_eq!(silent(9).await, (vec!["a".into(), "b".into()], None));
    assert_eq!(silent(1).await, (vec!["a".into()], Some(100_000)));
    commit(&mut writer, vec![Op::MarkOffline(op::MarkOffline { worker: "a".into(), cause: Loss::Silent { for_ms: 60_000, served_since: 0, has_started: false } })]).await;
    assert_eq!(silent(9).await, (vec!["b".into()], None));
    // The clock stepped back, so the worker was seen in the future.
    bench.at(-1);
    assert_eq!(silent(9).await, (vec!["b".into()], None));
    bench.at(0);
    assert_eq!(silent(9).await, (vec![], Some(61_001)));
}

async fn gaps_in_service_are_told(database) {
    let url = database.new_url();
    let open = async |clock| Store::with_clock(&StoreOptions { url: url.clone(), max_connections: 2 }, clock).await.unwrap();
    let mark = async |store: &Store| bloom_database::Database::mark_served(store).await.unwrap();
    let moved = async |by: i64| execute(&url, &format!("UPDATE served SET at = at + {by}")).await;
    let is_gap = |service: Service| service.resumed_at == service.now;
    // On a busy machine there may be a real gap.
    let goes_on = |before: Service, after: Service| {
        let expected = if after.now - before.now > 1_500 { after.now } else { before.resumed_at };
        assert_eq!(after.resumed_at, expected);
    };

    let store = open(Clock::Database).await;
    store.migrate().await.unwrap();
    let first = mark(&store).await;
    assert!(is_gap(first), "no replica has served before");
    let second = mark(&store).await;
    goes_on(first, second);
    moved(-1_501).await;
    let third = mark(&store).await;
    assert!(is_gap(third), "no replica has served for long");
    moved(60_000).await;
    let fourth = mark(&store).await;
    assert!(is_gap(fourth), "the clock stepped back");
    let before = mark(&store).await;
    goes_on(fourth, before);

    // A new process: on PostgreSQL other replicas may have served meanwhile; on SQLite nobody else can.
    store.close().await;
    drop(store);
    let store = open(Clock::Database).await;
    let fifth = mark(&store).await;
    match database {
        Database::Sqlite => assert!(is_gap(fifth)),
        Database::Postgres => goes_on(before, fifth),
    }
    store.close().await;
    drop(store);
    // A manual clock jumps when it is set, so it never shows a gap.
    let store = open(Clock::Manual(Arc::new(AtomicI64::new(START)))).await;
    assert_eq!(mark(&store).await, Service { now: START, resumed_at: 0 });
}

async fn one_leads(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let lead = async |holder: &'static str| bench.port().lead(holder, 1000).await.unwrap();
    assert_eq!(lead("a").await, Some(1));
    if bench.store.kind() == Kind::Sqlite {
        return;
    }
    assert_eq!(lead("b").await, None);
    bench.at(900);
    assert_eq!(lead("a").await, Some(1));
    assert_eq!(lead("b").await, None);
    bench.at(1901);
    assert_eq!(lead("b").await, Some(2));
    assert_eq!(lead("a").await, None);
    let mut set = WorkingSet::new(writer.begin_and_load(&RowKeys::default(), LockWait::Long).await.unwrap(), seed());
    set.dirty.settings.push(("key", "value".into()));
    assert!(matches!(writer.save(&set, Some(1)).await, Err(Error::NotLeader)));
    writer.rollback().await.unwrap();
    set.loaded = writer.begin_and_load(&RowKeys::default(), LockWait::Long).await.unwrap();
    writer.save(&set, Some(2)).await.unwrap();
    bench.port().resign("b").await.unwrap();
    assert_eq!(lead("a").await, Some(3));
    // The clock steps back by an hour, so the leadership would last an hour longer.
    bench.at(-3_600_000);
    assert_eq!(lead("b").await, Some(4));
}

async fn commits_of_others_are_heard(database) {
    let bench = Bench::new(database).await;
    let port = bench.port();
    if bench.store.kind() == Kind::Sqlite {
        let heard = async { port.heard().await.is_ok() };
        tokio::select! {
            biased;
            _ = heard => panic!("there is no other replica"),
            () = std::future::ready(()) => {}
        }
        return;
    }
    // A cancelled wait can be repeated, and notifications in between are received: notify until the first one arrives.
    let hear = async || {
        crate::support::eventually("is heard", async || {
            port.notify().await.unwrap();
            tokio::select! {
                heard = port.heard() => heard.ok(),
                () = tokio::task::yield_now() => None,
            }
        })
        .await;
    };
    hear().await;
    hear().await;
    crate::support::postgres::cut_off_clients(&bench.url);
    crate::support::eventually("listens again", async || port.notify().await.ok()).await;
    hear().await;
}

}
