//! Who reconciles, by the database's clock; and when anybody served last.

use super::args::Args;
use super::conn::{Conn, Pool};
use super::dialect::{Kind, Sql, statement};
use super::error::Error;
use super::{Store, first};
use crate::core::Ms;

statement!(
    LEAD,
    |d| "INSERT INTO leader (id, holder, epoch, expires_at) VALUES (1, $1, 1, {0} + $2) \
    ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at, \
        epoch = leader.epoch + CASE WHEN leader.holder = excluded.holder THEN 0 ELSE 1 END \
    WHERE leader.holder = excluded.holder OR leader.expires_at < {0} RETURNING epoch",
    d.clock(3)
);
statement!(RESIGN, "UPDATE leader SET expires_at = 0 WHERE holder = $1");
statement!(STILL_LEADS, |d| "SELECT epoch FROM leader WHERE id = 1 AND epoch = $1 AND expires_at > {} {}", d.clock(2), d.share());
statement!(LAST_SERVED, "SELECT at FROM served WHERE id = 1");
statement!(MARK_SERVED, |d| "UPDATE served SET at = {0} WHERE id = 1 AND at < {0}", d.clock(1));
statement!(MARK_LANES, |d| "UPDATE lanes SET seen_at = {} WHERE replica = $1", d.clock(2));

/// The last statement before COMMIT: whoever takes over waits for this lock, so nothing of the old leadership commits behind its end.
pub(super) async fn check(conn: &mut Conn, epoch: i64, time: Option<Ms>) -> Result<(), Error> {
    if conn.kind() == Kind::Sqlite {
        return Ok(());
    }
    let row = conn.fetch(&STILL_LEADS, Args::new().int(epoch).int(time)).await?;
    if row.is_empty() { Err(Error::NotLeader) } else { Ok(()) }
}

impl Store {
    /// Becomes or stays leader for `ttl_ms` from now. `None` while somebody else is. The epoch rises with each change of holder.
    /// On SQLite there is nobody else.
    pub async fn lead(&self, holder: &str, ttl_ms: i64) -> Result<Option<i64>, Error> {
        if self.kind() == Kind::Sqlite {
            return Ok(Some(1));
        }
        let args = Args::new().text(holder).int(ttl_ms).int(self.known_time());
        first(&self.pool().fetch(&LEAD, args).await?, |row| row.take())
    }

    /// Lets another lead at once.
    pub async fn resign(&self, holder: &str) -> Result<(), Error> {
        if self.kind() == Kind::Postgres {
            self.pool().execute(&RESIGN, Args::new().text(holder)).await?;
        }
        Ok(())
    }

    /// When any replica served last; `None` if none ever did.
    pub async fn last_served(&self) -> Result<Option<Ms>, Error> {
        let at: Option<Ms> = first(&self.pool().fetch(&LAST_SERVED, Args::new()).await?, |row| row.take())?;
        Ok(at.filter(|at| *at > 0))
    }

    /// This replica serves. To be called about once a second; a lane of a replica that is silent for an hour is removed.
    pub async fn mark_served(&self) -> Result<(), Error> {
        self.write_aside(&MARK_SERVED, Args::new().int(self.known_time())).await?;
        self.write_aside(&MARK_LANES, Args::new().text(self.inner.replica.as_str()).int(self.known_time())).await
    }

    /// A write that is no part of a batch.
    async fn write_aside(&self, sql: &Sql, args: Args<'_>) -> Result<(), Error> {
        match self.pool() {
            Pool::Postgres(_) => self.pool().execute(sql, args).await.inspect_err(|error| self.inner.health.note(error))?,
            Pool::Sqlite(..) => {
                let mut side = self.side().await?;
                let Some(conn) = side.as_mut() else { return Err(Error::Unavailable("no connection".into())) };
                conn.execute(sql, args).await?
            }
        };
        self.inner.health.committed()
    }

    /// SQLite's connection for writing aside, open.
    pub(super) async fn side(&self) -> Result<tokio::sync::MutexGuard<'_, Option<Conn>>, Error> {
        let mut side = self.inner.side.lock().await;
        if side.is_none() {
            *side = Some(self.inner.target.side_writer().await?);
        }
        Ok(side)
    }
}
