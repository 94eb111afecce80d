//! The control plane: who leads a project and until when, and whose memory is stored.

use bloom_core::command::Rejection;
use bloom_core::control_plane::{
    AGENT_OFFLINE_AFTER_MS, Agent, JobAction, JobStatus, MAX_AGENTS, MAX_NODES, MAX_PROJECTS, NewJob, Role, Source, VERSIONS_KEPT,
};
use bloom_core::op;
use bloom_core::worker::WorkerStatus;
use bloom_test_world::world::{START, World, world};

const P: &str = "p-id";

fn strict() -> World {
    let mut world = world();
    world.strict = true;
    world
}

fn agent(name: &str) -> op::RegisterAgent {
    op::RegisterAgent {
        agent: Agent {
            name: name.into(),
            url: "http://h".into(),
            status: WorkerStatus::Online,
            capabilities: "{}".into(),
            details: "{}".into(),
            obs_count: 0,
            db_sha: String::new(),
            ip_addrs: Vec::new(),
            registered_at: 7,
            last_seen: Some(7),
        },
        is_repeatable: false,
    }
}

fn beat(project: &str, node: &str) -> op::RecordNode {
    op::RecordNode {
        canonical_id: project.into(),
        name: "p".into(),
        node_id: node.into(),
        obs_count: Some(2),
        db_sha: Some("sha".into()),
        ip_addrs: None,
        project_id: None,
    }
}

fn select(node: &str, lease_ms: i64, term: Option<i64>) -> op::SelectLeader {
    op::SelectLeader { canonical_id: P.into(), node_id: node.into(), lease_ms, term }
}

fn job() -> NewJob {
    NewJob {
        action: JobAction::Push,
        project: "p".into(),
        agent: "a".into(),
        canonical_id: P.into(),
        status: JobStatus::Failed,
        detail: String::new(),
        stdout: String::new(),
        stderr: String::new(),
        returncode: 0,
        dryrun: false,
        created_at: START,
    }
}

fn store(node: &str, term: i64, content: &str) -> op::StoreMemory {
    op::StoreMemory {
        canonical_id: P.into(),
        node_id: node.into(),
        term,
        sha256: format!("sha of {content}"),
        bytes: 1,
        content: content.into(),
        job: job(),
    }
}

#[test]
fn an_agent_has_its_name_alone_and_is_offline_when_it_falls_silent() {
    let mut world = strict();
    let made = world.ok(agent("a"));
    assert_eq!((made.registered_at, made.last_seen), (START, None), "what a caller says of these does not count");
    assert_eq!(world.run(agent("a")).unwrap_err(), Rejection::AgentExists("a".into()));
    let again = op::RegisterAgent { is_repeatable: true, ..agent("a") };
    assert_eq!(world.ok(again.clone()), made, "its agent asks whether it is still registered");
    let other = Agent { url: "http://other".into(), ..again.agent };
    let other = op::RegisterAgent { agent: other, is_repeatable: true };
    assert_eq!(world.run(other).unwrap_err(), Rejection::AgentExists("a".into()));
    assert_eq!(made.shown_status(START + 10 * AGENT_OFFLINE_AFTER_MS), WorkerStatus::Online, "it never sent heartbeats");
    world.ok(beat(P, "a"));
    let seen = world.db.control_plane.agents["a"].clone();
    assert_eq!((seen.last_seen, seen.obs_count, &*seen.db_sha), (Some(START), 2, "sha"));
    assert_eq!(seen.shown_status(START + AGENT_OFFLINE_AFTER_MS), WorkerStatus::Online);
    assert_eq!(seen.shown_status(START + AGENT_OFFLINE_AFTER_MS + 1), WorkerStatus::Offline);
    world.ok(op::RemoveAgent { name: "a".into() });
    assert_eq!(world.run(op::RemoveAgent { name: "a".into() }).unwrap_err(), Rejection::AgentNotFound);
}

#[test]
fn a_project_gets_its_name_when_that_is_known() {
    let mut world = strict();
    world.ok(beat(P, "a"));
    let project = world.db.control_plane.projects[P].clone();
    assert_eq!((&*project.name, project.source), ("p", Source::Heartbeat));
    world.ok(beat("other-id", "a"));
    assert_eq!(world.db.control_plane.projects["other-id"].name, "other-id", "the name is another project's");
    let named = world.ok(op::RegisterProject { name: "p".into(), canonical_id: P.into() });
    assert_eq!((named.project.source, named.node_count), (Source::Manual, 1));
    let again = op::RegisterProject { name: "p".into(), canonical_id: P.into() };
    assert_eq!(world.run(again).unwrap_err(), Rejection::ProjectExists("p".into()));
    let same_name = op::RegisterProject { name: "p".into(), canonical_id: "third".into() };
    assert_eq!(world.run(same_name).unwrap_err(), Rejection::ProjectExists("p".into()));
    world.ok(op::RemoveProject { project: "p".into() });
    assert_eq!(world.db.control_plane.nodes.len(), 1, "its nodes are gone, those of the other project are not");
    assert_eq!(world.run(op::RemoveProject { project: "p".into() }).unwrap_err(), Rejection::ProjectNotFound);
}

