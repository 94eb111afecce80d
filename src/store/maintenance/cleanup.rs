//! Maintenance in small transactions of a writer: compacts counts and removes old rows.

use std::time::Duration;

use crate::batch::script::Script;
use crate::batch::writer::Writer;
use crate::error::Error;
use crate::maintenance::{objects, task_removal};
use crate::reads::lists::first_id_of;
use crate::replicas::{counts, feed, leader};
use crate::sql::args::Args;
use crate::sql::cells::{Cells, Type};
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all, one, time_of};
use bloom_core::Ms;
use bloom_core::cache::priority;
use bloom_core::ids::TaskId;
use bloom_core::task::Status;
use bloom_database::{Changed, CountDeltas, Done};

/// The approximate limit of events of the tasks that one transaction removes.
const EVENTS: i64 = 20_000;
/// A writer whose replica has been silent for this long is dead.
const WRITER_SILENCE_MS: i64 = 3_600_000;
/// How long the row of a removed worker is kept.
const TOMBSTONE_MS: i64 = 3_600_000;

statement!(LANES, "SELECT lane, folded_n FROM lanes");
statement!(
    PRUNE_BATCHES,
    // The newest batch of a live writer is kept, because the writer needs it to find out whether a commit with an unknown outcome
    // succeeded.
    "DELETE FROM batches WHERE lane = $1 AND n <= $2 AND at < $3 AND n < (SELECT min(n) + $4 FROM batches WHERE lane = $1) \
    AND (n < (SELECT max(n) FROM batches WHERE lane = $1) OR EXISTS (SELECT 1 FROM lanes WHERE lane = $1 AND seen_at < $5))"
);
statement!(
    PRUNE_LANES,
    "DELETE FROM lanes WHERE seen_at < $1 AND lane <> $2 AND NOT EXISTS (SELECT 1 FROM batches b WHERE b.lane = lanes.lane)"
);
// The rows are locked, because a registration of the same name locks its row too. Otherwise each of the two could remove what the other
// needs.
statement!(TOMBSTONES, |d| "SELECT id FROM workers WHERE removed_at < $1 ORDER BY id LIMIT $2 {}", d.skip_locked());
statement!(DELETE_WORKERS, |d| "DELETE FROM workers WHERE id {}", d.any(Type::Text, 1));
statement!(DELETE_SEEN, |d| "DELETE FROM worker_seen WHERE worker_id {}", d.any(Type::Text, 1));
statement!(PRUNE_AUDIT, "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < $1 ORDER BY id LIMIT $2)");

// The OFFSET keeps PostgreSQL from turning the subquery into a join, which would read all of `task_deps`.
fn removable(condition: &str, order: &str, kind: Kind) -> String {
    format!(
        "SELECT t.id, t.agent_slug, t.rank, t.status, t.event_count FROM task_state t \
         WHERE {condition} AND t.status IN ('completed', 'failed', 'dead', 'cancelled') \
            AND NOT t.id {} \
            AND NOT EXISTS (SELECT 1 FROM task_deps d JOIN task_state w ON w.id = d.task_id WHERE d.dep_id = t.id AND w.status = 'queued' LIMIT 1 OFFSET 0) \
         ORDER BY {order} LIMIT $2 {}",
        kind.any(Type::Uuid, 3),
        kind.skip_locked()
    )
}
statement!(FINISHED_BEFORE, |d| "{}", removable("t.finished_at IS NOT NULL AND t.finished_at < $1", "t.finished_at", d));
statement!(REMOVE_DUE, |d| "{}", removable("t.remove_at IS NOT NULL AND t.remove_at <= $1", "t.remove_at", d));
statement!(
    STILL_AWAITED,
    |d| "SELECT d.dep_id FROM task_deps d JOIN task_state w ON w.id = d.task_id \
    WHERE d.dep_id {} AND w.status = 'queued'",
    d.any(Type::Uuid, 1)
);
statement!(CHECKPOINT, "PRAGMA wal_checkpoint(PASSIVE)");
statement!(RESTART, "PRAGMA wal_checkpoint(RESTART)");
statement!(PAGE_SIZE, "PRAGMA page_size");
const WAL_BYTES: i64 = 16 << 20;
const RESTART_TRIES: u32 = 10;
const RESTART_REST: Duration = Duration::from_millis(5);

impl Writer {
    /// Maintenance waits only briefly for locks, because commands wait behind it.
    pub(crate) async fn begin_maintenance(&mut self) -> Result<(), Error> {
        self.begin().await?;
        self.wait_shortly().await
    }

