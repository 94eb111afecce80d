//! All SQL of the program. Both databases share the text of a statement where possible; the differences are in `sql::dialect`.
//!
//! [`Store`] implements the interface of the engine and the reconcilers ([`bloom_database`]): batches go through writers, whose
//! transactions load a working set and save what changed in a few set-based statements. Reads of requests (a task, lists, the audit
//! trail) use other connections and never wait for a writer.
//!
//! | room | what belongs there |
//! | --- | --- |
//! | `sql` | how SQL is made, sent and read on both databases |
//! | `opening` | how a database is found, opened and checked before it is used |
//! | `batch` | the write path: a writer, and what its transactions load and save |
//! | `maintenance` | what a writer changes outside of batches |
//! | `reads` | what requests read |
//! | `replicas` | what replicas and reconcilers need to work on one database |
//! | `schema` | migrations, and what an administrator is told of a database |
//! | `backup` | copies of an SQLite database, and the way back |
//! | `moving` | the move to another database, by a file |
//!
//! At the top are the files that several of these use, and `database`, which implements the interface.

#![warn(missing_docs, unreachable_pub)]

mod backup;
mod batch;
mod clock;
mod control_plane;
mod database;
mod error;
mod health;
mod maintenance;
mod moving;
mod opening;
mod outage;
mod reads;
mod replicas;
mod schema;
mod sql;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use backup::{BackedUp, BackupDirectory, Copied, Restored};
pub use clock::{Clock, wall_clock};
pub use control_plane::ControlPlaneCounts;
pub use error::{Error, Fault};
pub use maintenance::cleanup::Checkpoint;
pub use maintenance::files::CHUNK_BYTES;
pub use maintenance::objects::{AUDIT_FLUSHED, DATABASE_ID, LARGE_OUTPUT_BYTES};
pub use moving::{FromEarlier, Imported, Moved, Target};
pub use opening::open::StoreOptions;
pub use outage::{Outage, OutageReason};
pub use reads::audit::AuditFilter;
pub use reads::contexts::{COUNTED_TASKS, ContextRow, NewestTask};
pub use reads::lists::{LeaseFilter, LeaseRow, TaskFilter, TaskRow};
pub use reads::lookups::{ResultPreview, WorkerKey};
pub use reads::page::{Listing, PAGE_BYTES, Page};
pub use reads::search::Searched;
pub use reads::teams::OpenTasks;
pub use reads::usage::{UsageBy, UsageFilter, UsageRow};
pub use schema::checkup::{Checkup, DeadRows, Transaction};
pub use schema::migrate::{Migrated, MigrationState, MigrationStatus};
pub use sql::dialect::Kind;

use bloom_core::Ms;
use clock::SteadyClock;
use opening::open;
use replicas::{leader, listener};
use sql::args::Args;
use sql::cells::{Cells, Row};
use sql::conn::{Conn, Pool};
use sql::dialect::statement;

/// A database and its connections. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    /// Connections for requests.
    pool: Pool,
    /// Connections for the replica cache and the reconcilers, so that many requests never delay them.
    control: Pool,
    target: open::Target,
    health: Arc<health::Health>,
    /// A connection that is never used. While it is open, SQLite keeps its write-ahead log, so the log stays the same file.
    anchor: tokio::sync::Mutex<Option<Conn>>,
    clock: Clock,
    /// SQLite's time.
    steady: SteadyClock,
    /// The connection for leadership and the service mark. On SQLite it is the second connection that writes.
    side: tokio::sync::Mutex<Option<Conn>>,
    write_turn: Arc<tokio::sync::Mutex<()>>,
    served: parking_lot::Mutex<leader::Served>,
    listener: tokio::sync::Mutex<listener::Listener>,
    /// The name of this process among those that share the database.
    replica: String,
}

/// The right to write to SQLite, which is granted in the order of arrival. SQLite's own lock has no order, because its waiters only retry,
/// so a busy writer could delay the service mark for seconds. PostgreSQL needs no such right.
type WriteTurn = Option<tokio::sync::OwnedMutexGuard<()>>;

/// Connections for reading, as metrics show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    /// Open connections.
    pub size: u32,
    /// The number of them that are not in use.
    pub idle: u32,
}

statement!(NOW, |d| "SELECT {}", d.clock(1));

impl Store {
    /// # Errors
    /// [`Error::Setup`] with what to change, if the URL, the file or the server's settings are not usable; [`Error::Unavailable`] if the
    /// server can't be reached.
    pub async fn open(options: &StoreOptions) -> Result<Self, Error> {
        Self::with_clock(options, Clock::Database).await
    }

