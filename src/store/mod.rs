//! The only SQL. One text for both databases wherever it goes; what differs stands in [`dialect`].
//!
//! The engine writes through [`Lane`]s, whose transactions load a working set, and save what changed in a few set-based statements.
//! Everybody reads through [`Store`], on other connections, and never waits for a writer.

mod args;
mod conn;
mod counts;
mod dialect;
mod error;
mod feed;
mod health;
mod lane;
mod leader;
mod lists;
mod load;
mod migrate;
mod open;
mod queue;
mod reads;
mod records;
mod rows;
mod save;
mod script;
mod upkeep;
mod usage;
mod wake;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub use dialect::Kind;
pub use error::Error;
pub use feed::{Changed, CountDeltas, Feed, FeedEntry};
pub use health::Trouble;
pub use lane::{Lane, Saved};
pub use lists::{LeaseRow, Listing, Page, TaskFilter, TaskRow};
pub use migrate::MigrationStatus;
pub use open::Options;
pub use queue::ReadyRow;
pub use reads::PAGE_BYTES;
pub use upkeep::{Checkpoint, Upkeep, UpkeepDone};
pub use usage::{UsageBy, UsageRow};
pub use wake::Listener;

use crate::core::Ms;
use args::Args;
use conn::Pool;
use dialect::statement;

/// Whose time counts.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// PostgreSQL's clock; with SQLite the machine's, kept from going backwards.
    #[default]
    Database,
    /// Set by hand, for tests.
    Manual(Arc<AtomicI64>),
}

/// A database and its connections. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    target: open::Target,
    health: Arc<health::Health>,
    /// A connection that nobody uses. As long as it is open SQLite keeps its log, and the log is the same file.
    anchor: tokio::sync::Mutex<Option<conn::Conn>>,
    clock: Clock,
    /// The latest time that SQLite's clock gave.
    high_water: AtomicI64,
    /// SQLite's second writer, for what is no batch: marks of life and checkpoints.
    side: tokio::sync::Mutex<Option<conn::Conn>>,
    /// Names this process among those that share the database.
    replica: String,
}

/// Connections for reading, as metrics show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    pub size: u32,
    pub idle: u32,
}

statement!(NOW, |d| "SELECT {}", d.clock(1));

impl Store {
    /// # Errors
    /// [`Error::Setup`] with what to change when the URL, the file or the server's settings won't do; [`Error::Unavailable`] when the
    /// server can't be reached.
    pub async fn open(options: &Options) -> Result<Self, Error> {
        Self::with_clock(options, Clock::Database).await
    }

    /// # Errors
    /// As [`open`](Self::open).
    pub async fn with_clock(options: &Options, clock: Clock) -> Result<Self, Error> {
        let open::Opened { pool, target, health, anchor } = open::open(options).await?;
        let replica = format!("{:016x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id()));
        Ok(Self {
            inner: Arc::new(Inner {
                pool,
                target,
                health,
                anchor: tokio::sync::Mutex::new(anchor),
                clock,
                high_water: AtomicI64::new(0),
                side: tokio::sync::Mutex::new(None),
                replica,
            }),
        })
    }

    pub fn kind(&self) -> Kind {
        self.inner.target.kind()
    }

    /// The database's time.
    pub async fn now(&self) -> Result<Ms, Error> {
        match self.known_time() {
            Some(now) => Ok(now),
            None => one(&self.pool().fetch(&NOW, Args::new().int(None)).await?, |row| row.take()),
        }
    }

    /// Closes the connections for reading; lanes close with their owner.
    pub async fn close(&self) {
        match self.pool() {
            Pool::Sqlite(pool, _) => pool.close().await,
            Pool::Postgres(pool) => pool.close().await,
        }
        if let Some(side) = self.inner.side.lock().await.take() {
            side.close().await;
        }
        if let Some(anchor) = self.inner.anchor.lock().await.take() {
            anchor.close().await;
        }
    }

    /// What makes every write useless until the next start.
    pub fn lasting_trouble(&self) -> Option<Trouble> {
        self.inner.health.lasting()
    }

    pub fn pool_figures(&self) -> PoolFigures {
        let (size, idle) = match self.pool() {
            Pool::Sqlite(pool, _) => (pool.size(), pool.num_idle()),
            Pool::Postgres(pool) => (pool.size(), pool.num_idle()),
        };
        PoolFigures { size, idle: u32::try_from(idle).unwrap_or(u32::MAX) }
    }

    fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The time, where it is not the database that tells it: an argument for [`Kind::clock`](dialect::Kind::clock).
    fn known_time(&self) -> Option<Ms> {
        match (&self.inner.clock, self.kind()) {
            (Clock::Manual(time), _) => Some(time.load(Ordering::SeqCst)),
            (Clock::Database, Kind::Sqlite) => {
                let now = wall_clock();
                Some(self.inner.high_water.fetch_max(now, Ordering::SeqCst).max(now))
            }
            (Clock::Database, Kind::Postgres) => None,
        }
    }
}

/// The machine's clock, in ms since the epoch.
fn wall_clock() -> Ms {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ms::try_from(since.as_millis()).unwrap_or(Ms::MAX)
}

/// The one row that a statement always answers.
fn one<T>(rows: &[conn::Row], read: impl FnOnce(&mut conn::Cells<'_>) -> Result<T, Error>) -> Result<T, Error> {
    match rows.first() {
        Some(row) => read(&mut row.cells()),
        None => Err(Error::Corrupt("a statement that answers one row answered none".into())),
    }
}

fn all<T>(rows: &[conn::Row], read: impl Fn(&mut conn::Cells<'_>) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    rows.iter().map(|row| read(&mut row.cells())).collect()
}

fn first<T>(rows: &[conn::Row], read: impl FnOnce(&mut conn::Cells<'_>) -> Result<T, Error>) -> Result<Option<T>, Error> {
    rows.first().map(|row| read(&mut row.cells())).transpose()
}
