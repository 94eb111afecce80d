//! Lists, newest first, in pages. Each page uses an index to continue where the previous one ended, so its cost does not grow with the
//! tables.

use std::sync::Arc;

use uuid::Uuid;

use crate::error::Error;
use crate::reads::page::{Listing, PAGE_BYTES, Page, fitting};
use crate::sql::args::Args;
use crate::sql::cells::Row;
use crate::sql::cells::Type;
use crate::sql::conditions::Conditions;
use crate::sql::dialect::{Kind, Sql, statement};
use crate::sql::table::{ReadRow, row};
use crate::sql::{record_rows, task_rows};
use crate::{Store, all};
use bloom_core::Ms;
use bloom_core::api_key::{ApiKey, Owner};
use bloom_core::file::ArtifactKind;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::run_result::RunResult;
use bloom_core::task::{LeaseOutcome, LeaseStatus, Reason, Status, TaskSpec, TaskState};

/// A task with its spec and its state.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// What the client originally requested.
    pub spec: Arc<TaskSpec>,
    /// Its current state, and what was edited.
    pub state: TaskState,
}

/// A lease, active or ended, as lists show it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRow {
    /// The id, which is the fencing token of the attempt.
    pub id: LeaseId,
    /// The task that was leased.
    pub task_id: TaskId,
    /// The worker that has or had the lease.
    pub worker_id: WorkerId,
    /// When it was granted.
    pub started_at: Ms,
    /// When it expires or expired without another heartbeat.
    pub expires_at: Ms,
    /// How long it lasts after each heartbeat, in milliseconds.
    pub ttl_ms: i64,
    /// Active, or how it ended.
    pub status: LeaseStatus,
    /// When it was granted or last renewed.
    pub last_heartbeat: Ms,
    /// The context of the task.
    pub context_id: String,
    /// When it ended; `None` while it is active.
    pub ended_at: Option<Ms>,
    /// Whether its worker reported the end of the run.
    pub completed: bool,
    /// Why the run failed or was interrupted; `None` if it succeeded, or has not ended.
    pub reason: Option<Reason>,
    /// The text that came with the reason.
    pub message: Option<String>,
    /// The model that the run used; `None` if that was not reported.
    pub model: Option<String>,
    /// Tokens that the model read; `None` if the usage was not reported. The same is true for the next two fields.
    pub input_tokens: Option<i64>,
    /// Tokens that the model wrote.
    pub output_tokens: Option<i64>,
    /// The cost in US dollars.
    pub cost_usd: Option<f64>,
    /// Whether the cost was estimated.
    pub cost_estimated: bool,
}

/// All conditions that are set must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseFilter {
    /// Only leases of this status.
    pub status: Option<LeaseStatus>,
    /// Only leases of this task.
    pub task_id: Option<TaskId>,
    /// Only leases of this worker.
    pub worker_id: Option<String>,
    /// Only ended leases with this outcome.
    pub outcome: Option<LeaseOutcome>,
    /// Only leases whose run failed or was interrupted for this reason.
    pub reason: Option<Reason>,
    /// Only leases that were made after this time.
    pub created_after: Option<Ms>,
    /// Only leases that were made before this time.
    pub created_before: Option<Ms>,
}

