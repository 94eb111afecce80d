//! The control plane's rows in memory, and commands that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bloom_core::command::{NodeKey, Op, RowKeys};
use bloom_core::control_plane::{Agent, Job, JobAction, JobStatus, NewJob, NewMemory, Node, Project, VERSIONS_KEPT};
use bloom_core::op;
use bloom_core::worker::WorkerStatus;
use bloom_core::working_set::{LoadedControlPlane, WorkingSet};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlPlaneRows {
    pub agents: BTreeMap<String, Agent>,
    pub projects: BTreeMap<String, Project>,
    pub nodes: BTreeMap<NodeKey, Node>,
    pub memories: BTreeMap<(String, i64), Arc<NewMemory>>,
    pub jobs: Vec<Job>,
}

fn count<T>(rows: impl Iterator<Item = T>) -> i64 {
    i64::try_from(rows.count()).expect("a few rows")
}

impl ControlPlaneRows {
    pub fn load(&self, keys: &RowKeys) -> Option<LoadedControlPlane> {
        let asked = &keys.control_plane;
        if asked.is_empty() {
            return None;
        }
        let is_asked = |project: &Project| asked.projects.contains(&project.name) || asked.projects.contains(&project.canonical_id);
        let projects: BTreeMap<_, _> =
            self.projects.iter().filter(|(_, project)| is_asked(project)).map(|(id, project)| (id.clone(), project.clone())).collect();
        // The database finds them by two lists.
        let of_nodes = |(project, node): &NodeKey| {
            asked.nodes.iter().any(|(known, _)| known == project) && asked.nodes.iter().any(|(_, known)| known == node)
        };
        let nodes_of = |id: &String| count(self.nodes.keys().filter(|(project, _)| project == id));
        let node_counts = projects.keys().map(|id| (id.clone(), nodes_of(id))).filter(|(_, count)| *count > 0).collect();
        Some(LoadedControlPlane {
            asked: asked.clone(),
            agents: self.agents.iter().filter(|(name, _)| asked.agents.contains(*name)).map(|(k, v)| (k.clone(), v.clone())).collect(),
            agent_count: count(self.agents.keys()),
            projects,
            project_count: count(self.projects.keys()),
            nodes: self.nodes.iter().filter(|(key, _)| of_nodes(key)).map(|(k, v)| (k.clone(), v.clone())).collect(),
            node_counts,
        })
    }

    pub fn save(&mut self, set: &WorkingSet) {
        let dirty = &set.dirty.control_plane;
        self.agents.retain(|name, _| !dirty.removed_agents.contains(name));
        self.projects.retain(|id, _| !dirty.removed_projects.contains(id));
        self.nodes.retain(|(project, _), _| !dirty.removed_projects.contains(project));
        self.memories.retain(|(project, _), _| !dirty.removed_projects.contains(project));
        let leads = |project: &String, node: &String| self.projects.get(project).is_some_and(|known| known.leader.as_ref() == Some(node));
        self.nodes.retain(|(project, node), row| {
            dirty.removed_nodes.get(project).is_none_or(|seen_before| row.last_seen >= *seen_before || leads(project, node))
        });
        if let Some(loaded) = &set.loaded.control_plane {
            self.agents.extend(dirty.agents.iter().filter_map(|name| Some((name.clone(), loaded.agents.get(name)?.clone()))));
            self.projects.extend(dirty.projects.iter().filter_map(|id| Some((id.clone(), loaded.projects.get(id)?.clone()))));
            self.nodes.extend(dirty.nodes.iter().filter_map(|key| Some((key.clone(), loaded.nodes.get(key)?.clone()))));
        }
        for memory in &dirty.memories {
            let (project, version) = (memory.version.canonical_id.clone(), memory.version.version);
            self.memories.retain(|(known, number), _| *known != project || *number > version - VERSIONS_KEPT);
            self.memories.insert((project, version), memory.clone());
        }
        self.jobs.extend(dirty.jobs.iter().cloned());
    }

    pub fn newest_memory(&self, project: &str) -> Option<&NewMemory> {
        self.memories.iter().rfind(|((known, _), _)| known == project).map(|(_, memory)| &**memory)
    }
}

/// A command of the control plane, about a few agents and projects.
pub fn command(which: usize, at: usize) -> Op {
    let (node, project) = (format!("n{}", at % 3), format!("p{}", at % 2));
    let canonical_id = format!("id-{project}");
    let job = NewJob {
        action: JobAction::Push,
        project: project.clone(),
        agent: node.clone(),
        canonical_id: canonical_id.clone(),
        status: JobStatus::Failed,
        detail: "why".into(),
        stdout: String::new(),
        stderr: "said".into(),
        returncode: 1,
        dryrun: at.is_multiple_of(4),
        created_at: 5,
    };
    match which % 8 {
        0 => Op::RegisterAgent(op::RegisterAgent {
            agent: Agent {
                name: node,
                url: String::new(),
                status: WorkerStatus::Online,
                capabilities: "{}".into(),
                details: "{}".into(),
                obs_count: 0,
                db_sha: String::new(),
                ip_addrs: Vec::new(),
                registered_at: 0,
                last_seen: None,
            },
            is_repeatable: false,
        }),
        1 => Op::RemoveAgent(op::RemoveAgent { name: node }),
        2 => Op::RegisterProject(op::RegisterProject { name: project, canonical_id }),
        3 if at.is_multiple_of(5) => Op::RemoveProject(op::RemoveProject { project }),
        3 | 4 => Op::RecordNode(op::RecordNode {
            canonical_id,
            name: if at.is_multiple_of(3) { project } else { format!("id-{project}") },
            node_id: node,
            obs_count: Some(i64::try_from(at).expect("small")),
            db_sha: (at.is_multiple_of(2)).then(|| "sha".into()),
            ip_addrs: Some(vec!["192.0.2.1".into()]),
            project_id: None,
        }),
        5 => {
            let lease_ms = if at.is_multiple_of(2) { 30_000 } else { 3_600_000 };
            Op::SelectLeader(op::SelectLeader { canonical_id, node_id: node, lease_ms, term: (at.is_multiple_of(4)).then_some(1) })
        }
        6 => Op::StoreMemory(op::StoreMemory {
            canonical_id,
            node_id: node,
            term: i64::try_from(at % 3).expect("small"),
            sha256: format!("sha {at}"),
            bytes: 3,
            content: "bWVt".into(),
            job,
        }),
        _ => Op::RecordJob(op::RecordJob { job }),
    }
}
