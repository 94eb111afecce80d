//! Windows on the tasks that may be claimed, and the races between reading pages and tasks that come and go.

use std::collections::BTreeMap;

use bloom_core::cache::{Cache, PageRead, ReadyKey, ReadyRow, ReadyTasks, Scope, WINDOW, rank};
use bloom_core::ids::TaskId;
use bloom_core::task::{Parked, Status, TaskState};
use bloom_core::worker::Worker;
use bloom_test_world::world::spec;

fn id(n: u128) -> TaskId {
    TaskId::from_u128(n)
}

fn ready(rank: i64, n: u128) -> TaskState {
    TaskState { id: id(n), revision: 1, priority: 9 - rank, agent_slug: "coder".into(), ..TaskState::new(&spec("c")) }
}

fn of(agent: &str, task: TaskState) -> TaskState {
    TaskState { agent_slug: agent.into(), ..task }
}

fn in_namespace(namespace: &str, task: TaskState) -> TaskState {
    TaskState { namespace: Some(namespace.into()), ..task }
}

fn reserved(worker: &str, task: TaskState) -> TaskState {
    TaskState { parked: Some(Parked::Reserved), session_worker: Some(worker.into()), ..task }
}

fn over(task: &TaskState) -> TaskState {
    TaskState { revision: task.revision + 1, status: Status::Completed, ..task.clone() }
}

/// A cache, and the table that it is read from.
#[derive(Default)]
struct Desk {
    cache: Cache,
    table: BTreeMap<ReadyKey, TaskState>,
}

impl Desk {
    fn with(tasks: impl IntoIterator<Item = TaskState>) -> Self {
        let mut desk = Self::default();
        desk.table.extend(tasks.into_iter().map(|task| ((rank(task.priority), task.id), task)));
        desk
    }

    /// The cache learns of a commit of this replica.
    fn hear(&mut self, task: &TaskState) {
        let read = self.cache.begin_read();
        self.cache.put_task(task, &read);
        self.cache.end_read(&read);
    }

    /// A task became ready, and the cache learns of the commit.
    fn put(&mut self, task: TaskState) {
        self.hear(&task);
        self.table.insert((rank(task.priority), task.id), task);
    }

    fn finish(&mut self, key: ReadyKey) {
        let task = self.table.remove(&key).unwrap();
        self.hear(&over(&task));
    }

    fn read(&self, page: &PageRead, limit: usize) -> Vec<ReadyRow> {
        let is_in = |row: &ReadyRow| page.scope.has(row);
        let rows = self.table.values().filter_map(ReadyRow::of).filter(is_in);
        rows.filter(|row| page.after.is_none_or(|after| row.key() > after)).take(limit).collect()
    }

    fn take_ready(&mut self, max: usize) -> ReadyTasks {
        self.cache.take_ready(&[Scope::All], |_| true, max, 0, 0)
    }

    fn begin(&mut self) -> PageRead {
        self.cache.begin_page(&Scope::All).unwrap()
    }

    /// Takes tasks; reads pages as long as the result is not final.
    fn take(&mut self, max: usize, page: usize) -> Vec<u128> {
        self.take_in(&[Scope::All], max, page)
    }

    fn take_in(&mut self, scopes: &[Scope], max: usize, page: usize) -> Vec<u128> {
        for _ in 0..10_000 {
            let ready = self.cache.take_ready(scopes, |_| true, max, 0, 0);
            let Some(scope) = ready.page else { return ready.tasks.iter().map(|id| id.as_u128()).collect() };
            self.cache.queue.give_back(&ready.tasks);
            let begun = self.cache.begin_page(&scope).unwrap();
            let rows = self.read(&begun, page);
            self.cache.end_page(&begun, rows, page);
        }
        panic!("`take_ready` asks for pages without end");
    }
}

fn agents<const N: usize>(slugs: [&str; N]) -> [Scope; N] {
    slugs.map(|slug| Scope::Agent(slug.into()))
}

#[test]
fn the_first_by_rank_then_id_across_agents() {
    let mut desk = Desk::with([ready(5, 1), of("writer", ready(4, 2)), ready(4, 3), of("poet", ready(0, 9))]);
    assert_eq!(desk.take_in(&agents(["coder", "writer"]), 9, 1), [2, 3, 1]);
    assert_eq!(desk.take(9, 1), [9], "other claims have taken the rest");
    desk.cache.queue.give_back(&[id(3)]);
    assert_eq!(desk.take(9, 1), [3]);
}

#[test]
fn a_window_that_is_not_loaded_is_not_passed_over() {
    let mut desk = Desk::with((1..=60).map(|n| ready(5, n)).chain([of("writer", ready(0, 99))]));
    assert_eq!(desk.take_in(&agents(["coder"]), 1, 100), [1]);
    // The window of `coder` could fill the claim, but the first task of all is a writer's, whose window is not loaded yet.
    assert_eq!(desk.take_in(&agents(["coder", "writer"]), 2, 100), [99, 2]);
}

