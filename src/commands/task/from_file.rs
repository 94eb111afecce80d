//! `task submit --from`: a file with one task per line.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::super::connect::{Server, failed};
use super::super::interrupt::or_interrupted;
use super::super::progress::{Progress, number};
use super::super::show::{self, Form, Shown};
use super::super::{columns, ids, term};
use super::bulk::tasks;
use super::fields::Fields;
use super::{standard_input, wrong_lines};
use crate::CommandError;
use bloom_api::tasks::{MAX_BATCH, NewTask};
use bloom_api::wire::Wire;

const MAX_FILE_BYTES: u64 = 256 << 20;
/// A server accepts 1 MiB per call by default; the difference is for the JSON around the tasks.
const MAX_BATCH_BYTES: usize = 1_000_000;
const MAX_COMPLAINTS: usize = 20;
/// Each is a call, and the server limits the number of calls per minute.
const MAX_LOOK_UPS: usize = 50;

pub fn open(path: &Path) -> Result<String, CommandError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| CommandError::usage(format!("{name} can't be opened: {error}")))?;
    read(&name, file)
}

pub fn read(name: &str, source: impl Read) -> Result<String, CommandError> {
    let mut text = String::new();
    let read = source.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| standard_input::unreadable(name, &error))? as u64 {
        0..=MAX_FILE_BYTES => Ok(standard_input::without_mark(text)),
        _ => Err(CommandError::usage(format!("{name} is longer than {MAX_FILE_BYTES} bytes: split it"))),
    }
}

/// A checked line, ready to be sent.
struct Line {
    number: usize,
    body: Box<RawValue>,
}

/// What makes the idempotency keys of a file's lines differ from those of other files.
pub enum Scope {
    /// `--idempotency-key`: the same lines with the same name are the same tasks, whoever submits them.
    Named(String),
    /// The file and the user who submits it, so that the files of two people never meet.
    File(PathBuf),
    /// `--again`: the lines are new tasks.
    Again,
}

impl Scope {
    fn value(&self) -> Value {
        match self {
            Self::Named(name) => json!(name),
            Self::File(path) => {
                let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                json!({ "file": path.to_string_lossy(), "user": rustix::process::getuid().as_raw(), "host": host, "machine": machine.trim() })
            }
            Self::Again => json!(Uuid::now_v7()),
        }
    }
}

/// Checks all lines, then submits them batch by batch, and prints the ids of each batch as soon as the server answers.
///
/// # Errors
/// A line is invalid, and nothing was sent; or a batch was refused, and it and all later ones were not submitted.
pub async fn submit(server: &Server, text: &str, defaults: &Fields, scope: &Scope, shown: Shown) -> Result<(), CommandError> {
    let found = look_up(server, text).await?;
    let lines = lines(text, &defaults.given()?, &scope.value(), &found)?;
    let total = lines.len() as u64;
    let progress = Progress::unless(!shown.form_or(Form::Name).is_data(), total);
    let existed = Cell::new(0);
    or_interrupted(send(server, &lines, shown, &progress, &existed), || {
        let how = if matches!(scope, Scope::Again) {
            "Remove the first lines from the file before you go on with the others."
        } else {
            "Give the same command again to go on; no line becomes a second task."
        };
        format!("interrupted: {} of {} lines were submitted, perhaps another batch. {how}", number(progress.done()), number(total))
    })
    .await?;
    drop(progress);
    term::info(&format!(
        "{}: {} new, {} existed already",
        tasks(i64::try_from(total).unwrap_or(i64::MAX)),
        number(total.saturating_sub(existed.get())),
        number(existed.get())
    ));
    Ok(())
}

