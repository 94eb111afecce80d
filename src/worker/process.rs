//! Finds and ends all processes of a run, also those whose parents have ended.
//!
//! A run's first process leads a process group, and all its descendants have the id of the run's lease in their environment. By this id, a
//! later agent also finds the processes that left the group.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use procfs::process::{Process, Stat, all_processes};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The environment variable with the lease id, set in every process of a run.
pub const LEASE_VARIABLE: &str = "BLOOM_LEASE_ID";
/// The environment variable with the directory of the agent that started the run, set in every process of a run.
pub const HOME_VARIABLE: &str = "BLOOM_AGENT_HOME";
const POLL_EVERY: Duration = Duration::from_millis(50);
/// How long to wait after SIGKILL. A process ends at once, unless it is blocked in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// The first process of a run. Its start time distinguishes it from a later process with the same pid.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Leader {
    pub pid: i32,
    /// In clock ticks since the machine's boot.
    pub start: u64,
}

impl Leader {
    pub fn of(pid: i32) -> Option<Self> {
        stat_of(pid).map(|stat| Self { pid, start: stat.starttime })
    }

    pub fn is_alive(&self) -> bool {
        stat_of(self.pid).is_some_and(|stat| stat.starttime == self.start)
    }
}

fn stat_of(pid: i32) -> Option<Stat> {
    Process::new(pid).ok().and_then(|process| living_stat(&process))
}

/// `None` for a zombie: it has ended, and only its parent has not waited for it yet.
fn living_stat(process: &Process) -> Option<Stat> {
    process.stat().ok().filter(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Ends a run's processes with SIGTERM, and after the grace with SIGKILL. Returns false if some are still alive.
pub async fn end(leader: Option<Leader>, task: Uuid, lease: &str, grace: Duration) -> bool {
    // No process of a run is older than the first one.
    let since = leader.map_or(0, |leader| leader.start);
    // If the leader has ended, another process may have its pid. Then only processes with the lease in their environment are ended.
    let leader = leader.filter(|leader| stat_of(leader.pid).is_none_or(|stat| stat.starttime == leader.start));
    let is_of_run = |process: &Process, stat: &Stat| {
        stat.starttime >= since && (leader.is_some_and(|leader| belongs(stat, leader)) || has(process, LEASE_VARIABLE, lease.as_bytes()))
    };
    let left = end_all(is_of_run, grace).await;
    if !left.is_empty() {
        tracing::error!(%task, lease, processes = ?left, "these processes of a run could not be ended");
    }
    left.is_empty()
}

/// Ends the processes that earlier agents of this directory left behind, except for those of the leases in `keep`.
pub async fn sweep(home: &Path, keep: &[String]) -> bool {
    let is_orphan = |process: &Process, _: &Stat| {
        process.environ().is_ok_and(|environment| {
            let value = |name: &str| environment.get(OsStr::new(name));
            value(HOME_VARIABLE).is_some_and(|of| of == home.as_os_str())
                && value(LEASE_VARIABLE).is_some_and(|lease| !keep.iter().any(|kept| kept.as_bytes() == lease.as_bytes()))
        })
    };
    let left = end_all(is_orphan, Duration::from_secs(2)).await;
    if !left.is_empty() {
        tracing::error!(processes = ?left, "these processes of earlier runs could not be ended");
    }
    left.is_empty()
}

/// Finds the first process of a run that was not recorded: it leads a process group and has the lease in its environment.
pub fn find_leader(lease: &str) -> Option<Leader> {
    let leads = |process: &Process, stat: &Stat| stat.pgrp == process.pid && has(process, LEASE_VARIABLE, lease.as_bytes());
    living(leads).into_iter().filter_map(Leader::of).min_by_key(|leader| leader.start)
}

/// Returns those that are still alive.
async fn end_all(is_meant: impl Fn(&Process, &Stat) -> bool, grace: Duration) -> Vec<i32> {
    let began = Instant::now();
    let mut asked: Vec<i32> = Vec::new();
    loop {
        let left = living(&is_meant);
        if left.is_empty() {
            return left;
        }
        let waited = began.elapsed();
        if waited > grace + KILL_LIMIT {
            return left;
        }
        let is_over = waited >= grace;
        for pid in left {
            // New processes may start while others end.
            if is_over || !asked.contains(&pid) {
                asked.push(pid);
                signal(pid, if is_over { Signal::KILL } else { Signal::TERM });
            }
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

fn signal(pid: i32, signal: Signal) {
    let Some(target) = Pid::from_raw(pid) else { return };
    // Fails if the process has ended meanwhile, which is fine.
    let _ = kill_process(target, signal);
    let leads_group = Process::new(pid).and_then(|process| process.stat()).is_ok_and(|stat| stat.pgrp == pid);
    if leads_group {
        let _ = kill_process_group(target, signal);
    }
}

fn living(is_meant: impl Fn(&Process, &Stat) -> bool) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let processes = all_processes().into_iter().flatten().flatten().filter(|process| process.pid != own);
    let meant = processes.filter(|process| living_stat(process).is_some_and(|stat| is_meant(process, &stat)));
    meant.map(|process| process.pid).collect()
}

/// Whether it is the leader, or in the leader's process group.
fn belongs(stat: &Stat, leader: Leader) -> bool {
    if stat.pid == leader.pid { stat.starttime == leader.start } else { stat.pgrp == leader.pid }
}

fn has(process: &Process, name: &str, value: &[u8]) -> bool {
    process.environ().is_ok_and(|environment| environment.get(OsStr::new(name)).is_some_and(|found| found.as_bytes() == value))
}
