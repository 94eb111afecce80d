//! Reads of the replica cache and the reconcilers: ready tasks in order, active leases, and what is due. Every page is read by an index.

use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::{Cells, Row};
use crate::sql::conn::Pool;
use crate::sql::dialect::{Kind, statement};
use crate::sql::{record_rows, task_rows};
use crate::{Store, all, first};
use bloom_core::Ms;
use bloom_core::cache::{Projects, rank};
use bloom_core::ids::TaskId;
use bloom_database::{DuePage, ReadyRow, Scope};

const IS_READY: &str = "status = 'queued' AND parked IS NULL";
const READY_ROW: &str = "id, revision, rank, agent_slug, namespace, project, coalesce(ready_at, 0)";
/// The next ready tasks whose columns have the given values, by an index that begins with these columns.
fn ready_of(d: Kind, index: &str, columns: &[&str]) -> String {
    let given: String = columns.iter().zip(4..).map(|(column, at)| format!(" AND {column} = ${at}")).collect();
    format!(
        "SELECT {READY_ROW}, NULL FROM task_state {} WHERE {IS_READY}{given} AND (rank, id) > ($1, $2) ORDER BY rank, id LIMIT $3",
        d.by_index(index)
    )
}
statement!(READY, |d| "{}", ready_of(d, "task_state_ready", &[]));
statement!(READY_OF_AGENT, |d| "{}", ready_of(d, "task_state_ready_of_agent", &["agent_slug"]));
statement!(pub(crate) READY_OF_NAMESPACE, |d| "{}", ready_of(d, "task_state_ready_of_namespace", &["namespace"]));
statement!(
    pub(crate) READY_OF_AGENT_IN_NAMESPACE,
    |d| "{}",
    ready_of(d, "task_state_ready_of_agent_in_namespace", &["namespace", "agent_slug"])
);
statement!(pub(crate) READY_OF_PROJECT, |d| "{}", ready_of(d, "task_state_ready_of_project", &["project"]));
statement!(
    pub(crate) READY_OF_AGENT_IN_PROJECT,
    |d| "{}",
    ready_of(d, "task_state_ready_of_agent_in_project", &["project", "agent_slug"])
);
statement!(
    pub(crate) READY_OF_NAMESPACE_AND_PROJECT,
    |d| "{}",
    ready_of(d, "task_state_ready_of_namespace_and_project", &["namespace", "project"])
);
statement!(
    pub(crate) READY_OF_AGENT_IN_NAMESPACE_AND_PROJECT,
    |d| "{}",
    ready_of(d, "task_state_ready_of_agent_in_namespace_and_project", &["namespace", "project", "agent_slug"])
);
statement!(
    RESERVED,
    |d| "SELECT {READY_ROW}, session_worker FROM task_state {} \
    WHERE status = 'queued' AND parked = 'reserved' AND session_worker = $4 AND (rank, id) > ($1, $2) ORDER BY rank, id LIMIT $3",
    d.by_index("task_state_reserved")
);
statement!(
    pub(crate) ACTIVE,
    |_d| "SELECT * FROM (SELECT {0} FROM task_state WHERE status = 'leased' AND id > $1 ORDER BY id LIMIT $2) AS leased \
    UNION ALL SELECT * FROM (SELECT {0} FROM task_state WHERE status = 'running' AND id > $1 ORDER BY id LIMIT $2) AS running \
    ORDER BY id LIMIT $2",
    task_rows::STATE.names("")
);

/// Selects what is due now, the longest due first, as `(now, the next deadline after now, id, at, …)`; one row of NULLs if nothing is due.
/// Rows that another transaction has locked are left out, because a page full of them would hide the rows after it.
fn due(d: Kind, at: &str, and: &str, index: &str, set: &str) -> String {
    let (index, now, lock) = (d.by_index(index), d.now_before(), d.skip_locked());
    format!(
        "WITH c AS MATERIALIZED (SELECT {clock} AS now) \
        SELECT c.now, (SELECT n.{at} FROM task_state n {index} WHERE {set} AND n.{at} > c.now ORDER BY n.{at} LIMIT 1), d.* \
        FROM c LEFT JOIN {lateral} (SELECT id, {at} AS at{and} FROM task_state {index} WHERE {set} AND {at} <= {now} \
            ORDER BY {at} LIMIT $2 {lock}) AS d ON true \
        ORDER BY d.at LIMIT $2",
        clock = d.clock(1),
        lateral = d.lateral(),
    )
}

const CHECK: &str = "task_state_check";
statement!(
    pub(crate) DUE_LEASES,
    |d| "{}",
    due(d, "check_at", ", lease_id", CHECK, "slot IS NOT NULL")
);
statement!(
    pub(crate) DUE_TASKS,
    |d| "{}",
    due(d, "wake_at", "", "task_state_wake", "wake_at IS NOT NULL")
);
statement!(
    pub(crate) LEASES_BEYOND_TTL,
    |d| "SELECT id, lease_id FROM task_state {0} WHERE slot IS NOT NULL AND (expires_at > {1} + ttl_ms OR check_at > {1} + ttl_ms) LIMIT $2",
    d.by_index(CHECK),
    d.clock(1)
);
/// A worker whose last sign of life is this far in the future was seen before the clock stepped back.
const AHEAD_MS: i64 = 1_000;
statement!(
    pub(crate) SILENT_WORKERS,
    |d| "WITH c AS MATERIALIZED (SELECT {clock} AS now), \
    a AS MATERIALIZED (SELECT w.id, s.last_seen FROM workers w {index} JOIN worker_seen s ON s.worker_id = w.id \
        WHERE w.removed_at IS NULL AND NOT w.lost AND w.status <> 'offline'), \
    n AS MATERIALIZED (SELECT min(a.last_seen) + $3 + 1 AS at FROM c CROSS JOIN a \
        WHERE a.last_seen >= c.now - $3 AND a.last_seen <= c.now + {AHEAD_MS}) \
    SELECT c.now, n.at, a.id FROM c CROSS JOIN n LEFT JOIN a ON a.last_seen < c.now - $3 OR a.last_seen > c.now + {AHEAD_MS} \
    ORDER BY a.last_seen LIMIT $2",
    clock = d.clock(1),
    index = d.by_index("workers_awake")
);

