//! The disk usage of contexts' directories: the limit of a run, and which run has filled a full disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

use crate::Agent;
use crate::claude::login::Login;
use crate::home::Home;
use crate::machine::disk_size::held::held_open;
use crate::machine::disk_size::{HIDDEN, is_larger, used};
use crate::machine::process::{Leader, descendants_of};
use crate::profile::Profile;
use crate::run::run_dir::{Record, RunDir};
use crate::run::verdict::Stop;
use bloom_core::Ms;

/// The minimum time between two measurements, also as a multiple of what one takes: large directories are measured less often.
const MEASURE_EVERY: Duration = Duration::from_secs(2);
const REST: u32 = 20;
/// A run that wrote less than this is not to blame for a full disk.
const NOTHING_MUCH: u64 = 1 << 20;

/// The directories that the runs of a context write: their working directory, their repository, and their sessions in a sandbox.
pub(crate) fn dirs_of(home: &Home, context_id: &str) -> Vec<PathBuf> {
    let dirs = [home.context_dir(context_id), home.sandboxed_sessions(context_id)];
    dirs.into_iter().chain(home.context_repositories(context_id)).collect()
}

/// Whether the directories of the context take more than this limit.
pub(crate) async fn is_over(home: &Home, context_id: &str, limit: u64) -> bool {
    let dirs = dirs_of(home, context_id);
    spawn_blocking(move || is_larger(dirs, limit)).await.unwrap_or_default()
}

fn dirs_of_run(home: &Home, record: &Record) -> Vec<PathBuf> {
    let run = RunDir::new(home.run_dir(record.lease.id));
    dirs_of(home, &record.task.context_id).into_iter().chain([run.temp(), run.questions().asked()]).collect()
}

/// Measures the directories of a run while it continues, if its profile limits them, and protects its login file.
pub(crate) struct DiskLimit {
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
    pub(crate) fn start(home: &Home, record: &Record, leader: Leader, profile: &Profile) -> Self {
        let (given, used) = (profile.limits.disk_bytes(), Arc::<AtomicU64>::default());
        let limit = given.unwrap_or(u64::MAX);
        let login = Login::of(profile).map(Arc::new);
        let dirs = if given.is_some() { dirs_of_run(home, record) } else { Vec::new() };
        let task = (given.is_some() || login.is_some()).then(|| tokio::spawn(measure(dirs, leader, login.clone(), limit, used.clone())));
        Self { limit, used, login, task }
    }

    /// The reason to stop the run now.
    pub(crate) fn exceeded(&self) -> Option<Stop> {
        (self.used.load(Ordering::Relaxed) > self.limit).then_some(Stop::DiskLimit)
    }

    /// Repairs the login file. To be called when no process of the run is left.
    pub(crate) async fn end(mut self) {
        if let Some(login) = self.login.take() {
            spawn_blocking(move || login.repair()).await.unwrap_or_else(|error| tracing::error!(%error, "the login was not looked at"));
        }
    }
}

async fn measure(dirs: Vec<PathBuf>, leader: Leader, login: Option<Arc<Login>>, limit: u64, told: Arc<AtomicU64>) {
    loop {
        let (dirs, login, began, place) = (dirs.clone(), login.clone(), Instant::now(), dirs.first().cloned());
        let free_before = place.as_deref().and_then(free);
        let measured = spawn_blocking(move || {
            let processes = descendants_of(leader.pid);
            let held = if dirs.is_empty() { 0 } else { held_open(&processes, &dirs) };
            let size = used(dirs, Ms::MIN, limit, HIDDEN).saturating_add(held);
            size.saturating_add(login.map_or(0, |login| login.look(&processes)))
        });
        let size = measured.await.unwrap_or_default();
        told.fetch_max(size, Ordering::Relaxed);
        let until = Instant::now() + MEASURE_EVERY.max(began.elapsed() * REST);
        while Instant::now() < until {
            tokio::time::sleep(MEASURE_EVERY).await;
            // If more space has disappeared from the disk than the run may still use, the run may have used it.
            let gone = free_before.zip(place.as_deref().and_then(free)).map(|(before, now)| before.saturating_sub(now));
            if gone.is_some_and(|gone| gone > limit.saturating_sub(size)) {
                break;
            }
        }
    }
}

/// The free bytes of the file system.
fn free(place: &Path) -> Option<u64> {
    rustix::fs::statvfs(place).ok().map(|about| about.f_bfree.saturating_mul(about.f_frsize))
}

/// Why a run was ended whose output could not be stored. It is to blame if it has written more into its directories than any other run on
/// this machine.
pub(crate) async fn full_disk(agent: &Arc<Agent>, lease: Uuid) -> Stop {
    let agent = agent.clone();
    let is_to_blame = spawn_blocking(move || {
        let written: Vec<(Uuid, u64)> = records(&agent.home).map(|record| (record.lease.id, written(&agent.home, &record))).collect();
        let most = written.into_iter().max_by_key(|(_, bytes)| *bytes);
        most.is_some_and(|(most, bytes)| most == lease && bytes >= NOTHING_MUCH)
    });
    if is_to_blame.await.unwrap_or_default() { Stop::DiskFilled } else { Stop::Unstored }
}

/// The records of the runs on this machine.
fn records(home: &Home) -> impl Iterator<Item = Record> {
    home.run_dirs().into_iter().filter_map(|dir| RunDir::new(dir).record().ok())
}

fn written(home: &Home, record: &Record) -> u64 {
    record.process.map_or(0, |running| used(dirs_of_run(home, record), running.started_at, u64::MAX, HIDDEN))
}
