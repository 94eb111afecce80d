//! One run, from its lease to its verdict.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use uuid::Uuid;

use super::home::{SessionRecord, private_dir};
use super::invocation::{Conversation, Invocation};
use super::process::{self, HOME_VARIABLE, LEASE_VARIABLE, Leader};
use super::profile::{Profile, Runner, find_program};
use super::spool::{EventLog, Record, RunDir, Running, Tail};
use super::stream::Reading;
use super::verdict::{End, Stop, Verdict, decide, not_started};
use super::{Agent, prompt, traced_run};
use bloom_client::now_ms;
use bloom_core::Ms;
use bloom_core::task::{EventKind, Reason, Session};

/// The interval at which a run's output is read.
const TICK: Duration = Duration::from_millis(50);
/// The interval at which streamed text is stored as events.
const STORE_EVERY: Duration = Duration::from_millis(200);
/// The time between SIGTERM and SIGKILL.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(5);
/// How long a process may go on after its result: some never end.
const AFTER_RESULT: Duration = Duration::from_secs(10);
const STDERR_TAIL: u64 = 2_000;
const MAX_PRINTED: u64 = 1 << 30;
/// Prefixes of the environment variables that runs do not inherit, because they contain keys and settings of this program, or the trace
/// of another.
const OWN_SECRETS: [&str; 9] = [
    "BLOOM_",
    "RUNTIME_",
    "MEMBRIDGE_",
    "DATABASE_URL",
    "TLS_KEY_FILE",
    "CLAUDECODE",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "TRACEPARENT",
    "TRACESTATE",
];

pub(super) struct Run<'a> {
    pub agent: &'a Arc<Agent>,
    pub dir: &'a RunDir,
    pub log: &'a mut EventLog,
    pub stop: watch::Receiver<Option<Stop>>,
}

/// A process of the run: a child of this agent, or a process that an earlier agent started.
struct Watched {
    child: Option<Child>,
    running: Running,
}

