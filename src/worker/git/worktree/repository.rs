//! The repository of a project on this machine. It is a bare repository, into which the agent fetches, and from which it pushes the
//! branches of contexts.
//!
//! No run writes it: in a sandbox runs can't, and without a sandbox they have a repository of their own. So the agent's commands here may
//! use the credentials and settings of its user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use tokio::process::Command;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::trouble::Trouble;
use crate::git::{GitSettings, bounded, git, strict};
use crate::home::private_dir;
use crate::machine::command::{ended, output, output_of, warnings};
use crate::machine::process::{HOME_VARIABLE, LEASE_VARIABLE};

pub(crate) const FETCH_LIMIT: Duration = Duration::from_secs(600);
pub(crate) const LOCAL_LIMIT: Duration = Duration::from_secs(120);
/// The limit of each step that copies the commits of a run: a small file may contain objects that take very long to read.
const TAKE_LIMIT: Duration = Duration::from_secs(120);
/// The limit of queries to the server of a repository, for example for its default branch.
const ASK_LIMIT: Duration = Duration::from_secs(60);
/// How many times a fetch is retried when another command has locked a ref, and the wait before each retry. In total this is longer than
/// [`LOCK_IS_LEFT`], so that a stale lock does not make the commits of a run fail.
const LOCK_TRIES: usize = 65;
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// An older lock was left by a command that was killed, because git holds locks only for moments. The same is true of a lock from before
/// this agent's first command (children of earlier agents end before it begins), and of one whose time is in the future because the clock
/// was set back.
const LOCK_IS_LEFT: Duration = Duration::from_secs(60);
static BEGUN: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

/// Flushes commits to the disk, because a run is over once its commit is reported.
pub(crate) const DURABLE: [&str; 2] = ["-c", "core.fsync=committed"];
/// The hash algorithms of git objects, in the form that `--object-format` takes.
const SHA1: &str = "sha1";
const SHA256: &str = "sha256";
/// Git's warning when the fetched repository has commits whose parents are missing. Git does not update the branches of such commits.
const SHALLOW: &str = "shallow roots are not allowed to be updated";
/// The refspec of all branches, to be fetched together with the [`TAGS`].
const BRANCHES: &str = "+refs/heads/*:refs/remotes/origin/*";
/// The refspecs of all tags, except those that git could mistake for another ref.
pub(crate) const TAGS: [&str; 2] = ["+refs/tags/*:refs/tags/*", "^refs/tags/refs/*"];
/// The limit for the first line of `ls-remote`'s output, in bytes.
const FIRST_LINE: usize = 4_096;
/// The maximum number of branches that a message lists.
const SHOWN_BRANCHES: &str = "5";

/// The repository of a project.
#[derive(Clone, Debug)]
pub(crate) struct Repository {
    pub settings: GitSettings,
    /// The agent's directory `repositories/PROJECT`.
    pub dir: PathBuf,
    pub url: String,
    /// The agent's directory.
    pub home: PathBuf,
    /// Held during changes of what all worktrees share: two concurrent fetches would lock each other out.
    pub lock: Arc<Mutex<()>>,
}

impl Repository {
    pub(crate) fn git_dir(&self) -> PathBuf {
        self.dir.join("git")
    }

    /// The repositories of contexts, and the agent's notes about them.
    pub(crate) fn contexts_dir(&self) -> PathBuf {
        self.dir.join("contexts")
    }

    /// A command that the next agent process in this directory ends if this one is killed: it must not write into a worktree that is made
    /// anew.
    fn git(&self, protocols: &[String]) -> Command {
        let mut git = git(protocols);
        git.env(HOME_VARIABLE, &self.home).env(LEASE_VARIABLE, "").current_dir(&self.dir);
        git
    }

    /// A command that reads only the settings of the repository, which the agent itself has written.
    pub(crate) fn local(&self, git_dir: &Path) -> Command {
        let mut git = self.git(&[]);
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        git.env("GIT_ATTR_NOSYSTEM", "1").arg("--git-dir").arg(git_dir);
        git
    }

    /// A command on the repository as a whole. It uses the user's settings and credentials, but no worktree, whose files could have
    /// effects.
    pub(crate) fn remote(&self) -> Command {
        let mut git = self.git(&self.settings.protocols);
        git.arg("--git-dir").arg(self.git_dir());
        git
    }

