//! Tasks of projects: what they keep of the project, and which workers get them.

use bloom_core::command::{Choice, Claim, Rejection, WorkerChange};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::project::{Project, TaskProject};
use bloom_core::task::{Outcome, Parked, TaskSpec};
use bloom_test_world::world::{TTL_MS, World, completion, in_project, registration, spec, world};

use super::namespaces::takers;

fn project(world: &mut World, name: &str) -> Project {
    let repo_url = format!("https://host/{name}");
    world.ok(op::CreateProject { name: name.into(), repo_url, target_path: None, primary_node_id: None, branch_prefix: "bloom".into() })
}

fn of(project: &str, context: &str) -> TaskSpec {
    TaskSpec { project: Some(in_project(project)), ..spec(context) }
}

/// A registration of a worker that serves only these projects.
fn serving(worker: &str, projects: &[&str]) -> WorkerChange {
    let projects = projects.iter().map(|&name| name.to_owned()).collect();
    WorkerChange { projects: Some(Some(projects)), ..registration(worker, 4) }
}

#[test]
fn a_task_keeps_its_project() {
    let mut world = world();
    world.strict = true;
    let made = project(&mut world, "p");
    let kept = TaskProject { id: made.id, name: "p".into(), repo_url: "https://host/p".into(), ..in_project("p") };
    let by_name = world.create(of("p", "c1"));
    let by_id = world.create(of(&made.id.to_string(), "c2"));
    for task in [by_name, by_id] {
        assert_eq!(world.db.specs[&task].project, Some(kept.clone()));
        assert_eq!(world.db.tasks[&task].project.as_deref(), Some("p"));
    }
    // A name takes precedence over an id.
    let other = project(&mut world, &made.id.to_string());
    let task = world.create(of(&made.id.to_string(), "c3"));
    assert_eq!(world.db.specs[&task].project.as_ref().map(|kept| kept.id), Some(other.id));
    // The tasks go on when the project is deleted.
    world.ok(op::DeleteProject { project: made.id });
    assert_eq!(world.db.specs[&by_name].project, Some(kept));
}

#[test]
fn a_project_that_does_not_exist_is_refused() {
    let mut world = world();
    world.strict = true;
    let made = project(&mut world, "p");
    let once = TaskSpec { idempotency_key: Some("once".into()), ..of("p", "c") };
    let first = world.create(once.clone());
    world.ok(op::DeleteProject { project: made.id });
    let before = world.db.clone();
    for named in ["p", "P", &made.id.to_string()] {
        let refused = world.run(op::Create { tasks: vec![spec("good"), of(named, "c")] });
        assert_eq!(refused.unwrap_err(), Rejection::UnknownProject(named.to_owned()));
    }
    assert_eq!(before, world.db);
    // A task that was created earlier is still found.
    let again = world.ok(op::Create { tasks: vec![once] });
    assert!(again[0].existed && again[0].spec.id == first);
}

#[test]
fn only_workers_that_serve_the_project_get_its_tasks() {
    let mut world = world().worker("plain", 1);
    world.strict = true;
    project(&mut world, "p");
    project(&mut world, "q");
    world.ok(WorkerChange { git: Some(true), ..registration("git", 1) });
    world.ok(serving("p", &["p"]));
    world.ok(WorkerChange { git: Some(true), ..serving("q", &["q"]) });
    let [of_p, of_q] = ["p", "q"].map(|name| world.create(of(name, name)));
    let without = world.create(spec("none"));
    assert_eq!(takers(&world, of_p), ["git", "p"]);
    assert_eq!(takers(&world, of_q), ["git", "q"]);
    assert_eq!(takers(&world, without), ["git", "p", "plain", "q"]);
    // The choice among all workers obeys it, too.
    let leased = |task: TaskId, among: &[&str]| {
        let workers = among.iter().map(|&name| name.to_owned()).collect();
        let lease = op::Lease { task, choice: Choice::Among { workers, context: None }, ttl_ms: TTL_MS, origin: Origin::Call };
        world.clone().run(lease).map(|leased| leased.worker.id)
    };
    assert_eq!(leased(of_p, &["plain", "q"]).as_deref(), Ok("p"), "it has more slots than `git`");
    let mut world = world.clone();
    for worker in ["git", "p"] {
        world.ok(op::RemoveWorker { worker: worker.into() });
    }
    let lease =
        op::Lease { task: of_p, choice: Choice::Among { workers: Vec::new(), context: None }, ttl_ms: TTL_MS, origin: Origin::Call };
    assert_eq!(world.run(lease).unwrap_err(), Rejection::NoWorker);
}

