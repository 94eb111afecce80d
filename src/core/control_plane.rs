//! What the control plane of this program keeps: agents, projects with their nodes and leaders, snapshots of memory, and jobs.

use std::sync::Arc;

use uuid::Uuid;

use super::Ms;
use super::words::words;
use super::worker::WorkerStatus;

/// The maximum number of registered agents. Their list is one answer, so it must fit into memory.
pub const MAX_AGENTS: i64 = 1_000;
/// The maximum number of projects that the control plane keeps. It is the same as for the projects that workers clone.
pub const MAX_PROJECTS: i64 = super::project::MAX_PROJECTS as i64;
/// The maximum number of nodes of one project.
pub const MAX_NODES: i64 = 1_000;
/// Nodes that have been silent for longer than this are removed when their project gets a new node or is full, unless they lead it.
pub const NODES_KEPT_MS: Ms = 7 * 86_400_000;
/// How many versions of a project's memory are kept.
pub const VERSIONS_KEPT: i64 = 10;
/// How many jobs are kept.
pub const JOBS_KEPT: i64 = 1_000;
/// The maximum size of one snapshot of a memory, in bytes.
pub const MAX_MEMORY_BYTES: usize = 16 << 20;
/// An agent that sent heartbeats and has been silent for longer than this is shown as offline.
pub const AGENT_OFFLINE_AFTER_MS: Ms = 60_000;

words! {
    /// How a project became known.
    Source { Manual = "manual", Heartbeat = "heartbeat" }
}

words! {
    /// What a node is in its project: unknown while nobody leads the project.
    Role { Primary = "primary", Secondary = "secondary", Unknown = "unknown" }
}

words! {
    /// What a job does.
    JobAction { Push = "push", Pull = "pull" }
}

words! {
    /// How a job ended.
    JobStatus { Completed = "completed", Failed = "failed" }
}

/// A registered agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// The agent's name, which is also its name as a node of projects.
    pub name: String,
    /// Without a trailing slash; empty if it has none.
    pub url: String,
    /// The status of its registration; see [`shown_status`](Self::shown_status).
    pub status: WorkerStatus,
    /// A JSON object, kept as it was sent.
    pub capabilities: String,
    /// A JSON object with what the agent reports about its machine and its version.
    pub details: String,
    /// How many observations its memory has, as reported by its heartbeats; 0 before the first.
    pub obs_count: i64,
    /// The digest of its memory database, as reported by its heartbeats; empty before the first.
    pub db_sha: String,
    /// Its addresses: those of its registration, until a heartbeat reports those of its node.
    pub ip_addrs: Vec<String>,
    /// When it was registered.
    pub registered_at: Ms,
    /// The last heartbeat of the node with this name.
    pub last_seen: Option<Ms>,
}

impl Agent {
    /// The status to show. An agent that sends heartbeats is offline when they stop. An agent that never sent one keeps the status of its
    /// registration.
    pub fn shown_status(&self, now: Ms) -> WorkerStatus {
        let is_silent = self.last_seen.is_some_and(|seen| now.saturating_sub(seen) > AGENT_OFFLINE_AFTER_MS);
        if is_silent { WorkerStatus::Offline } else { self.status }
    }
}

/// A project whose memory nodes share: its name, its leader, and the newest version of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The first 16 hexadecimal digits of the SHA-256 digest of the name.
    pub canonical_id: String,
    /// The name, or the canonical id while the name is unknown.
    pub name: String,
    /// How it became known; `manual` once somebody has registered it.
    pub source: Source,
    /// When it became known.
    pub created_at: Ms,
    /// When a node of it last sent a heartbeat; `None`: none has.
    pub last_seen: Option<Ms>,
    /// The node that was selected last.
    pub leader: Option<String>,
    /// Rises with each selection. Data that was read under an earlier term is refused.
    pub term: i64,
    /// How long a leadership lasts without a heartbeat of the leader, in ms; 0 before the first selection.
    pub lease_ms: i64,
    /// Until when the leader leads. Its heartbeats renew this.
    pub lease_until: Option<Ms>,
    /// The newest version of its memory; 0 = there is none.
    pub memory_version: i64,
    /// The SHA-256 digest of this version, in hexadecimal; empty if there is none.
    pub memory_sha: String,
}

