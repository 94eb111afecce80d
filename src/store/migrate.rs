//! The schema: migrations are part of the program.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};

use super::args::Args;
use super::conn::Conn;
use super::dialect::{Kind, statement};
use super::error::Error;
use super::{Store, all, one};

static SQLITE: Migrator = sqlx::migrate!("../../migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("../../migrations/postgres");

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    pub name: String,
    pub applied: bool,
}

statement!(
    TABLE,
    |d| "SELECT count(*) FROM {} = '_sqlx_migrations'",
    match d {
        Kind::Sqlite => "sqlite_master WHERE name",
        Kind::Postgres => "pg_class WHERE pg_table_is_visible(oid) AND relname",
    }
);
statement!(APPLIED, "SELECT version FROM _sqlx_migrations WHERE success");

/// A server writes its mark of service twice a second; without one for so long it can write nothing.
const UNMARKED: Duration = Duration::from_secs(5);

impl Store {
    /// Brings the schema up to date and answers what it applied. Replicas that start together wait for each other.
    ///
    /// # Errors
    /// [`Error::Setup`] when the database was written by another version of this program, or a migration failed.
    pub async fn migrate(&self) -> Result<Vec<String>, Error> {
        let before = self.migration_status().await?;
        let ran = match self.inner.target.migrator().await? {
            Conn::Sqlite { mut conn, .. } => SQLITE.run_direct(None, &mut conn, false).await,
            Conn::Postgres(mut conn) => POSTGRES.run_direct(None, &mut conn, false).await,
        };
        ran.map_err(explain)?;
        Ok(before.into_iter().filter(|m| !m.applied).map(|m| m.name).collect())
    }

    /// This program's migrations, oldest first.
    pub async fn migration_status(&self) -> Result<Vec<MigrationStatus>, Error> {
        let applied = self.applied().await?;
        Ok(self
            .migrator()
            .iter()
            .map(|m| MigrationStatus { name: format!("{:04}_{}", m.version, m.description), applied: applied.contains(&m.version) })
            .collect())
    }

    /// The database is reachable, and its schema the one that this program knows.
    /// Its files are those that were opened, and writes do not fail.
    pub async fn ping(&self) -> Result<(), Error> {
        let health = self.inner.health.clone();
        // A disk that does not answer must not keep a thread that serves others.
        let looked = tokio::task::spawn_blocking(move || health.look()).await;
        looked.map_err(|error| Error::Unavailable(error.to_string()))??;
        let marked = self.inner.served.lock().unwrap_or_else(PoisonError::into_inner).marked;
        if let Some(marked) = marked.filter(|marked| marked.elapsed() > UNMARKED) {
            let seconds = marked.elapsed().as_secs();
            return Err(Error::Unavailable(format!(
                "nothing could be written for {seconds} s: another program may have locked the database"
            )));
        }
        let applied = self.applied().await?;
        let known: BTreeSet<i64> = self.migrator().iter().map(|m| m.version).collect();
        if applied == known {
            Ok(())
        } else if applied.is_subset(&known) {
            Err(Error::Setup("the database's schema is older than this program: run `bloom-runtime migrate up`".into()))
        } else {
            Err(Error::Setup("the database's schema is newer than this program: run the newer version".into()))
        }
    }

    fn migrator(&self) -> &'static Migrator {
        match self.kind() {
            Kind::Sqlite => &SQLITE,
            Kind::Postgres => &POSTGRES,
        }
    }

    async fn applied(&self) -> Result<BTreeSet<i64>, Error> {
        let tables: i64 = one(&self.pool().fetch(&TABLE, Args::new()).await?, |row| row.take())?;
        if tables == 0 {
            return Ok(BTreeSet::new());
        }
        Ok(all(&self.pool().fetch(&APPLIED, Args::new()).await?, |row| row.take())?.into_iter().collect())
    }
}

fn explain(error: MigrateError) -> Error {
    match error {
        MigrateError::Execute(error) => error.into(),
        MigrateError::VersionMissing(version) => {
            Error::Setup(format!("the database has migration {version}, which this program does not know: run the newer version"))
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
