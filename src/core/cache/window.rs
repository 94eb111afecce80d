//! A window on the tasks that may be claimed, and the windows on all agents and on each of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::ReadyRow;
use crate::ids::{TaskId, WorkerId};

/// Most urgent first (rank = 9 − priority), then oldest.
pub type ReadyKey = (i64, TaskId);

/// The tasks of a window: all that are not reserved, those of one agent, of one namespace or of one agent in one namespace, or those reserved
/// for one worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    All,
    Agent(String),
    Namespace(String),
    AgentInNamespace { namespace: String, agent_slug: String },
    Reserved(WorkerId),
}

impl Scope {
    /// The tasks of this agent, or of all agents, in this namespace, or in all namespaces and in none.
    pub fn of(namespace: Option<&str>, agent_slug: Option<&str>) -> Self {
        match (namespace.map(str::to_owned), agent_slug.map(str::to_owned)) {
            (None, None) => Self::All,
            (None, Some(agent_slug)) => Self::Agent(agent_slug),
            (Some(namespace), None) => Self::Namespace(namespace),
            (Some(namespace), Some(agent_slug)) => Self::AgentInNamespace { namespace, agent_slug },
        }
    }

    /// Whether the window has this task, judged by the task's own row.
    pub fn has(&self, ready: &ReadyRow) -> bool {
        if let Self::Reserved(worker) = self {
            return ready.reserved_for.as_ref() == Some(worker);
        }
        ready.reserved_for.is_none()
            && match self {
                Self::All | Self::Reserved(_) => true,
                Self::Agent(slug) => ready.agent_slug == *slug,
                Self::Namespace(namespace) => ready.namespace.as_ref() == Some(namespace),
                Self::AgentInNamespace { namespace, agent_slug } => {
                    ready.namespace.as_ref() == Some(namespace) && ready.agent_slug == *agent_slug
                }
            }
    }
}

/// The maximum number of entries of a window. Tasks behind it are read again when they are needed.
pub const WINDOW: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Window {
    pub entries: BTreeSet<ReadyKey>,
    /// The mark: all tasks of the scope up to this one are in `entries`; `None` if nothing was read yet.
    pub known_to: Option<ReadyKey>,
    /// No tasks follow `known_to`.
    pub is_complete: bool,
    /// When the read of the next page, behind `known_to`, began.
    pub loading: Option<u64>,
    pub used: u64,
}

impl Window {
    fn covers(&self, key: ReadyKey) -> bool {
        self.is_complete || self.known_to.is_some_and(|mark| key <= mark)
    }

    /// Adds the task if the window covers it. Entries beyond the window's limit go into `dropped`.
    pub fn insert(&mut self, key: ReadyKey, dropped: &mut Vec<TaskId>) {
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

/// Windows on ready tasks: of all agents together, and of one agent each.
#[derive(Debug, Default)]
pub(super) struct Windows {
    pub all: Option<Window>,
    pub agents: HashMap<String, Window>,
    /// Agents whose windows may have entries. Many more windows may be empty.
    filled: HashSet<String>,
}

impl Windows {
    pub fn insert(&mut self, ready: &ReadyRow, dropped: &mut Vec<TaskId>) {
        if let Some(window) = &mut self.all {
            window.insert(ready.key(), dropped);
        }
        if let Some(window) = self.agents.get_mut(&ready.agent_slug) {
            window.insert(ready.key(), dropped);
            if !self.filled.contains(&ready.agent_slug) {
                self.filled.insert(ready.agent_slug.clone());
            }
        }
    }

    pub fn of(&self, ready: &ReadyRow) -> impl Iterator<Item = &Window> {
        self.all.iter().chain(self.agents.get(&ready.agent_slug))
    }

    pub fn of_mut(&mut self, ready: &ReadyRow) -> impl Iterator<Item = &mut Window> {
        self.all.iter_mut().chain(self.agents.get_mut(&ready.agent_slug))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        self.all.iter_mut().chain(self.agents.values_mut())
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_none() && self.agents.is_empty()
    }

    /// Whether one of the first `look` tasks of a window is free. With `is_open`, only windows of agents for which it holds are looked at.
    pub fn has_free(&mut self, is_open: Option<&dyn Fn(&str) -> bool>, look: usize, is_free: impl Fn(&TaskId) -> bool) -> bool {
        let agents = &self.agents;
        self.filled.retain(|slug| agents.get(slug).is_some_and(|window| !window.entries.is_empty()));
        let open = self.filled.iter().filter(|slug| is_open.is_none_or(|is_open| is_open(slug)));
        let mut windows = self.all.iter().filter(|_| is_open.is_none()).chain(open.filter_map(|slug| self.agents.get(slug)));
        windows.any(|window| window.entries.iter().take(look).any(|(_, id)| is_free(id)))
    }
}