/// All conditions that are set must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskFilter {
    /// Only these tasks; an empty list means no such limit.
    pub ids: Vec<TaskId>,
    /// Only tasks of this status.
    pub status: Option<Status>,
    /// Only tasks for this agent.
    pub agent_slug: Option<String>,
    /// Only tasks of this context.
    pub context_id: Option<String>,
    /// Only tasks that show this worker: the worker of the active lease, or of the lease with which the task ended.
    pub worker_id: Option<String>,
    /// Only tasks whose project had this name when they were created.
    pub project: Option<String>,
    /// Only tasks that this submit or member key created.
    pub key: Option<String>,
    /// Only tasks that keys of this team created.
    pub team: Option<String>,
    /// The owner whose tasks the caller sees; `None`: all tasks.
    pub owner: Option<Owner>,
    /// Only tasks whose last failure was for this reason.
    pub reason: Option<Reason>,
    /// Only tasks that depend on this one directly.
    pub depends_on: Option<TaskId>,
    /// Only tasks that have each of these labels, with this value.
    pub labels: Vec<(String, String)>,
    /// Only tasks that were created after this time.
    pub created_after: Option<Ms>,
    /// Only tasks that were created before this time.
    pub created_before: Option<Ms>,
    /// Only tasks that ended after this time.
    pub finished_after: Option<Ms>,
    /// Only tasks whose run waits for the answer of a person. The database has no index for this, so `ids` must contain the tasks that the
    /// replica knows.
    pub asks: bool,
}

row! { PAST of LeaseRow {
    id, task_id, worker_id, started_at, expires_at, ttl_ms, status, last_heartbeat, context_id, ended_at, completed, reason, message, model,
    input_tokens, output_tokens, cost_usd, cost_estimated,
} }
/// The active lease of a task, with only the columns that a lease shows, in the order of [`PAST`]. The row of a task has four times as many
/// columns.
const ACTIVE: &str = "lease_id AS id, id AS task_id, worker_id, started_at, expires_at, ttl_ms, 'active' AS status, last_heartbeat, \
    context_id, CAST(NULL AS BIGINT) AS ended_at, false AS completed, CAST(NULL AS TEXT) AS reason, CAST(NULL AS TEXT) AS message, CAST(NULL AS TEXT) AS model, CAST(NULL AS BIGINT) AS input_tokens, \
    CAST(NULL AS BIGINT) AS output_tokens, CAST(NULL AS DOUBLE PRECISION) AS cost_usd, \
    false AS cost_estimated";
statement!(DEPENDENTS, |d| "SELECT DISTINCT task_id FROM task_deps WHERE dep_id {} ORDER BY task_id LIMIT $1", d.any(Type::Uuid, 2));
statement!(PAST_LEASES_BY_ID, |d| "SELECT {PAST} FROM leases WHERE id {}", d.any(Type::Uuid, 1));
statement!(
    TASKS,
    |d| "SELECT {}, {} FROM tasks t JOIN task_state s ON s.id = t.id WHERE t.id {} ORDER BY t.id DESC",
    task_rows::SPEC.names("t."),
    task_rows::STATE.names("s."),
    d.any(Type::Uuid, 1)
);
// Lists show only the names of files, not their contents.
fn artifact_sizes(condition: &str, kind: Option<ArtifactKind>) -> String {
    let answers = format!(
        "SELECT artifact_id AS id, coalesce(octet_length(output), CAST(object_bytes AS INTEGER), 0) \
            + coalesce(octet_length(error_message), 0) AS size FROM results \
        WHERE {condition}artifact_id < $1 ORDER BY artifact_id DESC LIMIT $2"
    );
    let files = format!("SELECT id, octet_length(name) AS size FROM files WHERE {condition}id < $1 ORDER BY id DESC LIMIT $2");
    match kind {
        Some(ArtifactKind::Answer) => answers,
        Some(ArtifactKind::File) => files,
        None => format!(
            "SELECT id, size FROM (SELECT id, size FROM ({answers}) AS r UNION ALL SELECT id, size FROM ({files}) AS f) AS a \
            ORDER BY id DESC LIMIT $2"
        ),
    }
}
statement!(
    UPLOAD_SIZES,
    |d| "SELECT id, octet_length(name) FROM files {} WHERE owner = $3 AND team = $4 AND task_id IS NULL AND owner <> '' AND id < $1 \
        ORDER BY id DESC LIMIT $2",
    d.by_index("files_of_owner")
);
statement!(
    RESULTS,
    |d| "SELECT {} FROM results WHERE artifact_id {} ORDER BY artifact_id DESC",
    record_rows::RESULT.names(""),
    d.any(Type::Uuid, 1)
);

