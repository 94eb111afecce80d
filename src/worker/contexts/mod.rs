//! The directories of contexts on this machine, and when they are removed: worktrees of projects, and directories of tasks without a
//! project.
//!
//! ```text
//! sessions/NAME.used   when a directory without a project was used, and by which context. A worktree has its note beside its repository.
//! ```

pub(crate) mod context_files;
pub(crate) mod session;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::Agent;
use crate::git::worktree::Worktree;
use crate::home::{Home, read_json, write_json};
use crate::machine::disk_size::used;
use crate::machine::removal::remove_all;
use crate::run::disk_use::dirs_of;
use crate::run::run_dir::RunDir;
use bloom_api::answers::GoneContexts;
use bloom_api::requests::{MAX_CONTEXTS, WorkerContexts};
use bloom_client::{CALL_LIMIT, now_ms, part};
use bloom_core::{DAY_MS, Ms};

const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// A context whose directory may be removed.
struct Unneeded {
    context_id: String,
    used_at: Ms,
    /// Whether a run was interrupted there, so that its changes are not committed yet.
    is_open: bool,
    tree: Option<Worktree>,
}

/// The note about a directory without a project.
#[derive(Deserialize, Serialize)]
struct Used {
    context_id: String,
    used_at: Ms,
}

/// Stores that a run uses the directory of a context without a project. Runs in a sandbox can't change it.
pub(crate) fn note_use(home: &Home, context_id: &str) -> io::Result<()> {
    write_json(&home.use_path(context_id), &Used { context_id: context_id.to_owned(), used_at: now_ms() })
}

impl Agent {
    /// Removes directories of contexts that are no longer needed: when the agent starts, and once an hour.
    pub(crate) async fn keep_contexts(self: Arc<Self>, stopped: CancellationToken) {
        loop {
            self.remove_contexts().await;
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stopped.cancelled() => return,
            }
        }
    }

    async fn remove_contexts(&self) {
        let mut all = self.contexts();
        let contexts: Vec<String> = all.iter().map(|one| one.context_id.clone()).collect();
        let gone = self.gone(&contexts).await;
        let limits = self.settings.worktrees;
        let oldest = if limits.days == 0 { Ms::MIN } else { now_ms() - Ms::from(limits.days) * DAY_MS };
        // The newest ones may stay until the space is used up.
        all.sort_by_key(|one| Reverse(one.used_at));
        let mut room = limits.max_bytes;
        for one in all {
            let (dirs, most) = (dirs_of(&self.home, &one.context_id), room);
            // A directory whose size can't be determined counts as empty: it must not cause the removal of a context that has room.
            let size = spawn_blocking(move || used(dirs, Ms::MIN, most, 0)).await.unwrap_or(0);
            let why = match () {
                () if gone.contains(&one.context_id) => "its tasks were removed",
                () if one.used_at < oldest => "it was not used for long",
                // The interrupted run will be continued there.
                () if size > room && !one.is_open => "the directories of contexts take more room than they may",
                () => {
                    room = room.saturating_sub(size);
                    continue;
                }
            };
            // Some directory is being prepared. The removal is tried again at the next look.
            let Ok(_using) = self.worktrees.using.try_write() else { return };
            // A run that was accepted meanwhile has stored its record before it prepares its directory.
            if in_use(&self.home).contains(&one.context_id) {
                room = room.saturating_sub(size);
                continue;
            }
            tracing::info!(context = one.context_id, why, "the directory of a context is removed; the branch of a worktree stays");
            let paths = self.home.paths_of(&one.context_id);
            // It may have very many files.
            let _ = spawn_blocking(move || one.remove(&paths)).await;
        }
        for repository in self.repositories() {
            let _lock = repository.lock.lock().await;
            repository.tidy().await;
            // Files of the last day stay: a run that is being prepared needs what was fetched for it.
            if let Err(trouble) = repository.tidy_large_files((now_ms() - DAY_MS) / 1_000).await {
                tracing::warn!(repository = %repository.dir.display(), %trouble, "large files that nobody needs stay");
            }
        }
    }

    /// The directories on the disk that have a note.
    fn contexts(&self) -> Vec<Unneeded> {
        let trees = self.known_worktrees().into_iter();
        let mut all: Vec<Unneeded> = trees
            .map(|(tree, known)| Unneeded {
                context_id: known.context_id,
                used_at: known.used_at,
                is_open: known.is_open,
                tree: Some(tree),
            })
            .collect();
        let with_project: BTreeSet<String> = all.iter().map(|one| one.context_id.clone()).collect();
        let notes = self.home.use_paths().into_iter().filter_map(|path| read_json::<Used>(&path));
        let plain = notes.filter(|note| !with_project.contains(&note.context_id));
        all.extend(plain.map(|Used { context_id, used_at }| Unneeded { context_id, used_at, is_open: false, tree: None }));
        all
    }

    /// The contexts that have no tasks left at the server.
    async fn gone(&self, contexts: &[String]) -> BTreeSet<String> {
        let path = format!("api/runtime/workers/{}/contexts", part(&self.name));
        let mut gone = BTreeSet::new();
        for page in contexts.chunks(MAX_CONTEXTS) {
            let body = WorkerContexts { context_ids: page.iter().cloned().collect() };
            let answer = self.client.send(Method::POST, &path, Some(&body), CALL_LIMIT).await;
            match answer.and_then(|answer| answer.json::<GoneContexts>()) {
                Ok(answer) => gone.extend(answer.gone),
                // Their directories stay until a later look.
                Err(error) => tracing::debug!(%error, "the server could not tell which contexts have no tasks left"),
            }
        }
        gone
    }
}

impl Unneeded {
    /// `paths` are the paths of the context. The last one is the note, which is removed last, so that a failed removal is tried again.
    fn remove(&self, paths: &[PathBuf]) {
        if let Some(tree) = &self.tree {
            return tree.remove_with_notes();
        }
        for path in paths {
            let removed = if path.is_dir() { remove_all(path) } else { fs::remove_file(path) };
            if let Err(error) = removed
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "the directory of a context could not be removed; it is tried again");
                return;
            }
        }
    }
}

/// The contexts of all runs on this machine.
fn in_use(home: &Home) -> BTreeSet<String> {
    home.run_dirs().into_iter().filter_map(|dir| Some(RunDir::new(dir).record().ok()?.task.context_id)).collect()
}
