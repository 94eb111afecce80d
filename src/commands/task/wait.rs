//! Waits for the end of tasks, and shows meanwhile what the task waits for.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use super::selection::{Act, Selection};
use crate::CommandError;
use crate::describe::advice::advice;
use crate::ids::path;
use crate::interrupt::or_interrupted;
use crate::progress::tasks;
use crate::retry::Retry;
use crate::server_calls::{Server, read, with_query};
use crate::show::{self, Form, Shown};
use crate::when::{self, span_text};
use crate::{columns, term};
use bloom_api::tasks::Task;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::task::{Status, WaitingReason};

/// How to go on after Ctrl-C.
pub(crate) const SAME_AGAIN: &str = "Give the same command again to wait for it.";
const WAIT: Act = Act::reading("wait", "queued,running");

/// How many seconds the first calls wait: short at first, when much changes, then longer to save the server's rate limit.
const STEPS: [u64; 5] = [2, 5, 10, 20, 30];
/// The pause between calls, for a server that answers at once, as it does while it shuts down.
const PAUSE: Duration = Duration::from_millis(200);
/// After this time, a reason that is still the same is told again, with the time of the next try by now.
const REMINDER: Duration = Duration::from_secs(300);
/// The time for one answer of the server.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
pub struct WaitArgs {
    /// Wait at most this long, such as 5m or 2h; a number alone is seconds
    #[arg(long, alias = "wait-timeout", value_name = "TIME", value_parser = when::duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
    #[command(flatten)]
    selection: Selection,
}

/// `task wait`
///
/// # Errors
/// A task does not exist, was not finished in time, or is not completed. Those that are finished are shown before.
pub(crate) async fn run(args: WaitArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let chosen = args.selection.find_all(&WAIT, server).await?;
    CommandError::all(&chosen.failures)?;
    let mut waiting = WaitOptions::new(args.timeout, false);
    if let ([id], false) = (chosen.ids.as_slice(), chosen.is_by_filter) {
        let task = interruptible(id, waiting.until_finished(server, id)).await?;
        show::one(shown.form_or(Form::Table), &columns::TASKS, &task)?;
        return must_be_completed_or_advise(&read(&task)?);
    }
    // A missing task is reported now, and not only after the tasks before it have finished.
    if !chosen.is_by_filter {
        for id in &chosen.ids {
            waiting.find(server, id).await?;
        }
    }
    let (tasks, mut failures) = waiting.for_all(server, &chosen.ids, SAME_AGAIN).await?;
    if !tasks.is_empty() {
        show::list(shown.form_or(Form::Table), &columns::TASKS, &tasks)?;
    }
    for task in &tasks {
        failures.extend(must_be_completed(&read(task)?).err());
    }
    CommandError::all(&failures)
}

/// Waits for tasks, with one time limit for all of them.
pub(crate) struct WaitOptions {
    limit: Option<(Duration, Instant)>,
    retry: Retry,
    progress: Progress,
}

impl WaitOptions {
    /// `was_there`: the server has answered before, so it may be away for a while.
    pub(crate) fn new(limit: Option<Duration>, was_there: bool) -> Self {
        // A limit that the clock can't represent means no limit.
        let limit = limit.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        Self { limit, retry: Retry::new(true, was_there), progress: Progress::new() }
    }

    /// Does not use the terminal's last line, because other output is printed there.
    pub(crate) fn without_line(mut self) -> Self {
        self.progress.has_line = false;
        self
    }

    /// Tells only why the task waits, also on a terminal: for a stream of events, which itself tells of a server that is away.
    pub(crate) fn with_reasons_only(mut self) -> Self {
        self.progress.is_terminal = false;
        self.retry = Retry::new(false, false);
        self.without_line()
    }

    /// Makes sure that the task exists.
    ///
    /// # Errors
    /// It does not exist, or the server was unreachable for too long.
    pub(crate) async fn find(&mut self, server: &Server, id: &str) -> Result<(), CommandError> {
        loop {
            match server.client.get::<IgnoredAny>(&path(id, "")).await {
                Ok(_) => {
                    self.retry.is_over();
                    return Ok(());
                }
                Err(error) => self.retry.pause(error).await.map_err(|failure| failure.about(id))?,
            }
        }
    }

