//! The control plane's rows of a batch: their lock, the requested rows, and how many rows there are.

use std::collections::BTreeMap;

use bloom_core::command::RowKeys;
use bloom_core::control_plane::{Agent, Node, Project};
use bloom_core::working_set::LoadedControlPlane;

use super::Load;
use crate::control_plane::{AGENT, NODE, PROJECT};
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement};
use crate::sql::table::{ReadRow as _, RowType};
use crate::{all, one};

statement!(HOLD, |d| "SELECT {} IS NULL", d.lock_control_plane());

fn agents(d: Kind, columns: &str) -> String {
    format!("SELECT {columns} FROM membridge_agents WHERE name {}", d.any(Type::Text, 1))
}
fn projects(d: Kind, columns: &str) -> String {
    format!("SELECT {columns} FROM membridge_projects WHERE canonical_id {0} OR name {0}", d.any(Type::Text, 1))
}
fn nodes(d: Kind, columns: &str) -> String {
    format!("SELECT {columns} FROM membridge_nodes WHERE canonical_id {} AND node_id {}", d.any(Type::Text, 1), d.any(Type::Text, 2))
}
fn locked(rows: &RowType, select: fn(Kind, &str) -> String, d: Kind, lock: &str) -> String {
    format!("{} ORDER BY {} {lock}", select(d, &rows.names("")), rows.columns[0].name)
}

statement!(LOCK_AGENTS, |d| "{}", locked(&AGENT, agents, d, d.lock()));
statement!(LOCK_FREE_AGENTS, |d| "{}", locked(&AGENT, agents, d, d.skip_locked()));
statement!(AGENTS_THERE, |d| "{}", agents(d, "count(*)"));
statement!(LOCK_PROJECTS, |d| "{}", locked(&PROJECT, projects, d, d.lock()));
statement!(LOCK_FREE_PROJECTS, |d| "{}", locked(&PROJECT, projects, d, d.skip_locked()));
statement!(PROJECTS_THERE, |d| "{}", projects(d, "count(*)"));
statement!(LOCK_NODES, |d| "{}", locked(&NODE, nodes, d, d.lock()));
statement!(LOCK_FREE_NODES, |d| "{}", locked(&NODE, nodes, d, d.skip_locked()));
statement!(NODES_THERE, |d| "{}", nodes(d, "count(*)"));
statement!(COUNT, "SELECT (SELECT count(*) FROM membridge_agents), (SELECT count(*) FROM membridge_projects)");
statement!(
    COUNT_NODES,
    |d| "SELECT canonical_id, count(*) FROM membridge_nodes WHERE canonical_id {} GROUP BY canonical_id",
    d.any(Type::Text, 1)
);

impl Load<'_> {
    /// Keeps others from changing the control plane until the end of the transaction. The rows are locked too, so that a row that another
    /// program keeps locked is noticed now, and not when it is to be written.
    pub(super) async fn lock_control_plane(&mut self, keys: &RowKeys) -> Result<(), Error> {
        let asked = &keys.control_plane;
        if asked.is_empty() {
            return Ok(());
        }
        self.conn.fetch(&HOLD, Args::new()).await?;
        let free = self.skip_locked;
        let of_agents = || Args::new().texts(&asked.agents);
        let agents = all(&self.conn.fetch(if free { &LOCK_FREE_AGENTS } else { &LOCK_AGENTS }, of_agents()).await?, Agent::read)?;
        let of_projects = || Args::new().texts(&asked.projects);
        let projects = all(&self.conn.fetch(if free { &LOCK_FREE_PROJECTS } else { &LOCK_PROJECTS }, of_projects()).await?, Project::read)?;
        let of_nodes = || {
            let projects = asked.nodes.iter().map(|(project, _)| project);
            Args::new().texts(projects).texts(asked.nodes.iter().map(|(_, node)| node))
        };
        let nodes = all(&self.conn.fetch(if free { &LOCK_FREE_NODES } else { &LOCK_NODES }, of_nodes()).await?, Node::read)?;
        if free {
            let found = i64::try_from(agents.len() + projects.len() + nodes.len()).unwrap_or(i64::MAX);
            let mut there: i64 = 0;
            for (statement, args) in [(&AGENTS_THERE, of_agents()), (&PROJECTS_THERE, of_projects()), (&NODES_THERE, of_nodes())] {
                there += one(&self.conn.fetch(statement, args).await?, |row| row.take::<i64>())?;
            }
            self.loaded.locked_control_plane = found < there;
            if self.loaded.locked_control_plane {
                return Ok(());
            }
        }
        let (agent_count, project_count) = one(&self.conn.fetch(&COUNT, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))?;
        let counted = self.conn.fetch(&COUNT_NODES, Args::new().texts(projects.iter().map(|project| &project.canonical_id))).await?;
        let node_counts: BTreeMap<String, i64> = all(&counted, |row| Ok((row.take()?, row.take()?)))?.into_iter().collect();
        self.loaded.control_plane = Some(LoadedControlPlane {
            asked: asked.clone(),
            agents: agents.into_iter().map(|agent| (agent.name.clone(), agent)).collect(),
            agent_count,
            projects: projects.into_iter().map(|project| (project.canonical_id.clone(), project)).collect(),
            project_count,
            nodes: nodes.into_iter().map(|node| ((node.canonical_id.clone(), node.node_id.clone()), node)).collect(),
            node_counts,
        });
        Ok(())
    }
}
