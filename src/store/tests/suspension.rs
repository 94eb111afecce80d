//! Tests how suspended tasks are stored, also together with a program that does not support suspension.

use super::*;
use bloom_core::task::Parked;

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

async fn a_suspended_task_is_ready_for_nobody(database) {
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
    commit(&mut writer, vec![suspend(ids[0], false), suspend(ids[1], false)]).await;
    assert_eq!(bench.ready().await, ids);
}

}
