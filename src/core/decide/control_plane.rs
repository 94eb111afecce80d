//! The control plane: agents and projects that are registered, nodes that send heartbeats, the leader of a project, and its memory.

use std::sync::Arc;

use crate::Ms;
use crate::control_plane::{
    Agent, Job, JobStatus, MAX_AGENTS, MAX_NODES, MAX_PROJECTS, MemoryVersion, NODES_KEPT_MS, NewJob, NewMemory, Node, Project, Role,
    Source,
};
use crate::operation::{Operation, Urgency, Weight};
use crate::rejection::Rejection;
use crate::reply::{ChangedProject, StoredMemory};
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, WorkingSet};

/// Adds an agent with a new name. If the agent has an instance, repeating its registration changes nothing. It repeats the registration to
/// find out whether the first one was lost.
#[derive(Clone, Debug)]
pub struct RegisterAgent {
    /// `registered_at` and `last_seen` are set here.
    pub agent: Agent,
    /// Whether its details contain the instance of its agent.
    pub is_repeatable: bool,
}

/// Whether the two registrations are the same, apart from what heartbeats change.
fn is_same(one: &Agent, other: &Agent) -> bool {
    one.url == other.url && one.status == other.status && one.capabilities == other.capabilities && one.details == other.details
}

impl Operation for RegisterAgent {
    type Reply = Agent;

    fn weight(&self) -> Weight {
        Weight { rows: 4, bytes: 4096 }
    }

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.control_plane.agents.insert(self.agent.name.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Agent, Halt> {
        if let Some(found) = set.find_agent(&self.agent.name)? {
            if self.is_repeatable && is_same(found, &self.agent) {
                return Ok(found.clone());
            }
            return Err(Rejection::AgentExists(self.agent.name.clone()).into());
        }
        if set.agent_count()? >= MAX_AGENTS {
            return Err(Rejection::TooManyAgents.into());
        }
        let agent = Agent { registered_at: set.now(), last_seen: None, ..self.agent.clone() };
        set.put_agent(agent.clone());
        Ok(agent)
    }
}

/// Removes an agent. It remains a node of its projects.
#[derive(Clone, Debug)]
pub struct RemoveAgent {
    /// The name of the agent.
    pub name: String,
}

impl Operation for RemoveAgent {
    type Reply = ();

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.control_plane.agents.insert(self.name.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        set.find_agent(&self.name)?.ok_or(Rejection::AgentNotFound)?;
        set.drop_agent(&self.name);
        Ok(())
    }
}

/// The heartbeat of a node of a project. It creates the project if necessary, and renews the lease of its leader.
#[derive(Clone, Debug)]
pub struct RecordNode {
    /// The project for which the node reports.
    pub canonical_id: String,
    /// The name that a new project gets, if it is free.
    pub name: String,
    /// The name of the node. If an agent has this name, the heartbeat counts as the agent's sign of life.
    pub node_id: String,
    /// The number of observations of the node's copy; `None` keeps its value.
    pub obs_count: Option<i64>,
    /// The digest of the node's copy of the memory; `None` keeps its value.
    pub db_sha: Option<String>,
    /// The node's addresses; `None` keeps their value.
    pub ip_addrs: Option<Vec<String>>,
    /// The node's own name for the project; `None` keeps its value.
    pub project_id: Option<String>,
}

impl Operation for RecordNode {
    type Reply = Role;

