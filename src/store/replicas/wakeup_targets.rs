//! Finds the tasks that a wake-up is for. Each query reads about as many rows as it returns, however many tasks wait.

use crate::all;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::conn::Pool;
use crate::sql::dialect::{Kind, statement};
use crate::sql::record_rows;
use bloom_core::ids::TaskId;
use bloom_core::wakeup::{Subject, Waiters, Wakeup};

statement!(pub(crate) WAKEUPS, |_d| "SELECT {} FROM wakeups WHERE id > $1 ORDER BY id LIMIT $2", record_rows::WAKEUP.names(""));

statement!(
    DEPENDENTS,
    "WITH d AS MATERIALIZED (SELECT task_id FROM task_deps WHERE dep_id = $1 AND task_id > $2 ORDER BY task_id LIMIT $3) \
    SELECT d.task_id, s.id IS NOT NULL FROM d LEFT JOIN task_state s ON s.id = d.task_id AND s.status = 'queued' AND s.parked IS NOT NULL \
    ORDER BY d.task_id"
);

/// The first unfinished session task of context `$1` after `$2`, if it waits for the session order or may have to.
fn next_of_context(d: Kind) -> String {
    format!(
        "SELECT id FROM (SELECT id, status, parked FROM task_state {} \
        WHERE context_id = $1 AND id > $2 AND session = 'context' AND status IN ('queued', 'leased', 'running') ORDER BY id LIMIT 1) AS f \
        WHERE status = 'queued' AND (parked IS NULL OR parked IN ('session', 'reserved'))",
        d.by_index("task_state_session")
    )
}
statement!(OF_CONTEXT, |d| "{}", next_of_context(d));

// The index leads from agent to agent and from project to project, so that not all waiting tasks are read.
statement!(
    OF_KEY,
    |d| "WITH RECURSIVE a(id, n) AS (\
        SELECT (SELECT t.id FROM task_state t {index} WHERE {wait} ORDER BY {order} LIMIT 1), CAST(1 AS BIGINT) \
        UNION ALL SELECT (SELECT t.id FROM task_state t {index} WHERE {wait} AND (t.agent_slug, t.project) > (p.agent_slug, p.project) \
            ORDER BY {order} LIMIT 1), a.n + 1 FROM a JOIN task_state p ON p.id = a.id WHERE a.n < $2) \
    SELECT a.id, (SELECT count(*) FROM (SELECT 1 FROM task_state t {index} WHERE {wait} LIMIT $2 + 1) AS w) \
    FROM a WHERE a.id IS NOT NULL",
    index = d.by_index("task_state_awaits_key_of_project"),
    order = "t.agent_slug, t.project, t.rank, t.id",
    wait = "t.status = 'queued' AND t.parked = 'exclusive_key' AND t.exclusive_key = $1"
);

// One subquery per rank, in the order of the index, so that a page reads at most one page of each rank.
statement!(
    RESERVED,
    |d| "SELECT id FROM ({}) AS r ORDER BY id LIMIT $3",
    (0..10)
        .map(|rank| format!(
            "SELECT * FROM (SELECT id FROM task_state {} WHERE status = 'queued' AND parked = 'reserved' AND session_worker = $1 \
            AND rank = {rank} AND id > $2 ORDER BY id LIMIT $3) AS r{rank}",
            d.by_index("task_state_reserved")
        ))
        .collect::<Vec<_>>()
        .join(" UNION ALL ")
);

pub(crate) async fn of(pool: &Pool, wakeup: &Wakeup, limit: i64) -> Result<Waiters, Error> {
    let cursor = wakeup.cursor.unwrap_or_default();
    let mut waiters = Waiters::default();
    match &wakeup.subject {
        Subject::Dependents(task) => {
            let found = pool.fetch(&DEPENDENTS, Args::new().uuid(*task).uuid(cursor).int(limit)).await?;
            let found: Vec<(TaskId, bool)> = all(&found, |row| Ok((row.take()?, row.take()?)))?;
            waiters.next = found.last().map(|(id, _)| *id).filter(|_| found.len() as i64 >= limit);
            waiters.tasks = found.into_iter().filter(|(_, waits)| *waits).map(|(id, _)| id).collect();
        }
        Subject::Context { context_id, after } => {
            for behind in [Some(TaskId::nil()), *after].into_iter().flatten() {
                let found = pool.fetch(&OF_CONTEXT, Args::new().text(context_id).uuid(behind)).await?;
                waiters.tasks.extend(all(&found, |row| row.take::<TaskId>())?);
            }
            waiters.tasks.dedup();
        }
        Subject::Key(key) => {
            let found = pool.fetch(&OF_KEY, Args::new().text(key).int(limit)).await?;
            let found: Vec<(Option<TaskId>, i64)> = all(&found, |row| Ok((row.take()?, row.take()?)))?;
            waiters.more_want_key = found.iter().any(|(_, waiting)| *waiting > found.len() as i64);
            waiters.tasks = found.into_iter().filter_map(|(id, _)| id).collect();
        }
        Subject::Reservations(worker) => {
            let found = pool.fetch(&RESERVED, Args::new().text(worker).uuid(cursor).int(limit)).await?;
            waiters.tasks = all(&found, |row| row.take())?;
            waiters.next = waiters.tasks.last().copied().filter(|_| waiters.tasks.len() as i64 >= limit);
        }
    }
    Ok(waiters)
}
