//! Files: a file that has arrived becomes an artifact, and an upload is removed on request.

use super::quotas::{self, Added};
use crate::Ms;
use crate::arguments::Holder;
use crate::file::{File, FileId, FileKind, MAX_FILE_BYTES_OF_TASK, MAX_FILES_OF_LEASE, MAX_UNUSED_BYTES, MAX_UNUSED_UPLOADS, UNUSED_MS};
use crate::ids::{LeaseId, TaskId, WorkerId};
use crate::operation::{Operation, Urgency, Weight};
use crate::rejection::Rejection;
use crate::reply::AddedFile;
use crate::row_keys::RowKeys;
use crate::working_set::{Halt, WorkingSet};

/// The run that uploads a file.
#[derive(Clone, Debug)]
pub struct FileOfRun {
    /// The task of the run.
    pub task: TaskId,
    /// The lease that the run must hold.
    pub lease: LeaseId,
    /// Rejects the file if another worker has the lease; `None`: any worker may have it.
    pub worker: Option<WorkerId>,
}

/// Adds a file whose content is already stored. If the same lease repeats an upload, the reply has its first file.
#[derive(Clone, Debug)]
pub struct AddFile {
    /// The id of the file. Its content is already stored under this id.
    pub id: FileId,
    /// The submit or member key that uploads it; empty for other keys, and for the file of a run.
    pub owner: String,
    /// The team that this key has; empty if it has none.
    pub team: String,
    /// The run that uploads it; `None`: it is a client's upload for tasks.
    pub run: Option<FileOfRun>,
    /// A relative path; see [`path_problem`](crate::file::path_problem).
    pub name: String,
    /// The media type, as the uploader named it.
    pub content_type: String,
    /// The size of the content in bytes.
    pub bytes: i64,
    /// The SHA-256 digest of the content, in lower-case hexadecimal.
    pub sha256: String,
    /// `Input` for an upload, `Output` or `GitDiff` for the file of a run.
    pub kind: FileKind,
    /// The location of the content in the object store; `None`: the content is in the database.
    pub object_url: Option<String>,
    /// The command must be decided before this time. Contents without a file are removed only later than this.
    pub until: Ms,
}

impl Operation for AddFile {
    type Reply = AddedFile;

    fn weight(&self) -> Weight {
        Weight { rows: 3, bytes: 1024 }
    }

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        match &self.run {
            Some(run) => {
                keys.tasks.insert(run.task);
                keys.lease_files.insert((run.task, run.lease));
            }
            None => {
                keys.unused_uploads.insert(self.owner.clone());
            }
        }
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<AddedFile, Halt> {
        let mut used = None;
        let worker_id = match &self.run {
            Some(run) => {
                let task = set.task(run.task)?;
                task.held_by(&Holder { lease: Some(run.lease), worker: run.worker.clone() })?;
                let worker = task.lease.as_ref().map(|lease| lease.worker_id.clone());
                let known = set.files_of_lease(run.task, run.lease)?;
                let is_same = |file: &&File| file.kind == self.kind && file.name == self.name && file.sha256 == self.sha256;
                if let Some(first) = known.files.iter().find(is_same) {
                    return Ok(AddedFile { file: first.clone(), is_new: false });
                }
                if known.files.len() >= MAX_FILES_OF_LEASE {
                    return Err(Rejection::TooManyFiles.into());
                }
                if known.task_bytes.saturating_add(self.bytes) > MAX_FILE_BYTES_OF_TASK {
                    return Err(Rejection::TooManyFileBytes.into());
                }
                worker
            }
            None => {
                let unused = set.unused_uploads(&self.owner)?;
                if unused.count >= MAX_UNUSED_UPLOADS || unused.bytes.saturating_add(self.bytes) > MAX_UNUSED_BYTES {
                    return Err(Rejection::TooManyUploads.into());
                }
                used = quotas::check(set, Added { tasks: 0, bytes: self.bytes })?;
                None
            }
        };
        if set.now() > self.until {
            return Err(Rejection::UploadTooOld.into());
        }
        let file = File {
            id: self.id,
            owner: self.owner.clone(),
            team: self.team.clone(),
            task_id: self.run.as_ref().map(|run| run.task),
            lease_id: self.run.as_ref().map(|run| run.lease),
            worker_id,
            name: self.name.clone(),
            content_type: self.content_type.clone(),
            bytes: self.bytes,
            sha256: self.sha256.clone(),
            kind: self.kind,
            created_at: set.stamp(),
            remove_at: self.run.is_none().then(|| set.now() + UNUSED_MS),
            object_url: self.object_url.clone(),
        };
        quotas::take(set, used);
        set.add_file(file.clone());
        Ok(AddedFile { file, is_new: true })
    }
}

/// Removes an upload that no task uses.
#[derive(Clone, Debug)]
pub struct DeleteFile {
    /// The upload to remove.
    pub file: FileId,
}

impl Operation for DeleteFile {
    type Reply = ();

    fn weight(&self) -> Weight {
        Weight { rows: 3, bytes: 1024 }
    }

    fn urgency(&self) -> Urgency {
        Urgency::New
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.files.insert(self.file);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let known = set.find_file(self.file)?.ok_or(Rejection::ArtifactNotFound)?;
        if known.file.task_id.is_some() {
            return Err(Rejection::ArtifactOfTask.into());
        }
        if known.is_used {
            return Err(Rejection::ArtifactInUse.into());
        }
        set.remove_file(self.file);
        Ok(())
    }
}
