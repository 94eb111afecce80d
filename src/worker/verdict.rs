//! Decides how a run ended: success or which failure, and what happens to the task.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::stream::{MAX_OUTPUT, Reading, cut};
use super::task::Task;
use bloom_api::complete::Completion;
use bloom_api::values::{Id, Int};
use bloom_core::Ms;
use bloom_core::task::{Format, Outcome, Reason};

/// The pause of an account whose quota has no known reset time.
const UNKNOWN_RESET_MS: Ms = 5 * 60 * 1000;
const SHORTEST_PAUSE_MS: Ms = 60 * 1000;
const MAX_MESSAGE: usize = 2_000;
/// Marks an answer of which only the beginning is stored.
const OUTPUT_CUT: &str = "output_cut";

/// Why the agent stopped a run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Stop {
    Cancelled,
    Timeout,
    Stalled,
    /// The run printed more than the limit.
    Flooded,
    /// What the run printed could not be stored.
    Unstored,
    /// The directories of its context took more room than its profile allows.
    DiskLimit,
    /// The disk was full, and of all runs here, this one has written most.
    DiskFilled,
    /// The lease was lost, or may have expired.
    LeaseLost,
    /// The agent stops or is drained: the task is handed back and loses no attempt.
    HandBack,
}

/// What is known about the end of a run besides its stream.
#[derive(Debug, Default)]
pub struct End {
    /// The program is one that tells its session before it does anything.
    pub tells_session: bool,
    pub stop: Option<Stop>,
    /// `None` if the status is unknown, because the run's supervisor was killed or could not store it.
    pub exit: Option<String>,
    pub stderr: String,
    pub duration_ms: i64,
    /// Why the program could not be started.
    pub not_started: Option<String>,
    /// The kernel ended a process of the run because there was not enough memory.
    pub out_of_memory: bool,
    /// As its profile says: another attempt has the same time, so it rarely helps.
    pub retry_timeouts: bool,
}

/// What the agent reports to the server.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Verdict {
    Complete(Box<Completion>),
    Release { reason: String },
}

impl Verdict {
    /// With the `seq` of the run's last event, for which those who follow the task wait.
    #[must_use]
    pub fn after_event(mut self, last: i64) -> Self {
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
    /// The cause is outside of the task, so the attempt does not count.
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
        let needs_intervention =
            matches!(reason, Reason::ModelUnavailable | Reason::BudgetExceeded | Reason::BadOutput | Reason::Cancelled);
        Self { reason, message: message.into(), is_outside, retryable: !needs_intervention, retry_at: None }
    }
}