#[test]
fn a_registration_says_anew_which_projects_a_worker_serves() {
    let mut world = world();
    let served = |world: &World| {
        let capabilities = &world.db.workers["w"].capabilities;
        (capabilities.git, capabilities.projects.clone())
    };
    world.ok(WorkerChange { git: Some(true), ..serving("w", &["p"]) });
    world.ok(registration("w", 4));
    assert_eq!(served(&world), (true, Some(vec!["p".to_owned()])), "a change without capabilities keeps them");
    world.ok(WorkerChange { git: Some(false), projects: Some(None), ..registration("w", 4) });
    assert_eq!(served(&world), (false, None));
    let names = |number: usize| (0..number).map(|n| format!("n{n}")).collect::<Vec<_>>();
    let wide = |agents: usize, projects: usize| WorkerChange {
        agents: Some(Some(names(agents))),
        projects: Some(Some(names(projects))),
        ..registration("wide", 4)
    };
    assert_eq!(world.run(wide(5, 100)).map(drop), Ok(()));
    assert_eq!(world.run(wide(6, 100)).map(drop), Err(Rejection::TooManyCombinations(606)));
}

/// A task that no worker serves does not make the other tasks with its exclusive key wait.
#[test]
fn a_key_goes_to_tasks_of_each_project() {
    let mut world = world().worker("w", 4);
    world.strict = true;
    project(&mut world, "p");
    let with_key = |spec: TaskSpec| TaskSpec { exclusive_key: Some("k".into()), ..spec };
    let holder = world.create(with_key(spec("c1")));
    world.lease(holder, "w");
    let waiting = [of("p", "c2"), of("p", "c3"), spec("c4"), spec("c5")].map(|spec| world.create(with_key(spec)));
    assert!(waiting.iter().all(|id| world.db.tasks[id].parked == Some(Parked::ExclusiveKey)));
    world.ok(completion(holder, Some(world.lease_of(holder)), Outcome::Success));
    assert_eq!(waiting.map(|id| world.db.tasks[&id].is_ready()), [true, false, true, false]);
    world.lease(waiting[2], "w");
    world.ok(completion(waiting[2], Some(world.lease_of(waiting[2])), Outcome::Success));
    assert!(world.db.tasks[&waiting[3]].is_ready());
}

/// The session of a context moves to another worker if its worker no longer serves the project of the next task.
#[test]
fn a_task_is_not_reserved_for_a_worker_that_does_not_serve_its_project() {
    let mut world = world();
    world.strict = true;
    project(&mut world, "p");
    world.ok(serving("w", &["p"]));
    world.ok(WorkerChange { git: Some(true), ..registration("other", 4) });
    let first = world.create(of("p", "c"));
    world.lease(first, "w");
    world.ok(completion(first, Some(world.lease_of(first)), Outcome::Success));
    let second = world.create(of("p", "c"));
    assert_eq!(world.db.tasks[&second].parked, Some(Parked::Reserved));
    world.ok(serving("w", &["q"]));
    world.do_what_is_due();
    assert!(world.db.tasks[&second].is_ready(), "it waits no longer for a worker that can't have it");
    let claim =
        |worker: &str| Claim { worker: worker.into(), candidates: vec![second], max: 1, held: None, instance: None, ttl_ms: TTL_MS };
    assert_eq!(world.ok(claim("w")).missed, 1);
    assert_eq!(world.ok(claim("other")).leased.len(), 1);
    let third = world.create(of("p", "c2"));
    world.lease(third, "other");
    world.ok(completion(third, Some(world.lease_of(third)), Outcome::Success));
    world.ok(WorkerChange { git: Some(false), ..registration("other", 4) });
    let next = world.create(of("p", "c2"));
    assert!(world.db.tasks[&next].is_ready(), "it is not reserved at all");
}
