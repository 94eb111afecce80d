//! Projects: their creation and deletion, and the outcomes of clones.

use crate::audit::{Action, Actor, EntityType};
use crate::ids::WorkerId;
use crate::operation::{Operation, Weight};
use crate::project::{CloneStatus, MAX_CLONE_ERROR, MAX_FORMER_PREFIXES, MAX_PROJECT_NODES, MAX_PROJECTS, Project, ProjectId, ProjectNode};
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, WorkingSet};

/// Adds a project. The caller must have checked its name ([`is_project_name`](crate::project::is_project_name)) and its path.
#[derive(Clone, Debug)]
pub struct CreateProject {
    /// The name of the project, which must be unique.
    pub name: String,
    /// The URL that git clones from.
    pub repo_url: String,
    /// Where agents put the clone; `None` = in a directory with the project's name.
    pub target_path: Option<String>,
    /// The worker that clones the project if a request names none; `None`: the first worker that is asked.
    pub primary_node_id: Option<WorkerId>,
    /// The prefix of the branches of contexts, which a `/` follows.
    pub branch_prefix: String,
}

impl Operation for CreateProject {
    type Reply = Project;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.projects = true;
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Project, Halt> {
        if set.projects()?.any(|known| known.name == self.name) {
            return Err(Rejection::ProjectExists(self.name.clone()).into());
        }
        if set.projects()?.count() >= MAX_PROJECTS {
            return Err(Rejection::TooManyProjects.into());
        }
        let created_at = set.stamp();
        let project = Project {
            id: set.ids.next_id(),
            name: self.name.clone(),
            repo_url: self.repo_url.clone(),
            target_path: self.target_path.clone(),
            primary_node_id: self.primary_node_id.clone(),
            branch_prefix: self.branch_prefix.clone(),
            former_branch_prefixes: Vec::new(),
            clone_status: CloneStatus::Pending,
            error_message: None,
            created_at,
            updated_at: created_at,
        };
        set.audit(Action::ProjectCreated, EntityType::Project, project.id, &Actor::Admin, &project.name);
        set.put_project(project.clone());
        Ok(project)
    }
}

/// Changes the prefix of the branches of a project's contexts. The caller must have checked the new prefix
/// ([`is_branch_prefix`](crate::project::is_branch_prefix)).
#[derive(Clone, Debug)]
pub struct EditProject {
    /// The project to change.
    pub project: ProjectId,
    /// The new prefix of the branches. The previous one is kept in a list.
    pub branch_prefix: String,
}

impl Operation for EditProject {
    type Reply = Project;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.projects = true;
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Project, Halt> {
        let known = set.find_project(self.project)?.ok_or(Rejection::ProjectNotFound)?.clone();
        if known.branch_prefix == self.branch_prefix {
            return Ok(known);
        }
        let detail = format!("{}: branch_prefix {} instead of {}", known.name, self.branch_prefix, known.branch_prefix);
        set.audit(Action::ProjectEdited, EntityType::Project, self.project, &Actor::Admin, detail);
        let mut former_branch_prefixes = known.former_branch_prefixes.clone();
        former_branch_prefixes.retain(|former| *former != self.branch_prefix);
        former_branch_prefixes.insert(0, known.branch_prefix.clone());
        former_branch_prefixes.truncate(MAX_FORMER_PREFIXES);
        let project = Project { branch_prefix: self.branch_prefix.clone(), former_branch_prefixes, updated_at: set.stamp(), ..known };
        set.put_project(project.clone());
        Ok(project)
    }
}

/// Removes a project and the records of its clones. The clones themselves stay on the agents' machines.
#[derive(Clone, Debug)]
pub struct DeleteProject {
    /// The project to remove.
    pub project: ProjectId,
}

impl Operation for DeleteProject {
    type Reply = ();

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.projects = true;
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let name = set.find_project(self.project)?.ok_or(Rejection::ProjectNotFound)?.name.clone();
        set.audit(Action::ProjectDeleted, EntityType::Project, self.project, &Actor::Admin, name);
        set.remove_project(self.project);
        Ok(())
    }
}

/// The outcome of a clone on one worker.
#[derive(Clone, Debug)]
pub struct NodeClone {
    /// The worker whose agent answered.
    pub node_id: WorkerId,
    /// The path of the clone, if the agent reports it, or why there is none.
    pub outcome: Result<Option<String>, String>,
}

/// The reason for which a clone was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClonedFor {
    /// A call that names the worker, or leaves it to the project.
    Call,
    /// A call to all workers that lack the project.
    Propagation,
    /// A run. Nobody has requested the clone itself.
    Run,
}

/// Records the outcomes of clones that agents were asked for, or that they made for a run.
#[derive(Clone, Debug)]
pub struct RecordClones {
    /// The project that was cloned.
    pub project: ProjectId,
    /// The outcome on each of the workers.
    pub nodes: Vec<NodeClone>,
    /// The reason for which the clones were made.
    pub cloned_for: ClonedFor,
}

