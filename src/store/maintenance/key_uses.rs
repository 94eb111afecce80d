//! The times when the named keys were last used.

use std::collections::BTreeMap;

use crate::batch::writer::Writer;
use crate::error::Error;
use crate::sql::args::{Args, Bulk};
use crate::sql::dialect::statement;
use crate::sql::table::{WriteRow, row};
use crate::{Store, all};
use bloom_core::Ms;
use bloom_database::Done;

row! { pub(crate) struct KeyUse<'a>: api_key_uses as api_key_uses_row { name: &'a str, last_used_at: Ms } }

statement!(USES, "SELECT name, last_used_at FROM api_key_uses");
// The rows are written in the order of their names, so that replicas that write at the same time wait for each other instead of
// deadlocking. A key that was revoked meanwhile gets no new row.
statement!(
    RECORD,
    |d| "INSERT INTO api_key_uses (name, last_used_at) SELECT v.name, v.last_used_at FROM {} \
        WHERE EXISTS (SELECT 1 FROM api_keys k WHERE k.name = v.name) ORDER BY v.name \
        ON CONFLICT (name) DO UPDATE SET last_used_at = excluded.last_used_at WHERE api_key_uses.last_used_at < excluded.last_used_at",
    d.rows(KeyUse::ROW, 1)
);

impl Store {
    /// The time when each key was last used, by its name, as far as the replicas have recorded it. Keys that were never used are left out.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn key_uses(&self) -> Result<BTreeMap<String, Ms>, Error> {
        let rows = all(&self.pool().fetch(&USES, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))?;
        Ok(rows.into_iter().collect())
    }
}

impl Writer {
    pub(crate) async fn record_key_uses(&mut self, uses: &[(String, Ms)]) -> Result<Done, Error> {
        let rows = Bulk::of(uses.iter().map(|(name, last_used_at)| KeyUse { name, last_used_at: *last_used_at }));
        self.begin_maintenance().await?;
        let rows = self.conn()?.execute(&RECORD, Args::new().bulk(rows)).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }
}
