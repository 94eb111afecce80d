//! Sends many tasks in batches. Each batch takes effect completely or not at all.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{id_of, warnings};
use crate::CommandError;
use crate::interrupt::{answered, is_interrupted};
use crate::progress::Progress;
use crate::server_calls::Server;
use crate::show::{self, Form};
use crate::{columns, project, quota, term};
use bloom_api::new_tasks::MAX_BATCH;

/// By default, a server accepts 1 MiB per call. The difference leaves room for the JSON around the tasks.
const MAX_BATCH_BYTES: usize = 1_000_000;

/// A validated line that is ready to be sent.
pub(crate) struct Line {
    pub number: usize,
    /// The name by which later lines can depend on this one.
    pub name: Option<String>,
    /// The task. It has a [`placeholder`] in place of the id of each task of an earlier line.
    pub body: Box<RawValue>,
    /// The positions of the lines that it depends on.
    pub after: Vec<usize>,
}

/// The placeholder for the id of the task of the line at this position, until the server has created the task.
pub(crate) fn placeholder(position: usize) -> String {
    Uuid::from_u128(position as u128).to_string()
}

impl Line {
    /// The task to send.
    ///
    /// # Errors
    /// The body is not a JSON object. This can't happen, because the body has been validated.
    fn task(&self, ids: &[String]) -> Result<Box<RawValue>, CommandError> {
        if self.after.is_empty() {
            return Ok(self.body.clone());
        }
        let wrong = |error: serde_json::Error| CommandError::from(error.to_string());
        let mut task: Map<String, Value> = serde_json::from_str(self.body.get()).map_err(wrong)?;
        for named in task.get_mut("depends_on").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(position) = self.after.iter().find(|position| *named == placeholder(**position)) {
                *named = json!(ids.get(*position));
            }
        }
        to_raw_value(&task).map_err(wrong)
    }
}

/// The results of the acknowledged batches.
#[derive(Default)]
pub(crate) struct Made {
    pub existed: u64,
    /// The ids of the tasks, in the order of the lines.
    pub ids: Vec<String>,
    /// The created tasks, if they are to be printed at the end.
    pub tasks: Vec<Value>,
}

/// Why no further batch was sent.
pub(crate) enum End {
    All,
    Interrupted,
    /// The command was interrupted while a batch was being sent, and the answer did not arrive in time.
    Unacknowledged,
}

/// Sends batch after batch, until Ctrl-C; smaller ones if the quota of the key has no room for a batch. `made` is correct even
/// after a failure.
///
/// `form`: the format in which the tasks are printed when they are created; `None`: they are not printed.
///
/// # Errors
/// A batch was refused, or its tasks can't be printed.
pub(crate) async fn send(
    server: &Server,
    lines: &[Line],
    form: Option<Form>,
    progress: &Progress,
    made: &mut Made,
) -> Result<End, CommandError> {
    let mut feed = form.filter(|form| !form.is_data()).map(|form| show::Feed::new(form, &columns::TASKS));
    let mut told = BTreeSet::new();
    let (mut left, mut most) = (VecDeque::from(batches(lines)), MAX_BATCH);
    while let Some(range) = left.pop_front() {
        if is_interrupted() {
            return Ok(End::Interrupted);
        }
        let end = range.end.min(range.start + most);
        if end < range.end {
            left.push_front(end..range.end);
        }
        let batch = &lines[range.start..end];
        let unsent = match (batch[0].number, lines[lines.len() - 1].number) {
            (first, last) if first == last => format!("line {first} was"),
            (first, last) => format!("lines {first} to {last} were"),
        };
        let bodies = batch.iter().map(|line| line.task(&made.ids)).collect::<Result<Vec<_>, _>>()?;
        let body = json!({ "tasks": bodies });
        let Some(sent) = answered(server.post_surely("api/runtime/llm-tasks:batch", &body)).await else {
            return Ok(End::Unacknowledged);
        };
        if batch.len() > 1 && sent.as_ref().is_err_and(quota::has_room_for_less) {
            // So as many tasks are created as there is room for; a long file would otherwise fit only when all earlier tasks have ended.
            most = batch.len() / 2;
            left.push_front(range.start..end);
            continue;
        }
        let sent = sent.map_err(|failure| match conflicting(batch, &failure.message) {
            Some((line, key)) => CommandError {
                message: format!(
                    "line {line}: the idempotency key {key} was used for another task, with another context_id, agent_slug or prompt; {unsent} \
                     not submitted"
                ),
                ..failure
            },
            None => failure.about(&format!("{unsent} not submitted")),
        });
        let mut answer = match sent {
            Ok(answer) => answer,
            Err(failure) => return Err(project::with_meant(quota::with_what_to_do(failure, server).await, server).await),
        };
        let Value::Array(tasks) = answer["tasks"].take() else {
            return Err("the server's answer has no tasks, which its API promises".to_owned().into());
        };
        made.existed += answer["existed"].as_u64().unwrap_or_default();
        progress.add(batch.len() as u64);
        for task in &tasks {
            made.ids.push(id_of(task)?);
            // Warnings about the same agent are printed only once, although each batch may report it with another suggestion.
            let is_new = |_: &String| told.insert(task["agent_slug"].to_string());
            warnings(task).filter(is_new).for_each(|warning| term::info(&warning));
        }
        match (&mut feed, form) {
            (Some(feed), _) => feed.print(&tasks)?,
            (None, Some(_)) => made.tasks.extend(tasks),
            (None, None) => {}
        }
    }
    Ok(End::All)
}

