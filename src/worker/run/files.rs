//! Files of tasks: inputs are placed in the directory of a run before it starts, and outputs are collected from it when the run has ended.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};
use globset::{GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Agent;
use crate::machine::open_below::open_below;
use crate::machine::reserve::is_of_disk;
use crate::machine::walk::{Next, Seen, walk};
use crate::run::task::Task;
use crate::server_calls::report::{Backoff, may_pass};
use bloom_api::files::{Input, glob};
use bloom_client::{Digesting, Error, part};
use bloom_core::file::MAX_FILES_OF_LEASE;

/// How many times an input is fetched if its content differs from what was announced.
const CONTENT_TRIES: usize = 3;
/// How long the agent tries to fetch an input while the server can't be reached.
const FETCH_FOR: Duration = Duration::from_secs(300);
/// The maximum number of directory entries that are searched for outputs.
const MAX_ENTRIES: usize = 1_000_000;
/// The maximum number of matching entries that are listed although they are no files.
const MAX_ODD: usize = 100;
/// The maximum number of outputs of one run; one more file is its diff.
pub(crate) const MAX_OUTPUTS: usize = MAX_FILES_OF_LEASE - 1;

/// Why the inputs of a task could not be placed in its directory.
#[derive(Debug)]
pub(crate) enum NoInput {
    /// The task can't run with these inputs.
    Unfit(String),
    Disk(String),
    /// The server can't be reached, or can't deliver the file at present.
    Unfetched(String),
}

/// A file that a run has left for its task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// Relative to the directory of the run.
    pub path: String,
    pub bytes: u64,
}

/// The outputs of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outputs {
    pub found: Vec<Output>,
    /// Entries that match the name of an output, but are no files.
    pub odd: Vec<String>,
    /// Whether some were left out because there are too many.
    pub is_cut: bool,
}

/// Why the server did not take a file.
pub(crate) enum Unsent {
    /// The server will never take it.
    Refused(String),
    /// The run has lost its lease.
    LeaseLost,
}

impl Agent {
    /// Places the inputs of the task in the directory. Inputs that are already there are not fetched again.
    pub(crate) async fn lay_inputs(&self, task: &Task, dir: &Path) -> Result<(), NoInput> {
        for input in &task.inputs {
            self.lay(input, dir).await?;
        }
        Ok(())
    }

    async fn lay(&self, input: &Input<'_>, dir: &Path) -> Result<(), NoInput> {
        let about = |error: io::Error| {
            let text = format!("the input {} can't be written: {error}", input.path);
            if is_of_disk(&error) { NoInput::Disk(text) } else { NoInput::Unfit(text) }
        };
        let root = Dir::open_ambient_dir(dir, ambient_authority()).map_err(about)?;
        let (below, wanted) = (dir.to_owned(), Laid::of(input));
        if tokio::task::spawn_blocking(move || wanted.is_unchanged(&below)).await.unwrap_or_default() {
            return Ok(());
        }
        let parent = Path::new(input.path.as_ref()).parent().unwrap_or(Path::new(""));
        if parent != Path::new("") {
            root.create_dir_all(parent).map_err(about)?;
        }
        let piece = parent.join(format!(".bloom-input-{}", Uuid::now_v7()));
        let laid = self.fetch_to(input, &root, &piece).await.and_then(|()| root.rename(&piece, &root, input.path.as_ref()).map_err(about));
        if laid.is_err() {
            let _ = root.remove_file(&piece);
        }
        laid
    }

