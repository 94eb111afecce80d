//! Decides how a run ended: success or which failure, and what happens to the task.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::claude::prices::family;
use crate::claude::stream::{Answers, Ending, MAX_OUTPUT, Reading, Warnings, cut};
use crate::run::task::Task;
use bloom_api::complete::Completion;
use bloom_api::values::{Id, Int, List};
use bloom_core::Ms;
use bloom_core::task::{Format, Outcome, Reason};

/// How long an account is paused if the reset time of its quota is unknown.
const UNKNOWN_RESET_MS: Ms = 5 * 60 * 1000;
const SHORTEST_PAUSE_MS: Ms = 60 * 1000;
const MAX_MESSAGE: usize = 2_000;
/// Marks an answer of which only the beginning was stored.
const OUTPUT_CUT: &str = "output_cut";

/// Why the agent stopped a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Stop {
    Cancelled,
    Timeout,
    Stalled,
    /// The run printed more than the limit.
    Flooded,
    /// What the run printed could not be stored.
    Unstored,
    /// The directories of its context took more space than its profile allows.
    DiskLimit,
    /// The disk was full, and this run has written the most of all runs on this machine.
    DiskFilled,
    /// The lease was lost, or may have expired.
    LeaseLost,
    /// The cost that the run has reported exceeds its budget. The Claude CLI stops by itself.
    OverBudget,
    /// The API refuses the account again and again.
    Refused,
    /// The agent stops or is drained. The task is handed back without losing an attempt.
    HandBack,
}

impl Stop {
    /// Whether the run counts as interrupted although it has answered: it was still working, and nobody here wants the rest of its work.
    pub(crate) fn interrupts(self, reading: &Reading) -> bool {
        matches!(self, Self::Cancelled | Self::HandBack) && reading.unfinished().is_some()
    }
}

/// What is known about the end of a run besides its stream.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// Whether the program reports its session before it does anything else.
    pub tells_session: bool,
    pub stop: Option<Stop>,
    /// The budget of the run in US dollars; `None`: no limit.
    pub budget: Option<f64>,
    /// The model that the task or the profile asks for; `None`: neither names one.
    pub model: Option<String>,
    /// Why the agent ended a run that had already answered. `None`: it ended by itself, or its supervisor ended it.
    pub ended_for: Option<Stop>,
    /// `None` if the status is unknown, because the run's supervisor was killed or could not store it.
    pub exit: Option<String>,
    pub stderr: String,
    pub duration_ms: i64,
    /// Why the program could not be started.
    pub not_started: Option<String>,
    /// The kernel ended a process of the run because there was not enough memory.
    pub out_of_memory: bool,
    /// The profile's setting. Another attempt has the same time limit, so a retry rarely helps.
    pub retry_timeouts: bool,
}

/// What the agent reports to the server.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Verdict {
    Complete(Box<Completion>),
    Release { reason: String },
}

impl Verdict {
    /// Adds the `seq` of the run's last event, which clients that follow the task wait for.
    #[must_use]
    pub(crate) fn after_event(mut self, last: i64) -> Self {
        if let Self::Complete(completion) = &mut self {
            completion.last_event_seq = (last > 0).then(|| Int::nearest(last));
        }
        self
    }
}

/// A failure, and what it means for the task.
struct RunFailure {
    reason: Reason,
    message: String,
    /// Whether the cause is outside of the task, so that the attempt does not count.
    is_outside: bool,
    retryable: bool,
    retry_at: Option<Ms>,
}

impl RunFailure {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        let is_outside = matches!(
            reason,
            Reason::RateLimited
                | Reason::Overloaded
                | Reason::Auth
                | Reason::Billing
                | Reason::WorkerLost
                | Reason::WorkerDisk
                | Reason::SpawnFailed
        );
        // Another attempt would not help, because the cause needs intervention.
        let needs_intervention = matches!(
            reason,
            Reason::ModelUnavailable
                | Reason::BudgetExceeded
                | Reason::BadOutput
                | Reason::ContextFull
                | Reason::InvalidRequest
                | Reason::Refused
                | Reason::Cancelled
        );
        Self { reason, message: message.into(), is_outside, retryable: !needs_intervention, retry_at: None }
    }
}

