//! Projects: which ones are allowed, and what is recorded of their clones.

use bloom_core::command::Rejection;
use bloom_core::op::{self, NodeClone};
use bloom_core::project::{CloneStatus, MAX_CLONE_ERROR, MAX_PROJECT_NODES, MAX_PROJECTS, is_project_name, is_target_path, path_below};
use bloom_test_world::world::{World, world};

fn create(name: &str) -> op::CreateProject {
    op::CreateProject {
        name: name.into(),
        repo_url: "https://host/r".into(),
        target_path: None,
        primary_node_id: None,
        branch_prefix: "bloom".into(),
    }
}

fn clones(world: &World, nodes: &[(&str, Result<Option<&str>, &str>)], propagated: bool) -> op::RecordClones {
    let cloned_for = if propagated { op::ClonedFor::Propagation } else { op::ClonedFor::Call };
    let node = |(node, outcome): &(&str, Result<Option<&str>, &str>)| NodeClone {
        node_id: (*node).into(),
        outcome: outcome.map(|path| path.map(str::to_owned)).map_err(str::to_owned),
    };
    let project = *world.db.projects.keys().next().expect("a project");
    op::RecordClones { project, nodes: nodes.iter().map(node).collect(), cloned_for }
}

fn told(world: &World) -> Vec<String> {
    world.db.audit.iter().map(|entry| format!("{} by {}: {}", entry.action, entry.actor, entry.detail)).collect()
}

#[test]
fn clones_are_recorded_at_the_project_and_the_worker() {
    let mut world = world();
    let made = world.ok(create("p"));
    assert_eq!(made.clone_status, CloneStatus::Pending);
    let failed = world.ok(clones(&world, &[("a", Err("no room"))], false));
    assert_eq!((failed.clone_status, failed.error_message.as_deref()), (CloneStatus::Failed, Some("no room")));
    let part = world.ok(clones(&world, &[("a", Ok(Some("/p"))), ("b", Err("gone"))], true));
    assert_eq!((part.clone_status, part.error_message.as_deref()), (CloneStatus::Partial, Some("b: gone")));
    let whole = world.ok(clones(&world, &[("b", Ok(None))], true));
    assert_eq!((whole.clone_status, whole.error_message), (CloneStatus::Synced, None));
    let nodes: Vec<_> =
        world.db.project_nodes.values().map(|node| (node.node_id.as_str(), node.clone_status, node.clone_path.as_deref())).collect();
    assert_eq!(nodes, [("a", CloneStatus::Cloned, Some("/p")), ("b", CloneStatus::Cloned, None)]);
    world.ok(op::DeleteProject { project: made.id });
    assert!(world.db.projects.is_empty() && world.db.project_nodes.is_empty());
    assert_eq!(world.run(op::DeleteProject { project: made.id }).unwrap_err(), Rejection::ProjectNotFound);
    assert_eq!(
        told(&world),
        [
            "project_created by admin: p",
            "project_cloned by admin: p to a; 1 failed",
            "project_propagated by admin: p to a, b; 1 failed",
            "project_propagated by admin: p to b",
            "project_deleted by admin: p",
        ]
    );
}

#[test]
fn a_primary_worker_that_never_had_a_clone_gives_way_to_one_that_has() {
    let primary = |project: &bloom_core::project::Project| project.primary_node_id.as_ref().map(|node| node.as_str().to_owned());
    let mut world = world();
    world.ok(create("p"));
    let mistyped = world.ok(clones(&world, &[("wsite", Err("unknown worker"))], false));
    assert_eq!(primary(&mistyped).as_deref(), Some("wsite"));
    let failed = world.ok(clones(&world, &[("site", Err("no room"))], false));
    assert_eq!(primary(&failed).as_deref(), Some("wsite"), "another failure is no better");
    let propagated = world.ok(clones(&world, &[("other", Ok(None))], true));
    assert_eq!(primary(&propagated).as_deref(), Some("wsite"), "nobody has named a worker");
    let cloned = world.ok(clones(&world, &[("site", Ok(None))], false));
    assert_eq!(primary(&cloned).as_deref(), Some("site"));
    world.ok(clones(&world, &[("site", Err("unreachable"))], false));
    let later = world.ok(clones(&world, &[("other", Ok(None))], false));
    assert_eq!(primary(&later).as_deref(), Some("site"), "it has a clone, which could not be renewed");
}

