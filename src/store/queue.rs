//! What the reconcilers look at: the ready set in order, what is held, what is parked and what it waits for. Every page is keyset-paged.

use std::collections::HashSet;

use super::args::Args;
use super::dialect::statement;
use super::error::Error;
use super::{Store, all, first, rows};
use crate::core::Ms;
use crate::core::ids::{TaskId, WorkerId};
use crate::core::task::TaskState;
use crate::core::working_set::Freed;

/// A task that could run now, as far as its own row tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyRow {
    pub id: TaskId,
    /// 9 − priority: the queue's order is (rank, id).
    pub rank: i64,
    pub agent_slug: String,
    pub ready_at: Option<Ms>,
    pub session_worker: Option<WorkerId>,
}

statement!(
    READY,
    |d| "SELECT id, rank, agent_slug, ready_at, session_worker FROM task_state {} \
    WHERE status = 'queued' AND parked IS NULL AND (rank, id) > ($1, $2) ORDER BY rank, id LIMIT $3",
    d.by_index("task_state_ready")
);
statement!(
    READY_OF_AGENT,
    |d| "SELECT id, rank, agent_slug, ready_at, session_worker FROM task_state {} \
    WHERE status = 'queued' AND parked IS NULL AND agent_slug = $4 AND (rank, id) > ($1, $2) ORDER BY rank, id LIMIT $3",
    d.by_index("task_state_ready_of_agent")
);
statement!(
    ACTIVE,
    |_d| "SELECT * FROM (SELECT {0} FROM task_state WHERE status = 'leased' AND id > $1 ORDER BY id LIMIT $2) AS leased \
    UNION ALL SELECT * FROM (SELECT {0} FROM task_state WHERE status = 'running' AND id > $1 ORDER BY id LIMIT $2) AS running \
    ORDER BY id LIMIT $2",
    rows::STATE.names("")
);
statement!(
    PARKED,
    |d| "SELECT id FROM task_state {} WHERE status = 'queued' AND parked IS NOT NULL AND id > $1 ORDER BY id LIMIT $2",
    d.by_index("task_state_parked")
);
statement!(
    DUE,
    |d| "SELECT id FROM task_state {} WHERE status = 'queued' AND parked = 'not_before' AND not_before <= $1 ORDER BY not_before LIMIT $2",
    d.by_index("task_state_not_before")
);
statement!(
    NEXT_DUE,
    |d| "SELECT not_before FROM task_state {} WHERE status = 'queued' AND parked = 'not_before' AND not_before IS NOT NULL \
    ORDER BY not_before LIMIT 1",
    d.by_index("task_state_not_before")
);
statement!(
    DEPENDENTS,
    "WITH d AS MATERIALIZED (SELECT task_id FROM task_deps WHERE dep_id = $1) SELECT s.id FROM d CROSS JOIN task_state s \
    WHERE s.id = d.task_id AND s.status = 'queued' AND s.parked IS NOT NULL LIMIT $2"
);
statement!(
    FIRST_OF_CONTEXT,
    |d| "SELECT id FROM (SELECT id, parked FROM task_state {} \
    WHERE context_id = $1 AND session = 'context' AND status IN ('queued', 'leased', 'running') ORDER BY id LIMIT 1) AS f \
    WHERE parked = 'session'",
    d.by_index("task_state_session")
);
statement!(
    NEXT_OF_CONTEXT,
    |d| "SELECT id FROM (SELECT id, parked FROM task_state {} \
    WHERE context_id = $1 AND id > $2 AND session = 'context' AND status IN ('queued', 'leased', 'running') ORDER BY id LIMIT 1) AS f \
    WHERE parked = 'session'",
    d.by_index("task_state_session")
);
statement!(
    AWAITING_KEY,
    |d| "SELECT id FROM task_state {} WHERE status = 'queued' AND parked = 'exclusive_key' AND exclusive_key = $1 \
    ORDER BY rank, id LIMIT $2",
    d.by_index("task_state_awaits_key")
);

impl Store {
    /// The next tasks that are ready, of one agent or of all, behind `after` (rank, id).
    pub async fn ready_page(&self, agent_slug: Option<&str>, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>, Error> {
        let (rank, id) = after.unwrap_or((-1, TaskId::nil()));
        let args = Args::new().int(rank).uuid(id).int(limit);
        let found = match agent_slug {
            Some(agent_slug) => self.pool().fetch(&READY_OF_AGENT, args.text(agent_slug)).await?,
            None => self.pool().fetch(&READY, args).await?,
        };
        all(&found, |row| {
            Ok(ReadyRow { id: row.take()?, rank: row.take()?, agent_slug: row.take()?, ready_at: row.take()?, session_worker: row.take()? })
        })
    }

    /// Tasks with an active lease, by task id.
    pub async fn active_tasks(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskState>, Error> {
        all(&self.pool().fetch(&ACTIVE, Args::new().uuid(after.unwrap_or_default()).int(limit)).await?, rows::state)
    }

    /// Queued tasks that are kept out of the ready set, by id.
    pub async fn parked_page(&self, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskId>, Error> {
        all(&self.pool().fetch(&PARKED, Args::new().uuid(after.unwrap_or_default()).int(limit)).await?, |row| row.take())
    }

    /// Tasks whose `not_before` has come, the longest due first.
    pub async fn due_not_before(&self, now: Ms, limit: i64) -> Result<Vec<TaskId>, Error> {
        all(&self.pool().fetch(&DUE, Args::new().int(now).int(limit)).await?, |row| row.take())
    }

    /// When the next `not_before` comes.
    pub async fn next_not_before(&self) -> Result<Option<Ms>, Error> {
        first(&self.pool().fetch(&NEXT_DUE, Args::new()).await?, |row| row.take())
    }

    /// Queued tasks that may run now that this was let go: at most `limit` dependents, the context's
    /// first and the one behind it, and `limit` that want the key.
    pub async fn waiters(&self, freed: &Freed, limit: i64) -> Result<Vec<TaskId>, Error> {
        let mut waiters = Vec::new();
        if freed.finished {
            let found = self.pool().fetch(&DEPENDENTS, Args::new().uuid(freed.task).int(limit)).await?;
            waiters.extend(all(&found, |row| row.take::<TaskId>())?);
        }
        if let Some(context) = &freed.context {
            let found = self.pool().fetch(&FIRST_OF_CONTEXT, Args::new().text(context)).await?;
            waiters.extend(first(&found, |row| row.take::<TaskId>())?);
            if freed.finished {
                // The one that stood right behind it stands behind another now, which is to know.
                let found = self.pool().fetch(&NEXT_OF_CONTEXT, Args::new().text(context).uuid(freed.task)).await?;
                waiters.extend(first(&found, |row| row.take::<TaskId>())?);
            }
        }
        if let Some(key) = &freed.exclusive_key {
            let found = self.pool().fetch(&AWAITING_KEY, Args::new().text(key).int(limit)).await?;
            waiters.extend(all(&found, |row| row.take::<TaskId>())?);
        }
        let mut seen = HashSet::new();
        waiters.retain(|id| seen.insert(*id));
        Ok(waiters)
    }
}
