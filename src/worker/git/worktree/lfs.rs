//! Large files that a repository stores with git-lfs: commits contain pointers to them, and worktrees contain the files.
//!
//! ```text
//! repositories/PROJECT/git/lfs/objects/                the files, once for all contexts: only the agent writes there
//! repositories/PROJECT/contexts/NAME.git/lfs/objects/  links to them, and files that runs of the context have added
//! ```
//!
//! The agent fetches and pushes the files in the bare repository. It has no worktree, and its HEAD is at a commit without files, so git-lfs
//! finds no `.lfsconfig` and uses the project's URL with the settings of the agent's user. In a worktree, git-lfs only converts pointers to
//! files and back. There its server is the directory of the project's repository, whatever `.lfsconfig` or a run says.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use uuid::Uuid;

use super::confined::Confined;
use super::repository::{FETCH_LIMIT, LOCAL_LIMIT, Repository};
use super::trouble::Trouble;
use super::{LargeFiles, Prepared, Worktree};
use crate::git::{bounded, lfs_program, size_of};
use crate::home::private_dir;
use crate::machine::command::{ended, output, started_by};
use crate::machine::open_below::{fresh_at, open_below};

/// Lists the objects that pointers in these revisions refer to. A pointer is shorter than 1,024 bytes.
const POINTERS: &str = r#"revisions="$0"
blobs=$("$@" rev-list --objects --no-object-names --filter=combine:blob:limit=1024+object:type=blob --filter-provided-objects \
  $revisions) || exit
[ -z "$blobs" ] || printf '%s\n' "$blobs" | "$@" cat-file --batch --buffer | LC_ALL=C sed -n 's/^oid sha256:\([0-9a-f]\{64\}\)$/\1/p'"#;
/// The maximum size of a list of objects, in bytes.
const MOST_LISTED: usize = 64 << 20;
/// Reads paths, and links each path below the second directory to the same path below the first one.
const LINK_ALL: &str = r#"while read -r path; do
  [ -d "$1/${path%/*}" ] || mkdir -p -- "$1/${path%/*}" || exit
  [ -L "$1/$path" ] || ln -sfn -- "$0/$path" "$1/$path" || exit
done"#;
/// The directory of the large files in a repository.
const OBJECTS: &str = "lfs/objects";
/// The directory in which git-lfs stores files, in each repository. It also applies to a server that is a directory, because git-lfs on
/// that side reads the setting, too.
const STORAGE: &str = "lfs.storage=lfs";
/// The error if the server does not accept a branch.
const MISSING: &str =
    "a commit has a pointer to a file that is not there, because the run wrote the pointer itself or has removed the file:";
const NOT_TAKEN: &str = "the large files of the run can't be taken over";
const PIECE: usize = 1 << 20;
/// The maximum number of trees that one command examines: they are arguments on its command line.
const TREES: usize = 1_000;

