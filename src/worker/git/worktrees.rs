//! The worktrees of this agent: which context has one, and the notes about it.
//!
//! ```text
//! repositories/PROJECT/contexts/NAME.json    whose worktree it is, and when it was used
//! repositories/PROJECT/contexts/NAME.ignore  files in it that are not part of the project: inputs of tasks
//! repositories/PROJECT/contexts/NAME.*       what git needs for it, see [`worktree`](crate::git::worktree)
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::RwLock;

use crate::Agent;
use crate::git::worktree::{Repository, Worktree, branch};
use crate::home::{Home, private_dir, read_json, write_json};
use crate::run::files::Laid;
use crate::run::task::{self, Task};
use bloom_api::files::Input;
use bloom_client::now_ms;
use bloom_core::Ms;
use bloom_core::namespace::RESERVED;
use bloom_core::project::DEFAULT_BRANCH_PREFIX;

/// When worktrees and other directories of contexts are removed, unless a run needs them.
#[derive(Clone, Copy, Debug)]
pub struct WorktreeLimits {
    /// The days after the last run; 0 = never.
    pub days: u32,
    /// The total size that they may take on the disk.
    pub max_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Worktrees {
    /// One lock for each repository in use.
    locks: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
    /// Held for reading while the directory of a run is prepared, and for writing while a directory is removed.
    pub using: RwLock<()>,
}

/// The note about a worktree.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Known {
    pub context_id: String,
    pub used_at: Ms,
    /// Whether a run is working there, or was interrupted there, so that its changes are not committed yet.
    #[serde(default)]
    pub is_open: bool,
    /// Inputs of tasks. They are not part of the project as long as no run changes them.
    #[serde(default)]
    inputs: Vec<Laid>,
}

/// The directory of a project's repository. Each Kubernetes namespace has its own, because it is a tenant: runs can read the branches of
/// other contexts there.
fn repository_dir(home: &Home, task: &Task, repository: &task::Repository) -> PathBuf {
    let namespace = task.context_id.strip_prefix(RESERVED).and_then(|rest| rest.split_once('/'));
    let name = match namespace {
        Some((namespace, _)) => format!("{}.{namespace}", repository.project_id),
        None => repository.project_id.to_string(),
    };
    home.repositories_dir().join(name)
}

impl Agent {
    pub(crate) fn worktree(&self, task: &Task, repository: &task::Repository) -> Worktree {
        let named = |prefix: &String| branch(prefix, &task.context_id);
        Worktree {
            branch: named(&repository.branch_prefix),
            former_branches: repository.former_branch_prefixes.iter().map(named).collect(),
            project: task.project.clone().unwrap_or_default(),
            ..self.worktree_in(self.repository(repository_dir(&self.home, task, repository), &repository.url), &task.context_id)
        }
    }

    /// A worktree that is not prepared for a run, so that its branch does not matter.
    fn worktree_in(&self, repository: Repository, context_id: &str) -> Worktree {
        let branch = branch(DEFAULT_BRANCH_PREFIX, context_id);
        Worktree {
            repository,
            context_id: context_id.to_owned(),
            project: String::new(),
            dir: self.home.context_dir(context_id),
            branch,
            former_branches: Vec::new(),
        }
    }

    fn repository(&self, dir: PathBuf, url: &str) -> Repository {
        let lock = self.worktrees.locks.lock().entry(dir.clone()).or_default().clone();
        Repository { settings: self.settings.git.clone(), dir, url: url.to_owned(), home: self.home.root().to_owned(), lock }
    }

    /// The repositories on the disk. Nothing is fetched for them, so they have no URL.
    pub(crate) fn repositories(&self) -> Vec<Repository> {
        subdirs(&self.home.repositories_dir()).into_iter().map(|dir| self.repository(dir, "")).collect()
    }

    /// The worktrees on the disk that have a note.
    pub(crate) fn known_worktrees(&self) -> Vec<(Worktree, Known)> {
        let of_repository = |repository: Repository| {
            let notes = fs::read_dir(repository.contexts_dir()).into_iter().flatten().flatten().map(|entry| entry.path());
            let notes = notes.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
            let known: Vec<Known> = notes.filter_map(|path| read_json(&path)).collect();
            known.into_iter().map(move |known| (self.worktree_in(repository.clone(), &known.context_id), known))
        };
        self.repositories().into_iter().flat_map(of_repository).collect()
    }

    /// Whether runs of the context work in a worktree on this machine.
    pub(crate) fn has_worktree(&self, context_id: &str) -> bool {
        self.repositories().into_iter().any(|repository| self.worktree_in(repository, context_id).has_begun())
    }
}

impl Worktree {
    /// Stores that a run begins to work in the worktree, with these inputs.
    pub(crate) fn opened(&self, context_id: &str, inputs: &[Input<'_>]) -> io::Result<()> {
        let path = self.note_path("json");
        private_dir(path.parent().unwrap_or(&path))?;
        let mut known = read_json::<Known>(&path).map_or_else(Vec::new, |known| known.inputs);
        known.retain(|one| !inputs.iter().any(|input| input.path == one.path));
        known.extend(inputs.iter().map(Laid::of));
        write_json(&path, &Known { context_id: context_id.to_owned(), used_at: now_ms(), is_open: true, inputs: known })
    }

    /// Stores that the changes of the run are committed.
    pub(crate) fn closed(&self) {
        let path = self.note_path("json");
        let Some(known) = read_json::<Known>(&path) else { return };
        if let Err(error) = write_json(&path, &Known { used_at: now_ms(), is_open: false, ..known }) {
            tracing::warn!(%error, "the end of a run could not be noted; its worktree stays longer");
        }
    }

    /// Removes the note of a worktree that could not be made: the files in its directory may be from something else.
    pub(crate) fn forget_unless_made(&self) {
        if !self.exists() {
            let _ = fs::remove_file(self.note_path("json"));
        }
    }

    /// Removes the worktree and its notes.
    pub(crate) fn remove_with_notes(&self) {
        // Without a worktree, the directory contains files of runs without this project.
        match if self.has_begun() { self.remove() } else { Ok(()) } {
            Ok(()) => ["json", "ignore"].iter().for_each(|extension| {
                let _ = fs::remove_file(self.note_path(extension));
            }),
            // The removal is tried again later.
            Err(error) => tracing::warn!(dir = %self.dir.display(), %error, "a worktree could not be removed"),
        }
    }

    /// The file with the names of what is not committed: unchanged inputs.
    pub(crate) fn ignored(&self) -> io::Result<PathBuf> {
        let known = read_json::<Known>(&self.note_path("json")).map_or_else(Vec::new, |known| known.inputs);
        let lines: String =
            known.iter().filter(|input| input.is_unchanged(&self.dir)).map(|input| format!("/{}\n", escaped(&input.path))).collect();
        let path = self.note_path("ignore");
        fs::write(&path, lines)?;
        Ok(path)
    }

    fn note_path(&self, extension: &str) -> PathBuf {
        self.repository.contexts_dir().join(self.name()).with_added_extension(extension)
    }
}

/// The path in the form of a line of a `.gitignore`.
fn escaped(path: &str) -> String {
    path.chars().flat_map(|c| "\\*?[]!# ".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

fn subdirs(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
