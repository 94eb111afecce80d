//! The head of the queue in memory: windows on the tasks that may be claimed, in queue order.
//!
//! A window contains every such task up to a mark, and the next page is read behind the mark. So a claim never has to skip rows that can no
//! longer be claimed. One window covers all ready tasks, for workers that serve every agent; there is one for each agent that a claiming
//! worker names, and one for the tasks reserved for each claiming worker. A window exists only while claims use it.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::ReadyRow;
use crate::ids::{TaskId, WorkerId};

/// Most urgent first (rank = 9 − priority), then oldest.
pub type ReadyKey = (i64, TaskId);

/// The tasks of a window: those that every worker may claim, those of one agent, or those reserved for one worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    All,
    Agent(String),
    Reserved(WorkerId),
}

/// The maximum number of entries of a window. Tasks behind it are read again when they are needed.
pub const WINDOW: usize = 10_000;
/// The maximum number of windows, unless one worker names more agents. The least recently used are dropped, and read again when needed. The
/// limit is far above the number of agents and workers that claim at a time: each open claim reads its windows once a second, so with too
/// few windows each of these reads would have to load a window again. An empty window takes about 200 bytes.
const WINDOWS: usize = 65_536;

/// How many reserved tasks of a worker are looked at to decide whether to wake its claim.
const RESERVED_LOOK: usize = 100;

#[derive(Debug, Default)]
struct Window {
    entries: BTreeSet<ReadyKey>,
    /// The mark: all tasks of the scope up to this one are in `entries`; `None` if nothing was read yet.
    known_to: Option<ReadyKey>,
    /// No tasks follow `known_to`.
    is_complete: bool,
    /// When the read of the next page, behind `known_to`, began.
    loading: Option<u64>,
    used: u64,
}

/// A page to read. It is ignored if its window was reset, has overflowed or was dropped meanwhile.
#[derive(Clone, Debug)]
pub struct PageRead {
    pub scope: Scope,
    /// The task behind which the page starts; `None` for the start of the queue.
    pub after: Option<ReadyKey>,
    pub(super) began: u64,
}

impl Window {
    fn covers(&self, key: ReadyKey) -> bool {
        self.is_complete || self.known_to.is_some_and(|mark| key <= mark)
    }

    /// Adds the task if the window covers it. Entries beyond the window's limit go into `dropped`.
    fn insert(&mut self, key: ReadyKey, dropped: &mut Vec<TaskId>) {
        if !self.covers(key) {
            return;
        }
        self.entries.insert(key);
        while self.entries.len() > WINDOW {
            dropped.extend(self.entries.pop_last().map(|(_, id)| id));
            self.is_complete = false;
            self.known_to = self.entries.last().copied();
            // A page that is being read begins behind the entry that was just dropped.
            self.loading = None;
        }
    }
}

/// The first ready tasks of a worker's windows, which are now taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadyTasks {
    pub tasks: Vec<TaskId>,
    /// A window whose next page must be read to know which tasks follow.
    pub page: Option<Scope>,
    /// Other claims have taken tasks of these scopes, and may give them back.
    pub is_contended: bool,
}

#[derive(Debug, Default)]
pub struct Queue {
    all: Option<Window>,
    agents: HashMap<String, Window>,
    reserved: HashMap<WorkerId, Window>,
    /// Tasks that claims in progress have taken.
    taken: HashSet<TaskId>,
    /// Tasks that nobody can lease for a while, because another program keeps them locked.
    withheld: HashSet<TaskId>,
    /// Agents whose windows may have entries. Many more windows may be empty.
    filled: HashSet<String>,
    /// Workers whose windows of reserved tasks may have entries.
    filled_reserved: HashSet<WorkerId>,
    dropped: Vec<TaskId>,
    uses: u64,
}

impl Queue {
    fn window(&self, scope: &Scope) -> Option<&Window> {
        match scope {
            Scope::All => self.all.as_ref(),
            Scope::Agent(slug) => self.agents.get(slug),
            Scope::Reserved(worker) => self.reserved.get(worker),
        }
    }

    fn window_mut(&mut self, scope: &Scope) -> Option<&mut Window> {
        match scope {
            Scope::All => self.all.as_mut(),
            Scope::Agent(slug) => self.agents.get_mut(slug),
            Scope::Reserved(worker) => self.reserved.get_mut(worker),
        }
    }

