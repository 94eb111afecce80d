//! The supervisor of one run: a small process that outlives the agent.
//!
//! It starts the run's program, copies the program's output to the run's files, ends the run at its limits, ends all of its processes that
//! are left, and stores how it ended. All processes of the run are descendants of the supervisor, however they were started, because it
//! adopts orphans. It is single-threaded and leads a session without a terminal.

pub(crate) mod cleanup;
pub(crate) mod control;
pub(crate) mod handle;
pub(crate) mod output;
pub(crate) mod wait_time;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, set_child_subreaper, setsid, wait};
use rustix::time::Timespec;

use crate::home::write_json;
use crate::machine::boot_clock::{millis, now};
use crate::machine::cgroup;
use crate::machine::process::{KILL_LIMIT, Listed, Signalled, TERM_GRACE};
use crate::machine::reserve::Reserve;
use crate::run::run_dir::{RunDir, RunEnd};
use crate::run::verdict::Stop;
use crate::supervisor::control::{Order, Plan, pipe};
use crate::supervisor::output::{output_file, output_stream, write_out};
use crate::supervisor::wait_time::Waits;

/// The interval at which orphans are reaped and the run's processes are listed.
const TICK: u64 = 1_000;
/// The same interval while the run is being ended.
const ENDING_TICK: u64 = 20;
const MAX_PRINTED: u64 = 1 << 30;
const PIECE: usize = 64 << 10;
/// How many bytes of output are stored after the disk was full. They use a part of the reserve; the rest is for the events and the end of
/// the run.
const LAST_WORDS: usize = 128 << 10;
/// The maximum number of pieces that are copied before the limits are checked again.
const PIECES: usize = 64;
/// No order is longer.
const MAX_ORDERS: usize = 64 << 10;

/// Runs the program of the command line.
///
/// # Errors
/// The arguments are not from an agent, or the end of the run can't be stored.
pub(crate) fn run() -> io::Result<()> {
    let mut words = std::env::args_os().skip(2);
    let plan: Plan = serde_json::from_slice(words.next().unwrap_or_default().as_bytes())?;
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    // The agent writes a byte once it has stored the identity of this process. If the agent dies before, another agent starts the run.
    if io::stdin().read(&mut [0])? == 0 {
        return Ok(());
    }
    let dir = RunDir::new(plan.dir.clone());
    let reserve = Reserve::at(plan.reserve.clone());
    let end = match Supervisor::start(&plan, &dir, &reserve, words) {
        Ok(supervisor) => supervisor.run_to_end(),
        Err(error) => RunEnd { not_started: Some(error.to_string()), ..RunEnd::default() },
    };
    if let Some(leaf) = &plan.cgroup {
        cgroup::remove(leaf);
    }
    reserve.helps(|| dir.keep_end(plan.start, &end))
}

struct Supervisor<'a> {
    plan: &'a Plan,
    dir: &'a RunDir,
    reserve: &'a Reserve,
    main: Pid,
    /// Readable when the program has ended; `None` after that.
    main_end: Option<OwnedFd>,
    streams: Vec<Stream>,
    orders: File,
    /// The beginning of an order that has not completely arrived.
    begun: Vec<u8>,
    stops_at: u64,
    lease_until: u64,
    waits: Waits,
    last_output: u64,
    printed: u64,
    /// How many bytes may still be stored when the disk is full.
    last_words: usize,
    listed: (u64, Listed),
    has_processes: bool,
    ending: Option<Ending>,
    end: RunEnd,
}

/// A stream of the program's output, and its file.
struct Stream {
    from: File,
    to: File,
}

/// The state of a run that is being ended.
struct Ending {
    kill_at: u64,
    gives_up_at: u64,
    next_look: u64,
    signalled: Signalled,
}

