//! `task describe`, `worker describe` and `conversation describe`: everything about one object, for people. With -o json, the server's
//! answers from which the description is made.

pub(crate) mod advice;
mod conversation;
mod task;
mod worker;

use serde_json::{Map, Value};

use super::columns;
use super::server_calls::{Server, failed};
use super::show::{self, Form, Kind};
use super::table::Column;
use super::{ids, term};
use crate::CommandError;
use bloom_api::answers::{Audit, Lease};
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::task::LeaseStatus;

pub(crate) use conversation::conversation;
pub(crate) use task::task;
pub(crate) use worker::worker;

/// The maximum numbers of leases, audit entries and events that are read.
const LEASES: usize = 50;
const ENTRIES: usize = 100;
const EVENTS: usize = 10;
/// The maximum number of a worker's leases and audit entries that are shown to people.
const NEWEST: usize = 10;

/// People look for the end of an attempt, so other columns are left out before this one becomes narrower.
const LEAST_END: usize = 40;
/// The width if the terminal's is unknown. `task describe` shows the whole failure on a line of its own.
const USUAL_END: usize = 60;

/// The rows of a list, as the server sent them.
async fn list(server: &Server, path: &str, query: &[(&str, String)], limit: usize) -> Result<Vec<Value>, CommandError> {
    let (rows, _) = server.list(path, query, limit).await.map_err(failed)?;
    Ok(rows)
}