    pub(super) fn insert(&mut self, ready: &ReadyRow) {
        let windows = match &ready.reserved_for {
            Some(worker) => [self.reserved.get_mut(worker), None],
            None => [self.all.as_mut(), self.agents.get_mut(&ready.agent_slug)],
        };
        for window in windows.into_iter().flatten() {
            window.insert(ready.key(), &mut self.dropped);
        }
        match &ready.reserved_for {
            None if !self.filled.contains(&ready.agent_slug) && self.agents.contains_key(&ready.agent_slug) => {
                self.filled.insert(ready.agent_slug.clone());
            }
            Some(worker) if !self.filled_reserved.contains(worker) && self.reserved.contains_key(worker) => {
                self.filled_reserved.insert(worker.clone());
            }
            _ => {}
        }
    }

    pub(super) fn remove(&mut self, ready: &ReadyRow) {
        let windows = match &ready.reserved_for {
            Some(worker) => [self.reserved.get_mut(worker), None],
            None => [self.all.as_mut(), self.agents.get_mut(&ready.agent_slug)],
        };
        for window in windows.into_iter().flatten() {
            window.entries.remove(&ready.key());
        }
    }

    pub(super) fn contains(&self, ready: &ReadyRow) -> bool {
        let windows = match &ready.reserved_for {
            Some(worker) => [self.reserved.get(worker), None],
            None => [self.all.as_ref(), self.agents.get(&ready.agent_slug)],
        };
        windows.into_iter().flatten().any(|window| window.entries.contains(&ready.key()))
    }

    /// Whether there is a task that is not reserved and that no claim has taken. With `is_open`, only of agents for which it holds; these
    /// have windows of their own then.
    pub(super) fn has_untaken(&mut self, is_open: Option<&dyn Fn(&str) -> bool>) -> bool {
        let agents = &self.agents;
        self.filled.retain(|slug| agents.get(slug).is_some_and(|window| !window.entries.is_empty()));
        let open = self.filled.iter().filter(|slug| is_open.is_none_or(|is_open| is_open(slug)));
        let windows = self.all.iter().filter(|_| is_open.is_none()).chain(open.filter_map(|slug| self.agents.get(slug)));
        windows
            .into_iter()
            .any(|window| window.entries.iter().take(self.taken.len() + self.withheld.len() + 1).any(|(_, id)| self.is_free(id)))
    }

    /// The workers for which tasks are reserved that no claim has taken, and for one of which `is_open` holds.
    pub(super) fn with_reserved(&mut self, is_open: impl Fn(&TaskId) -> bool) -> Vec<WorkerId> {
        let reserved = &self.reserved;
        let entries = |worker: &WorkerId| reserved.get(worker).into_iter().flat_map(|window| &window.entries);
        self.filled_reserved.retain(|worker| entries(worker).next().is_some());
        let has_one = |worker: &&WorkerId| entries(worker).take(RESERVED_LOOK).any(|(_, id)| self.is_free(id) && is_open(id));
        self.filled_reserved.iter().filter(has_one).cloned().collect()
    }

    fn is_free(&self, id: &TaskId) -> bool {
        !self.taken.contains(id) && !self.withheld.contains(id)
    }

    /// Hides these tasks from claims until they are shown again.
    pub fn withhold(&mut self, tasks: &[TaskId]) {
        self.withheld.extend(tasks);
    }

    pub fn show_again(&mut self, tasks: &[TaskId]) {
        self.withheld.retain(|task| !tasks.contains(task));
    }

