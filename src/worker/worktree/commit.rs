//! What a run changed in its worktree: committed by plumbing, which knows no hooks, shown, and pushed.
//!
//! Repositories below the worktree are left out: git would run commands inside of them, with their own settings.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use tokio::process::Command;
use uuid::Uuid;

use super::super::command::{ended, output};
use super::author::CommitAuthor;
use super::repository::{FETCH_LIMIT, LOCAL_LIMIT};
use super::survey::{all_but, repositories_within};
use super::trouble::Trouble;
use super::{Prepared, Worktree};

/// The bytes of a patch that are shown.
pub const MAX_PATCH: usize = 16 << 20;
const MAX_STAT: usize = 64 << 10;
/// Flushed to the disk, because a run is over once its commit is reported.
const DURABLE: [&str; 2] = ["-c", "core.fsync=committed"];

/// What a run changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    pub commit: String,
    pub stat: String,
    /// The beginning of the patch, at most [`MAX_PATCH`] bytes.
    pub patch: String,
    pub is_cut: bool,
    /// Repositories within the worktree, whose content was left out.
    pub left_out: Vec<String>,
}

impl Worktree {
    /// Commits what is in the worktree, and shows what changed since the run began; `None` if nothing did. The branch moves at once or not at
    /// all. It may be repeated. `ignored` names files that are not committed, in the form of a `.gitignore`.
    pub async fn commit(&self, begun: &Prepared, message: &str, author: &CommitAuthor, ignored: &Path) -> Result<Option<Changes>, Trouble> {
        self.forget_locks();
        self.check_unfinished()?;
        let failed = |why: String| Trouble::of_git("the changes can't be committed", &why);
        let head = self.head().await?;
        // A run may have made commits of its own, also on another branch; but not thrown away those of earlier runs.
        if !self.repository.is_ancestor(&begun.base, &head).await {
            return Err(self.state(&format!("a run has checked out {head}, which does not build on {} {}", begun.branch, begun.base)));
        }
        let (tree, most) = (self.dir.clone(), self.repository.settings.max_bytes);
        let left_out = tokio::task::spawn_blocking(move || repositories_within(&tree, most)).await;
        let left_out = left_out.map_err(|error| failed(error.to_string()))??;
        // An index of its own, so that one that is left half written is nobody's.
        let index = self.own_git_dir().join("bloom-index");
        for left in [index.clone(), index.with_extension("lock")] {
            let _ = fs::remove_file(left);
        }
        let with_index = |mut command: Command| {
            command.args(DURABLE).env("GIT_INDEX_FILE", &index);
            command
        };
        let mut read = with_index(self.in_tree());
        read.args(["read-tree", &head]);
        output(read, LOCAL_LIMIT).await.map_err(failed)?;
        let mut add = with_index(self.in_tree());
        add.arg("-c").arg(format!("core.excludesFile={}", ignored.display()));
        let paths = self.own_git_dir().join("bloom-paths");
        fs::write(&paths, all_but(&left_out)).map_err(|error| failed(error.to_string()))?;
        add.args(["-c", "core.autocrlf=false", "-c", "advice.addEmbeddedRepo=false", "add", "--all", "--pathspec-file-nul"]);
        add.arg(format!("--pathspec-from-file={}", paths.display()));
        output(add, FETCH_LIMIT).await.map_err(failed)?;
        let mut write = with_index(self.in_tree());
        write.arg("write-tree");
        let tree = output(write, LOCAL_LIMIT).await.map_err(failed)?;
        let mut commit = head.clone();
        if Some(&tree) != self.repository.parsed(&self.repository.git_dir(), &format!("{head}^{{tree}}")).await.as_ref() {
            let mut make = self.repository.local(&self.own_git_dir());
            make.envs(author.env()).args(DURABLE).args(["commit-tree", "--no-gpg-sign", &tree, "-p", &head, "-m", message]);
            commit = output(make, LOCAL_LIMIT).await.map_err(failed)?;
        }
        self.update_branch(&commit).await?;
        // The worktree's own index follows, so that the next run sees a clean state.
        fs::rename(&index, self.own_git_dir().join("index")).map_err(|error| failed(error.to_string()))?;
        if commit == begun.base {
            return Ok(None);
        }
        let (stat, _) = self.diff(&begun.base, &commit, &["--stat=120"], MAX_STAT).await?;
        let (patch, is_cut) = self.diff(&begun.base, &commit, &["--patch", "--find-renames"], MAX_PATCH).await?;
        Ok(Some(Changes {
            commit,
            stat,
            patch,
            is_cut,
            left_out: left_out.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        }))
    }

    /// What changed between two commits: the beginning of it, and whether that is not all. It goes through a file, because a patch may be as
    /// large as the worktree.
    async fn diff(&self, from: &str, to: &str, form: &[&str], most: usize) -> Result<(String, bool), Trouble> {
        let file = self.own_git_dir().join(format!("bloom-diff-{}", Uuid::now_v7()));
        let mut diff = self.repository.local(&self.repository.git_dir());
        // Names that are not ASCII are shown as they are.
        diff.args([
            "-c",
            "core.quotePath=false",
            "diff-tree",
            "-r",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--ignore-submodules=all",
        ])
        .args(form);
        diff.arg(format!("--output={}", file.display())).args([from, to]);
        let ended = ended(diff, LOCAL_LIMIT).await;
        let read = fs::File::open(&file).and_then(|open| {
            let mut bytes = Vec::new();
            open.take(most as u64 + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        let _ = fs::remove_file(&file);
        let failed = |why: String| Trouble::of_git("the changes can't be shown", &why);
        let ended = ended.map_err(failed)?;
        if !ended.status.success() {
            return Err(failed(String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
        }
        let mut bytes = read.map_err(|error| failed(error.to_string()))?;
        let is_cut = bytes.len() > most;
        bytes.truncate(most);
        Ok((String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}"), is_cut))
    }

    /// Pushes the branch with the user's own credentials, unless the repository's server has its commits already, as far as the last fetch
    /// tells. Returns whether it was pushed.
    pub async fn push(&self) -> Result<bool, Trouble> {
        let mut ask = self.repository.local(&self.repository.git_dir());
        ask.args(["for-each-ref", "--count=1", "--format=%(refname)", "--contains", &self.branch_ref(), "refs/remotes/origin"]);
        if output(ask, LOCAL_LIMIT).await.is_ok_and(|known| !known.is_empty()) {
            return Ok(false);
        }
        let Err(why) = self.push_once().await else { return Ok(true) };
        // An earlier attempt may have pushed meanwhile, and its commits may be a part of these.
        let _ = self.repository.fetch(FETCH_LIMIT).await;
        let theirs = self.repository.commit_of(&self.pushed_ref()).await;
        let is_behind = match &theirs {
            Some(theirs) => self.repository.is_ancestor(theirs, &self.branch_ref()).await,
            None => false,
        };
        let again = if is_behind { self.push_once().await } else { Err(why) };
        again.map(|()| true).map_err(|why| Trouble::of_push(&self.branch, &why))
    }

    async fn push_once(&self) -> Result<(), String> {
        let branch = format!("{0}:{0}", self.branch_ref());
        let mut push = self.repository.remote();
        push.args(["push", "--quiet", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", "--no-signed", "--"]);
        push.args([&self.repository.url, &branch]);
        output(push, FETCH_LIMIT).await.map(drop)
    }
}
