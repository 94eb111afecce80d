//! What the keys of a team have together.

use super::args::Args;
use super::dialect::statement;
use super::error::Error;
use super::{Store, all};
use bloom_core::ids::WorkerId;

statement!(
    OPEN,
    "SELECT agent_slug, worker, count(*) FROM \
        (SELECT agent_slug, CASE WHEN slot IS NOT NULL THEN worker_id END AS worker FROM task_state \
        WHERE team = $1 AND status IN ('queued', 'leased', 'running')) AS t \
    GROUP BY agent_slug, worker"
);
statement!(
    pub(super) CONTEXTS,
    |d| "SELECT value FROM {} WHERE EXISTS (SELECT 1 FROM tasks t {} WHERE t.team = $2 AND t.context_id = value)",
    d.texts(1),
    d.by_index("tasks_context_of_team")
);

/// Tasks of a team that have not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTasks {
    pub agent_slug: String,
    /// The worker that has them; `None` = they are queued.
    pub worker: Option<WorkerId>,
    pub count: i64,
}

impl Store {
    /// The numbers of the team's tasks that have not finished.
    pub async fn open_of_team(&self, team: &str) -> Result<Vec<OpenTasks>, Error> {
        let found = self.pool().fetch(&OPEN, Args::new().text(team)).await?;
        all(&found, |row| Ok(OpenTasks { agent_slug: row.take()?, worker: row.take()?, count: row.take()? }))
    }

    /// Those of these contexts that have tasks of the team, in any order.
    pub async fn contexts_of_team(&self, ids: &[String], team: &str) -> Result<Vec<String>, Error> {
        all(&self.pool().fetch(&CONTEXTS, Args::new().texts(ids).text(team)).await?, |row| row.take())
    }
}
