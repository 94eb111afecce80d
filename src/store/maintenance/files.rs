//! Files: their contents and their removal.
//!
//! The content of a file is stored in chunks while it arrives, each in a transaction of its own. The file exists once its row is added
//! (`AddFile`). Until then, a row of `chunk_removals` schedules the removal of the chunks.

use crate::batch::writer::Writer;
use crate::error::Error;
use crate::maintenance::task_removal;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement};
use crate::sql::record_rows;
use crate::sql::table::ReadRow;
use crate::{Store, all, first, time_of};
use bloom_core::Ms;
use bloom_core::api_key::{ApiKey, Owner};
use bloom_core::file::{File, FileId};
use bloom_database::Done;

/// The size of all chunks of a file but its last one.
pub const CHUNK_BYTES: usize = 256 << 10;
/// How long the chunks of a file are kept after it was moved to the object store, so that clients that are reading them can finish.
const READ_MS: Ms = 600_000;
/// The most chunks that one transaction removes.
const CHUNKS: i64 = 32;

statement!(INSERT_CHUNK, "INSERT INTO file_chunks (file_id, number, content) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING");
statement!(DROP_LATER, "INSERT INTO chunk_removals (file_id, due_at) VALUES ($1, $2) ON CONFLICT DO NOTHING");
statement!(DROP_NOW, "UPDATE chunk_removals SET due_at = 0 WHERE file_id = $1");
statement!(MOVE, "UPDATE files SET object_url = $2 WHERE id = $1 AND object_url IS NULL");
statement!(CHUNK, "SELECT content FROM file_chunks WHERE file_id = $1 AND number = $2");
statement!(FILE, |_d| "SELECT {} FROM files WHERE id = $1", record_rows::FILE.names(""));
statement!(FILES, |d| "SELECT {} FROM files WHERE id {} ORDER BY id DESC", record_rows::FILE.names(""), d.any(Type::Uuid, 1));
statement!(EXISTING, |d| "SELECT id FROM files WHERE id {}", d.any(Type::Uuid, 1));
statement!(
    TO_MOVE,
    |d| "SELECT id FROM files {} WHERE object_url IS NULL AND bytes > 65536 AND id > $1 ORDER BY id LIMIT $2",
    d.by_index("files_to_move")
);
statement!(
    IS_HELD_INPUT,
    "SELECT 1 FROM task_inputs i JOIN task_state s ON s.id = i.task_id WHERE i.file_id = $1 AND s.slot IS NOT NULL LIMIT 1"
);
statement!(
    IS_INPUT_HELD_BY,
    "SELECT 1 FROM task_inputs i JOIN task_state s ON s.id = i.task_id \
    WHERE i.file_id = $1 AND s.slot IS NOT NULL AND s.worker_id = $2 LIMIT 1"
);
// The uploads that the key `$2` made while it was in the team `$3`, and those that tasks of the owner `$4` use.
fn readable_uploads(d: Kind, column: &str) -> String {
    format!(
        "SELECT f.id FROM files f WHERE f.id {} AND f.task_id IS NULL AND ((f.owner = $2 AND f.team = $3) OR EXISTS \
            (SELECT 1 FROM task_inputs i JOIN tasks t ON t.id = i.task_id WHERE i.file_id = f.id AND t.{column} = $4))",
        d.any(Type::Uuid, 1)
    )
}
statement!(UPLOADS_OF_KEY, |d| "{}", readable_uploads(d, "owner"));
statement!(UPLOADS_OF_TEAM, |d| "{}", readable_uploads(d, "team"));
statement!(DUE_UPLOADS, |d| "SELECT id FROM files WHERE remove_at <= $1 ORDER BY remove_at LIMIT $2 {}", d.skip_locked());
// Runs after the locks, in a later snapshot. A transaction that creates a task holds the locks of the files that the task uses, so no use
// is missed.
statement!(USED, |d| "SELECT DISTINCT file_id FROM task_inputs WHERE file_id {}", d.any(Type::Uuid, 1));
statement!(KEEP, |d| "UPDATE files SET remove_at = NULL WHERE id {}", d.any(Type::Uuid, 1));
statement!(DUE_CHUNKS, |d| "SELECT file_id FROM chunk_removals WHERE due_at <= $1 ORDER BY due_at LIMIT 1 {}", d.skip_locked());
statement!(
    REMOVE_CHUNKS,
    "DELETE FROM file_chunks WHERE file_id = $1 AND number IN (SELECT number FROM file_chunks WHERE file_id = $1 ORDER BY number LIMIT $2)"
);
statement!(REMOVED_CHUNKS, "DELETE FROM chunk_removals WHERE file_id = $1");

impl Store {
    /// The file with this id; `None` if it does not exist.
    pub async fn file(&self, id: FileId) -> Result<Option<File>, Error> {
        first(&self.pool().fetch(&FILE, Args::new().uuid(id)).await?, ReadRow::read)
    }

