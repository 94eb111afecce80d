//! What an administrator wants to know about a database. It can be read while servers use the database.

use std::path::PathBuf;

use crate::clock::wall_clock;
use crate::error::Error;
use crate::maintenance::objects;
use crate::opening::file_access::unwritable;
use crate::opening::lock_file::may_be_made;
use crate::opening::open::{self, StoreOptions};
use crate::opening::postgres_check;
use crate::schema::additions;
use crate::schema::migrate::{MigrationState, MigrationStatus, Schema};
use crate::sql::args::Args;
use crate::sql::conn::Pool;
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all, first, one};

/// The state of a database. Fields that do not apply to the kind of the database are `None`.
#[derive(Clone, Debug)]
pub struct Checkup {
    /// What kind of database it is.
    pub kind: Kind,
    /// The migrations of this program, and those that a newer one has applied; oldest first.
    pub migrations: Vec<MigrationStatus>,
    /// Why a server would not start with this database; `None` if it would.
    pub excluded: Option<String>,
    /// What the database has besides the schema without keeping a server from starting, and what to do about it.
    pub additions: Option<String>,
    /// The size of the database in bytes.
    pub bytes: i64,
    /// SQLite: bytes of the file that no row uses.
    pub unused_bytes: Option<i64>,
    /// SQLite: the size of the write-ahead log.
    pub log_bytes: Option<i64>,
    /// SQLite: free space on the disk of the file.
    pub free_bytes: Option<i64>,
    /// PostgreSQL: the clock of the database minus that of this machine, in ms.
    pub clock_ahead_ms: Option<i64>,
    /// PostgreSQL: the oldest open transaction of the database, if there is one.
    pub oldest_transaction: Option<Transaction>,
    /// PostgreSQL: the table with the most dead rows.
    pub most_dead: Option<DeadRows>,
    /// PostgreSQL: who keeps a table locked against writes, if anybody does.
    pub locked: Option<String>,
    /// The id of this database in its bucket of an object store. `None` if no server has used a bucket yet.
    pub database_id: Option<String>,
}

/// An open transaction of another connection.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The process id of its connection.
    pub process: i64,
    /// The application name of its program; empty if it has none.
    pub program: String,
    /// How long it has been open, in milliseconds.
    pub age_ms: i64,
}

/// How many rows of a table are dead according to PostgreSQL's statistics.
#[derive(Clone, Debug)]
pub struct DeadRows {
    /// The name of the table.
    pub table: String,
    /// The number of rows that queries see.
    pub live: i64,
    /// The number of deleted or replaced rows, which take space until a vacuum.
    pub dead: i64,
}

statement!(
    SQLITE_SIZE,
    "SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size), \
     (SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size)"
);
statement!(POSTGRES_SIZE, "SELECT pg_database_size(current_database())::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint");
statement!(
    OLDEST_TRANSACTION,
    "SELECT pid::bigint, coalesce(application_name, ''), (extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint \
     FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL \
     ORDER BY xact_start LIMIT 1"
);
statement!(
    MOST_DEAD,
    "SELECT relname::text, coalesce(n_live_tup, 0)::bigint, coalesce(n_dead_tup, 0)::bigint FROM pg_stat_user_tables \
     ORDER BY n_dead_tup DESC LIMIT 1"
);

impl Store {
    /// Reads the state of a database. `None` if there is no database yet.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open).
    pub async fn checkup(options: &StoreOptions) -> Result<Option<Checkup>, Error> {
        let file = open::sqlite_file(options);
        if let Some(why) = file.as_ref().filter(|file| file.exists()).and_then(|file| unwritable(file)) {
            return Err(Error::Setup(format!("the server can't use its database, or this is not its user: {why}")));
        }
        let Some(pool) = open::beside(options).await? else {
            file.map_or(Ok(()), |path| may_be_made(&path))?;
            return Ok(None);
        };
        let found = read(&pool, file).await;
        pool.close().await;
        let mut found = found?;
        if let Err(error) = open::check(options).await {
            found.excluded = Some(error.to_string());
        }
        Ok(Some(found))
    }
}

/// Checks what a starting server checks after it has opened the database.
async fn startable(pool: &Pool, schema: &Schema) -> Result<(), Error> {
    schema.check()?;
    schema.may_be_completed(pool).await?;
    postgres_check::rights(pool).await
}

async fn read(pool: &Pool, file: Option<PathBuf>) -> Result<Checkup, Error> {
    let schema = Schema::read(pool).await?;
    let additions = additions::read(pool, &schema).await?;
    let told = additions::told(&additions);
    let (stops, told) = if additions::stop(pool.kind(), &additions) { (told, None) } else { (None, told) };
    let excluded = startable(pool, &schema).await.err().map(|error| error.to_string());
    let mut found = Checkup {
        kind: pool.kind(),
        excluded: excluded.or(stops),
        additions: told,
        migrations: schema.status(),
        bytes: 0,
        unused_bytes: None,
        log_bytes: None,
        free_bytes: None,
        clock_ahead_ms: None,
        oldest_transaction: None,
        most_dead: None,
        locked: None,
        database_id: None,
    };
    // Until all migrations are applied, the table may not exist.
    if found.excluded.is_none() && found.migrations.iter().all(|migration| migration.state == MigrationState::Applied) {
        found.database_id = first(&pool.fetch(&objects::MARK, Args::new().text(objects::DATABASE_ID)).await?, |row| row.take())?;
    }
    let Some(file) = file else {
        let before = wall_clock();
        let (bytes, now): (i64, i64) = one(&pool.fetch(&POSTGRES_SIZE, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))?;
        found.bytes = bytes;
        // The query takes a while, so the middle of that time is the best estimate of when the clock was read.
        found.clock_ahead_ms = Some(now - before.midpoint(wall_clock()));
        let transactions = all(&pool.fetch(&OLDEST_TRANSACTION, Args::new()).await?, |row| {
            Ok(Transaction { process: row.take()?, program: row.take()?, age_ms: row.take()? })
        })?;
        found.oldest_transaction = transactions.into_iter().next();
        let tables = all(&pool.fetch(&MOST_DEAD, Args::new()).await?, |row| {
            Ok(DeadRows { table: row.take()?, live: row.take()?, dead: row.take()? })
        })?;
        found.most_dead = tables.into_iter().next();
        found.locked = first(&pool.fetch(&postgres_check::LOCKER, Args::new()).await?, |row| row.take())?;
        return Ok(found);
    };
    let (bytes, unused) = one(&pool.fetch(&SQLITE_SIZE, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))?;
    (found.bytes, found.unused_bytes) = (bytes, Some(unused));
    let size = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut log = file.clone().into_os_string();
    log.push("-wal");
    found.log_bytes = Some(std::fs::metadata(log).map_or(0, |log| size(log.len())));
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    found.free_bytes = rustix::fs::statvfs(directory).ok().map(|disk| size(disk.f_bavail.saturating_mul(disk.f_frsize)));
    Ok(found)
}
