//! Connections and pools of either database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{AssertSqlSafe, Connection as _, Database, SqlSafeStr as _, SqlStr, Sqlite};

use crate::error::Error;
use crate::health::Health;
use crate::outage::OutageReason;
use crate::sql::args::Args;
use crate::sql::cells::Row;
use crate::sql::dialect::{Kind, Sql, statement};

/// The time limit for getting a connection.
pub(crate) const ACQUIRE: Duration = Duration::from_secs(5);

/// The common options of all pools. If connections had a maximum lifetime or idle time, sqlx would start a task that looks for expired
/// ones. In rare cases that task never ends (<https://github.com/launchbadge/sqlx/issues/3645>): it takes up a whole thread, and the
/// process can't stop.
pub(crate) fn pool_options<Db: Database>(connections: u32) -> PoolOptions<Db> {
    PoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE).max_lifetime(None).idle_timeout(None)
}

/// How long an answer of PostgreSQL may take. Its own timeouts are shorter, so after this time the network has failed, even if TCP still
/// retries, and the connection is dropped with its statement.
const WRITER_ANSWERS: Duration = Duration::from_secs(10);
const READER_ANSWERS: Duration = Duration::from_secs(25);
/// PostgreSQL may have to sort a whole table before it returns the first row.
const FIRST_ROW: Duration = Duration::from_secs(600);

async fn answer<T>(limit: Duration, statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, statement).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Error::Unavailable(OutageReason::Timeout, format!("no answer in {} s", limit.as_secs()))),
    }
}

statement!(BEGIN, "BEGIN");

/// One connection. It must not be used after an error unless [`Error::keeps_connection`] holds.
pub(crate) enum Conn {
    /// If `begins` is set, BEGIN is sent with the next statement, which saves a round trip to the connection's thread.
    Sqlite {
        conn: SqliteConnection,
        begins: bool,
        health: Arc<Health>,
    },
    Postgres(PgConnection),
}