/// The git settings for converting pointers to files and back with this program. A pointer to a file that is in no store stays a pointer.
fn settings(program: &str, store: &Repository) -> [(&'static str, String); 6] {
    [
        ("filter.lfs.process", format!("{program} filter-process")),
        ("filter.lfs.clean", format!("{program} clean -- %f")),
        ("filter.lfs.smudge", format!("{program} smudge -- %f")),
        ("filter.lfs.required", "true".into()),
        ("lfs.url", format!("file://{}", store.git_dir().display())),
        ("lfs.skipDownloadErrors", "true".into()),
    ]
}

/// The path of an object in a store.
fn path_of(object: &str) -> String {
    format!("{}/{}/{object}", &object[..2], &object[2..4])
}

impl Repository {
    fn large_files(&self) -> PathBuf {
        self.git_dir().join(OBJECTS)
    }

    pub(super) fn large_file(&self, object: &str) -> PathBuf {
        self.large_files().join(path_of(object))
    }

    fn has_large_file(&self, object: &str) -> bool {
        self.large_file(object).exists()
    }

    /// Whether the git attributes of this commit refer to git-lfs.
    pub(crate) async fn uses_lfs(&self, commit: &str) -> bool {
        let mut find = self.local(&self.git_dir());
        find.args(["grep", "--quiet", "-e", "filter=lfs", commit, "--", ":(glob)**/.gitattributes"]);
        output(find, LOCAL_LIMIT).await.is_ok()
    }

    /// The large files of a commit. Fails if they would stay pointers: the run would cost money, but not see the files that it is about.
    pub(crate) async fn large_files_of(&self, commit: &str) -> Result<LargeFiles, Trouble> {
        if !self.uses_lfs(commit).await {
            return Ok(None);
        }
        if lfs_program().is_some() {
            return self.pointers(&[&format!("{commit}^{{tree}}")]).await.map(Some);
        }
        let why = "the project's repository has files in git-lfs, which is not installed on the worker: install git-lfs there, in the PATH of the agent";
        Err(Trouble::Lfs(why.into()))
    }

    /// The objects that pointers in these revisions refer to. The revisions are arguments of `git rev-list`.
    pub(super) async fn pointers(&self, revisions: &[&str]) -> Result<Vec<String>, Trouble> {
        let failed = |why: &str| Trouble::of_git("the files in git-lfs can't be listed", why);
        let words = ["sh", "-c", POINTERS, &revisions.join(" ")].map(OsString::from);
        let list = started_by(words, &self.local(&self.git_dir()));
        let ended = ended(list, Stdio::null(), LOCAL_LIMIT, MOST_LISTED).await.map_err(|why| failed(&why))?;
        match ended.status {
            Some(status) if status.success() => {}
            Some(_) => return Err(failed(String::from_utf8_lossy(&ended.stderr).trim())),
            None => return Err(failed("there are too many")),
        }
        let mut objects: Vec<String> = String::from_utf8_lossy(&ended.stdout).lines().map(str::to_owned).collect();
        objects.sort_unstable();
        objects.dedup();
        Ok(objects)
    }

    /// A git-lfs command with the project's server.
    fn lfs(&self) -> Command {
        let mut lfs = self.remote();
        lfs.arg("-c").arg(format!("remote.origin.url={}", self.url));
        lfs.args(["-c", STORAGE, "lfs"]);
        lfs
    }

    /// Fetches the large files of a commit that are not on this machine.
    pub(crate) async fn fetch_large_files(&self, commit: &str, files: &LargeFiles) -> Result<(), Trouble> {
        if files.iter().flatten().all(|object| self.has_large_file(object)) {
            return Ok(());
        }
        let _lock = self.lock.lock().await;
        let mut fetch = self.lfs();
        fetch.args(["fetch", "origin", commit]);
        let fetched = bounded(output(fetch, FETCH_LIMIT), &self.git_dir(), self.settings.max_bytes).await;
        match fetched {
            Ok(_) => Ok(()),
            Err(why) => Err(self.with_unpushed(Trouble::of_fetch(&format!("git-lfs: {why}"))).await),
        }
    }

    /// Sends the large files of a commit and of its ancestors to the project's server, unless it already has them.
    pub(crate) async fn push_large_files(&self, commit: &str) -> Result<(), String> {
        if lfs_program().is_none() || !self.uses_lfs(commit).await {
            return Ok(());
        }
        let mut push = self.lfs();
        push.args(["push", "origin", commit]);
        let Err(why) = output(push, FETCH_LIMIT).await else { return Ok(()) };
        // git-lfs does not report the name of a file that neither it nor the server has.
        let objects = self.pointers(&[commit, "--not", "--remotes"]).await.unwrap_or_default();
        Err(match objects.iter().find(|object| !self.has_large_file(object)) {
            Some(missing) => format!("git-lfs: {MISSING} {missing}: {why}"),
            None => format!("git-lfs: {why}"),
        })
    }

    /// Removes large files that were stored before this second, that the project's server has, and that no branch of a context needs now.
    /// If a branch needs them later, they are fetched again.
    pub(crate) async fn tidy_large_files(&self, before: i64) -> Result<(), Trouble> {
        if !self.large_files().exists() {
            return Ok(());
        }
        let mut list = self.local(&self.git_dir());
        list.args(["for-each-ref", "--format=%(objectname)^{tree}", "refs/heads"]);
        let trees = output(list, LOCAL_LIMIT).await.map_err(|why| Trouble::of_git("the branches can't be listed", &why))?;
        let mut needed: BTreeSet<OsString> = BTreeSet::new();
        let unpushed = ["--branches", "--not", "--remotes"];
        for revisions in [unpushed.as_slice()].into_iter().chain(trees.lines().collect::<Vec<_>>().chunks(TREES)) {
            needed.extend(self.pointers(revisions).await?.into_iter().map(OsString::from));
        }
        let files = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
        let is_old = |file: &Path| file.metadata().is_ok_and(|about| about.ctime() < before);
        for file in files(&self.large_files()).iter().flat_map(|dir| files(dir)).flat_map(|dir| files(&dir)) {
            if !file.file_name().is_some_and(|name| needed.contains(name)) && is_old(&file) {
                fs::remove_file(&file).map_err(|error| Trouble::of_disk("a large file can't be removed", &error))?;
            }
        }
        Ok(())
    }

    /// Copies these objects from the repository of a context, if their contents match their names. Runs can write everything there, so
    /// links are not followed out of the directory.
    fn take_large_files(&self, from: &Path, objects: &[String]) -> io::Result<Vec<String>> {
        let Ok(dir) = Dir::open_ambient_dir(from, ambient_authority()) else { return Ok(Vec::new()) };
        let part = self.git_dir().join("lfs").join(format!(".part-{}", Uuid::now_v7()));
        private_dir(&self.git_dir().join("lfs"))?;
        let mut room = self.settings.max_bytes.saturating_sub(size_of(&self.git_dir(), self.settings.max_bytes));
        let mut taken = Vec::new();
        for object in objects.iter().filter(|object| !self.has_large_file(object)) {
            // The object may never have existed: the run may have committed a pointer that it wrote itself.
            let Ok(file) = open_below(&dir, &Path::new(OBJECTS).join(path_of(object))) else { continue };
            let copied = copy(file, &part, object, room);
            let placed = copied.and_then(|bytes| {
                let Some(bytes) = bytes else { return fs::remove_file(&part) };
                room -= bytes;
                let path = self.large_file(object);
                fs::create_dir_all(path.parent().unwrap_or(&path))?;
                fs::rename(&part, path)?;
                taken.push(object.clone());
                Ok(())
            });
            if placed.is_err() {
                let _ = fs::remove_file(&part);
            }
            placed?;
        }
        Ok(taken)
    }
}

/// Copies a file durably. Returns its size in bytes, or `None` if it does not have this SHA-256.
fn copy(mut from: File, to: &Path, object: &str, room: u64) -> io::Result<Option<u64>> {
    let (mut into, mut digest, mut bytes, mut piece) = (fresh_at(to)?, Sha256::new(), 0_u64, vec![0; PIECE]);
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        if bytes > room {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than --max-clone-mib of the agent allows"));
        }
        digest.update(&piece[..count]);
        into.write_all(&piece[..count])?;
    }
    into.sync_all()?;
    Ok((hex::encode(digest.finalize()) == object).then_some(bytes))
}

