//! Finds and ends the processes of runs.
//!
//! A run's supervisor is the ancestor of all processes of the run. If it ends before them, they are found through the process groups that
//! it listed, through the run's cgroup, and through the lease id in their environment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use procfs::ProcError;
use procfs::process::{Process, Stat, all_processes};
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, kill_process, kill_process_group, test_kill_process_group, waitpid};
use serde::{Deserialize, Serialize};

use crate::machine::boot_clock::boot;

/// The environment variable with the lease id, set in every process of a run.
pub(crate) const LEASE_VARIABLE: &str = "BLOOM_LEASE_ID";
/// The environment variable with the directory of the agent that started the run, set in every process of a run.
pub(crate) const HOME_VARIABLE: &str = "BLOOM_AGENT_HOME";
/// The time between SIGTERM and SIGKILL.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(5);
/// How long to wait after SIGKILL. A process ends at once, unless it is blocked in the kernel.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(5);
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A process that leads a process group. Its start time distinguishes it from a later process with the same pid.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Leader {
    pub pid: i32,
    /// In clock ticks since the machine's boot.
    pub start: u64,
}

impl Leader {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        stat_of(pid).map(|stat| Self { pid, start: stat.starttime })
    }

    /// Also true if the answer is unknown, for example because this process may open no more files: a run that may be alive must not be
    /// started again.
    pub(crate) fn is_alive(&self) -> bool {
        match Process::new(self.pid).and_then(|process| process.stat()) {
            Ok(stat) => is_living(&stat) && stat.starttime == self.start,
            Err(error) => !matches!(error, ProcError::NotFound(_)),
        }
    }

    /// Whether the process is the leader, or in the leader's process group.
    fn has(&self, stat: &Stat) -> bool {
        if stat.pid == self.pid { stat.starttime == self.start } else { stat.pgrp == self.pid && stat.starttime >= self.start }
    }

    /// Whether the group has processes. This includes processes that a scan of all processes may miss, because they keep forking meanwhile.
    fn has_group(&self) -> bool {
        let Some(group) = Pid::from_raw(self.pid) else { return false };
        // A child of this process stays in its group until it is reaped.
        let _ = waitpid(Some(group), WaitOptions::NOHANG);
        !self.is_replaced() && test_kill_process_group(group).is_ok()
    }

    /// Whether another process got the pid after the leader ended.
    fn is_replaced(&self) -> bool {
        stat_of(self.pid).is_some_and(|stat| stat.starttime != self.start)
    }
}

/// The process groups of a run, as its supervisor last saw them.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Listed {
    /// The machine's boot and the pid namespace in which the pids are valid.
    world: String,
    pub groups: Vec<Leader>,
}

impl Listed {
    /// The groups of all descendants of the process.
    pub(crate) fn below(ancestor: i32) -> Self {
        let all = living();
        let mut groups = BTreeMap::new();
        for stat in descendants(&all, BTreeSet::from([ancestor])).iter().filter(|stat| stat.pid != ancestor && stat.pgrp != ancestor) {
            let start = groups.entry(stat.pgrp).or_insert(stat.starttime);
            *start = stat.starttime.min(*start);
        }
        Self { world: world(), groups: groups.into_iter().map(|(pid, start)| Leader { pid, start }).collect() }
    }

    /// The groups, if their pids are still valid.
    pub(crate) fn current(self) -> Vec<Leader> {
        if self.world == world() { self.groups } else { Vec::new() }
    }
}

fn world() -> String {
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot(), namespace.display())
}

fn stat_of(pid: i32) -> Option<Stat> {
    Process::new(pid).ok().and_then(|process| living_stat(&process))
}

fn living_stat(process: &Process) -> Option<Stat> {
    process.stat().ok().filter(is_living)
}

/// False for a zombie, which has ended but was not reaped by its parent yet. A zombie that still has other threads is alive: only its first
/// thread has ended.
fn is_living(stat: &Stat) -> bool {
    match stat.state {
        'X' => false,
        'Z' => stat.num_threads > 1,
        _ => true,
    }
}

fn living() -> Vec<Stat> {
    all_processes().into_iter().flatten().flatten().filter_map(|process| living_stat(&process)).collect()
}

/// The processes in `all` that are roots or descend from one.
fn descendants(all: &[Stat], roots: BTreeSet<i32>) -> Vec<&Stat> {
    let mut found = roots;
    loop {
        let known = found.len();
        found.extend(all.iter().filter(|stat| found.contains(&stat.ppid)).map(|stat| stat.pid).collect::<Vec<_>>());
        if found.len() == known {
            return all.iter().filter(|stat| found.contains(&stat.pid)).collect();
        }
    }
}

/// The descendants of this process.
pub(crate) fn descendants_of(ancestor: i32) -> Vec<i32> {
    let all = living();
    descendants(&all, BTreeSet::from([ancestor])).iter().map(|stat| stat.pid).filter(|pid| *pid != ancestor).collect()
}

/// The processes and groups that were signalled to end a run.
#[derive(Debug, Default)]
pub(crate) struct Signalled {
    processes: BTreeSet<i32>,
    groups: BTreeSet<i32>,
    /// A process that gets no SIGTERM, and whose group gets none either.
    spared: Option<i32>,
}

impl Signalled {
    pub(crate) fn sparing(spared: Option<i32>) -> Self {
        Self { spared, ..Self::default() }
    }

    /// Signals all descendants of `ancestor` that have not received the signal yet.
    pub(crate) fn signal_below(&mut self, ancestor: i32, signal: Signal) {
        let all = living();
        self.signal(descendants(&all, BTreeSet::from([ancestor])).into_iter().filter(|stat| stat.pid != ancestor), signal);
    }

