//! Tests that rows are read as they were written, and that conflicts are detected.

use super::*;
use bloom_core::op;
use bloom_core::reply;

crate::on_both! {

async fn what_is_written_is_read(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w1", 2).await;
    // The ids of entries have an order only between different milliseconds.
    bench.at(1);
    let made = commit(&mut writer, vec![Op::CreateProject(op::CreateProject {
        name: "docs".into(),
        repo_url: "https://git.example.com/docs.git".into(),
        target_path: None,
        primary_node_id: None,
        branch_prefix: "bots".into(),
    })]);
    let Reply::Project(made) = made.await.remove(0) else { panic!("a project") };
    let full = TaskSpec {
        labels: [("k".to_owned(), "v'\"".to_owned())].into(),
        idempotency_key: Some(qualified("team-a", "once")),
        exclusive_key: Some(qualified("team-a", "repo")),
        object: Some(KubernetesObject { namespace: "team-a".into(), name: "one".into(), uid: Uuid::from_u128(77) }),
        priority: 9,
        profile_timeout_max: Some(3600),
        model: Some("opus".into()),
        ttl_after_finished_sec: Some(60),
        session: Session::Context,
        owner: Some("team".into()), team: Some("web".into()),
        project: Some(TaskProject {
            id: made.id,
            name: made.name,
            repo_url: made.repo_url,
            git_ref: Some("main".into()),
            push: PushMode::Branch,
        }),
        traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok(),
        ..spec(&qualified("team-a", "c1"))
    };
    bench.at(2);
    let ids = create(&mut writer, vec![full.clone(), spec("c2")]).await;
    let again = commit(&mut writer, vec![Op::Create(op::Create { tasks: vec![full.clone()] })]).await.remove(0);
    assert!(matches!(again, Reply::Created(created) if created[0].existed && created[0].spec.id == ids[0]));
    let row = bench.store.task(ids[0]).await.unwrap().unwrap();
    assert_eq!(*row.spec, TaskSpec { id: ids[0], ..full });
    let made = TaskState { revision: 1, created_after: Some(Uuid::nil()), ready_at: row.state.ready_at, ..TaskState::new(&row.spec) };
    assert_eq!(row.state, made);

    bench.at(10);
    let leased = commit(&mut writer, vec![lease(ids[0], "w1"), lease(ids[1], "w1")]).await;
    let Reply::Leased(reply::Leased { task, .. }) = &leased[0] else { panic!("leased") };
    assert_eq!(bench.state(ids[0]).await, *task);
    assert_eq!(bench.store.leases_of("w1").await.unwrap().len(), 2);
    assert_eq!(bench.port().active_tasks(None, 10).await.unwrap().len(), 2);
    assert_eq!(bench.port().active_tasks(Some(ids[0]), 10).await.unwrap().len(), 1);

    bench.at(20);
    commit(&mut writer, vec![Op::Heartbeat(op::Heartbeat { task: ids[0], holder: Holder::default() })]).await;
    bench.at(30);
    let heartbeat = commit(&mut writer, vec![Op::Heartbeat(op::Heartbeat { task: ids[0], holder: Holder::default() })]).await;
    let Reply::Task(task) = &heartbeat[0] else { panic!("a task") };
    assert_eq!(bench.state(ids[0]).await, *task);
    let renew = Op::RenewLeases(op::RenewLeases { worker: "w1".into(), leases: vec![held(&leased[0]), held(&leased[1]), Uuid::max()] });
    let renewed = commit(&mut writer, vec![renew]).await;
    assert!(matches!(&renewed[0], Reply::RenewedLeases(reply::RenewedLeases { renewed, lost, .. }) if renewed.len() == 2 && *lost == [Uuid::max()]));

    bench.at(40);
    let done = commit(&mut writer, vec![success(ids[0], "out \u{1F600} \" \\")]).await;
    let Reply::Completed(reply::Completed { task, .. }) = &done[0] else { panic!("completed") };
    assert_eq!(bench.state(ids[0]).await, *task);
    let result = bench.store.newest_result(ids[0]).await.unwrap().unwrap();
    assert_eq!(result.output.as_deref(), Some("out \u{1F600} \" \\"));
    assert_eq!((result.branch.as_deref(), result.commit_id.as_deref()), (Some("bloom/c"), Some("c0ffee")));
    assert_eq!(bench.store.result_of_lease(held(&leased[0])).await.unwrap(), Some(result.clone()));
    let bytes = (result.output.iter().chain(&result.error_message).map(String::len).sum::<usize>()) as i64;
    for task in [None, Some(ids[0])] {
        assert_eq!(bench.store.artifact_sizes(task, None, &PAGE).await.unwrap().rows, [(result.artifact_id, bytes)]);
    }
    assert_eq!(bench.store.artifacts(&[result.artifact_id]).await.unwrap(), [result]);
    let ended: Vec<_> = bench.store.leases(&LeaseFilter::default(), &PAGE).await.unwrap().into_iter().map(|l| (l.task_id, l.status)).collect();
    assert_eq!(ended, [(ids[1], LeaseStatus::Active), (ids[0], LeaseStatus::Released)]);
    assert_eq!(bench.store.leases(&LeaseFilter { status: Some(LeaseStatus::Released), ..LeaseFilter::default() }, &PAGE).await.unwrap().len(), 1);
    assert_eq!(bench.store.leases(&LeaseFilter { status: Some(LeaseStatus::Failed), ..LeaseFilter::default() }, &PAGE).await.unwrap().len(), 0);
    let actions: Vec<_> = bench.store.audit(&AuditFilter::default(), &PAGE).await.unwrap().into_iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, [
        "task_completed", "task_leased", "task_leased", "task_created", "task_created", "project_created", "worker_registered"
    ]);
    let context = qualified("team-a", "c1");
    let keys = RowKeys { contexts: [context.clone(), "none".to_owned()].into(), past_leases: [held(&leased[0])].into(), ..RowKeys::default() };
    let loaded = writer.begin_and_load(&keys, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert_eq!(loaded.now, START + 40);
    assert_eq!(loaded.contexts[&context].last_worker, Some(("w1".to_owned(), START + 40)));
    assert_eq!(loaded.contexts[&context].session_id.as_deref(), Some("sess"));
    assert_eq!(loaded.contexts["none"], Default::default());
    assert_eq!(loaded.past_leases[&held(&leased[0])].as_ref().unwrap().usage.unwrap().cost_usd, 0.25);
}

async fn settings_and_workers(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let configure = |key: &str| Op::Configure(op::Configure { membridge_server_url: "http://m".into(), membridge_admin_key: key.into() });
    commit(&mut writer, vec![configure("one")]).await;
    commit(&mut writer, vec![configure("two")]).await;
    let settings = bench.store.settings().await.unwrap();
    assert_eq!(settings.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["two", "http://m"]);
    register(&mut writer, "b", 2).await;
    register(&mut writer, "a", 3).await;
    bench.at(5);
    commit(&mut writer, vec![Op::RecordLastSeen(op::RecordLastSeen { last_seen: vec![("a".into(), START + 5)] })]).await;
    let workers = all_workers(&bench.store).await.unwrap();
    assert_eq!(workers.iter().map(|w| (w.id.as_str(), w.capabilities.max_concurrency, w.last_seen)).collect::<Vec<_>>(), [("a", 3, START + 5), ("b", 2, START)]);
    let all = writer.begin_and_load(&RowKeys { all_workers: true, ..RowKeys::default() }, LockWait::Long).await.unwrap();
    writer.rollback().await.unwrap();
    assert!(all.all_workers && all.workers.len() == 2 && all.slots["a"].exact);
    commit(&mut writer, vec![Op::RemoveWorker(op::RemoveWorker { worker: "a".into() })]).await;
    assert_eq!(bench.store.worker("a").await.unwrap(), None);
    register(&mut writer, "a", 1).await;
    assert!(bench.store.worker("a").await.unwrap().is_some());
}

async fn places_change_hands_within_a_batch(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 1).await;
    let ids = create(&mut writer, vec![spec("a"), spec("b"), spec("c")]).await;
    // The later id has the slot and gives it to the earlier one, so writing in the order of ids would violate the unique index.
    commit(&mut writer, vec![lease(ids[2], "w")]).await;
    commit(&mut writer, vec![success(ids[2], "x"), lease(ids[0], "w")]).await;
    assert_eq!(bench.state(ids[0]).await.lease.unwrap().slot, 0);
    // One task releases its slot and takes another, while a second task takes the released slot.
    register(&mut writer, "w", 2).await;
    let lease_id = bench.state(ids[0]).await.lease.unwrap().id;
    let release = Op::Release(op::Release { task: ids[0], lease: lease_id, reason: "test".into() });
    commit(&mut writer, vec![release, lease(ids[1], "w"), lease(ids[0], "w")]).await;
    let slots = (bench.state(ids[0]).await.lease.unwrap().slot, bench.state(ids[1]).await.lease.unwrap().slot);
    assert_eq!(slots, (1, 0));
}

