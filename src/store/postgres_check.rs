//! Whether a PostgreSQL database can keep what it is given, and takes it now.

use super::args::Args;
use super::cells::Row;
use super::conn::Conn;
use super::dialect::{Sql, statement};
use super::error::Error;

statement!(
    pub(super) DURABILITY,
    "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('server_version_num')::bigint, \
        current_setting('server_encoding'), pg_is_in_recovery()"
);
statement!(READ_ONLY, "SELECT current_setting('transaction_read_only')");

/// Checks a database that is to be served.
pub(super) async fn check(conn: &mut Conn) -> Result<(), Error> {
    is_durable(conn.fetch(&DURABILITY, Args::new()).await?)?;
    for row in conn.fetch(&READ_ONLY, Args::new()).await? {
        if row.cells().take::<String>()? != "on" {
            continue;
        }
        return Err(Error::Setup(
            "transactions of this user are read-only in PostgreSQL (default_transaction_read_only): switch that off for the user and the database".into(),
        ));
    }
    Ok(())
}

/// Whether PostgreSQL keeps what it acknowledged, and takes all texts: what [`DURABILITY`] has found.
pub(super) fn is_durable(found: Vec<Row>) -> Result<(), Error> {
    for row in found {
        let mut row = row.cells();
        let (fsync, synchronous_commit, version): (String, String, i64) = (row.take()?, row.take()?, row.take()?);
        let (encoding, is_standby): (String, bool) = (row.take()?, row.take()?);
        if version < 140_000 {
            return Err(Error::Setup(format!("PostgreSQL {} is too old: version 14 or newer is needed", version / 10_000)));
        }
        if is_standby {
            return Err(Error::Setup("this PostgreSQL is a standby, which is read-only: name the primary in DATABASE_URL".into()));
        }
        if encoding != "UTF8" {
            return Err(Error::Setup(format!(
                "the PostgreSQL database has the encoding {encoding}, which can't keep all texts: make one with createdb --encoding=UTF8 \
                 --template=template0"
            )));
        }
        if fsync != "on" {
            return Err(Error::Setup("PostgreSQL runs with fsync = off and would lose acknowledged tasks in a power cut: set fsync = on in postgresql.conf and restart it".into()));
        }
        if synchronous_commit == "off" {
            return Err(Error::Setup(
                "synchronous_commit is off and can't be switched on for this user: set it on for the database".into(),
            ));
        }
    }
    Ok(())
}

/// The tables that batches and maintenance write to.
const WRITTEN: [&str; 26] = [
    "api_keys",
    "audit",
    "batches",
    "chunk_removals",
    "context_resets",
    "counts",
    "file_chunks",
    "files",
    "lanes",
    "leases",
    "object_marks",
    "project_nodes",
    "projects",
    "queues",
    "results",
    "settings",
    "task_deps",
    "task_events",
    "task_inputs",
    "task_labels",
    "task_state",
    "tasks",
    "usage_daily",
    "wakeups",
    "worker_seen",
    "workers",
];

statement!(BEGIN, "BEGIN");
// The lock that each write takes, without waiting.
statement!(LOCK_ALL, |_d| "LOCK TABLE {} IN ROW EXCLUSIVE MODE NOWAIT", WRITTEN.join(", "));
// More than fits into the free space of a page, and random, so that it can't be compressed.
statement!(
    TAKE_ROOM,
    "INSERT INTO object_marks (name, value) SELECT 'room', string_agg(md5(random()::text), '') FROM generate_series(1, 2048) \
     ON CONFLICT (name) DO UPDATE SET value = excluded.value"
);
statement!(GIVE_ROOM_BACK, "DELETE FROM object_marks WHERE name = 'room'");
statement!(COMMIT, "COMMIT");
// Who keeps a table locked.
statement!(
    pub(super) LOCKER,
    |_d| "SELECT format('the table %s of the database is locked by another session: process %s (%s), %s', c.relname, l.pid, \
        coalesce(nullif(a.application_name, ''), 'no application_name'), \
        coalesce(upper(substring(a.query from '^\\s*([A-Za-z]+(?:\\s+(?:TABLE|INDEX|UNIQUE INDEX|INTO|FROM)\\M)?)')), 'an unknown statement')) \
     FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid \
     WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
        AND l.pid <> pg_backend_pid() AND pg_table_is_visible(c.oid) AND c.relname IN ('{}') \
        AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') \
     ORDER BY l.granted DESC, l.pid LIMIT 1",
    WRITTEN.join("', '")
);

/// Writes on PostgreSQL as a batch would: with locks of all tables, and to new pages. A smaller write may succeed although others fail.
pub(super) async fn try_writing(conn: &mut Conn) -> Result<(), Error> {
    let steps: [&Sql; 5] = [&BEGIN, &LOCK_ALL, &TAKE_ROOM, &GIVE_ROOM_BACK, &COMMIT];
    for step in steps {
        conn.execute(step, Args::new()).await?;
    }
    Ok(())
}