impl<'a> Supervisor<'a> {
    fn start(plan: &'a Plan, dir: &'a RunDir, reserve: &'a Reserve, mut words: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let orders = pipe(&dir.control())?;
        let mut command = Command::new(words.next().unwrap_or_default());
        let (stdout, theirs) = output_stream(plan.prints_alone)?;
        command.args(words).process_group(0).stdin(File::open(dir.prompt())?).stdout(theirs).stderr(Stdio::piped());
        let files = [output_file(&dir.stdout(plan.start))?, output_file(&dir.stderr(plan.start))?];
        let mut child = in_cgroup(plan.cgroup.as_deref(), || command.spawn())?;
        let main = Pid::from_child(&child);
        // Closes this process's end of the output, so that the output ends with the run.
        drop(command);
        let outputs = [Some(stdout), child.stderr.take().map(OwnedFd::from)];
        let mut streams = Vec::new();
        for (from, to) in outputs.into_iter().flatten().zip(files) {
            fcntl_setfl(&from, OFlags::NONBLOCK)?;
            streams.push(Stream { from: from.into(), to });
        }
        let began = now();
        Ok(Self {
            plan,
            dir,
            reserve,
            main,
            main_end: pidfd_open(main, PidfdFlags::empty()).ok(),
            streams,
            orders,
            begun: Vec::new(),
            stops_at: began.saturating_add(plan.timeout),
            lease_until: plan.lease_until,
            waits: Waits::new(began),
            last_output: began,
            printed: 0,
            last_words: LAST_WORDS,
            listed: (0, Listed::default()),
            has_processes: true,
            ending: None,
            end: RunEnd::default(),
        })
    }

    fn run_to_end(mut self) -> RunEnd {
        loop {
            self.wait();
            self.copy();
            self.follow_orders();
            self.reap();
            self.check_limits();
            if self.is_over() {
                break;
            }
            self.list();
        }
        // Copies the last output. A process that could not be ended may still write, so this does not wait for the end of the streams.
        self.copy();
        for stream in &self.streams {
            if let Err(error) = stream.to.sync_data() {
                self.end.unstored.get_or_insert(error.to_string());
            }
        }
        self.end.is_clean = !self.has_processes;
        self.end.out_of_memory = self.plan.cgroup.as_deref().is_some_and(cgroup::ran_out_of_memory);
        self.end
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let own = [self.stops_at, self.last_output.saturating_add(self.plan.stall)];
        let limits = [self.lease_until, now() + TICK].into_iter().chain(own.into_iter().filter(|_| !self.waits.is_waiting()));
        let until = match &self.ending {
            Some(ending) => ending.next_look,
            None => limits.min().unwrap_or_default(),
        };
        let left = until.saturating_sub(now()).min(TICK);
        let limit = Timespec { tv_sec: (left / 1000).cast_signed(), tv_nsec: (left % 1000).cast_signed() * 1_000_000 };
        let mut sources = vec![PollFd::new(&self.orders, PollFlags::IN)];
        sources.extend(self.main_end.iter().map(|end| PollFd::new(end, PollFlags::IN)));
        sources.extend(self.streams.iter().map(|stream| PollFd::from_borrowed_fd(stream.from.as_fd(), PollFlags::IN)));
        // An error, such as an interruption by a signal, only means that the wait is over.
        let _ = poll(&mut sources, Some(&limit));
    }

