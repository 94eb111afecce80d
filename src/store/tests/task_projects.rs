//! Projects in the rows of tasks and workers, also beside a program that does not know of them.

use super::*;
use bloom_core::command::Completion;
use bloom_core::task::{Outcome, Reason};
use bloom_test_world::world::{completion, in_project};

fn project(name: &str) -> Op {
    let repo_url = format!("https://git.example.com/{name}.git");
    Op::CreateProject(op::CreateProject {
        name: name.into(),
        repo_url,
        target_path: None,
        primary_node_id: None,
        branch_prefix: "bloom".into(),
    })
}

fn failed(task: TaskId, reason: Reason) -> Op {
    Op::Complete(Box::new(Completion { reason: Some(reason), ..completion(task, None, Outcome::Error) }))
}

async fn reason(bench: &Bench, task: TaskId) -> Reason {
    bench.state(task).await.failure.unwrap().reason
}

crate::on_both! {

async fn a_newer_reason_is_stored_beside_one_that_older_programs_know(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    register(&mut writer, "w", 4).await;
    let ids = create(&mut writer, vec![spec("a"), spec("b"), spec("c")]).await;
    commit(&mut writer, ids.iter().map(|id| lease(*id, "w")).collect()).await;
    let reasons = [Reason::Project, Reason::Timeout, Reason::DiskLimit];
    commit(&mut writer, ids.iter().zip(reasons).map(|(id, reason)| failed(*id, reason)).collect()).await;
    for (id, expected) in ids.iter().zip(reasons) {
        assert_eq!(reason(&bench, *id).await, expected);
    }
    // A program since migration 22 reads the first word, because the second one does not go with it. It clears the second one when it writes.
    execute(&bench.url, "UPDATE task_state SET newer_failure_reason = NULL WHERE failure_reason = 'agent_error'").await;
    assert_eq!(reason(&bench, ids[2]).await, Reason::AgentError);
    // The words that a program of the version before reads.
    execute(&bench.url, "UPDATE task_state SET newer_failure_reason = NULL WHERE failure_reason = 'spawn_failed'").await;
    assert_eq!(reason(&bench, ids[0]).await, Reason::SpawnFailed);
    // Such a program writes another failure, and leaves the newer word.
    execute(&bench.url, "UPDATE task_state SET newer_failure_reason = 'project', failure_reason = 'worker_lost'").await;
    assert_eq!(reason(&bench, ids[0]).await, Reason::WorkerLost);
}

async fn what_a_worker_serves_is_kept_by_older_programs(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    let projects = Some(Some(vec!["docs".to_owned()]));
    let change = WorkerChange { id: "w".into(), git: Some(true), projects: projects.clone(), actor: Actor::Api, ..WorkerChange::default() };
    commit(&mut writer, vec![Op::RegisterWorker(Box::new(change))]).await;
    // A program of the version before takes `git` for a capability that it does not know, and leaves the columns.
    let other = r#"UPDATE workers SET other_capabilities = '{"git":"false","gpu":"1"}'"#;
    execute(&bench.url, other).await;
    let capabilities = bench.store.worker("w").await.unwrap().unwrap().capabilities;
    assert_eq!((capabilities.git, Some(capabilities.projects)), (true, projects));
    assert_eq!(capabilities.other, [("gpu".to_owned(), "1".to_owned())].into());
}

async fn tasks_of_projects_have_pages_of_their_own(database) {
    let bench = Bench::new(database).await;
    let mut writer = bench.writer().await;
    commit(&mut writer, vec![project("docs"), project("site")]).await;
    let of = |project: &str| TaskSpec { project: Some(in_project(project)), ..spec(project) };
    let ids = create(&mut writer, vec![of("docs"), spec("none"), of("site")]).await;
    let page = async |projects: Projects| {
        let part = Part { projects, ..Part::default() };
        let rows = bench.port().ready_page(&Scope::of(part.clone(), None), None, 9).await.unwrap();
        assert_eq!(bench.port().ready_page(&Scope::of(part, Some("writer")), None, 9).await.unwrap(), rows);
        rows.into_iter().map(|row| (row.id, row.project)).collect::<Vec<_>>()
    };
    let [docs, none, site] = [(ids[0], Some("docs".to_owned())), (ids[1], None), (ids[2], Some("site".to_owned()))];
    assert_eq!(page(Projects::All).await, [docs.clone(), none.clone(), site]);
    assert_eq!(page(Projects::None).await, [none]);
    assert_eq!(page(Projects::One("docs".into())).await, [docs]);
    assert!(page(Projects::One("gone".into())).await.is_empty());
}

}