    /// The files with these ids that exist, newest first.
    pub async fn files(&self, ids: &[FileId]) -> Result<Vec<File>, Error> {
        all(&self.pool().fetch(&FILES, Args::new().uuids(ids)).await?, ReadRow::read)
    }

    /// The ids of these files that exist.
    pub async fn existing_files(&self, ids: &[FileId]) -> Result<Vec<FileId>, Error> {
        all(&self.pool().fetch(&EXISTING, Args::new().uuids(ids)).await?, |row| row.take())
    }

    /// The uploads that the key may read and use, in any order: its own, if it is still in the team in which it uploaded them, and those
    /// that are used by tasks that it sees.
    pub async fn readable_uploads(&self, ids: &[FileId], key: &ApiKey) -> Result<Vec<FileId>, Error> {
        let (statement, name) = match key.sees() {
            None => return self.existing_files(ids).await,
            Some(Owner::Key(name)) => (&UPLOADS_OF_KEY, name),
            Some(Owner::Team(name)) => (&UPLOADS_OF_TEAM, name),
        };
        let args = Args::new().uuids(ids).text(&key.name).text(key.team.as_deref().unwrap_or_default()).text(name);
        all(&self.pool().fetch(statement, args).await?, |row| row.take())
    }

    /// A chunk of a file, if the database has it.
    pub async fn file_chunk(&self, file: FileId, number: i64) -> Result<Option<Vec<u8>>, Error> {
        first(&self.pool().fetch(&CHUNK, Args::new().uuid(file).int(number)).await?, |row| row.take())
    }

    /// The files after this one that belong into the object store but are still in the database.
    pub async fn files_to_move(&self, after: FileId, limit: i64) -> Result<Vec<FileId>, Error> {
        all(&self.pool().fetch(&TO_MOVE, Args::new().uuid(after).int(limit)).await?, |row| row.take())
    }

    /// Whether the file is an input of a task that this worker, or any worker, holds.
    pub async fn is_held_input(&self, file: FileId, worker: Option<&str>) -> Result<bool, Error> {
        let found = match worker {
            Some(worker) => self.pool().fetch(&IS_INPUT_HELD_BY, Args::new().uuid(file).text(worker)).await?,
            None => self.pool().fetch(&IS_HELD_INPUT, Args::new().uuid(file)).await?,
        };
        Ok(!found.is_empty())
    }
}

impl Writer {
    pub(crate) async fn store_chunk(&mut self, file: FileId, number: i64, content: &[u8], due_at: Ms) -> Result<Done, Error> {
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        if number == 0 {
            conn.execute(&DROP_LATER, Args::new().uuid(file).int(due_at)).await?;
        }
        let rows = conn.execute(&INSERT_CHUNK, Args::new().uuid(file).int(number).bytes(content)).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }

    pub(crate) async fn drop_chunks(&mut self, file: FileId) -> Result<Done, Error> {
        self.begin_maintenance().await?;
        let rows = self.conn()?.execute(&DROP_NOW, Args::new().uuid(file)).await?;
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }

    pub(crate) async fn move_file(&mut self, file: FileId, url: &str) -> Result<Done, Error> {
        let time = self.store.known_time();
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        let now = time_of(conn, time).await?;
        let rows = conn.execute(&MOVE, Args::new().uuid(file).text(url)).await?;
        if rows > 0 {
            conn.execute(&DROP_LATER, Args::new().uuid(file).int(now + READ_MS)).await?;
        }
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }

    pub(crate) async fn remove_files(&mut self, limit: i64) -> Result<Done, Error> {
        let time = self.store.known_time();
        self.begin_maintenance().await?;
        let conn = self.conn()?;
        let now = time_of(conn, time).await?;
        let due: Vec<FileId> = all(&conn.fetch(&DUE_UPLOADS, Args::new().int(now).int(limit)).await?, |row| row.take())?;
        if !due.is_empty() {
            let used: Vec<FileId> = all(&conn.fetch(&USED, Args::new().uuids(&due)).await?, |row| row.take())?;
            let unused: Vec<FileId> = due.iter().filter(|id| !used.contains(id)).copied().collect();
            conn.execute(&KEEP, Args::new().uuids(&used)).await?;
            for statement in task_removal::OF_FILES {
                conn.execute(statement, Args::new().uuids(&unused)).await?;
            }
        }
        let mut rows = due.len() as u64;
        let found: Option<FileId> = first(&conn.fetch(&DUE_CHUNKS, Args::new().int(now)).await?, |row| row.take())?;
        if let Some(file) = found {
            let removed = conn.execute(&REMOVE_CHUNKS, Args::new().uuid(file).int(CHUNKS)).await?;
            if removed < CHUNKS.unsigned_abs() {
                conn.execute(&REMOVED_CHUNKS, Args::new().uuid(file)).await?;
            }
            rows += removed + 1;
        }
        self.commit().await?;
        Ok(Done { rows, ..Done::default() })
    }
}
