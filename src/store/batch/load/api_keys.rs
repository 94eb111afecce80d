//! The named keys of a batch: their lock, their rows, and the number of the other keys.

use bloom_core::api_key::ApiKey;
use bloom_core::audit::actor_of_namespace;
use bloom_core::command::RowKeys;
use bloom_core::working_set::LoadedKeys;

use super::Load;
use crate::all;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement};
use crate::sql::record_rows;
use crate::sql::table::ReadRow as _;

statement!(HOLD_KEYS, |d| "SELECT {} IS NULL", d.lock_keys());

/// Whether a key belongs to a WorkerPool: `ApiKey::pool_namespace` in SQL.
fn is_of_pool() -> String {
    let actor = actor_of_namespace("");
    format!("substr(created_by, 1, {}) = '{actor}'", actor.len())
}

/// `RowKeys::wants_key` in SQL.
fn wanted(d: Kind) -> String {
    format!("WHERE NOT {} OR name {} OR worker {}", is_of_pool(), d.any(Type::Text, 1), d.any(Type::Text, 2))
}

fn lock_rows(d: Kind, lock: &str) -> String {
    format!("SELECT name FROM api_keys {} ORDER BY name {lock}", wanted(d))
}
statement!(LOCK_KEYS, |d| "{}", lock_rows(d, d.lock()));
statement!(LOCK_FREE_KEYS, |d| "{}", lock_rows(d, d.skip_locked()));
statement!(KEYS, |d| "SELECT {} FROM api_keys {} ORDER BY name", record_rows::API_KEY.names(""), wanted(d));
statement!(
    KEYS_OF_POOLS,
    |_d| "SELECT substr(created_by, {}), count(*) FROM api_keys WHERE {} GROUP BY created_by",
    actor_of_namespace("").len() + 1,
    is_of_pool()
);

impl Load<'_> {
    /// Keeps others from adding or removing keys until the end of the transaction, so that the counted numbers stay right. The rows are
    /// locked too, so that a row that another program keeps locked is noticed now, and not when it is to be removed.
    pub(super) async fn lock_api_keys(&mut self, keys: &RowKeys) -> Result<(), Error> {
        if !keys.api_keys {
            return Ok(());
        }
        let asked = || Args::new().texts(&keys.key_names).texts(&keys.key_workers);
        self.conn.fetch(&HOLD_KEYS, Args::new()).await?;
        let locked = self.conn.fetch(if self.skip_locked { &LOCK_FREE_KEYS } else { &LOCK_KEYS }, asked()).await?;
        let rows = all(&self.conn.fetch(&KEYS, asked()).await?, ApiKey::read)?;
        self.loaded.locked_api_keys = self.skip_locked && locked.len() < rows.len();
        if self.loaded.locked_api_keys {
            return Ok(());
        }
        let of_pools = all(&self.conn.fetch(&KEYS_OF_POOLS, Args::new()).await?, |row| {
            let (namespace, count): (String, i64) = (row.take()?, row.take()?);
            Ok((namespace, usize::try_from(count).unwrap_or_default()))
        })?;
        self.loaded.api_keys = Some(LoadedKeys::new(keys, rows, of_pools.into_iter().collect()));
        Ok(())
    }
}