    /// Fetches the file into `piece`.
    async fn fetch_to(&self, input: &Input<'_>, root: &Dir, piece: &Path) -> Result<(), NoInput> {
        let path = format!("api/runtime/artifacts/{}/content", input.artifact_id);
        let began = tokio::time::Instant::now();
        let (mut backoff, mut wrong) = (Backoff::default(), 0);
        loop {
            let file = new_piece(root, piece).await;
            let file = file.map_err(|error| NoInput::Unfit(format!("the input {} can't be written: {error}", input.path)))?;
            let mut digesting = Digesting::new(file);
            let error = match self.client.download(&path, input.bytes.unsigned_abs(), &mut digesting).await {
                Ok(_) if digesting.finish().1 == input.sha256 => return Ok(()),
                Ok(_) => {
                    wrong += 1;
                    if wrong == CONTENT_TRIES {
                        return Err(NoInput::Unfit(format!("the input {} does not have the content that was uploaded", input.path)));
                    }
                    continue;
                }
                Err(Error::Unwritten(why)) => return Err(NoInput::Disk(format!("the input {}: {why}", input.path))),
                Err(error) => error,
            };
            if !may_pass(&error) {
                return Err(NoInput::Unfit(format!("the input {} can't be fetched: {error}", input.path)));
            }
            if began.elapsed() > FETCH_FOR {
                return Err(NoInput::Unfetched(format!("the input {} can't be fetched: {error}", input.path)));
            }
            tokio::time::sleep(backoff.wait(&error)).await;
        }
    }

    /// Sends a file of a run to the server, and retries until the server takes or refuses it.
    pub(crate) async fn send_file(
        &self,
        (task, lease): (Uuid, Uuid),
        kind: &str,
        name: &str,
        content_type: &str,
        file: &File,
    ) -> Result<(), Unsent> {
        let path = format!("api/runtime/artifacts?task_id={task}&lease_id={lease}&type={kind}&name={}", part(name));
        let mut backoff = Backoff::default();
        loop {
            let opened = file.try_clone().and_then(|mut file| {
                io::Seek::rewind(&mut file)?;
                Ok((file.metadata()?.len(), file))
            });
            let (bytes, body) = opened.map_err(|error| Unsent::Refused(format!("it can't be read: {error}")))?;
            let Err(error) = self.client.upload(&path, content_type, tokio::fs::File::from_std(body), bytes).await else { return Ok(()) };
            if matches!(error.status(), Some(404 | 409)) {
                return Err(Unsent::LeaseLost);
            }
            if !may_pass(&error) {
                return Err(Unsent::Refused(error.to_string()));
            }
            tracing::warn!(%task, name, %error, "a file of a run is not taken yet; it is sent again");
            tokio::time::sleep(backoff.wait(&error)).await;
        }
    }
}

/// An input as it was placed in a directory.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Laid {
    pub path: String,
    bytes: u64,
    sha256: String,
}

impl Laid {
    pub(crate) fn of(input: &Input<'_>) -> Self {
        Self { path: input.path.to_string(), bytes: input.bytes.unsigned_abs(), sha256: input.sha256.to_string() }
    }

    /// Whether the input is still in the directory, unchanged. Reads no more of the file than its original size.
    pub(crate) fn is_unchanged(&self, dir: &Path) -> bool {
        let read = || -> io::Result<bool> {
            let root = Dir::open_ambient_dir(dir, ambient_authority())?;
            let about = root.symlink_metadata(&self.path)?;
            if !about.is_file() || about.len() != self.bytes {
                return Ok(false);
            }
            let mut digesting = Digesting::new(io::sink());
            io::copy(&mut open_below(&root, Path::new(&self.path))?.take(self.bytes), &mut digesting)?;
            Ok(digesting.finish().1 == self.sha256)
        };
        read().unwrap_or_default()
    }
}

/// Creates the file into which an input is written. Another run of the context may have put something else in the place of the previous
/// one.
async fn new_piece(root: &Dir, piece: &Path) -> io::Result<File> {
    let (root, piece) = (root.try_clone()?, piece.to_owned());
    let made = tokio::task::spawn_blocking(move || {
        let _ = root.remove_file(&piece);
        root.open_with(&piece, OpenOptions::new().write(true).create_new(true)).map(cap_std::fs::File::into_std)
    });
    made.await.map_err(io::Error::other)?
}

/// Opens an output. Another run of the context may have put something else in its place since it was found.
pub(crate) async fn open_output(dir: &Path, path: &str) -> io::Result<File> {
    let (dir, path) = (dir.to_owned(), PathBuf::from(path));
    let opened = tokio::task::spawn_blocking(move || open_below(&Dir::open_ambient_dir(dir, ambient_authority())?, &path));
    opened.await.map_err(io::Error::other)?
}

