//! What the directories of contexts take on the disk: the limit of a run, and which run filled a disk that is full.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use super::Agent;
use super::disk_size::{HIDDEN, is_larger, size_of, used};
use super::home::Home;
use super::login::Login;
use super::process::{Leader, descendants_of};
use super::profile::Profile;
use super::run_dir::{Record, RunDir};
use super::verdict::Stop;
use bloom_core::Ms;

/// The time between two measurements at least, and in terms of what one takes: a large directory is measured less often.
const MEASURE_EVERY: Duration = Duration::from_secs(2);
const REST: u32 = 20;
/// A run that wrote less than this has not filled a disk.
const NOTHING_MUCH: u64 = 1 << 20;

/// The directories that runs of a context write: where they work, their repository, and their sessions in a sandbox.
pub fn dirs_of(home: &Home, context_id: &str) -> Vec<PathBuf> {
    let dirs = [home.context_dir(context_id), home.sandboxed_sessions(context_id)];
    dirs.into_iter().chain(home.context_repositories(context_id)).collect()
}

/// Whether the directories of the context take more than this.
pub async fn is_over(home: &Home, context_id: &str, limit: u64) -> bool {
    let dirs = dirs_of(home, context_id);
    spawn_blocking(move || is_larger(dirs, limit)).await.unwrap_or_default()
}

fn dirs_of_run(home: &Home, record: &Record) -> Vec<PathBuf> {
    let temp = RunDir::new(home.run_dir(record.lease.id)).temp();
    dirs_of(home, &record.task.context_id).into_iter().chain([temp]).collect()
}

/// What files take that the run has removed and still has open, or mapped into memory: by their device and number, each once.
fn held_open(leader: Option<Leader>, dirs: &[PathBuf]) -> u64 {
    let mut sizes = BTreeMap::<(u64, u64), u64>::new();
    for pid in leader.map(|leader| descendants_of(leader.pid)).unwrap_or_default() {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        // That of the open file, not of the link.
        let files = open.filter_map(|entry| fs::metadata(entry.path()).ok()).filter(|about| about.is_file() && about.nlink() == 0);
        sizes.extend(files.map(|about| ((about.dev(), about.ino()), size_of(&about))));
        for Mapped { range, inode, end } in mapped(&fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default(), dirs) {
            // Only the privileged may look at the file itself. For others it is as large as what is mapped of it.
            match fs::metadata(format!("/proc/{pid}/map_files/{range}")) {
                Ok(about) => _ = sizes.insert((about.dev(), about.ino()), size_of(&about)),
                Err(_) if sizes.keys().any(|(_, known)| *known == inode) => {}
                Err(_) => _ = sizes.entry((0, inode)).and_modify(|size| *size = end.max(*size)).or_insert(end),
            }
        }
    }
    sizes.into_values().fold(0, u64::saturating_add)
}

/// A part of a removed file in the memory of a process.
#[derive(Debug, PartialEq)]
struct Mapped<'a> {
    range: &'a str,
    inode: u64,
    /// Up to which byte of the file.
    end: u64,
}

/// Those of `/proc/PID/maps` that were in the directories: not programs that were replaced by newer ones meanwhile.
fn mapped<'a>(maps: &'a str, dirs: &[PathBuf]) -> impl Iterator<Item = Mapped<'a>> {
    maps.lines().filter_map(|line| {
        let (about, path) = line.strip_suffix(" (deleted)")?.split_once('/')?;
        let is_within = |dir: &PathBuf| Path::new("/").join(path).starts_with(dir);
        let mut words = about.split_whitespace();
        let (range, offset) = (words.next()?, words.nth(1)?);
        let inode = words.nth(1)?.parse().ok()?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (from, to) = range.split_once('-')?;
        let end = hex(offset)?.saturating_add(hex(to)?.saturating_sub(hex(from)?));
        dirs.iter().any(is_within).then_some(Mapped { range, inode, end })
    })
}

/// Measures the directories of a run while it goes on, if its profile limits them, and looks after its login.
pub struct DiskLimit {
    limit: u64,
    used: Arc<AtomicU64>,
    login: Option<Arc<Login>>,
    task: Option<JoinHandle<()>>,
}

impl Drop for DiskLimit {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}

impl DiskLimit {
    /// `leader`: the supervisor of the run.
    pub fn start(home: &Home, record: &Record, leader: Option<Leader>, profile: &Profile) -> Self {
        let (given, used) = (profile.limits.disk_bytes(), Arc::<AtomicU64>::default());
        let limit = given.unwrap_or(u64::MAX);
        let login = Login::of(profile).map(Arc::new);
        let dirs = if given.is_some() { dirs_of_run(home, record) } else { Vec::new() };
        let task = (given.is_some() || login.is_some()).then(|| tokio::spawn(measure(dirs, leader, login.clone(), limit, used.clone())));
        Self { limit, used, login, task }
    }

    /// The reason to stop the run now.
    pub fn exceeded(&self) -> Option<Stop> {
        (self.used.load(Ordering::Relaxed) > self.limit).then_some(Stop::DiskLimit)
    }

    /// Puts the login right. To be called when no process of the run is left.
    pub async fn end(mut self) {
        if let Some(login) = self.login.take() {
            spawn_blocking(move || login.repair()).await.unwrap_or_else(|error| tracing::error!(%error, "the login was not looked at"));
        }
    }
}

async fn measure(dirs: Vec<PathBuf>, leader: Option<Leader>, login: Option<Arc<Login>>, limit: u64, told: Arc<AtomicU64>) {
    loop {
        let (dirs, login, began) = (dirs.clone(), login.clone(), Instant::now());
        let measured = spawn_blocking(move || {
            let held = if dirs.is_empty() { 0 } else { held_open(leader, &dirs) };
            let size = used(dirs, Ms::MIN, limit, HIDDEN).saturating_add(held);
            size.saturating_add(login.map_or(0, |login| login.look()))
        });
        if let Ok(size) = measured.await {
            told.fetch_max(size, Ordering::Relaxed);
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

    #[test]
    fn a_removed_file_that_is_mapped_counts() {
        let maps = "7f0000001000-7f0000003000 rw-s 00002000 08:01 77                         /ctx/large file (deleted)\n\
                    7f0000005000-7f0000006000 r--p 00000000 08:01 78                         /ctx/kept\n\
                    7f0000007000-7f0000008000 r-xp 00000000 08:01 79                         /usr/bin/node (deleted)\n\
                    7f0000009000-7f000000a000 rw-p 00000000 00:00 0 \n";
        let found: Vec<Mapped<'_>> = mapped(maps, &["/ctx".into()]).collect();
        assert_eq!(found, [Mapped { range: "7f0000001000-7f0000003000", inode: 77, end: 0x4000 }]);
    }
}
