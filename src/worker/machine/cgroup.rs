//! The cgroups of runs, in a version 2 hierarchy.
//!
//! A process can't leave its cgroup without rights on the hierarchy, and `cgroup.kill` ends all processes of a cgroup at once. The agent
//! makes cgroups where it may: below its own cgroup, or beside it if its own is named [`SUBGROUP`]. Limits need the second case, because
//! only a cgroup without processes can distribute memory among others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use procfs::process::Process;
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

/// The name of the agent's own cgroup if the cgroup above it is delegated to the agent (`DelegateSubgroup=` of systemd).
const SUBGROUP: &str = "agent";
/// The period of a CPU limit, in microseconds.
const CPU_PERIOD: f64 = 100_000.0;

/// 16 TiB.
const MAX_MEMORY_MIB: u64 = 16 << 20;
/// 1 PiB.
const MAX_DISK_MIB: u64 = 1 << 30;
const MAX_CPUS: f64 = 4096.0;

/// The limits of a run, from its profile.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// In MiB, without swap.
    pub memory_mib: Option<u64>,
    /// The number of processors that the run may use on average.
    pub cpus: Option<f64>,
    /// The maximum number of processes and threads.
    pub max_processes: Option<u64>,
    /// The disk usage of a context's directories, in MiB. The agent measures it, without a cgroup.
    pub disk_mib: Option<u64>,
}

impl Limits {
    /// `disk_mib` in bytes.
    pub fn disk_bytes(&self) -> Option<u64> {
        self.disk_mib.map(|mib| mib << 20)
    }

    pub fn check(&self) -> Result<(), String> {
        if self.memory_mib.is_some_and(|mib| mib == 0 || mib > MAX_MEMORY_MIB) {
            return Err(format!("limits.memory_mib must be 1 to {MAX_MEMORY_MIB}"));
        }
        // The kernel's minimum CPU time per period is one millisecond.
        if self.cpus.is_some_and(|cpus| !(0.01..=MAX_CPUS).contains(&cpus)) {
            return Err(format!("limits.cpus must be 0.01 to {MAX_CPUS}"));
        }
        if self.max_processes.is_some_and(|max| max == 0) {
            return Err("limits.max_processes must be 1 or more".into());
        }
        if self.disk_mib.is_some_and(|mib| mib == 0 || mib > MAX_DISK_MIB) {
            return Err(format!("limits.disk_mib must be 1 to {MAX_DISK_MIB}"));
        }
        Ok(())
    }

    fn needed(&self) -> Vec<&'static str> {
        let needed = [("memory", self.memory_mib.is_some()), ("cpu", self.cpus.is_some()), ("pids", self.max_processes.is_some())];
        needed.into_iter().filter(|(_, is_needed)| *is_needed).map(|(name, _)| name).collect()
    }
}

/// The cgroup in which the cgroups of runs are made.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    path: PathBuf,
    /// The controllers that are available below it.
    controllers: Vec<String>,
}

