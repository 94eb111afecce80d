//! The head of the queue in memory: windows on the ready tasks, in the order in which they are to run.
//!
//! A window knows every ready task up to a mark, and is paged on behind it; so no look-up ever passes over rows that are no longer
//! ready. There is one over all tasks, for workers that serve every agent, and one for each agent that some worker names; each exists
//! only while it is asked for. Entries are hints: whoever takes one checks the row.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Ms;
use super::ids::{TaskId, WorkerId};

/// Most urgent first (rank = 9 − priority), then oldest.
pub type ReadyKey = (i64, TaskId);

#[derive(Clone, Debug)]
pub struct Ready {
    pub key: ReadyKey,
    pub agent_slug: String,
    /// The worker that has its session, and until when that one alone may take it.
    pub reserved_for: Option<(WorkerId, Ms)>,
}

/// All agents, or one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    All,
    Agent(String),
}

/// A window's most entries; what is behind is paged in again when its turn comes.
pub const WINDOW: usize = 10_000;
/// Windows of single agents at most (more only for one worker that names more); others are dropped, and loaded again when asked for.
const WINDOWS: usize = 256;

#[derive(Debug, Default)]
struct Window {
    entries: BTreeMap<ReadyKey, Ready>,
    /// All ready tasks up to this one are in `entries`; `None`: nothing is known yet.
    known_to: Option<ReadyKey>,
    /// There are none behind `known_to`.
    complete: bool,
    loading: Option<Loading>,
}

/// The page behind `known_to` is being read.
#[derive(Debug)]
struct Loading {
    number: u64,
    /// What became ready meanwhile behind the mark; the page may have been read before.
    meanwhile: Vec<Ready>,
}

/// Which page to read. It counts only while nothing has made it useless: a reset, an overflow, its window's end.
#[derive(Clone, Debug)]
pub struct PageRead {
    pub scope: Scope,
    /// Behind which task; `None`: from the start.
    pub after: Option<ReadyKey>,
    number: u64,
}

impl Window {
    fn covers(&self, key: ReadyKey) -> bool {
        self.complete || self.known_to.is_some_and(|mark| key <= mark)
    }

    fn insert(&mut self, ready: &Ready) {
        if self.covers(ready.key) {
            self.entries.insert(ready.key, ready.clone());
            self.trim();
        } else if let Some(loading) = &mut self.loading {
            loading.meanwhile.push(ready.clone());
        }
    }

    fn trim(&mut self) {
        while self.entries.len() > WINDOW {
            self.entries.pop_last();
            self.complete = false;
            self.known_to = self.entries.last_key_value().map(|(key, _)| *key);
            // A page that is under way begins behind what was just dropped.
            self.loading = None;
        }
    }

    /// Ends this reading, if it still counts.
    fn take_loading(&mut self, page: &PageRead) -> Option<Loading> {
        self.loading.take_if(|loading| loading.number == page.number)
    }
}

/// What a look at the queue found for a worker.
#[derive(Debug, Default)]
pub struct Look {
    pub tasks: Vec<TaskId>,
    /// Windows that must be paged before the answer is sure.
    pub pages: Vec<Scope>,
    /// When a task that is reserved for another worker becomes free.
    pub next_at: Option<Ms>,
}

#[derive(Debug, Default)]
pub struct Queue {
    windows: HashMap<Scope, Window>,
    /// Tasks handed to a claim that is under way.
    taken: HashSet<TaskId>,
    pages_begun: u64,
}

impl Queue {
    pub fn put(&mut self, ready: &Ready) {
        if let Some(window) = self.windows.get_mut(&Scope::All) {
            window.insert(ready);
        }
        if let Some(window) = self.windows.get_mut(&Scope::Agent(ready.agent_slug.clone())) {
            window.insert(ready);
        }
    }

    pub fn remove(&mut self, key: ReadyKey, agent_slug: &str) {
        self.taken.remove(&key.1);
        for scope in [Scope::All, Scope::Agent(agent_slug.to_owned())] {
            let Some(window) = self.windows.get_mut(&scope) else { continue };
            window.entries.remove(&key);
            if let Some(loading) = &mut window.loading {
                loading.meanwhile.retain(|ready| ready.key != key);
            }
        }
    }

