//! The messages of an agent to the supervisor of a run: at its start, and through a named pipe while the run continues.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde::{Deserialize, Serialize};

use crate::run::verdict::Stop;

/// The first argument that makes this program the supervisor of a run.
pub(crate) const SUPERVISOR: &str = "supervise-run";

/// What the supervisor of a run must know. Times are in milliseconds.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Plan {
    /// The directory of the run, and the number of the process in the run.
    pub dir: PathBuf,
    pub start: u32,
    pub timeout: u64,
    pub stall: u64,
    /// When the run must be ended unless the lease is renewed, on the [`boot_clock`](crate::machine::boot_clock).
    pub lease_until: u64,
    /// The maximum time by which a renewal extends the lease, because the run itself may write into the pipe.
    pub lease_ttl: u64,
    /// The time between SIGTERM and SIGKILL if the lease is not renewed.
    pub lease_grace: u64,
    pub cgroup: Option<PathBuf>,
    /// The file whose space is reserved for the end of the run when the disk is full.
    pub reserve: PathBuf,
    /// The program makes the sandbox of the run, and everything in the sandbox ends together with the program.
    pub makes_sandbox: bool,
    /// The agent trusts the program's output, so the tools that it starts must not be able to write to the same stream.
    pub prints_alone: bool,
}

/// One line in the pipe.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Order {
    /// The lease is renewed: the run may continue until this time.
    Renew { until: u64 },
    /// The run waits for a person, until this time at most. Meanwhile its time limits stand still. 0: it does not wait any more.
    Wait { until: u64 },
    /// The run must end. `grace` is the time between SIGTERM and SIGKILL.
    End { reason: Option<Stop>, grace: u64 },
}

/// The agent's end of the pipe.
#[derive(Debug)]
pub(crate) struct Control(File);

impl Control {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        if path.exists() {
            fs::remove_file(path)?;
        }
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        pipe(path).map(Self)
    }

    /// # Errors
    /// There is no pipe.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        pipe(path).map(Self)
    }

    /// # Errors
    /// The supervisor reads nothing, and the pipe is full.
    pub(crate) fn send(&mut self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        // The line is short enough for the kernel to write it as a whole or not at all.
        self.0.write_all(&line)
    }
}

/// Opens a named pipe for both directions. So neither side blocks, and what is written stays until it is read.
pub(crate) fn pipe(path: &Path) -> io::Result<File> {
    Ok(open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?.into())
}
