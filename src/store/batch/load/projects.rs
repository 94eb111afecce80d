//! The projects of a batch: their lock, their rows, and their clones.

use bloom_core::command::RowKeys;
use bloom_core::project::{Project, ProjectId, ProjectNode};
use bloom_core::working_set::{LoadedProjects, project_named};

use super::Load;
use crate::all;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement};
use crate::sql::record_rows;
use crate::sql::table::ReadRow as _;

statement!(HOLD_PROJECTS, |d| "SELECT {} IS NULL", d.lock_projects());

fn lock_rows(lock: &str) -> String {
    format!("SELECT id FROM projects ORDER BY id {lock}")
}
statement!(LOCK_PROJECTS, |d| "{}", lock_rows(d.lock()));
statement!(LOCK_FREE_PROJECTS, |d| "{}", lock_rows(d.skip_locked()));
statement!(PROJECTS, |_d| "SELECT {} FROM projects ORDER BY id", record_rows::PROJECT.names(""));
fn nodes(d: Kind) -> String {
    format!("SELECT {} FROM project_nodes WHERE project_id {}", record_rows::PROJECT_NODE.names(""), d.any(Type::Uuid, 1))
}
statement!(NODES, |d| "{}", nodes(d));

statement!(
    NAMED,
    |d| "SELECT {} FROM projects WHERE name {} OR id {}",
    record_rows::PROJECT.names(""),
    d.any(Type::Text, 1),
    d.any(Type::Uuid, 2)
);

impl Load<'_> {
    /// Finds projects by their names or ids.
    pub(super) async fn look_up_projects(&mut self, keys: &RowKeys) -> Result<(), Error> {
        if keys.named_projects.is_empty() {
            return Ok(());
        }
        let ids: Vec<ProjectId> = keys.named_projects.iter().filter_map(|named| named.parse().ok()).collect();
        let found = self.conn.fetch(&NAMED, Args::new().texts(&keys.named_projects).uuids(&ids)).await?;
        let found = all(&found, Project::read)?;
        let named = |named: &String| (named.clone(), project_named(found.iter(), named).cloned());
        self.loaded.named_projects = keys.named_projects.iter().map(named).collect();
        Ok(())
    }

    /// Keeps others from adding or removing projects until the end of the transaction, so that no two projects get the same name. The rows
    /// are locked too, so that a row that another program keeps locked is noticed now, and not when it is to be written.
    pub(super) async fn lock_projects(&mut self, keys: &RowKeys) -> Result<(), Error> {
        if !keys.projects {
            return Ok(());
        }
        self.conn.fetch(&HOLD_PROJECTS, Args::new()).await?;
        let locked = self.conn.fetch(if self.skip_locked { &LOCK_FREE_PROJECTS } else { &LOCK_PROJECTS }, Args::new()).await?;
        let rows = all(&self.conn.fetch(&PROJECTS, Args::new()).await?, Project::read)?;
        self.loaded.locked_projects = self.skip_locked && locked.len() < rows.len();
        if self.loaded.locked_projects {
            return Ok(());
        }
        let mut of_projects = Vec::new();
        if !keys.project_nodes.is_empty() {
            of_projects = all(&self.conn.fetch(&NODES, Args::new().uuids(&keys.project_nodes)).await?, ProjectNode::read)?;
        }
        self.loaded.projects = Some(LoadedProjects::new(keys, rows, of_projects));
        Ok(())
    }
}
