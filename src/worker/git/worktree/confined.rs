//! The agent's commands on a worktree and the repository of its context. Runs write both, so these commands are
//! [confined](crate::sandbox::confinement), and their output is untrusted input.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bloom_core::project::is_commit_id;
use tokio::process::Command;

use super::author::CommitAuthor;
use super::repository::{DURABLE, FETCH_LIMIT, LOCAL_LIMIT, TAGS};
use super::survey::all_but;
use super::trouble::{NOT_COMMITTED, ROOM, Trouble};
use super::{LINK, LargeFiles, Worktree};
use crate::git::{bounded, lfs_program, unless};
use crate::machine::command::{ended, output, started_by};
use crate::machine::disk_size::held::held_open;
use crate::machine::disk_size::is_larger;
use crate::sandbox::confinement::{Confinement, Shown};

/// Writes the file through which runs find the repository. An earlier run may have removed it, or replaced it by a pipe or a link. A
/// directory is left alone: it is a repository that the run has made.
const WRITE_LINK: &str = r#"[ -d "$2" ] && [ ! -L "$2" ] || { rm -f -- "$2" && printf 'gitdir: %s\n' "$1" >"$2"; }"#;
/// Passes commits to the standard input of the command that follows: the first commit is wanted, and the second one, if given, already
/// exists.
const PACK: &str = r#"wanted="$0"; known="$1"; shift; printf '%s\n' "$wanted" ${known:+"^$known"} | "$@""#;
/// Stores the output of a command in a file, and limits the number of 512-byte blocks that this file, or another file of the command, may
/// have.
const INTO_FILE: &str = r#"ulimit -f "$1"; into="$0"; shift; exec "$@" >"$into""#;

/// How long all filters that runs have configured may take together.
const FILTER_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 300 });
/// The maximum size of a list that git prints, in bytes: the changed files of a large repository.
const MOST_ANSWERED: usize = 64 << 20;
/// Runs a command with a limit on the 512-byte blocks of each file that it writes.
const SMALL_FILES: &str = r#"ulimit -f "$0"; exec "$@""#;

pub(crate) struct Confined<'a> {
    pub tree: &'a Worktree,
    pub confinement: &'a Confinement,
    /// Files of the agent that commands read.
    pub read: Vec<PathBuf>,
    /// The git-lfs program, if it is installed.
    pub lfs: Option<PathBuf>,
    /// The filters that runs have configured, as found by [`renew`](Self::renew).
    pub filters: Vec<String>,
}

impl<'a> Confined<'a> {
    pub(crate) fn new(tree: &'a Worktree, confinement: &'a Confinement) -> Self {
        Self { tree, confinement, read: Vec::new(), lfs: lfs_program(), filters: Vec::new() }
    }

    /// A git command in the worktree that is not confined yet.
    pub(crate) fn git(&self) -> Command {
        let mut git = self.tree.repository.local(&self.tree.own_git_dir());
        // Paths in commands are relative to the worktree, but git does not search there for a repository.
        git.arg("--work-tree").arg(&self.tree.dir);
        self.with_lfs(&mut git);
        git
    }

    fn confine(&self, plain: &Command) -> Command {
        let readable = [self.tree.repository.git_dir()].into_iter().chain(self.read.iter().chain(&self.lfs).cloned()).collect();
        let shown = Shown { dir: &self.tree.dir, writable: vec![self.tree.own_git_dir()], readable };
        self.confinement.command(plain, &shown)
    }

    pub(crate) async fn run(&self, plain: Command, limit: Duration) -> Result<String, String> {
        output(self.confine(&plain), limit).await
    }

    /// Like [`Self::run`], for a command that executes filters or similar programs, which can write anything. The command may take no more
    /// space than the run.
    pub(crate) async fn run_within(&self, plain: Command, limit: Duration) -> Result<String, String> {
        let Some(most) = self.confinement.disk_limit else { return self.run(plain, limit).await };
        let (dirs, processes) = (vec![self.tree.dir.clone(), self.tree.own_git_dir()], self.confinement.processes());
        let is_large = move || is_larger(dirs.clone(), most.saturating_sub(held_open(&processes(), &dirs)));
        let words = ["sh", "-c", SMALL_FILES, &most.div_ceil(512).to_string()].map(OsString::from);
        unless(is_large, ROOM, output(self.confine(&started_by(words, &plain)), limit)).await
    }