#[test]
fn an_agent_named_twice_is_looked_at_once() {
    let mut desk = Desk::with([ready(5, 1), ready(5, 2)]);
    assert_eq!(desk.take_in(&agents(["coder", "coder"]), 9, 10), [1, 2]);
}

#[test]
fn reserved_tasks_are_for_their_worker_alone() {
    let mut desk = Desk::with([reserved("w", ready(5, 1)), ready(5, 2)]);
    let own = [Scope::All, Scope::Reserved("w".into())];
    let others = [Scope::All, Scope::Reserved("v".into())];
    assert_eq!(desk.take_in(&others, 9, 10), [2]);
    assert_eq!(desk.take_in(&own, 9, 10), [1]);
    desk.cache.queue.give_back(&[id(1)]);
    desk.put(TaskState { revision: 2, ..ready(5, 1) });
    assert_eq!(desk.take_in(&others, 9, 10), [1], "the reservation is over");
}

#[test]
fn a_spread_picks_among_tasks_of_the_first_priority_only() {
    let mut desk = Desk::with((1..=4).map(|n| ready(3, n)).chain([ready(5, 9)]));
    desk.take(0, 10);
    assert!(desk.take(1, 10) == [1]);
    let mut seen = std::collections::BTreeSet::new();
    for chance in 0..20 {
        let ready = desk.cache.take_ready(&[Scope::All], |_| true, 1, 100, chance);
        desk.cache.queue.give_back(&ready.tasks);
        seen.extend(ready.tasks.iter().map(|id| id.as_u128()));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn a_task_that_becomes_ready_or_is_gone() {
    let mut desk = Desk::with([ready(5, 1), ready(5, 3)]);
    assert_eq!(desk.take(1, 10), [1]);
    desk.put(ready(5, 2));
    desk.finish((5, id(3)));
    assert_eq!(desk.take(9, 10), [2]);
    desk.cache.queue.give_back(&[id(1), id(2)]);
    desk.cache.remove_task(id(2));
    assert_eq!(desk.take(9, 10), [1]);
}

#[test]
fn what_becomes_ready_while_a_page_is_read_is_not_missed() {
    // Inside the page before its first row, between its rows, at its end, and behind it. The page is always read before the commit.
    for late in [1, 4, 7, 9] {
        let mut desk = Desk::with([ready(5, 3), ready(5, 5), ready(5, 8)]);
        assert!(desk.take_ready(9).tasks.is_empty());
        let begun = desk.begin();
        assert!(desk.cache.begin_page(&Scope::All).is_none(), "only one page of a window is read at a time");
        let rows = desk.read(&begun, 2);
        desk.put(ready(5, late));
        desk.cache.end_page(&begun, rows, 2);
        let mut all = vec![3, 5, 8, late];
        all.sort_unstable();
        assert_eq!(desk.take(9, 2), all);
    }
}

#[test]
fn what_ends_while_a_page_is_read_does_not_come_back_with_it() {
    let mut desk = Desk::with([ready(5, 3), ready(5, 5)]);
    desk.take_ready(9);
    let begun = desk.begin();
    let rows = desk.read(&begun, 9);
    desk.finish((5, id(3)));
    desk.cache.end_page(&begun, rows, 9);
    assert_eq!(desk.take(9, 9), [5]);
    assert_eq!(desk.cache.shown().count(), 1, "a finished task is forgotten once no older copy can arrive");
}

#[test]
fn a_page_that_was_not_read_is_read_again() {
    let mut desk = Desk::with([ready(5, 3)]);
    desk.take_ready(9);
    let begun = desk.begin();
    desk.put(ready(5, 4));
    desk.cache.abandon_page(&begun);
    assert_eq!(desk.take(9, 1), [3, 4]);
}

#[test]
fn a_page_from_before_a_rebuild_is_suspect() {
    let mut desk = Desk::with([ready(5, 1), ready(5, 2), ready(5, 3), ready(5, 4)]);
    assert_eq!(desk.take(1, 2), [1]);
    desk.take_ready(9);
    let old = desk.begin();
    let rows = desk.read(&old, 2);
    let rebuild = desk.cache.begin_rebuild();
    desk.cache.end_read(&rebuild);
    desk.cache.queue.give_back(&[id(1), id(2)]);
    desk.take_ready(9);
    // The next page begins before the old one arrives.
    let new = desk.begin();
    desk.cache.end_page(&old, rows, 2);
    assert_eq!(desk.cache.take_suspects().tasks.into_iter().collect::<Vec<_>>(), [id(3), id(4)]);
    let rows = desk.read(&new, 9);
    desk.cache.end_page(&new, rows, 9);
    desk.cache.queue.give_back(&[id(1), id(2), id(3), id(4)]);
    assert_eq!(desk.take(9, 2), [1, 2, 3, 4]);
}

#[test]
fn a_full_window_drops_its_tail_and_later_pages_bring_it_back() {
    let last = WINDOW as u128 + 500;
    let mut desk = Desk::with((1..=last).map(|n| ready(5, n * 2)));
    assert_eq!(desk.take(1, 1_000), [2]);
    let mut taken = vec![1, 2, 3];
    for n in [1, 3] {
        desk.put(ready(5, n));
    }
    desk.cache.queue.give_back(&[id(2)]);
    assert_eq!(desk.take(3, 1_000), taken);
    // Finished in small portions, as claims do.
    for n in &taken {
        desk.finish((5, id(*n)));
    }
    desk.cache.queue.give_back(&[id(1), id(2), id(3)]);
    while let Some(next) = Some(desk.take(32, 1_000)).filter(|next| !next.is_empty()) {
        for n in &next {
            desk.finish((5, id(*n)));
        }
        desk.cache.queue.give_back(&next.iter().map(|n| id(*n)).collect::<Vec<_>>());
        taken.extend(next);
    }
    let all: Vec<u128> = [1, 2, 3].into_iter().chain((2..=last).map(|n| n * 2)).collect();
    assert!(taken == all, "{} of {}", taken.len(), all.len());
    assert_eq!(desk.cache.shown().count(), 0);
}

#[test]
fn a_window_that_overflows_while_a_page_is_read_misses_nothing() {
    // The window is one short of full when the page begins. Then it overflows at the head, and the page arrives behind the dropped tail.
    let most = WINDOW as u128 - 1;
    let mut desk = Desk::with((1_000..1_000 + most + 10).map(|n| ready(5, n)));
    desk.take_ready(1);
    let begun = desk.begin();
    let rows = desk.read(&begun, WINDOW - 1);
    desk.cache.end_page(&begun, rows, WINDOW - 1);
    let begun = desk.begin();
    let rows = desk.read(&begun, 5);
    for n in 1..=3 {
        desk.put(ready(1, n));
    }
    desk.cache.end_page(&begun, rows, 5);
    let mut all = Vec::new();
    while let Some(next) = Some(desk.take(32, 1_000)).filter(|next| !next.is_empty()) {
        for n in &next {
            desk.finish((if *n <= 3 { 1 } else { 5 }, id(*n)));
        }
        desk.cache.queue.give_back(&next.iter().map(|n| id(*n)).collect::<Vec<_>>());
        all.extend(next);
    }
    let expected: Vec<u128> = (1..=3).chain(1_000..1_000 + most + 10).collect();
    assert!(all == expected, "{} of {}", all.len(), expected.len());
}

#[test]
fn tasks_of_closed_queues_are_passed_over() {
    let is_open = |agent: &str| agent != "closed";
    let kept = |n| reserved("w", ready(0, n));
    let mut desk = Desk::with([of("closed", kept(1)), of("open", kept(2)), of("open", ready(1, 3)), of("closed", ready(1, 4))]);
    let scopes = || agents(["open"]).into_iter().chain([Scope::Reserved("w".into())]).collect::<Vec<_>>();
    let all = [1, 2, 3, 4].map(id);
    assert_eq!(desk.take_in(&scopes(), 9, 9), [1, 2, 3]);
    desk.cache.queue.give_back(&all);
    let ready = desk.cache.take_ready(&scopes(), is_open, 9, 0, 0);
    assert_eq!((ready.tasks, ready.is_contended), (vec![id(2), id(3)], false));
    assert_eq!(desk.take_in(&agents(["closed"]), 9, 9), [4]);
    desk.cache.queue.give_back(&[id(4)]);
    assert!(desk.cache.has_claimable(None), "task 4 is ready");
    assert!(!desk.cache.has_claimable(Some(&is_open)), "but nobody may have it");
    desk.cache.queue.give_back(&[id(3)]);
    assert!(desk.cache.has_claimable(Some(&is_open)));
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
        let scope = [Scope::of(namespace, agent)];
        assert_eq!(Desk::with(tasks()).take_in(&scope, 9, 1), expected, "{scope:?}");
        // The same if the cache hears of each task after the window was read.
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
    let both = [Scope::of(Some("a"), None), Scope::of(Some("b"), None)];
    assert_eq!(Desk::with(tasks()).take_in(&both, 9, 1), [4, 3, 2]);
}

#[test]
fn tasks_of_other_namespaces_are_not_read() {
    let crowd = (1..=20_000).map(|n| in_namespace("crowd", ready(0, n)));
    let mut desk = Desk::with(crowd.chain([in_namespace("team", ready(9, 30_000))]));
    let scope = [Scope::of(Some("team"), None)];
    let ready = desk.cache.take_ready(&scope, |_| true, 1, 0, 0);
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
        desk.cache.namespaces_with_claimable(is_open).into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(named(&mut desk, None), "", "no worker has named a namespace");
    for (namespace, agent) in [("a", None), ("b", None), ("b", Some("closed")), ("a", Some("coder"))] {
        let taken: Vec<_> = desk.take_in(&[Scope::of(Some(namespace), agent)], 9, 9).into_iter().map(id).collect();
        desk.cache.queue.give_back(&taken);
    }
    assert_eq!(named(&mut desk, None), "a b");
    assert_eq!(named(&mut desk, Some(&is_open)), "a", "nobody may have the task of b");
    assert!(!desk.cache.has_claimable(None), "no worker of all namespaces has asked");
    assert_eq!(desk.take_in(&[Scope::of(Some("a"), None)], 9, 9), [1]);
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
