//! The files of a working set.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Halt, WorkingSet, need};
use crate::file::{File, FileId};
use crate::ids::{LeaseId, TaskId};

/// A file that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownFile {
    /// The stored record of the file.
    pub file: File,
    /// Whether a task uses it.
    pub is_used: bool,
}

/// The files that a lease has uploaded, and the total size of its task's files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseFiles {
    /// The files of this lease.
    pub files: Vec<File>,
    /// The size in bytes of all files of the task, across all its leases.
    pub task_bytes: i64,
}

/// Uploads that no task uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnusedUploads {
    /// How many there are.
    pub count: i64,
    /// How many bytes they have together.
    pub bytes: i64,
}

/// A key that is missing in a map was not loaded; `None` means that the file does not exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedFiles {
    /// Files that were asked for by id.
    pub rows: BTreeMap<FileId, Option<KnownFile>>,
    /// Files that exist but could not be loaded because another program keeps their rows locked.
    pub locked: HashSet<FileId>,
    /// The uploads of the leases that were asked for.
    pub of_leases: BTreeMap<(TaskId, LeaseId), LeaseFiles>,
    /// By submit or member key; the empty name stands for all other keys.
    pub unused: BTreeMap<String, UnusedUploads>,
}

/// The files that a batch changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirtyFiles {
    /// Files to insert.
    pub added: Vec<File>,
    /// Uploads that tasks of this batch use.
    pub used: BTreeSet<FileId>,
    /// Uploads to remove.
    pub removed: BTreeSet<FileId>,
}

impl WorkingSet {
    /// The file, or `None` if it does not exist.
    pub fn find_file(&self, id: FileId) -> Result<Option<&KnownFile>, Halt> {
        match self.loaded.files.rows.get(&id) {
            Some(file) => Ok(file.as_ref()),
            None if self.loaded.files.locked.contains(&id) => Err(Halt::Locked),
            None => Err(need(|keys| keys.files.insert(id))),
        }
    }

    /// The uploads of this lease of this task.
    ///
    /// # Errors
    /// It is not loaded.
    pub fn files_of_lease(&self, task: TaskId, lease: LeaseId) -> Result<&LeaseFiles, Halt> {
        self.loaded.files.of_leases.get(&(task, lease)).ok_or_else(|| need(|keys| keys.lease_files.insert((task, lease))))
    }

    /// The uploads of this key that no task uses; the empty name stands for all keys that are neither submit nor member keys.
    ///
    /// # Errors
    /// They are not counted yet.
    pub fn unused_uploads(&self, owner: &str) -> Result<UnusedUploads, Halt> {
        self.loaded.files.unused.get(owner).copied().ok_or_else(|| need(|keys| keys.unused_uploads.insert(owner.to_owned())))
    }

    /// Adds a file, and counts it for its task or its uploader.
    pub fn add_file(&mut self, file: File) {
        let loaded = &mut self.loaded.files;
        match file.task_id.zip(file.lease_id) {
            Some((task, lease)) => {
                let of_task = loaded.of_leases.range_mut((task, LeaseId::nil())..=(task, LeaseId::max()));
                of_task.for_each(|(_, known)| known.task_bytes += file.bytes);
                loaded.of_leases.entry((task, lease)).or_default().files.push(file.clone());
            }
            None => {
                let unused = loaded.unused.entry(file.owner.clone()).or_default();
                *unused = UnusedUploads { count: unused.count + 1, bytes: unused.bytes + file.bytes };
            }
        }
        self.dirty.files.added.push(file);
    }

    /// A task of this batch uses the file.
    pub fn use_file(&mut self, id: FileId) {
        if let Some(Some(known)) = self.loaded.files.rows.get_mut(&id) {
            known.is_used = true;
        }
        self.dirty.files.used.insert(id);
    }

    /// Removes an upload.
    pub fn remove_file(&mut self, id: FileId) {
        self.loaded.files.rows.insert(id, None);
        self.dirty.files.removed.insert(id);
    }
}