    /// Fetches all branches and tags. Creates the repository if it is missing.
    pub(crate) async fn fetch(&self, limit: Duration) -> Result<(), Trouble> {
        self.make_if_missing().await?;
        self.fetch_refs(&[&[BRANCHES], &TAGS[..]].concat(), limit).await
    }

    async fn make_if_missing(&self) -> Result<(), Trouble> {
        let _lock = self.lock.lock().await;
        if !self.git_dir().join("HEAD").exists() {
            self.init().await?;
        }
        self.set_settings()?;
        self.set_head().await
    }

    async fn init(&self) -> Result<(), Trouble> {
        private_dir(&self.dir).map_err(|error| Trouble::of_disk("the repository's directory can't be created", &error))?;
        // The repository appears complete or not at all: a later start of the agent must not find a partial one.
        let part = self.dir.join(format!(".git-{}", Uuid::now_v7()));
        let format = self.remote_format().await?;
        let mut init = self.git(&[]);
        init.args(["init", "--quiet", "--bare", "--template=", &format!("--object-format={format}")]).arg(&part);
        output(init, LOCAL_LIMIT).await.map_err(|why| Trouble::of_git("the repository can't be created", &why))?;
        fs::rename(&part, self.git_dir()).map_err(|error| Trouble::of_disk("the repository can't be created", &error))
    }

    fn set_settings(&self) -> Result<(), Trouble> {
        let (file, part) = (self.git_dir().join("config"), self.dir.join(".config"));
        let settings = fs::read_to_string(&file).unwrap_or_default();
        let wanted = settings_of(format_of(&settings), true);
        if settings == wanted {
            return Ok(());
        }
        let written = fs::write(&part, wanted).and_then(|()| fs::rename(&part, file));
        written.map_err(|error| Trouble::of_disk("the repository can't be used", &error))
    }

