//! Opens the database, runs its migrations, and explains why it can't be used.

use std::time::{Duration, Instant};

use secrecy::ExposeSecret;
use tokio::time::sleep;

use bloom_commands::{CommandError, term};
use bloom_config::Serve;
use bloom_database::Error;
use bloom_store::{MigrationState, Store, StoreOptions};

pub async fn open(settings: &Serve) -> Result<Store, CommandError> {
    Store::open(&options(settings)).await.map_err(|error| explain(error, settings))
}

pub fn options(settings: &Serve) -> StoreOptions {
    StoreOptions { url: settings.data.database_url.expose_secret().to_owned(), max_connections: settings.data.max_connections }
}

/// `migrate up`
pub async fn migrate(settings: Serve) -> Result<(), CommandError> {
    let store = open(&settings).await?;
    let applied = unlocked(&settings, || store.migrate()).await?.applied;
    store.close().await;
    if applied.is_empty() {
        return term::print(&format!("{}: the schema is up to date, nothing to apply\n", settings.shown_database_url()));
    }
    term::print(&applied.iter().map(|name| format!("applied {name}\n")).collect::<String>())
}

/// Applies the pending migrations when a server starts.
pub async fn migrate_at_start(settings: &Serve, store: &Store) -> Result<(), CommandError> {
    if let Some(told) = unlocked(settings, || store.migrate()).await?.told() {
        tracing::info!("{told}");
    }
    Ok(())
}

/// `migrate status`
pub async fn status(settings: Serve) -> Result<(), CommandError> {
    let options = options(&settings);
    let migrations = unlocked(&settings, || Store::migration_status_beside(&options)).await?;
    let mut told = format!("{}\n", settings.shown_database_url());
    for migration in migrations {
        let state = match migration.state {
            MigrationState::Applied => "applied",
            MigrationState::Pending => "pending",
            MigrationState::Newer => "applied by a newer program",
        };
        told.push_str(&format!("{state}  {}\n", migration.name));
    }
    term::print(&told)
}

/// How long a start waits for a table that another transaction keeps locked.
const LOCKED: Duration = Duration::from_secs(60);
/// The pause between two attempts. Each attempt itself waits some seconds for the lock.
const LOCKED_PAUSE: Duration = Duration::from_millis(250);

/// Repeats an operation while it fails because another transaction keeps a table locked, such as a migration or `LOCK TABLE` in psql.
pub async fn unlocked<T, E, F>(settings: &Serve, attempt: impl Fn() -> F) -> Result<T, CommandError>
where
    E: Into<Error>,
    F: Future<Output = Result<T, E>>,
{
    let started = Instant::now();
    loop {
        match attempt().await.map_err(Into::into) {
            Err(Error::Locked(text)) if started.elapsed() < LOCKED => {
                tracing::warn!(error = text, "another transaction keeps a table of the database locked; the start waits for its end");
                sleep(LOCKED_PAUSE).await;
            }
            done => return done.map_err(|error| explain(error, settings)),
        }
    }
}

/// Turns the error into one that also says what to do about it.
pub fn explain(error: impl Into<Error>, settings: &Serve) -> CommandError {
    let database = settings.shown_database_url();
    match error.into() {
        Error::Setup(text) | Error::Unusable(text) => text,
        Error::Unavailable(text) | Error::Other(text) if settings.postgres_url_without_password().is_none() => format!(
            "the database {database} can't be used: {text}.\n\
             Check that its disk has room and works, and that the user of this program may read and write the file and its directory."
        ),
        Error::Unavailable(text) => format!(
            "the database {database} can't be reached or used: {text}.\n\
             Check that it runs, that DATABASE_URL names the right host, port, user and database, and the rights of that user; or use an SQLite file instead: \
             --database-url sqlite:FILE"
        ),
        Error::Locked(text) => format!(
            "the database {database} can't be read, because another transaction keeps a table locked: {text}.\n\
             Wait until it ends, or find it in pg_locks and pg_stat_activity and end it: a migration, a maintenance job or an open session \
             of psql. Then start again."
        ),
        Error::Corrupt(text) => format!(
            "the database {database} contains data that this program did not write: {text}.\n\
             Check that DATABASE_URL names a database of bloom-runtime; restore it from a backup if it is damaged."
        ),
        other => format!("the database {database} can't be used: {other}.\nCheck DATABASE_URL and the rights of its user."),
    }
    .into()
}
