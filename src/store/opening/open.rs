//! Opens a database: parses its URL, sets up its connections, and checks that it keeps what it acknowledges.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::error::{Error, told};
use crate::health::Health;
use crate::opening::file_access::{full_disk, unwritable};
use crate::opening::lock_file::{LockFile, is_there, prepare_file};
use crate::opening::postgres_check;
use crate::opening::sessions::Sessions;
use crate::sql::conn::{ACQUIRE, Conn, Pool, pool_options};
use crate::sql::dialect::Kind;

/// Which database to open, and how.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// `sqlite:<path>`, `postgres://…` or `postgresql://…`.
    pub url: String,
    /// The most connections for reads of requests. Everything else has connections of its own.
    pub max_connections: u32,
}

/// What [`open`] returns: how to make connections, and the pools of connections for reading.
pub(crate) struct Opened {
    pub pool: Pool,
    pub control: Pool,
    pub target: Target,
    pub health: Arc<Health>,
    pub anchor: Option<Conn>,
}

pub(crate) enum Target {
    Sqlite { options: Box<SqliteConnectOptions>, health: Arc<Health>, lock: LockFile },
    Postgres { sessions: Box<Sessions> },
}

/// Leadership and service marks share a connection, so a lock that one of them waits for must not delay the other.
const SIDE_LOCK_TIMEOUT: &str = "750ms";
const STALE: Duration = Duration::from_secs(1);
/// A connection is replaced after this time, because its process in PostgreSQL may grow.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// How long SQLite's writer waits for another writer, such as a migration or the restart of the write-ahead log.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// KiB, as a negative number, which is SQLite's notation. Small, because the operating system caches the file too.
const WRITER_CACHE: &str = "-8192";
const READER_CACHE: &str = "-1024";
/// Few, because each has a thread and a cache of its own.
const SQLITE_READERS: u32 = 4;
/// Connections for the reads that a replica's work depends on: the feed, pages of the queue, deadlines.
const CONTROL: u32 = 4;
const SQLITE_CONTROL: u32 = 2;

pub(crate) async fn open(options: &StoreOptions) -> Result<Opened, Error> {
    let url = options.url.trim();
    if is_postgres(url) {
        open_postgres(url, options.max_connections).await
    } else if let Some(path) = sqlite_path(url) {
        open_sqlite(&path, options.max_connections).await
    } else {
        Err(Error::Setup(
            "DATABASE_URL must start with sqlite:, postgres:// or postgresql://, for example sqlite:/var/lib/bloom-runtime/bloom.db".into(),
        ))
    }
}

