//! The projects of a working set.

use std::collections::{BTreeMap, BTreeSet};

use super::{Halt, WorkingSet, need};
use crate::ids::WorkerId;
use crate::project::{Project, ProjectId, ProjectNode};
use crate::row_keys::RowKeys;

/// All projects, and the state of the clones of those that were asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedProjects {
    /// All projects, by id.
    pub rows: BTreeMap<ProjectId, Project>,
    /// The state of each clone of the projects that were asked for, by project and worker.
    pub nodes: BTreeMap<ProjectId, BTreeMap<WorkerId, ProjectNode>>,
}

impl LoadedProjects {
    /// Builds the set from the database's answer to the keys in `asked`. A project without clones gets an empty entry.
    pub fn new(asked: &RowKeys, rows: impl IntoIterator<Item = Project>, nodes: impl IntoIterator<Item = ProjectNode>) -> Self {
        let mut of_projects: BTreeMap<_, BTreeMap<_, _>> = asked.project_nodes.iter().map(|id| (*id, BTreeMap::new())).collect();
        for node in nodes {
            of_projects.entry(node.project_id).or_default().insert(node.node_id.clone(), node);
        }
        Self { rows: rows.into_iter().map(|project| (project.id, project)).collect(), nodes: of_projects }
    }
}

/// The rows of projects that a batch changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirtyProjects {
    /// Projects to insert or rewrite.
    pub written: BTreeSet<ProjectId>,
    /// Projects to remove with all their nodes. None of them is written again afterwards, because an id is never reused.
    pub removed: BTreeSet<ProjectId>,
    /// Nodes to insert or rewrite.
    pub nodes: BTreeSet<(ProjectId, WorkerId)>,
}

/// Selects the project that a client means: by name first, then by id. A name may look like an id.
pub fn project_named<'a>(projects: impl Iterator<Item = &'a Project> + Clone, named: &str) -> Option<&'a Project> {
    let id = named.parse::<ProjectId>().ok();
    projects.clone().find(|project| project.name == named).or_else(|| projects.clone().find(|project| Some(project.id) == id))
}

impl WorkingSet {
    fn loaded_projects(&self) -> Result<&LoadedProjects, Halt> {
        match &self.loaded.projects {
            Some(projects) => Ok(projects),
            None if self.loaded.locked_projects => Err(Halt::Locked),
            None => Err(need(|keys| keys.projects = true)),
        }
    }

    /// All projects, with the changes of this batch.
    ///
    /// # Errors
    /// They are not loaded, or some of them are locked.
    pub fn projects(&self) -> Result<impl Iterator<Item = &Project>, Halt> {
        Ok(self.loaded_projects()?.rows.values())
    }

    /// The project with this id, or `None` if it does not exist.
    ///
    /// # Errors
    /// The projects are not loaded, or some of them are locked.
    pub fn find_project(&self, id: ProjectId) -> Result<Option<&Project>, Halt> {
        Ok(self.loaded_projects()?.rows.get(&id))
    }

    /// The project with this name, or else the one with this id. It is read without a lock, because whoever refers to a project copies what
    /// it needs of it.
    pub fn named_project(&self, named: &str) -> Result<Option<&Project>, Halt> {
        if let Some(all) = &self.loaded.projects {
            return Ok(project_named(all.rows.values(), named));
        }
        let found = self.loaded.named_projects.get(named).ok_or_else(|| need(|keys| keys.named_projects.insert(named.to_owned())))?;
        Ok(found.as_ref())
    }

    /// The state of this project's clones, by worker.
    ///
    /// # Errors
    /// They are not loaded, or some projects are locked.
    pub fn nodes_of(&self, id: ProjectId) -> Result<&BTreeMap<WorkerId, ProjectNode>, Halt> {
        self.loaded_projects()?.nodes.get(&id).ok_or_else(|| need(|keys| keys.project_nodes.insert(id)))
    }

    /// Adds a project, or rewrites the one with its id.
    pub fn put_project(&mut self, project: Project) {
        self.dirty.projects.written.insert(project.id);
        self.loaded.projects.get_or_insert_default().rows.insert(project.id, project);
    }

    /// Adds or rewrites the state of one clone of a project.
    pub fn put_project_node(&mut self, node: ProjectNode) {
        self.dirty.projects.nodes.insert((node.project_id, node.node_id.clone()));
        let nodes = &mut self.loaded.projects.get_or_insert_default().nodes;
        nodes.entry(node.project_id).or_default().insert(node.node_id.clone(), node);
    }

    /// Removes a project, and the state of its clones.
    pub fn remove_project(&mut self, id: ProjectId) {
        let projects = self.loaded.projects.get_or_insert_default();
        projects.rows.remove(&id);
        projects.nodes.insert(id, BTreeMap::new());
        self.dirty.projects.written.remove(&id);
        self.dirty.projects.nodes.retain(|(project, _)| *project != id);
        self.dirty.projects.removed.insert(id);
    }
}