    /// Copies what the program has printed. Output that can't be stored is dropped, so that the program does not block while it is being
    /// ended.
    fn copy(&mut self) {
        let mut piece = [0; PIECE];
        let mut at = 0;
        while let Some(stream) = self.streams.get_mut(at) {
            let mut is_open = true;
            for _ in 0..PIECES {
                match stream.from.read(&mut piece) {
                    Ok(0) => is_open = false,
                    Ok(length) => {
                        self.last_output = now();
                        self.printed += length as u64;
                        if self.end.unstored.is_some() {
                            self.last_words = self.last_words.saturating_sub(length);
                        }
                        if self.printed <= MAX_PRINTED && self.last_words > 0 {
                            let mut rest = &piece[..length];
                            // When the disk is full, the run is ended, and its last output is stored in the space of the reserve.
                            let _ = self.reserve.helps(|| {
                                write_out(&mut stream.to, &mut rest).inspect_err(|error| {
                                    self.end.unstored.get_or_insert(error.to_string());
                                })
                            });
                        }
                        continue;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => is_open = error.kind() == io::ErrorKind::WouldBlock,
                }
                break;
            }
            if is_open {
                at += 1;
            } else {
                // All writers have closed the stream, so its file is complete. A failed flush is noticed at the next one.
                let _ = self.streams.remove(at).to.sync_data();
            }
        }
    }

    fn follow_orders(&mut self) {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = self.orders.read(&mut piece) {
            self.begun.extend_from_slice(&piece[..length]);
            if self.begun.len() > MAX_ORDERS {
                self.begun.clear();
            }
        }
        while let Some(length) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=length).collect();
            match serde_json::from_slice(&line) {
                Ok(Order::Renew { until }) => self.lease_until = until.min(now().saturating_add(self.plan.lease_ttl)),
                Ok(Order::Wait { until }) => {
                    let waited = self.waits.set_until(until, now());
                    self.postpone(waited);
                }
                Ok(Order::End { reason, grace }) => self.stop(reason, grace),
                // The order is from a later version of the agent, and unknown to this one. The limits of the run stay in force.
                Err(_) => {}
            }
        }
    }

    /// Reaps processes that have ended: the program, and adopted orphans.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    self.end.exit = Some(shown(status));
                    self.main_end = None;
                    self.begin_end(millis(TERM_GRACE));
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                // There is no child, and so no process of the run.
                Err(_) => {
                    self.has_processes = false;
                    return;
                }
            }
        }
    }

    /// Moves the time limits of the run by the time that it has waited for a person.
    fn postpone(&mut self, waited: u64) {
        self.stops_at = self.stops_at.saturating_add(waited);
        self.last_output = self.last_output.saturating_add(waited);
    }

    fn check_limits(&mut self) {
        let now = now();
        let waited = self.waits.passed(now);
        self.postpone(waited);
        if now >= self.lease_until {
            // This also applies while the run ends for another reason, because another worker gets the task soon.
            self.stop(Some(Stop::LeaseLost), self.plan.lease_grace);
        }
        if self.ending.is_some() {
            return;
        }
        let silent = now.saturating_sub(self.last_output) >= self.plan.stall;
        let limits = [
            (self.end.unstored.is_some(), Stop::Unstored),
            (self.printed > MAX_PRINTED, Stop::Flooded),
            (now >= self.stops_at, Stop::Timeout),
            (silent, Stop::Stalled),
        ];
        if let Some((_, reason)) = limits.into_iter().find(|(is_reached, _)| *is_reached) {
            self.stop(Some(reason), millis(TERM_GRACE));
        }
    }

    /// Stops the run. If it is stopped more than once, the first reason and the shortest grace count.
    fn stop(&mut self, reason: Option<Stop>, grace: u64) {
        if self.ending.is_none() {
            self.end.stop = reason;
        }
        // The Claude CLI would take a signal for a denial of its question, and could still succeed.
        self.begin_end(if self.waits.is_waiting() { 0 } else { grace });
    }

    fn begin_end(&mut self, grace: u64) {
        let now = now();
        let kill_at = now.saturating_add(grace);
        // If the program that made the sandbox were signalled, the kernel would kill everything in the sandbox at once. It ends by itself
        // when the others have ended.
        let spared = self.plan.makes_sandbox.then_some(self.main.as_raw_nonzero().get());
        let signalled = || Signalled::sparing(spared);
        let ending = self.ending.get_or_insert_with(|| Ending { kill_at, gives_up_at: 0, next_look: now, signalled: signalled() });
        ending.kill_at = ending.kill_at.min(kill_at);
        ending.gives_up_at = ending.kill_at.saturating_add(millis(KILL_LIMIT));
    }

    /// Signals the processes of a run that is being ended. Returns true if none is left, or if they can't be ended.
    fn is_over(&mut self) -> bool {
        let Some(ending) = &mut self.ending else { return false };
        if !self.has_processes {
            return true;
        }
        let now = now();
        if now < ending.next_look {
            return false;
        }
        ending.next_look = now + ENDING_TICK;
        let own = getpid().as_raw_nonzero().get();
        let is_killed = now >= ending.kill_at;
        if let (true, Some(leaf)) = (is_killed, &self.plan.cgroup) {
            cgroup::kill(leaf);
        }
        ending.signalled.signal_below(own, if is_killed { Signal::KILL } else { Signal::TERM });
        now >= ending.gives_up_at
    }

    /// Stores the list of the run's process groups, for an agent that must end them after this process was killed. A run with a cgroup
    /// needs no list.
    fn list(&mut self) {
        if self.plan.cgroup.is_some() || now() < self.listed.0 {
            return;
        }
        let listed = Listed::below(getpid().as_raw_nonzero().get());
        if listed != self.listed.1 && write_json(&self.dir.listed(), &listed).is_err() {
            return;
        }
        self.listed = (now() + TICK, listed);
    }
}

/// Starts a child in the cgroup. This process enters the cgroup first, because a child starts in the cgroup of its parent.
fn in_cgroup<T>(leaf: Option<&Path>, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Some(leaf) = leaf else { return start() };
    let own: PathBuf = cgroup::own()?;
    cgroup::enter(leaf)?;
    let started = start();
    cgroup::enter(&own)?;
    started
}

fn shown(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}