async fn a_place_is_given_once(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 2).await;
    let ids = create(&mut writer, vec![spec("a"), spec("b")]).await;
    commit(&mut writer, vec![lease(ids[0], "w")]).await;
    // A replica wrongly believes that the slot is free.
    let keys = lease(ids[1], "w").keys();
    let mut set = WorkingSet::new(writer.begin_and_load(&keys, LockWait::Long).await.unwrap(), seed());
    decide(&mut set, &Command::from(lease(ids[1], "w"))).unwrap();
    let task = set.loaded.tasks[&ids[1]].clone().unwrap();
    assert_eq!(task.lease.unwrap().slot, 0);
    assert!(writer.save(&set, None).await.unwrap_err().is_conflict());
    writer.rollback().await.unwrap();
    assert_eq!(bench.state(ids[1]).await.status, Status::Queued);
    let exact = RowKeys { exact_slots: ["w".to_owned()].into(), ..RowKeys::default() };
    assert_eq!(writer.begin_and_load(&exact, LockWait::Long).await.unwrap().slots["w"].used, 1);
    writer.rollback().await.unwrap();
}

async fn an_unknown_commit_is_resolved(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    // Batch 1 did not arrive. Its number is taken now, and a repeated call gives the same result.
    assert!(!writer.resolve_commit().await.unwrap());
    register(&mut writer, "w", 1).await;
    assert_eq!(bench.positions().await, [Position { writer: writer.id(), n: 2 }]);
    // Batch 3 committed, but its answer was lost.
    let insert = format!("INSERT INTO batches (lane, n, at, counts, changes) VALUES ({}, 3, 0, '', '')", writer.id());
    execute(&bench.url, &insert).await;
    assert!(writer.resolve_commit().await.unwrap());
    register(&mut writer, "u", 1).await;
    assert_eq!(writer.n(), 4);
}

