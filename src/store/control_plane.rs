//! The rows of the control plane: how they are declared, written by a batch, and read for requests.

use std::collections::BTreeMap;

use crate::batch::script::Script;
use crate::error::Error;
use crate::sql::args::{Args, Bulk};
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement, upsert};
use crate::sql::table::{ReadRow as _, RowType, WriteRow, row};
use crate::{Store, all, first};
use bloom_core::Ms;
use bloom_core::control_plane::{Agent, JOBS_KEPT, Job, MemoryVersion, Node, Project, VERSIONS_KEPT};
use bloom_core::working_set::WorkingSet;
use uuid::Uuid;

row! {
    pub(crate) AGENT: membridge_agents as membridge_agents_row of agent: Agent {
        name, url, status, capabilities, details, obs_count, db_sha, ip_addrs, registered_at, last_seen
    }
}
row! {
    pub(crate) PROJECT: membridge_projects as membridge_projects_row of project: Project {
        canonical_id, name, source, created_at, last_seen, leader, term, lease_ms, lease_until, memory_version, memory_sha
    }
}
row! {
    pub(crate) NODE: membridge_nodes as membridge_nodes_row of node: Node {
        canonical_id, node_id, obs_count, db_sha, ip_addrs, project_id, last_seen, registered_at
    }
}
row! {
    pub(crate) struct Memory<'a>: membridge_memories as membridge_memories_row {
        canonical_id: &'a str, version: i64, node_id: &'a str, term: i64, sha256: &'a str, bytes: i64, created_at: Ms, content: &'a str
    }
}
row! { VERSION of MemoryVersion { canonical_id, version, node_id, term, sha256, bytes, created_at } }
row! {
    pub(crate) JOB: membridge_jobs as membridge_jobs_row of job: Job {
        id, action, project, agent, canonical_id, status, detail, stdout, stderr, returncode, dryrun, created_at, finished_at, request_id
    }
}

/// The `ON CONFLICT` clause for nodes, whose key has two columns.
fn upsert_node() -> String {
    let sets: Vec<_> = NODE.all_but(&["canonical_id", "node_id"]).iter().map(|name| format!("{name} = excluded.{name}")).collect();
    format!("ON CONFLICT (canonical_id, node_id) DO UPDATE SET {}", sets.join(", "))
}

fn remove_of_projects(d: Kind, table: &str) -> String {
    format!("DELETE FROM {table} WHERE canonical_id {}", d.any(Type::Text, 1))
}

statement!(REMOVE_AGENTS, |d| "DELETE FROM membridge_agents WHERE name {}", d.any(Type::Text, 1));
statement!(REMOVE_PROJECTS, |d| "{}", remove_of_projects(d, "membridge_projects"));
statement!(REMOVE_NODES, |d| "{}", remove_of_projects(d, "membridge_nodes"));
statement!(REMOVE_MEMORIES, |d| "{}", remove_of_projects(d, "membridge_memories"));
statement!(
    REMOVE_SILENT_NODES,
    "DELETE FROM membridge_nodes WHERE canonical_id = $1 AND last_seen < $2 AND NOT EXISTS (SELECT 1 FROM membridge_projects p \
    WHERE p.canonical_id = membridge_nodes.canonical_id AND p.leader = membridge_nodes.node_id)"
);
statement!(UPSERT_AGENTS, |d| "{}", d.insert(&AGENT, &upsert(&AGENT, "name")));
statement!(UPSERT_PROJECTS, |d| "{}", d.insert(&PROJECT, &upsert(&PROJECT, "canonical_id")));
statement!(UPSERT_NODES, |d| "{}", d.insert(&NODE, &upsert_node()));
statement!(INSERT_MEMORIES, |d| "{}", d.insert(Memory::ROW, ""));
statement!(PRUNE_MEMORIES, "DELETE FROM membridge_memories WHERE canonical_id = $1 AND version <= $2");
statement!(INSERT_JOBS, |d| "{}", d.insert(&JOB, ""));
statement!(
    PRUNE_JOBS,
    |_d| "DELETE FROM membridge_jobs WHERE id <= (SELECT id FROM membridge_jobs ORDER BY id DESC LIMIT 1 OFFSET {JOBS_KEPT})"
);

