//! How suspended tasks are stored, also beside a program that does not know of suspension.

use super::*;
use bloom_core::task::Parked;
use bloom_core::wakeup::{Subject, Wakeup};

fn suspend(task: TaskId, suspend: bool) -> Op {
    Op::Suspend(op::Suspend { task, suspend })
}

impl Bench {
    async fn ready(&self) -> Vec<TaskId> {
        let page = self.port().ready_page(&Scope::of(Part::default(), None), None, 9).await.unwrap();
        let of_agent = self.port().ready_page(&Scope::of(Part::default(), Some("writer")), None, 9).await.unwrap();
        assert_eq!(page, of_agent);
        assert_eq!(self.port().ready_agents().await.unwrap().is_empty(), page.is_empty());
        assert!(self.port().ready_page(&Scope::Reserved("w".into()), None, 9).await.unwrap().is_empty());
        page.into_iter().map(|ready| ready.id).collect()
    }
}

crate::on_both! {

async fn a_suspended_task_is_stored_as_reserved_for_nobody(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, vec![TaskSpec { suspend: true, ..in_context("c") }, spec("d")]).await;
    let row = bench.store.task(ids[0]).await.unwrap().unwrap();
    assert!(row.spec.suspend && row.state.suspend);
    assert_eq!((row.state.parked, row.state.session_worker, row.state.wake_at), (Some(Parked::Suspended), None, None));
    assert_eq!(bench.ready().await, [ids[1]]);
    commit(&mut writer, vec![suspend(ids[1], true)]).await;
    assert!(bench.ready().await.is_empty());
    assert!(!bench.store.task(ids[1]).await.unwrap().unwrap().spec.suspend, "a spec never changes");
    // A program of the version before can read these rows only if it knows the word.
    let stored = "DELETE FROM task_state WHERE parked <> 'reserved' OR session_worker IS NOT NULL OR wake_at IS NOT NULL";
    execute(&bench.url, stored).await;
    assert_eq!(bench.port().task_states(&ids).await.unwrap().len(), 2);
    commit(&mut writer, vec![suspend(ids[0], false), suspend(ids[1], false)]).await;
    assert_eq!(bench.ready().await, ids);
}

async fn what_a_program_without_suspension_writes_is_read_as_suspended(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, vec![in_context("c")]).await;
    commit(&mut writer, vec![suspend(ids[0], true)]).await;
    let wakeup = Wakeup { id: Uuid::nil(), subject: Subject::Context { context_id: "c".into(), after: None }, cursor: None };
    for left in ["parked = NULL, wake_at = NULL", "parked = 'not_before', wake_at = 1", "parked = 'reserved', session_worker = 'w', wake_at = 1"] {
        execute(&bench.url, &format!("UPDATE task_state SET {left}")).await;
        assert_eq!(bench.state(ids[0]).await.parked, Some(Parked::Suspended), "{left}");
        assert!(bench.ready().await.is_empty(), "{left}");
        assert!(bench.port().waiters(&wakeup, 9).await.unwrap().tasks.is_empty(), "{left}");
        let claim = Claim { worker: "w".into(), candidates: ids.clone(), max: 1, held: None, instance: None, ttl_ms: 1_000 };
        let claimed = commit(&mut writer, vec![Op::Claim(claim)]).await.remove(0);
        assert!(matches!(claimed, Reply::Claimed(claimed) if claimed.leased.is_empty()), "{left}");
        // When it is due, it is stored again as this program does.
        commit(&mut writer, vec![Op::Reevaluate(op::Reevaluate { tasks: ids.clone(), progress: None })]).await;
        assert_eq!(bench.state(ids[0]).await.wake_at, None, "{left}");
    }
    commit(&mut writer, vec![suspend(ids[0], false)]).await;
    assert_eq!(bench.ready().await, ids);
}

}
