//! The rows of the control plane in a working set. Loading any of them takes the lock of the control plane, so the counts stay exact until
//! the transaction ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Halt, WorkingSet, need};
use crate::Ms;
use crate::control_plane::{Agent, Job, NewMemory, Node, Project};
use crate::row_keys::{ControlPlaneKeys, NodeKey};

/// The rows of the control plane that were loaded for a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedControlPlane {
    /// What was asked for. If the maps have no row for it, it does not exist.
    pub asked: ControlPlaneKeys,
    /// By name.
    pub agents: BTreeMap<String, Agent>,
    /// How many agents are registered.
    pub agent_count: i64,
    /// By canonical id.
    pub projects: BTreeMap<String, Project>,
    /// How many projects there are.
    pub project_count: i64,
    /// By the canonical id of the project and the name of the node.
    pub nodes: BTreeMap<NodeKey, Node>,
    /// The number of nodes, for each project that was asked for.
    pub node_counts: BTreeMap<String, i64>,
}

/// The rows of the control plane that a batch changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirtyControlPlane {
    /// Rows to remove, before others are written.
    pub removed_agents: BTreeSet<String>,
    /// By canonical id, with their nodes and memories.
    pub removed_projects: BTreeSet<String>,
    /// By canonical id: nodes that do not lead and were last seen before this time.
    pub removed_nodes: BTreeMap<String, Ms>,
    /// Names of agents to insert or rewrite.
    pub agents: BTreeSet<String>,
    /// Canonical ids of projects to insert or rewrite.
    pub projects: BTreeSet<String>,
    /// Nodes to insert or rewrite.
    pub nodes: BTreeSet<NodeKey>,
    /// Versions of memories to insert.
    pub memories: Vec<Arc<NewMemory>>,
    /// Jobs to insert.
    pub jobs: Vec<Job>,
}

impl WorkingSet {
    fn control_plane(&self) -> Result<&LoadedControlPlane, Halt> {
        match &self.loaded.control_plane {
            Some(loaded) => Ok(loaded),
            None if self.loaded.locked_control_plane => Err(Halt::Locked),
            None => Err(need(|keys| keys.control_plane.counts = true)),
        }
    }

    /// The registered agent of this name, or `None` if it does not exist.
    ///
    /// # Errors
    /// It is not loaded, or the rows are locked.
    pub fn find_agent(&self, name: &str) -> Result<Option<&Agent>, Halt> {
        let loaded = self.control_plane()?;
        if !loaded.asked.agents.contains(name) {
            return Err(need(|keys| keys.control_plane.agents.insert(name.to_owned())));
        }
        Ok(loaded.agents.get(name))
    }

    /// The project with this name or this canonical id. If both match, the name wins.
    pub fn memory_project_named(&self, name: &str) -> Result<Option<&Project>, Halt> {
        let loaded = self.control_plane()?;
        if !loaded.asked.projects.contains(name) {
            return Err(need(|keys| keys.control_plane.projects.insert(name.to_owned())));
        }
        let named = loaded.projects.values().find(|project| project.name == name);
        Ok(named.or_else(|| loaded.projects.get(name)))
    }

    /// The project with this canonical id.
    pub fn memory_project(&self, canonical_id: &str) -> Result<Option<&Project>, Halt> {
        let loaded = self.control_plane()?;
        if !loaded.asked.projects.contains(canonical_id) {
            return Err(need(|keys| keys.control_plane.projects.insert(canonical_id.to_owned())));
        }
        Ok(loaded.projects.get(canonical_id))
    }

    /// The node of this name in the project, or `None` if it does not exist.
    ///
    /// # Errors
    /// It is not loaded, or the rows are locked.
    pub fn find_node(&self, canonical_id: &str, node_id: &str) -> Result<Option<&Node>, Halt> {
        let loaded = self.control_plane()?;
        let key = (canonical_id.to_owned(), node_id.to_owned());
        if !loaded.asked.nodes.contains(&key) {
            return Err(need(|keys| keys.control_plane.nodes.insert(key)));
        }
        Ok(loaded.nodes.get(&key))
    }

    /// How many agents are registered, with the changes of this batch.
    ///
    /// # Errors
    /// The rows were not counted, or are locked.
    pub fn agent_count(&self) -> Result<i64, Halt> {
        Ok(self.control_plane()?.agent_count)
    }

    /// How many projects the control plane has, with the changes of this batch.
    ///
    /// # Errors
    /// The rows were not counted, or are locked.
    pub fn memory_project_count(&self) -> Result<i64, Halt> {
        Ok(self.control_plane()?.project_count)
    }

    /// The number of nodes of a project that was looked up, or that is new.
    pub fn node_count(&self, canonical_id: &str) -> Result<i64, Halt> {
        Ok(self.control_plane()?.node_counts.get(canonical_id).copied().unwrap_or_default())
    }

    /// Adds an agent, or rewrites the existing agent with its name.
    pub fn put_agent(&mut self, agent: Agent) {
        self.dirty.control_plane.agents.insert(agent.name.clone());
        let loaded = self.loaded.control_plane.get_or_insert_default();
        if loaded.agents.insert(agent.name.clone(), agent).is_none() {
            loaded.agent_count += 1;
        }
    }

    /// Removes the agent of this name; its nodes stay.
    pub fn drop_agent(&mut self, name: &str) {
        let loaded = self.loaded.control_plane.get_or_insert_default();
        if loaded.agents.remove(name).is_some() {
            loaded.agent_count -= 1;
        }
        self.dirty.control_plane.agents.remove(name);
        self.dirty.control_plane.removed_agents.insert(name.to_owned());
    }

    /// Adds a project, or rewrites the existing project with its canonical id.
    pub fn put_memory_project(&mut self, project: Project) {
        self.dirty.control_plane.projects.insert(project.canonical_id.clone());
        let loaded = self.loaded.control_plane.get_or_insert_default();
        if loaded.projects.insert(project.canonical_id.clone(), project).is_none() {
            loaded.project_count += 1;
        }
    }

    /// Removes the project with this canonical id, with its nodes and memories.
    pub fn drop_memory_project(&mut self, canonical_id: &str) {
        let loaded = self.loaded.control_plane.get_or_insert_default();
        if loaded.projects.remove(canonical_id).is_some() {
            loaded.project_count -= 1;
        }
        loaded.nodes.retain(|(project, _), _| project != canonical_id);
        loaded.node_counts.remove(canonical_id);
        let dirty = &mut self.dirty.control_plane;
        dirty.projects.remove(canonical_id);
        dirty.nodes.retain(|(project, _)| project != canonical_id);
        dirty.memories.retain(|memory| memory.version.canonical_id != canonical_id);
        dirty.removed_projects.insert(canonical_id.to_owned());
    }

    /// Adds a node to its project, or rewrites the existing node with its name.
    pub fn put_node(&mut self, node: Node) {
        let key = (node.canonical_id.clone(), node.node_id.clone());
        self.dirty.control_plane.nodes.insert(key.clone());
        let loaded = self.loaded.control_plane.get_or_insert_default();
        let canonical_id = node.canonical_id.clone();
        if loaded.nodes.insert(key, node).is_none() {
            *loaded.node_counts.entry(canonical_id).or_default() += 1;
        }
    }
}