/// Adds the statements that write what the batch changed. Removals come first, because a new row may have the key of a removed one.
pub(crate) fn save<'a>(script: &mut Script<'a>, set: &'a WorkingSet) {
    let dirty = &set.dirty.control_plane;
    if !dirty.removed_agents.is_empty() {
        script.ordered(&REMOVE_AGENTS, Args::new().texts(&dirty.removed_agents));
    }
    if !dirty.removed_projects.is_empty() {
        for statement in [&REMOVE_PROJECTS, &REMOVE_NODES, &REMOVE_MEMORIES] {
            script.ordered(statement, Args::new().texts(&dirty.removed_projects));
        }
    }
    for (project, seen_before) in &dirty.removed_nodes {
        script.ordered(&REMOVE_SILENT_NODES, Args::new().text(project).int(*seen_before));
    }
    let Some(loaded) = set.loaded.control_plane.as_ref() else { return save_jobs(script, &dirty.jobs) };
    let agents = Bulk::of(dirty.agents.iter().filter_map(|name| loaded.agents.get(name)));
    let projects = Bulk::of(dirty.projects.iter().filter_map(|id| loaded.projects.get(id)));
    let nodes = Bulk::of(dirty.nodes.iter().filter_map(|key| loaded.nodes.get(key)));
    for (statement, rows) in [(&UPSERT_AGENTS, agents), (&UPSERT_PROJECTS, projects), (&UPSERT_NODES, nodes)] {
        if !rows.is_empty() {
            script.ordered(statement, Args::new().bulk(rows));
        }
    }
    let memories = Bulk::of(dirty.memories.iter().map(|memory| {
        let MemoryVersion { canonical_id, version, node_id, term, sha256, bytes, created_at } = &memory.version;
        let (version, term, bytes, created_at) = (*version, *term, *bytes, *created_at);
        Memory { canonical_id, version, node_id, term, sha256, bytes, created_at, content: &memory.content }
    }));
    if !memories.is_empty() {
        script.ordered(&INSERT_MEMORIES, Args::new().bulk(memories));
    }
    let newest: BTreeMap<&str, i64> = dirty.memories.iter().map(|memory| (&*memory.version.canonical_id, memory.version.version)).collect();
    for (project, version) in newest.into_iter().filter(|(_, version)| *version > VERSIONS_KEPT) {
        script.ordered(&PRUNE_MEMORIES, Args::new().text(project).int(version - VERSIONS_KEPT));
    }
    save_jobs(script, &dirty.jobs);
}

fn save_jobs<'a>(script: &mut Script<'a>, jobs: &'a [Job]) {
    if !jobs.is_empty() {
        script.ordered(&INSERT_JOBS, Args::new().bulk(Bulk::of(jobs)));
        script.ordered(&PRUNE_JOBS, Args::new());
    }
}

fn columns(rows: &RowType, prefix: &str) -> String {
    rows.names(prefix)
}

statement!(AGENTS, |_d| "SELECT {} FROM membridge_agents ORDER BY name", columns(&AGENT, ""));
statement!(ONE_AGENT, |_d| "SELECT {} FROM membridge_agents WHERE name = $1", columns(&AGENT, ""));
statement!(
    PROJECTS,
    |_d| "SELECT {}, (SELECT count(*) FROM membridge_nodes n WHERE n.canonical_id = p.canonical_id), \
    (SELECT m.created_at FROM membridge_memories m WHERE m.canonical_id = p.canonical_id AND m.version = p.memory_version) \
    FROM membridge_projects p ORDER BY p.created_at DESC, p.canonical_id",
    columns(&PROJECT, "p.")
);
statement!(
    ONE_PROJECT,
    |_d| "SELECT {} FROM membridge_projects WHERE canonical_id = $1 OR name = $1 ORDER BY CASE WHEN name = $1 THEN 0 ELSE 1 END LIMIT 1",
    columns(&PROJECT, "")
);
statement!(PROJECT_OF_ID, |_d| "SELECT {} FROM membridge_projects WHERE canonical_id = $1", columns(&PROJECT, ""));
statement!(NODES, |_d| "SELECT {} FROM membridge_nodes WHERE canonical_id = $1 ORDER BY node_id", columns(&NODE, ""));
statement!(NEWEST_MEMORY, |_d| "SELECT {VERSION}, content FROM membridge_memories WHERE canonical_id = $1 ORDER BY version DESC LIMIT 1");
statement!(VERSIONS, |_d| "SELECT {VERSION} FROM membridge_memories WHERE canonical_id = $1 ORDER BY version DESC");
statement!(JOBS, |_d| "SELECT {} FROM membridge_jobs ORDER BY id DESC LIMIT $1", columns(&JOB, ""));
statement!(ONE_JOB, |_d| "SELECT {} FROM membridge_jobs WHERE id = $1", columns(&JOB, ""));
statement!(COUNTS, "SELECT (SELECT count(*) FROM membridge_projects), (SELECT count(*) FROM membridge_agents)");

