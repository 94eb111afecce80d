//! One run, from its lease to its verdict.

pub(crate) mod disk_use;
pub(crate) mod echo;
pub(crate) mod files;
pub(crate) mod invocation;
pub(crate) mod prompt;
pub(crate) mod question_files;
pub(crate) mod question_relay;
pub(crate) mod resume;
pub(crate) mod run_dir;
pub(crate) mod run_limits;
pub(crate) mod spool;
pub(crate) mod stderr;
pub(crate) mod task;
pub(crate) mod traced_run;
pub(crate) mod verdict;
pub(crate) mod workspace;

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::{oneshot, watch};

use crate::Agent;
use crate::claude::stream::{Found, Reading};
use crate::contexts::session::{self, Ended, OnSessionLost, RunSession, SessionRecord};
use crate::home::private_dir;
use crate::machine::boot_clock::millis;
use crate::machine::environment;
use crate::machine::open_below::fresh_at;
use crate::machine::process::{HOME_VARIABLE, LEASE_VARIABLE, TERM_GRACE};
use crate::machine::program::find_program;
use crate::profile::{Profile, Runner};
use crate::run::disk_use::DiskLimit;
use crate::run::invocation::{Conversation, Invocation, RunFiles, TEMP_VARIABLES, claude_environment};
use crate::run::question_files::PermissionTool;
use crate::run::question_relay::Asking;
use crate::run::run_dir::{Record, RunDir};
use crate::run::run_limits::{Limits, lease_grace};
use crate::run::spool::{EventLog, Position, Tail};
use crate::run::stderr::Stderr;
use crate::run::verdict::{End, Stop, Verdict, decide, not_started};
use crate::run::workspace::{Unprepared, Workspace, tree};
use crate::sandbox::egress::{Egress, WayOut};
use crate::sandbox::run_command::sandboxed;
use crate::supervisor::cleanup;
use crate::supervisor::control::Plan;
use crate::supervisor::handle::{self, Started, Watched};
use bloom_api::values::Usd;
use bloom_client::now_ms;
use bloom_core::task::{Reason, Session};

/// The interval at which a run's output is read.
const TICK: Duration = Duration::from_millis(50);
/// The interval at which streamed text is stored as events.
const STORE_EVERY: Duration = Duration::from_millis(200);
const STDERR_TAIL: u64 = 2_000;

pub(crate) struct Run<'a> {
    pub agent: &'a Arc<Agent>,
    pub dir: &'a RunDir,
    pub log: &'a mut EventLog,
    pub stop: watch::Receiver<Option<Stop>>,
}

