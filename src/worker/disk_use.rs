//! What the directories of contexts take on the disk: the limit of a run, and which run filled a disk that is full.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use super::Agent;
use super::home::Home;
use super::process::{Leader, descendants_of};
use super::run_dir::{Record, RunDir};
use super::verdict::Stop;
use super::walk::{Next, Seen, walk};
use bloom_core::Ms;

/// The time between two measurements at least, and in terms of what one takes: a large directory is measured less often.
const MEASURE_EVERY: Duration = Duration::from_secs(2);
const REST: u32 = 20;
/// Files and directories of one context; more count as any size.
const MAX_ENTRIES: usize = 5_000_000;
/// `st_blocks` counts these, whatever the file system's own blocks are.
const BLOCK: u64 = 512;
/// A run that wrote less than this has not filled a disk.
const NOTHING_MUCH: u64 = 1 << 20;

/// What a run keeps from being measured counts as any size, where the run is to blame for it.
const HIDDEN: u64 = u64::MAX;

/// The directories that runs of a context write: where they work, their repository, and their sessions in a sandbox.
pub fn dirs_of(home: &Home, context_id: &str) -> Vec<PathBuf> {
    let dirs = [home.context_dir(context_id), home.sandboxed_sessions(context_id)];
    dirs.into_iter().chain(home.context_repositories(context_id)).collect()
}

fn dirs_of_run(home: &Home, record: &Record) -> Vec<PathBuf> {
    let temp = RunDir::new(home.run_dir(record.lease.id)).temp();
    dirs_of(home, &record.task.context_id).into_iter().chain([temp]).collect()
}

/// What the files below the directories take on the disk that have changed since then, until it is more than `enough`. Links are not followed,
/// a file with several names counts once. `unreadable` is what each directory counts as that can't be looked at.
pub fn used(dirs: Vec<PathBuf>, since: Ms, enough: u64, unreadable: u64) -> u64 {
    let (mut used, mut linked) = (0_u64, BTreeSet::new());
    for dir in dirs {
        let is_whole = walk(&dir, MAX_ENTRIES, |seen| {
            let Seen::Entry { about, .. } = seen else {
                used = used.saturating_add(unreadable);
                return if used > enough { Next::Stop } else { Next::Past };
            };
            if !about.is_dir() && about.nlink() > 1 && !linked.insert((about.dev(), about.ino())) {
                return Next::Past;
            }
            // The time is in whole seconds.
            if about.ctime().saturating_add(1).saturating_mul(1000) >= since {
                used = used.saturating_add(about.blocks().saturating_mul(BLOCK));
            }
            if used > enough { Next::Stop } else { Next::Into }
        });
        if !is_whole {
            return if used > enough { used } else { u64::MAX };
        }
    }
    used
}

/// What files take that the run has removed and still has open: by their device and number, each once.
fn held_open(leader: Option<Leader>) -> u64 {
    let pids = leader.map(|leader| descendants_of(leader.pid)).unwrap_or_default();
    let dirs = pids.into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}/fd")));
    let open = dirs.flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    // That of the open file, not of the link.
    let files = open.filter_map(|entry| std::fs::metadata(entry.path()).ok()).filter(|about| about.is_file() && about.nlink() == 0);
    let sizes: BTreeMap<(u64, u64), u64> = files.map(|about| ((about.dev(), about.ino()), about.blocks().saturating_mul(BLOCK))).collect();
    sizes.into_values().fold(0, u64::saturating_add)
}

/// Measures the directories of a run while it goes on, if its profile limits them.
pub struct DiskLimit {
    limit: u64,
    used: Arc<AtomicU64>,
    task: Option<JoinHandle<()>>,
}

impl Drop for DiskLimit {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}

impl DiskLimit {
    /// `leader`: the supervisor of the run.
    pub fn start(home: &Home, record: &Record, leader: Option<Leader>, mib: Option<u64>) -> Self {
        let (limit, used) = (mib.map_or(u64::MAX, |mib| mib << 20), Arc::<AtomicU64>::default());
        let task = mib.map(|_| tokio::spawn(measure(dirs_of_run(home, record), leader, limit, used.clone())));
        Self { limit, used, task }
    }

    /// The reason to stop the run now.
    pub fn exceeded(&self) -> Option<Stop> {
        (self.used.load(Ordering::Relaxed) > self.limit).then_some(Stop::DiskLimit)
    }
}

async fn measure(dirs: Vec<PathBuf>, leader: Option<Leader>, limit: u64, told: Arc<AtomicU64>) {
    loop {
        let (dirs, began) = (dirs.clone(), Instant::now());
        if let Ok(used) = spawn_blocking(move || used(dirs, Ms::MIN, limit, HIDDEN).saturating_add(held_open(leader))).await {
            told.store(used, Ordering::Relaxed);
        }
        tokio::time::sleep(MEASURE_EVERY.max(began.elapsed() * REST)).await;
    }
}

/// Why a run was ended whose output could not be stored: it is to blame if it has written more into its directories than any other run here.
pub async fn full_disk(agent: &Arc<Agent>, lease: Uuid) -> Stop {
    let agent = agent.clone();
    let is_to_blame = spawn_blocking(move || {
        let written: Vec<(Uuid, u64)> = records(&agent.home).map(|record| (record.lease.id, written(&agent.home, &record))).collect();
        let most = written.into_iter().max_by_key(|(_, bytes)| *bytes);
        most.is_some_and(|(most, bytes)| most == lease && bytes >= NOTHING_MUCH)
    });
    if is_to_blame.await.unwrap_or_default() { Stop::DiskFilled } else { Stop::Unstored }
}

/// The runs that are here.
fn records(home: &Home) -> impl Iterator<Item = Record> {
    home.run_dirs().into_iter().filter_map(|dir| RunDir::new(dir).record().ok())
}

fn written(home: &Home, record: &Record) -> u64 {
    record.process.map_or(0, |running| used(dirs_of_run(home, record), running.started_at, u64::MAX, HIDDEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run could hide files there.
    #[test]
    fn what_can_not_be_looked_at_counts_as_any_size() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let deeper = "d".repeat(200);
        let mut below = std::fs::File::open(&top).unwrap();
        for _ in 0..30 {
            rustix::fs::mkdirat(&below, &deeper, rustix::fs::Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::DIRECTORY;
            below = rustix::fs::openat(&below, &deeper, flags, rustix::fs::Mode::empty()).unwrap().into();
        }
        assert_eq!(used(vec![top.clone()], Ms::MIN, u64::MAX - 1, HIDDEN), u64::MAX);
        // Nobody's files are removed because they can't be measured.
        assert!(used(vec![top.clone()], Ms::MIN, u64::MAX - 1, 0) < 1 << 20);
        crate::removal::remove_all(&top).unwrap();
        assert_eq!(used(vec![top], Ms::MIN, 0, HIDDEN), 0, "nothing is there");
    }

    #[test]
    fn what_is_on_the_disk_counts_once() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (temp.path().join("dir"), temp.path().join("elsewhere"));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("large"), vec![1; 4 << 20]).unwrap();
        std::fs::write(dir.join("sub/one"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(dir.join("sub/one"), dir.join("two")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.join("link")).unwrap();
        std::fs::File::create(dir.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let measured = |since, enough| used(vec![dir.clone(), temp.path().join("none")], since, enough, HIDDEN);
        let all = measured(Ms::MIN, u64::MAX);
        assert!((1 << 20..2 << 20).contains(&all), "{all}");
        assert_eq!(measured(bloom_client::now_ms() + 60_000, u64::MAX), 0);
        assert!(measured(Ms::MIN, 0) > 0);
    }
}