fn is_postgres(url: &str) -> bool {
    let url = url.trim();
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

async fn open_postgres(url: &str, max_connections: u32) -> Result<Opened, Error> {
    let sessions = Sessions::served(url)?;
    let readers = sessions.clone().with([
        ("plan_cache_mode", "force_custom_plan"),
        ("statement_timeout", "20s"),
        ("idle_in_transaction_session_timeout", "20s"),
    ]);
    first(&readers).await?;
    let pool = |connections: u32| {
        let pool = readers
            .pool_options(connections)
            // A connection is tested only if it was idle for a while, because a test costs a round trip.
            .test_before_acquire(false)
            .before_acquire(|conn: &mut PgConnection, meta| {
                Box::pin(async move {
                    let answers = async { tokio::time::timeout(ACQUIRE, conn.ping()).await.is_ok_and(|pong| pong.is_ok()) };
                    Ok(meta.age < LIFETIME && (meta.idle_for < STALE || answers.await))
                })
            });
        Pool::Postgres(pool.connect_lazy_with(readers.options()))
    };
    let (pool, control) = (pool(max_connections.max(2)), pool(CONTROL));
    let target = Target::Postgres { sessions: Box::new(sessions) };
    Ok(Opened { pool, control, target, health: Arc::default(), anchor: None })
}

/// Checks the database on the first connection.
async fn first(sessions: &Sessions) -> Result<(), Error> {
    let mut first = sessions.first().await?;
    let checked = postgres_check::check(&mut first).await;
    first.close().await;
    checked
}

/// Checks a PostgreSQL database as [`open`] does. A connection of [`beside`] can't do that, because its sessions are read-only.
pub(crate) async fn check(options: &StoreOptions) -> Result<(), Error> {
    if is_postgres(&options.url) { first(&Sessions::served(&options.url)?).await } else { Ok(()) }
}

/// How long a statement of a writer may take on PostgreSQL, including COMMIT.
pub(crate) const STATEMENT: Duration = Duration::from_secs(5);
/// How long a writer may be idle in a transaction.
pub(crate) const IDLE: Duration = Duration::from_secs(1);

async fn postgres_writer(sessions: Sessions) -> Result<Conn, Error> {
    let seconds = |limit: Duration| format!("{}s", limit.as_secs());
    let sessions = sessions
        // A statement after a lock must see what was committed before the lock was granted, whatever the server's default is.
        .with([("default_transaction_isolation", "read committed"), ("plan_cache_mode", "force_generic_plan")])
        .with([("statement_timeout", seconds(STATEMENT)), ("idle_in_transaction_session_timeout", seconds(IDLE))]);
    Ok(sessions.connect().await?)
}

/// Parameters that URLs of other programs have after the path of an SQLite file.
const PARAMETERS: [&str; 4] = ["mode=", "cache=", "immutable=", "vfs="];

/// The path in `sqlite:path` or `sqlite://path`, unchanged. `None` for any other URL.
fn sqlite_path(url: &str) -> Option<PathBuf> {
    let path = url.trim().strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    let are_parameters =
        |text: &str| text.split('&').all(|part| PARAMETERS.iter().any(|name| part.starts_with(name))) && !text.contains('/');
    let path = path.rsplit_once('?').filter(|(_, behind)| are_parameters(behind)).map_or(path, |(path, _)| path);
    // A relative path that begins like this would be a URL for SQLite.
    Some(if path.starts_with("file:") { Path::new(".").join(path) } else { path.into() })
}

/// The file of the database; `None` if it is not an SQLite database.
pub(crate) fn sqlite_file(options: &StoreOptions) -> Option<PathBuf> {
    sqlite_path(&options.url)
}

/// The SQLite file of this URL, if it exists.
fn existing_file(url: &str) -> Result<Option<PathBuf>, Error> {
    let Some(path) = sqlite_path(url) else { return Ok(None) };
    Ok(is_there(&path)?.then_some(path))
}

/// A read-only pool of connections. It takes no lock on an SQLite file, so it can be used beside a server. `None` if the file does not
/// exist.
pub(crate) async fn beside(options: &StoreOptions) -> Result<Option<Pool>, Error> {
    if is_postgres(&options.url) {
        let sessions = Sessions::served(&options.url)?.with([("default_transaction_read_only", "on"), ("statement_timeout", "20s")]);
        sessions.first().await?.close().await;
        return Ok(Some(Pool::Postgres(sessions.pool_options(1).connect_lazy_with(sessions.options()))));
    }
    let Some(path) = existing_file(&options.url)? else { return Ok(None) };
    refuse_other_program(&path).await?;
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY).pragma("query_only", "on").disable_statement_logging();
    let pool = pool_options(1).connect_lazy_with(options);
    Ok(Some(Pool::Sqlite(pool, Arc::default())))
}

/// A connection for reading everything in one transaction. It takes no lock on an SQLite file. `None` if the file does not exist.
pub(crate) async fn snapshot(options: &StoreOptions) -> Result<Option<Conn>, Error> {
    if is_postgres(&options.url) {
        return Ok(Some(postgres_snapshot(Sessions::served(&options.url)?.with([("enable_seqscan", "on")])).await?));
    }
    let Some(path) = existing_file(&options.url)? else { return Ok(None) };
    let options = SqliteConnectOptions::new().filename(&path).busy_timeout(BUSY).pragma("query_only", "on").disable_statement_logging();
    let conn = options.connect().await.map_err(|error| unusable(&path, &error))?;
    Ok(Some(Conn::sqlite(conn, Arc::default())))
}

