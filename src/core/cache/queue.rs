//! The head of the queue in memory: windows on the tasks that may be claimed, in queue order.
//!
//! A window contains all such tasks up to a mark, and the next page is read behind the mark. A claim therefore never has to skip rows that
//! can no longer be claimed. One window covers all ready tasks, for workers that serve every agent. There is also one for each agent that a
//! claiming worker names, and one for the tasks reserved for each claiming worker. Workers that do not serve all namespaces and projects
//! have such windows for each part of the queue that they serve, so they never skip the tasks of others. A window exists only while claims
//! use it.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::ReadyRow;
use super::window::{Part, ReadyKey, Scope, WINDOW, Window, Windows};
use crate::Ms;
use crate::ids::{TaskId, WorkerId};

/// The maximum number of windows, unless one worker names more agents. The least recently used windows are dropped, and read again when
/// needed. The limit is far above the number of agents and workers that claim at a time. Each open claim reads its windows once a second,
/// so with too few windows each of these reads would have to load a window again. An empty window takes about 200 bytes.
const WINDOWS: usize = 65_536;

/// How many reserved tasks of a worker are looked at to decide whether to wake its claim.
const RESERVED_LOOK: usize = 100;

/// A page to read. It is ignored if its window was reset, has overflowed or was dropped in the meantime.
#[derive(Clone, Debug)]
pub struct PageRead {
    /// The window whose next page is read.
    pub scope: Scope,
    /// The task behind which the page starts; `None` for the start of the queue.
    pub after: Option<ReadyKey>,
    pub(super) began: u64,
}

/// The first ready tasks of a worker's windows, which are now taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadyTasks {
    /// The tasks in queue order, at most as many as were requested. No other claim gets them until they are given back.
    pub tasks: Vec<TaskId>,
    /// A window whose next page must be read to know which tasks follow.
    pub page: Option<Scope>,
    /// Whether other claims have taken tasks of these scopes, and may give them back.
    pub is_contended: bool,
    /// When the worker may have the first of the tasks that were left out because they are kept for others.
    pub kept_until: Option<Ms>,
}

/// The windows on the tasks that may be claimed, and which of the tasks are taken.
#[derive(Debug, Default)]
pub struct Queue {
    parts: HashMap<Part, Windows>,
    reserved: HashMap<WorkerId, Window>,
    /// The number of windows.
    size: usize,
    /// Tasks that claims in progress have taken.
    taken: HashSet<TaskId>,
    /// Tasks that nobody can lease for a while, because another program keeps their rows locked.
    withheld: HashSet<TaskId>,
    /// Parts whose windows may have entries.
    filled: HashSet<Part>,
    /// Workers whose windows of reserved tasks may have entries.
    filled_reserved: HashSet<WorkerId>,
    dropped: Vec<TaskId>,
    uses: u64,
}

impl Queue {
    fn window(&self, scope: &Scope) -> Option<&Window> {
        match scope {
            Scope::Ready { part, agent_slug } => self.parts.get(part)?.window(agent_slug.as_deref()),
            Scope::Reserved(worker) => self.reserved.get(worker),
        }
    }

    fn window_mut(&mut self, scope: &Scope) -> Option<&mut Window> {
        match scope {
            Scope::Ready { part, agent_slug } => self.parts.get_mut(part)?.window_mut(agent_slug.as_deref()),
            Scope::Reserved(worker) => self.reserved.get_mut(worker),
        }
    }

    pub(super) fn insert(&mut self, ready: &ReadyRow) {
        if let Some(worker) = &ready.reserved_for {
            if let Some(window) = self.reserved.get_mut(worker) {
                window.insert(ready.key(), &mut self.dropped);
                if !self.filled_reserved.contains(worker) {
                    self.filled_reserved.insert(worker.clone());
                }
            }
            return;
        }
        for part in Part::of(ready) {
            if let Some(windows) = self.parts.get_mut(&part) {
                windows.insert(ready, &mut self.dropped);
                self.filled.insert(part);
            }
        }
    }

    pub(super) fn remove(&mut self, ready: &ReadyRow) {
        let key = ready.key();
        if let Some(worker) = &ready.reserved_for {
            self.reserved.get_mut(worker).map(|window| window.entries.remove(&key));
            return;
        }
        for part in Part::of(ready) {
            for window in self.parts.get_mut(&part).into_iter().flat_map(|windows| windows.of_mut(ready)) {
                window.entries.remove(&key);
            }
        }
    }

    pub(super) fn contains(&self, ready: &ReadyRow) -> bool {
        let has = |window: &Window| window.entries.contains(&ready.key());
        if let Some(worker) = &ready.reserved_for {
            return self.reserved.get(worker).is_some_and(has);
        }
        Part::of(ready).any(|part| self.parts.get(&part).is_some_and(|windows| windows.of(ready).any(has)))
    }

    /// How many entries to look at in order to find a free one, if there is one.
    fn look(&self) -> usize {
        self.taken.len() + self.withheld.len() + 1
    }

