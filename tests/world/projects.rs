//! The projects of the database in memory.

use std::collections::BTreeSet;

use bloom_core::command::RowKeys;
use bloom_core::working_set::{Loaded, LoadedProjects, WorkingSet, project_named};

use super::memory::{Conflict, Memory};

impl Memory {
    pub(super) fn load_projects(&self, keys: &RowKeys, loaded: &mut Loaded) {
        loaded.projects = keys.projects.then(|| {
            let nodes = self.project_nodes.values().filter(|node| keys.project_nodes.contains(&node.project_id)).cloned();
            LoadedProjects::new(keys, self.projects.values().cloned(), nodes)
        });
        let named = |named: &String| (named.clone(), project_named(self.projects.values(), named).cloned());
        loaded.named_projects = keys.named_projects.iter().map(named).collect();
    }

    pub(super) fn write_projects(&mut self, set: &WorkingSet) -> Result<(), Conflict> {
        let dirty = &set.dirty.projects;
        for id in &dirty.removed {
            self.projects.remove(id);
            self.project_nodes.retain(|(project, _), _| project != id);
        }
        let loaded = || set.loaded.projects.as_ref().expect("projects were loaded");
        for id in &dirty.written {
            self.projects.insert(*id, loaded().rows[id].clone());
        }
        for (project, node) in &dirty.nodes {
            self.project_nodes.insert((*project, node.clone()), loaded().nodes[project][node].clone());
        }
        let names: BTreeSet<&str> = self.projects.values().map(|project| project.name.as_str()).collect();
        if names.len() < self.projects.len() { Err("one project a name") } else { Ok(()) }
    }
}