impl Store {
    /// The ids of tasks, newest first, each with the size of its texts in bytes.
    pub async fn task_sizes(&self, filter: &TaskFilter, page: &Page) -> Result<Listing<(TaskId, i64)>, Error> {
        let (sql, args) = filter.statement(Start::Newest { before: page.before }, page.limit, Wanted::Sizes);
        sized(&self.pool().fetch(&sql, args).await?)
    }

    /// The tasks with these ids that exist, newest first.
    pub async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<TaskRow>, Error> {
        let found = self.pool().fetch(&TASKS, Args::new().uuids(ids)).await?;
        all(&found, |row| Ok(TaskRow { spec: ReadRow::read(row)?, state: ReadRow::read(row)? }))
    }

    /// Like [`task_sizes`](Self::task_sizes), but only the ids.
    pub async fn task_ids(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskId>, Error> {
        self.ids_of(filter, Start::Newest { before: page.before }, page.limit).await
    }

    /// The ids of at most `limit` matching tasks, oldest first. With `after`, only tasks after this one.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn oldest_task_ids(&self, filter: &TaskFilter, after: Option<TaskId>, limit: i64) -> Result<Vec<TaskId>, Error> {
        self.ids_of(filter, Start::Oldest { after }, limit).await
    }

    async fn ids_of(&self, filter: &TaskFilter, start: Start, limit: i64) -> Result<Vec<TaskId>, Error> {
        let (sql, args) = filter.statement(start, limit, Wanted::Ids);
        all(&self.pool().fetch(&sql, args).await?, |row| row.take())
    }

    /// The leases with these ids that have ended.
    pub async fn past_leases(&self, ids: &[LeaseId]) -> Result<Vec<LeaseRow>, Error> {
        all(&self.pool().fetch(&PAST_LEASES_BY_ID, Args::new().uuids(ids)).await?, ReadRow::read)
    }

    /// Active and past leases, newest first.
    pub async fn leases(&self, filter: &LeaseFilter, page: &Page) -> Result<Vec<LeaseRow>, Error> {
        let (sql, args) = filter.statement(page);
        all(&self.pool().fetch(&sql, args).await?, ReadRow::read)
    }

    /// The ids of artifacts, newest first, each with the number of bytes that lists show of it. Without a kind, both outputs and files.
    pub async fn artifact_sizes(
        &self,
        task: Option<TaskId>,
        kind: Option<ArtifactKind>,
        page: &Page,
    ) -> Result<Listing<(Uuid, i64)>, Error> {
        let (condition, args) = match task {
            Some(task) => ("task_id = $3 AND ", page.args().uuid(task)),
            None => ("", page.args()),
        };
        sized(&self.pool().fetch(&Sql::new(|_| artifact_sizes(condition, kind)), args).await?)
    }

    /// The ids of the files that the key uploaded while in its present team, newest first, each with the number of bytes that lists show of
    /// it.
    pub async fn upload_sizes(&self, key: &ApiKey, page: &Page) -> Result<Listing<(Uuid, i64)>, Error> {
        let args = page.args().text(&key.name).text(key.team.as_deref().unwrap_or_default());
        sized(&self.pool().fetch(&UPLOAD_SIZES, args).await?)
    }

    /// The tasks that depend on one of these directly, oldest first.
    pub async fn dependents(&self, tasks: &[TaskId], limit: i64) -> Result<Vec<TaskId>, Error> {
        all(&self.pool().fetch(&DEPENDENTS, Args::new().int(limit).uuids(tasks)).await?, |row| row.take())
    }

    /// The results with these artifacts, newest first.
    pub async fn artifacts(&self, ids: &[Uuid]) -> Result<Vec<RunResult>, Error> {
        all(&self.pool().fetch(&RESULTS, Args::new().uuids(ids)).await?, ReadRow::read)
    }
}