    pub(crate) async fn compact(&mut self) -> Result<Done, Error> {
        self.begin_maintenance().await?;
        let rows = counts::compact(self.conn()?).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }

    /// Writes the correction as a batch without tasks, so that it is compacted and reaches other replicas like any other batch.
    pub(crate) async fn correct_counts(&mut self, missing: &CountDeltas, epoch: i64) -> Result<Done, Error> {
        let (writer, n, time) = (self.id, self.n + 1, self.store.known_time());
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        let at = time_of(conn, time).await?;
        let mut script = Script::default();
        feed::write(&mut script, conn.kind(), (writer, n), at, missing, || Changed { recounted: true, ..Changed::default() })?;
        script.run(conn, false).await?;
        leader::check(conn, epoch, time).await?;
        self.commit().await?;
        self.n = n;
        Ok(Done { rows: missing.len() as u64, is_batch: true, ..Done::default() })
    }

    pub(crate) async fn prune_batches(&mut self, older_than_ms: i64) -> Result<Done, Error> {
        let done = self.try_prune_batches(older_than_ms).await;
        self.pages.batches.adapt(&done);
        done
    }

    async fn try_prune_batches(&mut self, older_than_ms: i64) -> Result<Done, Error> {
        let (own, time, page) = (self.id, self.store.known_time(), self.pages.batches.rows);
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        let now = time_of(conn, time).await?;
        let writers: Vec<(i64, i64)> = all(&conn.fetch(&LANES, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))?;
        let silent = now - older_than_ms - WRITER_SILENCE_MS;
        let mut rows = 0;
        for (writer, compacted) in writers {
            rows +=
                conn.execute(&PRUNE_BATCHES, Args::new().int(writer).int(compacted).int(now - older_than_ms).int(page).int(silent)).await?;
        }
        conn.execute(&PRUNE_LANES, Args::new().int(silent).int(own)).await?;
        let gone: Vec<String> = all(&conn.fetch(&TOMBSTONES, Args::new().int(now - TOMBSTONE_MS).int(page)).await?, |row| row.take())?;
        if !gone.is_empty() {
            conn.execute(&DELETE_SEEN, Args::new().texts(&gone)).await?;
            conn.execute(&DELETE_WORKERS, Args::new().texts(&gone)).await?;
        }
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }

    pub(crate) async fn prune_audit(&mut self, older_than_ms: i64, limit: i64, only_flushed: bool) -> Result<Done, Error> {
        let done = self.try_prune_audit(older_than_ms, limit, only_flushed).await;
        self.pages.audit.adapt(&done);
        done
    }

    async fn try_prune_audit(&mut self, older_than_ms: i64, limit: i64, only_flushed: bool) -> Result<Done, Error> {
        let (time, page) = (self.store.known_time(), self.pages.audit.rows.min(limit));
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        let now = time_of(conn, time).await?;
        let mut end = first_id_of(now - older_than_ms);
        if only_flushed {
            // Only entries before the mark are removed; the entry that it names is kept.
            end = end.min(objects::flushed(conn).await?);
        }
        let rows = conn.execute(&PRUNE_AUDIT, Args::new().uuid(end).int(page)).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }

    pub(crate) async fn remove_tasks(&mut self, finished_for_ms: Option<Ms>, limit: i64) -> Result<Done, Error> {
        self.pages.removing.clear();
        let done = self.try_remove_tasks(finished_for_ms, limit).await;
        self.pages.tasks.adapt(&done);
        if let Err(error) = &done
            && error.is_fault()
        {
            self.pages.leave_out(error);
        }
        done
    }

