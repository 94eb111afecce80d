//! Tests of pages, look-ups, counts and maintenance.

use std::collections::BTreeSet;

use super::*;
use bloom_core::api_key::Owner;
use bloom_core::op;

crate::on_both! {

async fn counts_are_kept(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, vec![spec("a"), spec("b"), spec("c")]).await;
    let expect = |queued: i64, leased: i64, completed: i64| -> Counts {
        let all = [(Status::Queued, queued), (Status::Leased, leased), (Status::Completed, completed)];
        all.into_iter().filter(|(_, n)| *n != 0).map(|(status, n)| (("writer".to_owned(), 5, status), n)).collect()
    };
    assert_eq!(bench.counted().await, (expect(3, 0, 0), 0));
    assert_eq!(writer.maintain(&Maintenance::CompactCounts).await.unwrap().rows, 2);
    assert_eq!(bench.counted().await, (expect(3, 0, 0), 0));
    commit(&mut writer, vec![lease(ids[0], "w"), lease(ids[1], "w")]).await;
    assert_eq!(bench.counted().await, (expect(1, 2, 0), 2));
    commit(&mut writer, vec![success(ids[0], "x")]).await;
    assert_eq!(writer.maintain(&Maintenance::CompactCounts).await.unwrap().rows, 2);
    assert_eq!(writer.maintain(&Maintenance::CompactCounts).await.unwrap().rows, 0);
    assert_eq!(bench.counted().await, (expect(1, 1, 1), 2));
    assert_eq!(writer.maintain(&Maintenance::PruneBatches { older_than_ms: 0 }).await.unwrap().rows, 0, "no batch is older than now");
    bench.at(1);
    assert_eq!(writer.maintain(&Maintenance::PruneBatches { older_than_ms: 0 }).await.unwrap().rows, 3, "the newest batch stays");
    assert_eq!(bench.counted().await, (expect(1, 1, 1), 2));
    assert_eq!(bench.positions().await, [Position { writer: writer.id(), n: 4 }]);
}

async fn the_queue_is_paged(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let at = |priority: i64| TaskSpec { priority, ..spec("q") };
    let other = TaskSpec { agent_slug: "other".into(), ..spec("q") };
    let later = TaskSpec { not_before: Some(START + 1000), ..spec("q") };
    let ids = create(&mut writer, vec![at(1), at(9), at(5), other, later]).await;
    let page = bench.port().ready_page(&Scope::of(Part::default(), None), None, 2).await.unwrap();
    assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[1], ids[2]]);
    assert_eq!((page[0].revision, page[0].rank, page[0].reserved_for.as_deref()), (1, 0, None));
    let page = bench.port().ready_page(&Scope::of(Part::default(), None), Some((page[1].rank, page[1].id)), 9).await.unwrap();
    assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[3], ids[0]]);
    let page = bench.store.ready_page(&Scope::of(Part::default(), Some("other")), None, 9).await.unwrap();
    assert_eq!(page.iter().map(|row| (row.id, row.agent_slug.as_str())).collect::<Vec<_>>(), [(ids[3], "other")]);
}

