//! Leadership by the database's clock, and the service mark.

use crate::Store;
use crate::error::Error;
use crate::opening::postgres_check;
use crate::outage::OutageReason;
use crate::sql::args::Args;
use crate::sql::cells::Row;
use crate::sql::conn::Conn;
use crate::sql::dialect::{Kind, Sql, statement};
use bloom_core::Ms;

// A leadership that expires later than its TTL allows was taken before the clock stepped back. It may be taken over, because the replicas
// would otherwise have no leader until the clock has caught up.
statement!(
    pub(crate) LEAD,
    |d| "INSERT INTO leader (id, holder, epoch, expires_at) VALUES (1, $1, 1, {0} + $2) \
    ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at, \
        epoch = leader.epoch + CASE WHEN leader.holder = excluded.holder THEN 0 ELSE 1 END \
    WHERE leader.holder = excluded.holder OR leader.expires_at < {0} OR leader.expires_at > {0} + $2 RETURNING epoch",
    d.clock(3)
);
statement!(pub(crate) RESIGN, "UPDATE leader SET expires_at = 0 WHERE holder = $1");
statement!(STILL_LEADS, |d| "SELECT epoch FROM leader WHERE id = 1 AND epoch = $1 AND expires_at > {} {}", d.clock(2), d.share());

/// A difference of more than this between two marks of any replicas, in either direction, is a gap in service. Each replica writes a mark
/// twice a second.
const GAP_MS: i64 = 1_500;
// No mark is written if an import has begun since the start. The caches of this process no longer match the database, and its mark would
// abort the import.
statement!(
    pub(crate) MARK_SERVED,
    |d| "WITH c AS MATERIALIZED (SELECT {} AS now) \
    UPDATE served SET at = c.now, resumed_at = \
        CASE WHEN $2 = 1 OR served.at < c.now - {GAP_MS} OR served.at > c.now + {GAP_MS} THEN c.now ELSE served.resumed_at END \
    FROM c WHERE served.id = 1 AND NOT EXISTS (SELECT 1 FROM imports WHERE number > $3) RETURNING at, resumed_at",
    d.clock(1)
);
statement!(pub(crate) MARK_WRITERS, |d| "UPDATE lanes SET seen_at = {} WHERE replica = $1", d.clock(2));
/// A writer whose replica is silent for an hour is removed, so these marks need not be exact.
pub(crate) const MARK_WRITERS_EVERY_MS: i64 = 1_000;

/// What this process remembers of its service marks.
#[derive(Default)]
pub(crate) struct Served {
    pub has_begun: bool,
    pub writers_marked_at: Option<Ms>,
    /// When this process wrote its last mark.
    pub marked: Option<std::time::Instant>,
    /// The number of the last import before this process began to serve. `None` if it does not serve.
    pub last_import: Option<i64>,
}

impl Served {
    /// Imports with higher numbers began while this process served.
    pub(crate) fn last_import(&self) -> i64 {
        self.last_import.unwrap_or(i64::MAX)
    }
}

/// Checks that the leadership of the epoch still holds. Must be the last statement before COMMIT: a new leader waits for its lock, so no
/// command of the old leadership commits after the end of that leadership.
pub(crate) async fn check(conn: &mut Conn, epoch: i64, time: Option<Ms>) -> Result<(), Error> {
    if conn.kind() == Kind::Sqlite {
        return Ok(());
    }
    let row = conn.fetch(&STILL_LEADS, Args::new().int(epoch).int(time)).await?;
    if row.is_empty() { Err(Error::NotLeader) } else { Ok(()) }
}

impl Store {
    /// A write outside of batches, on a connection that no batch delays.
    pub(crate) async fn write_aside(&self, sql: &Sql, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let mut side = self.side().await?;
        // The connection is taken out, so that it is dropped if the statement fails or this future is dropped.
        let mut conn = side.take().ok_or_else(|| self.inner.health.away())?;
        let turn = self.write_turn().await;
        let rows = conn.fetch(sql, args).await.inspect_err(|error| self.inner.health.record_error(error))?;
        drop(turn);
        *side = Some(conn);
        self.inner.health.committed()?;
        Ok(rows)
    }

