//! `task submit --from`: a file with one task per line.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::answer_index::Submitted;
use super::batches::{End, Line, Made, placeholder, send};
use super::fields::{Fields, add_usual, fill};
use super::line_names::{NAME, Names, dependencies};
use super::{standard_input, wrong_lines};
use crate::CommandError;
use crate::interrupt::{blocking, or_interrupted};
use crate::progress::{Progress, number, tasks};
use crate::server_calls::{Server, failed};
use crate::show::{self, Form};
use crate::{columns, ids, quota, term, when};
use bloom_api::ids::IdPart;
use bloom_api::new_tasks::NewTask;
use bloom_api::wire::Wire;

const MAX_FILE_BYTES: u64 = 256 << 20;
const MAX_COMPLAINTS: usize = 20;
/// The maximum number of look-ups. Each is a call, and the server limits the number of calls per minute.
const MAX_LOOK_UPS: usize = 50;

/// The message if the command is interrupted before the first batch.
pub(crate) const NOTHING_SUBMITTED: &str = "interrupted; nothing was submitted";

/// Reads the file; `-` is standard input.
fn open(path: &Path) -> Result<String, CommandError> {
    if path == Path::new("-") {
        return read("standard input", stdin().lock());
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| CommandError::usage(format!("{name} can't be opened: {error}")))?;
    read(&name, file)
}

fn read(name: &str, source: impl Read) -> Result<String, CommandError> {
    let mut text = String::new();
    let read = source.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| standard_input::unreadable(name, &error))? as u64 {
        0..=MAX_FILE_BYTES => Ok(standard_input::without_mark(text)),
        _ => Err(CommandError::usage(format!("{name} is longer than {MAX_FILE_BYTES} bytes: split it"))),
    }
}

