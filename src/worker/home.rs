//! The agent's directory: its identity, its runs and their working directories. It survives the process.
//!
//! ```text
//! agent.lock          locked while the agent runs, so that no other agent uses the directory
//! agent.json          its name and its server
//! instance.json       distinguishes the agent from a copy of its directory
//! key.json            the worker's key, which it got in exchange for a join token
//! accounts.json       accounts that are out of quota
//! uninstalled         exists if the agent was uninstalled and must not start
//! renewed             when the leases were renewed last
//! system-calls.bpf    the filter of system calls for sandboxes
//! empty               an empty file that sandboxes mount where a file does not exist
//! reserve             space for the ends of runs when the disk is full
//! contexts/NAME/      working directory of the runs of a context, kept after them
//! sessions/NAME.json  the CLI's session of that context
//! sessions/NAME.sandbox/  the CLI's sessions of a context whose runs are in a sandbox
//! runs/LEASE/         one run, until its end is acknowledged
//! tmp/END-OF-LEASE/   its temporary files, unless it is in a sandbox
//! set-aside/TIME-LEASE/  a run whose files could not be used; the newest ones are kept
//! projects/           repositories that servers asked this agent to clone
//! repositories/       repositories of the projects of tasks, see [`worktree`](crate::git::worktree)
//! ```

use std::fs::{self, File, Permissions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::machine::boot_clock::{Stamp, boot};
use crate::machine::open_below::{open_at, read_all};
use crate::machine::removal::remove_all;
use crate::machine::reserve::Reserve;
use bloom_client::now_ms;

/// No file that the agent writes itself is longer: a result of 16 MiB, in JSON, is shorter.
pub(crate) const MAX_JSON: u64 = 256 << 20;
/// The maximum number of kept runs whose files could not be used.
const MAX_SET_ASIDE: usize = 20;

/// An agent's directory, locked by this process.
#[derive(Debug)]
pub(crate) struct Home {
    root: PathBuf,
    lock: File,
}

#[derive(Deserialize, PartialEq, Serialize)]
struct Identity {
    name: String,
    /// The server to which the runs belong.
    server: String,
}

/// How the server distinguishes agents that have the same name.
#[derive(Deserialize, PartialEq, Serialize)]
struct KnownInstance {
    id: Uuid,
    /// Identifies the machine's boot and the file that locks the directory. It changes when the directory is copied, and when the machine
    /// restarts, after which no process of a run is left.
    place: String,
    /// The server has accepted the agent's registration, so the runs in the directory are this agent's.
    is_registered: bool,
}

impl Drop for Home {
    /// Unlocks the directory explicitly: a process that the agent is just starting still holds the open file until it executes its program.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "the work directory can't be unlocked");
        }
    }
}