    /// Drops tasks by id alone, where nothing more is known of them.
    pub fn forget(&mut self, tasks: &[TaskId]) {
        for window in self.windows.values_mut() {
            window.entries.retain(|key, _| !tasks.contains(&key.1));
        }
        self.give_back(tasks);
    }

    /// Ends the reservation of [`look`](Self::look).
    pub fn give_back(&mut self, tasks: &[TaskId]) {
        for task in tasks {
            self.taken.remove(task);
        }
    }

    /// Forgets everything: the change feed has a gap.
    pub fn reset(&mut self) {
        self.windows.clear();
        self.taken.clear();
    }

    /// Takes up to `max` of the first tasks that `worker` may run, in order, for it. `waits_for` tells whether another worker is worth
    /// keeping a task for.
    pub fn look(&mut self, scopes: &[Scope], worker: &str, max: usize, now: Ms, waits_for: impl Fn(&str, &str) -> bool) -> Look {
        let mut look = Look::default();
        self.open(scopes);
        let mut heads: Vec<_> = Vec::with_capacity(scopes.len());
        for scope in scopes {
            heads.push(self.windows[scope].entries.values().peekable());
        }
        while look.tasks.len() < max {
            let next = heads.iter_mut().enumerate().filter_map(|(i, head)| head.peek().map(|ready| (ready.key, i))).min();
            let Some((_, i)) = next else { break };
            let Some(ready) = heads[i].next() else { break };
            // An agent that is named twice has two heads.
            if self.taken.contains(&ready.key.1) || look.tasks.last() == Some(&ready.key.1) {
                continue;
            }
            if let Some((other, until)) = &ready.reserved_for
                && other != worker
                && *until > now
                && waits_for(other, &ready.agent_slug)
            {
                look.next_at = Some(look.next_at.map_or(*until, |at| at.min(*until)));
                continue;
            }
            look.tasks.push(ready.key.1);
        }
        if look.tasks.len() < max {
            // A full window of tasks that wait for other workers is not paged on: one of them is free soon.
            let unsure = |scope: &&Scope| !self.windows[*scope].complete && self.windows[*scope].entries.len() < WINDOW;
            look.pages.extend(scopes.iter().filter(unsure).cloned());
        }
        self.taken.extend(look.tasks.iter().copied());
        look
    }

    /// Makes sure that there are windows for these; those of others give way.
    fn open(&mut self, scopes: &[Scope]) {
        let missing = scopes.iter().filter(|scope| !self.windows.contains_key(*scope)).count();
        if missing == 0 {
            return;
        }
        let excess = (self.windows.len() + missing).saturating_sub(WINDOWS);
        if excess > 0 {
            let kept: HashSet<&Scope> = scopes.iter().chain([&Scope::All]).collect();
            let others: Vec<Scope> = self.windows.keys().filter(|scope| !kept.contains(scope)).take(excess).cloned().collect();
            for other in others {
                self.windows.remove(&other);
            }
        }
        for scope in scopes {
            self.windows.entry(scope.clone()).or_default();
        }
    }

    /// Starts a page: says what to read, or `None` when one is being read already or none is needed.
    pub fn begin_page(&mut self, scope: &Scope) -> Option<PageRead> {
        let window = self.windows.get_mut(scope)?;
        if window.loading.is_some() || window.complete {
            return None;
        }
        self.pages_begun += 1;
        let number = self.pages_begun;
        window.loading = Some(Loading { number, meanwhile: Vec::new() });
        Some(PageRead { scope: scope.clone(), after: window.known_to, number })
    }

    /// Takes in a page that was asked for `limit` rows.
    pub fn end_page(&mut self, page: &PageRead, rows: Vec<Ready>, limit: usize) {
        let Some(window) = self.windows.get_mut(&page.scope) else { return };
        let Some(loading) = window.take_loading(page) else { return };
        window.complete = rows.len() < limit;
        window.known_to = rows.last().map(|ready| ready.key).or(window.known_to);
        window.entries.extend(rows.into_iter().map(|ready| (ready.key, ready)));
        window.trim();
        for ready in loading.meanwhile {
            window.insert(&ready);
        }
    }

    /// The page could not be read. What became ready meanwhile is behind the mark and comes with the next one.
    pub fn abandon_page(&mut self, page: &PageRead) {
        if let Some(window) = self.windows.get_mut(&page.scope) {
            window.take_loading(page);
        }
    }
}