    /// Waits until the task is finished, and returns it.
    ///
    /// # Errors
    /// The task does not exist, the time limit was reached, or the server was unreachable for too long.
    pub(crate) async fn until_finished(&mut self, server: &Server, id: &str) -> Result<Value, CommandError> {
        let done = match self.limit {
            None => self.poll(server, id).await,
            // The task is read once even if no time is left.
            Some((limit, end)) => {
                let answers_by = end.max(Instant::now() + ANSWER_LIMIT);
                timeout_at(answers_by, self.poll(server, id)).await.unwrap_or_else(|_| Err(too_late(id, limit)))
            }
        };
        self.progress.clear();
        done
    }

    /// Waits until all are finished, and returns these, and why others were not. `how`: how to go on after Ctrl-C.
    ///
    /// # Errors
    /// Ctrl-C.
    pub(crate) async fn for_all(
        &mut self,
        server: &Server,
        ids: &[String],
        how: &str,
    ) -> Result<(Vec<Value>, Vec<CommandError>), CommandError> {
        let all = async {
            let (mut tasks, mut failures) = (Vec::new(), Vec::new());
            for id in ids {
                match self.until_finished(server, id).await {
                    Ok(task) => tasks.push(task),
                    Err(failure) => failures.push(failure),
                }
            }
            Ok((tasks, failures))
        };
        or_interrupted(all, || format!("interrupted; what is not finished of {} goes on. {how}", tasks(ids.len() as i64))).await
    }

    async fn poll(&mut self, server: &Server, id: &str) -> Result<Value, CommandError> {
        let started = Instant::now();
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut steps = STEPS.into_iter();
        let mut seconds = 0;
        loop {
            seconds = steps.next().unwrap_or(seconds);
            let left = self.limit.map_or(u64::MAX, |(_, end)| end.saturating_duration_since(Instant::now()).as_secs());
            seconds = seconds.min(left);
            let path = with_query(&path(id, "/wait"), &[("timeout_sec", seconds.to_string())]);
            let mut call = pin!(server.client.get::<Value>(&path));
            let answer = loop {
                tokio::select! {
                    answer = &mut call => break answer,
                    _ = ticks.tick() => self.progress.tick(started.elapsed()),
                }
            };
            match answer {
                Ok(answer) => {
                    self.retry.is_over();
                    let task: Task = read(&answer)?;
                    self.progress.saw(id, &task);
                    if matches!(task.status, Word::Known(status) if status.is_final()) {
                        return Ok(answer);
                    }
                    if let Some((limit, _)) = self.limit.filter(|(_, end)| Instant::now() >= *end) {
                        return Err(too_late(id, limit));
                    }
                    sleep(PAUSE).await;
                }
                Err(error) => {
                    self.progress.clear();
                    self.retry.pause(error).await.map_err(|failure| failure.about(id))?;
                }
            }
        }
    }
}

/// # Errors
/// The task was not completed; the text says why.
pub(crate) fn must_be_completed(task: &Task) -> Result<(), CommandError> {
    if task.status == Status::Completed {
        return Ok(());
    }
    let status = task.status.to_string();
    let told = match task.failure.as_ref().map(columns::failure) {
        None => status,
        // A reason such as "cancelled on request" contains the status already.
        Some(failure) if failure.starts_with(&status) => failure,
        Some(failure) => format!("{status}: {failure}"),
    };
    let (told, id) = (term::indented(&told), task.id);
    let advice = if task.status == Status::Cancelled { String::new() } else { format!("; see bloom-runtime task describe {id}") };
    Err(format!("task {id} is {told}{advice}").into())
}

/// Stands before the advice of [`must_be_completed_or_advise`].
pub(crate) const WHAT_TO_DO: &str = "\nWhat to do: ";

/// As [`must_be_completed`], for one task: a list of failures would have an advice for each.
///
/// # Errors
/// The task was not completed; the text says why, and what to do about it.
pub(crate) fn must_be_completed_or_advise(task: &Task) -> Result<(), CommandError> {
    let ended = must_be_completed(task);
    if task.status == Status::Cancelled {
        return ended;
    }
    ended.map_err(|failure| {
        let to_do = advice(task, &task.id.to_string(), None);
        CommandError { message: format!("{failure}{WHAT_TO_DO}{to_do}"), ..failure }
    })
}