async fn a_lost_connection_is_replaced(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 1).await;
    if bench.store.kind() == Kind::Sqlite {
        return;
    }
    all_workers(&bench.store).await.unwrap();
    let mut set = WorkingSet::new(writer.begin_and_load(&RowKeys::default(), LockWait::Long).await.unwrap(), seed());
    execute(&bench.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").await;
    set.dirty.settings.push(("key", "value".into()));
    assert!(writer.save(&set, None).await.unwrap_err().is_unavailable());
    assert!(writer.begin_and_load(&RowKeys::default(), LockWait::Long).await.unwrap_err().is_unavailable());
    writer.rollback().await.unwrap();
    register(&mut writer, "v", 1).await;
    let again = async || all_workers(&bench.store).await.ok();
    assert_eq!(crate::support::eventually("reading works again", again).await.len(), 2);
    let counts = crate::support::eventually("the control connections work again", async || bench.port().counts().await.ok()).await;
    assert_eq!(counts.positions, [Position { writer: writer.id(), n: 2 }], "the writer is the same as before");
    assert!(bench.store.settings().await.unwrap().is_empty());
}

async fn claims_by_two_lanes_never_collide_for_long(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 32).await;
    let ids = create(&mut writer, (0..32).map(|n| spec(&format!("c{n}"))).collect()).await;
    let writers = if bench.store.kind() == Kind::Sqlite { 1 } else { 4 };
    let mut commits = Vec::new();
    for first in 0..writers {
        let mut writer = bench.writer().await;
        let mine: Vec<TaskId> = ids.iter().copied().skip(first).step_by(writers).collect();
        commits.push(crate::support::beside(async move {
            for task in mine {
                let claim = Op::Claim(Claim { worker: "w".into(), candidates: vec![task], max: 1, held: None, instance: None, ttl_ms: 1000 });
                while let Err(error) = try_commit(&mut writer, std::slice::from_ref(&claim)).await {
                    assert!(error.is_conflict(), "{error}");
                    writer.rollback().await.unwrap();
                    // Like the engine, load the assumed facts before the next try.
                    let mut keys = claim.keys();
                    keys.exact_slots.insert("w".into());
                    let mut set = WorkingSet::new(writer.begin_and_load(&keys, LockWait::Long).await.unwrap(), seed());
                    decide(&mut set, &Command::from(claim.clone())).unwrap();
                    if writer.save(&set, None).await.is_ok() {
                        break;
                    }
                    writer.rollback().await.unwrap();
                }
            }
        }));
    }
    for one in commits {
        one.await.unwrap();
    }
    let exact = RowKeys { exact_slots: ["w".to_owned()].into(), ..RowKeys::default() };
    assert_eq!(writer.begin_and_load(&exact, LockWait::Long).await.unwrap().slots["w"].used, u32::MAX);
    writer.rollback().await.unwrap();
}

}
