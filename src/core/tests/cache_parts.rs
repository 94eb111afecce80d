//! Windows on parts of the queue, by namespace and project.

use bloom_core::cache::{Part, Projects, Scope};
use bloom_core::task::TaskState;
use bloom_core::worker::{Capabilities, Worker};

use crate::cache_queue::{Desk, id, in_part, of, ready, reserved};

fn in_namespace(namespace: &str, task: TaskState) -> TaskState {
    TaskState { namespace: Some(namespace.into()), ..task }
}

fn in_project(project: &str, task: TaskState) -> TaskState {
    TaskState { project: Some(project.into()), ..task }
}

#[test]
fn a_window_of_a_namespace_has_only_its_tasks() {
    let tasks =
        || [ready(5, 1), in_namespace("a", ready(5, 2)), in_namespace("b", ready(1, 3)), in_namespace("a", of("writer", ready(0, 4)))];
    for (namespace, agent, expected) in [
        (None, None, vec![4, 3, 1, 2]),
        (None, Some("coder"), vec![3, 1, 2]),
        (Some("a"), None, vec![4, 2]),
        (Some("a"), Some("coder"), vec![2]),
        (Some("a"), Some("poet"), vec![]),
        (Some("b"), None, vec![3]),
        (Some("c"), None, vec![]),
    ] {
        let scope = [in_part(namespace, agent)];
        assert_eq!(Desk::with(tasks()).take_in(&scope, 9, 1), expected, "{scope:?}");
        // The same, if the cache learns of each task after the window was read.
        let mut desk = Desk::default();
        assert!(desk.take_in(&scope, 9, 1).is_empty());
        tasks().into_iter().for_each(|task| desk.put(task));
        assert_eq!(desk.take_in(&scope, 9, 1), expected, "{scope:?}");
        desk.cache.queue.give_back(&[1, 2, 3, 4].map(id));
        desk.finish((5, id(2)));
        let left: Vec<u128> = expected.into_iter().filter(|n| *n != 2).collect();
        assert_eq!(desk.take_in(&scope, 9, 1), left, "{scope:?}");
    }
    // Two namespaces, in the order of the queue.
    let both = [in_part(Some("a"), None), in_part(Some("b"), None)];
    assert_eq!(Desk::with(tasks()).take_in(&both, 9, 1), [4, 3, 2]);
}

#[test]
fn tasks_of_other_namespaces_are_not_read() {
    let crowd = (1..=20_000).map(|n| in_namespace("crowd", ready(0, n)));
    let mut desk = Desk::with(crowd.chain([in_namespace("team", ready(9, 30_000))]));
    let scope = [in_part(Some("team"), None)];
    let ready = desk.cache.take_ready(&scope, |_| true, None, 1, 0, 0);
    let page = desk.cache.begin_page(&ready.page.unwrap()).unwrap();
    let rows = desk.read(&page, 10);
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [id(30_000)]);
    desk.cache.end_page(&page, rows, 10);
    assert_eq!(desk.take_in(&scope, 1, 10), [30_000]);
    assert_eq!(desk.cache.shown().count(), 1);
}