    async fn script(&self, script: &str, words: &[&Path]) -> Result<(), String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).args(words);
        self.run(shell, LOCAL_LIMIT).await.map(drop)
    }

    /// The id of the object to which this name refers.
    pub(crate) async fn parsed(&self, name: &str) -> Option<String> {
        let mut parse = self.git();
        parse.args(["rev-parse", "--quiet", "--verify", "--end-of-options", name]);
        self.run(parse, LOCAL_LIMIT).await.ok().filter(|id| is_commit_id(id))
    }

    /// The commit that is checked out. If a run has removed its branch or the branch's commit, the branch is created again at `begun`,
    /// where the run began, and the files count as changes.
    pub(crate) async fn head(&self, begun: &str) -> Result<String, Trouble> {
        if let Some(head) = self.parsed("HEAD^{commit}").await {
            return Ok(head);
        }
        self.update_branch(begun).await?;
        Ok(begun.to_owned())
    }

    /// Removes the locks that a killed command has left. Nobody else uses this repository now.
    pub(crate) async fn forget_locks(&self) {
        let own = self.tree.own_git_dir();
        let locks = ["index.lock".to_owned(), "HEAD.lock".to_owned(), "config.lock".to_owned(), format!("{}.lock", self.tree.branch_ref())];
        let locks: Vec<PathBuf> = locks.iter().map(|lock| own.join(lock)).collect();
        let _ = self.script(r#"rm -f -- "$@""#, &locks.iter().map(PathBuf::as_path).collect::<Vec<_>>()).await;
    }

    /// The branch that is checked out. It must be one of these, which the agent has created: anything else that a run checks out does not
    /// belong to the context.
    pub(crate) async fn branch(&self, own: &[String]) -> Result<String, Trouble> {
        let mut ask = self.git();
        ask.args(["symbolic-ref", "--quiet", "HEAD"]);
        let head = self.run(ask, LOCAL_LIMIT).await.unwrap_or_default();
        let tree = self.tree;
        match head.strip_prefix("refs/heads/") {
            Some(name) if own.iter().any(|own| own == name) && tree.repository.commit_of(&head).await.is_some() => Ok(name.to_owned()),
            _ => {
                // The command in the message needs the branch, which the run may have removed.
                if let Some(kept) = tree.repository.commit_of(&tree.branch_ref()).await
                    && self.parsed(&format!("{}^{{commit}}", tree.branch_ref())).await.is_none()
                {
                    let _ = self.move_branch(&kept).await;
                }
                let why = format!("a run has checked out something else than its branch {}", tree.branch);
                Err(tree.state(&why, &[&format!("checkout {}", tree.branch)]))
            }
        }
    }

    pub(crate) async fn link(&self) -> Result<(), Trouble> {
        let linked = self.script(WRITE_LINK, &[&self.tree.own_git_dir(), &self.tree.dir.join(LINK)]).await;
        linked.map_err(|why| Trouble::of_git("the worktree can't be prepared", &why))
    }

    /// Creates the repository of the context, with its branch at this commit, and the worktree with these large files; `None` = its files
    /// already exist.
    pub(crate) async fn make(&mut self, start: &str, files: Option<&LargeFiles>) -> Result<(), Trouble> {
        let failed = |why: String| Trouble::of_git("the worktree can't be made", &why);
        let repository = &self.tree.repository;
        let mut init = self.git();
        init.args(["init", "--quiet", "--template=", &format!("--object-format={}", repository.format())]);
        self.run(init, LOCAL_LIMIT).await.map_err(failed)?;
        self.renew().await?;
        self.link().await?;
        self.update_branch(start).await?;
        if let Some(files) = files {
            self.show_large_files(files).await?;
        }
        let mut read = self.git();
        read.args(["read-tree", "--reset"]).args(files.map(|_| "-u")).arg(start);
        bounded(output(self.confine(&read), FETCH_LIMIT), &self.tree.dir, repository.settings.max_bytes).await.map_err(failed)?;
        Ok(())
    }

    /// Shows the fetched branches and tags to the run. The run can also work without them.
    pub(crate) async fn follow_refs(&self) {
        let mut fetch = self.git();
        fetch.env("GIT_ALLOW_PROTOCOL", "file").args([
            "-c",
            "transfer.fsckObjects=false",
            "fetch",
            "--quiet",
            "--no-tags",
            "--prune",
            "--force",
        ]);
        fetch.args(["--no-write-fetch-head", "--no-recurse-submodules", "--"]).arg(self.tree.repository.git_dir());
        fetch.arg("+refs/remotes/origin/*:refs/remotes/origin/*").args(TAGS);
        if let Err(why) = self.run_within(fetch, LOCAL_LIMIT).await {
            tracing::warn!(dir = %self.tree.dir.display(), why, "a context does not see the newest branches of its project");
        }
    }

    /// Whether the files can be moved from the head to a commit, because none of the files that differ has other changes.
    pub(crate) async fn can_follow(&self, head: &str, commit: &str) -> bool {
        let mut read = self.git();
        read.args(["read-tree", "--dry-run", "-m", "-u", head, commit]);
        self.run_within(read, LOCAL_LIMIT).await.is_ok()
    }

    /// Moves the files and the branch to a commit.
    pub(crate) async fn follow(&self, head: &str, commit: &str) -> Result<(), Trouble> {
        let mut read = self.git();
        read.args(["read-tree", "-m", "-u", head, commit]);
        self.run_within(read, FETCH_LIMIT).await.map_err(|why| Trouble::of_git("the worktree can't be prepared", &why))?;
        self.update_branch(commit).await
    }

    /// Finishes an interrupted [`Self::follow`]: some of the files were moved, but git's index was not. `changed` is a file with the names
    /// of all files that differ between the two commits.
    pub(crate) async fn finish_following(&mut self, head: &str, commit: &str, changed: &Path) -> Result<(), Trouble> {
        let failed = |why: String| Trouble::of_git("the worktree can't be prepared", &why);
        let mut index = self.git();
        index.args(["read-tree", "-m", head]);
        self.run_within(index, LOCAL_LIMIT).await.map_err(failed)?;
        let mut files = self.git();
        files.args(["--literal-pathspecs", "checkout", "--quiet", "--no-overlay", "--pathspec-file-nul"]);
        files.arg(format!("--pathspec-from-file={}", changed.display())).arg(commit);
        self.read.push(changed.to_owned());
        let followed = self.run_within(files, FETCH_LIMIT).await;
        self.read.pop();
        followed.map_err(failed)?;
        self.update_branch(commit).await
    }

    /// Sets the branch to this commit atomically, and points HEAD to the branch.
    pub(crate) async fn update_branch(&self, commit: &str) -> Result<(), Trouble> {
        self.move_branch(commit).await?;
        let failed = |why: String| Trouble::of_git("the branch can't be updated", &why);
        let mut point = self.git();
        point.args(["symbolic-ref", "HEAD", &self.tree.branch_ref()]);
        self.run(point, LOCAL_LIMIT).await.map(drop).map_err(failed)
    }

    async fn move_branch(&self, commit: &str) -> Result<(), Trouble> {
        let mut update = self.git();
        update.args(DURABLE).args(["update-ref", "-m", "bloom-runtime", &self.tree.branch_ref(), commit]);
        self.run(update, LOCAL_LIMIT).await.map(drop).map_err(|why| Trouble::of_git("the branch can't be updated", &why))
    }

    /// Detaches HEAD at this commit, whose files are already there, and resets the branch of the context to `begun`.
    pub(crate) async fn detach(&self, commit: &str, begun: &str) -> Result<(), Trouble> {
        let mut point = self.git();
        point.args(DURABLE).args(["update-ref", "--no-deref", "-m", "bloom-runtime", "HEAD", commit]);
        self.run(point, LOCAL_LIMIT).await.map_err(|why| Trouble::of_git("the branch can't be updated", &why))?;
        self.move_branch(begun).await
    }

    /// Renames the branch, which is at this commit.
    pub(crate) async fn rename_branch(&self, head: &str, name: &str) -> Result<(), Trouble> {
        let renamed = self.tree.on(name);
        Confined::new(&renamed, self.confinement).update_branch(head).await?;
        let mut forget = self.git();
        forget.args(["update-ref", "-d", &self.tree.branch_ref()]);
        self.run(forget, LOCAL_LIMIT).await.map(drop).map_err(|why| Trouble::of_git("the branch can't be updated", &why))
    }

    /// Commits all files except those in the left-out directories. Returns `head` if nothing has changed.
    pub(crate) async fn commit_files(
        &mut self,
        head: &str,
        left_out: &BTreeSet<PathBuf>,
        ignored: &Path,
        author: &CommitAuthor,
        message: &str,
    ) -> Result<String, Trouble> {
        self.stage(head, left_out, ignored).await?;
        let failed = |why: String| Trouble::of_git(NOT_COMMITTED, &why);
        self.keep_unchanged(head).await.map_err(failed)?;
        let mut write = self.git();
        write.args(DURABLE).arg("write-tree");
        let tree = self.run(write, LOCAL_LIMIT).await.map_err(failed)?;
        if self.parsed(&format!("{head}^{{tree}}")).await.as_ref() == Some(&tree) {
            return Ok(head.to_owned());
        }
        self.commit_tree(&tree, head, author, message).await.map_err(failed)
    }

    /// Updates git's index with all files except those in the left-out directories.
    pub(crate) async fn stage(&mut self, head: &str, left_out: &BTreeSet<PathBuf>, ignored: &Path) -> Result<(), Trouble> {
        let failed = |why: String| Trouble::of_git(NOT_COMMITTED, &why);
        let mut read = self.git();
        read.args(["read-tree", head]);
        self.run(read, LOCAL_LIMIT).await.map_err(failed)?;
        let named = self.without_ignored(left_out, ignored).await.map_err(failed)?;
        let paths = self.tree.own_git_dir().with_extension("paths");
        fs::write(&paths, all_but(&named)).map_err(|error| Trouble::of_disk(NOT_COMMITTED, &error))?;
        let mut add = self.git_ignoring(ignored);
        add.args(DURABLE).args(["-c", "core.autocrlf=false", "-c", "advice.addEmbeddedRepo=false", "add", "--all", "--pathspec-file-nul"]);
        add.arg(format!("--pathspec-from-file={}", paths.display()));
        self.read.push(paths.clone());
        let limit = if self.filters.is_empty() { FETCH_LIMIT } else { FILTER_LIMIT };
        let added = self.run_within(add, limit).await;
        self.read.pop();
        let _ = fs::remove_file(&paths);
        added.map(drop).map_err(|why| self.not_staged(&why))
    }

    /// Makes a commit with these files.
    pub(crate) async fn commit_tree(&self, tree: &str, parent: &str, author: &CommitAuthor, message: &str) -> Result<String, String> {
        let mut make = self.git();
        make.envs(author.env()).args(DURABLE).args(["commit-tree", "--no-gpg-sign", tree, "-p", parent, "-m", message]);
        let commit = self.run(make, LOCAL_LIMIT).await?;
        if is_commit_id(&commit) { Ok(commit) } else { Err("git told no commit".into()) }
    }

    /// The directories into which git would look. Git does not look into directories that `.gitignore` excludes, and fails if such a
    /// directory is passed to it.
    async fn without_ignored(&self, dirs: &BTreeSet<PathBuf>, ignored: &Path) -> Result<BTreeSet<PathBuf>, String> {
        if dirs.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut ask = self.git_ignoring(ignored);
        ask.args(["check-ignore", "-z", "--stdin"]);
        let names = dirs.iter().flat_map(|dir| [dir.as_os_str().as_bytes(), b"\0"].concat()).collect();
        // 1: none is excluded.
        let told = self.answer(&ask, names, &[0, 1]).await?;
        let left_out: BTreeSet<&[u8]> = told.split(|byte| *byte == 0).collect();
        Ok(dirs.iter().filter(|dir| !left_out.contains(dir.as_os_str().as_bytes())).cloned().collect())
    }

    /// A git command that also ignores what this file lists.
    fn git_ignoring(&self, ignored: &Path) -> Command {
        let mut git = self.git();
        git.arg("-c").arg(format!("core.excludesFile={}", ignored.display()));
        git
    }

    /// The output of a command that gets these bytes on its standard input, and ends with one of these statuses.
    pub(crate) async fn answer(&self, plain: &Command, input: Vec<u8>, statuses: &[i32]) -> Result<Vec<u8>, String> {
        // The input is in a file: writing to a pipe would block if the command did not read it.
        let path = self.tree.own_git_dir().with_extension("input");
        let opened = fs::write(&path, input).and_then(|()| fs::File::open(&path));
        let _ = fs::remove_file(&path);
        let input = opened.map_err(|error| error.to_string())?;
        let ended = ended(self.confine(plain), input.into(), LOCAL_LIMIT, MOST_ANSWERED).await?;
        match ended.status {
            Some(status) if status.code().is_some_and(|code| statuses.contains(&code)) => Ok(ended.stdout),
            Some(_) => Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned()),
            None => Err(format!("git printed more than {} MiB", MOST_ANSWERED >> 20)),
        }
    }

    /// Removes the objects that the project's repository has as well.
    pub(crate) async fn prune_shared(&self) {
        let mut prune = self.git();
        prune.args(["prune-packed", "--quiet"]);
        if let Err(why) = self.run(prune, LOCAL_LIMIT).await {
            tracing::debug!(dir = %self.tree.dir.display(), why, "the repository of a context keeps what that of its project has, too");
        }
    }

    /// Writes the objects of the commit and of its ancestors that the project's repository does not have into a file. `known` is a commit
    /// that it does have.
    pub(crate) async fn pack(&self, commit: &str, known: Option<&str>, into: &Path) -> Result<(), String> {
        let mut pack = self.git();
        pack.args(["pack-objects", "--revs", "--thin", "--stdout", "--quiet"]);
        // Standard input names the commits to be packed.
        let pack = started_by(["sh", "-c", PACK, commit, known.unwrap_or_default()].map(OsString::from), &pack);
        let blocks = self.tree.repository.settings.max_bytes.div_ceil(512).to_string();
        let store = [OsString::from("sh"), "-c".into(), INTO_FILE.into(), into.into(), blocks.into()];
        let stored = started_by(store, &self.confine(&pack));
        // Created here, so that only this user can read it.
        fs::File::create_new(into).map_err(|error| error.to_string())?;
        output(stored, FETCH_LIMIT).await.map(drop)
    }
}