impl Run<'_> {
    /// Runs the task, or watches a run that an earlier agent started, and returns its verdict. No process of the run is left afterwards.
    pub async fn run_to_end(&mut self, mut record: Record) -> Verdict {
        let (task, lease) = (record.task.clone(), record.lease.id);
        let Some(profile) = self.agent.settings.profiles.of(&task.agent_slug).cloned() else {
            // An earlier agent that had the profile may have started the run.
            process::end(record.process.and_then(|running| running.leader), task.id, &lease.to_string(), TERM_GRACE).await;
            let why = format!("this worker has no profile for the agent {}", task.agent_slug);
            return not_started(lease, Reason::SpawnFailed, &why, true);
        };
        let resumable = profile.runner == Runner::Claude && task.session == Session::Context;
        let program = profile.program().display().to_string();
        let known = self.agent.home.session(&task.context_id).filter(|known| resumable && known.program == program);
        let mut adopted = record.process;
        let mut conversation = match &known {
            Some(known) => Conversation::Resumed(known.session_id.clone()),
            None => Conversation::New(Uuid::now_v7().to_string()),
        };
        let was_open = known.is_some_and(|known| known.open_task == Some(task.id));
        loop {
            let watched = match adopted.take() {
                Some(running) => Watched { child: None, running },
                None => {
                    if !self.agent.is_ours(lease, task.id, &mut self.stop).await {
                        let end = End { stop: *self.stop.borrow(), ..End::default() };
                        return decide(&task, lease, &Reading::default(), &end, now_ms());
                    }
                    if resumable {
                        self.keep_session(&record, &program, &conversation, Some(task.id));
                    }
                    match self.start(&mut record, &profile, &conversation, was_open).await {
                        Ok(watched) => watched,
                        Err(verdict) => return self.agent.learn(&profile, &task, *verdict).await,
                    }
                }
            };
            let (reading, end) = self.watch(&record, &profile, watched).await;
            if let Conversation::Resumed(lost) = &conversation
                && session_is_gone(&reading, &end)
            {
                self.record_phase(
                    "session_lost",
                    json!({"session_id": lost, "text": "the session no longer exists; the run starts a new one"}),
                );
                conversation = Conversation::New(Uuid::now_v7().to_string());
                continue;
            }
            if resumable {
                let open = reading.result.is_none().then_some(task.id);
                let id = reading.session_id.clone();
                let seen = id.map_or(conversation, Conversation::Resumed);
                self.keep_session(&record, &program, &seen, open);
            }
            let verdict = decide(&task, lease, &reading, &end, now_ms());
            return self.agent.learn(&profile, &task, verdict).await;
        }
    }

    fn record_phase(&mut self, phase: &str, more: serde_json::Value) {
        let mut data = json!({"phase": phase});
        if let (Some(data), Some(more)) = (data.as_object_mut(), more.as_object()) {
            data.extend(more.clone());
        }
        self.log.record(EventKind::Lifecycle, data, now_ms());
    }

    fn keep_session(&self, record: &Record, program: &str, conversation: &Conversation, open_task: Option<Uuid>) {
        let (Conversation::New(session_id) | Conversation::Resumed(session_id)) = conversation.clone();
        let kept = SessionRecord { context_id: record.task.context_id.clone(), program: program.to_owned(), session_id, open_task };
        if let Err(error) = self.agent.home.keep_session(&kept) {
            tracing::warn!(task = %record.task.id, context = record.task.context_id, %error, "the session could not be stored; the next task of the context starts a new one");
        }
    }

    /// Starts the process. If it can't be started, the error is the verdict.
    async fn start(
        &mut self,
        record: &mut Record,
        profile: &Profile,
        conversation: &Conversation,
        was_open: bool,
    ) -> Result<Watched, Box<Verdict>> {
        let lease = record.lease.id;
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Box::new(not_started(lease, Reason::SpawnFailed, &format!("{what}: {error}"), true))
        };
        let context_dir = self.agent.home.context_dir(&record.task.context_id);
        private_dir(&context_dir).map_err(|error| failed("the context's directory can't be created", &error))?;
        let resumes = was_open && matches!(conversation, Conversation::Resumed(_));
        // Reading files blocks, and must not delay other runs.
        let (task, dir) = (record.task.clone(), context_dir.clone());
        let composed = tokio::task::spawn_blocking(move || prompt::compose(&task, &dir, resumes)).await;
        let text = composed.map_err(|error| failed("the prompt can't be composed", &error))?;
        let text = text.map_err(|why| Box::new(not_started(lease, Reason::AgentError, &why, false)))?;
        let profiles_dir = &self.agent.settings.profiles.dir;
        let program = find_program(&profile.program(), profiles_dir)
            .ok_or_else(|| failed(&profile.program().display().to_string(), &"the program does not exist or is not executable"))?;
        fs::write(self.dir.prompt(), text).map_err(|error| failed("the prompt can't be written", &error))?;
        let invocation = Invocation::new(profile, program, profiles_dir, &record.task, conversation, &context_dir, &self.dir.prompt());
        record.starts = record.starts.saturating_add(1);
        record.process = None;
        let kept = self.dir.keep(record);
        kept.map_err(|error| failed("the run can't be stored on disk", &error))?;
        let child = self.spawn(record, &invocation, &context_dir);
        let child = child.map_err(|error| failed(&format!("{} can't be started", invocation.program.display()), &error))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let leader = Leader::of(pid);
        let running = Running { leader, started_at: now_ms() };
        record.process = Some(running);
        // Without the record, a later agent still finds the process by its environment, unless the process has changed that.
        if let Err(error) = self.dir.keep(record) {
            tracing::warn!(task = %record.task.id, %lease, %error, "the process of a run could not be stored on disk");
        }
        let resumed = matches!(conversation, Conversation::Resumed(_));
        let profile = self.agent.settings.profiles.told(&record.task.agent_slug);
        self.record_phase("started", json!({"pid": pid, "worker": self.agent.name, "resumed": resumed, "profile": profile}));
        tracing::info!(task = %record.task.id, %lease, agent = record.task.agent_slug, pid, resumed, "run started");
        Ok(Watched { child: Some(child), running })
    }

    fn spawn(&self, record: &Record, invocation: &Invocation, context_dir: &Path) -> io::Result<Child> {
        let mut command = if invocation.is_plain {
            // The exit status of a plain command decides its verdict. A shell stores it, because the agent may not be running when the
            // command ends.
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", r#""$@"; status=$?; echo "$status" > "$0"; exit "$status""#]).arg(self.dir.exit(record.starts));
            shell.arg(&invocation.program);
            shell
        } else {
            Command::new(&invocation.program)
        };
        command.args(&invocation.args).current_dir(context_dir).process_group(0);
        command.stdin(File::open(self.dir.prompt())?);
        command.stdout(Stdio::from(File::create(self.dir.stdout(record.starts))?));
        command.stderr(Stdio::from(File::create(self.dir.stderr(record.starts))?));
        scrub(&mut command);
        command.env("DISABLE_AUTOUPDATER", "1");
        // The name that programs agree on: what a run does then belongs to its trace.
        command.envs(traced_run::context(self.agent, record).map(|context| ("TRACEPARENT", context.to_string())));
        command.envs(invocation.env.iter().map(|(name, value)| (name, value)));
        command.env(LEASE_VARIABLE, record.lease.id.to_string()).env(HOME_VARIABLE, self.agent.home.root());
        command.env("BLOOM_DESIRED_FORMAT", record.task.desired_format.to_string());
        command.env("BLOOM_TASK_ID", record.task.id.to_string()).env("BLOOM_CONTEXT_ID", &record.task.context_id);
        command.spawn()
    }

    /// Reads the output until no process of the run is left.
    async fn watch(&mut self, record: &Record, profile: &Profile, mut watched: Watched) -> (Reading, End) {
        let mut reading = Reading::new(profile.is_plain());
        let lease = record.lease.id.to_string();
        let start = record.starts;
        let mut tail = match Tail::open(&self.dir.stdout(start)) {
            Ok(tail) => tail,
            Err(error) => {
                process::end(watched.running.leader, record.task.id, &lease, TERM_GRACE).await;
                return (reading, End { stderr: format!("the run's output can't be read: {error}"), ..End::default() });
            }
        };
        let mut limits = Limits::new(record, profile, watched.running.started_at);
        let mut stored_at = Instant::now();
        let mut found = Vec::new();
        let mut stop = None;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let exit = loop {
            // Checked before the output is read, so that everything that the process wrote before its end is read.
            let exit = watched.exit();
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
            if exit.is_some() && !grew {
                break exit;
            }
            // Each stored event says how far the output was read, so pending text must be stored with it.
            if stored_at.elapsed() >= STORE_EVERY || !found.is_empty() {
                reading.take_pieces(&mut found);
                stored_at = Instant::now();
            }
            self.keep_events(&mut found, start, tail.offset);
            if grew {
                // There may be more output than one read returns.
                tokio::task::yield_now().await;
                if exit.is_some() {
                    continue;
                }
            }
            let wanted = *self.stop.borrow_and_update();
            if let Some(reason) = wanted.or_else(|| limits.exceeded(self.dir.printed(start), reading.result.is_some())) {
                if reading.result.is_none() {
                    self.record_phase("stopping", json!({"why": format!("{reason:?}").to_lowercase()}));
                    stop = Some(reason);
                }
                // When a lease is lost, little time is left before another worker gets the task.
                let soon = record.lease.ttl() / 10;
                let grace = if reason == Stop::LeaseLost { TERM_GRACE.min(soon) } else { TERM_GRACE };
                if !process::end(watched.running.leader, record.task.id, &lease, grace).await {
                    break None;
                }
                continue;
            }
            tokio::select! {
                _ = tick.tick() => {}
                Ok(()) = self.stop.changed() => {}
            }
        };
        if let Some(rest) = tail.rest() {
            reading.line(&rest, &mut found);
        }
        if tail.has_gap {
            reading.cut();
        }
        reading.take_pieces(&mut found);
        self.keep_events(&mut found, start, tail.offset + 1);
        // Descendants of the process may still be alive.
        process::end(watched.running.leader, record.task.id, &lease, TERM_GRACE).await;
        let duration_ms = now_ms().saturating_sub(watched.running.started_at);
        let stderr = self.dir.stderr_tail(start, STDERR_TAIL);
        self.record_phase("ended", json!({"exit": exit, "duration_ms": duration_ms}));
        // The status of a process that is not a child of this agent is known only if the shell stored it.
        let exit = exit.flatten().or_else(|| self.dir.left_exit(start));
        (reading, End { stop, exit, stderr, duration_ms })
    }

    fn keep_events(&mut self, found: &mut Vec<super::stream::Found>, start: u32, offset: u64) {
        if !found.is_empty()
            && let Err(error) = self.log.add(std::mem::take(found), start, offset, now_ms())
        {
            tracing::warn!(task = %self.log.task, %error, "events could not be stored and are lost");
        }
    }
}