/// # The rules
/// A success in the stream counts as a success, whatever happened after it, unless the run was cancelled or handed back while it was still
/// working. Otherwise the outcome is decided, in this order, by a stop of the agent, the stream's result, the last error that the CLI met,
/// and the exit status.
pub(crate) fn decide(task: &Task, lease: Uuid, reading: &Reading, end: &End, now: Ms) -> Verdict {
    match outcome(task, reading, end, now) {
        Ok((output, tags)) => {
            let tags = tags.into_iter().collect();
            Verdict::Complete(Box::new(Completion { output: Some(output.into()), artifact_tags: tags, ..completion(lease, reading, end) }))
        }
        Err(None) if reading.usage().is_none() => Verdict::Release { reason: "the worker is stopping or draining".into() },
        // A completion, not a release, so that the usage so far is recorded.
        Err(None) => {
            let failure = RunFailure {
                retry_at: Some(now),
                ..RunFailure::new(Reason::WorkerLost, "handed back: the worker is stopping or draining")
            };
            failed(lease, reading, end, failure)
        }
        Err(Some(failure)) => failed(lease, reading, end, failure),
    }
}

/// The verdict of a run whose process was not started.
pub(crate) fn not_started(lease: Uuid, reason: Reason, message: &str, retryable: bool) -> Verdict {
    let failure = RunFailure { retryable, ..RunFailure::new(reason, message) };
    failed(lease, &Reading::default(), &End::default(), failure)
}

fn failed(lease: Uuid, reading: &Reading, end: &End, failure: RunFailure) -> Verdict {
    let message = cut(failure.message.trim(), MAX_MESSAGE).replace('\0', "\u{fffd}");
    Verdict::Complete(Box::new(Completion {
        status: Outcome::Error,
        // An unusable answer is sent as well, so that users can see it.
        output: Some(said(reading)).filter(|text| !text.is_empty()).map(Into::into),
        error_message: Some(if message.is_empty() { failure.reason.as_str().into() } else { message.into() }),
        reason: Some(failure.reason),
        retryable: failure.retryable,
        retry_at: failure.retry_at.map(Int::nearest),
        keep_attempt: failure.is_outside,
        ..completion(lease, reading, end)
    }))
}

/// The answer of the run, or what the CLI said instead.
fn said(reading: &Reading) -> String {
    let text =
        if reading.answers.is_empty() { reading.result.as_ref().map(|ending| ending.text.clone()) } else { Some(reading.answers.text()) };
    let text = clean(&text.unwrap_or_default());
    cut(&text, MAX_OUTPUT).to_owned()
}

/// Problems that did not make the run fail.
fn warnings(reading: &Reading, end: &End) -> Warnings {
    let mut warnings = reading.warnings.clone();
    if let Some(why) = reading.answers.later_failure() {
        warnings.add(&format!("a turn after this answer failed: {why}"));
    }
    if let Some(what) = reading.unfinished().filter(|_| !reading.answers.is_empty()) {
        warnings.add(&cut_off(&what, reading, end));
    }
    if let (Some(budget), Some(used)) = (end.budget, reading.usage())
        && used.cost_usd > budget
    {
        warnings.add(&format!("the run cost ${:.4}, and its budget was ${budget:.4}", used.cost_usd));
    }
    if let (Some(asked), Some(ran)) = (&end.model, &reading.model)
        && is_another_model(asked, ran)
    {
        warnings.add(&format!("the model {ran} answered, and {asked} was asked for: the Claude CLI takes it for another one"));
    }
    warnings
}

/// Whether the run used another model than the one that was requested by its full name. The CLI decides what a short name such as `opus`
/// means, and the names of other providers can't be compared. A date at the end of a name does not distinguish models.
fn is_another_model(asked: &str, ran: &str) -> bool {
    [asked, ran].iter().all(|name| name.starts_with("claude-")) && family(asked) != family(ran)
}

/// Why a run did not finish everything that it had started.
fn cut_off(what: &str, reading: &Reading, end: &End) -> String {
    let why = match end.stop.or(end.ended_for) {
        Some(Stop::Cancelled) => "it was cancelled".to_owned(),
        Some(Stop::HandBack) => "the worker is stopping or draining".to_owned(),
        Some(Stop::Timeout) => "its time limit was reached".to_owned(),
        Some(Stop::LeaseLost) => "its lease was lost".to_owned(),
        Some(Stop::Flooded) => "it printed more than 1 GiB".to_owned(),
        Some(Stop::Unstored | Stop::DiskLimit | Stop::DiskFilled) => "there was not enough room on the disk".to_owned(),
        Some(Stop::OverBudget) => "it cost more than its budget".to_owned(),
        Some(Stop::Refused) => "the API refused its account".to_owned(),
        Some(Stop::Stalled) | None => match reading.cli.and_then(|cli| Some((cli, cli.ends_background()?))) {
            Some((cli, waits)) => format!(
                "version {cli} of the Claude CLI ends what is in the background about five seconds after its answer; {waits} and later wait for it"
            ),
            None => "background_seconds of its profile says how long it may".to_owned(),
        },
    };
    format!("the run was ended while it still worked ({what}); {why}")
}

