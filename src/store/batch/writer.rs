//! A writer: one connection for writing, and the numbered batches that it commits. Its row is in the table `lanes`.
//!
//! After most errors the connection is dropped, and the rollback opens a new one.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use bloom_core::audit::COMMIT_WITHIN_MS;
use bloom_core::command::RowKeys;
use bloom_core::working_set::{Loaded, WorkingSet};
use bloom_database::{Done, LockWait, Maintenance};

use crate::batch::save::Before;
use crate::batch::script::Script;
use crate::batch::{load, save};
use crate::error::Error;
use crate::maintenance::page_sizes::PageSizes;
use crate::opening::open::{IDLE, STATEMENT};
use crate::outage::OutageReason;
use crate::replicas::{feed, leader};
use crate::sql::args::Args;
use crate::sql::conn::Conn;
use crate::sql::dialect::{Kind, statement};
use crate::{Store, WriteTurn, first, one, time_of};

pub(crate) struct Writer {
    pub id: i64,
    pub store: Store,
    conn: Option<Conn>,
    transaction: Option<WriteTurn>,
    /// A time before the transaction began.
    begun: Instant,
    pub n: i64,
    before: Before,
    pub pages: PageSizes,
}

/// How long a transaction with audit entries may take before its COMMIT is sent. SQLite needs no limit, because its transactions do not
/// overlap and so no entry is late.
const TRANSACTION: Duration = Duration::from_secs(14);
/// PostgreSQL ends the transaction if the COMMIT is sent late, or takes long.
const _: () = assert!((TRANSACTION.as_secs() + IDLE.as_secs() + STATEMENT.as_secs()) * 1_000 <= COMMIT_WITHIN_MS.unsigned_abs());

// A beginning import removes all writers, and waits for writers that are registering. So no batch is decided on rows from before the
// import.
statement!(
    REGISTER,
    |d| "INSERT INTO lanes (replica, started_at, seen_at) SELECT $1, {0}, {0} WHERE NOT EXISTS (SELECT 1 FROM imports WHERE number > $3) \
    RETURNING lane",
    d.clock(2)
);
statement!(IS_REGISTERED, "SELECT lane FROM lanes WHERE lane = $1");
statement!(WAIT_SHORTLY, "SET LOCAL lock_timeout = '50ms'");
statement!(COMMIT, "COMMIT");
statement!(ROLLBACK, "ROLLBACK");
statement!(
    CLAIM_NUMBER,
    "INSERT INTO batches (lane, n, at, counts, changes) VALUES ($1, $2, $3, '', 'void') ON CONFLICT (lane, n) DO NOTHING"
);
statement!(IS_VOID, "SELECT changes = 'void' FROM batches WHERE lane = $1 AND n = $2");

#[async_trait]
impl bloom_database::Writer for Writer {
    fn id(&self) -> i64 {
        self.id
    }

    fn n(&self) -> i64 {
        self.n
    }

    async fn begin_and_load(&mut self, keys: &RowKeys, wait: LockWait) -> bloom_database::Result<Loaded> {
        let loaded = self.load(keys, wait).await;
        Ok(self.check_connection(loaded)?)
    }

    async fn save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> bloom_database::Result<()> {
        let saved = self.try_save(set, check_epoch).await;
        Ok(self.check_connection(saved)?)
    }

    async fn rollback(&mut self) -> bloom_database::Result<()> {
        if self.conn.is_none() {
            return Ok(self.reconnect().await?);
        }
        let transaction = self.transaction.take();
        if transaction.is_some() && self.conn()?.execute(&ROLLBACK, Args::new()).await.is_err() {
            self.reconnect().await?;
        }
        Ok(())
    }

    async fn resolve_commit(&mut self) -> bloom_database::Result<bool> {
        if self.conn.is_none() {
            self.reconnect().await?;
        }
        let outcome = self.resolve().await;
        Ok(self.check_connection(outcome)?)
    }

    async fn maintain(&mut self, job: &Maintenance) -> bloom_database::Result<Done> {
        let done = match *job {
            Maintenance::CompactCounts => self.compact().await,
            Maintenance::PruneBatches { older_than_ms } => self.prune_batches(older_than_ms).await,
            Maintenance::PruneAudit { older_than_ms, limit, only_flushed } => self.prune_audit(older_than_ms, limit, only_flushed).await,
            Maintenance::MoveOutput { artifact, ref object } => self.move_output(artifact, object).await,
            Maintenance::StoreChunk { file, number, ref content, due_at } => self.store_chunk(file, number, &content.0, due_at).await,
            Maintenance::DropChunks { file } => self.drop_chunks(file).await,
            Maintenance::RemoveFiles { limit } => self.remove_files(limit).await,
            Maintenance::MoveFile { file, ref url } => self.move_file(file, url).await,
            Maintenance::SetStoredBytes { ref key, bytes } => self.set_stored_bytes(key, bytes).await,
            Maintenance::RecordKeyUses { ref uses } => self.record_key_uses(uses).await,
            Maintenance::RecordReconcilers { ref runs } => self.record_reconcilers(runs).await,
            Maintenance::SetMark { name, ref known, ref value } => self.set_mark(name, known, value).await,
            Maintenance::RemoveTasks { finished_for_ms, limit } => self.remove_tasks(finished_for_ms, limit).await,
            Maintenance::CorrectCounts { ref missing, epoch } => self.correct_counts(missing, epoch).await,
        };
        Ok(self.check_connection(done)?)
    }