/// # The rules
/// A success in the stream counts as a success, whatever happened after it. Otherwise a stop by the agent decides, then the stream's
/// result, then the last error that the CLI met, and last the exit status.
pub fn decide(task: &Task, lease: Uuid, reading: &Reading, end: &End, now: Ms) -> Verdict {
    match outcome(task, reading, end, now) {
        Ok((output, tags)) => {
            let tags = tags.into_iter().collect();
            Verdict::Complete(Box::new(Completion { output: Some(output.into()), artifact_tags: tags, ..completion(lease, reading, end) }))
        }
        Err(None) if reading.usage().is_none() => Verdict::Release { reason: "the worker is stopping or draining".into() },
        // A completion and not a release, so that the usage so far is recorded.
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
pub fn not_started(lease: Uuid, reason: Reason, message: &str, retryable: bool) -> Verdict {
    let failure = RunFailure { retryable, ..RunFailure::new(reason, message) };
    failed(lease, &Reading::default(), &End::default(), failure)
}

fn failed(lease: Uuid, reading: &Reading, end: &End, failure: RunFailure) -> Verdict {
    let message = cut(failure.message.trim(), MAX_MESSAGE).replace('\0', "\u{fffd}");
    Verdict::Complete(Box::new(Completion {
        status: Outcome::Error,
        // An answer that can't be used is sent as well, so that users can see it.
        output: reading.result.as_ref().map(|ending| clean(&ending.text)).filter(|text| !text.is_empty()).map(Into::into),
        error_message: Some(if message.is_empty() { failure.reason.as_str().into() } else { message.into() }),
        reason: Some(failure.reason),
        retryable: failure.retryable,
        retry_at: failure.retry_at.map(Int::nearest),
        keep_attempt: failure.is_outside,
        ..completion(lease, reading, end)
    }))
}

fn completion(lease_id: Uuid, reading: &Reading, end: &End) -> Completion {
    let usage = reading.usage();
    Completion {
        lease_id: Some(Id(lease_id)),
        usage: usage.map(Into::into),
        session_id: reading.session_id.clone().map(Into::into),
        model: reading.model.clone().map(Into::into),
        ..Completion::new(Outcome::Success, end.duration_ms, usage.map(|usage| usage.input_tokens.saturating_add(usage.output_tokens)))
    }
}

/// The answer and the tags of its artifact, or the failure; `Err(None)` hands the task back.
fn outcome(task: &Task, reading: &Reading, end: &End, now: Ms) -> Result<(String, Vec<&'static str>), Option<RunFailure>> {
    if let Some(ending) = reading.result.as_ref().filter(|ending| !ending.is_error && ending.subtype == "success") {
        let (output, is_cut) = formatted(task, &ending.text, false)?;
        let tags = [(ending.denied > 0, "tools_denied"), (is_cut, OUTPUT_CUT)];
        return Ok((output, tags.into_iter().filter_map(|(applies, tag)| applies.then_some(tag)).collect()));
    }
    if let Some(stop) = end.stop {
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
            // A wrong option, or a broken installation: the next task would end like this one.
            let has_begun = !end.tells_session || reading.session_id.is_some() || reading.api_error.is_some();
            Err(Some(RunFailure::new(if has_begun { Reason::AgentError } else { Reason::SpawnFailed }, message)))
        }
    }
}

fn stopped(task: &Task, stop: Stop, retryable: bool) -> Option<RunFailure> {
    Some(match stop {
        Stop::HandBack => return None,
        Stop::Cancelled => RunFailure::new(Reason::Cancelled, "cancelled on request"),
        Stop::Timeout => RunFailure { retryable, ..RunFailure::new(Reason::Timeout, task.timed_out(retryable)) },
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
    })
}

/// The error of the CLI, or of the API behind it, and its text. `None`: there was none.
pub fn error_of(reading: &Reading) -> Option<(Reason, &str)> {
    let (ending, api_error) = (reading.result.as_ref(), reading.api_error.as_deref());
    if ending.is_some_and(|ending| !ending.is_error && ending.subtype == "success") || (ending.is_none() && api_error.is_none()) {
        return None;
    }
    let subtype = ending.map(|ending| ending.subtype.as_str());
    let text = ending.map(|ending| ending.text.as_str()).filter(|text| !text.is_empty()).or(api_error).or(subtype).unwrap_or_default();
    let reason = match (ending.and_then(|ending| ending.api_status), api_error) {
        (Some(402), _) | (_, Some("billing_error")) => Reason::Billing,
        (_, Some("model_not_found")) => Reason::ModelUnavailable,
        (Some(401 | 403), _) | (_, Some("authentication_failed" | "oauth_org_not_allowed")) => Reason::Auth,
        (Some(429), _) | (_, Some("rate_limit")) => Reason::RateLimited,
        (Some(500..=599), _) | (_, Some("overloaded" | "server_error")) => Reason::Overloaded,
        _ => Reason::AgentError,
    };
    Some((reason, text))
}

fn refused(reading: &Reading, now: Ms) -> Option<RunFailure> {
    let (reason, text) = error_of(reading)?;
    if reading.result.as_ref().is_some_and(|ending| ending.subtype == "error_max_budget_usd") {
        let cost_usd = reading.usage().map_or(0.0, |usage| usage.cost_usd);
        let message = format!("the run used {cost_usd:.4} USD, more than its budget; {text}");
        return Some(RunFailure::new(Reason::BudgetExceeded, message));
    }
    let retry_at = match reason {
        // Clocks differ: with a reset time in the past, the task would be tried again at once.
        Reason::RateLimited => Some(reading.resets_at.map_or(now + UNKNOWN_RESET_MS, |at| at.max(now + SHORTEST_PAUSE_MS))),
        _ => None,
    };
    Some(RunFailure { retry_at, ..RunFailure::new(reason, text) })
}

/// The answer in the format that the task asks for, and whether it is only the beginning of what the run said.
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::prices::Prices;

    fn task(format: &str) -> Task {
        serde_json::from_value(json!({
            "id": Uuid::nil(), "context_id": "c", "agent_slug": "a", "prompt": "p", "policy": {"timeout_sec": 60}, "desired_format": format,
        }))
        .unwrap()
    }

    fn verdict(format: &str, lines: &[serde_json::Value], end: End) -> Completion {
        let mut reading = Reading::default();
        lines.iter().for_each(|line| reading.line(&line.to_string(), &mut Vec::new()));
        match decide(&task(format), Uuid::nil(), &reading, &end, 1_000) {
            Verdict::Complete(completion) => *completion,
            Verdict::Release { .. } => panic!("handed back"),
        }
    }

    fn exit(status: &str) -> End {
        End { exit: Some(status.into()), ..End::default() }
    }

    fn result(more: serde_json::Value) -> serde_json::Value {
        let mut result =
            json!({"type": "result", "subtype": "success", "is_error": false, "result": "done", "total_cost_usd": 0.5, "usage": {}});
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        result
    }

    #[test]
    fn the_stream_decides_not_the_exit_status() {
        let good = verdict("text", &[result(json!({}))], exit("143"));
        assert_eq!((good.status, good.output.as_deref(), good.reason), (Outcome::Success, Some("done"), None));
        let late = verdict("text", &[result(json!({}))], End { stop: Some(Stop::Timeout), ..exit("9") });
        assert_eq!(late.status, Outcome::Success, "the run had succeeded before it was stopped");
        let lie = verdict("text", &[result(json!({"is_error": true, "result": "API Error: 529", "api_error_status": 529}))], exit("0"));
        assert_eq!((lie.status, lie.reason, lie.keep_attempt), (Outcome::Error, Some(Reason::Overloaded), true));
        let begun = json!({"type": "system", "subtype": "init", "session_id": "s"});
        assert_eq!(verdict("text", &[begun], exit("0")).reason, Some(Reason::AgentError), "a stream without a result");
        let unbegun = verdict("text", &[], End { tells_session: true, ..exit("1") });
        assert_eq!((unbegun.reason, unbegun.keep_attempt), (Some(Reason::SpawnFailed), true));
        assert_eq!(verdict("text", &[], exit("1")).reason, Some(Reason::AgentError), "a program that may have worked");
        assert_eq!(verdict("text", &[], End::default()).reason, Some(Reason::WorkerLost));
    }

    #[test]
    fn each_reason_and_what_becomes_of_the_task() {
        let error = |more| vec![result(more)];
        let limited = json!({"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 1_800_000_000}});
        let stop = |stop| End { stop: Some(stop), ..End::default() };
        // Reason, retryable, attempt kept.
        for (lines, end, reason, retryable, kept) in [
            (error(json!({"is_error": true, "api_error_status": 401})), exit("1"), Reason::Auth, true, true),
            (error(json!({"is_error": true, "api_error_status": 402})), exit("1"), Reason::Billing, true, true),
            (error(json!({"is_error": true, "api_error_status": 429})), exit("1"), Reason::RateLimited, true, true),
            (vec![limited], exit("1"), Reason::RateLimited, true, true),
            (error(json!({"is_error": true, "api_error_status": 503})), exit("1"), Reason::Overloaded, true, true),
            (error(json!({"is_error": true, "subtype": "error_max_budget_usd"})), exit("1"), Reason::BudgetExceeded, false, false),
            (error(json!({"is_error": true, "subtype": "error_max_turns"})), exit("1"), Reason::AgentError, true, false),
            (error(json!({"result": "no JSON"})), exit("0"), Reason::BadOutput, false, false),
            (vec![], stop(Stop::Timeout), Reason::Timeout, false, false),
            (vec![], End { retry_timeouts: true, ..stop(Stop::Timeout) }, Reason::Timeout, true, false),
            (vec![], stop(Stop::Stalled), Reason::Stalled, true, false),
            (vec![], stop(Stop::Cancelled), Reason::Cancelled, false, false),
            (vec![], stop(Stop::LeaseLost), Reason::WorkerLost, true, true),
            (vec![], stop(Stop::Unstored), Reason::WorkerDisk, true, true),
            (vec![], End { not_started: Some("no such file".into()), ..End::default() }, Reason::SpawnFailed, true, true),
            (vec![], End { out_of_memory: true, ..exit("137") }, Reason::OutOfMemory, true, false),
            (vec![], End { out_of_memory: true, ..stop(Stop::Timeout) }, Reason::Timeout, false, false),
        ] {
            let told = verdict("json", &lines, end);
            assert_eq!((told.reason, told.retryable, told.keep_attempt), (Some(reason), retryable, kept), "{lines:?}");
            assert_eq!(told.retry_at.is_some(), reason == Reason::RateLimited);
        }
    }

    #[test]
    fn json_is_taken_out_of_its_fence() {
        for answer in ["{\"a\": 1}", "```json\n{\"a\": 1}\n```", "```\n{\"a\": 1}\n```"] {
            assert_eq!(verdict("json", &[result(json!({"result": answer}))], exit("0")).output.as_deref(), Some("{\"a\": 1}"));
        }
        let bad = verdict("json", &[result(json!({"result": "Here: {}"}))], exit("0"));
        assert_eq!((bad.reason, bad.output.as_deref()), (Some(Reason::BadOutput), Some("Here: {}")));
    }

    #[test]
    fn an_answer_that_is_too_long_is_cut_and_marked() {
        let long = result(json!({"result": "ä".repeat(MAX_OUTPUT / 2 + 1)}));
        let cut = verdict("text", std::slice::from_ref(&long), exit("0"));
        assert_eq!((cut.status, cut.output.unwrap().len()), (Outcome::Success, MAX_OUTPUT));
        assert_eq!(cut.artifact_tags.texts(), vec!["output_cut".to_owned()]);
        assert_eq!(verdict("json", &[long], exit("0")).reason, Some(Reason::BadOutput));

        let mut reading = Reading::new(true, Prices::default());
        reading.line("the beginning", &mut Vec::new());
        reading.cut();
        let Verdict::Complete(plain) = decide(&task("text"), Uuid::nil(), &reading, &exit("0"), 1_000) else { panic!("handed back") };
        assert_eq!((plain.status, plain.output.as_deref()), (Outcome::Success, Some("the beginning\n")));
        assert_eq!(plain.artifact_tags.texts(), vec!["output_cut".to_owned()]);
    }

    #[test]
    fn denied_tools_are_marked() {
        let denied = verdict("text", &[result(json!({"permission_denials": [{"tool_name": "Bash"}]}))], exit("0"));
        assert_eq!((denied.status, denied.artifact_tags.texts()), (Outcome::Success, vec!["tools_denied".to_owned()]));
    }
}