impl Parent {
    /// # Errors
    /// The agent may make no cgroups; the text says why.
    pub(crate) fn find() -> Result<Self, String> {
        let own = own().map_err(|error| error.to_string())?;
        let delegated = own.parent().filter(|_| own.file_name().is_some_and(|name| name == SUBGROUP)).map(Path::to_owned);
        let is_root = !own.join("cgroup.type").exists();
        if let Some(path) = delegated.or_else(|| is_root.then(|| own.clone()))
            && may_make(&path).is_ok()
        {
            let offered = fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
            for name in ["memory", "cpu", "pids"].into_iter().filter(|name| offered.split_whitespace().any(|offered| offered == *name)) {
                // Each controller is enabled separately. One that can't be enabled is missing in what is read next.
                let _ = fs::write(path.join("cgroup.subtree_control"), format!("+{name}"));
            }
            let enabled = fs::read_to_string(path.join("cgroup.subtree_control")).unwrap_or_default();
            return Ok(Self { path, controllers: enabled.split_whitespace().map(str::to_owned).collect() });
        }
        may_make(&own).map_err(|error| format!("{}: {error}", own.display()))?;
        Ok(Self { path: own, controllers: Vec::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the cgroup of a run.
    pub(crate) fn leaf(&self, lease: &str) -> PathBuf {
        self.path.join(format!("bloom-run-{lease}"))
    }
}

/// Makes the cgroup of a run.
pub(crate) fn make(leaf: &Path, limits: &Limits) -> io::Result<()> {
    fs::create_dir(leaf)?;
    if let Some(mib) = limits.memory_mib {
        fs::write(leaf.join("memory.max"), (mib << 20).to_string())?;
        // The file does not exist without swap.
        let swap = leaf.join("memory.swap.max");
        if swap.exists() {
            fs::write(swap, "0")?;
        }
    }
    if let Some(cpus) = limits.cpus {
        fs::write(leaf.join("cpu.max"), format!("{:.0} {CPU_PERIOD:.0}", cpus * CPU_PERIOD))?;
    }
    if let Some(max) = limits.max_processes {
        fs::write(leaf.join("pids.max"), max.to_string())?;
    }
    Ok(())
}

/// The controllers that the limits need but that are missing; empty if all limits can be enforced.
pub(crate) fn missing(parent: Option<&Parent>, limits: &Limits) -> Vec<&'static str> {
    let has = |name: &str| parent.is_some_and(|parent| parent.controllers.iter().any(|controller| controller == name));
    limits.needed().into_iter().filter(|name| !has(name)).collect()
}

/// The cgroup of this process.
pub(crate) fn own() -> io::Result<PathBuf> {
    let none = |why: &str| io::Error::new(io::ErrorKind::NotFound, why);
    let process = Process::myself().map_err(io::Error::other)?;
    let mounts = process.mountinfo().map_err(io::Error::other)?;
    let mount = mounts.into_iter().find(|mount| mount.fs_type == "cgroup2").ok_or_else(|| none("no hierarchy of cgroups v2 is mounted"))?;
    let groups = process.cgroups().map_err(io::Error::other)?;
    let own = groups.into_iter().find(|group| group.hierarchy == 0).ok_or_else(|| none("this process is in no cgroup v2"))?;
    let below = own.pathname.strip_prefix(mount.root.as_str()).filter(|below| !below.contains("..")).unwrap_or_default();
    Ok(mount.mount_point.join(below.trim_start_matches('/')))
}

/// Checks that a process can be moved from this cgroup to a new one below it, and that the new one can be killed.
fn may_make(dir: &Path) -> io::Result<()> {
    access(dir.join("cgroup.procs"), Access::WRITE_OK)?;
    let probe = dir.join(format!("bloom-probe-{}", std::process::id()));
    fs::create_dir(&probe)?;
    let can_kill = access(probe.join("cgroup.kill"), Access::WRITE_OK);
    fs::remove_dir(&probe)?;
    Ok(can_kill?)
}

/// Moves this process into the cgroup.
pub(crate) fn enter(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.procs"), "0")
}

/// The processes in the cgroup. Empty if the cgroup no longer exists.
pub(crate) fn members(leaf: &Path) -> Vec<i32> {
    let mut found: Vec<i32> = fs::read_to_string(leaf.join("cgroup.procs")).unwrap_or_default().lines().flat_map(str::parse).collect();
    below(leaf).iter().for_each(|dir| found.extend(members(dir)));
    found
}

/// Ends all processes in the cgroup at once.
pub(crate) fn kill(leaf: &Path) {
    // Writing fails if the cgroup no longer exists, which is fine.
    let _ = fs::write(leaf.join("cgroup.kill"), "1");
    // `cgroup.kill` signals the first thread of each process. If that thread has ended, the others stay alive, and only a signal to the
    // whole process ends them.
    for pid in members(leaf).into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Whether the kernel ended a process of the cgroup because there was not enough memory.
pub(crate) fn ran_out_of_memory(leaf: &Path) -> bool {
    is_out_of_memory(&fs::read_to_string(leaf.join("memory.events")).unwrap_or_default())
}

fn is_out_of_memory(events: &str) -> bool {
    events.lines().filter_map(|line| line.strip_prefix("oom_kill ")).any(|count| count.trim() != "0")
}

/// Removes the cgroup, including those that the run made in it. They must contain no processes.
pub(crate) fn remove(leaf: &Path) {
    below(leaf).iter().for_each(|dir| remove(dir));
    if let Err(error) = fs::remove_dir(leaf)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(cgroup = %leaf.display(), %error, "the cgroup of a run could not be removed");
    }
}

fn below(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kill_for_memory_counts() {
        assert!(is_out_of_memory("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n"));
        assert!(!is_out_of_memory("low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\noom_group_kill 3\n"));
        assert!(!is_out_of_memory(""));
    }

    #[test]
    fn limits_name_what_they_need() {
        let parent = Parent { path: PathBuf::new(), controllers: vec!["cpu".into(), "pids".into()] };
        let limits = Limits { memory_mib: Some(1), cpus: Some(0.5), disk_mib: Some(1), ..Limits::default() };
        assert_eq!(missing(Some(&parent), &limits), ["memory"]);
        assert_eq!(missing(None, &limits), ["memory", "cpu"]);
        assert!(missing(None, &Limits::default()).is_empty());
    }
}