/// Whether the CLI refused to resume the session because it does not exist.
fn session_is_gone(reading: &Reading, end: &End) -> bool {
    let result = reading.result.as_ref().map_or("", |ending| ending.text.as_str());
    end.stop.is_none()
        && reading.usage().is_none_or(|usage| usage.output_tokens == 0)
        && [result, &reading.odd, &end.stderr].iter().any(|text| text.contains("No conversation found"))
}

/// Removes this program's own keys and settings from the environment of a command.
pub(super) fn scrub(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_none_or(|name| OWN_SECRETS.iter().any(|start| name.starts_with(start))) {
            command.env_remove(name);
        }
    }
}

impl Watched {
    /// `Some` if the process has ended, with its status if it is a child of this agent.
    fn exit(&mut self) -> Option<Option<String>> {
        match &mut self.child {
            Some(child) => match child.try_wait() {
                Ok(status) => status.map(|status| Some(shown(status))),
                Err(_) => Some(None),
            },
            None => (!self.running.leader.is_some_and(|leader| leader.is_alive())).then_some(None),
        }
    }
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// The limits at which the agent stops a run.
struct Limits {
    end: Instant,
    stall: Duration,
    last_output: Instant,
    printed: u64,
    result_at: Option<Instant>,
}

impl Limits {
    fn new(record: &Record, profile: &Profile, started_at: Ms) -> Self {
        let ran = Duration::from_millis(u64::try_from(now_ms().saturating_sub(started_at)).unwrap_or(0));
        let now = Instant::now();
        let left = Duration::from_secs(record.task.policy.timeout_sec.0.unsigned_abs()).saturating_sub(ran);
        Self { end: now + left, stall: Duration::from_secs(profile.stall_seconds), last_output: now, printed: 0, result_at: None }
    }

    /// `printed` counts the bytes of both streams, because output on standard error is a sign of life, too.
    fn exceeded(&mut self, printed: u64, has_result: bool) -> Option<Stop> {
        let now = Instant::now();
        if printed != self.printed {
            self.printed = printed;
            self.last_output = now;
        }
        if printed > MAX_PRINTED {
            return Some(Stop::Flooded);
        }
        if has_result {
            let since = *self.result_at.get_or_insert(now);
            return (now - since >= AFTER_RESULT).then_some(Stop::Stalled);
        }
        if now >= self.end {
            return Some(Stop::Timeout);
        }
        (now - self.last_output >= self.stall).then_some(Stop::Stalled)
    }
}
