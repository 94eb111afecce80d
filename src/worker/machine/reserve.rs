//! Space that is reserved on the agent's disk, so that the output and the ends of runs can be stored when the disk is full.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};

/// Enough for the last events of many runs.
const BYTES: u64 = 1 << 20;
const NAME: &str = "reserve";

/// A file that is removed when its space is needed.
#[derive(Clone, Debug)]
pub(crate) struct Reserve(PathBuf);

impl Reserve {
    /// The reserve in the directory of an agent.
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self(dir.join(NAME))
    }

    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the file again, if its space was used.
    ///
    /// # Errors
    /// The disk has no space left for it, or can't be written.
    pub(crate) fn fill(&self) -> io::Result<()> {
        let mut file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&self.0)?;
        let filled = if file.metadata()?.len() >= BYTES { Ok(()) } else { allocate(&mut file) };
        if filled.is_err() {
            let _ = fs::remove_file(&self.0);
        }
        filled?;
        let disk = fstatvfs(&file)?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < BYTES {
            return Err(io::Error::new(ErrorKind::StorageFull, "less than 1 MiB is free"));
        }
        // Some file systems do not count inodes.
        if disk.f_files > 0 && disk.f_favail == 0 {
            return Err(io::Error::new(ErrorKind::StorageFull, "no inodes are free: too many files"));
        }
        Ok(())
    }

    /// Calls `write`, and if the disk is full calls it once more with the space of the reserve.
    pub(crate) fn helps<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match write() {
            Err(error) if is_of_disk(&error) && fs::remove_file(&self.0).is_ok() => write(),
            written => written,
        }
    }
}

/// Whether the disk is full, or can't be written at all.
pub(crate) fn is_of_disk(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem)
}

fn allocate(file: &mut File) -> io::Result<()> {
    match fallocate(&*file, FallocateFlags::empty(), 0, BYTES) {
        // Not all file systems support the allocation of space.
        Err(rustix::io::Errno::OPNOTSUPP) => file.write_all(&vec![0; BYTES as usize]),
        done => Ok(done?),
    }
}