/// Reads the rows of a statement made by [`due`] that was asked for `limit + 1` rows.
pub(crate) fn read_due<T>(
    found: &[Row],
    limit: i64,
    read: impl Fn(&mut Cells<'_>) -> Result<Option<T>, Error>,
) -> Result<DuePage<T>, Error> {
    let mut due = DuePage { now: 0, items: Vec::new(), next_at: None };
    for (i, row) in found.iter().enumerate() {
        let mut row = row.cells();
        (due.now, due.next_at) = (row.take()?, row.take()?);
        if i as i64 == limit {
            // More is due than the caller asked for.
            due.next_at = Some(due.now);
            break;
        }
        due.items.extend(read(&mut row)?);
    }
    Ok(due)
}

statement!(pub(crate) QUEUES, |_d| "SELECT {} FROM queues ORDER BY agent_slug", record_rows::QUEUE.names(""));
statement!(
    pub(crate) CLOSED_QUEUES,
    |d| "SELECT q.agent_slug FROM queues q WHERE q.paused_at IS NOT NULL OR (q.max_concurrency IS NOT NULL AND q.max_concurrency <= \
        (SELECT count(*) FROM task_state t {} WHERE t.slot IS NOT NULL AND t.agent_slug = q.agent_slug))",
    d.by_index("task_state_active_of_agent")
);
/// The next agent after `after` that has a ready task.
fn next_ready(d: Kind, after: &str) -> String {
    format!(
        "(SELECT agent_slug FROM task_state {} WHERE {IS_READY} AND agent_slug > {after} \
        ORDER BY agent_slug, rank, id LIMIT 1)",
        d.by_index("task_state_ready_of_agent")
    )
}
// The index leads from one agent to the next, so that the tasks of an agent are not read.
statement!(
    pub(crate) READY_AGENTS,
    |d| "WITH RECURSIVE a (agent_slug) AS (SELECT {} UNION ALL SELECT {} FROM a WHERE a.agent_slug IS NOT NULL) \
    SELECT agent_slug FROM a WHERE agent_slug IS NOT NULL",
    next_ready(d, "''"),
    next_ready(d, "a.agent_slug")
);

statement!(
    OLDEST_READY,
    |d| "SELECT coalesce(ready_at, 0) FROM task_state {} \
    WHERE {IS_READY} AND agent_slug = $1 AND rank = $2 ORDER BY rank, id LIMIT 1",
    d.by_index("task_state_ready_of_agent")
);

impl Store {
    /// The time at which the first ready task of this agent and priority became ready.
    pub async fn oldest_ready_at(&self, agent_slug: &str, priority: i64) -> Result<Option<Ms>, Error> {
        let args = Args::new().text(agent_slug).int(rank(priority));
        first(&self.control().fetch(&OLDEST_READY, args).await?, |row| row.take())
    }

    /// The next tasks of the scope after `after` (rank, id), in the order of the queue.
    pub async fn ready_page(&self, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>, Error> {
        ready(self.pool(), scope, after, limit).await
    }
}

pub(crate) async fn ready(pool: &Pool, scope: &Scope, after: Option<(i64, TaskId)>, limit: i64) -> Result<Vec<ReadyRow>, Error> {
    let (rank, id) = after.unwrap_or((-1, TaskId::nil()));
    let args = Args::new().int(rank).uuid(id).int(limit);
    let (statement, values) = match scope {
        Scope::Reserved(worker) => (&RESERVED, [Some(&worker[..]), None, None]),
        Scope::Ready { part, agent_slug } => {
            let project = match &part.projects {
                Projects::All => None,
                Projects::None => Some(""),
                Projects::One(project) => Some(&project[..]),
            };
            let values = [part.namespace.as_deref(), project, agent_slug.as_deref()];
            let statement = match values.map(|value| value.is_some()) {
                [false, false, false] => &READY,
                [false, false, true] => &READY_OF_AGENT,
                [false, true, false] => &READY_OF_PROJECT,
                [false, true, true] => &READY_OF_AGENT_IN_PROJECT,
                [true, false, false] => &READY_OF_NAMESPACE,
                [true, false, true] => &READY_OF_AGENT_IN_NAMESPACE,
                [true, true, false] => &READY_OF_NAMESPACE_AND_PROJECT,
                [true, true, true] => &READY_OF_AGENT_IN_NAMESPACE_AND_PROJECT,
            };
            (statement, values)
        }
    };
    let args = values.into_iter().flatten().fold(args, Args::text);
    all(&pool.fetch(statement, args).await?, |row| {
        Ok(ReadyRow {
            id: row.take()?,
            revision: row.take()?,
            rank: row.take()?,
            agent_slug: row.take()?,
            namespace: row.take()?,
            project: row.take().map(|project: String| Some(project).filter(|project| !project.is_empty()))?,
            ready_at: row.take()?,
            reserved_for: row.take()?,
        })
    })
}