async fn what_stands_before_others_is_found(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let keyed = || TaskSpec { exclusive_key: Some("key".into()), ..spec("k") };
    let chained = || TaskSpec { session: Session::Context, ..spec("chain") };
    let first = create(&mut writer, vec![keyed(), chained()]).await;
    let loaded = commit(&mut writer, vec![lease(first[0], "w"), lease(first[1], "w")]).await;
    assert_eq!(loaded.len(), 2);
    let dependent = TaskSpec { depends_on: vec![first[0]], ..spec("d") };
    bench.at(1);
    let later = create(&mut writer, vec![keyed(), chained(), dependent]).await;
    for id in &later {
        assert!(bench.state(*id).await.parked.is_some());
    }
    let keys = RowKeys {
        exclusive: ["key".to_owned()].into(),
        predecessors: [("chain".to_owned(), Uuid::max()), ("chain".to_owned(), first[1])].into(),
        dependencies: [later[2]].into(),
        worker_tasks: ["w".to_owned()].into(),
        ..RowKeys::default()
    };
    let loaded = writer.begin_and_load(&keys, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert_eq!(loaded.exclusive["key"], Some(first[0]));
    assert_eq!(loaded.predecessors[&("chain".to_owned(), Uuid::max())], Some(later[1]));
    assert_eq!(loaded.predecessors[&("chain".to_owned(), first[1])], None);
    assert_eq!(loaded.dependencies[&later[2]], [first[0]]);
    assert_eq!(loaded.worker_tasks["w"].len(), 2);
    assert!(loaded.tasks[&later[1]].is_some(), "a task that was found is locked and read");
}

async fn tasks_are_listed_by_what_they_depend_on(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let red = |n: &str| TaskSpec { labels: [("team".to_owned(), "red".to_owned()), ("n".to_owned(), n.to_owned())].into(), ..spec("c") };
    let first = create(&mut writer, vec![spec("a"), spec("a"), red("6")]).await;
    bench.at(10);
    let both = TaskSpec { depends_on: vec![first[0], first[1]], ..red("7") };
    let one = TaskSpec { depends_on: vec![first[1]], ..spec("x") };
    let later = create(&mut writer, vec![both, one]).await;
    let list = async |filter: TaskFilter, page: Page| -> Vec<TaskId> {
        let found = bench.store.task_ids(&filter, &page).await.unwrap();
        let sizes = bench.store.task_sizes(&filter, &page).await.unwrap();
        assert_eq!(sizes.rows.iter().map(|(id, _)| *id).collect::<Vec<_>>(), found);
        found
    };
    let of = |task: usize| TaskFilter { depends_on: Some(first[task]), ..TaskFilter::default() };
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(list(of(0), PAGE).await, [later[0]]);
    assert_eq!(list(of(1), PAGE).await, [later[1], later[0]]);
    assert_eq!(bench.store.oldest_task_ids(&of(1), None, 1).await.unwrap(), [later[0]]);
    assert_eq!(list(of(1), Page { limit: 1, before: Some(later[1]) }).await, [later[0]]);
    assert_eq!(list(of(2), PAGE).await, [] as [TaskId; 0]);
    assert_eq!(list(TaskFilter { context_id: Some("x".into()), ..of(1) }, PAGE).await, [later[1]]);
    assert_eq!(list(TaskFilter { labels: vec![label("team", "red"), label("n", "7")], ..of(1) }, PAGE).await, [later[0]]);
    assert_eq!(list(TaskFilter { labels: vec![label("n", "6")], ..of(1) }, PAGE).await, [] as [TaskId; 0]);
    assert_eq!(list(TaskFilter { status: Some(Status::Queued), ..of(1) }, PAGE).await.len(), 2);
    assert_eq!(list(TaskFilter { finished_after: Some(0), ..of(1) }, PAGE).await, [] as [TaskId; 0]);
}

async fn lists_filter_and_page(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let labelled = |n: i64| TaskSpec { labels: [("team".to_owned(), "red".to_owned()), ("n".to_owned(), n.to_string())].into(), ..spec("ctx") };
    let mut ids = Vec::new();
    for n in 0..6 {
        bench.at(n * 10);
        ids.extend(create(&mut writer, vec![if n % 2 == 0 { labelled(n) } else { TaskSpec { agent_slug: "odd".into(), ..spec("other") } }]).await);
    }
    commit(&mut writer, vec![lease(ids[0], "w"), lease(ids[1], "w")]).await;
    let list = async |filter: TaskFilter, page: Page| -> Vec<usize> {
        let sizes = bench.store.task_sizes(&filter, &page).await.unwrap();
        assert!(!sizes.cut);
        let found: Vec<TaskId> = sizes.rows.iter().map(|(id, _)| *id).collect();
        let rows = bench.store.tasks(&found).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.state.id).collect::<Vec<_>>(), found, "in the same order");
        assert!(rows.iter().all(|row| row.spec.id == row.state.id && filter.still_holds(row)));
        assert_eq!(bench.store.task_ids(&filter, &page).await.unwrap(), found);
        let leased = TaskFilter { status: Some(Status::Leased), ..TaskFilter::default() };
        assert!(rows.iter().all(|row| leased.still_holds(row) == (row.state.status == Status::Leased)));
        found.iter().map(|id| ids.iter().position(|other| other == id).unwrap()).collect()
    };
    let none = TaskFilter::default;
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(list(none(), PAGE).await, [5, 4, 3, 2, 1, 0]);
    assert_eq!(list(none(), Page { limit: 2, before: Some(ids[4]) }).await, [3, 2]);
    assert_eq!(list(TaskFilter { status: Some(Status::Leased), ..none() }, PAGE).await, [1, 0]);
    assert_eq!(list(TaskFilter { status: Some(Status::Queued), ..none() }, Page { limit: 2, before: None }).await, [5, 4]);
    assert_eq!(list(TaskFilter { agent_slug: Some("odd".into()), ..none() }, PAGE).await, [5, 3, 1]);
    assert_eq!(list(TaskFilter { context_id: Some("ctx".into()), ..none() }, PAGE).await, [4, 2, 0]);
    assert_eq!(list(TaskFilter { worker_id: Some("w".into()), ..none() }, PAGE).await, [1, 0]);
    assert_eq!(list(TaskFilter { labels: vec![label("team", "red")], ..none() }, Page { limit: 2, before: None }).await, [4, 2]);
    assert_eq!(list(TaskFilter { labels: vec![label("team", "red"), label("n", "2")], ..none() }, PAGE).await, [2]);
    assert_eq!(list(TaskFilter { created_after: Some(START + 10), created_before: Some(START + 40), ..none() }, PAGE).await, [3, 2]);
    assert_eq!(list(TaskFilter { ids: vec![ids[1], ids[4], TaskId::nil()], ..none() }, PAGE).await, [4, 1]);
    assert_eq!(list(TaskFilter { reason: Some(Reason::Timeout), ..none() }, PAGE).await, [] as [usize; 0]);
    let everything = TaskFilter {
        ids: vec![ids[0], ids[3]],
        status: Some(Status::Leased),
        agent_slug: Some("writer".into()),
        context_id: Some("ctx".into()),
        worker_id: Some("w".into()),
        project: None,
        key: None,
        team: None,
        owner: None,
        reason: None,
        depends_on: None,
        labels: vec![label("team", "red")],
        created_after: Some(0),
        created_before: Some(i64::MAX),
        finished_after: None,
        asks: false,
    };
    assert_eq!(list(everything, PAGE).await, [0]);
    let rare = TaskFilter { status: Some(Status::Leased), agent_slug: Some("odd".into()), ..none() };
    assert_eq!(list(rare, PAGE).await, [1]);
    let mut owned = Vec::new();
    let own = |n: i64| TaskSpec { owner: Some("team".into()), ..labelled(n) };
    // Each task is created in another millisecond, because ids of the same millisecond have no order.
    bench.at(1_000);
    owned.extend(create(&mut writer, vec![own(6)]).await);
    bench.at(1_010);
    owned.extend(create(&mut writer, vec![TaskSpec { owner: Some("other".into()), ..labelled(7) }]).await);
    bench.at(1_020);
    owned.extend(create(&mut writer, vec![TaskSpec { agent_slug: "odd".into(), ..own(8) }]).await);
    let of_team = || TaskFilter { owner: Some(Owner::Key("team".into())), ..none() };
    let list_all = async |filter: TaskFilter| -> Vec<TaskId> { bench.store.task_ids(&filter, &PAGE).await.unwrap() };
    let at = |n: usize| owned[n];
    assert_eq!(list_all(of_team()).await, [at(2), at(0)]);
    assert_eq!(list_all(TaskFilter { agent_slug: Some("odd".into()), ..of_team() }).await, [at(2)]);
    assert_eq!(list_all(TaskFilter { labels: vec![label("n", "6")], ..of_team() }).await, [at(0)]);
    assert!(list_all(TaskFilter { labels: vec![label("n", "7")], ..of_team() }).await.is_empty());
    assert!(list_all(TaskFilter { status: Some(Status::Leased), ..of_team() }).await.is_empty());
    let owned_by = async |owner: Owner| bench.store.owned(&owned, &owner).await.unwrap().into_iter().collect::<BTreeSet<_>>();
    assert_eq!(owned_by(Owner::Key("team".into())).await, [at(0), at(2)].into());
    // A team owns what any of its keys created. A key with the same name as the team owns only its own tasks.
    bench.at(1_030);
    let of_red = |owner: &str| TaskSpec { owner: Some(owner.into()), team: Some("red".into()), ..labelled(9) };
    let red = create(&mut writer, vec![of_red("a"), of_red("b"), TaskSpec { owner: Some("red".into()), ..labelled(9) }]).await;
    let of_owner = |owner: Owner| TaskFilter { owner: Some(owner), ..none() };
    let mut listed = list_all(of_owner(Owner::Team("red".into()))).await;
    listed.sort_unstable();
    let mut expected = [red[0], red[1]];
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert_eq!(list_all(of_owner(Owner::Key("red".into()))).await, [red[2]]);
    let found = bench.store.owned(&red, &Owner::Team("red".into())).await.unwrap();
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), [red[0], red[1]].into());
}