    /// The connection for writes outside of batches, opened if necessary.
    pub(crate) async fn side(&self) -> Result<tokio::sync::MutexGuard<'_, Option<Conn>>, Error> {
        let mut side = self.inner.side.lock().await;
        if side.is_none() {
            let opened = self.inner.target.side_writer().await;
            *side = Some(opened.inspect_err(|error| self.inner.health.record_error(error))?);
        }
        Ok(side)
    }

    /// Ends an outage of PostgreSQL if writes succeed again. A successful service mark alone does not show that, because a full disk may
    /// have room for a single row, and a lock may be on another table.
    pub(crate) async fn check_writes(&self) -> Result<(), Error> {
        let health = &self.inner.health;
        if self.kind() == Kind::Sqlite || !health.is_suspected() {
            return Ok(());
        }
        let mut side = self.side().await?;
        let mut conn = side.take().ok_or_else(|| health.away())?;
        match postgres_check::try_writing(&mut conn).await {
            Ok(()) => {
                *side = Some(conn);
                health.works();
                Ok(())
            }
            Err(Error::Locked(text)) => {
                // The transaction of this connection has failed, so another connection finds the locker.
                let locker = self.control().fetch(&postgres_check::LOCKER, Args::new()).await.ok();
                let locker = locker.and_then(|rows| crate::first(&rows, |row| row.take()).ok().flatten());
                let error = Error::Unavailable(OutageReason::Lock, locker.unwrap_or(text));
                health.record_error(&error);
                Err(error)
            }
            Err(error) => {
                health.record_error(&error);
                Err(error)
            }
        }
    }

    /// Adopts the wall clock as SQLite's time if that clock was set. Returns whether it was.
    pub(crate) fn follow_wall_clock(&self) -> bool {
        let step = match (&self.inner.clock, self.kind()) {
            (crate::Clock::Database, Kind::Sqlite) => self.inner.steady.follow(),
            _ => None,
        };
        if let Some(step) = step {
            let direction = if step > 0 { "forward" } else { "back" };
            tracing::warn!(step_ms = step.abs(), direction, "the clock of the machine was changed; the new time is used from now on");
        }
        step.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use bloom_database::Database;

    use crate::clock::SteadyClock;
    use crate::{Clock, Store, StoreOptions};

    /// Tests SQLite's service marks when the machine's clock is set.
    #[tokio::test]
    async fn a_clock_that_is_set_ends_a_gap() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreOptions { url: format!("sqlite:{}", directory.path().join("bloom.db").display()), max_connections: 2 };
        let (wall, since_start) = (Arc::new(AtomicI64::new(1_800_000_000_000)), Arc::new(AtomicI64::new(7)));
        let read = |time: &Arc<AtomicI64>| {
            let time = time.clone();
            Box::new(move || time.load(Ordering::SeqCst))
        };
        let steady = SteadyClock::new(read(&wall), read(&since_start));
        let store = Store::with_clocks(&options, Clock::Database, steady).await.unwrap();
        store.migrate().await.unwrap();
        let mark = async |passed: i64, set: i64| {
            wall.fetch_add(passed + set, Ordering::SeqCst);
            since_start.fetch_add(passed, Ordering::SeqCst);
            let service = Database::mark_served(&store).await.unwrap();
            (service.now - 1_800_000_000_000, service.resumed_at - 1_800_000_000_000)
        };
        assert_eq!(mark(0, 0).await, (0, 0), "the first mark of a process ends a gap");
        assert_eq!(mark(1_000, 0).await, (1_000, 0));
        assert_eq!(mark(1_000, 0).await, (2_000, 0));
        assert_eq!(mark(1_000, 1_900).await, (3_000, 0), "a small correction does not count");
        assert_eq!(mark(1_000, 3_600_000).await, (3_605_900, 3_605_900), "a step forward ends a gap");
        assert_eq!(mark(1_000, 0).await, (3_606_900, 3_605_900));
        assert_eq!(mark(1_000, -7_200_000).await, (-3_592_100, -3_592_100), "a step back ends a gap");
        assert_eq!(mark(1_000, 0).await, (-3_591_100, -3_592_100));
        assert_eq!(mark(2_000, 0).await, (-3_589_100, -3_589_100), "a pause between two marks is a gap");
        since_start.fetch_add(5, Ordering::SeqCst);
        assert_eq!(store.now().await.unwrap() - 1_800_000_000_000, -3_589_095, "time advances between marks");
    }
}