/// The ids and sizes of a page, cut at [`PAGE_BYTES`].
fn sized(found: &[Row]) -> Result<Listing<(Uuid, i64)>, Error> {
    Ok(fitting_page(all(found, |row| Ok((row.take::<Uuid>()?, i64::from(row.take::<i32>()?))))?))
}

pub(crate) fn fitting_page(sizes: Vec<(Uuid, i64)>) -> Listing<(Uuid, i64)> {
    let (rows, cut) = fitting(sizes.into_iter().map(|(id, size)| ((id, size), size)), PAGE_BYTES);
    Listing { rows, cut }
}

/// Where a page of a list begins, which also determines the order of its rows.
#[derive(Clone, Copy)]
pub(crate) enum Start {
    /// The newest rows, or the newest below this id.
    Newest { before: Option<Uuid> },
    /// The oldest rows, or the oldest above this id.
    Oldest { after: Option<Uuid> },
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Wanted {
    Sizes,
    Ids,
}

impl LeaseFilter {
    /// Both tables are read by one statement, so in one snapshot, in which each lease is in exactly one of them.
    fn statement(&self, page: &Page) -> (Sql, Args<'_>) {
        let (first, end) = id_range(self.created_after, self.created_before, page.before);
        let of = |leases: &str, id: &str, task: &str, is_past: bool| {
            let mut build = Conditions::with(Args::new().uuid(end).int(page.limit));
            if let Some(first) = first {
                build.add(&format!("{id} >= "), |args| args.uuid(first));
            }
            if let Some(id) = self.task_id {
                build.add(&format!("{task} = "), |args| args.uuid(id));
            }
            build.equal("worker_id = ", self.worker_id.as_deref());
            if is_past {
                build.equal("status = ", self.status.map(LeaseStatus::as_str));
                build.equal("reason = ", self.reason.map(Reason::as_str));
                // The texts of the last two are those of their indexes.
                match self.outcome {
                    None => {}
                    Some(LeaseOutcome::Success) => build.fixed("completed AND reason IS NULL"),
                    Some(LeaseOutcome::Error) => build.fixed("completed AND reason IS NOT NULL AND reason <> 'cancelled'"),
                    Some(LeaseOutcome::Interrupted) => build.fixed("(NOT completed OR reason = 'cancelled')"),
                }
            }
            let (conditions, args) = build.into_parts();
            (format!("{leases}{conditions}"), args)
        };
        let active = format!("SELECT {ACTIVE} FROM task_state WHERE slot IS NOT NULL AND lease_id < $1");
        let (active, active_args) = of(&active, "lease_id", "id", false);
        let active = format!("{active} ORDER BY lease_id DESC LIMIT $2");
        let index = match (self.task_id, &self.worker_id, self.reason, self.outcome) {
            (Some(_), ..) => Some("leases_task"),
            (None, Some(_), ..) => Some("leases_worker"),
            (None, None, Some(_), _) => Some("leases_reason"),
            (None, None, None, Some(LeaseOutcome::Error)) => Some("leases_error"),
            (None, None, None, Some(LeaseOutcome::Interrupted)) => Some("leases_interrupted"),
            (None, None, None, _) => None,
        };
        let (past, past_args) = of("WHERE id < $1", "id", "task_id", true);
        let past = move |kind: Kind| {
            let hint = index.map_or_else(String::new, |index| kind.by_index(index));
            format!("SELECT {PAST} FROM leases {hint} {past} ORDER BY id DESC LIMIT $2")
        };
        // An active lease has neither an outcome nor a reason.
        let is_ended = self.outcome.is_some() || self.reason.is_some();
        match self.status {
            Some(LeaseStatus::Active) if !is_ended => (Sql::new(|_| active.clone()), active_args),
            Some(_) => (Sql::new(past), past_args),
            None if is_ended => (Sql::new(past), past_args),
            // Without these, both halves have the same parameters.
            None => {
                let both = |kind| {
                    let past = past(kind);
                    format!(
                        "SELECT {PAST} FROM (SELECT {PAST} FROM ({active}) AS a UNION ALL SELECT {PAST} FROM ({past}) AS p) AS l \
                        ORDER BY id DESC LIMIT $2"
                    )
                };
                (Sql::new(both), past_args)
            }
        }
    }
}

impl TaskFilter {
    /// Whether the conditions on status, question, worker, labels and end still hold. The other fields of the filter never change in a
    /// task.
    pub fn still_holds(&self, TaskRow { spec, state }: &TaskRow) -> bool {
        let worker = state.shown_lease().map(|(_, worker)| worker);
        let labels = state.labels(spec);
        self.status.is_none_or(|status| status == state.status)
            && (self.worker_id.is_none() || self.worker_id.as_ref() == worker)
            && self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
            && self.reason.is_none_or(|reason| state.failure.as_ref().is_some_and(|failure| failure.reason == reason))
            && (!self.asks || state.asks().is_some())
            && self.finished_after.is_none_or(|after| state.finished_at.is_some_and(|at| at > after))
    }