/// The number and the idempotency key of the line whose key the server's refusal names. The server may have prefixed the key with the name
/// of a submit key.
fn conflicting(batch: &[Line], refusal: &str) -> Option<(usize, String)> {
    let (_, named) = refusal.split_once("Idempotency key '")?;
    let (named, _) = named.split_once("' was used for another task")?;
    let keys = batch.iter().filter_map(|line| {
        let task: Map<String, Value> = serde_json::from_str(line.body.get()).ok()?;
        Some((line.number, task.get("idempotency_key")?.as_str()?.to_owned()))
    });
    let is_named = |key: &str| named == key || named.strip_suffix(key).is_some_and(|owner| owner.ends_with('/'));
    // If several lines have the same key, the last one is the one that differs. If several keys have the same end, the longest is the
    // complete one.
    keys.filter(|(_, key)| is_named(key)).max_by_key(|(number, key)| (key.len(), *number))
}

/// The ranges of lines that form the batches. A line that depends on another one is in a later batch, so that the id of the other's task is
/// known.
fn batches(lines: &[Line]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, line) in lines.iter().enumerate() {
        let length = line.body.get().len() + 1;
        let needs_id = line.after.iter().any(|position| *position >= start);
        if at > start && (needs_id || at - start == MAX_BATCH || bytes + length > MAX_BATCH_BYTES) {
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

    #[test]
    fn batches_are_bounded_by_number_and_size() {
        let line = |length: usize| Line { number: 0, name: None, body: to_raw_value(&"x".repeat(length)).unwrap(), after: Vec::new() };
        let many: Vec<Line> = (0..2500).map(|_| line(1)).collect();
        assert_eq!(batches(&many), [0..1000, 1000..2000, 2000..2500]);
        let long: Vec<Line> = [400_000, 400_000, 400_000, 2_000_000, 5].into_iter().map(line).collect();
        assert_eq!(batches(&long), [0..2, 2..3, 3..4, 4..5]);
        let after = |after: &[usize]| Line { after: after.to_vec(), ..line(1) };
        assert_eq!(batches(&[after(&[]), after(&[0]), after(&[0]), after(&[]), after(&[2, 0]), after(&[1])]), [0..1, 1..4, 4..6]);
    }

    #[test]
    fn ids_take_the_place_of_placeholders() {
        let body = to_raw_value(&json!({ "prompt": "p", "depends_on": [placeholder(1), "x", placeholder(0)] })).unwrap();
        let line = Line { number: 3, name: None, body, after: vec![0, 1] };
        let task: Value = serde_json::from_str(line.task(&["a".into(), "b".into()]).unwrap().get()).unwrap();
        assert_eq!(task["depends_on"], json!(["b", "x", "a"]));
    }

    #[test]
    fn the_line_of_a_conflict_is_found_by_its_key() {
        let lines = |keys: &[&str]| -> Vec<Line> {
            let body = |key: &&str| to_raw_value(&json!({ "prompt": "p", "idempotency_key": key })).unwrap();
            keys.iter().enumerate().map(|(at, key)| Line { number: at + 1, name: None, body: body(key), after: Vec::new() }).collect()
        };
        let found = |keys: &[&str], named: &str| {
            let refusal = format!("Idempotency key '{named}' was used for another task: context_id, agent_slug or prompt differ");
            conflicting(&lines(keys), &refusal)
        };
        assert_eq!(found(&["a", "b"], "b"), Some((2, "b".into())));
        assert_eq!(found(&["b", "x/b"], "ci/x/b"), Some((2, "x/b".into())), "a submit key's name is in front");
        assert_eq!(found(&["b", "a-b"], "a-b"), Some((2, "a-b".into())));
        assert_eq!(found(&["b", "b"], "b"), Some((2, "b".into())), "the second one differs from the first");
        assert_eq!(found(&["a"], "b"), None);
        assert_eq!(conflicting(&lines(&["a"]), "Idempotency key was used for another task"), None, "an older server");
    }
}
