//! Prints the events of runs, also while they arrive.

use serde_json::Value;
use uuid::Uuid;

use super::EventArgs;
use super::result::answer;
use super::wait::{WaitOptions, interruptible, must_be_completed_or_advise};
use crate::CommandError;
use crate::ids::path;
use crate::retry::Retry;
use crate::server_calls::{Server, failed, read, with_query};
use crate::show::{self, Form, Shown};
use crate::when::span_text;
use crate::{columns, term};
use bloom_api::answers::Event;
use bloom_api::phases::Phase;
use bloom_api::tasks::Task;
use bloom_api::tool_calls;
use bloom_api::words::Word;
use bloom_client::Error;
use bloom_core::Ms;
use bloom_core::event::EventKind;

/// The number of events per page. Each may have 256 KiB.
const PAGE: usize = 500;
/// The maximum number of characters of an event on its line.
const LINE: usize = 200;
/// How many bytes of an unfinished line are kept.
const MAX_HELD: usize = 1 << 16;

/// `submit --follow`: prints the run's text while it arrives. If the run had no text, its answer is printed.
///
/// # Errors
/// The task did not complete, or its events can't be read.
pub(crate) async fn to_the_end(server: &Server, id: &str, waiting: WaitOptions, shown: Shown) -> Result<(), CommandError> {
    let mut transcript = Transcript::new(shown.form_or(Form::Table), false);
    let mut waiting = waiting.without_line();
    // The state of the task is polled in addition to the stream, because the stream has no events while the task waits for its run.
    let events = path(id, "/events");
    let streamed = stream(server, &events, id, Retry::new(false, true), |event| transcript.take(event));
    let (task, ()) = tokio::try_join!(waiting.until_finished(server, id), streamed)?;
    transcript.end_line()?;
    must_be_completed_or_advise(&read(&task)?)?;
    if transcript.has_text || transcript.form.is_data() { Ok(()) } else { answer(server, id, shown).await }
}

/// The log of one task.
///
/// # Errors
/// The task does not exist, or its events can't be read.
pub(crate) async fn logs(id: &str, args: &EventArgs, server: &Server, form: Form) -> Result<(), CommandError> {
    let log = Log::of(String::new(), args, form);
    if args.follow {
        return interruptible(id, log.follow(id, server)).await;
    }
    let events = log.print(id, server).await?;
    if form.is_data() { show::as_it_came(form, &events) } else { Ok(()) }
}

/// The output of `task logs` for one task.
pub(crate) struct Log<'a> {
    args: &'a EventArgs,
    transcript: Transcript<'a>,
}

impl<'a> Log<'a> {
    /// `name`: the prefix of each line, which distinguishes the lines of several tasks; empty: there is no prefix.
    pub(crate) fn of(name: String, args: &'a EventArgs, form: Form) -> Self {
        let transcript = Transcript { kinds: &args.kind, has_times: args.timestamps, name, ..Transcript::new(form, true) };
        Self { args, transcript }
    }

    fn newest(&self) -> Option<(&'static str, String)> {
        self.args.tail.map(|count| ("last", count.to_string()))
    }

    /// Prints events until the task is finished.
    ///
    /// # Errors
    /// The task does not exist, or its events can't be read.
    pub(crate) async fn follow(mut self, id: &str, server: &Server) -> Result<(), CommandError> {
        // A waiting task has no events, so the reason why it waits is printed separately.
        let mut waiting = WaitOptions::new(None, false).with_reasons_only();
        let events = with_query(&path(id, "/events"), self.newest().as_slice());
        let streamed = stream(server, &events, id, Retry::new(true, false), |event| self.transcript.take(event));
        let (task, ()) = tokio::try_join!(waiting.until_finished(server, id), streamed)?;
        self.transcript.end(&task)
    }

    /// Prints the existing events. In a format for programs, returns them instead.
    ///
    /// # Errors
    /// The task does not exist, or its events can't be read.
    pub(crate) async fn print(mut self, id: &str, server: &Server) -> Result<Vec<Value>, CommandError> {
        let mut all = Vec::new();
        let limit = ("limit", PAGE.to_string());
        let query: Vec<_> = std::iter::once(limit).chain(self.newest()).collect();
        let mut next = Some(with_query(&path(id, "/events"), &query));
        while let Some(page) = next.take() {
            let (events, after) = server.page(&page).await.map_err(|error| failed(error).about(id))?;
            next = after.filter(|_| !events.is_empty());
            for event in events {
                if !self.transcript.form.is_data() {
                    self.transcript.take(&event)?;
                } else if self.transcript.wants(&read(&event)?) {
                    all.push(event);
                }
            }
        }
        if !self.transcript.form.is_data() {
            let task = server.client.get::<Value>(&path(id, "")).await.map_err(|error| failed(error).about(id))?;
            self.transcript.end(&task)?;
        }
        Ok(all)
    }
}

