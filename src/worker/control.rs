//! What an agent tells the supervisor of a run: at its start, and by a named pipe while the run goes on.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::verdict::Stop;

/// The first argument that makes this program the supervisor of a run.
pub const SUPERVISOR: &str = "supervise-run";

/// What the supervisor of a run must know. Times are in milliseconds.
#[derive(Debug, Deserialize, Serialize)]
pub struct Plan {
    /// The directory of the run, and the number of the process in it.
    pub dir: PathBuf,
    pub start: u32,
    pub timeout: u64,
    pub stall: u64,
    /// When the run must be ended unless the lease is renewed, on the clock of [`now`].
    pub lease_until: u64,
    /// The time between SIGTERM and SIGKILL if the lease is not renewed.
    pub lease_grace: u64,
    pub cgroup: Option<PathBuf>,
}

/// One line in the pipe.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub enum Order {
    /// The lease is renewed: the run may go on until this time.
    Renew { until: u64 },
    /// The run must end. `grace` is the time between SIGTERM and SIGKILL.
    End { reason: Option<Stop>, grace: u64 },
}

/// The agent's end of the pipe.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    pub fn create(path: &Path) -> io::Result<Self> {
        if path.exists() {
            fs::remove_file(path)?;
        }
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        pipe(path).map(Self)
    }

    /// # Errors
    /// There is no pipe: an earlier version of the agent started the run.
    pub fn open(path: &Path) -> io::Result<Self> {
        pipe(path).map(Self)
    }

    /// # Errors
    /// The supervisor reads nothing, and the pipe is full.
    pub fn send(&mut self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        // The line is shorter than what the kernel writes as a whole or not at all.
        self.0.write_all(&line)
    }
}

/// Opens a named pipe for both directions, so that neither side waits for the other, and what is written stays until it is read.
pub fn pipe(path: &Path) -> io::Result<File> {
    Ok(open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Milliseconds since the machine's boot, also those in which it slept. All processes have the same clock.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}

/// The time on the clock of [`now`].
pub fn at(time: Instant) -> u64 {
    now() + millis(time.saturating_duration_since(Instant::now()))
}

pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