    async fn close(mut self: Box<Self>) {
        if let Some(conn) = self.conn.take() {
            conn.close().await;
        }
    }
}

async fn register(store: &Store, conn: &mut Conn) -> Result<i64, Error> {
    let last_import = store.inner.served.lock().last_import();
    let args = Args::new().text(store.inner.replica.as_str()).int(store.known_time()).int(last_import);
    first(&conn.fetch(&REGISTER, args).await?, |row| row.take())?.ok_or_else(|| store.inner.health.imported())
}

impl Writer {
    /// Opens a connection and registers the writer. One writer is enough on SQLite, because several would only wait for each other.
    pub(crate) async fn open(store: Store) -> Result<Self, Error> {
        let mut conn = store.inner.target.writer().await?;
        let id = register(&store, &mut conn).await?;
        Ok(Self {
            id,
            store,
            conn: Some(conn),
            transaction: None,
            begun: Instant::now(),
            n: 0,
            before: Before::default(),
            pages: PageSizes::default(),
        })
    }

    async fn load(&mut self, keys: &RowKeys, wait: LockWait) -> Result<Loaded, Error> {
        self.begin().await?;
        let time = self.store.known_time();
        if wait != LockWait::Long {
            self.wait_shortly().await?;
        }
        let loaded = load::load(self.conn()?, time, keys, wait == LockWait::Skip).await?;
        self.before = Before::of(&loaded);
        Ok(loaded)
    }

    async fn try_save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> Result<(), Error> {
        let time = self.store.known_time();
        let (id, n) = (self.id, self.n + 1);
        let before = std::mem::take(&mut self.before);
        let conn = self.conn()?;
        if set.dirty.is_empty() {
            // There is nothing to write, so the commit only releases the locks.
            return self.commit().await;
        }
        let mut script = Script::default();
        save::save(&mut script, set, &before);
        feed::record(&mut script, conn.kind(), id, n, set)?;
        let committed = script.run(conn, true).await?;
        if let Some(epoch) = check_epoch {
            leader::check(conn, epoch, time).await?;
        }
        if committed {
            self.transaction = None;
            self.store.inner.health.committed()?;
        } else {
            if !set.dirty.audit.is_empty() && self.begun.elapsed() > TRANSACTION {
                return Err(Error::Unavailable(
                    OutageReason::Timeout,
                    format!("a transaction took longer than {} s", TRANSACTION.as_secs()),
                ));
            }
            self.commit().await?;
        }
        self.n = n;
        Ok(())
    }

    pub(crate) async fn begin(&mut self) -> Result<(), Error> {
        self.store.inner.health.check()?;
        let turn = self.store.write_turn().await;
        self.begun = Instant::now();
        self.conn()?.begin().await?;
        self.transaction = Some(turn);
        Ok(())
    }

    /// Makes the transaction wait only briefly for locks.
    pub(crate) async fn wait_shortly(&mut self) -> Result<(), Error> {
        let conn = self.conn()?;
        if conn.kind() == Kind::Postgres {
            conn.execute(&WAIT_SHORTLY, Args::new()).await?;
        }
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), Error> {
        match self.conn()?.execute(&COMMIT, Args::new()).await {
            Ok(_) => {
                self.transaction = None;
                self.store.inner.health.committed()
            }
            Err(error @ Error::Conflict(_)) => Err(error),
            Err(error) => {
                self.store.inner.health.record_error(&error);
                Err(Error::CommitUnknown(error.to_string()))
            }
        }
    }

    /// Finds out whether the batch has committed, by trying to insert its number. If that succeeds now, or succeeded in an earlier try, the
    /// batch did not commit and no longer can.
    async fn resolve(&mut self) -> Result<bool, Error> {
        let (id, n, time) = (self.id, self.n + 1, self.store.known_time());
        let conn = self.conn()?;
        let now = time_of(conn, time).await?;
        conn.execute(&CLAIM_NUMBER, Args::new().int(id).int(n).int(now)).await?;
        let void: bool = one(&conn.fetch(&IS_VOID, Args::new().int(id).int(n)).await?, |row| row.take())?;
        self.store.inner.health.committed()?;
        self.n = n;
        Ok(!void)
    }

    /// Replaces the connection.
    async fn reconnect(&mut self) -> Result<(), Error> {
        self.conn = None;
        self.transaction = None;
        let health = &self.store.inner.health;
        let mut conn = self.store.inner.target.writer().await.inspect_err(|error| health.record_error(error))?;
        // If this replica was silent for long, its writers have been removed.
        if conn.fetch(&IS_REGISTERED, Args::new().int(self.id)).await?.is_empty() {
            self.id = register(&self.store, &mut conn).await?;
            self.n = 0;
        }
        self.conn = Some(conn);
        Ok(())
    }

    pub(crate) fn conn(&mut self) -> Result<&mut Conn, Error> {
        let Self { conn, store, .. } = self;
        conn.as_mut().ok_or_else(|| store.inner.health.away())
    }

    /// Drops the connection after an error that leaves it unusable.
    fn check_connection<T>(&mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &outcome {
            self.store.inner.health.record_error(error);
            if !error.keeps_connection() {
                self.conn = None;
                self.transaction = None;
            }
        }
        outcome
    }
}
