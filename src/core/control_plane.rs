//! What the control plane of this program keeps: agents, projects with their nodes and leaders, snapshots of memory, and jobs.

use std::sync::Arc;

use uuid::Uuid;

use super::Ms;
use super::words::words;
use super::worker::WorkerStatus;

/// The most agents that are registered at a time. Their list is one answer, so it must fit into memory.
pub const MAX_AGENTS: i64 = 1_000;
pub const MAX_PROJECTS: i64 = super::project::MAX_PROJECTS as i64;
/// The most nodes of one project.
pub const MAX_NODES: i64 = 1_000;
/// Nodes that were silent for longer than this are removed when their project gets a new node or is full, unless they lead.
pub const NODES_KEPT_MS: Ms = 7 * 86_400_000;
/// How many versions of a project's memory are kept.
pub const VERSIONS_KEPT: i64 = 10;
/// How many jobs are kept.
pub const JOBS_KEPT: i64 = 1_000;
/// Bytes of one snapshot of a memory.
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
    pub name: String,
    /// Without a trailing slash; empty if it has none.
    pub url: String,
    /// As it was registered; see [`shown_status`](Self::shown_status).
    pub status: WorkerStatus,
    /// A JSON object, kept as it was sent.
    pub capabilities: String,
    /// A JSON object with what the agent says of its machine and its version.
    pub details: String,
    pub obs_count: i64,
    pub db_sha: String,
    pub ip_addrs: Vec<String>,
    pub registered_at: Ms,
    /// The last heartbeat of the node with this name.
    pub last_seen: Option<Ms>,
}

impl Agent {
    /// An agent that sends heartbeats is offline when they stop. One that never sent any keeps the status of its registration.
    pub fn shown_status(&self, now: Ms) -> WorkerStatus {
        let is_silent = self.last_seen.is_some_and(|seen| now.saturating_sub(seen) > AGENT_OFFLINE_AFTER_MS);
        if is_silent { WorkerStatus::Offline } else { self.status }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The first 16 hexadecimal digits of the SHA-256 digest of the name.
    pub canonical_id: String,
    /// Its canonical id, until its name is known.
    pub name: String,
    pub source: Source,
    pub created_at: Ms,
    pub last_seen: Option<Ms>,
    /// The node that was chosen last.
    pub leader: Option<String>,
    /// It rises with each choice: what was read under an earlier term is refused.
    pub term: i64,
    pub lease_ms: i64,
    /// Until when the leader leads. Its heartbeats renew this.
    pub lease_until: Option<Ms>,
    /// The newest version of its memory; 0 = there is none.
    pub memory_version: i64,
    pub memory_sha: String,
}

impl Project {
    /// The node that leads the project now.
    pub fn primary(&self, now: Ms) -> Option<&str> {
        self.leader.as_deref().filter(|_| self.lease_until.is_some_and(|until| until > now))
    }

    pub fn role(&self, node: &str, now: Ms) -> Role {
        match self.primary(now) {
            None => Role::Unknown,
            Some(primary) if primary == node => Role::Primary,
            Some(_) => Role::Secondary,
        }
    }

    /// Extends the lease of the leader from now on, never shortens it.
    pub fn renew(&mut self, now: Ms) {
        let until = now.saturating_add(self.lease_ms);
        self.lease_until = self.lease_until.map(|known| known.max(until));
    }
}

/// A machine that has a copy of the project's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub canonical_id: String,
    pub node_id: String,
    pub obs_count: i64,
    pub db_sha: String,
    pub ip_addrs: Vec<String>,
    pub project_id: Option<String>,
    pub last_seen: Ms,
    pub registered_at: Ms,
}

/// One version of a project's memory, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryVersion {
    pub canonical_id: String,
    pub version: i64,
    pub node_id: String,
    /// The term in which its node led the project.
    pub term: i64,
    pub sha256: String,
    pub bytes: i64,
    pub created_at: Ms,
}

/// A version that a batch stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMemory {
    pub version: MemoryVersion,
    /// The snapshot as base64.
    pub content: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: Uuid,
    pub action: JobAction,
    pub project: String,
    pub agent: String,
    pub canonical_id: String,
    pub status: JobStatus,
    pub detail: String,
    pub stdout: String,
    pub stderr: String,
    pub returncode: i64,
    /// Everything was checked, and nothing changed.
    pub dryrun: bool,
    pub created_at: Ms,
    pub finished_at: Ms,
    pub request_id: Option<String>,
}

/// A job as it is reported: it gets its id and the time of its end when it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    pub action: JobAction,
    pub project: String,
    pub agent: String,
    pub canonical_id: String,
    pub status: JobStatus,
    pub detail: String,
    pub stdout: String,
    pub stderr: String,
    pub returncode: i64,
    pub dryrun: bool,
    pub created_at: Ms,
}