#[test]
fn a_failure_on_one_worker_leaves_a_project_that_others_have_cloned_partial() {
    let of = |world: &mut World, cloned_for, node: &str, outcome: Result<Option<&str>, &str>| {
        let clones = clones(world, &[(node, outcome)], false);
        let project = world.ok(op::RecordClones { cloned_for, ..clones });
        (project.clone_status, project.error_message)
    };
    let (call, run) = (op::ClonedFor::Call, op::ClonedFor::Run);
    let mut world = world();
    world.ok(create("p"));
    assert_eq!(of(&mut world, run, "a", Err("no such repository")), (CloneStatus::Failed, Some("a: no such repository".into())));
    assert_eq!(of(&mut world, run, "a", Ok(None)), (CloneStatus::Cloned, None));
    assert_eq!(of(&mut world, call, "b", Err("no room")), (CloneStatus::Partial, Some("no room".into())));
    assert_eq!(of(&mut world, run, "a", Ok(None)), (CloneStatus::Partial, Some("no room".into())), "b has none still");
    assert_eq!(of(&mut world, run, "b", Ok(None)), (CloneStatus::Cloned, None));
    assert_eq!(of(&mut world, run, "c", Err("no route")), (CloneStatus::Partial, Some("c: no route".into())));
    let mut whole = clones(&world, &[("c", Ok(None))], true);
    whole.cloned_for = op::ClonedFor::Propagation;
    assert_eq!(world.ok(whole).clone_status, CloneStatus::Synced);
    assert_eq!(of(&mut world, run, "b", Ok(None)), (CloneStatus::Synced, None), "a run does not lessen it");
}

#[test]
fn what_is_recorded_has_limits() {
    let mut world = world();
    for n in 0..MAX_PROJECTS {
        world.ok(create(&format!("p{n}")));
    }
    assert_eq!(world.run(create("p0")).unwrap_err(), Rejection::ProjectExists("p0".into()));
    assert_eq!(world.run(create("one more")).unwrap_err(), Rejection::TooManyProjects);
    let long = "e".repeat(MAX_CLONE_ERROR + 1);
    let kept = world.ok(clones(&world, &[("a", Err(long.as_str()))], false));
    assert_eq!(kept.error_message.map(|text| text.len()), Some(MAX_CLONE_ERROR));
    let names: Vec<String> = (0..MAX_PROJECT_NODES).map(|n| format!("w{n}")).collect();
    let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), Ok(None))).collect();
    assert_eq!(world.run(clones(&world, &nodes, true)).unwrap_err(), Rejection::TooManyProjectNodes);
    world.ok(clones(&world, &nodes[1..], true));
}

#[test]
fn names_and_paths_stay_below_their_directory() {
    for right in ["a", "A b", "a.b-c_d", "-a"] {
        assert!(is_project_name(right) && is_target_path(right), "{right}");
    }
    for wrong in ["", ".", "..", ".git", "a/b", "ä", "a\0", "a\n", &"a".repeat(257)] {
        assert!(!is_project_name(wrong), "{wrong:?}");
    }
    assert!(is_target_path("a/b c/d"));
    for (wish, below) in [("/a", "a"), ("~/projects/x-1", "projects/x-1"), ("a/b", "a/b")] {
        assert!(is_target_path(wish), "{wish}");
        assert_eq!(path_below(wish), below);
    }
    for wrong in ["", "/", "~", "~/", "//a", "~/.ssh", "~me/a", "/a/../b", "a/", "a//b", "../a", "a/../b", "a/.git"] {
        assert!(!is_target_path(wrong), "{wrong:?}");
    }
}