#[test]
fn a_lease_is_renewed_by_its_holder_and_ends_by_its_time() {
    let mut world = strict();
    assert_eq!(world.run(select("a", 1_000, None)).unwrap_err(), Rejection::ProjectNotFound);
    world.ok(beat(P, "a"));
    world.ok(beat(P, "b"));
    assert_eq!(world.run(select("c", 1_000, None)).unwrap_err(), Rejection::NodeNotFound("c".into()));
    assert_eq!(world.ok(select("a", 1_000, Some(0))).project.term, 1);
    world.now += 600;
    assert_eq!((world.ok(beat(P, "a")), world.ok(beat(P, "b"))), (Role::Primary, Role::Secondary));
    world.now += 999;
    assert_eq!(world.ok(beat(P, "b")), Role::Secondary, "the heartbeat of the holder has renewed it");
    world.now += 1;
    assert_eq!((world.ok(beat(P, "a")), world.ok(beat(P, "b"))), (Role::Unknown, Role::Unknown), "what is over is not renewed");
    assert_eq!(world.run(select("b", 1_000, Some(0))).unwrap_err(), Rejection::TermChanged { seen: 0, now: 1 });
    assert_eq!(world.ok(select("a", 1_000, None)).project.term, 2, "the same node leads again, in a new term");
    assert_eq!(world.ok(select("a", 5_000, None)).project.term, 2, "and keeps it while it leads");
    assert_eq!(world.ok(select("b", 1_000, None)).project.term, 3);
    assert_eq!((world.ok(beat(P, "a")), world.ok(beat(P, "b"))), (Role::Secondary, Role::Primary));
}

#[test]
fn only_the_leader_of_this_term_stores_a_memory() {
    let mut world = strict();
    world.ok(beat(P, "a"));
    world.ok(beat(P, "b"));
    let refused = |world: &mut World, node: &str, term: i64| world.run(store(node, term, "x")).unwrap_err();
    assert_eq!(refused(&mut world, "a", 0), Rejection::NotPrimary { node: "a".into(), primary: None });
    world.ok(select("a", 1_000, None));
    assert_eq!(refused(&mut world, "b", 1), Rejection::NotPrimary { node: "b".into(), primary: Some("a".into()) });
    assert_eq!(refused(&mut world, "a", 0), Rejection::TermChanged { seen: 0, now: 1 });
    assert!(world.db.control_plane.memories.is_empty() && world.db.control_plane.jobs.is_empty());
    let stored = world.ok(store("a", 1, "x"));
    assert_eq!((stored.version, stored.is_new, stored.job.status), (1, true, JobStatus::Completed));
    let again = world.ok(store("a", 1, "x"));
    assert_eq!((again.version, again.is_new), (1, false));
    assert_eq!(world.db.control_plane.jobs.len(), 2);
    world.now += 1_000;
    assert_eq!(refused(&mut world, "a", 1), Rejection::NotPrimary { node: "a".into(), primary: None });
    world.ok(select("a", 1_000, None));
    for n in 0..VERSIONS_KEPT {
        world.ok(store("a", 2, &n.to_string()));
    }
    let kept: Vec<i64> = world.db.control_plane.memories.keys().map(|(_, version)| *version).collect();
    assert_eq!(kept, (2..=VERSIONS_KEPT + 1).collect::<Vec<_>>());
}

#[test]
fn everything_has_a_limit() {
    let mut world = strict();
    for n in 0..MAX_NODES {
        world.ok(beat(P, &n.to_string()));
    }
    assert_eq!(world.run(beat(P, "one more")).unwrap_err(), Rejection::TooManyNodes);
    world.ok(beat(P, "0"));
    for n in 1..MAX_PROJECTS {
        let name = format!("project {n}");
        world.ok(op::RegisterProject { canonical_id: format!("id of {name}"), name });
    }
    let one_more = op::RegisterProject { name: "one more".into(), canonical_id: "id".into() };
    assert_eq!(world.run(one_more).unwrap_err(), Rejection::TooManyProjects);
    assert_eq!(world.run(beat("new-id", "0")).unwrap_err(), Rejection::TooManyProjects);
    let first = world.ok(agent("0"));
    for n in 1..MAX_AGENTS {
        let name = n.to_string();
        world.db.control_plane.agents.insert(name.clone(), Agent { name, ..first.clone() });
    }
    assert_eq!(world.run(agent("one more")).unwrap_err(), Rejection::TooManyAgents);
}
