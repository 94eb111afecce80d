//! The quotas of the submit keys of a batch: their locks and their use.

use bloom_core::api_key::Quota;
use bloom_core::command::RowKeys;
use bloom_core::working_set::QuotaUse;

use super::Load;
use crate::batch::save::QuotaRow;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement};
use crate::sql::table::WriteRow as _;
use crate::{all, one};

fn lock_rows(d: Kind, lock: &str) -> String {
    format!("SELECT name FROM api_keys WHERE name {} ORDER BY name {lock}", d.any(Type::Text, 1))
}
statement!(LOCK, |d| "{}", lock_rows(d, d.lock()));
statement!(LOCK_FREE, |d| "{}", lock_rows(d, d.skip_locked()));
// Runs after the locks, in a later snapshot. A transaction that uses a quota holds the lock of its key, so no use is missed.
statement!(USES, |d| "SELECT {} FROM api_keys WHERE name {}", QuotaRow::ROW.names(""), d.any(Type::Text, 1));
statement!(pub(crate) OPEN_TASKS, "SELECT count(*) FROM task_state WHERE owner = $1 AND status IN ('queued', 'leased', 'running')");

impl Load<'_> {
    pub(super) async fn lock_quotas(&mut self, keys: &RowKeys) -> Result<(), Error> {
        if keys.quotas.is_empty() {
            return Ok(());
        }
        let asked = || Args::new().texts(&keys.quotas);
        let lock = if self.skip_locked { &LOCK_FREE } else { &LOCK };
        let locked: Vec<String> = all(&self.conn.fetch(lock, asked()).await?, |row| row.take())?;
        let found: Vec<(String, QuotaUse)> = all(&self.conn.fetch(&USES, asked()).await?, |row| {
            let name = row.take()?;
            let quota = Quota { max_open_tasks: row.take()?, max_tasks_per_minute: row.take()?, max_stored_bytes: row.take()? };
            Ok((name, QuotaUse { quota, open_tasks: 0, refilled_at: row.take()?, stored_bytes: row.take()? }))
        })?;
        let quotas = &mut self.loaded.quotas;
        quotas.uses.extend(keys.quotas.iter().map(|name| (name.clone(), None)));
        for (name, mut used) in found {
            if !locked.contains(&name) {
                quotas.uses.remove(&name);
                quotas.locked.insert(name);
                continue;
            }
            if used.quota.max_open_tasks.is_some() {
                used.open_tasks = one(&self.conn.fetch(&OPEN_TASKS, Args::new().text(&name)).await?, |row| row.take())?;
            }
            quotas.uses.insert(name, Some(used));
        }
        Ok(())
    }
}