    /// The parts that have a task that is neither reserved nor taken by a claim. With `is_open`, only tasks of agents for which it returns
    /// true count; these agents must have their own windows.
    pub(super) fn parts_with_untaken(&mut self, is_open: Option<&dyn Fn(&str) -> bool>) -> BTreeSet<Part> {
        let look = self.look();
        let Self { parts, filled, taken, withheld, .. } = self;
        filled.retain(|part| parts.get_mut(part).is_some_and(|windows| windows.iter_mut().any(|window| !window.entries.is_empty())));
        let mut has_untaken = |part: &&Part| {
            let is_free = |id: &TaskId| !taken.contains(id) && !withheld.contains(id);
            parts.get_mut(*part).is_some_and(|windows| windows.has_free(is_open, look, is_free))
        };
        filled.iter().filter(|part| has_untaken(part)).cloned().collect()
    }

    /// The workers with a reserved task that no claim has taken and for which `is_open` returns true.
    pub(super) fn with_reserved(&mut self, is_open: impl Fn(&str, &TaskId) -> bool) -> Vec<WorkerId> {
        let reserved = &self.reserved;
        let entries = |worker: &WorkerId| reserved.get(worker).into_iter().flat_map(|window| &window.entries);
        self.filled_reserved.retain(|worker| entries(worker).next().is_some());
        let has_one = |worker: &&WorkerId| entries(worker).take(RESERVED_LOOK).any(|(_, id)| self.is_free(id) && is_open(worker, id));
        self.filled_reserved.iter().filter(has_one).cloned().collect()
    }

    fn is_free(&self, id: &TaskId) -> bool {
        !self.taken.contains(id) && !self.withheld.contains(id)
    }

    /// Hides these tasks from claims until they are shown again.
    pub fn withhold(&mut self, tasks: &[TaskId]) {
        self.withheld.extend(tasks);
    }

    /// Makes withheld tasks visible to claims again.
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
        for window in self.parts.values_mut().flat_map(Windows::iter_mut).chain(self.reserved.values_mut()) {
            self.dropped.extend(window.entries.iter().map(|(_, id)| *id));
            *window = Window { used: window.used, ..Window::default() };
        }
    }

    /// Leaves out reserved tasks for which `is_open` returns false, given the worker, and ready tasks that are kept for others.
    pub(super) fn take_ready(
        &mut self,
        scopes: &[Scope],
        is_open: impl Fn(&str, &TaskId) -> bool,
        kept_until: impl Fn(&TaskId) -> Option<Ms>,
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
        let (mut is_contended, mut first_kept_until) = (false, None::<Ms>);
        while found.len() < max.saturating_add(spread) {
            let next = heads.iter_mut().enumerate().filter_map(|(i, head)| head.peek().map(|key| (**key, i))).min();
            let Some((key, i)) = next.filter(|(key, _)| end.is_none_or(|(known_to, ..)| Some(*key) <= known_to)) else { break };
            heads[i].next();
            // An agent that is named twice has two iterators here.
            let (is_hidden, kept_until) = match windows[i].1 {
                Scope::Reserved(worker) => (!is_open(worker, &key.1), None),
                Scope::Ready { .. } => (false, kept_until(&key.1)),
            };
            if let Some(until) = kept_until {
                first_kept_until = Some(first_kept_until.map_or(until, |first| first.min(until)));
            }
            if is_hidden || kept_until.is_some() || self.withheld.contains(&key.1) {
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
        ReadyTasks { tasks, page, is_contended, kept_until: first_kept_until }
    }

    /// Makes sure that these windows exist; the least recently used others are dropped.
    fn open(&mut self, scopes: &[Scope]) {
        for scope in scopes {
            if self.window(scope).is_none() {
                self.add(scope);
                self.size += 1;
            }
            let used = self.uses;
            if let Some(window) = self.window_mut(scope) {
                window.used = used;
            }
        }
        while self.size > WINDOWS.max(scopes.len()) {
            let Some(scope) = self.least_used() else { return };
            let window = self.take_out(&scope);
            self.size -= 1;
            self.dropped.extend(window.iter().flat_map(|window| window.entries.iter().map(|(_, id)| *id)));
        }
    }

    fn add(&mut self, scope: &Scope) {
        match scope {
            Scope::Ready { part, agent_slug } => {
                let windows = self.parts.entry(part.clone()).or_default();
                match agent_slug {
                    None => windows.all = Some(Window::default()),
                    Some(slug) => _ = windows.agents.insert(slug.clone(), Window::default()),
                }
            }
            Scope::Reserved(worker) => _ = self.reserved.insert(worker.clone(), Window::default()),
        }
    }

    /// The least recently used window. The window on all tasks is never chosen.
    fn least_used(&self) -> Option<Scope> {
        let reserved = self.reserved.iter().map(|(worker, window)| (window.used, Scope::Reserved(worker.clone())));
        let of_parts = self.parts.iter().flat_map(|(part, windows)| {
            let all = windows.all.iter().filter(|_| *part != Part::default()).map(|window| (window.used, Scope::of(part.clone(), None)));
            all.chain(windows.agents.iter().map(|(slug, window)| (window.used, Scope::of(part.clone(), Some(slug)))))
        });
        reserved.chain(of_parts).min().map(|(_, scope)| scope)
    }

    fn take_out(&mut self, scope: &Scope) -> Option<Window> {
        match scope {
            Scope::Reserved(worker) => self.reserved.remove(worker),
            Scope::Ready { part, agent_slug } => {
                let windows = self.parts.get_mut(part)?;
                let window = match agent_slug {
                    Some(slug) => windows.agents.remove(slug),
                    None => windows.all.take(),
                };
                if windows.is_empty() {
                    self.parts.remove(part);
                }
                window
            }
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