/// # Errors
/// The task is not finished, so it has no answer yet, or only that of an earlier attempt.
pub(crate) fn must_be_over(task: &Task) -> Result<(), CommandError> {
    if matches!(task.status, Word::Known(status) if !status.is_final()) {
        let id = task.id;
        return Err(format!("task {id} {}; it has no answer yet. Wait for it with: bloom-runtime task wait {id}", state(task)).into());
    }
    Ok(())
}

/// What the task does now, or what it waits for.
fn state(task: &Task) -> String {
    match (&task.status, &task.waiting) {
        (_, Some(waiting)) => {
            let (reason, message) = (&waiting.reason, term::indented(&waiting.message));
            match reason {
                // The message is a whole sentence about the task.
                Word::Known(WaitingReason::NotBefore) if task.failure.is_some() => message,
                // A command that answers must name the question. Its id is unknown here, and the run may ask another one meanwhile.
                Word::Known(WaitingReason::NeedsHuman) => {
                    format!("waits: {reason}: {message}; bloom-runtime task describe {} shows what it asks, and how to answer", task.id)
                }
                _ => format!("waits: {reason}: {message}"),
            }
        }
        (Word::Known(Status::Leased | Status::Running), _) => {
            let worker = task.worker_id.as_deref().unwrap_or_default();
            format!("runs on {worker}, attempt {} of {}", task.attempts, task.max_attempts)
        }
        (status, _) => format!("is {status}"),
    }
}

/// The text without its times.
fn without_times(text: &str) -> String {
    let is_time = |word: &&str| word.trim_end_matches([',', ';', '.']).parse::<jiff::Timestamp>().is_ok();
    text.split(' ').filter(|word| !is_time(word)).collect::<Vec<_>>().join(" ")
}

fn too_late(id: &str, limit: Duration) -> CommandError {
    let limit = span_text(Ms::try_from(limit.as_millis()).unwrap_or(Ms::MAX));
    CommandError::too_late(format!("task {id} is not finished after {limit}; it goes on. Wait again with: bloom-runtime task wait {id}"))
}

/// Does the work until Ctrl-C. Interrupting it does not affect the task on the server.
///
/// # Errors
/// Those of the work, and the interruption.
pub(crate) async fn interruptible<T>(id: &str, work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    let told = || {
        format!(
            "interrupted; task {id} goes on. Wait for it with: bloom-runtime task wait {id}\n\
             See its answer then with: bloom-runtime task result {id}; stop it with: bloom-runtime task cancel {id}"
        )
    };
    or_interrupted(work, told).await
}

/// What the user sees meanwhile: each new reason for waiting; on a terminal each change of the task, and a last line with the elapsed time.
struct Progress {
    is_terminal: bool,
    has_line: bool,
    /// The last state.
    told: String,
    /// What it waited for so far, and when that was told. A task that is tried again for hours waits for the same again and again, but for the
    /// times.
    told_reasons: HashMap<String, Instant>,
    is_line_shown: bool,
}

impl Progress {
    fn new() -> Self {
        let is_terminal = term::is_err_terminal();
        Self { is_terminal, has_line: is_terminal, told: String::new(), told_reasons: HashMap::new(), is_line_shown: false }
    }

    fn saw(&mut self, id: &str, task: &Task) {
        let news = state(task);
        if news == self.told {
            return;
        }
        let is_new = match &task.waiting {
            None => self.is_terminal,
            // A question is shown each time, because each one needs an answer.
            Some(waiting) if waiting.reason == WaitingReason::NeedsHuman => true,
            Some(_) => {
                let told = self.told_reasons.insert(format!("{id} {}", without_times(&news)), Instant::now());
                told.is_none_or(|at| at.elapsed() > REMINDER)
            }
        };
        if is_new {
            self.clear();
            term::info(&format!("task {id} {news}"));
        }
        self.told = news;
    }

    fn tick(&mut self, waited: Duration) {
        if self.has_line {
            term::last_line(&format!("… {} s", waited.as_secs()));
            self.is_line_shown = true;
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_line_shown) {
            term::last_line("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_time_is_no_other_reason() {
        let at = |time: &str| format!("every worker is paused: not logged in; tried again at {time}, or sooner");
        assert_eq!(without_times(&at("2026-01-01T00:00:00Z")), without_times(&at("2026-01-01T00:05:00Z")));
        assert_ne!(without_times("waits for a"), without_times("waits for b"));
    }
}