    /// The tasks that windows have dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.dropped)
    }

    /// Gives back tasks that [`take_ready`](super::Cache::take_ready) took.
    pub fn give_back(&mut self, tasks: &[TaskId]) {
        for task in tasks {
            self.taken.remove(task);
        }
    }

    pub(super) fn clear(&mut self) {
        for window in self.all.iter_mut().chain(self.agents.values_mut()).chain(self.reserved.values_mut()) {
            self.dropped.extend(window.entries.iter().map(|(_, id)| *id));
            *window = Window { used: window.used, ..Window::default() };
        }
    }

    /// Reserved tasks for which `is_open` does not hold are left out.
    pub(super) fn take_ready(
        &mut self,
        scopes: &[Scope],
        is_open: impl Fn(&TaskId) -> bool,
        max: usize,
        spread: usize,
        chance: u64,
    ) -> ReadyTasks {
        self.uses += 1;
        self.open(scopes);
        // Behind the mark of one window, the order over all windows is unknown.
        let windows: Vec<(&Window, &Scope)> = scopes.iter().filter_map(|scope| Some((self.window(scope)?, scope))).collect();
        let open_ended = windows.iter().filter(|(window, _)| !window.is_complete);
        let end = open_ended.map(|(window, scope)| (window.known_to, *scope, window.entries.len() < WINDOW)).min();
        let mut heads: Vec<_> = windows.iter().map(|(window, _)| window.entries.iter().peekable()).collect();
        let mut found: Vec<ReadyKey> = Vec::new();
        let mut is_contended = false;
        while found.len() < max.saturating_add(spread) {
            let next = heads.iter_mut().enumerate().filter_map(|(i, head)| head.peek().map(|key| (**key, i))).min();
            let Some((key, i)) = next.filter(|(key, _)| end.is_none_or(|(known_to, ..)| Some(*key) <= known_to)) else { break };
            heads[i].next();
            // An agent that is named twice has two heads.
            if self.withheld.contains(&key.1) || (matches!(windows[i].1, Scope::Reserved(_)) && !is_open(&key.1)) {
                continue;
            }
            if self.taken.contains(&key.1) {
                is_contended = true;
            } else if found.last() != Some(&key) {
                found.push(key);
            }
        }
        // If the window is full and all its tasks are taken, no page is read: some of the tasks will be given back soon.
        let page = end.filter(|(.., has_room)| found.len() < max && *has_room).map(|(_, scope, _)| scope.clone());
        let equal = found.iter().take_while(|(rank, _)| *rank == found[0].0).count();
        let start = if equal > max { (chance % (equal - max + 1) as u64) as usize } else { 0 };
        let tasks: Vec<TaskId> = found.iter().skip(start).take(max).map(|(_, id)| *id).collect();
        self.taken.extend(tasks.iter().copied());
        ReadyTasks { tasks, page, is_contended }
    }

    /// Makes sure that these windows exist; the least recently used others are dropped.
    fn open(&mut self, scopes: &[Scope]) {
        for scope in scopes {
            let window = match scope {
                Scope::All => self.all.get_or_insert_default(),
                Scope::Agent(slug) => self.agents.entry(slug.clone()).or_default(),
                Scope::Reserved(worker) => self.reserved.entry(worker.clone()).or_default(),
            };
            window.used = self.uses;
        }
        while self.agents.len() + self.reserved.len() > WINDOWS.max(scopes.len()) {
            let agents = self.agents.iter().map(|(slug, window)| (window.used, Scope::Agent(slug.clone())));
            let reserved = self.reserved.iter().map(|(worker, window)| (window.used, Scope::Reserved(worker.clone())));
            let window = match agents.chain(reserved).min() {
                Some((_, Scope::Agent(slug))) => self.agents.remove(&slug),
                Some((_, Scope::Reserved(worker))) => self.reserved.remove(&worker),
                Some((_, Scope::All)) | None => return,
            };
            self.dropped.extend(window.iter().flat_map(|window| window.entries.iter().map(|(_, id)| *id)));
        }
    }

    pub(super) fn wants_page(&self, scope: &Scope) -> bool {
        self.window(scope).is_some_and(|window| window.loading.is_none() && !window.is_complete)
    }

    pub(super) fn begin_page(&mut self, scope: &Scope, began: u64) -> PageRead {
        let window = self.window_mut(scope);
        let after = window.and_then(|window| {
            window.loading = Some(began);
            window.known_to
        });
        PageRead { scope: scope.clone(), after, began }
    }

    /// Moves the mark to `last`, the last task of the page. Returns whether the page was used.
    pub(super) fn end_page(&mut self, page: &PageRead, last: Option<ReadyKey>, is_last: bool) -> bool {
        let Some(window) = self.window_mut(&page.scope) else { return false };
        if window.loading.take_if(|began| *began == page.began).is_none() {
            return false;
        }
        window.is_complete = is_last;
        window.known_to = last.or(window.known_to);
        true
    }

    pub(super) fn abandon_page(&mut self, page: &PageRead) {
        if let Some(window) = self.window_mut(&page.scope) {
            window.loading.take_if(|began| *began == page.began);
        }
    }
}