impl Home {
    /// # Errors
    /// The directory can't be created or used, or another agent is using it. The text says what to do.
    pub(crate) fn open(root: &Path) -> Result<Self, String> {
        let failed =
            |error: io::Error| format!("the work directory {} can't be used: {error}; choose another with --work-dir", root.display());
        private_dir(root).map_err(failed)?;
        let root = fs::canonicalize(root).map_err(failed)?;
        for part in ["contexts", "sessions", "runs"] {
            private_dir(&root.join(part)).map_err(failed)?;
        }
        // Only the owner has access: anyone who can open the file could lock it and so keep the agent from starting.
        let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(root.join("agent.lock")).map_err(failed)?;
        lock.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root, lock }),
            Err(TryLockError::WouldBlock) => {
                Err(format!("another agent uses {}: stop it, or choose another directory with --work-dir", root.display()))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Creates an empty file.
    ///
    /// # Errors
    /// The file can't be created.
    pub(crate) fn empty_file(&self) -> io::Result<PathBuf> {
        let path = self.root.join("empty");
        File::create(&path).map(|_| path)
    }

    /// The worker's name: `given`, or the name of the last start. At the first start, it is made from the host name and a random suffix.
    /// The name is stored, because the key and the leases of the directory's runs belong to that worker.
    ///
    /// # Errors
    /// The name can't be stored, or the directory contains runs of another server or worker.
    pub(crate) fn name(&self, given: Option<&str>, server: &str) -> Result<String, String> {
        let path = self.root.join("agent.json");
        let known = read_json::<Identity>(&path);
        if let Some(known) = known.as_ref().filter(|known| known.server != server && !self.run_dirs().is_empty()) {
            return Err(format!(
                "{} contains runs whose results {} has not received yet: start the agent for that server once more, or choose another --work-dir",
                self.root.display(),
                known.server
            ));
        }
        let name = given
            .or(known.as_ref().map(|known| known.name.as_str()))
            .map_or_else(|| format!("{}-{:06x}", hostname(), RandomState::new().hash_one(0) & 0xff_ffff), str::to_owned);
        if let Some(known) = known.as_ref().filter(|known| known.name != name && !self.run_dirs().is_empty()) {
            return Err(format!(
                "{} contains runs of the worker {} whose results the server has not received yet: start the agent without --name or with --name {} \
                 once more, or choose another --work-dir",
                self.root.display(),
                known.name,
                known.name
            ));
        }
        let identity = Identity { name, server: server.to_owned() };
        if known.as_ref() != Some(&identity) {
            let kept = write_json_durably(&path, &identity);
            kept.map_err(|error| format!("the agent's name can't be stored in {}: {error}", path.display()))?;
        }
        Ok(identity.name)
    }

    /// The instance of this agent, and whether it has registered before. A later process that uses the directory has the same instance and
    /// takes over the runs, because the lock and the machine's boot show that the earlier process has ended. A copy of the directory has
    /// another instance.
    ///
    /// # Errors
    /// The instance can't be stored.
    pub(crate) fn instance(&self) -> Result<(Uuid, bool), String> {
        let path = self.root.join("instance.json");
        let failed = |error: io::Error| format!("the agent's instance can't be stored in {}: {error}", path.display());
        let lock = self.lock.metadata().map_err(failed)?;
        let place = format!("{} {}:{}", boot(), lock.dev(), lock.ino());
        if let Some(known) = read_json::<KnownInstance>(&path).filter(|known| known.place == place) {
            return Ok((known.id, known.is_registered));
        }
        let id = Uuid::now_v7();
        write_json_durably(&path, &KnownInstance { id, place, is_registered: false }).map_err(failed)?;
        Ok((id, false))
    }

    /// Stores that the server has accepted the registration of the instance.
    pub(crate) fn registered(&self) {
        let path = self.root.join("instance.json");
        let Some(known) = read_json::<KnownInstance>(&path) else { return };
        // Without the note, the next start waits for its registration before it continues its runs.
        if let Err(error) = write_json(&path, &KnownInstance { is_registered: true, ..known }) {
            tracing::warn!(%error, "the registration could not be noted in the work directory");
        }
    }

    pub(crate) fn key_path(&self) -> PathBuf {
        self.root.join("key.json")
    }

    /// Stores a marker that keeps the agent from starting again, for example by a supervisor.
    pub(crate) fn uninstall(&self) {
        if let Err(error) = fs::write(self.uninstalled_path(), "") {
            tracing::warn!(%error, "the marker of the uninstall could not be stored; a supervisor may start this agent again");
        }
    }

    /// The marker file, if the agent was uninstalled.
    pub(crate) fn uninstalled(&self) -> Option<PathBuf> {
        Some(self.uninstalled_path()).filter(|path| path.exists())
    }

    fn uninstalled_path(&self) -> PathBuf {
        self.root.join("uninstalled")
    }

    pub(crate) fn contexts_dir(&self) -> PathBuf {
        self.root.join("contexts")
    }

    pub(crate) fn repositories_dir(&self) -> PathBuf {
        self.root.join("repositories")
    }

    pub(crate) fn reserve(&self) -> Reserve {
        Reserve::in_dir(&self.root)
    }

    pub(crate) fn accounts_path(&self) -> PathBuf {
        self.root.join("accounts.json")
    }

    /// Stores when the leases were renewed last, so that a later process knows which of them may have expired.
    pub(crate) fn renewed(&self, at: &Stamp) {
        // Not flushed to the disk: with an older time, a later process only assumes an earlier expiry.
        let stored = serde_json::to_vec(at).map_err(io::Error::other).and_then(|stamp| fs::write(self.root.join("renewed"), stamp));
        if let Err(error) = stored {
            tracing::warn!(%error, "the time of the last heartbeat could not be stored");
        }
    }

    pub(crate) fn renewed_at(&self) -> Option<Stamp> {
        let stored = fs::read_to_string(self.root.join("renewed")).ok()?;
        serde_json::from_str(&stored).ok()
    }

    pub(crate) fn run_dir(&self, lease: Uuid) -> PathBuf {
        self.root.join("runs").join(lease.to_string())
    }

    /// Moves the files of a run out of `runs` and returns their new path.
    ///
    /// # Errors
    /// They can't be moved.
    pub(crate) fn set_aside(&self, run: &Path) -> io::Result<PathBuf> {
        let dir = self.root.join("set-aside");
        private_dir(&dir)?;
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        // The time comes first, so that the names sort by age.
        let target = dir.join(format!("{}-{name}", now_ms()));
        fs::rename(run, &target)?;
        let mut kept: Vec<PathBuf> = fs::read_dir(&dir)?.flatten().map(|entry| entry.path()).collect();
        kept.sort();
        for old in kept.iter().rev().skip(MAX_SET_ASIDE) {
            if let Err(error) = remove_all(old) {
                tracing::warn!(path = %old.display(), %error, "the files of an old run could not be removed");
            }
        }
        Ok(target)
    }

    /// The file with the sandboxes' filter of system calls.
    pub(crate) fn syscall_filter(&self) -> PathBuf {
        self.root.join("system-calls.bpf")
    }

    /// The runs that an earlier process left.
    pub(crate) fn run_dirs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("runs")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

/// The name of this machine, at most 100 characters; `worker` if it has none.
pub fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().take(100).collect();
    if name.is_empty() { "worker".to_owned() } else { name }
}