    /// SIGKILL is sent to all processes each time. SIGTERM is sent to each process once, and not to processes that it starts after that,
    /// because it needs those to end properly: the commands of a shell's trap, or the hooks of the Claude CLI.
    fn signal<'a>(&mut self, stats: impl Iterator<Item = &'a Stat>, signal: Signal) {
        if signal == Signal::KILL {
            *self = Self::default();
        }
        let (earlier, spared) = (self.processes.clone(), self.spared);
        for stat in stats.filter(|stat| !earlier.contains(&stat.ppid) && spared != Some(stat.pid)) {
            if self.processes.insert(stat.pid)
                && let Some(target) = Pid::from_raw(stat.pid)
            {
                // Sending fails if the process has ended meanwhile, which is fine.
                let _ = kill_process(target, signal);
            }
            self.signal_group(stat.pgrp, signal);
        }
    }

    /// A signal to the group prevents a process from avoiding signals by replacing itself with a child again and again. The group of this
    /// process gets no signal.
    fn signal_group(&mut self, id: i32, signal: Signal) {
        if id != getpgrp().as_raw_nonzero().get() && self.spared != Some(id) && self.groups.insert(id) {
            send_to_group(id, signal);
        }
    }
}

/// What identifies the remaining processes of a run.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// The run's supervisor, and the groups of its processes.
    pub leaders: Vec<Leader>,
    pub lease: String,
}

/// Ends the processes of a run with SIGTERM, and after the grace with SIGKILL. Returns those that are still alive.
pub(crate) async fn end(marks: &Marks, grace: Duration) -> Vec<i32> {
    // If a leader has ended, its pid may belong to another process, and the group with its id is another one.
    let leaders: Vec<&Leader> = marks.leaders.iter().filter(|leader| !leader.is_replaced()).collect();
    let is_of_run = |stat: &Stat| leaders.iter().any(|leader| leader.has(stat)) || has_lease(stat.pid, &marks.lease);
    end_all(is_of_run, &leaders, grace).await
}

/// Ends the processes that earlier agents of this directory left behind, except for those of the leases in `keep`.
pub(crate) async fn sweep(home: &Path, keep: &[String]) {
    let is_orphan = |stat: &Stat| {
        let environment = environment(stat.pid);
        value(&environment, HOME_VARIABLE).is_some_and(|of| of == home.as_os_str().as_bytes())
            && value(&environment, LEASE_VARIABLE).is_some_and(|lease| !keep.iter().any(|kept| kept.as_bytes() == lease))
    };
    let left = end_all(is_orphan, &[], Duration::from_secs(2)).await;
    if !left.is_empty() {
        tracing::error!(processes = ?left, "these processes of earlier runs could not be ended");
    }
}

/// Ends these groups, the matching processes, and all of their descendants. Returns those that are still alive.
async fn end_all(is_meant: impl Fn(&Stat) -> bool, groups: &[&Leader], grace: Duration) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let began = Instant::now();
    // All processes found so far, with their start times. When the parent of a process has ended, this may be the only evidence that it
    // belongs to the run.
    let mut seen: BTreeMap<i32, u64> = BTreeMap::new();
    let mut signalled = Signalled::default();
    loop {
        let all: Vec<Stat> = living().into_iter().filter(|stat| stat.pid != own).collect();
        let is_root = |stat: &&Stat| seen.get(&stat.pid) == Some(&stat.starttime) || is_meant(stat);
        let left = descendants(&all, all.iter().filter(is_root).map(|stat| stat.pid).collect());
        let waited = began.elapsed();
        let groups: Vec<i32> = groups.iter().filter(|group| group.has_group()).map(|group| group.pid).collect();
        if (left.is_empty() && groups.is_empty()) || waited > grace + KILL_LIMIT {
            return left.iter().map(|stat| stat.pid).chain(groups).collect();
        }
        let signal = if waited >= grace { Signal::KILL } else { Signal::TERM };
        seen.extend(left.iter().map(|stat| (stat.pid, stat.starttime)));
        signalled.signal(left.into_iter(), signal);
        groups.into_iter().for_each(|group| signalled.signal_group(group, signal));
        tokio::time::sleep(POLL_EVERY).await;
    }
}

pub(crate) fn send_to_group(id: i32, signal: Signal) {
    if let Some(target) = Pid::from_raw(id) {
        let _ = kill_process_group(target, signal);
    }
}

/// The processes with this lease in their environment, and their descendants.
pub(crate) fn of_lease(lease: &str) -> Vec<i32> {
    let all = living();
    descendants(&all, all.iter().filter(|stat| has_lease(stat.pid, lease)).map(|stat| stat.pid).collect())
        .iter()
        .map(|stat| stat.pid)
        .collect()
}

fn has_lease(pid: i32, lease: &str) -> bool {
    value(&environment(pid), LEASE_VARIABLE) == Some(lease.as_bytes())
}

/// The environment with which a process was started. If its first thread has ended, only the other threads still show it.
fn environment(pid: i32) -> Vec<u8> {
    let read = |path: PathBuf| fs::read(path).ok().filter(|bytes| !bytes.is_empty());
    let of_process = read(format!("/proc/{pid}/environ").into());
    of_process.or_else(|| threads(pid).find_map(|thread| read(thread.join("environ")))).unwrap_or_default()
}

fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The directories of a process's threads. Each one lists its own open files and memory, because a thread may have some that it shares with
/// no other thread.
pub(crate) fn threads(pid: i32) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().map(|entry| entry.path())
}
