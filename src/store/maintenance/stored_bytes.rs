//! Measures how much the submit keys store whose quota limits it.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::batch::load::OPEN_TASKS;
use crate::batch::writer::Writer;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::conn::Conn;
use crate::sql::dialect::statement;
use crate::{Store, all, first, one};
use bloom_core::api_key::ApiKey;
use bloom_core::task::TASK_BYTES;
use bloom_database::Done;

/// Tasks whose sizes one statement adds up.
const STEP: i64 = 1_000;
/// The time limit for measuring all keys. Keys that are not reached keep their previous value.
const TAKES: Duration = Duration::from_secs(120);

statement!(LIMITED, "SELECT name, stored_bytes FROM api_keys WHERE max_stored_bytes IS NOT NULL ORDER BY name");
statement!(PAGE_TO, |_d| "SELECT id FROM tasks WHERE owner = $1 AND id > $2 ORDER BY id LIMIT 1 OFFSET {STEP}");
statement!(
    OF_TASKS,
    |_d| "SELECT CAST(coalesce(sum({TASK_BYTES} + octet_length(t.prompt) + octet_length(t.context_hints) + octet_length(t.outputs) \
        + octet_length(t.inputs) + octet_length(t.depends_on) + octet_length(t.labels) \
        + coalesce((SELECT octet_length(s.labels) FROM task_state s WHERE s.id = t.id), 0) \
        + coalesce((SELECT sum(coalesce(r.object_bytes, octet_length(r.output), 0)) FROM results r WHERE r.task_id = t.id), 0) \
        + coalesce((SELECT sum(octet_length(e.data)) FROM task_events e WHERE e.task_id = t.id), 0) \
        + coalesce((SELECT sum(f.bytes) FROM files f WHERE f.task_id = t.id), 0)), 0) AS BIGINT) \
    FROM tasks t WHERE t.owner = $1 AND t.id > $2 AND t.id <= $3"
);
statement!(OF_UPLOADS, "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM files WHERE owner = $1 AND owner <> '' AND task_id IS NULL");
statement!(STORED, "SELECT stored_bytes FROM api_keys WHERE name = $1");
statement!(SET, "UPDATE api_keys SET stored_bytes = $2 WHERE name = $1");

impl Store {
    /// Measures how many bytes the keys store whose quota limits it. Returns the keys whose number has changed since the last measurement.
    pub(crate) async fn measure_stored(&self) -> Result<Vec<(String, i64)>, Error> {
        let limited: Vec<(String, i64)> = all(&self.pool().fetch(&LIMITED, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))?;
        if limited.is_empty() {
            return Ok(Vec::new());
        }
        // A connection of its own, because this may take minutes.
        let mut conn = self.inner.target.surveyor().await?;
        let measured = measure(&mut conn, limited).await;
        conn.close().await;
        measured
    }

    /// The number of open tasks of this key, and of the bytes that it stores; `None` for what its quota does not limit.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn quota_use(&self, key: &ApiKey) -> Result<(Option<i64>, Option<i64>), Error> {
        let (mut open, mut stored) = (None, None);
        if key.quota.max_open_tasks.is_some() {
            open = Some(one(&self.pool().fetch(&OPEN_TASKS, Args::new().text(&key.name)).await?, |row| row.take())?);
        }
        if key.quota.max_stored_bytes.is_some() {
            stored = first(&self.pool().fetch(&STORED, Args::new().text(&key.name)).await?, |row| row.take())?;
        }
        Ok((open, stored))
    }
}

async fn measure(conn: &mut Conn, limited: Vec<(String, i64)>) -> Result<Vec<(String, i64)>, Error> {
    let started = Instant::now();
    let mut changed = Vec::new();
    for (key, before) in limited {
        let mut bytes: i64 = one(&conn.fetch(&OF_UPLOADS, Args::new().text(&key)).await?, |row| row.take())?;
        let mut after = Uuid::nil();
        while after < Uuid::max() {
            if started.elapsed() > TAKES {
                return Ok(changed);
            }
            let to: Option<Uuid> = first(&conn.fetch(&PAGE_TO, Args::new().text(&key).uuid(after)).await?, |row| row.take())?;
            let to = to.unwrap_or(Uuid::max());
            let page: i64 = one(&conn.fetch(&OF_TASKS, Args::new().text(&key).uuid(after).uuid(to)).await?, |row| row.take())?;
            bytes = bytes.saturating_add(page);
            after = to;
        }
        if bytes != before {
            changed.push((key, bytes));
        }
    }
    Ok(changed)
}

impl Writer {
    pub(crate) async fn set_stored_bytes(&mut self, key: &str, bytes: i64) -> Result<Done, Error> {
        self.begin_maintenance().await?;
        let rows = self.conn()?.execute(&SET, Args::new().text(key).int(bytes)).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }
}