    /// The hash algorithm of the repository's objects: `sha1` or `sha256`.
    pub(crate) fn format(&self) -> &'static str {
        format_of(&fs::read_to_string(self.git_dir().join("config")).unwrap_or_default())
    }

    /// The hash algorithm of the remote repository. An empty repository does not reveal it.
    async fn remote_format(&self) -> Result<&'static str, Trouble> {
        let mut ask = self.git(&self.settings.protocols);
        ask.args(["ls-remote", "--", &self.url]);
        let ended = ended(ask, Stdio::null(), ASK_LIMIT, FIRST_LINE).await.map_err(|why| Trouble::of_fetch(&why))?;
        if ended.status.is_some_and(|status| !status.success()) {
            return Err(Trouble::of_fetch(String::from_utf8_lossy(&ended.stderr).trim()));
        }
        let id = ended.stdout.split(|byte| *byte == b'\t').next().unwrap_or_default();
        Ok(if id.len() == 64 { SHA256 } else { SHA1 })
    }

    async fn fetch_refs(&self, refs: &[&str], limit: Duration) -> Result<(), Trouble> {
        let _lock = self.lock.lock().await;
        let fetch = || {
            let mut fetch = self.remote();
            fetch.args(["fetch", "--quiet", "--no-tags", "--prune", "--force", "--no-write-fetch-head", "--no-recurse-submodules", "--"]);
            fetch.arg(&self.url).args(refs);
            let (dir, most) = (self.git_dir(), self.settings.max_bytes);
            async move {
                // Git succeeds even if it skips branches whose commits are incomplete.
                let warnings = bounded(warnings(fetch, limit), &dir, most).await?;
                if warnings.contains(SHALLOW) { Err(SHALLOW.to_owned()) } else { Ok(()) }
            }
        };
        match self.despite_locks(fetch).await {
            Ok(()) => Ok(()),
            Err(why) if why.contains("mismatched algorithms") => Err(Trouble::State(format!(
                "the project's repository is another one now, which names its objects in another way (SHA-1 or SHA-256): remove {} on the worker, \
                 or add the project anew with another name",
                self.dir.display()
            ))),
            Err(why) if why == SHALLOW => Err(Trouble::State(
                "the project's repository is a shallow clone, whose history is cut off: complete it with `git fetch --unshallow` there, \
                 or name the repository that it was cloned from"
                    .to_owned(),
            )),
            Err(why) => Err(self.with_unpushed(Trouble::of_fetch(&why)).await),
        }
    }

    /// Retries a command while another one holds a lock that it needs. Removes stale locks.
    pub(super) async fn despite_locks<F: Future<Output = Result<(), String>>>(&self, command: impl Fn() -> F) -> Result<(), String> {
        let begun = *BEGUN;
        for _ in 0..LOCK_TRIES {
            let Err(why) = command().await else { return Ok(()) };
            let Some(lock) = lock_in(&why) else { return Err(why) };
            let changed = fs::metadata(lock).and_then(|about| about.modified());
            let is_left = changed.is_ok_and(|changed| changed < begun || is_far(changed, SystemTime::now()));
            if lock.starts_with(self.git_dir()) && is_left {
                tracing::warn!(lock = %lock.display(), "a git command that was killed has left a lock; it is removed");
                let _ = fs::remove_file(lock);
            } else {
                tokio::time::sleep(LOCK_WAIT).await;
            }
        }
        command().await
    }

    /// The commit of this branch, tag or commit id; `None` = the commit of the default branch.
    pub(crate) async fn wanted_commit(&self, wanted: Option<&str>) -> Result<String, Trouble> {
        let default = if wanted.is_none_or(is_default) { Some(self.default_ref().await?) } else { None };
        let wanted = default.as_deref().or(wanted).unwrap_or_default();
        let missing = || Trouble::RefMissing(wanted.to_owned());
        let mut check = self.local(&self.git_dir());
        check.args(["check-ref-format", &format!("refs/heads/{wanted}")]);
        output(check, LOCAL_LIMIT).await.map_err(|_| missing())?;
        for name in names(wanted) {
            if let Some(commit) = self.commit_of(&name).await {
                return Ok(commit);
            }
        }
        if !((7..=64).contains(&wanted.len()) && wanted.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            return Err(missing());
        }
        if let Some(commit) = self.commit_with(wanted).await {
            return Ok(commit);
        }
        // A commit that is on no branch. Some servers return such a commit if it is requested by its full name.
        if wanted.len() >= 40 {
            self.fetch_refs(&[wanted], FETCH_LIMIT).await.map_err(|_| missing())?;
        }
        self.commit_with(wanted).await.ok_or_else(missing)
    }

    /// What the server reports about refs. Each line has the name of a ref, and its commit or `ref: ` with the ref that it points to.
    pub(super) async fn told_refs(&self, names: &[&str]) -> Result<String, Trouble> {
        let mut ask = self.remote();
        ask.args(["ls-remote", "--symref", "--", &self.url]).args(names);
        output(ask, ASK_LIMIT).await.map_err(|why| Trouble::of_fetch(&why))
    }

    /// The default branch of the repository, or the commit that HEAD has instead of a branch.
    pub(super) async fn default_ref(&self) -> Result<String, Trouble> {
        let told = self.told_refs(&["HEAD"]).await?;
        // The answer contains all refs whose names end in HEAD. The first line of HEAD itself has its branch, or its commit if it is
        // detached.
        if let Some(found) = told.lines().find_map(|line| line.strip_suffix("\tHEAD")) {
            return Ok(found.strip_prefix("ref: ").unwrap_or(found).to_owned());
        }
        // The default branch was never pushed, or there is none at all.
        let mut list = self.local(&self.git_dir());
        list.args(["for-each-ref", "--count", SHOWN_BRANCHES, "--format=%(refname:lstrip=3)", "refs/remotes/origin"]);
        let branches = output(list, LOCAL_LIMIT).await.unwrap_or_default();
        if branches.is_empty() { Err(Trouble::Empty) } else { Err(Trouble::NoDefault(branches.lines().collect::<Vec<_>>().join(", "))) }
    }

    /// Takes the commit of a context, with all of its ancestors, from a pack file. Git checks the objects as if a server had sent them.
    pub(crate) async fn take(&self, pack: &Path, context: &str, commit: &str) -> Result<(), Trouble> {
        let file = fs::File::open(pack).map_err(|error| Trouble::of_disk("what the run committed can't be taken over", &error))?;
        let failed = |why: String| Trouble::of_git("what the run committed can't be taken over", &why);
        let mut index = self.local(&self.git_dir());
        // Others may use the repository meanwhile. Rejected objects never become a part of it.
        index.args(DURABLE).args(["index-pack", "--stdin", "--fix-thin", "--threads=1"]);
        index.arg(format!("--strict={}", strict()));
        index.arg(format!("--max-input-size={}", self.settings.max_bytes));
        output_of(index, file.into(), TAKE_LIMIT).await.map_err(failed)?;
        // Checks that no object is missing which another one refers to.
        let mut check = self.local(&self.git_dir());
        check.args(["rev-list", "--objects", "--quiet", commit, "--not", "--all"]);
        output(check, TAKE_LIMIT).await.map_err(failed)?;
        self.set_ref(&format!("refs/bloom/{context}"), commit).await
    }

    /// Packs the objects once there are many loose ones. Unreachable objects are kept, because the repository of a context may still use
    /// them.
    pub(crate) async fn tidy(&self) {
        let mut gc = self.local(&self.git_dir());
        gc.args(["-c", "gc.pruneExpire=never", "-c", "gc.cruftPacks=true"]);
        gc.args(["-c", "gc.auto=6700", "-c", "gc.autoDetach=false", "gc", "--auto", "--quiet"]);
        if let Err(why) = output(gc, FETCH_LIMIT).await {
            tracing::warn!(repository = %self.dir.display(), why, "a repository could not be tidied");
        }
    }
}