#[test]
fn which_namespaces_have_work() {
    let is_open = |agent: &str| agent != "closed";
    let mut desk =
        Desk::with([in_namespace("a", ready(5, 1)), in_namespace("b", of("closed", ready(5, 2))), in_namespace("c", ready(5, 3))]);
    let named = |desk: &mut Desk, is_open: Option<&dyn Fn(&str) -> bool>| {
        let parts = desk.cache.parts_with_claimable(is_open);
        parts.into_iter().map(|part| part.namespace.unwrap_or("all".into())).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(named(&mut desk, None), "", "no worker has named a namespace");
    for (namespace, agent) in [("a", None), ("b", None), ("b", Some("closed")), ("a", Some("coder"))] {
        let taken: Vec<_> = desk.take_in(&[in_part(Some(namespace), agent)], 9, 9).into_iter().map(id).collect();
        desk.cache.queue.give_back(&taken);
    }
    assert_eq!(named(&mut desk, None), "a b");
    assert_eq!(named(&mut desk, Some(&is_open)), "a", "nobody may have the task of b");
    assert_eq!(desk.take_in(&[in_part(Some("a"), None)], 9, 9), [1]);
    assert_eq!(named(&mut desk, None), "b", "another claim has taken it");
    desk.cache.queue.give_back(&[id(1)]);
    desk.finish((5, id(1)));
    assert_eq!(named(&mut desk, None), "b");
    let read = desk.cache.begin_rebuild();
    desk.cache.end_read(&read);
    assert_eq!(named(&mut desk, None), "");
}

#[test]
fn a_reserved_task_of_a_namespace_that_its_worker_does_not_serve_is_not_offered() {
    let kept = |n, namespace: &str| reserved("w", in_namespace(namespace, ready(5, n)));
    let mut desk = Desk::with([kept(1, "other"), kept(2, "team"), reserved("w", ready(5, 3))]);
    let mut worker = Worker::new("w".into(), 0);
    worker.capabilities.namespaces = Some(vec!["team".into()]);
    let read = desk.cache.begin_read();
    desk.cache.put_worker(worker, &read);
    desk.cache.end_read(&read);
    assert_eq!(desk.take_in(&[Scope::Reserved("w".into())], 9, 9), [2]);
    assert!(desk.cache.with_reserved(|_| true).is_empty(), "the rest is not for it");
    desk.cache.queue.give_back(&[id(2)]);
    assert_eq!(desk.cache.with_reserved(|_| true), ["w"]);
}

/// The windows of a worker that serves all agents.
fn served(git: bool, projects: Option<&[&str]>, namespaces: Option<&[&str]>) -> Vec<Scope> {
    let named = |names: Option<&[&str]>| names.map(|names| names.iter().map(|&name| name.to_owned()).collect());
    let capabilities = Capabilities { git, projects: named(projects), namespaces: named(namespaces), ..Capabilities::default() };
    Part::served_by(&capabilities).into_iter().map(|part| Scope::of(part, None)).collect()
}

#[test]
fn the_windows_of_a_worker_have_the_tasks_of_its_projects() {
    let tasks = || {
        [
            ready(5, 1),
            in_project("a", ready(5, 2)),
            in_namespace("n", ready(5, 3)),
            in_namespace("n", in_project("b", ready(1, 4))),
            in_project("b", ready(0, 5)),
        ]
    };
    for (git, projects, namespaces, expected) in [
        (true, None, None, vec![5, 4, 1, 2, 3]),
        (false, None, None, vec![1, 3]),
        (true, Some(&["b"][..]), None, vec![5, 4, 1, 3]),
        (false, Some(&["b", "a"][..]), None, vec![5, 4, 1, 2, 3]),
        (true, Some(&[][..]), None, vec![1, 3]),
        (true, None, Some(&["n", "m"][..]), vec![4, 3]),
        (false, None, Some(&["n"][..]), vec![3]),
        (false, Some(&["a"][..]), Some(&["n"][..]), vec![3]),
        (false, Some(&["b"][..]), Some(&["n"][..]), vec![4, 3]),
    ] {
        let scopes = served(git, projects, namespaces);
        assert_eq!(Desk::with(tasks()).take_in(&scopes, 9, 1), expected, "{scopes:?}");
        // The same, if the cache learns of each task after the windows were read.
        let mut desk = Desk::default();
        assert!(desk.take_in(&scopes, 9, 1).is_empty());
        tasks().into_iter().for_each(|task| desk.put(task));
        assert_eq!(desk.take_in(&scopes, 9, 1), expected, "{scopes:?}");
        desk.cache.queue.give_back(&[1, 2, 3, 4, 5].map(id));
        desk.finish((5, id(3)));
        let left: Vec<u128> = expected.into_iter().filter(|n| *n != 3).collect();
        assert_eq!(desk.take_in(&scopes, 9, 1), left, "{scopes:?}");
    }
}

#[test]
fn tasks_of_other_projects_are_not_read() {
    let crowd = (1..=20_000).map(|n| in_project("crowd", ready(0, n)));
    let mut desk = Desk::with(crowd.chain([ready(8, 30_000), in_project("own", ready(9, 30_001))]));
    assert_eq!(desk.take_in(&served(true, Some(&["own"]), None), 9, 10), [30_000, 30_001]);
    assert_eq!(desk.cache.shown().count(), 2);
    desk.cache.queue.give_back(&[id(30_000), id(30_001)]);
    assert_eq!(desk.take_in(&served(false, None, None), 9, 10), [30_000]);
    assert_eq!(desk.cache.shown().count(), 2);
    let with_work = desk.cache.parts_with_claimable(None);
    assert_eq!(with_work, [Part { namespace: None, projects: Projects::One("own".into()) }].into());
}