async fn send(server: &Server, lines: &[Line], shown: Shown, progress: &Progress, existed: &Cell<u64>) -> Result<(), CommandError> {
    let mut feed = show::Feed::new(shown.form_or(Form::Name), &columns::TASKS);
    let mut all = Vec::new();
    for batch in batches(lines) {
        let batch = &lines[batch];
        let (first, last) = (batch[0].number, batch[batch.len() - 1].number);
        let bodies: Vec<&RawValue> = batch.iter().map(|line| &*line.body).collect();
        let sent = server.post_surely("api/runtime/llm-tasks:batch", &json!({ "tasks": bodies })).await;
        let mut made = sent.map_err(|failure| match conflicting(batch, &failure.message) {
            Some((line, key)) => CommandError {
                message: format!(
                    "line {line}: the idempotency key {key} was used for another task, with another context_id, agent_slug or prompt; lines \
                     {first} to {last}, and all lines after them, were not submitted"
                ),
                ..failure
            },
            None => failure.about(&format!(
                "lines {first} to {last} (positions in the batch count from 0), and all lines after them, were not submitted"
            )),
        })?;
        let Value::Array(tasks) = made["tasks"].take() else {
            return Err("the server's answer has no tasks, which its API promises".to_owned().into());
        };
        existed.set(existed.get() + made["existed"].as_u64().unwrap_or_default());
        progress.add(batch.len() as u64);
        match shown.form() {
            // Printed as one array at the end, as lists are in these formats.
            Some(form) if form.is_data() => all.extend(tasks),
            _ => feed.print(&tasks)?,
        }
    }
    match shown.form().filter(|form| form.is_data()) {
        Some(form) => show::list(form, &columns::TASKS, &all),
        None => Ok(()),
    }
}

/// The number of the line whose idempotency key the server's refusal names, and the key. To the key of a task, a server adds the name of a
/// submit key at the beginning.
fn conflicting(batch: &[Line], refusal: &str) -> Option<(usize, String)> {
    let (_, named) = refusal.split_once("Idempotency key '")?;
    let (named, _) = named.split_once("' was used for another task")?;
    let keys = batch.iter().filter_map(|line| {
        let task: Map<String, Value> = serde_json::from_str(line.body.get()).ok()?;
        Some((line.number, task.get("idempotency_key")?.as_str()?.to_owned()))
    });
    let is_named = |key: &str| named == key || named.strip_suffix(key).is_some_and(|owner| owner.ends_with('/'));
    // A later line with the same key is the one that differs. If keys end alike, the longest is the whole one.
    keys.filter(|(_, key)| is_named(key)).max_by_key(|(number, key)| (key.len(), *number))
}

/// The whole ids of those that `depends_on` names by a part, or why there is none.
type Found = HashMap<String, Result<String, String>>;

/// Looks up the ids of which lines have only a part, each of them once. What is wrong with a line otherwise is told later.
///
/// # Errors
/// A call failed, or there are too many to look up.
async fn look_up(server: &Server, text: &str) -> Result<Found, CommandError> {
    let mut found = Found::new();
    for line in text.lines().filter(|line| line.contains("depends_on")) {
        let Ok(task) = serde_json::from_str::<Map<String, Value>>(line) else { continue };
        for named in parts_of_ids(&task) {
            if found.contains_key(named) {
                continue;
            }
            if found.len() == MAX_LOOK_UPS {
                return Err(CommandError::usage(format!(
                    "nothing was submitted, because the lines name more than {MAX_LOOK_UPS} different tasks in depends_on by a part of their \
                     ids: give whole ids"
                )));
            }
            let id = ids::find(server, named).await.map_err(|error| failed(error).about("depends_on"))?;
            found.insert(named.to_owned(), id.map_err(|wrong| wrong.message));
        }
    }
    Ok(found)
}

/// What a line has in `depends_on` that is no whole id.
fn parts_of_ids(task: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let named = task.get("depends_on").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    named.filter(|named| named.parse::<Uuid>().is_err())
}

