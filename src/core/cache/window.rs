//! A window on the tasks that may be claimed, the parts of the queue, and the windows on all agents and on each of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::ReadyRow;
use crate::ids::{TaskId, WorkerId};
use crate::worker::Capabilities;

/// The order of the queue: the most urgent tasks first (rank = 9 − priority), then the oldest.
pub type ReadyKey = (i64, TaskId);

/// Which tasks a part of the queue has, by project.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projects {
    /// Tasks of all projects, and tasks without a project.
    #[default]
    All,
    /// Tasks without a project.
    None,
    /// Tasks of this project.
    One(String),
}

/// A part of the queue, by namespace and project. The default is the whole queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// `None` = tasks of all namespaces, and of none.
    pub namespace: Option<String>,
    /// The projects whose tasks it has.
    pub projects: Projects,
}

impl Part {
    /// The parts that together cover all tasks of the namespaces and projects that the worker serves.
    pub fn served_by(capabilities: &Capabilities) -> Vec<Self> {
        let projects = match &capabilities.projects {
            None if capabilities.git => vec![Projects::All],
            None => vec![Projects::None],
            Some(named) => std::iter::once(Projects::None).chain(named.iter().cloned().map(Projects::One)).collect(),
        };
        let of_namespace = |namespace: Option<&String>| {
            let part = |projects: &Projects| Self { namespace: namespace.cloned(), projects: projects.clone() };
            projects.iter().map(part).collect::<Vec<_>>()
        };
        match &capabilities.namespaces {
            None => of_namespace(None),
            Some(namespaces) => namespaces.iter().flat_map(|namespace| of_namespace(Some(namespace))).collect(),
        }
    }

    /// Whether it has tasks that every worker without named namespaces serves: tasks without a project, and possibly others.
    pub fn is_for_most(&self) -> bool {
        self.namespace.is_none() && !matches!(self.projects, Projects::One(_))
    }

    /// All parts that this task belongs to.
    pub(super) fn of(ready: &ReadyRow) -> impl Iterator<Item = Self> {
        let own = ready.project.as_ref().map_or(Projects::None, |project| Projects::One(project.clone()));
        let namespaces = std::iter::once(None).chain(ready.namespace.clone().map(Some));
        namespaces.flat_map(move |namespace| [Projects::All, own.clone()].map(|projects| Self { namespace: namespace.clone(), projects }))
    }

    fn has(&self, ready: &ReadyRow) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| ready.namespace.as_ref() == Some(namespace))
            && match &self.projects {
                Projects::All => true,
                Projects::None => ready.project.is_none(),
                Projects::One(project) => ready.project.as_ref() == Some(project),
            }
    }
}

/// The tasks that a window covers. They are either the unreserved tasks of a part of the queue, for one agent or for all agents, or the
/// tasks that are reserved for one worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The tasks of a part of the queue that are reserved for nobody.
    Ready {
        /// The part of the queue.
        part: Part,
        /// The agent that the tasks are for; `None` = all agents.
        agent_slug: Option<String>,
    },
    /// The tasks that are reserved for this worker.
    Reserved(WorkerId),
}

impl Scope {
    /// The tasks of this agent, or of all agents.
    pub fn of(part: Part, agent_slug: Option<&str>) -> Self {
        Self::Ready { part, agent_slug: agent_slug.map(str::to_owned) }
    }

    /// Whether the window covers this task, judged by the task's own row.
    pub fn has(&self, ready: &ReadyRow) -> bool {
        match self {
            Self::Reserved(worker) => ready.reserved_for.as_ref() == Some(worker),
            Self::Ready { part, agent_slug } => {
                ready.reserved_for.is_none() && agent_slug.as_ref().is_none_or(|slug| ready.agent_slug == *slug) && part.has(ready)
            }
        }
    }
}

/// The maximum number of entries of a window. The tasks behind it are read again when they are needed.
pub const WINDOW: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Window {
    pub entries: BTreeSet<ReadyKey>,
    /// The mark: all tasks of the scope up to this one are in `entries`; `None` if nothing was read yet.
    pub known_to: Option<ReadyKey>,
    /// Whether no tasks follow `known_to`.
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
    pub(crate) fn insert(&mut self, key: ReadyKey, dropped: &mut Vec<TaskId>) {
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
    pub(crate) fn window(&self, agent_slug: Option<&str>) -> Option<&Window> {
        agent_slug.map_or(self.all.as_ref(), |slug| self.agents.get(slug))
    }

    pub(crate) fn window_mut(&mut self, agent_slug: Option<&str>) -> Option<&mut Window> {
        match agent_slug {
            None => self.all.as_mut(),
            Some(slug) => self.agents.get_mut(slug),
        }
    }

    pub(crate) fn insert(&mut self, ready: &ReadyRow, dropped: &mut Vec<TaskId>) {
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

    pub(crate) fn of(&self, ready: &ReadyRow) -> impl Iterator<Item = &Window> {
        self.all.iter().chain(self.agents.get(&ready.agent_slug))
    }

    pub(crate) fn of_mut(&mut self, ready: &ReadyRow) -> impl Iterator<Item = &mut Window> {
        self.all.iter_mut().chain(self.agents.get_mut(&ready.agent_slug))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        self.all.iter_mut().chain(self.agents.values_mut())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none() && self.agents.is_empty()
    }

    /// Whether one of the first `look` tasks of a window is free. With `is_open`, looks only at the windows of agents for which it returns
    /// true.
    pub(crate) fn has_free(&mut self, is_open: Option<&dyn Fn(&str) -> bool>, look: usize, is_free: impl Fn(&TaskId) -> bool) -> bool {
        let agents = &self.agents;
        self.filled.retain(|slug| agents.get(slug).is_some_and(|window| !window.entries.is_empty()));
        let open = self.filled.iter().filter(|slug| is_open.is_none_or(|is_open| is_open(slug)));
        let mut windows = self.all.iter().filter(|_| is_open.is_none()).chain(open.filter_map(|slug| self.agents.get(slug)));
        windows.any(|window| window.entries.iter().take(look).any(|(_, id)| is_free(id)))
    }
}
