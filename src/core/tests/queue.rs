//! Windows on the ready tasks, and the races of reading them in pages while tasks come and go.

use std::collections::BTreeMap;

use crate::ids::TaskId;
use crate::queue::{Look, Queue, Ready, ReadyKey, Scope, WINDOW};

const NOW: i64 = 1_000_000;

fn id(n: u128) -> TaskId {
    TaskId::from_u128(n)
}

fn ready(rank: i64, n: u128) -> Ready {
    Ready { key: (rank, id(n)), agent_slug: "coder".into(), reserved_for: None }
}

fn of(agent: &str, ready: Ready) -> Ready {
    Ready { agent_slug: agent.into(), ..ready }
}

/// A queue and the table behind it.
#[derive(Default)]
struct Desk {
    queue: Queue,
    table: BTreeMap<ReadyKey, Ready>,
}

impl Desk {
    fn with(rows: impl IntoIterator<Item = Ready>) -> Self {
        let mut desk = Self::default();
        desk.table.extend(rows.into_iter().map(|ready| (ready.key, ready)));
        desk
    }

    /// It became ready, and the commit was told of.
    fn put(&mut self, ready: Ready) {
        self.table.insert(ready.key, ready.clone());
        self.queue.put(&ready);
    }

    fn remove(&mut self, key: ReadyKey) {
        let gone = self.table.remove(&key).unwrap();
        self.queue.remove(key, &gone.agent_slug);
    }

    fn read(&self, scope: &Scope, after: Option<ReadyKey>, limit: usize) -> Vec<Ready> {
        let of_scope = |ready: &&Ready| match scope {
            Scope::All => true,
            Scope::Agent(slug) => ready.agent_slug == *slug,
        };
        self.table.values().filter(of_scope).filter(|ready| after.is_none_or(|after| ready.key > after)).take(limit).cloned().collect()
    }

    fn look(&mut self, worker: &str, max: usize) -> Look {
        self.look_in(&[Scope::All], worker, max)
    }

    fn look_in(&mut self, scopes: &[Scope], worker: &str, max: usize) -> Look {
        self.queue.look(scopes, worker, max, NOW, |_, _| true)
    }

    /// Looks, and reads pages as long as the answer is not sure.
    fn take(&mut self, worker: &str, max: usize, page: usize) -> Vec<u128> {
        self.take_in(&[Scope::All], worker, max, page)
    }

    fn take_in(&mut self, scopes: &[Scope], worker: &str, max: usize, page: usize) -> Vec<u128> {
        for _ in 0..10_000 {
            let look = self.look_in(scopes, worker, max);
            let Some(scope) = look.pages.first() else { return look.tasks.iter().map(|id| id.as_u128()).collect() };
            self.queue.give_back(&look.tasks);
            let begun = self.queue.begin_page(scope).unwrap();
            let rows = self.read(scope, begun.after, page);
            self.queue.end_page(&begun, rows, page);
        }
        panic!("reads pages for ever");
    }
}

#[test]
fn the_first_by_rank_then_id_across_agents() {
    let mut desk = Desk::with([ready(5, 1), of("writer", ready(4, 2)), ready(4, 3), of("poet", ready(0, 9))]);
    let scopes = ["coder", "writer"].map(|agent| Scope::Agent(agent.into()));
    assert_eq!(desk.take_in(&scopes, "w", 9, 1), [2, 3, 1]);
    assert_eq!(desk.take("w", 9, 1), [9], "the others are taken");
    desk.queue.give_back(&[id(3)]);
    assert_eq!(desk.take("w", 9, 1), [3]);
}

#[test]
fn an_agent_named_twice_is_looked_at_once() {
    let mut desk = Desk::with([ready(5, 1), ready(5, 2)]);
    let scopes = ["coder", "coder"].map(|agent| Scope::Agent(agent.into()));
    assert_eq!(desk.take_in(&scopes, "w", 9, 10), [1, 2]);
}

#[test]
fn a_task_that_becomes_ready_or_is_gone() {
    let mut desk = Desk::with([ready(5, 1), ready(5, 3)]);
    assert_eq!(desk.take("w", 1, 10), [1]);
    desk.put(ready(5, 2));
    desk.remove((5, id(3)));
    assert_eq!(desk.take("w", 9, 10), [2]);
    desk.queue.give_back(&[id(1), id(2)]);
    desk.queue.forget(&[id(2)]);
    assert_eq!(desk.take("w", 9, 10), [1]);
}

#[test]
fn what_becomes_ready_while_a_page_is_read_is_not_missed() {
    // Before the page's end, between its rows, behind it; each time the page was read before the commit.
    for late in [1, 4, 7, 9] {
        let mut desk = Desk::with([ready(5, 3), ready(5, 5), ready(5, 8)]);
        assert!(desk.look("w", 9).tasks.is_empty());
        let begun = desk.queue.begin_page(&Scope::All).unwrap();
        assert!(desk.queue.begin_page(&Scope::All).is_none(), "one page at a time");
        let rows = desk.read(&Scope::All, begun.after, 2);
        desk.put(ready(5, late));
        desk.queue.end_page(&begun, rows, 2);
        let mut all = vec![3, 5, 8, late];
        all.sort_unstable();
        assert_eq!(desk.take("w", 9, 2), all);
    }
}

#[test]
fn a_page_that_was_not_read_is_read_again() {
    let mut desk = Desk::with([ready(5, 3)]);
    desk.look("w", 9);
    let begun = desk.queue.begin_page(&Scope::All).unwrap();
    desk.put(ready(5, 4));
    desk.queue.abandon_page(&begun);
    assert_eq!(desk.take("w", 9, 1), [3, 4]);
}