async fn a_page_of_large_texts_is_cut(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let large = || TaskSpec { prompt: "x".repeat(12 << 20), ..spec("l") };
    for _ in 0..4 {
        create(&mut writer, vec![large()]).await;
    }
    let page = bench.store.task_sizes(&TaskFilter::default(), &PAGE).await.unwrap();
    assert_eq!((page.rows.len(), page.cut), (2, true));
    assert!(page.rows.iter().all(|(_, size)| *size >= 12 << 20));
    let before = page.rows.last().map(|(id, _)| *id);
    let page = bench.store.task_sizes(&TaskFilter::default(), &Page { limit: 100, before }).await.unwrap();
    assert_eq!((page.rows.len(), page.cut), (2, false));
}

async fn events_are_numbered_and_bounded(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 1).await;
    let id = create(&mut writer, vec![spec("e")]).await[0];
    let lease_id = held(&commit(&mut writer, vec![lease(id, "w")]).await[0]);
    for page in 0..21 {
        let events = (1..=500).map(|i| NewEvent { seq: page * 500 + i, kind: EventKind::Text, at: START, data: format!("{{\"n\":{i}}}") }).collect();
        commit(&mut writer, vec![Op::AppendEvents(op::AppendEvents { task: id, lease: lease_id, worker: None, events })]).await;
    }
    assert_eq!(bench.state(id).await.event_count, 10_500);
    let events = bench.store.events(id, 0, 3, i64::MAX).await.unwrap();
    assert_eq!(events.iter().map(|event| (event.number, event.seq)).collect::<Vec<_>>(), [(501, 501), (502, 502), (503, 503)]);
    assert_eq!(bench.store.events(id, 10_499, 100, i64::MAX).await.unwrap().len(), 1);
    assert!(bench.store.events(id, 10_500, 100, i64::MAX).await.unwrap().is_empty());
}

