//! The schema and its migrations, which are embedded in the program.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{SqlSafeStr as _, SqlStr};

use crate::error::{Error, told};
use crate::opening::open::{self, StoreOptions};
use crate::opening::postgres_check;
use crate::outage::OutageReason;
use crate::sql::args::Args;
use crate::sql::conn::{Conn, Pool};
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all, one};

/// The migrations that `build.rs` has embedded from the directory `migrations`.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/migrations.rs"));
}

static SQLITE: LazyLock<Migrator> = LazyLock::new(|| of(embedded::SQLITE));
static POSTGRES: LazyLock<Migrator> = LazyLock::new(|| of(embedded::POSTGRES));

fn of(migrations: &'static [(i64, &str, &str)]) -> Migrator {
    let one = |(version, name, sql): &(i64, &'static str, &'static str)| {
        Migration::new(*version, (*name).into(), MigrationType::Simple, (*sql).into_sql_str(), false)
    };
    beside_newer(Migrator::with_migrations(migrations.iter().map(one).collect()))
}

/// Makes the migrator ignore migrations of a newer program. [`Schema::check`] refuses migrations that exclude this program.
pub(crate) fn beside_newer(mut migrator: Migrator) -> Migrator {
    migrator.set_ignore_missing(true);
    migrator
}

/// A migration of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    /// Its version and title.
    pub name: String,
    /// Whether the database has it.
    pub state: MigrationState,
}

/// What [`Store::migrate`] did.
#[derive(Clone, Debug)]
pub struct Migrated {
    /// The newest migration that the database had; 0 if the database was empty.
    pub from: i64,
    /// The newest migration that the database has now.
    pub to: i64,
    /// The names of the migrations that were applied.
    pub applied: Vec<String>,
}

impl Migrated {
    /// The outcome in one line; `None` if there was nothing to do.
    pub fn told(&self) -> Option<String> {
        let Self { from, to, applied } = self;
        match from {
            _ if applied.is_empty() => None,
            0 => Some(format!("database created, schema version {to}")),
            from => Some(format!("database migrated from schema version {from} to {to}")),
        }
    }
}

/// Whether the database has a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationState {
    /// The database has it.
    Applied,
    /// This program has it and the database does not.
    Pending,
    /// A newer program has applied it; this program does not know it.
    Newer,
}

statement!(READ_TABLES, "SELECT 1 FROM workers, worker_seen, task_state, queues, counts, lanes, batches LIMIT 0");
statement!(
    TABLE,
    |d| "SELECT count(*) FROM {} = '_sqlx_migrations'",
    match d {
        Kind::Sqlite => "sqlite_master WHERE name",
        Kind::Postgres => "pg_class WHERE pg_table_is_visible(oid) AND relname",
    }
);
statement!(APPLIED, "SELECT version, description FROM _sqlx_migrations WHERE success");
statement!(COMPATIBLE_SINCE, "SELECT since FROM schema_compatibility WHERE id = 1");

/// The migrations that this program knows, and those that the database has.
pub(crate) struct Schema {
    known: BTreeMap<i64, String>,
    applied: BTreeMap<i64, String>,
    /// A program must know at least this migration to use the database.
    compatible_since: i64,
}

impl Schema {
    /// Checks that this program can work with the database once its own migrations are applied.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let newest = self.newest_known();
        if self.is_newer() && newest < self.compatible_since {
            return Err(Error::Setup(format!(
                "the database's schema is newer than this program: it needs a program that knows migration {}, this one knows {newest}; \
                 run the newer version",
                self.compatible_since
            )));
        }
        Ok(())
    }

    /// Whether no migration has been applied yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.applied.is_empty()
    }

    /// Whether a newer program has applied migrations that this one does not know.
    pub(crate) fn is_newer(&self) -> bool {
        self.applied.keys().any(|version| !self.known.contains_key(version))
    }

    /// The statements that create the schema of the database in SQLite, as far as this program knows them.
    pub(crate) fn statements(&self) -> impl Iterator<Item = SqlStr> {
        SQLITE.iter().filter(|migration| self.applied.contains_key(&migration.version)).map(|migration| migration.sql.clone())
    }

    /// The newest migration that this program knows.
    pub(crate) fn newest_known(&self) -> i64 {
        self.known.keys().last().copied().unwrap_or_default()
    }

    /// This program's migrations, and those that a newer one has applied; oldest first.
    pub(crate) fn status(self) -> Vec<MigrationStatus> {
        let Self { known, applied, .. } = self;
        let state = |version: &i64| match (known.contains_key(version), applied.contains_key(version)) {
            (true, true) => MigrationState::Applied,
            (true, false) => MigrationState::Pending,
            (false, _) => MigrationState::Newer,
        };
        let all: BTreeMap<_, _> = applied.iter().chain(&known).collect();
        // The library replaces the underscores in a file's name by spaces.
        let named = |version: &i64, name: &str| format!("{version:04}_{}", name.replace(' ', "_"));
        all.into_iter().map(|(version, name)| MigrationStatus { name: named(version, name), state: state(version) }).collect()
    }

    pub(crate) async fn read(pool: &Pool) -> Result<Self, Error> {
        Self::read_for(pool, migrator(pool.kind())).await
    }

    async fn read_for(pool: &Pool, migrator: &Migrator) -> Result<Self, Error> {
        let known = migrator.iter().map(|migration| (migration.version, migration.description.to_string())).collect();
        let tables: i64 = one(&pool.fetch(&TABLE, Args::new()).await?, |row| row.take())?;
        if tables == 0 {
            return Ok(Self { known, applied: BTreeMap::new(), compatible_since: 0 });
        }
        let found = match pool.fetch(&APPLIED, Args::new()).await {
            Err(error) => return Err(postgres_check::unreadable(pool, error).await),
            found => found?,
        };
        let applied: BTreeMap<i64, String> = all(&found, |row| Ok((row.take()?, row.take()?)))?.into_iter().collect();
        let compatible_since = match applied.is_empty() {
            true => 0,
            false => one(&pool.fetch(&COMPATIBLE_SINCE, Args::new()).await?, |row| row.take())?,
        };
        Ok(Self { known, applied, compatible_since })
    }

    /// Checks that this user can apply the pending migrations.
    pub(crate) async fn may_be_completed(&self, pool: &Pool) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { postgres_check::may_migrate(pool, self.is_empty()).await }
    }

    fn is_current(&self) -> bool {
        self.known.keys().all(|version| self.applied.contains_key(version))
    }
}

