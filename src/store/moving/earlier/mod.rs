//! Writes the database of the earlier runtime (PostgreSQL, with the tables `llm_tasks`, `leases`, `workers`, `runtime_artifacts`,
//! `llm_results`, `audit_logs` and `runtime_settings`) as an export of this program.
//!
//! Ids of tasks are kept. All other lists of this program are ordered by id, and the newest result is found by its id. So other ids that do
//! not contain a time get one and keep their remaining bits. The same row gets the same id each time.

mod copies;
mod fields;
mod records;
mod settings;
mod sink;
mod tasks;

use std::path::Path;

use super::Moved;
use crate::backup::target::Target;
use crate::error::Error;
use crate::opening::open::{self, StoreOptions};
use crate::sql::args::Args;
use crate::sql::dialect::statement;
use crate::{Store, all, one};
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use sink::Sink;

/// What [`Store::export_earlier`] did.
#[derive(Clone, Debug, Default)]
pub struct FromEarlier {
    /// The number of rows in the export.
    pub rows: u64,
    /// The number of tasks that a worker held; they are queued again.
    pub queued_again: u64,
    /// The number of rows that were left out.
    pub left_out: u64,
    /// Why the first of these rows were left out, one line each.
    pub reasons: Vec<String>,
}

/// The most rows for which the reason is listed.
const REASONS: usize = 20;
const TABLES: [&str; 7] = ["workers", "llm_tasks", "leases", "llm_results", "runtime_artifacts", "audit_logs", "runtime_settings"];

statement!(SNAPSHOT, "BEGIN");
statement!(MISSING, "SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NULL");
statement!(IS_OWN, "SELECT to_regclass('task_state') IS NOT NULL");

impl Store {
    /// Reads the database at this URL in one transaction and writes an export for [`import`](Self::import). The database is not changed.
    /// The file must not be a file of the database in `options`.
    ///
    /// # Errors
    /// [`Error::Setup`] with what to do: the URL does not lead to such a database, the file can't be written, or rows can't be exported
    /// (unless `skips_invalid` is set).
    pub async fn export_earlier(
        options: &StoreOptions,
        url: &str,
        to: &Path,
        replaces: bool,
        skips_invalid: bool,
        mut tell: impl FnMut(Moved),
    ) -> Result<FromEarlier, Error> {
        let target = Target::new(to, replaces, options)?;
        let file = target.create()?;
        let mut conn = open::foreign_snapshot(url).await?;
        conn.execute(&SNAPSHOT, Args::new()).await?;
        if one(&conn.fetch(&IS_OWN, Args::new()).await?, |row| row.take())? {
            return Err(Error::Setup("this is a database of bloom-runtime itself: name it in DATABASE_URL, without --from".into()));
        }
        let missing: Vec<String> = all(&conn.fetch(&MISSING, Args::new().texts(TABLES)).await?, |row| row.take())?;
        if !missing.is_empty() {
            return Err(Error::Setup(format!("the database has no table {}: check the URL and its search_path", missing.join(", "))));
        }
        let mut of = 0;
        for table in TABLES {
            conn.each(format!("SELECT count(*) FROM {table}"), |row| {
                of += u64::try_from(row.cells().take::<i64>()?).unwrap_or(0);
                Ok(())
            })
            .await?;
        }
        let mut sink = Sink::new(file.file(), of, &mut tell)?;
        sink.add(&AgentQueue::new(ALL_QUEUES))?;
        records::workers(&mut conn, &mut sink).await?;
        tasks::write(&mut conn, &mut sink).await?;
        records::leases(&mut conn, &mut sink).await?;
        records::results(&mut conn, &mut sink).await?;
        records::audit(&mut conn, &mut sink).await?;
        settings::write(&mut conn, &mut sink).await?;
        conn.close().await;
        let done = sink.end()?;
        if done.left_out > 0 && !skips_invalid {
            return Err(Error::Setup(format!(
                "{}\nNothing was written. Correct these rows, or give --skip-invalid to leave them out",
                done.told()
            )));
        }
        file.sync().map_err(|error| Error::Setup(format!("{}: {error}", to.display())))?;
        target.place(file)?;
        Ok(done)
    }
}

impl FromEarlier {
    /// A text about what was left out; empty if nothing was.
    pub fn told(&self) -> String {
        if self.left_out == 0 {
            return String::new();
        }
        let more = self.left_out - self.reasons.len() as u64;
        let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
        let rows = if self.left_out == 1 { "row" } else { "rows" };
        format!("{} {rows} can't be taken:\n  {}{more}", self.left_out, self.reasons.join("\n  "))
    }
}