impl Confined<'_> {
    /// The directory in which runs find large files, and to which they add some.
    fn own_large_files(&self) -> PathBuf {
        self.tree.own_git_dir().join(OBJECTS)
    }

    /// Makes a git command convert pointers to files and back.
    pub(crate) fn with_lfs(&self, git: &mut Command) {
        let Some(program) = &self.lfs else { return };
        // Git passes it to a shell.
        let quoted = format!("'{}'", program.display().to_string().replace('\'', r"'\''"));
        for (name, value) in settings(&quoted, &self.tree.repository) {
            git.arg("-c").arg(format!("{name}={value}"));
        }
        git.args(["-c", STORAGE]);
        git.env("GIT_LFS_SKIP_SMUDGE", "0");
    }

    /// Shows the large files of a commit to the context, and lets the git commands of its runs convert them.
    pub(crate) async fn show_large_files(&self, files: &LargeFiles) -> Result<(), Trouble> {
        let (Some(objects), repository) = (files, &self.tree.repository) else { return Ok(()) };
        let failed = |why: String| Trouble::of_git("the files in git-lfs can't be shown", &why);
        for (name, value) in settings("git-lfs", repository) {
            let mut set = self.git();
            set.args(["config", "--replace-all", name, &value]);
            self.run(set, LOCAL_LIMIT).await.map_err(failed)?;
        }
        self.link_large_files(objects).await.map_err(failed)
    }

    async fn link_large_files(&self, objects: &[String]) -> Result<(), String> {
        let repository = &self.tree.repository;
        let paths: String =
            objects.iter().filter(|object| repository.has_large_file(object)).map(|object| path_of(object) + "\n").collect();
        let mut link = Command::new("sh");
        link.args(["-c", LINK_ALL]).arg(repository.large_files()).arg(self.own_large_files());
        self.answer(&link, paths.into_bytes(), &[0]).await.map(drop)
    }
}

impl Worktree {
    /// Copies the large files that a commit of the context refers to into the project's repository, which all contexts share.
    pub(super) async fn take_large_files(&self, confined: &Confined<'_>, commit: &str) -> Result<(), Trouble> {
        let objects = self.repository.pointers(&[commit, "--not", "--remotes"]).await?;
        let (repository, from) = (self.repository.clone(), self.own_git_dir());
        let taken = tokio::task::spawn_blocking(move || repository.take_large_files(&from, &objects)).await;
        let taken = match taken.map_err(io::Error::other).and_then(|taken| taken) {
            Ok(taken) => taken,
            Err(error) => return Err(self.repository.with_unpushed(Trouble::of_disk(NOT_TAKEN, &error)).await),
        };
        confined.link_large_files(&taken).await.map_err(|why| Trouble::of_git("the large files of the run can't be shown", &why))
    }

    /// Prepares the large files of the commit at which a context continues. If their server can't be reached, the worktree keeps its
    /// previous state.
    pub(super) async fn large_files(&self, confined: &Confined<'_>, prepared: Prepared, files: &LargeFiles) -> Result<Prepared, Trouble> {
        match self.repository.fetch_large_files(&prepared.base, files).await {
            Ok(()) => confined.show_large_files(files).await.map(|()| prepared),
            Err(trouble) => Ok(Prepared { unfetched: Some(trouble.to_string()), ..prepared }),
        }
    }
}
