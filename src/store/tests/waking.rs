//! Tests of wake-ups and of the tasks that they find.

use super::*;
use bloom_core::command::CordonChange;
use bloom_core::op;
use bloom_core::wakeup::{Progress, Subject, Waiters, Wakeup};

impl Bench {
    async fn wakeups(&self) -> Vec<Wakeup> {
        self.port().wakeups(None, 100).await.unwrap()
    }

    /// All waiting tasks of the subject, read in pages of this size, and the number of pages.
    async fn all_waiters(&self, subject: Subject, limit: i64) -> (Vec<TaskId>, usize) {
        let mut wakeup = Wakeup { id: Uuid::nil(), subject, cursor: None };
        let mut found = Vec::new();
        for pages in 1.. {
            let Waiters { tasks, next, .. } = self.port().waiters(&wakeup, limit).await.unwrap();
            assert!(tasks.len() as i64 <= limit);
            found.extend(tasks);
            wakeup.cursor = next;
            if next.is_none() {
                return (found, pages);
            }
        }
        unreachable!()
    }
}

crate::on_both! {

async fn wake_ups_last_until_they_are_done(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let first = create(&mut writer, vec![TaskSpec { exclusive_key: Some("key".into()), ..in_context("c") }]).await[0];
    let behind = TaskSpec { depends_on: vec![first], ..spec("d") };
    create(&mut writer, (0..5).map(|_| behind.clone()).chain([in_context("c")]).collect()).await;
    commit(&mut writer, vec![lease(first, "w")]).await;
    assert!(bench.wakeups().await.is_empty());
    commit(&mut writer, vec![success(first, "x")]).await;
    let wakeups = bench.wakeups().await;
    let subjects: Vec<_> = wakeups.iter().map(|wakeup| wakeup.subject.clone()).collect();
    let context = Subject::Context { context_id: "c".into(), after: Some(first) };
    assert_eq!(subjects, [Subject::Dependents(first), context, Subject::Key("key".into())]);
    assert_eq!(bench.port().wakeups(Some(wakeups[0].id), 1).await.unwrap(), wakeups[1..2]);

    let go_on = |next| Op::Reevaluate(op::Reevaluate { tasks: vec![], progress: Some(Progress { wakeup: wakeups[0].id, next, more_want_key: false }) });
    let (early, late) = (Uuid::from_u128(1), Uuid::from_u128(2));
    for (next, expected) in [(late, late), (early, late), (Uuid::max(), Uuid::max())] {
        commit(&mut writer, vec![go_on(Some(next))]).await;
        assert_eq!(bench.wakeups().await[0].cursor, Some(expected), "the cursor never moves back");
    }
    // One batch with several pages of one wake-up, and a page of another.
    let other = Progress { wakeup: wakeups[1].id, next: Some(early), more_want_key: false };
    commit(&mut writer, vec![go_on(Some(early)), go_on(None), go_on(Some(late)), Op::Reevaluate(op::Reevaluate { tasks: vec![], progress: Some(other) })]).await;
    let left: Vec<_> = bench.wakeups().await.into_iter().map(|wakeup| (wakeup.id, wakeup.cursor)).collect();
    assert_eq!(left, [(wakeups[1].id, Some(early)), (wakeups[2].id, None)]);
    commit(&mut writer, vec![go_on(None)]).await;
    bench.at(1_000);
    commit(&mut writer, vec![Op::Cordon(op::Cordon { worker: "w".into(), change: CordonChange::Drain })]).await;
    assert_eq!(bench.wakeups().await.last().unwrap().subject, Subject::Reservations("w".into()));
}

async fn dependents_come_by_pages(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let first = create(&mut writer, vec![spec("a")]).await[0];
    let behind = create(&mut writer, (0..5).map(|_| TaskSpec { depends_on: vec![first], ..spec("d") }).collect()).await;
    for limit in [1, 2, 5, 9] {
        let (found, pages) = bench.all_waiters(Subject::Dependents(first), limit).await;
        assert_eq!(found, behind);
        assert!(pages as i64 >= 5 / limit);
    }
    commit(&mut writer, vec![Op::Cancel(op::Cancel { task: behind[0] }), Op::Cancel(op::Cancel { task: behind[3] })]).await;
    let expected = [behind[1], behind[2], behind[4]];
    assert_eq!(bench.all_waiters(Subject::Dependents(first), 2).await.0, expected, "finished tasks are skipped");
    assert!(bench.all_waiters(Subject::Dependents(behind[0]), 2).await.0.is_empty());
}

async fn of_a_context_the_first_and_the_next_come(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, (0..4).map(|_| in_context("c")).collect()).await;
    let of = |after| Subject::Context { context_id: "c".into(), after };
    assert_eq!(bench.all_waiters(of(None), 9).await.0, [ids[0]], "it is ready, but an earlier task may have been queued again");
    assert_eq!(bench.all_waiters(of(Some(ids[1])), 9).await.0, [ids[0], ids[2]]);
    // The process ends before it wakes a task.
    commit(&mut writer, vec![lease(ids[0], "w")]).await;
    assert!(bench.all_waiters(of(None), 9).await.0.is_empty(), "the first task runs");
    commit(&mut writer, vec![success(ids[0], "x")]).await;
    assert_eq!(bench.all_waiters(of(None), 9).await.0, [ids[1]]);
    assert_eq!(bench.all_waiters(of(Some(ids[0])), 9).await.0, [ids[1]], "the first task and the next one are the same");
    assert_eq!(bench.all_waiters(of(Some(ids[2])), 9).await.0, [ids[1], ids[3]]);
}

