//! Windows on the tasks that may be claimed, and the races between reading pages and tasks that come and go.

use std::collections::BTreeMap;

use bloom_core::cache::{Cache, PageRead, Part, Projects, ReadyKey, ReadyRow, ReadyTasks, Scope, WINDOW, rank};
use bloom_core::ids::TaskId;
use bloom_core::task::{Parked, Status, TaskState};
use bloom_test_world::world::spec;

pub fn id(n: u128) -> TaskId {
    TaskId::from_u128(n)
}

pub fn ready(rank: i64, n: u128) -> TaskState {
    TaskState { id: id(n), revision: 1, priority: 9 - rank, agent_slug: "coder".into(), ..TaskState::new(&spec("c")) }
}

pub fn of(agent: &str, task: TaskState) -> TaskState {
    TaskState { agent_slug: agent.into(), ..task }
}

pub fn reserved(worker: &str, task: TaskState) -> TaskState {
    TaskState { parked: Some(Parked::Reserved), session_worker: Some(worker.into()), ..task }
}

fn over(task: &TaskState) -> TaskState {
    TaskState { revision: task.revision + 1, status: Status::Completed, ..task.clone() }
}

/// A cache, and the table that it is read from.
#[derive(Default)]
pub struct Desk {
    pub cache: Cache,
    table: BTreeMap<ReadyKey, TaskState>,
}

impl Desk {
    pub fn with(tasks: impl IntoIterator<Item = TaskState>) -> Self {
        let mut desk = Self::default();
        desk.table.extend(tasks.into_iter().map(|task| ((rank(task.priority), task.id), task)));
        desk
    }

    /// Adds a commit of this replica to the cache.
    fn hear(&mut self, task: &TaskState) {
        let read = self.cache.begin_read();
        self.cache.put_task(task, &read);
        self.cache.end_read(&read);
    }

    /// Makes a task ready, and adds the commit to the cache.
    pub fn put(&mut self, task: TaskState) {
        self.hear(&task);
        self.table.insert((rank(task.priority), task.id), task);
    }

    pub fn finish(&mut self, key: ReadyKey) {
        let task = self.table.remove(&key).unwrap();
        self.hear(&over(&task));
    }

    pub fn read(&self, page: &PageRead, limit: usize) -> Vec<ReadyRow> {
        let is_in = |row: &ReadyRow| page.scope.has(row);
        let rows = self.table.values().filter_map(ReadyRow::of).filter(is_in);
        rows.filter(|row| page.after.is_none_or(|after| row.key() > after)).take(limit).collect()
    }

    fn take_ready(&mut self, max: usize) -> ReadyTasks {
        self.cache.take_ready(&[all()], |_| true, None, max, 0, 0)
    }

    fn begin(&mut self) -> PageRead {
        self.cache.begin_page(&all()).unwrap()
    }

    /// Takes tasks, and reads pages until the result is final.
    fn take(&mut self, max: usize, page: usize) -> Vec<u128> {
        self.take_in(&[all()], max, page)
    }

    pub fn take_in(&mut self, scopes: &[Scope], max: usize, page: usize) -> Vec<u128> {
        for _ in 0..10_000 {
            let ready = self.cache.take_ready(scopes, |_| true, None, max, 0, 0);
            let Some(scope) = ready.page else { return ready.tasks.iter().map(|id| id.as_u128()).collect() };
            self.cache.queue.give_back(&ready.tasks);
            let begun = self.cache.begin_page(&scope).unwrap();
            let rows = self.read(&begun, page);
            self.cache.end_page(&begun, rows, page);
        }
        panic!("`take_ready` asks for pages without end");
    }
}

fn all() -> Scope {
    in_part(None, None)
}

/// All projects of a namespace.
pub fn in_part(namespace: Option<&str>, agent: Option<&str>) -> Scope {
    Scope::of(Part { namespace: namespace.map(str::to_owned), projects: Projects::All }, agent)
}

fn agents<const N: usize>(slugs: [&str; N]) -> [Scope; N] {
    slugs.map(|slug| in_part(None, Some(slug)))
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
    // The window of `coder` could fill the claim, but the very first task is for a writer, whose window is not loaded yet.
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
    let own = [all(), Scope::Reserved("w".into())];
    let others = [all(), Scope::Reserved("v".into())];
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
        let ready = desk.cache.take_ready(&[all()], |_| true, None, 1, 100, chance);
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
        assert!(desk.cache.begin_page(&all()).is_none(), "only one page of a window is read at a time");
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
    let ready = desk.cache.take_ready(&scopes(), is_open, None, 9, 0, 0);
    assert_eq!((ready.tasks, ready.is_contended), (vec![id(2), id(3)], false));
    assert_eq!(desk.take_in(&agents(["closed"]), 9, 9), [4]);
    desk.cache.queue.give_back(&[id(4)]);
    let has_claimable = |is_open: Option<&dyn Fn(&str) -> bool>, desk: &mut Desk| !desk.cache.parts_with_claimable(is_open).is_empty();
    assert!(has_claimable(None, &mut desk), "task 4 is ready");
    assert!(!has_claimable(Some(&is_open), &mut desk), "but nobody may have it");
    desk.cache.queue.give_back(&[id(3)]);
    assert!(has_claimable(Some(&is_open), &mut desk));
}