async fn old_tasks_go_and_their_usage_stays(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let brief = || TaskSpec { ttl_after_finished_sec: Some(1), labels: [("a".to_owned(), "b".to_owned())].into(), ..spec("c") };
    let ids = create(&mut writer, vec![brief(), spec("c"), spec("c"), spec("c")]).await;
    for id in &ids[..3] {
        commit(&mut writer, vec![lease(*id, "w"), success(*id, "x")]).await;
    }
    let dependent = TaskSpec { depends_on: vec![ids[3], ids[2]], ..spec("d") };
    create(&mut writer, vec![dependent]).await;
    let usage = bench.store.usage(&UsageFilter::default(), &[UsageBy::Model], 9, 0).await.unwrap();
    assert_eq!(usage.iter().map(|u| (u.keys[0].as_str(), u.sums.runs, u.sums.input_tokens, u.sums.cost_usd)).collect::<Vec<_>>(), [("m", 3, 30, 0.75)]);
    bench.at(1000);
    let due = Maintenance::RemoveTasks { finished_for_ms: None, limit: 100 };
    let done = writer.maintain(&due).await.unwrap();
    assert_eq!((done.removed.as_slice(), done.rows), (&ids[..1], 1));
    assert_eq!(done.counts.tasks, [(("writer".to_owned(), 5, Status::Completed), -1)].into());
    let old = Maintenance::RemoveTasks { finished_for_ms: Some(999), limit: 100 };
    assert_eq!(writer.maintain(&old).await.unwrap().removed, [ids[1]], "a queued task still depends on the other one");
    assert!(writer.maintain(&old).await.unwrap().removed.is_empty());
    assert!(bench.store.task(ids[0]).await.unwrap().is_none());
    assert!(bench.store.newest_result(ids[0]).await.unwrap().is_none());
    assert_eq!(bench.store.leases(&LeaseFilter::default(), &PAGE).await.unwrap().len(), 1);
    assert_eq!(bench.counted().await.0[&("writer".to_owned(), 5, Status::Completed)], 1);
    assert_eq!(bench.store.usage(&UsageFilter::default(), &[UsageBy::Model], 9, 0).await.unwrap(), usage);
    for by in [
        UsageBy::Day,
        UsageBy::AgentSlug,
        UsageBy::ContextId,
        UsageBy::Project,
        UsageBy::WorkerId,
        UsageBy::CreatedBy,
    ] {
        assert_eq!(bench.store.usage(&UsageFilter { from: Some(START - DAY), to: Some(START + DAY), ..UsageFilter::default() }, &[by], 9, 0).await.unwrap()[0].sums.runs, 3);
    }
    let by = [UsageBy::Label("a".into()), UsageBy::WorkerId];
    let usage = bench.store.usage(&UsageFilter::default(), &by, 9, 0).await.unwrap();
    assert_eq!(usage.iter().map(|u| (u.keys.join("/"), u.sums.runs)).collect::<Vec<_>>(), [("/w".into(), 2), ("b/w".into(), 1)]);
    assert_eq!(bench.store.usage(&UsageFilter::default(), &by, 1, 1).await.unwrap(), usage[1..]);
    assert_eq!(bench.store.usage(&UsageFilter::default(), &[UsageBy::Day], 9, 0).await.unwrap()[0].keys[0], "2027-01-15");
    assert_eq!(bench.store.usage(&UsageFilter::default(), &[UsageBy::Week], 9, 0).await.unwrap()[0].keys[0], "2027-01-11");
    assert!(bench.store.usage(&UsageFilter { from: Some(START + 2 * DAY), ..UsageFilter::default() }, &[UsageBy::Day], 9, 0).await.unwrap().is_empty());
    let audited = bench.store.audit(&AuditFilter::default(), &Page { limit: 1000, before: None }).await.unwrap().len();
    assert_eq!(writer.maintain(&Maintenance::PruneAudit { older_than_ms: 999, limit: 3, only_flushed: false }).await.unwrap().rows, 3);
    assert_eq!(bench.store.audit(&AuditFilter::default(), &Page { limit: 1000, before: None }).await.unwrap().len(), audited - 3);
}