/// What distinguishes the idempotency keys of a file's lines from those of other files.
pub(crate) enum Scope {
    /// `--idempotency-key`: the same lines with the same name are the same tasks, whoever submits them.
    Named(String),
    /// The file and its user, so that the files of two people never share keys.
    File(PathBuf),
    /// `--again`: all lines are new tasks.
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

/// Converts a file of plain prompts to one with a task per line. The line numbers stay the same.
fn of_prompts(text: &str) -> String {
    let task = |line: &str| if line.trim().is_empty() { "\n".to_owned() } else { format!("{}\n", json!({ "prompt": line })) };
    text.lines().map(task).collect()
}

/// Validates all lines, then submits them batch by batch. It prints the ids of each batch as soon as the server answers, and returns the
/// lines with their ids.
///
/// # Errors
/// A line is invalid, and nothing was sent; or a batch was refused, and neither it nor any later one was submitted.
pub(crate) async fn submit(
    server: &Server,
    (file, is_plain): (&Path, bool),
    defaults: &Fields,
    scope: Scope,
    form: Option<Form>,
) -> Result<Vec<Submitted>, CommandError> {
    let (defaults, is_again) = (defaults.given()?, matches!(scope, Scope::Again));
    let path = file.to_owned();
    let read = move || {
        let mut text = open(&path)?;
        if is_plain {
            text = of_prompts(&text);
        }
        let (names, wrong) = Names::of(&text);
        Ok((text, names, wrong))
    };
    let (text, names, wrong) = blocking(read, NOTHING_SUBMITTED).await?;
    let found = or_interrupted(look_up(server, &text, &names), || NOTHING_SUBMITTED.to_owned()).await?;
    let lines = blocking(move || lines(&text, &defaults, &scope.value(), &found, (&names, wrong)), NOTHING_SUBMITTED).await?;
    let total = lines.len() as u64;
    let progress = Progress::unless(form.is_some_and(|form| !form.is_data()), total);
    let mut made = Made::default();
    let sent = send(server, &lines, form, &progress, &mut made).await;
    let done = progress.done();
    drop(progress);
    // In these formats, a list is one array, so it is printed at the end. It is printed even after a failure, because these tasks exist.
    if let Some(form) = form.filter(|form| form.is_data() && (sent.is_ok() || !made.tasks.is_empty())) {
        show::list(form, &columns::TASKS, &made.tasks)?;
    }
    let last = usize::try_from(done).ok().and_then(|done| lines.get(done.checked_sub(1)?)).map_or(0, |line| line.number);
    let how = |is_known: bool| match (is_again, last) {
        (false, _) => "Give the same command again to go on; no line becomes a second task.".to_owned(),
        (true, 0) if is_known => "Give the same command again to go on.".to_owned(),
        (true, last) => {
            let look = if is_known { "" } else { "See with bloom-runtime task list whether that batch exists. " };
            format!("{look}Remove the first {} lines from the file before you go on with the others.", number(last as u64))
        }
    };
    let first = lines.first().map_or(0, |line| line.number);
    let end = sent.map_err(|failure| {
        let (accepted, is_full) = (submitted_lines(first, last), quota::is_refusal(&failure));
        let message = match (last, is_full) {
            (0, false) => failure.message,
            (0, true) => format!("{}\nWait for room in the quota. {}", failure.message, how(true)),
            (_, false) => format!("{}\n{accepted} {}", failure.message, how(true)),
            (_, true) => format!("{}\n{accepted} Wait for room in the quota. {}", failure.message, how(true)),
        };
        CommandError { message, ..failure }
    })?;
    let is_known = match end {
        End::All => {
            // With new keys, a task can exist already only because a lost answer made the call repeat. It is new all the same.
            let existed = if is_again { 0 } else { made.existed };
            term::info(&format!(
                "{}: {} new, {} existed already",
                tasks(i64::try_from(total).unwrap_or(i64::MAX)),
                number(done.saturating_sub(existed)),
                number(existed)
            ));
            let submitted = lines.into_iter().zip(made.ids).map(|(line, id)| Submitted { line: line.number, name: line.name, id });
            return Ok(submitted.collect());
        }
        End::Interrupted => true,
        End::Unacknowledged => false,
    };
    let perhaps = if is_known { "" } else { ", perhaps another batch" };
    let how = how(is_known);
    Err(CommandError::interrupted(format!("interrupted: {} of {} lines were submitted{perhaps}. {how}", number(done), number(total))))
}

fn submitted_lines(first: usize, last: usize) -> String {
    if first == last { format!("Line {last} was submitted.") } else { format!("Lines {first} to {last} were submitted.") }
}

/// The whole ids for the parts of ids in `depends_on`, or why there is none.
type Found = HashMap<String, Result<String, String>>;

/// Looks up the parts of ids in `depends_on`, each once. Other errors of the lines are reported later.
///
/// # Errors
/// A call failed, or there are too many parts to look up.
async fn look_up(server: &Server, text: &str, names: &Names) -> Result<Found, CommandError> {
    let (mut found, mut calls) = (Found::new(), 0);
    for line in text.lines().filter(|line| line.contains("depends_on")) {
        let Ok(task) = serde_json::from_str::<Map<String, Value>>(line) else { continue };
        for named in dependencies(&task) {
            if found.contains_key(named) || names.contains(named) || named.parse::<Uuid>().is_ok() {
                continue;
            }
            if IdPart::parse(named).is_err() {
                found.insert(named.to_owned(), Err(format!("'{named}' is no id of a task, and {}", names.unknown(named))));
                continue;
            }
            if calls == MAX_LOOK_UPS {
                return Err(CommandError::usage(format!(
                    "nothing was submitted, because the lines name more than {MAX_LOOK_UPS} different tasks in depends_on by a part of their \
                     ids: give whole ids"
                )));
            }
            calls += 1;
            let id = ids::find(server, named).await.map_err(|error| failed(error).about("depends_on"))?;
            found.insert(named.to_owned(), id.map_err(|wrong| format!("{}, and {}", wrong.message, names.unknown(named))));
        }
    }
    Ok(found)
}

fn lines(
    text: &str,
    defaults: &Map<String, Value>,
    scope: &Value,
    found: &Found,
    (names, wrong_names): (&Names, Vec<(usize, String)>),
) -> Result<Vec<Line>, CommandError> {
    let (mut lines, mut complaints) = (Vec::new(), Vec::new());
    let wrong_names: HashMap<usize, String> = wrong_names.into_iter().collect();
    let mut earlier = Earlier::default();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = at + 1;
        let read = match wrong_names.get(&number) {
            Some(wrong) => Err(wrong.clone()),
            None => task((number, lines.len()), line, (defaults, scope), (found, names), &mut earlier),
        };
        match read {
            Ok(line) => lines.push(line),
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
    // A file that begins with `{` or `[` is meant as JSON, and its own error says what is wrong.
    let first = text.lines().map(str::trim_start).find(|line| !line.is_empty());
    let is_plain = first.is_some_and(|line| !line.starts_with(['{', '[']));
    let hint = if is_plain { "\nif each line is a prompt as it stands, give --plain" } else { "" };
    Err(CommandError::usage(format!("nothing was submitted, because these lines are not valid tasks:\n{}{hint}", complaints.join("\n"))))
}

/// The lines before the current one.
#[derive(Default)]
struct Earlier {
    /// How often each content has occurred.
    seen: HashMap<[u8; 32], u64>,
    /// The position and the idempotency key of each line with a name.
    named: HashMap<String, (usize, Value)>,
}

/// Adds the defaults to a line, and validates it with the server's rules.
fn task(
    (number, position): (usize, usize),
    line: &str,
    (defaults, scope): (&Map<String, Value>, &Value),
    (found, names): (&Found, &Names),
    earlier: &mut Earlier,
) -> Result<Line, String> {
    let mut task: Map<String, Value> = serde_json::from_str(line).map_err(|error| wrong_lines::no_object(line, &error))?;
    let name = task.remove(NAME);
    let fields = to_raw_value(&task).map_err(|error| error.to_string())?;
    let wrong_dependency = |named: &str| {
        let unknown = || Some(format!("depends_on: {}", found.get(named)?.as_ref().err()?));
        names.problem(number, named).or_else(unknown)
    };
    let wrong: Vec<String> = wrong_lines::misspelt(&fields).into_iter().chain(dependencies(&task).filter_map(wrong_dependency)).collect();
    if !wrong.is_empty() {
        return Err(wrong.join("; "));
    }
    task.retain(|_, value| !value.is_null());
    // The key of the named line stands for its name. So if the named line becomes another task, the dependent ones do, too, while another
    // name alone changes nothing.
    let mut content = task.clone();
    let mut after = Vec::new();
    for (in_task, in_content) in items(&mut task).zip(items(&mut content)) {
        let Some(named) = in_task.as_str().map(str::to_owned) else { continue };
        if names.contains(&named) {
            let Some((position, key)) = earlier.named.get(&named) else {
                // The named line is invalid, which is reported for that line. Nothing will be sent, so any id is fine.
                *in_task = json!(Uuid::nil());
                continue;
            };
            (*in_task, *in_content) = (json!(placeholder(*position)), json!({ "key": key }));
            after.push(*position);
        } else if let Some(Ok(id)) = found.get(&named) {
            *in_task = json!(id);
        }
    }
    let key = key(&content, defaults, scope, &mut earlier.seen);
    if let Some(at) = task.get("not_before").and_then(Value::as_i64)
        && let Some(year) = when::too_early(at)
    {
        return Err(format!(
            "not_before: {at} would be in {year}; give milliseconds since the epoch, or leave it out and give --not-before +{at}s"
        ));
    }
    fill(&mut task, defaults);
    // Defaults are added after the key is computed, because they may change while a file is being submitted.
    add_usual(&mut task);
    task.entry("idempotency_key").or_insert(json!(key));
    if !task.contains_key("context_id") {
        // The context is derived from the key, so that it is stable. With another context, a repeated submit would be a conflict.
        task.insert("context_id".into(), task["idempotency_key"].clone());
    }
    let name = name.as_ref().and_then(Value::as_str).map(str::to_owned);
    if let Some(name) = &name {
        earlier.named.insert(name.clone(), (position, task["idempotency_key"].clone()));
    }
    let body = to_raw_value(&task).map_err(|error| error.to_string())?;
    let read = NewTask::read(&body).map_err(wrong_lines::told)?;
    if read.prompt.0.trim().is_empty() {
        return Err("prompt: it is blank".to_owned());
    }
    Ok(Line { number, name, body, after })
}

/// The elements of `depends_on`.
fn items(task: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    task.get_mut("depends_on").and_then(Value::as_array_mut).into_iter().flatten()
}

/// The idempotency key of a line. It is derived from the content, so that submitting a file again creates no duplicates. If a line occurs
/// several times, each occurrence gets a key of its own.
fn key(line: &Map<String, Value>, defaults: &Map<String, Value>, scope: &Value, seen: &mut HashMap<[u8; 32], u64>) -> String {
    let sorted: BTreeMap<_, _> = line.iter().collect();
    // A relative time such as +10m is a different time whenever the command runs, but means the same request.
    let defaults: BTreeMap<_, _> = defaults.iter().filter(|(field, _)| *field != "not_before").collect();
    let digest: [u8; 32] = Sha256::digest(json!([scope, sorted, defaults]).to_string()).into();
    let nth = seen.entry(digest).and_modify(|nth| *nth += 1).or_insert(0);
    format!("line-{}-{nth}", hex::encode(&digest[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, name: Option<&str>) -> Result<Vec<Value>, String> {
        let defaults = json!({ "agent_slug": "a", "labels": { "x": "1", "y": "1" } });
        let found = Found::from([("abcd".into(), Ok(Uuid::nil().to_string())), ("beef".into(), Err("no task".into()))]);
        let (names, wrong) = Names::of(text);
        let lines =
            lines(text, defaults.as_object().unwrap(), &json!(name), &found, (&names, wrong)).map_err(|failure| failure.to_string())?;
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
    fn names_stand_for_the_lines_that_have_them() {
        let file = |first: &str, name: &str| {
            format!("{{\"prompt\": \"{first}\", \"name\": \"{name}\"}}\n{{\"prompt\": \"q\", \"depends_on\": [\"{name}\", \"abcd\"]}}")
        };
        let tasks = read(&file("p", "build"), None).unwrap();
        assert_eq!(tasks[1]["depends_on"], json!([placeholder(0), Uuid::nil()]));
        assert!(tasks[0].get("name").is_none());
        let keys = |text: &str| read(text, None).unwrap().iter().map(|task| task["idempotency_key"].clone()).collect::<Vec<_>>();
        let first = keys(&file("p", "build"));
        assert_eq!(keys(&file("p", "renamed")), first, "a name is not part of the content");
        let other = keys(&file("other", "build"));
        assert!(other[0] != first[0] && other[1] != first[1], "another first task has another second one");
        assert_eq!(first[0], keys("{\"prompt\": \"p\"}")[0]);
        let told = read("{\"prompt\": \"p\", \"depends_on\": [\"late\"]}\n{\"prompt\": \"p\", \"name\": \"late\"}", None).unwrap_err();
        assert!(told.contains("line 1: depends_on: late is line 2, which comes later"), "{told}");
        let told = read("{\"promt\": \"p\", \"name\": \"a\"}\n{\"prompt\": \"p\", \"depends_on\": [\"a\"]}", None).unwrap_err();
        assert!(told.contains("line 1: promt") && !told.contains("line 2"), "{told}");
    }

    #[test]
    fn a_misspelt_field_is_named_with_the_nearest() {
        let told = |line: &str| read(&format!("\n{line}"), None).unwrap_err();
        assert!(told("{\"promt\": \"p\"}").contains("line 2: promt is not a field of a task; the nearest is prompt"));
        assert!(told("{\"prompt\": \"p\", \"policy\": {\"timeout\": 5}}").contains("the nearest is policy.timeout_sec"));
        assert!(
            told("{\"prompt\": \"p\", \"timeout_sec\": 5}")
                .contains("timeout_sec is not a field of a task; the nearest is policy.timeout_sec")
        );
        assert!(told("{\"prompt\": \"p\", \"policy\": {\"timeout_sec\": 0}}").contains("line 2: policy.timeout_sec: Number must be"));
        let both = told("{\"promt\": \"p\", \"depends_on\": [\"beef\"]}");
        assert!(both.contains("the nearest is prompt; depends_on: no task"), "{both}");
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
    fn plain_lines_are_prompts() {
        let plain = "say \"hello\"\n\n{\"prompt\": 5}\r\n";
        let tasks = read(&of_prompts(plain), None).unwrap();
        let prompts: Vec<_> = tasks.iter().map(|task| &task["prompt"]).collect();
        assert_eq!(prompts, ["say \"hello\"", "{\"prompt\": 5}"]);
        assert_eq!(tasks[0]["idempotency_key"], read("{\"prompt\": \"say \\\"hello\\\"\"}", None).unwrap()[0]["idempotency_key"]);
        assert!(read(plain, None).unwrap_err().ends_with("give --plain"));
        assert!(!read("{\n", None).unwrap_err().contains("--plain"));
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
}