/// Whether two times differ by more than the time for which a lock is held.
fn is_far(one: SystemTime, other: SystemTime) -> bool {
    one.duration_since(other).unwrap_or_else(|error| error.duration()) > LOCK_IS_LEFT
}

/// The settings that the agent writes for a repository with this hash algorithm.
pub(crate) fn settings_of(format: &str, is_bare: bool) -> String {
    let (version, extensions) = if format == SHA256 { (1, "[extensions]\n\tobjectformat = sha256\n") } else { (0, "") };
    format!("[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = {is_bare}\n{extensions}")
}

/// The hash algorithm of a repository with these settings.
fn format_of(settings: &str) -> &'static str {
    if settings.contains("objectformat = sha256") { SHA256 } else { SHA1 }
}

/// Whether this is one of the names by which people refer to the default branch.
pub(crate) fn is_default(wanted: &str) -> bool {
    ["HEAD", "origin/HEAD", "remotes/origin/HEAD", "refs/remotes/origin/HEAD"].contains(&wanted)
}

/// The refs that a person may mean by the name of a branch or a tag, including the forms in which git shows names elsewhere.
pub(crate) fn names(wanted: &str) -> Vec<String> {
    let branch = |name: &str| format!("refs/remotes/origin/{name}");
    if let Some(name) = wanted.strip_prefix("refs/heads/") {
        return vec![branch(name)];
    }
    if wanted.starts_with("refs/tags/") || wanted.starts_with("refs/remotes/origin/") {
        return vec![wanted.to_owned()];
    }
    let is_shortened = ["heads/", "tags/", "remotes/origin/"].iter().any(|begin| wanted.starts_with(begin));
    let whole = if is_shortened { names(&format!("refs/{wanted}")) } else { Vec::new() };
    let plain = [branch(wanted), format!("refs/tags/{wanted}")];
    plain.into_iter().chain(wanted.strip_prefix("origin/").map(branch)).chain(whole).collect()
}

/// The path of another command's lock that made a command fail.
fn lock_in(why: &str) -> Option<&Path> {
    let (before, _) = why.split_once(".lock': File exists")?;
    let start = before.rfind('\'')? + 1;
    why.get(start..before.len() + ".lock".len()).map(Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_another_command_is_found() {
        let why =
            "error: cannot lock ref 'refs/remotes/origin/main': Unable to create '/a b/git/refs/remotes/origin/main.lock': File exists.";
        assert_eq!(lock_in(why), Some(Path::new("/a b/git/refs/remotes/origin/main.lock")));
        assert_eq!(lock_in("fatal: repository not found"), None);
    }
}