impl Project {
    /// The node that leads the project now.
    pub fn primary(&self, now: Ms) -> Option<&str> {
        self.leader.as_deref().filter(|_| self.lease_until.is_some_and(|until| until > now))
    }

    /// The role of this node in the project now.
    pub fn role(&self, node: &str, now: Ms) -> Role {
        match self.primary(now) {
            None => Role::Unknown,
            Some(primary) if primary == node => Role::Primary,
            Some(_) => Role::Secondary,
        }
    }

    /// Extends the leader's lease, counted from now. Never shortens it.
    pub fn renew(&mut self, now: Ms) {
        let until = now.saturating_add(self.lease_ms);
        self.lease_until = self.lease_until.map(|known| known.max(until));
    }
}

/// A machine that has a copy of the project's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The project of which it is a node.
    pub canonical_id: String,
    /// The machine's name, which is that of its agent.
    pub node_id: String,
    /// How many observations its copy has, from the last heartbeat that reported it; 0 if none did.
    pub obs_count: i64,
    /// The digest of its copy, from the last heartbeat that reported it; empty if none did.
    pub db_sha: String,
    /// Its addresses, from the last heartbeat that reported them.
    pub ip_addrs: Vec<String>,
    /// The node's own name for the project; `None` if no heartbeat has reported it.
    pub project_id: Option<String>,
    /// When it last sent a heartbeat.
    pub last_seen: Ms,
    /// When it sent its first heartbeat for the project.
    pub registered_at: Ms,
}

/// One version of a project's memory, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryVersion {
    /// The project whose memory it is.
    pub canonical_id: String,
    /// Counted from 1 in each project.
    pub version: i64,
    /// The node from which the snapshot came.
    pub node_id: String,
    /// The term in which the node led the project.
    pub term: i64,
    /// The SHA-256 digest of the snapshot, in hexadecimal.
    pub sha256: String,
    /// The size of the snapshot in bytes, before its encoding as base64.
    pub bytes: i64,
    /// When it was stored.
    pub created_at: Ms,
}

/// A version that a batch stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMemory {
    /// The record of the version.
    pub version: MemoryVersion,
    /// The snapshot as base64.
    pub content: Arc<str>,
}

/// The record of one synchronization of a memory: a push stores what the leader has, a pull delivers what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The job's id, given when it is stored.
    pub id: Uuid,
    /// Whether the memory was stored or delivered.
    pub action: JobAction,
    /// The project, as the caller named it.
    pub project: String,
    /// The agent whose memory was fetched, or to which it was delivered.
    pub agent: String,
    /// The canonical id of the project.
    pub canonical_id: String,
    /// How the job ended.
    pub status: JobStatus,
    /// What was done, or why it failed, in one line.
    pub detail: String,
    /// What the agent answered to the delivery; empty for other jobs.
    pub stdout: String,
    /// Why it failed; empty if it did not.
    pub stderr: String,
    /// 0 if it succeeded, else 1.
    pub returncode: i64,
    /// Whether it was a dry run: everything was checked, and nothing changed.
    pub dryrun: bool,
    /// When the job began.
    pub created_at: Ms,
    /// When the job was stored, after its end.
    pub finished_at: Ms,
    /// The request that asked for the job; `None` if it had no id.
    pub request_id: Option<String>,
}

/// A job as it is reported. The job gets its id and its end time when it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Whether the memory was stored or delivered.
    pub action: JobAction,
    /// The project, as the caller named it.
    pub project: String,
    /// The agent whose memory was fetched, or to which it was delivered.
    pub agent: String,
    /// The canonical id of the project.
    pub canonical_id: String,
    /// How the job ended.
    pub status: JobStatus,
    /// What was done, or why it failed, in one line.
    pub detail: String,
    /// What the agent answered to the delivery; empty for other jobs.
    pub stdout: String,
    /// Why it failed; empty if it did not.
    pub stderr: String,
    /// 0 if it succeeded, else 1.
    pub returncode: i64,
    /// Whether it was a dry run: everything was checked, and nothing changed.
    pub dryrun: bool,
    /// When the job began.
    pub created_at: Ms,
}