/// As [`list`]; `None` if the key may not read the list: a submit key may not read leases and the audit trail.
async fn permitted(server: &Server, path: &str, query: &[(&str, String)], limit: usize) -> Result<Option<Vec<Value>>, CommandError> {
    match server.list(path, query, limit).await {
        Ok((rows, _)) => Ok(Some(rows)),
        Err(error) if error.status() == Some(403) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Prints lines with a name and a value. Empty values are left out.
fn facts(facts: &[(&str, String)]) -> Result<(), CommandError> {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default() + 2;
    let given = facts.iter().filter(|(_, value)| !value.is_empty());
    // The lines of a value are kept. On one line, the text after a comment of a command would look like a part of the comment.
    let lines = |value: &str| term::safe(value).split('\n').map(str::trim_end).collect::<Vec<_>>().join(&format!("\n{:width$}", ""));
    term::print(&given.map(|(name, value)| format!("{:width$}{}\n", format!("{name}:"), lines(value))).collect::<String>())
}

/// Prints a table under a title, or `none` if it has no rows.
fn section<T>(title: &str, form: Form, kind: &'static Kind<T>, rows: &[T]) -> Result<(), CommandError> {
    let empty = if rows.is_empty() { " none" } else { "" };
    term::print(&format!("\n{title}:{empty}\n"))?;
    if rows.is_empty() { Ok(()) } else { show::table(form, kind, rows) }
}

/// Names the command that lists the rows that a section leaves out, if there are any.
fn more(is_more: bool, command: &str) -> Result<(), CommandError> {
    if is_more { term::print(&format!("Earlier ones: {}\n", term::line(command))) } else { Ok(()) }
}

/// Prints a section that the key may not read.
fn closed(title: &str) -> Result<(), CommandError> {
    term::print(&format!("\n{title}: not open to this key\n"))
}

/// Prints the parts as one JSON or YAML document.
fn document(form: Form, parts: Vec<(&str, Value)>) -> Result<(), CommandError> {
    show::as_it_came(form, &parts.into_iter().map(|(name, part)| (name.to_owned(), part)).collect::<Map<_, _>>())
}

/// A lease and how it ended.
struct Attempt {
    lease: Lease<'static>,
    end: String,
}

/// The leases, each with its end according to the audit trail (oldest first).
fn attempts(leases: Vec<Lease<'static>>, trail: &[Audit<'static>]) -> Vec<Attempt> {
    let end = |lease: &Lease| {
        let Some(ended_at) = lease.ended_at else { return String::new() };
        let is_end = |entry: &&Audit| {
            entry.task_id == Some(lease.task_id)
                && entry.timestamp >= ended_at
                && !matches!(entry.action, Word::Known(Action::TaskCreated | Action::TaskLeased | Action::TaskDispatched))
        };
        let told = |entry: &Audit| match &entry.action {
            // "the run failed: timeout"
            Word::Known(Action::TaskCompleted) => entry.detail.to_string(),
            // "timeout, attempt 1 of 3"
            Word::Known(Action::TaskRetried) => format!("the run failed: {}", entry.detail),
            // "timeout: did not end within its time limit of 1m"
            Word::Known(Action::TaskDead) => format!("the run failed, and the task is dead: {}", entry.detail),
            // Its detail only names the task and the worker.
            Word::Known(Action::LeaseExpired) => "the lease expired".to_owned(),
            Word::Known(Action::TaskReleased) => format!("handed back: {}", entry.detail),
            // "cancelled: cancelled on request"
            Word::Known(Action::TaskCancelled) => {
                let told = entry.detail.strip_prefix("cancelled: ").unwrap_or(&entry.detail);
                if told.starts_with("cancelled") { told.to_owned() } else { format!("cancelled: {told}") }
            }
            action => format!("{} {}", action.to_string().replace('_', " "), entry.detail).trim_end().to_owned(),
        };
        // A key that sees only some tasks may not read the audit trail.
        trail.iter().find(is_end).map(told).unwrap_or_else(|| match (&lease.outcome, &lease.reason) {
            (Some(_), Some(reason)) => format!("the run failed: {reason}"),
            (Some(outcome), None) => outcome.to_string(),
            (None, _) => String::new(),
        })
    };
    leases.into_iter().map(|lease| Attempt { end: end(&lease), lease }).collect()
}

fn lasted(attempt: &Attempt, now: Ms) -> String {
    columns::age(attempt.lease.started_at, attempt.lease.ended_at.unwrap_or(now))
}

/// When the last heartbeat came, relative to the start of the lease.
fn renewed(attempt: &Attempt, _: Ms) -> String {
    let Lease { started_at, last_heartbeat, .. } = attempt.lease;
    if last_heartbeat > started_at { format!("after {}", columns::age(started_at, last_heartbeat)) } else { "never".into() }
}

fn tokens(attempt: &Attempt, _: Ms) -> String {
    attempt.lease.usage.map(|usage| format!("{}+{}", usage.input_tokens, usage.output_tokens)).unwrap_or_default()
}

fn cost(attempt: &Attempt, _: Ms) -> String {
    attempt.lease.usage.as_ref().map(columns::cost).unwrap_or_default()
}

fn state(attempt: &Attempt, now: Ms) -> String {
    match attempt.lease.status {
        Word::Known(LeaseStatus::Active) if attempt.lease.expires_at <= now => "active, expires now".into(),
        Word::Known(LeaseStatus::Active) => format!("active, expires in {}", columns::age(now, attempt.lease.expires_at)),
        ref status => status.to_string(),
    }
}

const STARTED: Column<Attempt> = Column::new("STARTED", |attempt, now| format!("{} ago", columns::age(attempt.lease.started_at, now)));
const TASK: Column<Attempt> =
    Column::short("TASK", |attempt, _| ids::short(&attempt.lease.task_id), |attempt, _| attempt.lease.task_id.to_string());
const CONTEXT: Column<Attempt> = Column::new("CONTEXT", |attempt: &Attempt, _| attempt.lease.context_id.to_string()).spare(2);
const WORKER: Column<Attempt> = Column::new("WORKER", |attempt, _| attempt.lease.worker_id.to_string());
const LASTED: Column<Attempt> = Column::new("LASTED", lasted).spare(5);
const RENEWED: Column<Attempt> = Column::new("RENEWED", renewed).spare(6);
const LEASE: Column<Attempt> = Column::new("LEASE", state).spare(1);
const END: Column<Attempt> = Column::new("END", |attempt: &Attempt, _| attempt.end.clone()).cut(LEAST_END, USUAL_END);
const TOKENS: Column<Attempt> = Column::new("TOKENS", tokens).spare(7);
const COST: Column<Attempt> = Column::new("COST", cost).spare(4);
const MODEL: Column<Attempt> = Column::wide("MODEL", |attempt, _| columns::given(&attempt.lease.model));
const ID: Column<Attempt> = Column::wide("ID", |attempt, _| attempt.lease.id.to_string());

static OF_TASK: Kind<Attempt> = Kind {
    columns: &[STARTED, WORKER, LASTED, RENEWED, LEASE, END, TOKENS, COST, MODEL, ID],
    name: |attempt| attempt.lease.id.to_string(),
};

static OF_WORKER: Kind<Attempt> = Kind {
    columns: &[STARTED, TASK, CONTEXT, LASTED, RENEWED, LEASE, END, TOKENS, COST, MODEL, ID],
    name: |attempt| attempt.lease.id.to_string(),
};
