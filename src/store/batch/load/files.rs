//! The files of a batch: the files that it uses or removes, the files that leases have uploaded, and the number of uploads that no task
//! uses.

use bloom_core::command::RowKeys;
use bloom_core::file::{File, FileId, MAX_FILES_OF_LEASE, MAX_UNUSED_UPLOADS};
use bloom_core::working_set::{KnownFile, LeaseFiles, UnusedUploads};

use super::Load;
use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::{Kind, statement};
use crate::sql::record_rows;
use crate::sql::table::ReadRow as _;
use crate::{all, one};

fn lock_files(d: Kind, lock: &str) -> String {
    format!("SELECT id FROM files WHERE id {} ORDER BY id {lock}", d.any(Type::Uuid, 1))
}
statement!(LOCK_FILES, |d| "{}", lock_files(d, d.lock()));
statement!(LOCK_FREE_FILES, |d| "{}", lock_files(d, d.skip_locked()));
// Runs after the locks, in a later snapshot. A transaction that creates a task holds the locks of the files that the task uses, so no use
// is missed.
statement!(
    FILES,
    |d| "SELECT {}, EXISTS (SELECT 1 FROM task_inputs i WHERE i.file_id = files.id) FROM files WHERE id {}",
    record_rows::FILE.names(""),
    d.any(Type::Uuid, 1)
);
statement!(
    OF_LEASE,
    |_d| "SELECT {} FROM files WHERE lease_id = $1 AND task_id = $2 ORDER BY id LIMIT {MAX_FILES_OF_LEASE}",
    record_rows::FILE.names("")
);
statement!(TASK_BYTES, "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM files WHERE task_id = $1");
statement!(UNUSED, |_d| "SELECT count(*), CAST(coalesce(sum(bytes), 0) AS BIGINT) \
    FROM (SELECT bytes FROM files WHERE owner = $1 AND remove_at IS NOT NULL LIMIT {MAX_UNUSED_UPLOADS}) AS f");

impl Load<'_> {
    /// Locks and reads the files. The tasks of the leases are already locked, so nobody adds files to them meanwhile.
    pub(super) async fn lock_files(&mut self, keys: &RowKeys) -> Result<(), Error> {
        let files = &mut self.loaded.files;
        if !keys.files.is_empty() {
            let lock = if self.skip_locked { &LOCK_FREE_FILES } else { &LOCK_FILES };
            let locked: Vec<FileId> = all(&self.conn.fetch(lock, Args::new().uuids(&keys.files)).await?, |row| row.take())?;
            let found = self.conn.fetch(&FILES, Args::new().uuids(&keys.files)).await?;
            files.rows.extend(keys.files.iter().map(|id| (*id, None)));
            for known in all(&found, |row| Ok(KnownFile { file: File::read(row)?, is_used: row.take()? }))? {
                if locked.contains(&known.file.id) {
                    files.rows.insert(known.file.id, Some(known));
                } else {
                    files.rows.remove(&known.file.id);
                    files.locked.insert(known.file.id);
                }
            }
        }
        for (task, lease) in &keys.lease_files {
            let of_lease = self.conn.fetch(&OF_LEASE, Args::new().uuid(*lease).uuid(*task)).await?;
            let task_bytes = one(&self.conn.fetch(&TASK_BYTES, Args::new().uuid(*task)).await?, |row| row.take())?;
            files.of_leases.insert((*task, *lease), LeaseFiles { files: all(&of_lease, File::read)?, task_bytes });
        }
        for owner in &keys.unused_uploads {
            let found = self.conn.fetch(&UNUSED, Args::new().text(owner)).await?;
            let unused = one(&found, |row| Ok(UnusedUploads { count: row.take()?, bytes: row.take()? }))?;
            files.unused.insert(owner.clone(), unused);
        }
        Ok(())
    }
}