    /// Writes this server's URL into the lock file of SQLite, so that a second process on the same file can report it.
    pub fn serves_at(&self, url: &str) {
        self.inner.target.serves_at(url);
    }

    /// # Errors
    /// The same as those of [`open`](Self::open).
    pub async fn with_clock(options: &StoreOptions, clock: Clock) -> Result<Self, Error> {
        Self::with_clocks(options, clock, SteadyClock::of_machine()).await
    }

    async fn with_clocks(options: &StoreOptions, clock: Clock, steady: SteadyClock) -> Result<Self, Error> {
        let open::Opened { pool, control, target, health, anchor } = open::open(options).await?;
        let replica = format!("{:016x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id()));
        let anchor = tokio::sync::Mutex::new(anchor);
        let (side, write_turn, served, listener) = Default::default();
        let inner = Inner { pool, control, target, health, anchor, clock, steady, side, write_turn, served, listener, replica };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The kind of the database.
    pub fn kind(&self) -> Kind {
        self.inner.target.kind()
    }

    async fn write_turn(&self) -> WriteTurn {
        match self.kind() {
            Kind::Sqlite => Some(Arc::clone(&self.inner.write_turn).lock_owned().await),
            Kind::Postgres => None,
        }
    }

    /// The database's time.
    pub async fn now(&self) -> Result<Ms, Error> {
        match self.known_time() {
            Some(now) => Ok(now),
            None => one(&self.pool().fetch(&NOW, Args::new().int(None)).await?, |row| row.take()),
        }
    }

    /// Closes all connections except those of writers, which close with their owner.
    pub async fn close(&self) {
        // If a wait still holds the listener, the connection closes after that wait.
        if let Ok(mut listener) = self.inner.listener.try_lock() {
            *listener = listener::Listener::Idle;
        }
        self.pool().close().await;
        self.control().close().await;
        if let Some(side) = self.inner.side.lock().await.take() {
            side.close().await;
        }
        if let Some(anchor) = self.inner.anchor.lock().await.take() {
            anchor.close().await;
        }
    }

    /// The fault that prevents every write until the next start, if any.
    pub fn lasting_fault(&self) -> Option<Fault> {
        self.inner.health.lasting()
    }

    /// Why nothing can be written for now.
    pub fn outage(&self) -> Option<Outage> {
        self.inner.health.outage()
    }

    /// The directory of the SQLite database.
    pub fn directory(&self) -> Option<PathBuf> {
        self.inner.health.directory().map(Path::to_owned)
    }

    /// Waits for a [`lasting_fault`](Self::lasting_fault).
    pub async fn lasting_fault_occurs(&self) -> Fault {
        self.inner.health.lasts().await
    }

    /// How many connections for reading are open and idle.
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

    fn control(&self) -> &Pool {
        &self.inner.control
    }

    /// The time, or `None` if the database's clock provides it. An argument for [`Kind::clock`](sql::dialect::Kind::clock).
    fn known_time(&self) -> Option<Ms> {
        match (&self.inner.clock, self.kind()) {
            (Clock::Manual(time), _) => Some(time.load(Ordering::SeqCst)),
            (Clock::Database, Kind::Sqlite) => Some(self.inner.steady.now()),
            (Clock::Database, Kind::Postgres) => None,
        }
    }
}

/// The database's time, read on this connection unless it is known.
async fn time_of(conn: &mut Conn, known: Option<Ms>) -> Result<Ms, Error> {
    match known {
        Some(now) => Ok(now),
        None => one(&conn.fetch(&NOW, Args::new().int(None)).await?, |row| row.take()),
    }
}

/// Reads the row of a statement that always returns one row.
fn one<T>(rows: &[Row], read: impl FnOnce(&mut Cells<'_>) -> Result<T, Error>) -> Result<T, Error> {
    match rows.first() {
        Some(row) => read(&mut row.cells()),
        None => Err(Error::Corrupt("a statement that returns one row returned none".into())),
    }
}

fn all<T>(rows: &[Row], read: impl Fn(&mut Cells<'_>) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    rows.iter().map(|row| read(&mut row.cells())).collect()
}

fn first<T>(rows: &[Row], read: impl FnOnce(&mut Cells<'_>) -> Result<T, Error>) -> Result<Option<T>, Error> {
    rows.first().map(|row| read(&mut row.cells())).transpose()
}