    fn weight(&self) -> Weight {
        Weight { rows: 4, bytes: 4096 }
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.control_plane.agents.insert(self.node_id.clone());
        keys.control_plane.projects.extend([self.canonical_id.clone(), self.name.clone()]);
        keys.control_plane.nodes.insert((self.canonical_id.clone(), self.node_id.clone()));
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Role, Halt> {
        let now = set.now();
        let mut project = match set.memory_project(&self.canonical_id)? {
            Some(project) => project.clone(),
            None if set.memory_project_count()? >= MAX_PROJECTS => return Err(Rejection::TooManyProjects.into()),
            None => {
                let name = if set.memory_project_named(&self.name)?.is_none() { &self.name } else { &self.canonical_id };
                new_project(&self.canonical_id, name, Source::Heartbeat, now)
            }
        };
        let known = set.find_node(&self.canonical_id, &self.node_id)?.cloned();
        let is_full = set.node_count(&self.canonical_id)? >= MAX_NODES;
        if known.is_none() && is_full {
            return Err(Rejection::TooManyNodes.into());
        }
        let agent = set.find_agent(&self.node_id)?.cloned();
        if known.is_none() || is_full {
            set.dirty.control_plane.removed_nodes.insert(self.canonical_id.clone(), now.saturating_sub(NODES_KEPT_MS));
        }
        let mut node = known.unwrap_or_else(|| Node {
            canonical_id: self.canonical_id.clone(),
            node_id: self.node_id.clone(),
            obs_count: 0,
            db_sha: String::new(),
            ip_addrs: Vec::new(),
            project_id: None,
            last_seen: now,
            registered_at: now,
        });
        node.obs_count = self.obs_count.unwrap_or(node.obs_count);
        node.db_sha.clone_from(self.db_sha.as_ref().unwrap_or(&node.db_sha.clone()));
        node.ip_addrs.clone_from(self.ip_addrs.as_ref().unwrap_or(&node.ip_addrs.clone()));
        node.project_id = self.project_id.clone().or(node.project_id);
        node.last_seen = now;
        let role = project.role(&self.node_id, now);
        if role == Role::Primary {
            project.renew(now);
        }
        project.last_seen = Some(now);
        if let Some(agent) = agent {
            let (obs_count, db_sha, ip_addrs) = (node.obs_count, node.db_sha.clone(), node.ip_addrs.clone());
            set.put_agent(Agent { obs_count, db_sha, ip_addrs, last_seen: Some(now), ..agent });
        }
        set.put_memory_project(project);
        set.put_node(node);
        Ok(role)
    }
}

fn new_project(canonical_id: &str, name: &str, source: Source, now: Ms) -> Project {
    Project {
        canonical_id: canonical_id.to_owned(),
        name: name.to_owned(),
        source,
        created_at: now,
        last_seen: None,
        leader: None,
        term: 0,
        lease_ms: 0,
        lease_until: None,
        memory_version: 0,
        memory_sha: String::new(),
    }
}

/// Adds a project, or sets the name of one that heartbeats created.
#[derive(Clone, Debug)]
pub struct RegisterProject {
    /// The name that the project gets. No other project may have it.
    pub name: String,
    /// The id that is derived from the name.
    pub canonical_id: String,
}

impl Operation for RegisterProject {
    type Reply = ChangedProject;

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.control_plane.projects.extend([self.name.clone(), self.canonical_id.clone()]);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ChangedProject, Halt> {
        let of_name = set.memory_project_named(&self.name)?;
        let known = set.memory_project(&self.canonical_id)?;
        if of_name.is_some_and(|other| other.canonical_id != self.canonical_id) || known.is_some_and(|known| known.source == Source::Manual)
        {
            return Err(Rejection::ProjectExists(self.name.clone()).into());
        }
        let project = match known {
            Some(known) => Project { name: self.name.clone(), source: Source::Manual, ..known.clone() },
            None if set.memory_project_count()? >= MAX_PROJECTS => return Err(Rejection::TooManyProjects.into()),
            None => new_project(&self.canonical_id, &self.name, Source::Manual, set.now()),
        };
        set.put_memory_project(project.clone());
        Ok(ChangedProject { node_count: set.node_count(&project.canonical_id)?, project })
    }
}

/// Removes a project with its nodes and memories, by its name or its canonical id.
#[derive(Clone, Debug)]
pub struct RemoveProject {
    /// The name or the canonical id of the project. If both match, the name wins.
    pub project: String,
}

impl Operation for RemoveProject {
    type Reply = ();

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.control_plane.projects.insert(self.project.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let canonical_id = set.memory_project_named(&self.project)?.ok_or(Rejection::ProjectNotFound)?.canonical_id.clone();
        set.drop_memory_project(&canonical_id);
        Ok(())
    }
}

/// Gives the leadership of a project to a node for a limited time. The term of the previous leader ends.
#[derive(Clone, Debug)]
pub struct SelectLeader {
    /// The canonical id of the project.
    pub canonical_id: String,
    /// The node that will lead: a node of the project, or a registered agent.
    pub node_id: String,
    /// How long the leadership lasts without a heartbeat of the leader, in ms.
    pub lease_ms: i64,
    /// The term that the caller has read, if only that term may be replaced. The selection then always begins a new term, so that nobody
    /// else who has read the same term can be selected.
    pub term: Option<i64>,
}

impl Operation for SelectLeader {
    type Reply = ChangedProject;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.control_plane.projects.insert(self.canonical_id.clone());
        keys.control_plane.agents.insert(self.node_id.clone());
        keys.control_plane.nodes.insert((self.canonical_id.clone(), self.node_id.clone()));
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ChangedProject, Halt> {
        let mut project = set.memory_project(&self.canonical_id)?.ok_or(Rejection::ProjectNotFound)?.clone();
        if set.find_node(&project.canonical_id, &self.node_id)?.is_none() && set.find_agent(&self.node_id)?.is_none() {
            return Err(Rejection::NodeNotFound(self.node_id.clone()).into());
        }
        if let Some(seen) = self.term.filter(|seen| *seen != project.term) {
            return Err(Rejection::TermChanged { seen, now: project.term }.into());
        }
        // Otherwise a node that already leads keeps its term, so that what it has begun goes on.
        if self.term.is_some() || project.primary(set.now()) != Some(&self.node_id) {
            project.term += 1;
        }
        project.leader = Some(self.node_id.clone());
        project.lease_ms = self.lease_ms;
        project.lease_until = Some(set.now().saturating_add(self.lease_ms));
        set.put_memory_project(project.clone());
        Ok(ChangedProject { node_count: set.node_count(&project.canonical_id)?, project })
    }
}

/// Stores a snapshot of the memory, if the node still leads the project in the term in which the snapshot was fetched.
#[derive(Clone, Debug)]
pub struct StoreMemory {
    /// The canonical id of the project.
    pub canonical_id: String,
    /// The node from which the snapshot was fetched.
    pub node_id: String,
    /// The term in which the node led the project before the snapshot was fetched.
    pub term: i64,
    /// The SHA-256 digest of the snapshot, in hexadecimal. If the newest version has the same digest, only the job is stored.
    pub sha256: String,
    /// The size of the snapshot in bytes, before its encoding as base64.
    pub bytes: i64,
    /// The snapshot as base64.
    pub content: Arc<str>,
    /// The record of the push; its status and detail are set here.
    pub job: NewJob,
}

impl Operation for StoreMemory {
    type Reply = StoredMemory;