impl Run<'_> {
    /// Runs the task, or watches a run that an earlier agent started, and returns its verdict. Afterwards no process of the run is left.
    pub(crate) async fn run_to_end(&mut self, mut record: Record) -> Verdict {
        let (task, lease) = (record.task.clone(), record.lease.id);
        let profiles = &self.agent.settings.profiles;
        // A process keeps the profile with which it was started.
        let kept = record.profile.clone().filter(|_| record.process.is_some());
        let kept = kept.and_then(|name| Some((name.clone(), profiles.named(&name)?.clone())));
        let Some((name, profile)) = kept.or_else(|| self.agent.profile_now(&task.agent_slug)) else {
            // The run may have been started by an earlier agent that had the profile.
            cleanup::end(self.dir, record.process.map(|running| running.leader), &lease.to_string(), TERM_GRACE).await;
            let why = format!("this worker has no profile for the agent {}", task.agent_slug);
            return not_started(lease, Reason::SpawnFailed, &why, true);
        };
        let resumable = profile.runner == Runner::Claude && task.session == Session::Context;
        let program = profile.program().display().to_string();
        record.session = record.session.filter(|_| resumable);
        let mut adopted = record.process;
        let mut lost = None;
        loop {
            let watched = match adopted.take() {
                Some(running) => Watched::adopted(self.dir, running),
                None => {
                    if !self.agent.is_ours(lease, &mut self.stop).await {
                        let end = End { stop: *self.stop.borrow(), ..End::default() };
                        return decide(&task, lease, &Reading::default(), &end, now_ms());
                    }
                    match self.workspace().prepare(&mut record, &profile).await {
                        Ok(()) => {}
                        Err(Unprepared::Failed(verdict)) => return *verdict,
                        Err(Unprepared::Stopped) => continue,
                    }
                    // Not earlier: by now the previous run of the context, for which this one has waited, has left its session.
                    if resumable {
                        let (mut session, ended) = self.next_session(&record, lost.take(), &program);
                        if let Some(ended) = ended {
                            if profile.on_session_lost == OnSessionLost::Fail && !ended.by_person {
                                return not_started(lease, ended.reason, &session::refusal(&task.context_id, &ended), false);
                            }
                            self.log.phase(ended.phase, ended.event());
                            session.record.warning = ended.warning();
                        }
                        self.keep_session(&session.record);
                        record.session = Some(session);
                    }
                    record.profile = Some(name.clone());
                    match self.start(&mut record, &profile).await {
                        Ok(watched) => watched,
                        Err(verdict) => return self.agent.learn((&name, &profile), &task, false, *verdict, &mut self.stop).await,
                    }
                }
            };
            let (mut reading, end) = self.watch(&record, &profile, watched).await;
            let resumed = record.session.as_ref().filter(|session| session.is_resumed);
            if let Some(session) = resumed.filter(|_| session::is_gone(&reading, &end)) {
                lost = Some(session.record.clone());
                continue;
            }
            let warning = record.session.as_ref().and_then(|session| session.record.warning.as_ref());
            warning.iter().for_each(|warning| reading.warnings.add(warning));
            let mut verdict = decide(&record.task, lease, &reading, &end, now_ms());
            if let Some(session) = &record.session {
                self.keep_session(&session.after_run(&task, &reading, &mut verdict));
            } else if task.session == Session::Context
                && let (Some(kept), Some(told)) = (self.agent.home.session(&task.context_id), &reading.session_id)
            {
                // The server takes this session for the conversation of the context, but the next run of the Claude CLI continues its own
                // session.
                self.keep_session(&SessionRecord { after: Some(told.clone()), ..kept });
            }
            let verdict = self.workspace().take_results(&record, &profile, verdict).await;
            return self.agent.learn((&name, &profile), &task, true, verdict, &mut self.stop).await;
        }
    }

    fn workspace(&mut self) -> Workspace<'_> {
        Workspace { agent: self.agent, dir: self.dir, log: self.log, stop: self.stop.clone() }
    }

    fn next_session(&self, record: &Record, lost: Option<SessionRecord>, program: &str) -> (RunSession, Option<Ended>) {
        let kept = self.agent.home.session(&record.task.context_id);
        RunSession::next(kept, lost, program, &record.task, &record.lease)
    }

    fn keep_session(&self, session: &SessionRecord) {
        if let Err(error) = self.agent.home.keep_session(session) {
            tracing::warn!(task = %self.log.task, context = session.context_id, %error, "the session could not be stored; the next task of the context starts a new one");
        }
    }

    /// Starts the process. If that fails, the error is the verdict.
    async fn start(&mut self, record: &mut Record, profile: &Profile) -> Result<Watched, Box<Verdict>> {
        let lease = record.lease.id;
        // The rest of the task's budget, after earlier attempts.
        if let Some(left) = record.lease.budget_left {
            if left <= 0.0 {
                let why = "earlier attempts have left nothing of the task's budget";
                return Err(Box::new(not_started(lease, Reason::BudgetExceeded, why, false)));
            }
            record.task.policy.budget = Usd(left);
        }
        record.task.policy.limit_by(profile.timeout_sec, &record.lease);
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Box::new(not_started(lease, Reason::SpawnFailed, &format!("{what}: {error}"), true))
        };
        let context_dir = self.agent.home.context_dir(&record.task.context_id);
        let of_sandbox = self.agent.home.sandboxed_sessions(&record.task.context_id);
        if profile.sandbox.is_some() {
            private_dir(&of_sandbox).map_err(|error| failed("the sandbox can't be prepared", &error))?;
        } else if of_sandbox.exists() {
            // Files of sandboxed runs, such as git settings, could be executed outside of the sandbox.
            let why = "earlier runs of this context were in a sandbox, and this agent's profile has none: use another context, or give the profile a sandbox";
            return Err(Box::new(not_started(lease, Reason::AgentError, why, false)));
        }
        let resumed = record.session.as_ref().filter(|session| session.is_resumed);
        let (resumes, resumed) = (resumed.is_some_and(|session| session.was_open), resumed.is_some());
        let conversation = Conversation::of(record.session.as_ref());
        // Reading files blocks, and must not delay other runs.
        let (task, dir) = (record.task.clone(), context_dir.clone());
        // Not a thread of the async runtime, which panics if no thread can be started.
        let (composed, text) = oneshot::channel();
        let started = std::thread::Builder::new().spawn(move || drop(composed.send(prompt::compose(&task, &dir, resumes))));
        started.map_err(|error| failed("the prompt can't be composed", &error))?;
        let text = text.await.map_err(|error| failed("the prompt can't be composed", &error))?;
        let text = text.map_err(|why| Box::new(not_started(lease, Reason::AgentError, &why, false)))?;
        let profiles_dir = &self.agent.settings.profiles.dir;
        let program = find_program(&profile.program(), profiles_dir)
            .ok_or_else(|| failed(&profile.program().display().to_string(), &"the program does not exist or is not executable"))?;
        fresh_at(&self.dir.prompt())
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| failed("the prompt can't be written", &error))?;
        let prompt = self.dir.prompt();
        let tool = profile.ask_human.then(|| PermissionTool::prepare(self.dir.questions())).transpose();
        let tool = tool.map_err(|error| failed("a person can't be asked", &error))?;
        let git_dirs = tree(self.agent, record).map(|tree| [tree.own_git_dir(), tree.repository.git_dir()]);
        let way_out =
            WayOut::prepare(profile.network(), &self.dir.egress()).map_err(|error| failed("its network can't be prepared", &error))?;
        let (permission_tool, way_out) = (tool.as_ref(), way_out.as_ref());
        let files = RunFiles { context_dir: &context_dir, prompt: &prompt, git_dirs, permission_tool, way_out };
        let plain = Invocation::new(profile, program, profiles_dir, &record.task, &conversation, &files);
        let invocation = sandboxed(plain, profile, profiles_dir, &self.agent.home, &self.agent.hardening, &record.task.context_id, &files);
        let invocation = invocation.map_err(|error| failed("the sandbox can't be prepared", &error))?;
        record.starts = record.starts.saturating_add(1);
        record.process = None;
        let kept = self.dir.keep(record);
        kept.map_err(|error| failed("the run can't be stored on disk", &error))?;
        let started = self.spawn(record, profile, &invocation, &context_dir);
        let started = started.map_err(|error| failed(&format!("{} can't be started", invocation.program.display()), &error))?;
        let begun = started.begin(|running| {
            record.process = Some(running);
            self.dir.keep(record)
        });
        let watched = begun.map_err(|error| failed("the run can't begin", &error))?;
        let pid = watched.running.leader.pid;
        let profile = self.agent.settings.profiles.told(&record.task.agent_slug, record.profile.as_deref().unwrap_or_default());
        self.log.phase("started", json!({"pid": pid, "worker": self.agent.name, "resumed": resumed, "profile": profile}));
        tracing::info!(task = %record.task.id, %lease, agent = record.task.agent_slug, pid, resumed, "run started");
        Ok(watched)
    }

    fn spawn(&self, record: &Record, profile: &Profile, invocation: &Invocation, context_dir: &Path) -> io::Result<Started> {
        let lease = record.lease.id;
        // The agent creates these files, because it reads them from now on.
        fresh_at(&self.dir.stdout(record.starts))?;
        fresh_at(&self.dir.stderr(record.starts))?;
        let temp = (profile.runner == Runner::Claude && profile.sandbox.is_none()).then(|| self.dir.make_temp()).transpose()?;
        let plan = Plan {
            dir: self.dir.path().to_owned(),
            start: record.starts,
            timeout: millis(record.task.policy.timeout()),
            stall: profile.stall_seconds.saturating_mul(1000),
            lease_until: self.agent.run_must_end_by(lease).unwrap_or(0),
            lease_ttl: millis(record.lease.ttl()),
            lease_grace: millis(lease_grace(record)),
            cgroup: self.dir.make_cgroup(self.agent.cgroups.as_ref(), &profile.limits)?,
            reserve: self.agent.home.reserve().path().to_owned(),
            makes_sandbox: profile.sandbox.is_some(),
            prints_alone: profile.runner == Runner::Claude,
        };
        handle::start(self.dir, &plan, invocation, context_dir, |command| {
            environment::inherit(command, &profile.env, &profile.pass_env);
            command.envs(claude_environment(profile));
            command.envs(temp.iter().flat_map(|dir| TEMP_VARIABLES.map(|name| (name, dir))));
            // The usual variable for the trace context: it makes the run's own spans part of the task's trace.
            command.envs(traced_run::context(self.agent, record).map(|context| ("TRACEPARENT", context.to_string())));
            command.envs(invocation.env.iter().map(|(name, value)| (name, value)));
            command.env(LEASE_VARIABLE, lease.to_string()).env(HOME_VARIABLE, self.agent.home.root());
            command.env("BLOOM_DESIRED_FORMAT", record.task.desired_format.to_string());
            if record.prepared.is_some() {
                // For commits that the run itself makes.
                command.envs(profile.commit_author.env());
            }
            command.env("BLOOM_TASK_ID", record.task.id.to_string()).env("BLOOM_CONTEXT_ID", &record.task.context_id);
        })
    }

    /// Reads the output until no process of the run is left.
    async fn watch(&mut self, record: &Record, profile: &Profile, mut watched: Watched) -> (Reading, End) {
        let mut reading = Reading::new(profile.is_plain(), profile.prices.clone());
        reading.asks_human = profile.ask_human;
        let lease = record.lease.id.to_string();
        let start = record.starts;
        let mut tail = match Tail::open(&self.dir.stdout(start)) {
            Ok(tail) => tail,
            Err(error) => {
                cleanup::end(self.dir, Some(watched.running.leader), &lease, TERM_GRACE).await;
                return (reading, End { stderr: format!("the run's output can't be read: {error}"), ..End::default() });
            }
        };
        let mut errors = Stderr::open(&self.dir.stderr(start));
        let asking = Asking::start(self.agent, self.dir.questions(), record, profile);
        let mut limits =
            Limits::new(record, profile, watched.running.started_at, asking.as_ref().map_or(Duration::ZERO, |asking| asking.asked_before));
        let disk = DiskLimit::start(&self.agent.home, record, watched.running.leader, profile);
        let egress = Egress::start(profile.network(), record.profile.as_deref(), &self.dir.egress(), &self.agent.egress);
        let mut stored_at = Instant::now();
        let mut found = Vec::new();
        let (mut stop, mut ended_for) = (None, None);
        let budget = invocation::budget(&record.task, profile);
        let ends_at = budget.filter(|_| profile.runner != Runner::Claude);
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // Checked before the output is read, so that everything that the process wrote before its end is read.
            let has_ended = watched.has_ended();
            let log = &self.log;
            let grew = tail.read(|line, offset| {
                let mut news = Vec::new();
                reading.line(line, &mut news);
                if log.is_stored(start, offset) {
                    reading.forget_pieces();
                } else {
                    found.append(&mut news);
                }
            });
            let grew = grew.unwrap_or_else(|error| {
                tracing::warn!(task = %record.task.id, lease, %error, "the output of a run can't be read");
                false
            });
            let grew = errors.read(&mut found, |offset| log.is_stderr_stored(start, offset)) || grew;
            if let Some(asking) = &asking {
                asking.tell(&mut found, &mut watched, &mut limits);
            }
            egress.tell(self.log);
            if has_ended && !grew {
                break;
            }
            // Each stored event says up to where the output was read, so pending text must be stored with it.
            if stored_at.elapsed() >= STORE_EVERY || !found.is_empty() {
                reading.take_pieces(&mut found);
                stored_at = Instant::now();
            }
            self.keep_events(&mut found, Position { start, offset: tail.offset, stderr: errors.offset() });
            if grew {
                // There may be more output than one read returns.
                tokio::task::yield_now().await;
                if has_ended {
                    continue;
                }
            }
            if let Some(until) = self.agent.run_must_end_by(record.lease.id) {
                watched.renew(until);
            }
            let wanted = *self.stop.borrow_and_update();
            // The Claude CLI counts its cost more exactly, and stops by itself.
            let is_over = || ends_at.filter(|budget| reading.usage().is_some_and(|used| used.cost_usd > *budget)).map(|_| Stop::OverBudget);
            if let Some(reason) = wanted
                .or_else(|| limits.exceeded(reading.activity(now_ms())))
                .or_else(|| disk.exceeded())
                .or_else(is_over)
                .or_else(|| reading.is_refused().then_some(Stop::Refused))
                .filter(|_| !watched.is_ending())
            {
                ended_for = Some(reason);
                stop = (reading.result.is_none() || reason.interrupts(&reading)).then_some(reason);
                self.record_stop(stop);
                let grace = if reason == Stop::LeaseLost { lease_grace(record) } else { TERM_GRACE };
                watched.end(stop, grace);
            }
            if watched.is_overdue() && !cleanup::end(self.dir, Some(watched.running.leader), &lease, TERM_GRACE).await {
                break;
            }
            tokio::select! {
                _ = tick.tick() => {}
                Ok(()) = self.stop.changed() => {}
            }
        }
        if let Some(rest) = tail.rest() {
            reading.line(&rest, &mut found);
        }
        if tail.has_gap {
            reading.cut();
        }
        reading.take_pieces(&mut found);
        errors.rest(&mut found);
        self.keep_events(&mut found, Position { start, offset: tail.offset + 1, stderr: errors.offset() + 1 });
        let duration_ms = now_ms().saturating_sub(watched.running.started_at);
        let stderr = self.dir.stderr_tail(start, STDERR_TAIL);
        let left = self.dir.left_end(start);
        if !left.is_clean {
            // The supervisor was killed, or could not end all processes.
            cleanup::end(self.dir, Some(watched.running.leader), &lease, TERM_GRACE).await;
        }
        if stop.is_none() {
            stop = left.stop;
            self.record_stop(stop);
        }
        // On a full disk, not even the end of the run could be stored.
        let no_room = || self.agent.home.reserve().fill().err().map(|error| error.to_string());
        let unstored = left.unstored.clone().or_else(|| if left.is_clean || left.exit.is_some() { None } else { no_room() });
        if let Some(why) = &unstored {
            tracing::error!(task = %record.task.id, lease, why, "what the run printed could not be stored as a whole");
            self.agent.pause_for_disk(why);
            if matches!(stop, None | Some(Stop::Unstored)) {
                stop = Some(disk_use::full_disk(self.agent, record.lease.id).await);
            }
        }
        disk.end().await;
        egress.tell_end(self.log);
        self.log.phase("ended", json!({"exit": left.exit, "duration_ms": duration_ms}));
        let tells_session = profile.runner == Runner::Claude;
        (
            reading,
            End {
                tells_session,
                stop,
                budget,
                model: record.task.model.clone().or_else(|| profile.model.clone()),
                ended_for,
                exit: left.exit,
                stderr,
                duration_ms,
                not_started: left.not_started,
                out_of_memory: left.out_of_memory,
                retry_timeouts: profile.retry_timeouts,
            },
        )
    }

    fn record_stop(&mut self, stop: Option<Stop>) {
        if let Some(reason) = stop {
            self.log.phase("stopping", json!({"why": format!("{reason:?}").to_lowercase()}));
        }
    }

    fn keep_events(&mut self, found: &mut Vec<Found>, position: Position) {
        if !found.is_empty()
            && let Err(error) = self.log.add(std::mem::take(found), position, now_ms())
        {
            tracing::warn!(task = %self.log.task, %error, "events could not be stored and are lost");
        }
    }
}
