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
use bloom_api::answers::Lease;
use bloom_api::words::Word;
use bloom_client::Error;
use bloom_core::Ms;
use bloom_core::task::{LeaseOutcome, LeaseStatus, Reason};

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

/// As [`list`]; `None` if the key may not read the list: a submit or member key may not read the audit trail, and leases only of one task.
async fn permitted(server: &Server, path: &str, query: &[(&str, String)], limit: usize) -> Result<Option<Vec<Value>>, CommandError> {
    match server.list(path, query, limit).await {
        Ok((rows, _)) => Ok(Some(rows)),
        Err(error) if error.status() == Some(403) || is_of_one_task(&error) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Whether the server refuses a list because the key may read it only for one task.
fn is_of_one_task(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 400, fields, .. } if fields.iter().any(|(field, _)| field == "task_id"))
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

/// How the lease ended for its run, and why; empty while it is active.
fn end(lease: &Lease, _: Ms) -> String {
    let Some(outcome) = &lease.outcome else { return String::new() };
    let (reason, message) = (columns::given(&lease.reason), lease.message.as_deref().unwrap_or_default());
    let why = if message.is_empty() { reason.clone() } else { format!("{reason}: {message}") };
    match outcome {
        Word::Known(LeaseOutcome::Success) => "the run succeeded".to_owned(),
        Word::Known(LeaseOutcome::Error) => format!("the run failed: {why}"),
        _ if lease.status == LeaseStatus::Expired => "the lease expired".to_owned(),
        // The text of a run that was cancelled often begins with this word.
        _ if message.is_empty() || (lease.reason == Some(Reason::Cancelled.into()) && !message.starts_with("cancelled")) => why,
        _ => message.to_owned(),
    }
}

fn lasted(lease: &Lease, now: Ms) -> String {
    columns::age(lease.started_at, lease.ended_at.unwrap_or(now))
}

/// When the last heartbeat came, relative to the start of the lease.
fn renewed(lease: &Lease, _: Ms) -> String {
    let Lease { started_at, last_heartbeat, .. } = *lease;
    if last_heartbeat > started_at { format!("after {}", columns::age(started_at, last_heartbeat)) } else { "never".into() }
}

fn tokens(lease: &Lease, _: Ms) -> String {
    lease.usage.map(|usage| format!("{}+{}", usage.input_tokens, usage.output_tokens)).unwrap_or_default()
}

fn cost(lease: &Lease, _: Ms) -> String {
    lease.usage.as_ref().map(columns::cost).unwrap_or_default()
}

fn state(lease: &Lease, now: Ms) -> String {
    match lease.status {
        Word::Known(LeaseStatus::Active) if lease.expires_at <= now => "active, expires now".into(),
        Word::Known(LeaseStatus::Active) => format!("active, expires in {}", columns::age(now, lease.expires_at)),
        ref status => status.to_string(),
    }
}

const STARTED: Column<Lease<'static>> = Column::new("STARTED", |lease, now| format!("{} ago", columns::age(lease.started_at, now)));
const TASK: Column<Lease<'static>> = Column::short("TASK", |lease, _| ids::short(&lease.task_id), |lease, _| lease.task_id.to_string());
const CONTEXT: Column<Lease<'static>> = Column::new("CONTEXT", |lease: &Lease, _| lease.context_id.to_string()).spare(2);
const WORKER: Column<Lease<'static>> = Column::new("WORKER", |lease, _| lease.worker_id.to_string());
const LASTED: Column<Lease<'static>> = Column::new("LASTED", lasted).spare(5);
const RENEWED: Column<Lease<'static>> = Column::new("RENEWED", renewed).spare(6);
const LEASE: Column<Lease<'static>> = Column::new("LEASE", state).spare(1);
const END: Column<Lease<'static>> = Column::new("END", end).cut(LEAST_END, USUAL_END);
const TOKENS: Column<Lease<'static>> = Column::new("TOKENS", tokens).spare(7);
const COST: Column<Lease<'static>> = Column::new("COST", cost).spare(4);
const MODEL: Column<Lease<'static>> = Column::wide("MODEL", |lease, _| columns::given(&lease.model));
const ID: Column<Lease<'static>> = Column::wide("ID", |lease, _| lease.id.to_string());

static OF_TASK: Kind<Lease<'static>> =
    Kind { columns: &[STARTED, WORKER, LASTED, RENEWED, LEASE, END, TOKENS, COST, MODEL, ID], name: |lease| lease.id.to_string() };

static OF_WORKER: Kind<Lease<'static>> =
    Kind { columns: &[STARTED, TASK, CONTEXT, LASTED, RENEWED, LEASE, END, TOKENS, COST, MODEL, ID], name: |lease| lease.id.to_string() };