impl Operation for RecordClones {
    type Reply = Project;

    fn weight(&self) -> Weight {
        Weight { rows: 2 + self.nodes.len(), bytes: 512 + self.nodes.len() * 256 }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.projects = true;
        keys.project_nodes.insert(self.project);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Project, Halt> {
        let known = set.find_project(self.project)?.ok_or(Rejection::ProjectNotFound)?.clone();
        let nodes = set.nodes_of(self.project)?;
        let new = self.nodes.iter().filter(|node| !nodes.contains_key(&node.node_id)).count();
        if nodes.len() + new > MAX_PROJECT_NODES {
            return Err(Rejection::TooManyProjectNodes.into());
        }
        let updated_at = set.stamp();
        let failures = || self.nodes.iter().filter_map(|node| Some((&node.node_id, node.outcome.as_ref().err()?)));
        let failed = failures().count();
        let propagated = self.cloned_for == ClonedFor::Propagation;
        let action = if propagated { Action::ProjectPropagated } else { Action::ProjectCloned };
        let is_reported = |node: &ProjectNode| self.nodes.iter().any(|reported| reported.node_id == node.node_id);
        let is_elsewhere = |status: CloneStatus| nodes.values().any(|node| node.clone_status == status && !is_reported(node));
        let status = match (self.cloned_for, failed) {
            // A run only ends a failure. Otherwise the status of the requested clones stays.
            (ClonedFor::Run, 0) if matches!(known.clone_status, CloneStatus::Cloned | CloneStatus::Synced) => known.clone_status,
            (ClonedFor::Run, 0) if known.clone_status == CloneStatus::Partial && is_elsewhere(CloneStatus::Failed) => CloneStatus::Partial,
            (ClonedFor::Propagation, 0) => CloneStatus::Synced,
            (_, 0) => CloneStatus::Cloned,
            // The project still works on the workers that have a clone.
            _ if failed == self.nodes.len() && !is_elsewhere(CloneStatus::Cloned) => CloneStatus::Failed,
            _ => CloneStatus::Partial,
        };
        let is_named = self.cloned_for == ClonedFor::Call;
        let new_error = failures().next().map(|(node, why)| if is_named { shortened(why) } else { shortened(&format!("{node}: {why}")) });
        let stays = self.cloned_for == ClonedFor::Run && failed == 0 && status == known.clone_status;
        let error_message = if stays { known.error_message.clone() } else { new_error };
        let named = self.nodes.first().filter(|_| is_named).map(|node| &node.node_id);
        // A primary worker that never had a clone may be a mistyped name, so a worker that has a clone replaces it.
        let never_cloned = |primary: &WorkerId| {
            nodes.get(primary).is_some_and(|node| node.clone_status == CloneStatus::Failed && node.last_sync_at.is_none())
        };
        let kept = known.primary_node_id.as_ref().filter(|primary| failed > 0 || !never_cloned(primary));
        let primary_node_id = kept.or(named).or(known.primary_node_id.as_ref()).cloned();
        for NodeClone { node_id, outcome } in &self.nodes {
            let last_sync_at = set.nodes_of(self.project)?.get(node_id).and_then(|node| node.last_sync_at);
            let (project_id, node_id) = (self.project, node_id.clone());
            let (clone_status, clone_path, error_message, last_sync_at) = match outcome {
                Ok(path) => (CloneStatus::Cloned, path.clone(), None, Some(updated_at)),
                Err(why) => (CloneStatus::Failed, None, Some(shortened(why)), last_sync_at),
            };
            set.put_project_node(ProjectNode { project_id, node_id, clone_status, clone_path, error_message, last_sync_at, updated_at });
        }
        let nodes = self.nodes.iter().map(|node| node.node_id.as_str()).take(SHOWN_NODES).collect::<Vec<_>>().join(", ");
        let more = if self.nodes.len() > SHOWN_NODES { ", …" } else { "" };
        let failed = if failed == 0 { String::new() } else { format!("; {failed} failed") };
        let (actor, why) = match self.nodes.first() {
            Some(node) if self.cloned_for == ClonedFor::Run => (Actor::Worker(node.node_id.clone()), ", for a run"),
            _ => (Actor::Admin, ""),
        };
        set.audit(action, EntityType::Project, self.project, &actor, format!("{} to {nodes}{more}{failed}{why}", known.name));
        let project = Project { primary_node_id, clone_status: status, error_message, updated_at, ..known };
        set.put_project(project.clone());
        Ok(project)
    }
}

/// The maximum number of workers that an entry of the audit trail lists.
const SHOWN_NODES: usize = 10;

fn shortened(text: &str) -> String {
    text.chars().take(MAX_CLONE_ERROR).collect()
}
