//! Contexts: pages of them, and the state of each. Only the reset of a context is stored. Everything else is read from its tasks and
//! leases, by indexes and from a limited number of tasks.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all};
use bloom_core::Ms;
use bloom_core::api_key::Owner;
use bloom_core::ids::{TaskId, WorkerId};
use bloom_core::task::Status;
use bloom_core::usage::Usage;

/// The most tasks of a context that are counted. The newest ones are counted.
pub const COUNTED_TASKS: i64 = 1_000;

/// A context, as seen from all of its tasks or from those that were requested.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextRow {
    /// The id that its tasks name.
    pub context_id: String,
    /// The task that was created last.
    pub newest: NewestTask,
    /// The worker of the last completed run; `None` if that run belongs to a task that was not requested.
    pub worker_id: Option<WorkerId>,
    /// The session of the CLI, which the next run continues; `None` if none was reported.
    pub session_id: Option<String>,
    /// When the conversation was last reset; `None`: never.
    pub reset_at: Option<Ms>,
    /// How many of its newest [`COUNTED_TASKS`] tasks have each status.
    pub tasks: BTreeMap<Status, i64>,
    /// The tokens and the cost of the runs of these tasks.
    pub usage: Usage,
}

/// The newest task of a context, or the newest of its requested tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct NewestTask {
    /// The task.
    pub id: TaskId,
    /// Its status.
    pub status: Status,
    /// When its status or another part of its state last changed.
    pub updated_at: Ms,
    /// The agent that it is for.
    pub agent_slug: String,
    /// The name of its project; `None` if it has none.
    pub project: Option<String>,
}

/// Which tasks make a context appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    All,
    /// Tasks in the project `$3`.
    Project,
    /// Tasks of the submit key or of the team: `$3` for pages, `$2` for facts.
    Key,
    Team,
}

impl Of {
    /// The index that has the contexts in order, and the condition on the task `t`.
    fn parts(self, d: Kind, t: &str, param: usize) -> (String, String) {
        let (index, column) = match self {
            Self::All => return (d.by_index("tasks_context"), String::new()),
            Self::Project => ("tasks_context_of_project", "project"),
            Self::Key => ("tasks_context_of_owner", "owner"),
            Self::Team => ("tasks_context_of_team", "team"),
        };
        (d.by_index(index), format!("{t}.{column} = ${param} AND "))
    }
}

/// The contexts of this many newest tasks count as recent.
const RECENT_TASKS: usize = 2_000;

// The contexts of the newest tasks, one row per task.
statement!(pub(crate) RECENT, "SELECT context_id FROM tasks ORDER BY id DESC LIMIT $1");
fn recent_of(d: Kind, column: &str) -> String {
    format!("SELECT context_id FROM tasks {} WHERE {column} = $2 ORDER BY id DESC LIMIT $1", d.by_index(&format!("tasks_{column}")))
}
statement!(pub(crate) RECENT_OF_PROJECT, |d| "{}", recent_of(d, "project"));
statement!(pub(crate) RECENT_OF_KEY, |d| "{}", recent_of(d, "owner"));
statement!(pub(crate) RECENT_OF_TEAM, |d| "{}", recent_of(d, "team"));

/// At most `$2` contexts after `$1`. Each of them is found by one look-up in the index, so the tasks in between are not read.
fn page(d: Kind, of: Of) -> String {
    let (index, filter) = of.parts(d, "t", 3);
    let next = |after: &str| {
        format!("(SELECT t.context_id FROM tasks t {index} WHERE {filter}t.context_id > {after} ORDER BY t.context_id LIMIT 1)")
    };
    format!(
        "WITH RECURSIVE page (context_id, n) AS (SELECT {}, CAST(1 AS BIGINT) \
            UNION ALL SELECT {}, page.n + 1 FROM page WHERE page.context_id IS NOT NULL AND page.n < $2) \
        SELECT context_id FROM page WHERE context_id IS NOT NULL ORDER BY n",
        next("$1"),
        next("page.context_id")
    )
}
statement!(pub(crate) PAGE, |d| "{}", page(d, Of::All));
statement!(pub(crate) PAGE_OF_PROJECT, |d| "{}", page(d, Of::Project));
statement!(pub(crate) PAGE_OF_KEY, |d| "{}", page(d, Of::Key));
statement!(pub(crate) PAGE_OF_TEAM, |d| "{}", page(d, Of::Team));

fn facts(d: Kind, of: Of) -> String {
    let (index, filter) = of.parts(d, "t", 2);
    // The worker and the session are shown if the task of the last run matches, no matter whose task began the conversation.
    let (_, of_last) = of.parts(d, "s", 2);
    format!(
        "SELECT value, n.id, n.status, n.updated_at, n.agent_slug, n.project, \
            CASE WHEN s.id IS NOT NULL THEN l.worker_id END, s.session_id, r.reset_at FROM {} \
        JOIN task_state n ON n.id = (SELECT t.id FROM tasks t {index} WHERE {filter}t.context_id = value ORDER BY t.id DESC LIMIT 1) \
        LEFT JOIN leases l ON l.id = (SELECT p.id FROM leases p WHERE p.context_id = value AND p.completed ORDER BY p.id DESC LIMIT 1) \
        LEFT JOIN task_state s ON {of_last}s.id = l.task_id \
        LEFT JOIN context_resets r ON r.context_id = value",
        d.texts(1)
    )
}
statement!(pub(crate) FACTS, |d| "{}", facts(d, Of::All));
statement!(pub(crate) FACTS_OF_KEY, |d| "{}", facts(d, Of::Key));
statement!(pub(crate) FACTS_OF_TEAM, |d| "{}", facts(d, Of::Team));

