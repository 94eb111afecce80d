//! Reads what belongs to the keys of a team together.

use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all};
use bloom_core::ids::WorkerId;

statement!(
    OPEN,
    "SELECT agent_slug, worker, count(*) FROM \
        (SELECT agent_slug, CASE WHEN slot IS NOT NULL THEN worker_id END AS worker FROM task_state \
        WHERE team = $1 AND status IN ('queued', 'leased', 'running')) AS t \
    GROUP BY agent_slug, worker"
);
statement!(
    pub(crate) CONTEXTS,
    |d| "SELECT value, coalesce({} = $2 AND {} = $2, false) FROM {} \
        WHERE EXISTS (SELECT 1 FROM tasks t {} WHERE t.team = $2 AND t.context_id = value)",
    outermost_team(d, ""),
    outermost_team(d, "DESC"),
    d.texts(1),
    d.by_index("tasks_context_of_team")
);

/// The first or last team among the context's tasks that keys created. A task without a team sorts as NULL to one of the two ends,
/// depending on the database.
fn outermost_team(d: Kind, order: &str) -> String {
    let index = d.by_index("tasks_context_teams");
    format!(
        "(SELECT t.team FROM tasks t {index} WHERE coalesce(t.owner, '') <> '' AND t.context_id = value ORDER BY t.team {order} LIMIT 1)"
    )
}

/// Tasks of a team that have not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTasks {
    /// The agent of the tasks.
    pub agent_slug: String,
    /// The worker that holds them; `None` if they are queued.
    pub worker: Option<WorkerId>,
    /// The number of tasks.
    pub count: i64,
}

impl Store {
    /// Counts the unfinished tasks of the team by agent and worker.
    pub async fn open_of_team(&self, team: &str) -> Result<Vec<OpenTasks>, Error> {
        let found = self.pool().fetch(&OPEN, Args::new().text(team)).await?;
        all(&found, |row| Ok(OpenTasks { agent_slug: row.take()?, worker: row.take()?, count: row.take()? }))
    }

    /// The contexts that have tasks of the team, in any order, each with whether all of its tasks belong to the team. Tasks that no submit
    /// or member key created are ignored.
    pub async fn contexts_of_team(&self, ids: &[String], team: &str) -> Result<Vec<(String, bool)>, Error> {
        all(&self.pool().fetch(&CONTEXTS, Args::new().texts(ids).text(team)).await?, |row| Ok((row.take()?, row.take()?)))
    }
}
