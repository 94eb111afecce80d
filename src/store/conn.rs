//! Connections and pools of either database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{AssertSqlSafe, Connection as _, SqlSafeStr as _, SqlStr, Sqlite};

use super::args::Args;
use super::cells::Row;
use super::dialect::{Kind, Sql, statement};
use super::error::Error;
use super::health::Health;

/// Getting a connection takes at most so long.
pub(super) const ACQUIRE: Duration = Duration::from_secs(5);

/// How long an answer of PostgreSQL may take; its own time-outs are shorter. After that the network is gone, whatever TCP still hopes
/// for, and the connection is dropped with its statement.
const WRITER_ANSWERS: Duration = Duration::from_secs(10);
const READER_ANSWERS: Duration = Duration::from_secs(25);

async fn answer<T>(limit: Duration, statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, statement).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Error::Unavailable(format!("no answer in {} s", limit.as_secs()))),
    }
}

statement!(BEGIN, "BEGIN");

/// One connection. Not to be used any more after an error that says so ([`Error::keeps_connection`]).
pub(super) enum Conn {
    /// `begins`: the next statement takes BEGIN along, which saves a trip to the connection's thread.
    Sqlite {
        conn: SqliteConnection,
        begins: bool,
        health: Arc<Health>,
    },
    Postgres(PgConnection),
}

impl Conn {
    pub fn sqlite(conn: SqliteConnection, health: Arc<Health>) -> Self {
        Self::Sqlite { conn, begins: false, health }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Sqlite { .. } => Kind::Sqlite,
            Self::Postgres(_) => Kind::Postgres,
        }
    }

    /// Starts a transaction.
    pub async fn begin(&mut self) -> Result<(), Error> {
        match self {
            Self::Sqlite { begins, .. } => *begins = true,
            Self::Postgres(_) => {
                self.execute(&BEGIN, Args::new()).await?;
            }
        }
        Ok(())
    }

    pub async fn fetch(&mut self, sql: &Sql, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let text = sql.text(self.kind());
        Ok(match self {
            Self::Sqlite { conn, begins, health } => {
                rows(noted(health, sqlx::query_with(opened(text, begins), args.for_sqlite()?).fetch_all(conn).await)?, Row::Sqlite)
            }
            Self::Postgres(conn) => {
                let query = sqlx::query_with(text, args.for_postgres()?);
                rows(answer(WRITER_ANSWERS, query.fetch_all(conn)).await?, Row::Postgres)
            }
        })
    }

    /// Answers how many rows it touched.
    pub async fn execute(&mut self, sql: &Sql, args: Args<'_>) -> Result<u64, Error> {
        if let Self::Sqlite { conn, begins, health } = self
            && std::mem::take(begins)
        {
            // Alone: SQLite would count the rows of the statement before it again.
            noted(health, sqlx::query("BEGIN IMMEDIATE").execute(conn).await)?;
        }
        self.execute_str(sql.text(self.kind()), args).await
    }

    /// A text that was put together from fixed ones.
    pub async fn execute_text(&mut self, text: String, args: Args<'_>) -> Result<(), Error> {
        self.execute_str(AssertSqlSafe(text).into_sql_str(), args).await?;
        Ok(())
    }

    async fn execute_str(&mut self, text: SqlStr, args: Args<'_>) -> Result<u64, Error> {
        Ok(match self {
            Self::Sqlite { conn, begins, health } => {
                noted(health, sqlx::query_with(opened(text, begins), args.for_sqlite()?).execute(conn).await)?.rows_affected()
            }
            Self::Postgres(conn) => {
                let query = sqlx::query_with(text, args.for_postgres()?);
                answer(WRITER_ANSWERS, query.execute(conn)).await?.rows_affected()
            }
        })
    }

    /// Says goodbye; what goes wrong then hurts nobody.
    pub async fn close(self) {
        let _ = match self {
            Self::Sqlite { conn, .. } => conn.close().await,
            Self::Postgres(conn) => conn.close().await,
        };
    }
}

/// What an error tells of the database is kept.
fn noted<T>(health: &Health, outcome: Result<T, sqlx::Error>) -> Result<T, Error> {
    outcome.map_err(|error| {
        let error = Error::from(error);
        health.note(&error);
        error
    })
}

fn opened(text: SqlStr, begins: &mut bool) -> SqlStr {
    if std::mem::take(begins) { AssertSqlSafe(format!("BEGIN IMMEDIATE; {}", text.as_str())).into_sql_str() } else { text }
}

/// For a connection that somebody else reads on.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Connections for whoever needs one for a moment.
#[derive(Clone)]
pub(super) enum Pool {
    Sqlite(SqlitePool, Arc<Health>),
    Postgres(PgPool),
}

impl Pool {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Sqlite(..) => Kind::Sqlite,
            Self::Postgres(_) => Kind::Postgres,
        }
    }

    pub async fn fetch(&self, sql: &Sql, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let text = sql.text(self.kind());
        Ok(match self {
            Self::Sqlite(pool, health) => {
                let mut conn = reader(pool, health).await?;
                rows(noted(health, sqlx::query_with(text, args.for_sqlite()?).fetch_all(&mut *conn).await)?, Row::Sqlite)
            }
            Self::Postgres(pool) => {
                let query = sqlx::query_with(text, args.for_postgres()?);
                rows(answer(READER_ANSWERS, query.fetch_all(pool)).await?, Row::Postgres)
            }
        })
    }

    pub async fn close(&self) {
        match self {
            Self::Sqlite(pool, _) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// One that is open goes on reading its file, whatever became of that; none is opened to a file that has taken its place.
async fn reader(pool: &SqlitePool, health: &Health) -> Result<PoolConnection<Sqlite>, Error> {
    let started = Instant::now();
    loop {
        if let Some(conn) = pool.try_acquire() {
            return Ok(conn);
        }
        match health.committed() {
            Ok(()) => return noted(health, pool.acquire().await),
            Err(error) if pool.size() == 0 || started.elapsed() > ACQUIRE => return Err(error),
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

fn rows<T>(fetched: Vec<T>, wrap: fn(T) -> Row) -> Vec<Row> {
    fetched.into_iter().map(wrap).collect()
}