/// Like [`snapshot`], for a PostgreSQL database of another program.
pub(crate) async fn foreign_snapshot(url: &str) -> Result<Conn, Error> {
    if !is_postgres(url) {
        return Err(Error::Setup("the database to read must be PostgreSQL: write postgres://user:password@host:5432/database".into()));
    }
    postgres_snapshot(Sessions::of(url)?).await
}

async fn postgres_snapshot(sessions: Sessions) -> Result<Conn, Error> {
    sessions.with([("default_transaction_isolation", "repeatable read"), ("default_transaction_read_only", "on")]).first().await
}

async fn open_sqlite(path: &Path, max_connections: u32) -> Result<Opened, Error> {
    if path.as_os_str().is_empty() || path.starts_with(":memory:") {
        return Err(Error::Setup("DATABASE_URL needs a file, for example sqlite:/var/lib/bloom-runtime/bloom.db".into()));
    }
    let (lock, file) = prepare_file(path)?;
    if let Some(why) = unwritable(path) {
        return Err(Error::Setup(format!("the database {} can't be used: {why}", path.display())));
    }
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(false)
        .busy_timeout(BUSY)
        .pragma("wal_autocheckpoint", "0")
        .pragma("journal_size_limit", "67108864")
        .pragma("temp_store", "memory")
        .disable_statement_logging();
    refuse_other_program(path).await?;
    let fail = |error: sqlx::Error| unusable(path, &error);
    // The first connection switches the file to WAL mode. Readers can't do that, because they may not write.
    let mut first = options.connect().await.map_err(fail)?;
    check_sqlite(&mut first).await?;
    let health = Arc::new(Health::of_sqlite(path, file).map_err(|error| fail(error.into()))?);
    let readers = options.clone().pragma("query_only", "on").pragma("cache_size", READER_CACHE);
    let pool = |connections: u32| {
        let opened = health.clone();
        let pool = pool_options(connections)
            .test_before_acquire(false)
            // The file was checked before the connection was opened, but may have been replaced in between.
            .after_connect(move |_, _| {
                let is_the_same = opened.committed().map_err(|error| sqlx::Error::Io(std::io::Error::other(error.to_string())));
                Box::pin(std::future::ready(is_the_same))
            });
        Pool::Sqlite(pool.connect_lazy_with(readers.clone()), health.clone())
    };
    let (pool, control) = (pool(max_connections.clamp(2, SQLITE_READERS)), pool(SQLITE_CONTROL));
    let target = Target::Sqlite { options: Box::new(options), health: health.clone(), lock };
    let anchor = Some(Conn::sqlite(first, health.clone()));
    Ok(Opened { pool, control, target, health, anchor })
}

fn unusable(path: &Path, error: &sqlx::Error) -> Error {
    let advice = full_disk(path).unwrap_or("check DATABASE_URL");
    Error::Setup(format!("{} can't be used as a database: {}; {advice}", path.display(), told(error)))
}

pub(crate) async fn refuse_other_program(path: &Path) -> Result<(), Error> {
    if is_of_another_program(path).await.map_err(|error| unusable(path, &error))? {
        return Err(Error::Setup(format!("{} is the database of another program; check DATABASE_URL or DATA_DIR", path.display())));
    }
    Ok(())
}

/// Whether the file has tables, but not those of this program. This is checked on a connection that writes nothing, because switching to
/// WAL mode would change the file. An interrupted migration may have left only its own table.
async fn is_of_another_program(path: &Path) -> Result<bool, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY).pragma("query_only", "on").disable_statement_logging();
    let mut conn = options.connect().await?;
    let count = "SELECT count(*) FILTER (WHERE name NOT IN ('_sqlx_migrations', 'sqlite_sequence')) > 0 \
        AND count(*) FILTER (WHERE name = 'task_state') = 0 FROM sqlite_master WHERE type = 'table'";
    let is_other = sqlx::query_scalar(count).fetch_one(&mut conn).await?;
    conn.close().await?;
    Ok(is_other)
}