fn lines(text: &str, defaults: &Map<String, Value>, scope: &Value, found: &Found) -> Result<Vec<Line>, CommandError> {
    let (mut lines, mut complaints) = (Vec::new(), Vec::new());
    let mut seen: HashMap<[u8; 32], u64> = HashMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = at + 1;
        match task(line, defaults, scope, found, &mut seen) {
            Ok(body) => lines.push(Line { number, body }),
            Err(wrong) => complaints.push(format!("  line {number}: {wrong}")),
        }
    }
    if complaints.is_empty() && lines.is_empty() {
        return Err(CommandError::usage("the file has no tasks: each line must be a JSON object such as {\"prompt\": \"Say hello\"}"));
    }
    if complaints.is_empty() {
        return Ok(lines);
    }
    let more = complaints.len().saturating_sub(MAX_COMPLAINTS);
    complaints.truncate(MAX_COMPLAINTS);
    if more > 0 {
        complaints.push(format!("  and {more} more lines"));
    }
    Err(CommandError::usage(format!("nothing was submitted, because these lines are not valid tasks:\n{}", complaints.join("\n"))))
}

/// Adds the defaults to a line, and validates it with the server's rules.
fn task(
    line: &str,
    defaults: &Map<String, Value>,
    scope: &Value,
    found: &Found,
    seen: &mut HashMap<[u8; 32], u64>,
) -> Result<Box<RawValue>, String> {
    let mut task: Map<String, Value> = serde_json::from_str(line).map_err(|error| wrong_lines::no_object(line, &error))?;
    if let Some(wrong) = wrong_lines::misspelt(&task) {
        return Err(wrong);
    }
    task.retain(|_, value| !value.is_null());
    let key = key(&task, defaults, scope, seen);
    for named in task.get_mut("depends_on").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(id) = named.as_str().and_then(|named| found.get(named)) {
            *named = json!(id.as_ref().map_err(|wrong| format!("depends_on: {wrong}"))?);
        }
    }
    fill(&mut task, defaults);
    task.entry("idempotency_key").or_insert(json!(key));
    if !task.contains_key("context_id") {
        // Derived from the key, so that it is stable: with another context, a repeat would be a conflict.
        task.insert("context_id".into(), task["idempotency_key"].clone());
    }
    let body = to_raw_value(&task).map_err(|error| error.to_string())?;
    let read = NewTask::read(&body).map_err(|problems| wrong_lines::told(problems.into()))?;
    if read.prompt.0.trim().is_empty() {
        return Err("prompt: it is blank".to_owned());
    }
    Ok(body)
}

/// Adds missing fields, also in nested objects.
fn fill(task: &mut Map<String, Value>, defaults: &Map<String, Value>) {
    for (name, default) in defaults {
        match (task.get_mut(name), default) {
            (None, _) => {
                task.insert(name.clone(), default.clone());
            }
            (Some(Value::Object(members)), Value::Object(defaults)) => fill(members, defaults),
            (Some(_), _) => {}
        }
    }
}