    /// The query uses the index of the most selective filter, and checks the other filters row by row. Its text consists of fixed parts;
    /// the values are parameters.
    pub(crate) fn statement(&self, start: Start, limit: i64, wanted: Wanted) -> (Sql, Args<'_>) {
        let is_finished = self.status.is_some_and(Status::is_final);
        let rare = self.status.is_some_and(|status| !matches!(status, Status::Queued));
        // Finished tasks of an agent have an index of their own. Of the unfinished ones, only queued tasks can be many.
        let finished_of_agent = is_finished && self.agent_slug.is_some();
        let few_of_spec = self.context_id.is_some() || self.owner.is_some() || self.key.is_some() || self.team.is_some();
        // The number of recently finished tasks does not grow with the tables. The tasks of a context, an owner or a worker are few enough
        // without this index.
        let is_few = few_of_spec || !self.labels.is_empty() || self.depends_on.is_some();
        let end_leads = self.finished_after.is_some() && self.ids.is_empty() && !is_few && self.worker_id.is_none();
        // Most tasks have no failure.
        let reason_leads = self.reason.is_some() && self.ids.is_empty() && !is_few && self.worker_id.is_none();
        let of_spec = few_of_spec || self.project.is_some() || (self.agent_slug.is_some() && !finished_of_agent);
        let spec_leads = few_of_spec
            || ((self.agent_slug.is_some() || self.project.is_some()) && self.worker_id.is_none() && !rare && !end_leads && !reason_leads);
        let with_spec = wanted == Wanted::Sizes || of_spec;
        // SQLite executes a CROSS JOIN in the order in which it is written. PostgreSQL's planner chooses the order.
        let (mut from, id) = match (self.depends_on, self.labels.is_empty()) {
            (Some(_), _) => ("task_deps d CROSS JOIN task_state s".to_owned(), "d.task_id"),
            (None, false) => ("task_labels l CROSS JOIN task_state s".to_owned(), "l.task_id"),
            (None, true) if spec_leads => ("tasks t CROSS JOIN task_state s".to_owned(), "t.id"),
            (None, true) => ("task_state s".to_owned(), "s.id"),
        };
        if with_spec && id != "t.id" {
            from.push_str(" CROSS JOIN tasks t");
        }
        let mut build = Conditions::default();
        if id.ends_with(".task_id") {
            build.fixed(&format!("s.id = {id}"));
        }
        if let Some(task) = self.depends_on {
            build.add("d.dep_id = ", |args| args.uuid(task));
        }
        if with_spec {
            // SQLite uses an index best if the column to look up is on the left.
            build.fixed(if id == "t.id" { "s.id = t.id" } else { "t.id = s.id" });
        }
        for (i, (key, value)) in self.labels.iter().enumerate() {
            if i == 0 && id == "l.task_id" {
                build.add("l.key = ", |args| args.text(key));
                build.add("l.value = ", |args| args.text(value));
            } else {
                build.add(&format!("EXISTS (SELECT 1 FROM task_labels m WHERE m.task_id = {id} AND m.key = "), |args| args.text(key));
                build.add("m.value = ", |args| args.text(value));
                build.close();
            }
        }
        build.equal("t.context_id = ", self.context_id.as_deref());
        build.equal("t.project = ", self.project.as_deref());
        build.equal("t.owner = ", self.key.as_deref());
        build.equal("t.team = ", self.team.as_deref());
        match &self.owner {
            None => {}
            Some(Owner::Key(key)) => build.equal("t.owner = ", Some(key)),
            Some(Owner::Team(team)) => build.equal("t.team = ", Some(team)),
        }
        if let Some(after) = self.finished_after {
            build.add("s.finished_at > ", |args| args.int(after));
        } else if finished_of_agent {
            build.fixed("s.finished_at IS NOT NULL");
        }
        build.equal(if finished_of_agent { "s.agent_slug = " } else { "t.agent_slug = " }, self.agent_slug.as_deref());
        build.equal("s.worker_id = ", self.worker_id.as_deref());
        build.equal("s.failure_reason = ", self.reason.map(Reason::as_str));
        build.equal("s.status = ", self.status.map(Status::as_str));
        let (before, after, order) = match start {
            Start::Newest { before } => (before, None, "DESC"),
            Start::Oldest { after } => (None, after, "ASC"),
        };
        let (first, end) = id_range(self.created_after, self.created_before, before);
        let first = first.max(after.map(|id| Uuid::from_u128(id.as_u128().saturating_add(1))));
        build.add(&format!("{id} < "), |args| args.uuid(end));
        if let Some(first) = first {
            build.add(&format!("{id} >= "), |args| args.uuid(first));
        }
        let wanted = match wanted {
            Wanted::Ids => id.to_owned(),
            Wanted::Sizes => format!("{id}, octet_length(t.prompt) + octet_length(t.context_hints)"),
        };
        let (text, args) = build.into_parts();
        let args = args.int(limit);
        let limit = args.len();
        let sql = Sql::new(|d| {
            let index = match (reason_leads, end_leads) {
                (true, _) => Some("task_state_reason"),
                (false, true) => Some("task_state_finished"),
                (false, false) => None,
            };
            let with_index = |index| from.replacen("task_state s", &format!("task_state s {}", d.by_index(index)), 1);
            let from = index.map_or_else(|| from.clone(), with_index);
            let named = if self.ids.is_empty() { String::new() } else { format!(" AND {id} {}", d.any(Type::Uuid, limit + 1)) };
            format!("SELECT {wanted} FROM {from} WHERE true{text}{named} ORDER BY {id} {order} LIMIT ${limit}")
        });
        (sql, if self.ids.is_empty() { args } else { args.uuids(&self.ids) })
    }
}

/// The range of ids that were made between these times and are before the page's cursor: the first id, and the end.
pub(crate) fn id_range(created_after: Option<Ms>, created_before: Option<Ms>, before: Option<Uuid>) -> (Option<Uuid>, Uuid) {
    let end = created_before.map_or(Uuid::max(), first_id_of).min(before.unwrap_or(Uuid::max()));
    (created_after.map(|after| first_id_of(after.saturating_add(1))), end)
}

/// The smallest id that can be made at this time. Ids store the time in 48 bits.
pub(crate) fn first_id_of(at: Ms) -> Uuid {
    let at = at.clamp(0, (1 << 48) - 1).unsigned_abs();
    Uuid::from_u128(u128::from(at) << 80)
}
