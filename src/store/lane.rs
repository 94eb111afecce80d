//! A lane: one connection for writing, and the numbered batches that it commits.
//!
//! Its transactions are a load, a save, a commit. The future of a call must run to its end: dropped midway, it would leave a statement
//! behind on the connection. An error other than a conflict costs the connection; [`Lane::rollback`] makes a new one.

use std::collections::HashMap;

use super::args::Args;
use super::conn::Conn;
use super::dialect::statement;
use super::error::Error;
use super::script::Script;
use super::{Store, one};
use crate::core::command::Keys;
use crate::core::ids::{LeaseId, TaskId};
use crate::core::working_set::{Loaded, WorkingSet};

pub struct Lane {
    /// Never used twice.
    pub id: i64,
    pub(super) store: Store,
    conn: Option<Conn>,
    in_transaction: bool,
    /// The last batch that committed.
    pub(super) n: i64,
    /// The leases that the loaded tasks came with.
    pub(super) held: HashMap<TaskId, LeaseId>,
}

/// The last batch that committed: this one, unless it had nothing to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    pub n: i64,
}

statement!(REGISTER, |d| "INSERT INTO lanes (replica, started_at, seen_at) VALUES ($1, {0}, {0}) RETURNING lane", d.clock(2));
statement!(IS_REGISTERED, "SELECT lane FROM lanes WHERE lane = $1");
statement!(COMMIT, "COMMIT");
statement!(ROLLBACK, "ROLLBACK");
statement!(
    CLAIM_NUMBER,
    "INSERT INTO batches (lane, n, at, counts, changes) VALUES ($1, $2, $3, '', 'void') ON CONFLICT (lane, n) DO NOTHING"
);
statement!(IS_VOID, "SELECT changes = 'void' FROM batches WHERE lane = $1 AND n = $2");

impl Store {
    /// Opens a connection for writing. SQLite has room for one that writes at a time; more would only wait for each other.
    pub async fn lane(&self) -> Result<Lane, Error> {
        let mut conn = self.inner.target.writer().await?;
        let id = register(self, &mut conn).await?;
        Ok(Lane { id, store: self.clone(), conn: Some(conn), in_transaction: false, n: 0, held: HashMap::new() })
    }
}

async fn register(store: &Store, conn: &mut Conn) -> Result<i64, Error> {
    let args = Args::new().text(store.inner.replica.as_str()).int(store.known_time());
    one(&conn.fetch(&REGISTER, args).await?, |row| row.take())
}

impl Lane {
    /// Starts a transaction, locks the rows that the keys lead to (workers by id, then tasks by id), and reads them.
    ///
    /// # Errors
    /// After any error, [`rollback`](Self::rollback) comes next.
    pub async fn begin_and_load(&mut self, keys: &Keys) -> Result<Loaded, Error> {
        let loaded = self.try_load(keys).await;
        self.judge(loaded)
    }

    async fn try_load(&mut self, keys: &Keys) -> Result<Loaded, Error> {
        self.begin().await?;
        let time = self.store.known_time();
        let loaded = super::load::load(self.conn()?, time, keys).await?;
        let tasks = loaded.tasks.values().flatten();
        self.held = tasks.filter_map(|task| Some((task.id, task.lease.as_ref()?.id))).collect();
        Ok(loaded)
    }

    /// Writes what the batch changed, and commits. With `check_epoch`, only if that leadership still lasts.
    ///
    /// # Errors
    /// [`Error::CommitUnknown`] asks for [`resolve_commit`](Self::resolve_commit); after any other,
    /// [`rollback`](Self::rollback) comes next and nothing was written.
    pub async fn save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> Result<Saved, Error> {
        let saved = self.try_save(set, check_epoch).await;
        self.judge(saved)
    }

