//! What a task requires of its worker, in addition to a free slot.

use super::task::{TaskSpec, TaskState};

/// What a worker must serve to run a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement<'a> {
    /// The agent whose tasks the worker must serve.
    pub agent_slug: &'a str,
    /// The namespace of the task; `None` = it belongs to no namespace.
    pub namespace: Option<&'a str>,
    /// The project of the task; `None` = it has none.
    pub project: Option<&'a str>,
}

impl TaskSpec {
    /// What a worker must serve to run the task.
    pub fn requirement(&self) -> Requirement<'_> {
        let namespace = self.object.as_ref().map(|object| &object.namespace[..]);
        let project = self.project.as_ref().map(|project| &project.name[..]);
        Requirement { agent_slug: &self.agent_slug, namespace, project }
    }
}

impl TaskState {
    /// What a worker must serve to run the task.
    pub fn requirement(&self) -> Requirement<'_> {
        Requirement { agent_slug: &self.agent_slug, namespace: self.namespace.as_deref(), project: self.project.as_deref() }
    }
}
