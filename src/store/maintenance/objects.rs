//! Records what is in the object store, and finds what belongs there: outputs and the audit trail.

use uuid::Uuid;

use crate::batch::writer::Writer;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::conn::Conn;
use crate::sql::dialect::statement;
use crate::sql::record_rows;
use crate::sql::table::ReadRow;
use crate::{Store, all, first, one};
use bloom_core::Ms;
use bloom_core::audit::AuditEntry;
use bloom_core::run_result::{RunResult, StoredObject};
use bloom_database::Done;

/// Outputs above this size belong into the object store. The index `results_to_move` has the same number.
pub const LARGE_OUTPUT_BYTES: usize = 64 << 10;
/// The mark of the last audit entry that is in the object store.
pub const AUDIT_FLUSHED: &str = "audit_flushed";
/// The mark with the id by which a bucket tells databases apart.
pub const DATABASE_ID: &str = "database_id";

statement!(
    TO_MOVE,
    |d| "SELECT artifact_id FROM results {} WHERE {} > 65536 AND artifact_id > $1 ORDER BY artifact_id LIMIT $2",
    d.by_index("results_to_move"),
    d.bytes("output")
);
statement!(
    BACKLOG,
    |d| "SELECT (SELECT count(*) FROM (SELECT 1 FROM results {} WHERE {} > 65536 LIMIT $1) AS large) \
        + (SELECT count(*) FROM (SELECT 1 FROM files {} WHERE object_url IS NULL AND bytes > 65536 LIMIT $1) AS large)",
    d.by_index("results_to_move"),
    d.bytes("output"),
    d.by_index("files_to_move")
);
statement!(
    MOVE,
    "UPDATE results SET output = NULL, object_url = $2, object_bytes = $3, preview = $4 WHERE artifact_id = $1 AND object_url IS NULL"
);
statement!(EXISTING, |d| "SELECT artifact_id FROM results WHERE artifact_id {}", d.any(Type::Uuid, 1));
statement!(ARTIFACT, |_d| "SELECT {} FROM results WHERE artifact_id = $1", record_rows::RESULT.names(""));
statement!(pub(crate) MARK, "SELECT value FROM object_marks WHERE name = $1");
statement!(
    SET_MARK,
    "INSERT INTO object_marks (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE object_marks.value = $3"
);
statement!(AUDIT_AFTER, |_d| "SELECT {} FROM audit WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3", record_rows::AUDIT.names(""));

/// The last audit entry that is in the object store; nil if none is.
pub(crate) async fn flushed(conn: &mut Conn) -> Result<Uuid, Error> {
    let found: Option<String> = first(&conn.fetch(&MARK, Args::new().text(AUDIT_FLUSHED)).await?, |row| row.take())?;
    Ok(found.and_then(|id| Uuid::parse_str(&id).ok()).unwrap_or_default())
}

impl Store {
    /// The artifacts after this one whose outputs belong into the object store but are still in the database.
    pub async fn outputs_to_move(&self, after: Uuid, limit: i64) -> Result<Vec<Uuid>, Error> {
        all(&self.pool().fetch(&TO_MOVE, Args::new().uuid(after).int(limit)).await?, |row| row.take())
    }

    /// The number of outputs and files that are to be moved. Each of the two is counted up to `most`.
    pub async fn output_backlog(&self, most: i64) -> Result<i64, Error> {
        one(&self.pool().fetch(&BACKLOG, Args::new().int(most)).await?, |row| row.take())
    }

    /// The result with this artifact.
    pub async fn artifact(&self, id: Uuid) -> Result<Option<RunResult>, Error> {
        first(&self.pool().fetch(&ARTIFACT, Args::new().uuid(id)).await?, ReadRow::read)
    }

    /// The ids of these artifacts that exist.
    pub async fn existing_artifacts(&self, ids: &[Uuid]) -> Result<Vec<Uuid>, Error> {
        all(&self.pool().fetch(&EXISTING, Args::new().uuids(ids)).await?, |row| row.take())
    }

    /// A mark of the object store.
    pub async fn object_mark(&self, name: &str) -> Result<Option<String>, Error> {
        first(&self.pool().fetch(&MARK, Args::new().text(name)).await?, |row| row.take())
    }

    /// The audit entries after this one that were made before this time, in the order of their ids.
    pub async fn audit_after(&self, after: Uuid, before: Ms, limit: i64) -> Result<Vec<AuditEntry>, Error> {
        let args = Args::new().uuid(after).uuid(crate::reads::lists::first_id_of(before)).int(limit);
        all(&self.pool().fetch(&AUDIT_AFTER, args).await?, ReadRow::read)
    }
}

impl Writer {
    pub(crate) async fn move_output(&mut self, artifact: Uuid, object: &StoredObject) -> Result<Done, Error> {
        self.begin_maintenance().await?;
        let args = Args::new().uuid(artifact).text(&object.url).int(object.bytes).text(&object.preview);
        let rows = self.conn()?.execute(&MOVE, args).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }

    pub(crate) async fn set_mark(&mut self, name: &str, known: &str, value: &str) -> Result<Done, Error> {
        self.begin_maintenance().await?;
        let rows = self.conn()?.execute(&SET_MARK, Args::new().text(name).text(value).text(known)).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }
}