/// Creates a directory that other users of the machine can't read, because prompts and answers are private.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&read_all(open_at(path).ok()?, MAX_JSON).ok()?).ok()
}

/// Replaces the file atomically, without a flush. This is enough for data about running processes: a power cut ends those as well.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, value).map(drop)
}

/// Like [`write_json`], but flushes to the disk before it returns. For data that must survive a power cut, such as results.
pub(crate) fn write_json_durably(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let file = replace(path, value)?;
    file.sync_all()?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn replace(path: &Path, value: &impl Serialize) -> io::Result<File> {
    replace_with(path, &serde_json::to_vec(value)?)
}

/// Replaces the file atomically, without a flush.
pub(crate) fn replace_with(path: &Path, content: &[u8]) -> io::Result<File> {
    let part = path.with_added_extension("part");
    // Only the agent's user may read the agent's files: they contain prompts, answers and a key.
    // Opening must not block on anything but a regular file: runs without a sandbox can put a pipe there.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(&part)?;
    file.write_all(content)?;
    fs::rename(&part, path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_agent_and_its_name_stays() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("agent");
        let home = Home::open(&root).unwrap();
        assert!(Home::open(&root).unwrap_err().contains("another agent"));
        let name = home.name(None, "http://a").unwrap();
        drop(home);
        let home = Home::open(&root).unwrap();
        assert_eq!(home.name(None, "http://a").unwrap(), name);
        assert_eq!(home.name(Some("box"), "http://a").unwrap(), "box");
        assert_eq!(home.name(None, "http://b").unwrap(), "box", "the name that was given last");
        private_dir(&home.run_dir(Uuid::nil())).unwrap();
        assert!(home.name(None, "http://a").unwrap_err().contains("http://b has not received"));
        assert!(home.name(Some("other"), "http://b").unwrap_err().contains("--name box"));
        assert_eq!(home.name(Some("box"), "http://b").unwrap(), "box");
    }

    #[test]
    fn a_copy_of_a_directory_is_another_instance() {
        let dir = tempfile::tempdir().unwrap();
        let (root, copied) = (dir.path().join("agent"), dir.path().join("copy"));
        let home = Home::open(&root).unwrap();
        let (instance, is_registered) = home.instance().unwrap();
        assert!(!is_registered);
        assert_eq!(home.instance().unwrap(), (instance, false));
        home.registered();
        drop(home);
        assert_eq!(Home::open(&root).unwrap().instance().unwrap(), (instance, true));
        let copy = Home::open(&copied).unwrap();
        fs::copy(root.join("instance.json"), copied.join("instance.json")).unwrap();
        let (other, is_registered) = copy.instance().unwrap();
        assert!(!is_registered && other != instance);
        assert_eq!(copy.instance().unwrap(), (other, false));
    }

    #[test]
    fn only_the_newest_of_unusable_runs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&dir.path().join("agent")).unwrap();
        let targets: Vec<_> = (0..MAX_SET_ASIDE + 2)
            .map(|n| {
                let run = home.run_dir(Uuid::from_u128(n as u128));
                private_dir(&run).unwrap();
                home.set_aside(&run).unwrap()
            })
            .collect();
        assert!(home.run_dirs().is_empty());
        let kept: Vec<_> = targets.iter().map(|target| target.exists()).collect();
        assert_eq!((kept.iter().filter(|kept| **kept).count(), kept.last()), (MAX_SET_ASIDE, Some(&true)));
        assert!(!kept[0]);
    }
}
