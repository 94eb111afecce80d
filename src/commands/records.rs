//! Leases, and what lists have in common.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use clap_complete::{ArgValueCandidates, ArgValueCompleter};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::number::within;
use super::server_calls::{Server, failed};
use super::show::{self, Form, Kind, Shown};
use super::words::one_of;
use super::{columns, ids, shell_completion, term, when};
use crate::CommandError;
use bloom_core::Ms;
use bloom_core::task::{LeaseOutcome, LeaseStatus, Reason};

/// The maximum number of rows of a list, over all its pages.
pub(crate) const MAX_ROWS: u64 = 100_000;

/// How many rows a list that is sorted has at least, if there are so many.
const SORTED_ROWS: usize = 1_000;

/// The limit of a list if none is given.
const USUAL_ROWS: u64 = 100;

/// Which rows of a list are shown, and in which order.
#[derive(Args, Clone, Debug)]
pub struct Limit {
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "N", default_value_t = USUAL_ROWS, value_parser = within(1..=MAX_ROWS))]
    limit: u64,
    /// Sort by a column of the table, such as age; -age sorts descending. Of more rows, the newest 1,000 or --limit are sorted
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true, add = ArgValueCandidates::new(shell_completion::columns))]
    sort: Option<String>,
}

impl Limit {
    pub fn rows(&self) -> usize {
        self.limit as usize
    }

    /// How many rows are read: of a sorted list more than are shown, so that the dearest tasks are not only those of the newest three.
    pub fn read_rows(&self) -> usize {
        if self.sort.is_some() { self.rows().max(SORTED_ROWS) } else { self.rows() }
    }

    /// Sorts and shows rows of a list, and says if there are more of them.
    ///
    /// # Errors
    /// There is no such column to sort by, or the output can't be written.
    pub fn show<T: DeserializeOwned>(
        &self,
        (mut rows, mut more): (Vec<Value>, bool),
        shown: Shown,
        kind: &'static Kind<T>,
    ) -> Result<(), CommandError> {
        let read = rows.len();
        if let Some(column) = &self.sort {
            kind.sort(&mut rows, column)?;
        }
        rows.truncate(self.rows());
        if self.sort.is_some() && more {
            term::info(&format!("Only the newest {read} are sorted: use filters, or a higher --limit."));
            more = false;
        }
        more |= self.sort.is_some() && read > rows.len();
        let form = shown.form_or(Form::Table);
        show::list(form, kind, &rows)?;
        // A script that sets a limit expects that there may be more rows.
        if more && (matches!(form, Form::Table | Form::Wide) || self.limit == USUAL_ROWS) {
            let shown = if rows.len() == 1 { "this one".to_owned() } else { format!("these {}", rows.len()) };
            term::info(&format!("There are more than {shown}: use a higher --limit."));
        }
        Ok(())
    }
}

#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// List leases, newest first
    #[command(alias = "ls")]
    List {
        /// Only leases with this status
        #[arg(long, value_parser = one_of(LeaseStatus::ALL))]
        status: Option<String>,
        /// Only ended leases with this outcome; interrupted: the run was cancelled or handed back, or its worker was lost
        #[arg(long, value_parser = one_of(LeaseOutcome::ALL))]
        outcome: Option<String>,
        /// Only leases whose run failed or was interrupted for this reason
        #[arg(long, value_parser = one_of(Reason::ALL))]
        reason: Option<String>,
        /// Only leases of this worker
        #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
        worker: Option<String>,
        /// Only leases of this task: its id, or the beginning or the end of the id; required with a submit or member key
        #[arg(long, value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
        task: Option<String>,
        /// Only made after: how long ago (2h), a day (2026-02-25) or a time
        #[arg(long, value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
        since: Option<Ms>,
        /// Only made before; as --since
        #[arg(long, value_name = "WHEN", value_parser = when::past, allow_hyphen_values = true)]
        until: Option<Ms>,
        #[command(flatten)]
        limit: Limit,
    },
}

pub(crate) async fn leases(command: LeaseCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let LeaseCommand::List { status, outcome, reason, worker, mut task, since, until, limit } = command;
    when::in_order(since, until)?;
    if let Some(task) = &mut task {
        *task = ids::task(server, task).await.map_err(|failure| failure.about("--task"))?;
    }
    let (since, until) = (since.map(|at| at.to_string()), until.map(|at| at.to_string()));
    let filters = [
        ("status", status),
        ("outcome", outcome),
        ("reason", reason),
        ("worker_id", worker),
        ("task_id", task),
        ("created_after", since),
        ("created_before", until),
    ];
    let query: Vec<_> = filters.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
    pages(server, "api/runtime/leases", &query, limit, shown, &columns::LEASES).await
}

/// Shows a list, and says if there are more rows.
pub(crate) async fn pages<T: DeserializeOwned>(
    server: &Server,
    path: &str,
    query: &[(&str, String)],
    limit: Limit,
    shown: Shown,
    kind: &'static Kind<T>,
) -> Result<(), CommandError> {
    limit.show(server.list(path, query, limit.read_rows()).await.map_err(failed)?, shown, kind)
}