/// Calls `take` for each event until the task is finished. If the stream breaks, it is resumed after the last event.
async fn stream(
    server: &Server,
    path: &str,
    id: &str,
    mut retry: Retry,
    mut take: impl FnMut(&Value) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut last: Option<String> = None;
    loop {
        let error = match server.client.events(path, last.as_deref()).await {
            Ok(mut events) => loop {
                retry.is_over();
                match events.next().await {
                    Ok(Some(event)) if event.name == "end" => return Ok(()),
                    Ok(Some(event)) => {
                        let value = serde_json::from_str(&event.data)
                            .map_err(|error| failed(Error::Garbled(format!("an event of {id} is not valid JSON: {error}"))))?;
                        last = event.id.or(last);
                        take(&value)?;
                    }
                    Ok(None) => break Error::Broken("the server has ended the stream".into()),
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        retry.pause(error).await.map_err(|failure| failure.about(id))?;
    }
}

/// Prints events.
struct Transcript<'a> {
    form: Form,
    /// Whether all events go to standard output, as in `task logs`. Otherwise only text goes there, and everything else to standard error.
    is_log: bool,
    /// The kinds of events to print; empty: all.
    kinds: &'a [String],
    /// Whether each line begins with the time of its event.
    has_times: bool,
    /// The lease of the last event. Another lease means that another run has begun.
    lease: Option<Uuid>,
    /// The prefix of each line. If it is not empty, only complete lines are printed, because other tasks print at the same time.
    name: String,
    held: String,
    /// Whether a tool was used since the last text. The next text then starts on a new line.
    is_cut: bool,
    has_text: bool,
}

impl<'a> Transcript<'a> {
    fn new(form: Form, is_log: bool) -> Self {
        Self {
            form,
            is_log,
            kinds: &[],
            has_times: false,
            lease: None,
            name: String::new(),
            held: String::new(),
            is_cut: false,
            has_text: false,
        }
    }

    fn wants(&self, event: &Event) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&event.kind.to_string())
    }

    fn take(&mut self, answer: &Value) -> Result<(), CommandError> {
        let event: Event = read(answer)?;
        if !self.wants(&event) {
            return Ok(());
        }
        if self.form.is_data() {
            return show::one_of_many(self.form, answer);
        }
        if self.lease.is_some_and(|lease| lease != event.lease_id) {
            self.aside(event.at, "[again] another run of this task")?;
            self.is_cut = true;
        }
        self.lease = Some(event.lease_id);
        let (kind, data) = (event.kind, &event.data.get().parse::<Value>().unwrap_or_default());
        match (&kind, text_of(data)) {
            (Word::Known(EventKind::Stderr), Some(text)) => {
                text.lines().try_for_each(|line| self.aside(event.at, &format!("[{kind}] {}", term::short(line, LINE))))
            }
            (Word::Known(EventKind::Text), Some("")) => Ok(()),
            (Word::Known(EventKind::Text), Some(text)) => {
                if std::mem::take(&mut self.is_cut) {
                    self.end_line()?;
                }
                self.has_text = true;
                self.text(event.at, text)
            }
            _ => {
                self.is_cut |= matches!(kind, Word::Known(EventKind::ToolUse | EventKind::ToolResult));
                // With --follow, the user wants to see the progress, but not the results of tools.
                let is_shown = self.is_log || !matches!(kind, Word::Known(EventKind::ToolResult | EventKind::Usage));
                match told(&kind, data).filter(|_| is_shown) {
                    Some(told) => self.aside(event.at, &format!("[{kind}] {told}")),
                    None => Ok(()),
                }
            }
        }
    }

    /// Prints a text of the run, which may end in the middle of a line.
    fn text(&mut self, at: Ms, text: &str) -> Result<(), CommandError> {
        for part in text.split_inclusive('\n') {
            let goes_on = if self.name.is_empty() { term::is_in_line() } else { !self.held.is_empty() };
            let head = if goes_on { String::new() } else { self.head(at) };
            if self.name.is_empty() {
                term::print(&head)?;
                term::print_foreign(part)?;
                continue;
            }
            self.held += &head;
            self.held += part;
            if part.ends_with('\n') {
                term::print_foreign(&std::mem::take(&mut self.held))?;
            } else if self.held.len() > MAX_HELD {
                self.end_line()?;
            }
        }
        Ok(())
    }

    /// The beginning of a line.
    fn head(&self, at: Ms) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!("{} ", self.name) };
        match jiff::Timestamp::from_millisecond(at) {
            Ok(at) if self.has_times => format!("{name}{at:.3} "),
            _ => name,
        }
    }

    /// Prints why the task, or its last run, failed.
    fn end(&mut self, task: &Value) -> Result<(), CommandError> {
        let task: Task = read(task)?;
        match &task.failure {
            Some(failure) if self.kinds.is_empty() && !self.form.is_data() => {
                self.aside(failure.at, &format!("[failure] {}: {}", failure.reason, failure.message))
            }
            _ => self.end_line(),
        }
    }

    /// Prints something other than text of the run, on a line of its own.
    fn aside(&mut self, at: Ms, line: &str) -> Result<(), CommandError> {
        if self.is_log {
            self.end_line()?;
            return term::print_foreign(&format!("{}{}\n", self.head(at), term::line(line)));
        }
        term::info(&term::indented(line));
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), CommandError> {
        if self.name.is_empty() {
            return term::end_line();
        }
        if self.held.is_empty() {
            return Ok(());
        }
        term::print_foreign(&(std::mem::take(&mut self.held) + "\n"))
    }
}