    async fn try_remove_tasks(&mut self, finished_for_ms: Option<Ms>, limit: i64) -> Result<Done, Error> {
        let (writer, n, time) = (self.id, self.n + 1, self.store.known_time());
        let limit = self.pages.tasks.rows.min(limit);
        let left_out = self.pages.left_out.clone();
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        let now = time_of(conn, time).await?;
        let mut found = conn.fetch(&REMOVE_DUE, Args::new().int(now).int(limit).uuids(&left_out)).await?;
        if let Some(finished_for_ms) = finished_for_ms
            && (found.len() as i64) < limit
        {
            let args = Args::new().int(now - finished_for_ms).int(limit - found.len() as i64).uuids(&left_out);
            found.extend(conn.fetch(&FINISHED_BEFORE, args).await?);
        }
        let mut doomed: Vec<(TaskId, String, i64, Status)> = Vec::new();
        let mut events = 0;
        for row in &found {
            let mut row = row.cells();
            let (id, agent, rank): (TaskId, String, i64) = (row.take()?, row.take()?, row.take()?);
            let (status, count): (Status, i64) = (row.take()?, row.take()?);
            if (events > 0 && events + count > EVENTS) || doomed.iter().any(|(other, ..)| *other == id) {
                continue;
            }
            events += count;
            doomed.push((id, agent, priority(rank), status));
        }
        // A task that depends on one of these may have been created before the locks were taken.
        let awaited: Vec<TaskId> =
            all(&conn.fetch(&STILL_AWAITED, Args::new().uuids(doomed.iter().map(|(id, ..)| id))).await?, |row| row.take())?;
        doomed.retain(|(id, ..)| !awaited.contains(id));
        if doomed.is_empty() {
            self.commit().await?;
            return Ok(Done::default());
        }
        let removed: Vec<TaskId> = doomed.iter().map(|(id, ..)| *id).collect();
        self.pages.removing.clone_from(&removed);
        let conn = self.conn()?;
        for statement in task_removal::STATEMENTS {
            conn.execute(statement, Args::new().uuids(&removed)).await?;
        }
        let mut counts = CountDeltas::default();
        for (_, agent, priority, status) in doomed {
            *counts.tasks.entry((agent, priority, status)).or_default() -= 1;
        }
        let mut script = Script::default();
        feed::write(&mut script, conn.kind(), (writer, n), now, &counts, || Changed {
            removed_tasks: removed.clone(),
            ..Changed::default()
        })?;
        script.run(conn, false).await?;
        self.commit().await?;
        self.n = n;
        Ok(Done { rows: removed.len() as u64, removed, counts, is_batch: true })
    }
}

/// The outcome of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The bytes of the log, without its header; 0 on PostgreSQL.
    pub log_bytes: i64,
    /// The database file contains everything that is in the log.
    pub is_complete: bool,
    /// The next commit is written to the beginning of the log.
    pub starts_over: bool,
}

impl Store {
    /// Copies SQLite's write-ahead log into the database file, without waiting for readers or writers and without delaying them. A long log
    /// is restarted, because a growing file makes each commit slower. Must be called about every second, after a successful
    /// [`mark_served`](bloom_database::Database::mark_served): if both succeed, a disk that was full is usable again. Copies nothing on
    /// PostgreSQL.
    pub async fn checkpoint(&self) -> Result<Checkpoint, Error> {
        if self.kind() == Kind::Postgres {
            return Ok(Checkpoint::default());
        }
        let mut done = {
            let mut side = self.side().await?;
            let Some(conn) = side.as_mut() else { return Err(self.inner.health.away()) };
            let (_, pages, copied) = one(&conn.fetch(&CHECKPOINT, Args::new()).await?, progress)?;
            let page_size: i64 = one(&conn.fetch(&PAGE_SIZE, Args::new()).await?, |row| row.take())?;
            Checkpoint { log_bytes: pages * page_size, is_complete: copied == pages, starts_over: false }
        };
        // A restart can't succeed while a reader still needs the log.
        if done.log_bytes > WAL_BYTES && done.is_complete {
            done.starts_over = self.start_log_over().await?;
        }
        self.inner.health.works();
        Ok(done)
    }

    /// RESTART holds the writer's lock while it waits for readers, so it must not wait. On this connection it gives up at once if a reader
    /// or the writer blocks it. The writer's transactions are short, so a few tries find a gap between two of them.
    async fn start_log_over(&self) -> Result<bool, Error> {
        let mut conn = self.inner.target.checkpointer().await?;
        let mut starts_over = false;
        for attempt in 0..RESTART_TRIES {
            if attempt > 0 {
                tokio::time::sleep(RESTART_REST).await;
            }
            let _turn = self.write_turn().await;
            let (busy, ..) = one(&conn.fetch(&RESTART, Args::new()).await?, progress)?;
            starts_over = busy == 0;
            if starts_over {
                break;
            }
        }
        conn.close().await;
        Ok(starts_over)
    }
}

/// Reads whether the checkpoint was blocked, the number of pages in the log, and how many of them were copied.
fn progress(row: &mut Cells<'_>) -> Result<(i64, i64, i64), Error> {
    Ok((row.take()?, row.take()?, row.take()?))
}