statement!(HAS_WORK, "SELECT EXISTS (SELECT 1 FROM tasks) OR EXISTS (SELECT 1 FROM workers)");

/// How many rows the control plane has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlPlaneCounts {
    /// Projects that the control plane knows.
    pub projects: i64,
    /// Registered agents.
    pub agents: i64,
}

impl Store {
    /// The registered agents, by name.
    pub async fn agents(&self) -> Result<Vec<Agent>, Error> {
        all(&self.pool().fetch(&AGENTS, Args::new()).await?, Agent::read)
    }

    /// The agent of this name; `None` if none is registered.
    pub async fn agent(&self, name: &str) -> Result<Option<Agent>, Error> {
        first(&self.pool().fetch(&ONE_AGENT, Args::new().text(name)).await?, Agent::read)
    }

    /// The projects of the control plane, newest first, each with the number of its nodes and the time when its newest memory was stored.
    pub async fn memory_projects(&self) -> Result<Vec<(Project, i64, Option<Ms>)>, Error> {
        all(&self.pool().fetch(&PROJECTS, Args::new()).await?, |row| Ok((Project::read(row)?, row.take()?, row.take()?)))
    }

    /// The project with this name, or else the project with this canonical id.
    pub async fn memory_project_named(&self, name: &str) -> Result<Option<Project>, Error> {
        first(&self.pool().fetch(&ONE_PROJECT, Args::new().text(name)).await?, Project::read)
    }

    /// The project with this canonical id.
    pub async fn memory_project(&self, canonical_id: &str) -> Result<Option<Project>, Error> {
        first(&self.pool().fetch(&PROJECT_OF_ID, Args::new().text(canonical_id)).await?, Project::read)
    }

    /// The nodes of a project, by name.
    pub async fn nodes_of(&self, canonical_id: &str) -> Result<Vec<Node>, Error> {
        all(&self.pool().fetch(&NODES, Args::new().text(canonical_id)).await?, Node::read)
    }

    /// The newest snapshot of a project's memory, with its content as base64.
    pub async fn newest_memory(&self, canonical_id: &str) -> Result<Option<(MemoryVersion, String)>, Error> {
        let found = self.pool().fetch(&NEWEST_MEMORY, Args::new().text(canonical_id)).await?;
        first(&found, |row| Ok((MemoryVersion::read(row)?, row.take()?)))
    }

    /// The versions of a project's memory that are kept, newest first.
    pub async fn memory_versions(&self, canonical_id: &str) -> Result<Vec<MemoryVersion>, Error> {
        all(&self.pool().fetch(&VERSIONS, Args::new().text(canonical_id)).await?, MemoryVersion::read)
    }

    /// The newest jobs first.
    pub async fn jobs(&self, limit: i64) -> Result<Vec<Job>, Error> {
        all(&self.pool().fetch(&JOBS, Args::new().int(limit)).await?, Job::read)
    }

    /// A job; `None` if there is none with this id.
    pub async fn job(&self, id: Uuid) -> Result<Option<Job>, Error> {
        first(&self.pool().fetch(&ONE_JOB, Args::new().uuid(id)).await?, Job::read)
    }

    /// Whether the database contains tasks or workers of a server.
    pub async fn has_work(&self) -> Result<bool, Error> {
        Ok(first(&self.pool().fetch(&HAS_WORK, Args::new()).await?, |row| row.take())?.unwrap_or_default())
    }

    /// The numbers of projects and agents.
    pub async fn control_plane_counts(&self) -> Result<ControlPlaneCounts, Error> {
        let found = first(&self.pool().fetch(&COUNTS, Args::new()).await?, |row| {
            Ok(ControlPlaneCounts { projects: row.take()?, agents: row.take()? })
        })?;
        Ok(found.unwrap_or_default())
    }
}
