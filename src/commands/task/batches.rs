//! Sends many tasks in batches, each of them completely or not at all.

use std::ops::Range;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::columns;
use super::super::connect::Server;
use super::super::interrupt::{answered, is_interrupted};
use super::super::progress::Progress;
use super::super::show::{self, Form, Shown};
use crate::CommandError;
use bloom_api::tasks::MAX_BATCH;

/// A server accepts 1 MiB per call by default; the difference is for the JSON around the tasks.
const MAX_BATCH_BYTES: usize = 1_000_000;

/// A checked line, ready to be sent.
pub struct Line {
    pub number: usize,
    pub body: Box<RawValue>,
}

/// What the acknowledged batches have made.
#[derive(Default)]
pub struct Made {
    pub existed: u64,
    /// The tasks, if they are printed at the end.
    pub tasks: Vec<Value>,
}

/// Why no further batch is sent.
pub enum End {
    All,
    Interrupted,
    /// Interrupted while a batch was under way, and its answer did not come in time.
    Unacknowledged,
}

/// Sends batch by batch, until Ctrl-C. `made` is right also after a failure.
///
/// # Errors
/// A batch was refused, or its tasks can't be printed.
pub async fn send(server: &Server, lines: &[Line], shown: Shown, progress: &Progress, made: &mut Made) -> Result<End, CommandError> {
    let mut feed = show::Feed::new(shown.form_or(Form::Name), &columns::TASKS);
    for batch in batches(lines) {
        if is_interrupted() {
            return Ok(End::Interrupted);
        }
        let batch = &lines[batch];
        let (first, last) = (batch[0].number, batch[batch.len() - 1].number);
        let bodies: Vec<&RawValue> = batch.iter().map(|line| &*line.body).collect();
        let body = json!({ "tasks": bodies });
        let Some(sent) = answered(server.post_surely("api/runtime/llm-tasks:batch", &body)).await else {
            return Ok(End::Unacknowledged);
        };
        let mut answer = sent.map_err(|failure| {
            failure.about(&format!(
                "lines {first} to {last} (positions in the batch count from 0), and all lines after them, were not submitted"
            ))
        })?;
        let Value::Array(tasks) = answer["tasks"].take() else {
            return Err("the server's answer has no tasks, which its API promises".to_owned().into());
        };
        made.existed += answer["existed"].as_u64().unwrap_or_default();
        progress.add(batch.len() as u64);
        match shown.form() {
            Some(form) if form.is_data() => made.tasks.extend(tasks),
            _ => feed.print(&tasks)?,
        }
    }
    Ok(End::All)
}

/// The lines of each batch.
fn batches(lines: &[Line]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, line) in lines.iter().enumerate() {
        let length = line.body.get().len() + 1;
        if at > start && (at - start == MAX_BATCH || bytes + length > MAX_BATCH_BYTES) {
            batches.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += length;
    }
    if start < lines.len() {
        batches.push(start..lines.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::to_raw_value;

    #[test]
    fn batches_are_bounded_by_number_and_size() {
        let line = |length: usize| Line { number: 0, body: to_raw_value(&"x".repeat(length)).unwrap() };
        let many: Vec<Line> = (0..2500).map(|_| line(1)).collect();
        assert_eq!(batches(&many), [0..1000, 1000..2000, 2000..2500]);
        let long: Vec<Line> = [400_000, 400_000, 400_000, 2_000_000, 5].into_iter().map(line).collect();
        assert_eq!(batches(&long), [0..2, 2..3, 3..4, 4..5]);
    }
}