async fn times_and_connections(database) {
    let bench = Bench::new(database).await;
    bench.port().checkpoint().await.unwrap();
    bench.port().notify().await.unwrap();
    assert_eq!((bench.store.now().await.unwrap(), bench.port().now().await.unwrap()), (START, START));
    assert!(bench.store.pool_figures().size > 0);
    assert_eq!(bench.port().is_shared(), database == Database::Postgres);
    let database_clock = match bench.store.kind() {
        Kind::Postgres => Store::open(&StoreOptions { url: bench.url.clone(), max_connections: 2 }).await.unwrap().now().await.unwrap(),
        Kind::Sqlite => {
            let refused = Store::open(&StoreOptions { url: bench.url.clone(), max_connections: 2 }).await.err().expect("one process a file").to_string();
            assert!(refused.contains(&format!("process {}", std::process::id())) && refused.contains("DATABASE_URL"), "{refused}");
            crate::support::now_ms()
        }
    };
    assert!((database_clock - crate::support::now_ms()).abs() < 5000);
}

async fn replicas_hear_of_each_other(database) {
    let bench = Bench::new(database).await;
    let mut here = bench.writer().await;
    if bench.store.kind() == Kind::Sqlite {
        assert!(bench.port().feed(&[], &[]).await.unwrap().entries.is_empty());
        return;
    }
    let mut there = bench.writer().await;
    let positions = bench.positions().await;
    register(&mut there, "w", 1).await;
    let id = create(&mut there, vec![spec("f")]).await[0];
    create(&mut here, vec![spec("g")]).await;
    let feed = bench.port().feed(&positions, &[here.id()]).await.unwrap();
    assert!(!feed.gap && !feed.more);
    let at = |n| Position { writer: there.id(), n };
    assert_eq!(feed.entries.iter().map(|entry| entry.at).collect::<Vec<_>>(), [at(1), at(2)]);
    assert_eq!(feed.entries[0].changes.workers, ["w"]);
    assert_eq!(feed.entries[1].changes.tasks, [id]);
    assert_eq!(feed.entries[1].counts.tasks[&("writer".to_owned(), 5, Status::Queued)], 1);
    let newer = bench.writer().await;
    assert!(bench.port().feed(&[at(2)], &[here.id()]).await.unwrap().entries.is_empty());
    newer.close().await;
    here.maintain(&Maintenance::CompactCounts).await.unwrap();
    bench.at(1);
    here.maintain(&Maintenance::PruneBatches { older_than_ms: 0 }).await.unwrap();
    assert!(bench.port().feed(&positions, &[here.id()]).await.unwrap().gap);
    assert!(!bench.port().feed(&[at(2)], &[here.id()]).await.unwrap().gap);
}

