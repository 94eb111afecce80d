//! The files of the database in memory. Their contents are the store's alone.

use std::collections::BTreeMap;

use bloom_core::command::RowKeys;
use bloom_core::file::{File, FileId, UNUSED_MS};
use bloom_core::ids::TaskId;
use bloom_core::working_set::{KnownFile, LeaseFiles, LoadedFiles, UnusedUploads, WorkingSet};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileRows {
    pub rows: BTreeMap<FileId, File>,
    /// The uploads that tasks use.
    pub inputs: BTreeMap<TaskId, Vec<FileId>>,
}

impl FileRows {
    pub fn load(&self, keys: &RowKeys) -> LoadedFiles {
        let is_used = |id: &FileId| self.inputs.values().flatten().any(|used| used == id);
        let known = |id: &FileId| Some(KnownFile { file: self.rows.get(id)?.clone(), is_used: is_used(id) });
        let of_task = |task: TaskId| self.rows.values().filter(move |file| file.task_id == Some(task));
        let of_lease = |(task, lease): &(TaskId, FileId)| LeaseFiles {
            files: of_task(*task).filter(|file| file.lease_id == Some(*lease)).cloned().collect(),
            task_bytes: of_task(*task).map(|file| file.bytes).sum(),
        };
        let unused = |owner: &String| {
            let of_owner = self.rows.values().filter(|file| file.remove_at.is_some() && file.owner == *owner);
            of_owner.fold(UnusedUploads::default(), |sum, file| UnusedUploads { count: sum.count + 1, bytes: sum.bytes + file.bytes })
        };
        LoadedFiles {
            rows: keys.files.iter().map(|id| (*id, known(id))).collect(),
            of_leases: keys.lease_files.iter().map(|key| (*key, of_lease(key))).collect(),
            unused: keys.unused_uploads.iter().map(|owner| (owner.clone(), unused(owner))).collect(),
            ..LoadedFiles::default()
        }
    }

    pub fn save(&mut self, set: &WorkingSet) {
        let dirty = &set.dirty.files;
        self.rows.extend(dirty.added.iter().map(|file| (file.id, file.clone())));
        for id in &dirty.used {
            self.rows.entry(*id).and_modify(|file| file.remove_at = None);
        }
        self.rows.retain(|id, _| !dirty.removed.contains(id));
        for spec in set.dirty.specs.iter().filter(|spec| !spec.inputs.is_empty()) {
            self.inputs.insert(spec.id, spec.inputs.iter().map(|input| input.artifact_id).collect());
        }
    }

    pub fn forget_task(&mut self, task: TaskId) {
        self.rows.retain(|_, file| file.task_id != Some(task));
        for id in self.inputs.remove(&task).unwrap_or_default() {
            self.rows.entry(id).and_modify(|file| file.remove_at = Some(file.created_at + UNUSED_MS));
        }
    }
}