fn counts(d: Kind, of: Of) -> String {
    let (index, filter) = of.parts(d, "t", 2);
    let [input_tokens, output_tokens] = ["input_tokens", "output_tokens"].map(|column| d.sum(&format!("coalesce({column}, 0)")));
    let newest = match d {
        // SQLite has no LATERAL. It joins a CROSS JOIN in the order in which it is written.
        Kind::Sqlite => format!(
            "CROSS JOIN tasks t {index} CROSS JOIN task_state s WHERE {filter}t.context_id = value AND t.id >= coalesce(\
                (SELECT t.id FROM tasks t {index} WHERE {filter}t.context_id = value ORDER BY t.id DESC LIMIT 1 OFFSET {COUNTED_TASKS} - 1), x'') \
            AND s.id = t.id"
        ),
        Kind::Postgres => format!(
            "CROSS JOIN LATERAL (SELECT s.* FROM tasks t JOIN task_state s ON s.id = t.id WHERE {filter}t.context_id = value \
            ORDER BY t.id DESC LIMIT {COUNTED_TASKS}) AS s"
        ),
    };
    format!(
        "SELECT value, s.status, count(*), {input_tokens}, {output_tokens}, CAST(sum(coalesce(s.cost_usd, 0.0)) AS DOUBLE PRECISION), {} \
        FROM {} {newest} GROUP BY value, s.status",
        d.any_true("s.cost_estimated"),
        d.texts(1)
    )
}
statement!(pub(crate) COUNTS, |d| "{}", counts(d, Of::All));
statement!(pub(crate) COUNTS_OF_KEY, |d| "{}", counts(d, Of::Key));
statement!(pub(crate) COUNTS_OF_TEAM, |d| "{}", counts(d, Of::Team));

/// Chooses the statement for the tasks of the owner if there is one, else of the project, else of all, and adds its parameters.
fn of_whom<'a, S>(
    [all, of_project, of_key, of_team]: [S; 4],
    args: Args<'a>,
    project: Option<&'a str>,
    owner: Option<&'a Owner>,
) -> (S, Args<'a>) {
    match (owner, project) {
        (Some(Owner::Key(key)), _) => (of_key, args.text(key)),
        (Some(Owner::Team(team)), _) => (of_team, args.text(team)),
        (None, Some(project)) => (of_project, args.text(project)),
        (None, None) => (all, args),
    }
}

impl Store {
    /// The ids of the contexts after this one, in the order of the database. With an owner, only contexts with tasks of the owner; else
    /// with a project, only contexts with tasks of the project.
    pub async fn context_ids(&self, after: &str, limit: i64, project: Option<&str>, owner: Option<&Owner>) -> Result<Vec<String>, Error> {
        let args = Args::new().text(after).int(limit);
        let (statement, args) = of_whom([&PAGE, &PAGE_OF_PROJECT, &PAGE_OF_KEY, &PAGE_OF_TEAM], args, project, owner);
        all(&self.pool().fetch(statement, args).await?, |row| row.take())
    }

    /// At most `limit` contexts of the newest tasks, newest first: those of the owner, else of the project, else of all tasks.
    pub async fn recent_contexts(&self, limit: usize, project: Option<&str>, owner: Option<&Owner>) -> Result<Vec<String>, Error> {
        let args = Args::new().int(RECENT_TASKS as i64);
        let (statement, args) = of_whom([&RECENT, &RECENT_OF_PROJECT, &RECENT_OF_KEY, &RECENT_OF_TEAM], args, project, owner);
        let mut ids: Vec<String> = all(&self.pool().fetch(statement, args).await?, |row| row.take())?;
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        ids.truncate(limit);
        Ok(ids)
    }

    /// The contexts that have tasks, in the order of `ids`. With an owner, only the owner's tasks are considered.
    pub async fn contexts(&self, ids: &[String], owner: Option<&Owner>) -> Result<Vec<ContextRow>, Error> {
        let (facts, counts, name) = match owner {
            None => (&FACTS, &COUNTS, None),
            Some(Owner::Key(key)) => (&FACTS_OF_KEY, &COUNTS_OF_KEY, Some(key)),
            Some(Owner::Team(team)) => (&FACTS_OF_TEAM, &COUNTS_OF_TEAM, Some(team)),
        };
        let args = || name.into_iter().fold(Args::new().texts(ids), |args, name| args.text(name));
        let found = all(&self.pool().fetch(facts, args()).await?, |row| {
            let context_id: String = row.take()?;
            let (id, status, updated_at) = (row.take()?, row.take()?, row.take()?);
            let (agent_slug, project): (_, String) = (row.take()?, row.take()?);
            let newest = NewestTask { id, status, updated_at, agent_slug, project: Some(project).filter(|project| !project.is_empty()) };
            let (worker_id, session_id, reset_at) = (row.take()?, row.take()?, row.take()?);
            let (tasks, usage) = (BTreeMap::new(), Usage::default());
            Ok((context_id.clone(), ContextRow { context_id, newest, worker_id, session_id, reset_at, tasks, usage }))
        })?;
        let mut found: HashMap<String, ContextRow> = found.into_iter().collect();
        for row in &self.pool().fetch(counts, args()).await? {
            let mut row = row.cells();
            let (context_id, status, count): (String, Status, i64) = (row.take()?, row.take()?, row.take()?);
            let (input_tokens, output_tokens) = (row.take()?, row.take()?);
            let (cost_usd, cost_estimated) = (row.take()?, row.take()?);
            // The first task of a context may have been created between the two reads.
            if let Some(context) = found.get_mut(&context_id) {
                context.tasks.insert(status, count);
                context.usage.add(Usage { input_tokens, output_tokens, cost_usd, cost_estimated });
            }
        }
        Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
    }
}
