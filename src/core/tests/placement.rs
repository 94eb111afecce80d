//! The choice of a worker for a task.

use bloom_core::placement::{Candidate, best, may_pick};
use bloom_core::requirement::Requirement;
use bloom_core::worker::{Worker, WorkerStatus};
use bloom_test_world::world::START;

fn worker(id: &str, last_seen: i64) -> Worker {
    Worker { last_seen, ..Worker::new(id.into(), START) }
}

fn pick(workers: &[(&str, i64, i64)], sticky: Option<&str>) -> Option<String> {
    let workers: Vec<(Worker, i64)> = workers.iter().map(|(id, free, seen)| (worker(id, *seen), *free)).collect();
    best(workers.iter().map(|(worker, free)| Candidate { worker, free: *free }), "coder", sticky).map(|worker| worker.id.clone())
}

#[test]
fn the_sticky_one_then_room_then_the_last_seen_then_the_name() {
    let workers = [("a", 1, 9), ("b", 3, 1), ("c", 3, 2), ("d", 3, 2), ("full", 0, 99)];
    assert_eq!(pick(&workers, Some("a")).as_deref(), Some("a"));
    assert_eq!(pick(&workers, None).as_deref(), Some("c"));
    assert_eq!(pick(&workers, Some("full")).as_deref(), Some("c"), "a full worker is not preferred");
    assert_eq!(pick(&workers, Some("gone")).as_deref(), Some("c"));
    assert_eq!(pick(&[("full", 0, 1), ("over", -1, 1)], None), None);
}

#[test]
fn who_names_the_agent_goes_before_room_and_after_the_sticky_one() {
    let mut named = worker("named", 1);
    named.capabilities.agents = Some(vec!["coder".into()]);
    let general = worker("general", 9);
    let pick = |agent_slug: &str, free: i64, sticky| {
        let candidates = [Candidate { worker: &general, free: 5 }, Candidate { worker: &named, free }];
        best(candidates.into_iter(), agent_slug, sticky).map(|worker| worker.id.clone())
    };
    assert_eq!(pick("coder", 1, None).as_deref(), Some("named"));
    assert_eq!(pick("coder", 1, Some("general")).as_deref(), Some("general"));
    assert_eq!(pick("coder", 0, None).as_deref(), Some("general"));
    assert_eq!(pick("writer", 1, None).as_deref(), Some("general"));
}

fn task<'a>(agent_slug: &'a str, namespace: Option<&'a str>) -> Requirement<'a> {
    Requirement { agent_slug, namespace, project: None }
}

#[test]
fn who_may_be_picked() {
    let good = worker("w", 1);
    assert!(may_pick(&good, task("coder", None)));
    for status in [WorkerStatus::Offline, WorkerStatus::Syncing, WorkerStatus::Error, WorkerStatus::Unknown] {
        assert!(!may_pick(&Worker { status, ..good.clone() }, task("coder", None)), "{status}");
    }
    assert!(!may_pick(&Worker { lost: true, ..good.clone() }, task("coder", None)));
    assert!(!may_pick(&Worker { cordoned: true, ..good.clone() }, task("coder", None)));
    assert!(!may_pick(&Worker { draining: true, ..good.clone() }, task("coder", None)));
    let mut without = good.clone();
    without.capabilities.claude_cli = false;
    assert!(!may_pick(&without, task("coder", None)));
    let mut writer = good;
    writer.capabilities.agents = Some(vec!["writer".into()]);
    assert!(may_pick(&writer, task("writer", None)) && !may_pick(&writer, task("coder", None)));
    assert!(may_pick(&writer, task("writer", Some("team"))) && !may_pick(&writer, task("coder", Some("team"))));
    let of = |namespaces: &[&str]| {
        let mut worker = writer.clone();
        worker.capabilities.namespaces = Some(namespaces.iter().map(|&name| name.to_owned()).collect());
        ["team", "other", "teams"].map(|namespace| may_pick(&worker, task("writer", Some(namespace))))
    };
    assert_eq!(of(&["team"]), [true, false, false]);
    assert_eq!(of(&["other", "team"]), [true, true, false]);
    assert_eq!(of(&[]), [false; 3]);
    writer.capabilities.namespaces = Some(vec!["team".into()]);
    assert!(!may_pick(&writer, task("writer", None)), "a task of the HTTP API is of no namespace");
    assert!(!may_pick(&writer, task("coder", Some("team"))));
}

#[test]
fn a_worker_serves_the_projects_that_it_can_clone_or_names() {
    let serves = |git: bool, projects: Option<&[&str]>| {
        let mut worker = worker("w", 1);
        worker.capabilities.git = git;
        worker.capabilities.projects = projects.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        let required = |project| Requirement { project, ..task("coder", Some("team")) };
        [None, Some("a"), Some("b")].map(|project| may_pick(&worker, required(project)))
    };
    assert_eq!(serves(false, None), [true, false, false]);
    assert_eq!(serves(true, None), [true, true, true]);
    for git in [false, true] {
        assert_eq!(serves(git, Some(&["b"])), [true, false, true]);
        assert_eq!(serves(git, Some(&[])), [true, false, false]);
    }
}