async fn check_sqlite(conn: &mut SqliteConnection) -> Result<(), Error> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn).await?;
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *conn).await?;
    // The first read opens the write-ahead log.
    let _tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_master").fetch_one(conn).await?;
    if mode != "wal" || synchronous < 2 {
        return Err(Error::Setup(format!(
            "the database file can't be used safely here (journal_mode {mode}, synchronous {synchronous}): put it on a local disk"
        )));
    }
    Ok(())
}

/// A connection to the file that was opened at the start, never to one that replaced it.
async fn sqlite(options: &SqliteConnectOptions, health: &Arc<Health>) -> Result<Conn, Error> {
    health.committed()?;
    Ok(Conn::sqlite(options.connect().await?, health.clone()))
}

impl Target {
    /// Writes this server's URL into the lock file of SQLite, so that a second process on the same file can report it.
    pub(crate) fn serves_at(&self, url: &str) {
        if let Self::Sqlite { lock, .. } = self
            && let Err(error) = lock.tell(Some(url))
        {
            tracing::warn!(%error, "the lock file of the database can't be written");
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Sqlite { .. } => Kind::Sqlite,
            Self::Postgres { .. } => Kind::Postgres,
        }
    }

    /// A connection for writing. On PostgreSQL, its timeouts make sure that a frozen client loses its locks soon.
    pub(crate) async fn writer(&self) -> Result<Conn, Error> {
        Ok(match self {
            Self::Sqlite { options, health, .. } => sqlite(&options.as_ref().clone().pragma("cache_size", WRITER_CACHE), health).await?,
            Self::Postgres { sessions } => postgres_writer(sessions.as_ref().clone()).await?,
        })
    }

    /// A second connection for writing. On SQLite, what it writes may be lost in a power cut.
    pub(crate) async fn side_writer(&self) -> Result<Conn, Error> {
        match self {
            Self::Sqlite { options, health, .. } => sqlite(&options.as_ref().clone().synchronous(SqliteSynchronous::Normal), health).await,
            Self::Postgres { sessions } => postgres_writer(sessions.as_ref().clone().with([("lock_timeout", SIDE_LOCK_TIMEOUT)])).await,
        }
    }

    /// A connection for restarting SQLite's write-ahead log. It gives up if a reader or writer blocks it, instead of holding the writer's
    /// lock while it waits.
    pub(crate) async fn checkpointer(&self) -> Result<Conn, Error> {
        match self {
            Self::Sqlite { options, health, .. } => sqlite(&options.as_ref().clone().busy_timeout(Duration::ZERO), health).await,
            Self::Postgres { .. } => self.writer().await,
        }
    }

    /// A connection for reading a whole table page by page in one snapshot.
    pub(crate) async fn surveyor(&self) -> Result<Conn, Error> {
        match self {
            Self::Sqlite { options, health, .. } => {
                sqlite(&options.as_ref().clone().pragma("query_only", "on").pragma("cache_size", READER_CACHE), health).await
            }
            Self::Postgres { sessions } => {
                let sessions = sessions.as_ref().clone().with([
                    ("default_transaction_isolation", "repeatable read"),
                    ("default_transaction_read_only", "on"),
                    ("statement_timeout", "9s"),
                    ("idle_in_transaction_session_timeout", "9s"),
                ]);
                Ok(sessions.connect().await?)
            }
        }
    }

    /// A connection for migrations, which may take a long time.
    pub(crate) async fn migrator(&self) -> Result<Conn, Error> {
        Ok(match self {
            Self::Sqlite { options, health, .. } => sqlite(options, health).await?,
            Self::Postgres { sessions } => {
                let settings =
                    [("lock_timeout", "1min"), ("client_min_messages", "warning"), ("enable_seqscan", "on"), ("enable_hashjoin", "on")];
                sessions.as_ref().clone().with(settings).connect().await?
            }
        })
    }
}