    fn weight(&self) -> Weight {
        Weight { rows: 3, bytes: 1024 + self.content.len() }
    }

    fn urgency(&self) -> Urgency {
        Urgency::Bulk
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.control_plane.projects.insert(self.canonical_id.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<StoredMemory, Halt> {
        let mut project = set.memory_project(&self.canonical_id)?.ok_or(Rejection::ProjectNotFound)?.clone();
        leads(&project, &self.node_id, set.now())?;
        if project.term != self.term {
            return Err(Rejection::TermChanged { seen: self.term, now: project.term }.into());
        }
        let is_new = project.memory_version == 0 || project.memory_sha != self.sha256;
        if is_new {
            project.memory_version += 1;
            project.memory_sha.clone_from(&self.sha256);
            let version = MemoryVersion {
                canonical_id: project.canonical_id.clone(),
                version: project.memory_version,
                node_id: self.node_id.clone(),
                term: self.term,
                sha256: self.sha256.clone(),
                bytes: self.bytes,
                created_at: set.now(),
            };
            set.dirty.control_plane.memories.push(Arc::new(NewMemory { version, content: self.content.clone() }));
        }
        let version = project.memory_version;
        set.put_memory_project(project);
        let said = if is_new { "stored as" } else { "unchanged since" };
        let detail = format!("{said} version {version}: {} bytes, sha256 {}", self.bytes, self.sha256);
        let job = record(set, &NewJob { status: JobStatus::Completed, detail, ..self.job.clone() });
        Ok(StoredMemory { version, is_new, job })
    }
}

/// Checks that the node leads the project now.
fn leads(project: &Project, node: &str, now: Ms) -> Result<(), Halt> {
    match project.role(node, now) {
        Role::Primary => Ok(()),
        _ => Err(Rejection::NotPrimary { node: node.to_owned(), primary: project.primary(now).map(str::to_owned) }.into()),
    }
}

/// Stores the record of a job that did not store a memory.
#[derive(Clone, Debug)]
pub struct RecordJob {
    /// The job to record.
    pub job: NewJob,
}

impl Operation for RecordJob {
    type Reply = Job;

    fn weight(&self) -> Weight {
        Weight { rows: 4, bytes: 4096 }
    }

    fn urgency(&self) -> Urgency {
        Urgency::Bulk
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<Job, Halt> {
        Ok(record(set, &self.job))
    }
}

fn record(set: &mut WorkingSet, job: &NewJob) -> Job {
    let NewJob { action, project, agent, canonical_id, status, detail, stdout, stderr, returncode, dryrun, created_at } = job.clone();
    let (id, finished_at) = (set.ids.next_id(), set.now());
    let request_id = set.by.request_id.clone();
    let job = Job {
        id,
        action,
        project,
        agent,
        canonical_id,
        status,
        detail,
        stdout,
        stderr,
        returncode,
        dryrun,
        created_at,
        finished_at,
        request_id,
    };
    set.dirty.control_plane.jobs.push(job.clone());
    job
}
