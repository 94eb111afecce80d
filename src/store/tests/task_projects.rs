//! Tests of projects in the rows of tasks.

use super::*;
use bloom_test_world::world::in_project;

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

crate::on_both! {

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