#[test]
fn a_page_from_before_a_gap_counts_for_nothing() {
    let mut desk = Desk::with([ready(5, 1), ready(5, 2), ready(5, 3), ready(5, 4)]);
    assert_eq!(desk.take("w", 1, 2), [1]);
    desk.look("w", 9);
    let old = desk.queue.begin_page(&Scope::All).unwrap();
    let rows = desk.read(&Scope::All, old.after, 2);
    desk.queue.reset();
    desk.look("w", 9);
    // A new page is begun before the old one comes in.
    let new = desk.queue.begin_page(&Scope::All).unwrap();
    desk.queue.end_page(&old, rows, 2);
    desk.queue.abandon_page(&old);
    let rows = desk.read(&Scope::All, new.after, 9);
    desk.queue.end_page(&new, rows, 9);
    assert_eq!(desk.take("w", 9, 2), [1, 2, 3, 4]);
}

#[test]
fn the_end_of_one_page_does_not_abandon_the_next() {
    let mut desk = Desk::with([ready(5, 1), ready(5, 3), ready(5, 6)]);
    desk.look("w", 9);
    let first = desk.queue.begin_page(&Scope::All).unwrap();
    let rows = desk.read(&Scope::All, first.after, 1);
    desk.queue.end_page(&first, rows, 1);
    let second = desk.queue.begin_page(&Scope::All).unwrap();
    let rows = desk.read(&Scope::All, second.after, 2);
    desk.put(ready(5, 4));
    // Whoever read the first page lets go of it only now.
    desk.queue.abandon_page(&first);
    desk.put(ready(5, 5));
    desk.queue.end_page(&second, rows, 2);
    assert_eq!(desk.take("w", 9, 2), [1, 3, 4, 5, 6]);
}

#[test]
fn a_full_window_drops_its_tail_and_later_pages_bring_it_back() {
    let last = WINDOW as u128 + 500;
    let mut desk = Desk::with((1..=last).map(|n| ready(5, n * 2)));
    assert_eq!(desk.take("w", 1, 1_000), [2]);
    let mut taken = vec![1, 2, 3];
    for n in [1, 3] {
        desk.put(ready(5, n));
    }
    desk.queue.give_back(&[id(2)]);
    assert_eq!(desk.take("w", 3, 1_000), taken);
    // Carried out in pieces, as claims do.
    for n in &taken {
        desk.remove((5, id(*n)));
    }
    while let Some(next) = Some(desk.take("w", 32, 1_000)).filter(|next| !next.is_empty()) {
        for n in &next {
            desk.remove((5, id(*n)));
        }
        taken.extend(next);
    }
    let all: Vec<u128> = [1, 2, 3].into_iter().chain((2..=last).map(|n| n * 2)).collect();
    assert!(taken == all, "{} of {}", taken.len(), all.len());
}

#[test]
fn a_window_that_overflows_while_a_page_is_read_misses_nothing() {
    // One short of full when the page begins; then the head grows over the limit, and the page comes in behind the dropped tail.
    let most = WINDOW as u128 - 1;
    let mut desk = Desk::with((1_000..1_000 + most + 10).map(|n| ready(5, n)));
    desk.look("w", 1);
    let begun = desk.queue.begin_page(&Scope::All).unwrap();
    let rows = desk.read(&Scope::All, begun.after, WINDOW - 1);
    desk.queue.end_page(&begun, rows, WINDOW - 1);
    let begun = desk.queue.begin_page(&Scope::All).unwrap();
    let rows = desk.read(&Scope::All, begun.after, 5);
    for n in 1..=3 {
        desk.put(ready(1, n));
    }
    desk.queue.end_page(&begun, rows, 5);
    let mut taken = Vec::new();
    while let Some(next) = Some(desk.take("w", 500, 2_000)).filter(|next| !next.is_empty()) {
        for n in &next {
            desk.remove((if *n < 10 { 1 } else { 5 }, id(*n)));
        }
        taken.extend(next);
    }
    let all: Vec<u128> = (1..=3).chain(1_000..1_000 + most + 10).collect();
    assert!(taken == all, "{} of {}", taken.len(), all.len());
}

#[test]
fn a_task_kept_for_another_worker_is_passed_over_until_its_time() {
    let kept = Ready { reserved_for: Some(("home".into(), NOW + 500)), ..ready(5, 1) };
    let mut desk = Desk::with([kept, ready(5, 2)]);
    assert_eq!(desk.take("other", 9, 10), [2]);
    let look = desk.look("other", 9);
    assert_eq!((look.tasks.len(), look.next_at), (0, Some(NOW + 500)));
    assert_eq!(desk.queue.look(&[Scope::All], "other", 9, NOW, |_, _| false).tasks, [id(1)], "not worth waiting for");
    desk.queue.give_back(&[id(1)]);
    assert_eq!(desk.queue.look(&[Scope::All], "other", 9, NOW + 500, |_, _| true).tasks, [id(1)], "waited long enough");
    desk.queue.give_back(&[id(1)]);
    assert_eq!(desk.take("home", 9, 10), [1]);
}

#[test]
fn a_worker_with_more_agents_than_there_are_windows_is_served() {
    let agents: Vec<String> = (0..400).map(|n| format!("agent{n}")).collect();
    let mut desk = Desk::with(agents.iter().zip(1..).map(|(agent, n)| of(agent, ready(5, n))));
    let scopes: Vec<Scope> = agents.iter().cloned().map(Scope::Agent).collect();
    assert_eq!(desk.take_in(&scopes, "w", 500, 10), (1..=400).collect::<Vec<_>>());
}