    async fn try_save(&mut self, set: &WorkingSet, check_epoch: Option<i64>) -> Result<Saved, Error> {
        let time = self.store.known_time();
        let (lane, n) = (self.id, self.n + 1);
        let held = std::mem::take(&mut self.held);
        let conn = self.conn()?;
        if set.dirty.is_empty() {
            // Nothing to keep and nothing to prove: the locks are let go.
            self.commit().await?;
            return Ok(Saved { n: self.n });
        }
        let mut script = Script::default();
        super::save::save(&mut script, set, &held);
        super::feed::record(&mut script, conn.kind(), lane, n, set)?;
        let committed = script.run(conn, true).await?;
        if let Some(epoch) = check_epoch {
            super::leader::check(conn, epoch, time).await?;
        }
        if committed {
            self.in_transaction = false;
            self.store.inner.health.committed()?;
        } else {
            self.commit().await?;
        }
        self.n = n;
        Ok(Saved { n })
    }

    pub(super) async fn begin(&mut self) -> Result<(), Error> {
        self.store.inner.health.check()?;
        self.conn()?.begin().await?;
        self.in_transaction = true;
        Ok(())
    }

    pub(super) async fn commit(&mut self) -> Result<(), Error> {
        match self.conn()?.execute(&COMMIT, Args::new()).await {
            Ok(_) => {
                self.in_transaction = false;
                self.store.inner.health.committed()
            }
            Err(error @ Error::Conflict(_)) => Err(error),
            Err(error) => Err(Error::CommitUnknown(error.to_string())),
        }
    }

    /// Gives the transaction up. Where the connection is lost, that has happened by itself, and a new one is made.
    pub async fn rollback(&mut self) -> Result<(), Error> {
        if self.conn.is_none() {
            return self.reconnect().await;
        }
        if std::mem::take(&mut self.in_transaction) && self.conn()?.execute(&ROLLBACK, Args::new()).await.is_err() {
            return self.reconnect().await;
        }
        Ok(())
    }

    /// After [`Error::CommitUnknown`]: did that batch commit? Either way it is settled from then on. May be called until it answers.
    pub async fn resolve_commit(&mut self) -> Result<bool, Error> {
        if self.conn.is_none() {
            self.reconnect().await?;
        }
        let outcome = self.try_resolve().await;
        self.judge(outcome)
    }

    /// Takes the batch's number itself: where that works, the batch did not commit and no longer can. An earlier try may have done it.
    async fn try_resolve(&mut self) -> Result<bool, Error> {
        let now = self.store.now().await?;
        let (lane, n) = (self.id, self.n + 1);
        let conn = self.conn()?;
        conn.execute(&CLAIM_NUMBER, Args::new().int(lane).int(n).int(now)).await?;
        let void: bool = one(&conn.fetch(&IS_VOID, Args::new().int(lane).int(n)).await?, |row| row.take())?;
        self.store.inner.health.committed()?;
        self.n = n;
        Ok(!void)
    }

    /// The number of the last batch that committed.
    pub fn n(&self) -> i64 {
        self.n
    }

    /// Closes the connection; an open transaction is given up.
    pub async fn close(mut self) {
        if let Some(conn) = self.conn.take() {
            conn.close().await;
        }
    }

    /// Replaces the connection.
    pub async fn reconnect(&mut self) -> Result<(), Error> {
        self.conn = None;
        self.in_transaction = false;
        let mut conn = self.store.inner.target.writer().await?;
        // A replica that was away for long has had its lanes removed.
        if conn.fetch(&IS_REGISTERED, Args::new().int(self.id)).await?.is_empty() {
            self.id = register(&self.store, &mut conn).await?;
            self.n = 0;
        }
        self.conn = Some(conn);
        Ok(())
    }

    pub(super) fn conn(&mut self) -> Result<&mut Conn, Error> {
        self.conn.as_mut().ok_or_else(|| Error::Unavailable("the connection was lost".into()))
    }

    /// Drops a connection that is not to be trusted any more.
    pub(super) fn judge<T>(&mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &outcome {
            self.store.inner.health.note(error);
            if !error.keeps_connection() {
                self.conn = None;
                self.in_transaction = false;
            }
        }
        outcome
    }
}
