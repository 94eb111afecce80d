//! Checks whether a PostgreSQL database is durable, and whether it accepts writes now.

use crate::error::Error;
use crate::outage::OutageReason;
use crate::sql::args::Args;
use crate::sql::cells::Row;
use crate::sql::conn::{Conn, Pool};
use crate::sql::dialect::{Kind, Sql, statement};
use crate::{first, one};

statement!(
    DURABILITY,
    "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('server_version_num')::bigint, \
        current_setting('server_encoding'), pg_is_in_recovery()"
);
statement!(READ_ONLY, "SELECT current_setting('transaction_read_only')");

/// Checks a database that is to be served.
pub(crate) async fn check(conn: &mut Conn) -> Result<(), Error> {
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

/// Checks the result of [`DURABILITY`]: whether PostgreSQL keeps what it has acknowledged, and can store every text.
fn is_durable(found: Vec<Row>) -> Result<(), Error> {
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
const WRITTEN: [&str; 28] = [
    "api_key_uses",
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
    "reconcilers",
    "results",
    "settings",
    "task_deps",
    "task_events",
    "task_inputs",
    "task_labels",
    "task_state",
    "tasks",
    "usage_removed",
    "wakeups",
    "worker_seen",
    "workers",
];

// All privileges are checked, because taking the lock needs only one of those for writing.
statement!(
    MISSING_RIGHTS,
    |_d| "SELECT string_agg(DISTINCT r.name, ', '), string_agg(DISTINCT c.relname, ', '), min(quote_ident(current_user)) \
     FROM pg_class c, (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) r (name) \
     WHERE c.relkind = 'r' AND pg_table_is_visible(c.oid) AND c.relname IN ('leader', 'served', '{}') AND NOT has_table_privilege(c.oid, r.name) \
     HAVING count(*) > 0",
    WRITTEN.join("', '")
);
// SQLite needs no such check, because a user who may write the file may write everything.
statement!(
    TO_CREATE,
    "SELECT coalesce(quote_ident(current_schema()), ''), quote_ident(current_user), current_setting('search_path'), \
        coalesce(has_schema_privilege(current_schema(), 'CREATE'), false), \
        coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('task_state')), true)"
);

/// Checks that the user has all privileges on the existing tables.
pub(crate) async fn rights(pool: &Pool) -> Result<(), Error> {
    if pool.kind() == Kind::Sqlite {
        return Ok(());
    }
    missing_rights(&pool.fetch(&MISSING_RIGHTS, Args::new()).await?)?.map_or(Ok(()), |text| Err(Error::Setup(text)))
}

/// A text about the missing privileges, if any are missing.
fn missing_rights(found: &[Row]) -> Result<Option<String>, Error> {
    let missing: Option<(String, String, String)> = first(found, |row| Ok((row.take()?, row.take()?, row.take()?)))?;
    Ok(missing.map(|(rights, tables, user)| {
        format!("the user {user} of PostgreSQL may not write everything: GRANT {rights} ON {tables} TO {user}, as the owner of the tables")
    }))
}

statement!(
    UNREADABLE,
    "SELECT quote_ident(current_user), coalesce(quote_ident(current_schema()), 'public') WHERE NOT has_table_privilege('_sqlx_migrations', 'SELECT')"
);

/// Explains an error: if the user may not even read which migrations were applied, the new error says what to grant. Any other error is
/// returned as it is.
pub(crate) async fn unreadable(pool: &Pool, error: Error) -> Error {
    let is_denied = matches!(&error, Error::Unavailable(OutageReason::Authentication, _));
    let found = if is_denied { pool.fetch(&UNREADABLE, Args::new()).await.ok() } else { None };
    let user: Option<(String, String)> = found.and_then(|found| first(&found, |row| Ok((row.take()?, row.take()?))).ok().flatten());
    user.map_or(error, |(user, schema)| {
        Error::Setup(format!(
            "the user {user} of PostgreSQL may not read the tables: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}; \
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {user}, as the owner of the tables"
        ))
    })
}

/// Checks that the user may apply migrations to the tables, or to a database without tables (`is_empty`).
pub(crate) async fn may_migrate(pool: &Pool, is_empty: bool) -> Result<(), Error> {
    if pool.kind() == Kind::Sqlite {
        return Ok(());
    }
    let (schema, user, path, may_create, is_owner): (String, String, String, bool, bool) =
        one(&pool.fetch(&TO_CREATE, Args::new()).await?, |row| Ok((row.take()?, row.take()?, row.take()?, row.take()?, row.take()?)))?;
    let text = if schema.is_empty() {
        format!(
            "the search_path of the user {user} ({path}) has no schema that exists and that it may use: CREATE SCHEMA, GRANT USAGE, CREATE ON \
                 SCHEMA … TO {user}, or correct options in DATABASE_URL"
        )
    } else if is_empty && !may_create {
        format!(
            "the database has no tables yet, and the user {user} may not create them: GRANT CREATE ON SCHEMA {schema} TO {user}, or run \
                 `bloom-runtime migrate up` as the owner of the database"
        )
    } else if !may_create || !is_owner {
        format!(
            "migrations are pending, and the user {user} may not create or change tables: run `bloom-runtime migrate up` as the owner of the tables"
        )
    } else {
        return Ok(());
    };
    Err(Error::Setup(text))
}

statement!(BEGIN, "BEGIN");
// Takes the lock that each write takes, without waiting.
statement!(LOCK_ALL, |_d| "LOCK TABLE {} IN ROW EXCLUSIVE MODE NOWAIT", WRITTEN.join(", "));
// The value is larger than the free space of a page, and random, so that it can't be compressed.
statement!(
    TAKE_ROOM,
    "INSERT INTO object_marks (name, value) SELECT 'room', string_agg(md5(random()::text), '') FROM generate_series(1, 2048) \
     ON CONFLICT (name) DO UPDATE SET value = excluded.value"
);
statement!(GIVE_ROOM_BACK, "DELETE FROM object_marks WHERE name = 'room'");
statement!(COMMIT, "COMMIT");
// Finds the session that keeps a table locked.
statement!(
    pub(crate) LOCKER,
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

/// Tries a write on PostgreSQL that is like a batch: it locks all tables and needs new pages. A smaller write could succeed although
/// batches fail.
pub(crate) async fn try_writing(conn: &mut Conn) -> Result<(), Error> {
    if let Some(text) = missing_rights(&conn.fetch(&MISSING_RIGHTS, Args::new()).await?)? {
        return Err(Error::Unavailable(OutageReason::Authentication, text));
    }
    let steps: [&Sql; 5] = [&BEGIN, &LOCK_ALL, &TAKE_ROOM, &GIVE_ROOM_BACK, &COMMIT];
    for step in steps {
        conn.execute(step, Args::new()).await?;
    }
    Ok(())
}