async fn the_feed_comes_in_steps(database) {
    let bench = Bench::new(database).await;
    let (here, mut there) = (bench.writer().await, bench.writer().await);
    if bench.store.kind() == Kind::Sqlite {
        return;
    }
    let mut positions = bench.positions().await;
    for n in 0..130 {
        let configure = Op::Configure(op::Configure { membridge_server_url: format!("http://{n}"), membridge_admin_key: String::new() });
        commit(&mut there, vec![configure]).await;
    }
    let mut sizes = Vec::new();
    loop {
        let feed = bench.port().feed(&positions, &[here.id()]).await.unwrap();
        assert!(!feed.gap && feed.entries.iter().all(|entry| entry.changes.settings));
        sizes.push(feed.entries.len());
        positions = vec![feed.entries.last().unwrap().at];
        if !feed.more {
            break;
        }
    }
    assert_eq!(sizes, [64, 64, 2]);
    // An entry that another version wrote in a different form counts as a gap.
    execute(&bench.url, "UPDATE batches SET changes = '{\"removed_workers\":[\"w\"]}' WHERE n = 130").await;
    let at = Position { writer: there.id(), n: 129 };
    let feed = bench.port().feed(&[at], &[here.id()]).await.unwrap();
    assert!(feed.gap && feed.entries.len() == 1);
}

}