async fn of_a_key_the_first_of_each_agent_comes(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let keyed = |agent: &str, priority| TaskSpec { exclusive_key: Some("key".into()), agent_slug: agent.into(), priority, ..spec("k") };
    let holder = create(&mut writer, vec![keyed("a", 5)]).await[0];
    commit(&mut writer, vec![lease(holder, "w")]).await;
    let wanted = vec![keyed("a", 5), keyed("a", 9), keyed("a", 9), keyed("b", 1), keyed("c", 5), keyed("c", 5)];
    let ids = create(&mut writer, wanted).await;
    create(&mut writer, vec![TaskSpec { exclusive_key: Some("other".into()), ..keyed("a", 9) }]).await;
    let waiters = async |limit| {
        let wakeup = Wakeup { id: Uuid::nil(), subject: Subject::Key("key".into()), cursor: None };
        let Waiters { tasks, next, more_want_key } = bench.port().waiters(&wakeup, limit).await.unwrap();
        assert_eq!(next, None);
        (tasks, more_want_key)
    };
    assert_eq!(waiters(9).await, (vec![ids[1], ids[3], ids[4]], true));
    assert_eq!(waiters(3).await, (vec![ids[1], ids[3], ids[4]], true));
    assert_eq!(waiters(2).await, (vec![ids[1], ids[3]], true));
    let cancels = [ids[1], ids[2], ids[5]].map(|task| Op::Cancel(op::Cancel { task }));
    commit(&mut writer, cancels.to_vec()).await;
    assert_eq!(waiters(9).await, (vec![ids[0], ids[3], ids[4]], false));
    commit(&mut writer, [ids[0], ids[3], ids[4]].map(|task| Op::Cancel(op::Cancel { task })).to_vec()).await;
    assert_eq!(waiters(9).await, (vec![], false));
}

async fn reservations_come_by_pages(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let ids = create(&mut writer, (0..6).map(|n| TaskSpec { priority: n, ..spec("r") }).collect()).await;
    execute(&bench.url, "UPDATE task_state SET parked = 'reserved', session_worker = 'w', wake_at = 1").await;
    for limit in [1, 2, 6, 9] {
        assert_eq!(bench.all_waiters(Subject::Reservations("w".into()), limit).await.0, ids);
    }
    assert!(bench.all_waiters(Subject::Reservations("v".into()), 9).await.0.is_empty());
}

}
