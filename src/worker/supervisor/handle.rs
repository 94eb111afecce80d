//! The agent's handle to the supervisor of a run, which this process of the agent or an earlier one has started.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::machine::boot_clock::{millis, now};
use crate::machine::process::{KILL_LIMIT, Leader};
use crate::run::invocation::Invocation;
use crate::run::run_dir::{RunDir, Running};
use crate::run::verdict::Stop;
use crate::supervisor::control::{Control, Order, Plan, SUPERVISOR};
use bloom_client::now_ms;

/// How much longer than its limits a supervisor may take before the agent ends the run itself.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) struct Watched {
    pub running: Running,
    /// `None`: the pipe can't be opened any more.
    control: Option<Control>,
    /// Until when the run may continue, as last sent to the supervisor.
    may_run_until: Option<u64>,
    /// Until when the run waits for a person, as last sent to the supervisor; `None`: this agent has sent nothing yet.
    waits_until: Option<u64>,
    /// When the run must have ended, once the supervisor has the order to end it.
    must_have_ended: Option<u64>,
}

/// A supervisor that waits until the agent has stored the supervisor's identity.
pub(crate) struct Started {
    process: Child,
    leader: Leader,
    control: Control,
    go: ChildStdin,
}

/// Starts the supervisor of a run. `prepare` sets the environment.
pub(crate) fn start(
    dir: &RunDir,
    plan: &Plan,
    invocation: &Invocation,
    context_dir: &Path,
    prepare: impl FnOnce(&mut Command),
) -> io::Result<Started> {
    let control = Control::create(&dir.control())?;
    // The running program, even if an update has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("bloom-runtime")
        .arg(SUPERVISOR)
        .arg(serde_json::to_string(plan)?)
        .arg(&invocation.program)
        .args(invocation.args.iter().map(OsStr::new));
    command.current_dir(context_dir).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    prepare(&mut command);
    let mut process = command.spawn()?;
    let leader = i32::try_from(process.id()).ok().and_then(Leader::of);
    match (leader, process.stdin.take()) {
        (Some(leader), Some(go)) => Ok(Started { process, leader, control, go }),
        _ => Err(io::Error::other(format!("its supervisor ended with {}", process.wait()?))),
    }
}

impl Started {
    /// Lets the run begin, after `keep` has stored the supervisor. So a later agent finds the run, or knows that there is none.
    pub(crate) fn begin(mut self, keep: impl FnOnce(Running) -> io::Result<()>) -> io::Result<Watched> {
        let running = Running { leader: self.leader, started_at: now_ms() };
        if let Err(error) = keep(running).and_then(|()| self.go.write_all(b"\n")) {
            let _ = self.process.kill();
            let _ = self.process.wait();
            return Err(error);
        }
        Ok(Watched { running, control: Some(self.control), may_run_until: None, waits_until: None, must_have_ended: None })
    }
}

impl Watched {
    pub(crate) fn adopted(dir: &RunDir, running: Running) -> Self {
        Self { running, control: Control::open(&dir.control()).ok(), may_run_until: None, waits_until: None, must_have_ended: None }
    }

    pub(crate) fn has_ended(&self) -> bool {
        let leader = self.running.leader;
        // The supervisor may be a child of this process, even if it was started before an `exec`. Then this process must reap it.
        if let Some(pid) = Pid::from_raw(leader.pid) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        !leader.is_alive()
    }

    /// Tells the supervisor until when the run may continue, if that has changed.
    pub(crate) fn renew(&mut self, until: u64) {
        if self.may_run_until != Some(until)
            && let Some(control) = &mut self.control
            && control.send(&Order::Renew { until }).is_ok()
        {
            self.may_run_until = Some(until);
        }
    }

    /// Tells the supervisor until when the run waits for a person, if that has changed.
    pub(crate) fn wait_until(&mut self, until: u64) {
        if self.waits_until != Some(until)
            && let Some(control) = &mut self.control
            && control.send(&Order::Wait { until }).is_ok()
        {
            self.waits_until = Some(until);
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.must_have_ended.is_some()
    }

    /// Tells the supervisor to end the run.
    pub(crate) fn end(&mut self, reason: Option<Stop>, grace: Duration) {
        let order = Order::End { reason, grace: millis(grace) };
        let is_told = self.control.as_mut().is_some_and(|control| control.send(&order).is_ok());
        let patience = if is_told { grace + KILL_LIMIT + PATIENCE } else { Duration::ZERO };
        self.must_have_ended = Some(now().saturating_add(millis(patience)));
    }

    /// Whether the supervisor has failed to end the run in time, so that the agent must end it.
    pub(crate) fn is_overdue(&self) -> bool {
        self.must_have_ended.is_some_and(|limit| now() >= limit)
    }
}