/// The text of an event: its data, or the `text` in it.
fn text_of(data: &Value) -> Option<&str> {
    data.as_str().or_else(|| data["text"].as_str())
}

/// An event on one line, in the words of `task logs`; `None` if it is of no interest to people.
pub(crate) fn in_words(event: &Event<'_>) -> Option<String> {
    told(&event.kind, &event.data.get().parse::<Value>().unwrap_or_default())
}

/// An event on one line; `None` if it is of no interest to people.
fn told(kind: &Word<EventKind>, data: &Value) -> Option<String> {
    match kind {
        Word::Known(EventKind::ToolResult) => Some(result(data)),
        Word::Known(EventKind::Lifecycle) => phase_in_words(data),
        _ => Some(summary(data)),
    }
}

/// The beginning of a tool's result, and its size if it is longer.
fn result(data: &Value) -> String {
    let blocks = data["content"].as_array().into_iter().flatten().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n");
    let text = text_of(data).or_else(|| data["content"].as_str()).map_or(blocks, str::to_owned);
    let text = text.trim();
    let failed = if data["is_error"] == true { "error: " } else { "" };
    let first = text.lines().next().unwrap_or_default();
    match first.len() == text.len() && text.chars().count() <= LINE {
        _ if text.is_empty() => summary(data),
        true => format!("{failed}{}", term::short(text, LINE)),
        false => format!("{failed}{} ({} bytes)", term::short(first, LINE), text.len()),
    }
}

/// The phase of a run in words. A phase without words here is shown by its text or, if there is none, by all its fields.
fn phase_in_words(data: &Value) -> Option<String> {
    match Phase::of(data) {
        Some(Phase::Session("") | Phase::Egress(_)) => None,
        Some(Phase::Session(model)) => Some(format!("the model is {model}")),
        Some(Phase::Started { resumed, worker, profile }) => {
            let begins = if resumed { "goes on with its conversation," } else { "begins" };
            let by = if profile.is_empty() { String::new() } else { format!(", by the profile {profile}") };
            Some(format!("the run {begins} on worker {worker}{by}"))
        }
        Some(Phase::Ended(ms)) => Some(format!("the run ends{}", ms.map(|ms| format!(" after {}", span_text(ms))).unwrap_or_default())),
        Some(Phase::Stopping(why)) => Some(format!("the run is stopped: {why}")),
        None => Some(summary(data)),
    }
}

/// An event on one line, made from whichever fields it has.
fn summary(data: &Value) -> String {
    let words = text_of(data).or_else(|| data["message"].as_str()).or_else(|| data["content"].as_str());
    let told = match (words, data["name"].as_str(), data.as_object()) {
        (Some(text), _, _) => text.to_owned(),
        (None, Some(name), _) => tool_calls::told(name, &data["input"]),
        (None, None, Some(members)) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            members.map(|(name, value)| format!("{name}={}", columns::text(value))).collect::<Vec<_>>().join(" ")
        }
        (None, None, None) => data.to_string(),
    };
    term::short(&told, LINE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_told_in_a_line() {
        assert_eq!(summary(&json!("plain\ntext")), "plain text");
        assert_eq!(summary(&json!({ "text": "a" })), "a");
        assert_eq!(summary(&json!({ "name": "Bash", "input": { "command": "ls" } })), "Bash: ls");
        let kind = |kind| Word::Known(kind);
        let lifecycle = |data: Value| told(&kind(EventKind::Lifecycle), &data);
        assert_eq!(lifecycle(json!({ "phase": "session", "session_id": "x", "model": "m" })).unwrap(), "the model is m");
        assert_eq!(lifecycle(json!({ "phase": "egress", "bytes": 5 })), None);
        let answered = told(&kind(EventKind::ToolResult), &json!({ "id": "x", "content": "one\ntwo" }));
        assert_eq!(answered.unwrap(), "one (7 bytes)");
        assert_eq!(summary(&json!({ "phase": "ended", "exit": null, "ms": 5 })), "phase=ended ms=5");
        assert_eq!(summary(&json!({ "id": "x", "content": "a file" })), "a file");
        assert_eq!(summary(&json!("x".repeat(500))).chars().count(), LINE);
    }
}
