//! The supervisor of a run, as the agent sees it: started by this agent or by an earlier one.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::control::{Control, Order, Plan, SUPERVISOR, at, millis};
use super::invocation::Invocation;
use super::process::{KILL_LIMIT, Leader};
use super::run_dir::{RunDir, Running};
use super::verdict::Stop;

/// How much longer than its limits a supervisor may take, before the agent ends the run without it.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Watched {
    pub running: Running,
    /// `None` if an earlier version of the agent started the run, without a supervisor.
    control: Option<Control>,
    /// Until when the run may go on, as the supervisor was told.
    may_run_until: Option<Instant>,
    /// When the run must have ended, once it was told to end.
    must_have_ended: Option<Instant>,
}

/// A supervisor that waits until the agent has stored which process it is.
pub struct Started {
    pub leader: Leader,
    control: Control,
    go: ChildStdin,
}

/// Starts the supervisor of a run. `prepare` sets the environment.
pub fn start(
    dir: &RunDir,
    plan: &Plan,
    invocation: &Invocation,
    context_dir: &Path,
    prepare: impl FnOnce(&mut Command),
) -> io::Result<Started> {
    let control = Control::create(&dir.control())?;
    // The running program, also after the file was replaced by an update.
    let mut command = Command::new("/proc/self/exe");
    command.arg(SUPERVISOR).arg(serde_json::to_string(plan)?).arg(&invocation.program).args(invocation.args.iter().map(OsStr::new));
    command.current_dir(context_dir).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    prepare(&mut command);
    let mut child = command.spawn()?;
    let leader = i32::try_from(child.id()).ok().and_then(Leader::of);
    match (leader, child.stdin.take()) {
        (Some(leader), Some(go)) => Ok(Started { leader, control, go }),
        _ => Err(io::Error::other(format!("its supervisor ended with {}", child.wait()?))),
    }
}

impl Started {
    /// Lets the run begin. To be called when a later agent will find the supervisor.
    pub fn begin(mut self, running: Running) -> io::Result<Watched> {
        self.go.write_all(b"\n")?;
        Ok(Watched { running, control: Some(self.control), may_run_until: None, must_have_ended: None })
    }
}

impl Watched {
    pub fn adopted(dir: &RunDir, running: Running) -> Self {
        Self { running, control: Control::open(&dir.control()).ok(), may_run_until: None, must_have_ended: None }
    }

    pub fn has_ended(&self) -> bool {
        let Some(leader) = self.running.leader else { return true };
        // It may be a child of this process, which must wait for it then, also if it was started before an `exec`.
        if let Some(pid) = Pid::from_raw(leader.pid) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        !leader.is_alive()
    }

    /// Tells the supervisor until when the run may go on, if that has changed.
    pub fn renew(&mut self, until: Instant) {
        if self.may_run_until != Some(until)
            && let Some(control) = &mut self.control
            && control.send(&Order::Renew { until: at(until) }).is_ok()
        {
            self.may_run_until = Some(until);
        }
    }

    pub fn is_ending(&self) -> bool {
        self.must_have_ended.is_some()
    }

    /// Tells the supervisor to end the run.
    pub fn end(&mut self, reason: Option<Stop>, grace: Duration) {
        let order = Order::End { reason, grace: millis(grace) };
        let is_told = self.control.as_mut().is_some_and(|control| control.send(&order).is_ok());
        let patience = if is_told { grace + KILL_LIMIT + PATIENCE } else { Duration::ZERO };
        self.must_have_ended = Some(Instant::now() + patience);
    }

    /// Whether the supervisor has not ended the run in time. Then the agent must do it.
    pub fn is_overdue(&self) -> bool {
        self.must_have_ended.is_some_and(|limit| Instant::now() >= limit)
    }
}