/// A server writes its service mark twice a second. If it has not done so for this long, it can't write at all.
const UNMARKED: Duration = Duration::from_secs(5);

impl Store {
    /// Applies the pending migrations. Replicas that start together wait for each other.
    ///
    /// # Errors
    /// [`Error::Setup`] if the database belongs to another version of this program or has triggers, or if a migration failed.
    pub async fn migrate(&self) -> Result<Migrated, Error> {
        self.migrate_by(migrator(self.kind())).await
    }

    /// Like [`migrate`](Self::migrate), with these migrations.
    pub(crate) async fn migrate_by(&self, migrator: &Migrator) -> Result<Migrated, Error> {
        let schema = Schema::read_for(self.pool(), migrator).await?;
        schema.check()?;
        schema.may_be_completed(self.pool()).await?;
        self.refuse_triggers(&schema).await?;
        let (from, to) = (schema.applied.keys().last().copied().unwrap_or_default(), schema.newest_known());
        let is_current = schema.is_current();
        let ran = match self.inner.target.migrator().await? {
            Conn::Sqlite { mut conn, .. } => migrator.run_direct(None, &mut conn, false).await,
            Conn::Postgres(mut conn) => migrator.run_direct(None, &mut conn, false).await,
        };
        match ran {
            // A user who may not create tables can't let the library check the table of migrations, but can serve a database that its owner
            // has migrated.
            Err(MigrateError::Execute(error)) if is_current && may_not(&error) => {}
            ran => ran.map_err(explain)?,
        }
        let pending = schema.status().into_iter().filter(|migration| migration.state == MigrationState::Pending);
        Ok(Migrated { from, to, applied: pending.map(|migration| migration.name).collect() })
    }

    /// This program's migrations, and those that a newer one has applied; oldest first.
    pub async fn migration_status(&self) -> Result<Vec<MigrationStatus>, Error> {
        Ok(self.schema().await?.status())
    }

    /// Like [`migration_status`](Self::migration_status), but an SQLite file may be in use by a server: it is only read, without its lock.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open).
    pub async fn migration_status_beside(options: &StoreOptions) -> Result<Vec<MigrationStatus>, Error> {
        let Some(pool) = open::beside(options).await? else {
            let store = Self::open(options).await?;
            let status = store.migration_status().await;
            store.close().await;
            return status;
        };
        let schema = Schema::read(&pool).await;
        pool.close().await;
        Ok(schema?.status())
    }

    /// Checks that the database is reachable, that all migrations of this program are applied, that no newer program excludes this one,
    /// that its files were not replaced, and that writes succeed.
    pub async fn ping(&self) -> Result<(), Error> {
        let health = self.inner.health.clone();
        // A disk that does not answer must not block a thread that serves other requests.
        let probed = tokio::task::spawn_blocking(move || health.probe()).await;
        probed.map_err(|error| Error::Unavailable(OutageReason::Other, error.to_string()))??;
        let marked = self.inner.served.lock().marked;
        if let Some(marked) = marked.filter(|marked| marked.elapsed() > UNMARKED) {
            let seconds = marked.elapsed().as_secs();
            let text = format!("nothing could be written for {seconds} s: another program may have locked the database");
            return Err(Error::Unavailable(OutageReason::Timeout, text));
        }
        // The connections for requests are not used here, because long lists may occupy them.
        let schema = Schema::read(self.control()).await?;
        schema.check()?;
        if !schema.is_current() {
            return Err(Error::Setup("the database's schema is older than this program: run `bloom-runtime migrate up`".into()));
        }
        self.check_writes().await
    }

    /// Reads all tables that a starting server reads, and checks the privileges to write. So the caller can wait for a locked table before
    /// it starts anything.
    ///
    /// # Errors
    /// A table is locked, the user lacks privileges, or the database can't be reached.
    pub async fn read_tables(&self) -> Result<(), Error> {
        postgres_check::rights(self.control()).await?;
        self.control().fetch(&READ_TABLES, Args::new()).await.map(drop)
    }

    pub(crate) async fn schema(&self) -> Result<Schema, Error> {
        Schema::read(self.pool()).await
    }
}

fn may_not(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some("42501")
}

pub(crate) fn migrator(kind: Kind) -> &'static Migrator {
    match kind {
        Kind::Sqlite => &SQLITE,
        Kind::Postgres => &POSTGRES,
    }
}

fn explain(error: MigrateError) -> Error {
    match error {
        MigrateError::Execute(error) => error.into(),
        MigrateError::ExecuteMigration(error, version) => {
            Error::Setup(format!("migration {version} could not be applied: {}", told(&error)))
        }
        MigrateError::VersionMismatch(version) => Error::Setup(format!(
            "migration {version} of the database differs from the one in this program: the database belongs to another version; restore a backup or start with an empty database"
        )),
        MigrateError::Dirty(version) => {
            Error::Setup(format!("migration {version} was interrupted: restore the database from a backup, or drop it and start again"))
        }
        other => Error::Setup(format!("the migrations could not be applied: {other}")),
    }
}