/// The files below the directory that one of the globs matches, ordered by path. Links are not followed, and git's own files are left out.
pub(crate) fn outputs(dir: &Path, globs: &[String]) -> Outputs {
    let Some(wanted) = globset(globs).filter(|set| !set.is_empty()) else { return Outputs::default() };
    let mut all = Outputs::default();
    let is_whole = walk(dir, MAX_ENTRIES, |seen| {
        let Seen::Entry { path, name, about } = seen else { return Next::Past };
        if about.is_dir() {
            return if name.eq_ignore_ascii_case(".git") { Next::Past } else { Next::Into };
        }
        if wanted.is_match(path) {
            match path.to_str() {
                _ if about.is_symlink() => all.add_odd(path, "it is a symbolic link"),
                _ if !about.is_file() => all.add_odd(path, "it is not a regular file"),
                Some(path) => all.add(Output { path: path.to_owned(), bytes: about.len() }),
                None => all.is_cut = true,
            }
        }
        Next::Past
    });
    all.is_cut |= !is_whole;
    all.sorted()
}

impl Outputs {
    fn add_odd(&mut self, path: &Path, what: &str) {
        if self.odd.len() < MAX_ODD {
            self.odd.push(format!("{}: {what}", path.display()));
        }
    }

    /// Adds an output. If there are too many, those whose paths come first are kept.
    fn add(&mut self, output: Output) {
        self.found.push(output);
        if self.found.len() > 2 * MAX_OUTPUTS {
            self.keep_first();
        }
    }

    fn keep_first(&mut self) {
        self.found.sort_by(|one, other| one.path.cmp(&other.path));
        self.is_cut |= self.found.len() > MAX_OUTPUTS;
        self.found.truncate(MAX_OUTPUTS);
    }

    fn sorted(mut self) -> Self {
        self.odd.sort();
        self.keep_first();
        self
    }
}

fn globset(globs: &[String]) -> Option<GlobSet> {
    let mut set = GlobSetBuilder::new();
    for text in globs {
        // The server has checked the globs.
        set.add(glob(text).ok()?);
        // The name of a directory matches everything in it.
        if !text.contains(['*', '?', '[', '{', '\\']) {
            set.add(glob(&format!("{text}/**")).ok()?);
        }
    }
    set.build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_files_below_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        for path in ["a.txt", "dist/b.js", "dist/deep/c.js", ".git/config.js", "sub/.git/x.js"] {
            std::fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.join(path), "four").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", dir.join("dist/link.js")).unwrap();
        let found = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(|&glob| glob.to_owned()).collect();
            outputs(dir, &globs).found.into_iter().map(|one| one.path).collect::<Vec<_>>()
        };
        assert_eq!(found(&["dist/**"]), ["dist/b.js", "dist/deep/c.js"]);
        assert_eq!(outputs(dir, &["dist".into()]).odd, ["dist/link.js: it is a symbolic link"]);
        assert_eq!(found(&["dist"]), ["dist/b.js", "dist/deep/c.js"], "a directory means all that is in it");
        assert_eq!(found(&["dist/*", "*.txt"]), ["a.txt", "dist/b.js"]);
        assert_eq!(found(&["**/*.js"]), ["dist/b.js", "dist/deep/c.js"]);
        assert!(found(&[]).is_empty() && found(&["none"]).is_empty());
        assert_eq!(outputs(dir, &["a.txt".into()]).found[0].bytes, 4);
        for number in 0..=MAX_OUTPUTS {
            std::fs::write(dir.join(format!("many-{number:04}")), "").unwrap();
        }
        let many = outputs(dir, &["many-*".into()]);
        assert_eq!((many.found.len(), many.is_cut, many.found[0].path.as_str()), (MAX_OUTPUTS, true, "many-0000"));
    }

    #[test]
    fn a_file_of_another_size_is_not_read() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::File::create(temp.path().join("a")).unwrap().set_len(1 << 43).unwrap();
        let laid = |bytes, sha256: &str| Laid { path: "a".into(), bytes, sha256: sha256.into() };
        assert!(!laid(3, "").is_unchanged(temp.path()));
        std::fs::write(temp.path().join("a"), "abc").unwrap();
        assert!(laid(3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad").is_unchanged(temp.path()));
    }
}