/// The idempotency key of a line, derived from its content, so that submitting a file again creates no task twice. If a line occurs several
/// times, each occurrence gets a key of its own.
fn key(line: &Map<String, Value>, defaults: &Map<String, Value>, scope: &Value, seen: &mut HashMap<[u8; 32], u64>) -> String {
    let sorted: BTreeMap<_, _> = line.iter().collect();
    // A relative time such as +10m is another time in each run, but means the same request.
    let defaults: BTreeMap<_, _> = defaults.iter().filter(|(field, _)| *field != "not_before").collect();
    let digest: [u8; 32] = Sha256::digest(json!([scope, sorted, defaults]).to_string()).into();
    let nth = seen.entry(digest).and_modify(|nth| *nth += 1).or_insert(0);
    format!("line-{}-{nth}", hex::encode(&digest[..16]))
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

    fn read(text: &str, name: Option<&str>) -> Result<Vec<Value>, String> {
        let defaults = json!({ "agent_slug": "a", "labels": { "x": "1", "y": "1" } });
        let found = Found::from([("abcd".into(), Ok(Uuid::nil().to_string())), ("beef".into(), Err("no task".into()))]);
        let lines = lines(text, defaults.as_object().unwrap(), &json!(name), &found).map_err(|failure| failure.to_string())?;
        Ok(lines.iter().map(|line| serde_json::from_str(line.body.get()).unwrap()).collect())
    }

    #[test]
    fn flags_say_what_lines_do_not() {
        let tasks = read("{\"prompt\": \"p\", \"labels\": {\"y\": \"2\"}}\n\n{\"prompt\": \"q\", \"agent_slug\": \"b\"}\n", None).unwrap();
        assert_eq!(tasks[0]["labels"], json!({ "y": "2", "x": "1" }));
        assert_eq!((&tasks[0]["agent_slug"], &tasks[1]["agent_slug"]), (&json!("a"), &json!("b")));
    }

    #[test]
    fn keys_are_stable_and_tell_lines_apart() {
        let keys = |text: &str, name| {
            read(text, name).unwrap().iter().map(|task| task["idempotency_key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let both = keys("{\"prompt\": \"p\", \"priority\": 1}\n{\"prompt\": \"q\"}\n{\"prompt\": \"q\"}", None);
        assert_eq!(both[0], keys("{\"priority\": 1, \"prompt\": \"p\"}", None)[0]);
        assert!(both[1] != both[2] && both[0] != both[1]);
        assert_ne!(both[0], keys("{\"prompt\": \"p\", \"priority\": 1}", Some("again"))[0]);
        assert_eq!(keys("{\"prompt\": \"p\", \"idempotency_key\": \"own\"}", None), ["own"]);
    }

    #[test]
    fn a_misspelt_field_is_named_with_the_nearest() {
        let told = |line: &str| read(&format!("\n{line}"), None).unwrap_err();
        assert!(told("{\"promt\": \"p\"}").contains("line 2: promt is not a field of a task; the nearest is prompt"));
        assert!(told("{\"prompt\": \"p\", \"policy\": {\"timeout\": 5}}").contains("the nearest is policy.timeout_sec"));
        assert!(told("{\"prompt\": \"p\", \"xyz\": 5}").contains("there are: context_id, "));
        assert!(told("{\"prompt\": \" \"}").contains("line 2: prompt: it is blank"));
    }

    #[test]
    fn parts_of_ids_become_whole_ones() {
        let line = "{\"prompt\": \"p\", \"depends_on\": [\"abcd\", \"0190a0a0-0000-7000-8000-000000000000\"]}";
        let tasks = read(line, None).unwrap();
        assert_eq!(tasks[0]["depends_on"], json!([Uuid::nil(), "0190a0a0-0000-7000-8000-000000000000"]));
        let told = read(&format!("{line}\n{}", line.replace("abcd", "beef")), None).unwrap_err();
        assert!(told.contains("line 2: depends_on: no task") && !told.contains("line 1"), "{told}");
    }

    #[test]
    fn every_wrong_line_is_named() {
        let told = read("{\"prompt\": \"p\"}\n{\"prompt\": 5, \"priority\": 10}\n5\n{\n[", None).unwrap_err();
        assert!(told.contains("line 2: ") && told.contains("prompt: ") && told.contains("priority: "), "{told}");
        assert!(told.contains("line 3: it is not a JSON object") && told.contains("line 4: it is not valid JSON at column 1"), "{told}");
        assert!(told.contains("line 5: it begins a JSON array"), "{told}");
        assert!(!told.contains("line 1:"), "{told}");
        assert!(read("\n", None).unwrap_err().contains("no tasks"));
    }

    #[test]
    fn the_line_of_a_conflict_is_found_by_its_key() {
        let lines = |keys: &[&str]| -> Vec<Line> {
            let body = |key: &&str| to_raw_value(&json!({ "prompt": "p", "idempotency_key": key })).unwrap();
            keys.iter().enumerate().map(|(at, key)| Line { number: at + 1, body: body(key) }).collect()
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

    #[test]
    fn batches_are_bounded_by_number_and_size() {
        let line = |length: usize| Line { number: 0, body: to_raw_value(&"x".repeat(length)).unwrap() };
        let many: Vec<Line> = (0..2500).map(|_| line(1)).collect();
        assert_eq!(batches(&many), [0..1000, 1000..2000, 2000..2500]);
        let long: Vec<Line> = [400_000, 400_000, 400_000, 2_000_000, 5].into_iter().map(line).collect();
        assert_eq!(batches(&long), [0..2, 2..3, 3..4, 4..5]);
    }
}
