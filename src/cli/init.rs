//! The first process of a container or another namespace of processes.
//!
//! The kernel makes this process the parent of every process whose own parent has ended. It must wait for these processes when they end,
//! otherwise they stay in the process table. So the command itself runs as a child of this process.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, exit};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use bloom_commands::CommandError;

/// Runs this program again as a child with the same arguments, forwards signals to it, and exits with its status.
pub async fn run() -> Result<(), CommandError> {
    let failed = |error: std::io::Error| CommandError::from(format!("the first process can't do its work: {error}"));
    // Registered before the child starts, so that no signal is missed.
    let mut ends = signal(SignalKind::child()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let child = Command::new("/proc/self/exe").arg0("bloom-runtime").args(std::env::args_os().skip(1)).spawn().map_err(failed)?;
    let child = Pid::from_child(&child);
    loop {
        let passed_on = tokio::select! {
            _ = ends.recv() => None,
            _ = terminate.recv() => Some(Signal::TERM),
            _ = interrupt.recv() => Some(Signal::INT),
            _ = hangup.recv() => Some(Signal::HUP),
        };
        if let Some(signal) = passed_on {
            // This fails if the child has ended, which is noticed next.
            let _ = kill_process(child, signal);
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == child {
                let status = ExitStatus::from_raw(status.as_raw());
                exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()));
            }
        }
    }
}