fn completion(lease_id: Uuid, reading: &Reading, end: &End) -> Completion {
    let usage = reading.usage();
    Completion {
        warnings: List::from_iter(warnings(reading, end).texts().iter().map(String::as_str)),
        lease_id: Some(Id(lease_id)),
        usage: usage.map(Into::into),
        session_id: reading.session_id.clone().map(Into::into),
        model: reading.model.clone().map(Into::into),
        ..Completion::new(Outcome::Success, end.duration_ms, usage.map(|usage| usage.input_tokens.saturating_add(usage.output_tokens)))
    }
}

/// The answer and the tags of its artifact, or the failure; `Err(None)` hands the task back.
fn outcome(task: &Task, reading: &Reading, end: &End, now: Ms) -> Result<(String, Vec<&'static str>), Option<RunFailure>> {
    if !reading.answers.is_empty() && !end.stop.is_some_and(|stop| stop.interrupts(reading)) {
        let (output, is_cut) = answer(task, &reading.answers)?;
        let tags = [(reading.has_denials, "tools_denied"), (is_cut, OUTPUT_CUT)];
        return Ok((output, tags.into_iter().filter_map(|(applies, tag)| applies.then_some(tag)).collect()));
    }
    if let Some(stop) = end.stop {
        // The CLI kept retrying the refused request, and that is why it had no answer in time.
        let refused = refused(reading, now).filter(|refused| refused.is_outside && matches!(stop, Stop::Timeout | Stop::Stalled));
        if refused.is_some() {
            return Err(refused);
        }
        return Err(stopped(task, stop, end.retry_timeouts));
    }
    if let Some(why) = &end.not_started {
        return Err(Some(RunFailure::new(Reason::SpawnFailed, format!("the program can't be started: {why}"))));
    }
    if let Some(refused) = refused(reading, now) {
        return Err(Some(refused));
    }
    match end.exit.as_deref() {
        Some("0") if reading.is_plain() => {
            let (output, is_cut) = formatted(task, &reading.text, reading.is_cut())?;
            Ok((output, is_cut.then_some(OUTPUT_CUT).into_iter().collect()))
        }
        Some(exit) if end.out_of_memory => Err(Some(RunFailure::new(
            Reason::OutOfMemory,
            format!(
                "memory ran out, and the kernel ended a process of the run, which ended with status {exit}: raise limits.memory_mib of its \
                 profile, or give the worker more memory or fewer slots"
            ),
        ))),
        Some(_) if reading.is_cut() && !reading.is_plain() => {
            Err(Some(RunFailure::new(Reason::BadOutput, "the result is missing: a line of the output was longer than 64 MiB")))
        }
        None => Err(Some(RunFailure::new(
            Reason::WorkerLost,
            "how the run ended is not known: its supervisor was killed, or could not store it on the worker's disk",
        ))),
        Some(exit) => {
            let said = [reading.odd.trim(), end.stderr.trim()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
            let message = format!("ended with status {exit} and without a result{}{said}", if said.is_empty() { "" } else { ": " });
            // A wrong option or a broken installation: the next task would fail in the same way.
            let has_begun = !end.tells_session || reading.session_id.is_some() || reading.api_error.is_some();
            Err(Some(RunFailure::new(if has_begun { Reason::AgentError } else { Reason::SpawnFailed }, message)))
        }
    }
}

fn stopped(task: &Task, stop: Stop, retryable: bool) -> Option<RunFailure> {
    Some(match stop {
        Stop::HandBack => return None,
        Stop::Cancelled => RunFailure::new(Reason::Cancelled, "cancelled on request"),
        Stop::Timeout => RunFailure { retryable, ..RunFailure::new(Reason::Timeout, task.timed_out()) },
        Stop::Stalled => RunFailure::new(Reason::Stalled, "no output for too long (stall_seconds of its profile)"),
        Stop::Flooded => RunFailure::new(Reason::AgentError, "printed more than 1 GiB"),
        Stop::Unstored => RunFailure::new(Reason::WorkerDisk, "the worker could not store on its disk what the run printed"),
        Stop::DiskLimit => RunFailure::new(
            Reason::DiskLimit,
            "the directory of its context took more room on the disk than limits.disk_mib of its profile allows",
        ),
        Stop::DiskFilled => RunFailure::new(
            Reason::DiskLimit,
            "the disk of the worker was full, and this run had written more than any other (limits.disk_mib of its profile ends it earlier)",
        ),
        Stop::LeaseLost => RunFailure::new(Reason::WorkerLost, "the lease was lost, and the run was ended"),
        Stop::OverBudget => RunFailure::new(Reason::BudgetExceeded, "the run was ended, because it cost more than its budget"),
        Stop::Refused => RunFailure::new(Reason::Auth, "the API refused the account again and again (authentication_failed)"),
    })
}

/// The error of the CLI, or of the API behind it, and its text. `None`: there was none.
pub(crate) fn error_of(reading: &Reading) -> Option<(Reason, &str)> {
    let (ending, api_error) = (reading.result.as_ref(), reading.api_error.as_deref());
    if ending.is_some_and(Ending::is_success) || (ending.is_none() && api_error.is_none()) {
        return None;
    }
    let subtype = ending.map(Ending::subtype);
    let text = ending.map(|ending| ending.text.as_str()).filter(|text| !text.is_empty()).or(api_error).or(subtype).unwrap_or_default();
    let lasting = ending.and_then(Ending::lasting_failure);
    let reason = match (ending.map_or(reading.api_status, |ending| ending.api_status), api_error) {
        (Some(402), _) | (_, Some("billing_error")) => Reason::Billing,
        (_, Some("model_not_found")) => Reason::ModelUnavailable,
        _ if lasting.is_some() => lasting.unwrap_or(Reason::AgentError),
        (Some(401 | 403), _) | (_, Some("authentication_failed" | "oauth_org_not_allowed")) => Reason::Auth,
        (Some(429), _) | (_, Some("rate_limit")) => Reason::RateLimited,
        (Some(500..=599), _) | (_, Some("overloaded" | "server_error")) => Reason::Overloaded,
        _ => Reason::AgentError,
    };
    Some((reason, text))
}

fn refused(reading: &Reading, now: Ms) -> Option<RunFailure> {
    let (reason, text) = error_of(reading)?;
    if reading.result.as_ref().is_some_and(Ending::is_over_budget) {
        let cost_usd = reading.usage().map_or(0.0, |usage| usage.cost_usd);
        let message = format!("the run used {cost_usd:.4} USD, more than its budget; {text}");
        return Some(RunFailure::new(Reason::BudgetExceeded, message));
    }
    let retry_at = match reason {
        // Clocks differ: with a reset time in the past, the task would be retried at once.
        Reason::RateLimited => Some(reading.resets_at.map_or(now + UNKNOWN_RESET_MS, |at| at.max(now + SHORTEST_PAUSE_MS))),
        _ => None,
    };
    let mut failure = RunFailure { retry_at, ..RunFailure::new(reason, text) };
    // A 403 counts as a refusal of this request only, until a probe shows that the API refuses all requests.
    failure.retryable &= reading.result.as_ref().and_then(|ending| ending.api_status) != Some(403);
    Some(failure)
}

/// The answer in the format that the task asks for. If the run had several turns and the task wants JSON, the answer is the last turn whose
/// text is JSON: turns before it report progress, and turns after it say that nothing is left to do.
fn answer(task: &Task, answers: &Answers) -> Result<(String, bool), Option<RunFailure>> {
    let text = answers.text();
    if text.trim().is_empty() {
        return Err(Some(RunFailure::new(Reason::BadOutput, "the run ended without an answer: its result is empty")));
    }
    let whole = || formatted(task, &text, false);
    if task.desired_format == Format::Json {
        answers.backwards().find_map(|text| formatted(task, text, false).ok()).map_or_else(whole, Ok)
    } else {
        whole()
    }
}

/// The text in the format that the task asks for, and whether it is only the beginning of the run's answer.
fn formatted(task: &Task, text: &str, is_cut: bool) -> Result<(String, bool), Option<RunFailure>> {
    let text = clean(text);
    let beginning = cut(&text, MAX_OUTPUT);
    let is_cut = is_cut || beginning.len() < text.len();
    if task.desired_format == Format::Text {
        return Ok((beginning.to_owned(), is_cut));
    }
    let wrong = |why: String| Err(Some(RunFailure::new(Reason::BadOutput, why)));
    if is_cut {
        return wrong("the answer is longer than 16 MiB, so its JSON is incomplete".to_owned());
    }
    let candidate = unfenced(&text);
    match serde_json::from_str::<serde::de::IgnoredAny>(candidate) {
        Ok(_) => Ok((candidate.to_owned(), false)),
        Err(error) => wrong(format!("the answer is not valid JSON, which the task asked for: {error}")),
    }
}

/// The content of a Markdown code block, if the text consists of one; otherwise the text.
fn unfenced(text: &str) -> &str {
    let text = text.trim();
    let inside = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inside.map_or(text, |inside| inside.strip_prefix("json").unwrap_or(inside).trim())
}

/// PostgreSQL can't store NUL in text.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests;