impl Conn {
    pub(crate) fn sqlite(conn: SqliteConnection, health: Arc<Health>) -> Self {
        Self::Sqlite { conn, begins: false, health }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Sqlite { .. } => Kind::Sqlite,
            Self::Postgres(_) => Kind::Postgres,
        }
    }

    /// Starts a transaction.
    pub(crate) async fn begin(&mut self) -> Result<(), Error> {
        match self {
            Self::Sqlite { begins, .. } => *begins = true,
            Self::Postgres(_) => {
                self.execute(&BEGIN, Args::new()).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn fetch(&mut self, sql: &Sql, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let text = sql.text(self.kind());
        Ok(match self {
            Self::Sqlite { conn, begins, health } => {
                rows(recorded(health, sqlx::query_with(opened(text, begins), args.for_sqlite()?).fetch_all(conn).await)?, Row::Sqlite)
            }
            Self::Postgres(conn) => {
                let query = sqlx::query_with(text, args.for_postgres()?);
                rows(answer(WRITER_ANSWERS, query.fetch_all(conn)).await?, Row::Postgres)
            }
        })
    }

    /// Reads the rows of a statement one by one, however many there are. The text must consist of fixed parts.
    pub(crate) async fn each(&mut self, text: String, mut row: impl FnMut(Row) -> Result<(), Error>) -> Result<(), Error> {
        let text = AssertSqlSafe(text).into_sql_str();
        match self {
            Self::Sqlite { conn, health, .. } => {
                let mut rows = sqlx::query(text).fetch(conn);
                while let Some(next) = recorded(health, rows.try_next().await)? {
                    row(Row::Sqlite(next))?;
                }
            }
            Self::Postgres(conn) => {
                let mut rows = sqlx::query(text).fetch(conn);
                while let Some(next) = answer(FIRST_ROW, rows.try_next()).await? {
                    row(Row::Postgres(next))?;
                }
            }
        }
        Ok(())
    }

    /// Executes a statement and returns the number of changed rows.
    pub(crate) async fn execute(&mut self, sql: &Sql, args: Args<'_>) -> Result<u64, Error> {
        if let Self::Sqlite { conn, begins, health } = self
            && std::mem::take(begins)
        {
            // Sent separately: in one text with BEGIN, SQLite would count the rows of the previous statement again.
            recorded(health, sqlx::query("BEGIN IMMEDIATE").execute(conn).await)?;
        }
        self.execute_str(sql.text(self.kind()), args).await
    }

    /// Executes a statement whose text consists of fixed parts.
    pub(crate) async fn execute_text(&mut self, text: String, args: Args<'_>) -> Result<(), Error> {
        self.execute_str(AssertSqlSafe(text).into_sql_str(), args).await?;
        Ok(())
    }

    async fn execute_str(&mut self, text: SqlStr, args: Args<'_>) -> Result<u64, Error> {
        Ok(match self {
            Self::Sqlite { conn, begins, health } => {
                recorded(health, sqlx::query_with(opened(text, begins), args.for_sqlite()?).execute(conn).await)?.rows_affected()
            }
            Self::Postgres(conn) => {
                let query = sqlx::query_with(text, args.for_postgres()?);
                answer(WRITER_ANSWERS, query.execute(conn)).await?.rows_affected()
            }
        })
    }

    /// Closes the connection properly. Errors are ignored.
    pub(crate) async fn close(self) {
        match self {
            Self::Sqlite { conn, .. } => drop(conn.close().await),
            Self::Postgres(conn) => drop(tokio::time::timeout(CLOSING, conn.close()).await),
        }
    }
}

/// Converts an error, and records what it shows about the database.
fn recorded<T>(health: &Health, outcome: Result<T, sqlx::Error>) -> Result<T, Error> {
    outcome.map_err(|error| {
        let error = Error::from(error);
        health.record_error(&error);
        error
    })
}

fn opened(text: SqlStr, begins: &mut bool) -> SqlStr {
    if std::mem::take(begins) { AssertSqlSafe(format!("BEGIN IMMEDIATE; {}", text.as_str())).into_sql_str() } else { text }
}

/// How long closing a connection to PostgreSQL may take. A connection without answers must not keep the program from stopping.
const CLOSING: Duration = Duration::from_secs(2);
/// The pause between two tries to get an open connection.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// A pool of connections for single reads.
#[derive(Clone)]
pub(crate) enum Pool {
    Sqlite(SqlitePool, Arc<Health>),
    Postgres(PgPool),
}

impl Pool {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Sqlite(..) => Kind::Sqlite,
            Self::Postgres(_) => Kind::Postgres,
        }
    }

    pub(crate) async fn fetch(&self, sql: &Sql, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let text = sql.text(self.kind());
        Ok(match self {
            Self::Sqlite(pool, health) => {
                let mut conn = reader(pool, health).await?;
                rows(recorded(health, sqlx::query_with(text, args.for_sqlite()?).fetch_all(&mut *conn).await)?, Row::Sqlite)
            }
            Self::Postgres(pool) => {
                let query = sqlx::query_with(text, args.for_postgres()?);
                rows(answer(READER_ANSWERS, query.fetch_all(pool)).await?, Row::Postgres)
            }
        })
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(pool, _) => pool.close().await,
            Self::Postgres(pool) => drop(tokio::time::timeout(CLOSING, pool.close()).await),
        }
    }
}

/// Gets a connection for reading. A connection that is already open may still read a file that was removed or replaced, but no connection
/// is opened to the file that replaced it.
async fn reader(pool: &SqlitePool, health: &Health) -> Result<PoolConnection<Sqlite>, Error> {
    let started = Instant::now();
    loop {
        if let Some(conn) = pool.try_acquire() {
            return Ok(conn);
        }
        match health.committed() {
            Ok(()) => return recorded(health, pool.acquire().await),
            Err(error) if pool.size() == 0 || started.elapsed() > ACQUIRE => return Err(error),
            Err(_) => tokio::time::sleep(RETRY_EVERY).await,
        }
    }
}

fn rows<T>(fetched: Vec<T>, wrap: fn(T) -> Row) -> Vec<Row> {
    fetched.into_iter().map(wrap).collect()
}
