//! The form for a new task.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::suggestions::Known;
use super::{UNKNOWN_AGENT, by_part, id_of};
use crate::answer::see_other;
use crate::files::size;
use crate::filters::{not_one_task, unknown_project};
use crate::lang::Lang;
use crate::multipart::Upload;
use crate::refused::{Refused, Said, Wrong, by_field};
use crate::times::{NO_TIME, beginning};
use crate::visit::{Fields, Layout, Posted, Visit};
use bloom_api::invalid::Invalid;
use bloom_api::new_tasks::{MAX_DEPENDENCIES, NewTask};
use bloom_api::tasks::Task;
use bloom_api::wire::Wire as _;
use bloom_api::{time_limit, time_text};
use bloom_core::Ms;
use bloom_core::file::MAX_INPUTS;

/// The maximum length of typed text that an error repeats.
const TYPED_CHARS: usize = 40;

/// An input file that is already stored.
struct Input {
    id: Uuid,
    path: String,
}

impl Input {
    /// Parses the value of the form's field: the id of the file and its path in the run.
    fn of(text: &str) -> Option<Self> {
        let (id, path) = text.split_once(' ')?;
        Some(Self { id: id.parse().ok()?, path: path.to_owned() })
    }
}

#[derive(Template)]
#[template(path = "new_task.html")]
struct NewTaskPage<'a> {
    v: &'a Layout,
    /// The fields as they were typed, so that nothing is lost if one of them is wrong.
    typed: Fields,
    inputs: Vec<Input>,
    wrong: BTreeMap<String, String>,
    /// The fields whose errors come from the API, in English.
    said_by_api: BTreeSet<String>,
    error: Option<Said>,
    known: Known,
    /// The maximum size of all files together, in words.
    most: String,
}

/// The format of a field.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Dollars,
    /// A duration, which the API takes in seconds.
    Span,
    /// A time in the future.
    Time,
    /// One text per line.
    Lines,
    /// One `name=value` per line.
    Labels,
    /// Ids, or the parts of ids that lists show.
    Ids,
    /// A checkbox, `true` in the API.
    Flag,
    /// A checkbox, this word in the API.
    Word(&'static str),
    /// Files, which are uploaded separately.
    Files,
}

/// The fields in the order of the form: the name in the API, the format, and the value in an empty form.
const FIELDS: [(&str, Kind, &str); 22] = [
    ("prompt", Kind::Text, ""),
    ("agent_slug", Kind::Text, "default"),
    ("project", Kind::Text, ""),
    ("inputs", Kind::Files, ""),
    ("ref", Kind::Text, ""),
    ("push", Kind::Word("branch"), ""),
    ("timeout_sec", Kind::Span, ""),
    ("budget", Kind::Dollars, ""),
    ("max_attempts", Kind::Number, "3"),
    ("ttl_after_finished_sec", Kind::Span, ""),
    ("not_before", Kind::Time, ""),
    ("depends_on", Kind::Ids, ""),
    ("priority", Kind::Number, "5"),
    ("suspend", Kind::Flag, ""),
    ("context_id", Kind::Text, ""),
    ("session", Kind::Text, "context"),
    ("exclusive_key", Kind::Text, ""),
    ("desired_format", Kind::Text, "text"),
    ("outputs", Kind::Lines, ""),
    ("context_hints", Kind::Lines, ""),
    ("model", Kind::Text, ""),
    ("labels", Kind::Labels, ""),
];
/// How many of these fields are always visible. The others are folded.
const SEEN: usize = 4;
/// The fields that are part of `policy` in the API.
const OF_POLICY: [&str; 2] = ["timeout_sec", "budget"];
/// The fields that a copy of a task does not take over, because they concern the past or the task's creation.
const NOT_AGAIN: [&str; 3] = ["not_before", "depends_on", "suspend"];

impl NewTaskPage<'_> {
    /// The id of the first element with an error.
    fn first_wrong(&self) -> Option<&'static str> {
        let (first, ..) = FIELDS.into_iter().find(|(field, ..)| self.wrong.contains_key(*field))?;
        Some(if first == "inputs" { "files" } else { first })
    }

    /// Whether one of the folded fields has an error, or another value than in an empty form.
    fn is_more_open(&self) -> bool {
        FIELDS.into_iter().skip(SEEN).any(|(field, _, usual)| self.typed.text(field) != usual || self.wrong.contains_key(field))
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }

    /// The language of the field's error.
    fn told_in(&self, field: &str) -> Lang {
        if self.said_by_api.contains(field) { Lang::English } else { self.v.at.lang }
    }
}

pub(crate) async fn form(visit: Visit) -> Result<Response, Refused> {
    if !visit.layout.may_act() {
        return Err(Refused::new(
            403,
            "Your key only reads, so it creates no tasks",
            "Ваш ключ лише для читання, тож він не створює завдань",
        ));
    }
    let (typed, inputs) = match visit.query().get("like") {
        Some(id) => like(&visit.get(&format!("llm-tasks/{}", id_of(id)?)).await?)?,
        None => {
            let project = visit.query().text("project");
            let texts = FIELDS.into_iter().map(|(field, _, usual)| match field {
                // The link on the page of a project fills in this field.
                "project" => (field, project.clone()),
                _ => (field, usual.to_owned()),
            });
            (Fields::of(texts), Vec::new())
        }
    };
    visit.ok(&page(&visit, typed, inputs).await?)
}

async fn page(visit: &Visit, typed: Fields, inputs: Vec<Input>) -> Result<NewTaskPage<'_>, Refused> {
    let lang = visit.layout.at.lang;
    let (known, most) = (Known::of(visit).await?, size(lang, visit.api.most_of_form() as i64));
    Ok(NewTaskPage { v: &visit.layout, typed, inputs, wrong: BTreeMap::new(), said_by_api: BTreeSet::new(), error: None, known, most })
}

/// The fields and files for a copy of this task.
fn like(task: &Task<'_>) -> Result<(Fields, Vec<Input>), Refused> {
    let fields = serde_json::to_value(task).map_err(unwritten)?;
    let texts = FIELDS.into_iter().filter(|(field, ..)| !NOT_AGAIN.contains(field)).map(|(field, kind, _)| {
        let value = if OF_POLICY.contains(&field) { &fields["policy"][field] } else { &fields[field] };
        let is_default = field == "timeout_sec" && task.policy.timeout_is_default;
        (field, if is_default { String::new() } else { text_of(kind, value) })
    });
    let inputs = task.inputs.iter().map(|input| Input { id: input.artifact_id, path: input.path.to_string() });
    Ok((Fields::of(texts), inputs.collect()))
}

/// The text that a person would type for this value of the API.
fn text_of(kind: Kind, value: &Value) -> String {
    match (kind, value) {
        (Kind::Word(word), value) if value.as_str() == Some(word) => "on".into(),
        (Kind::Word(_) | Kind::Files, _) | (_, Value::Null) => String::new(),
        // In the API, 0 means no limit.
        (Kind::Dollars, value) if value.as_f64() == Some(0.0) => String::new(),
        (Kind::Span, value) => value.as_i64().map(time_text::limit_text).unwrap_or_default(),
        (_, Value::String(text)) => text.clone(),
        (_, Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"),
        (_, Value::Object(labels)) => {
            let lines = labels.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
            lines.collect::<Vec<_>>().join("\n")
        }
        (_, value) => value.to_string(),
    }
}

pub(crate) async fn send(Posted { visit, fields, files, .. }: Posted) -> Result<Response, Refused> {
    let mut inputs: Vec<Input> = fields.all("input").filter_map(Input::of).collect();
    let NotCreated { refused, by_api } = match create(&visit, &fields, &files, &mut inputs).await {
        Ok((id, done)) => return Ok(see_other(&format!("/tasks/{id}?done={done}"))),
        Err(why) => why,
    };
    if refused.status == 403 || refused.status >= 500 {
        return Err(refused);
    }
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
    let lang = visit.layout.at.lang;
    let (mut wrong, mut by_api) = (of_form(lang, refused.fields), of_form(lang, by_api));
    by_api.retain(|field, _| !wrong.contains_key(field));
    let mut said_by_api: BTreeSet<String> = by_api.keys().cloned().collect();
    wrong.extend(by_api);
    let error = wrong.is_empty().then_some(refused.text);
    // The API checks the project only if everything else is right, and does not suggest a similar name.
    if let Some(named) = fields.get("project")
        && let Some(text) = unknown_project(&visit, named).await?
    {
        wrong.insert("project".to_owned(), text);
        said_by_api.insert("project".to_owned());
    }
    visit.show(status, &NewTaskPage { wrong, said_by_api, error, ..page(&visit, fields, inputs).await? })
}

/// Why no task was created.
struct NotCreated {
    /// The refusal, with the errors of this page in the visitor's language.
    refused: Refused,
    /// The errors of the API, in English.
    by_api: Wrong,
}

impl From<Refused> for NotCreated {
    fn from(mut refused: Refused) -> Self {
        let by_api = if matches!(refused.text, Said::Api(_)) { std::mem::take(&mut refused.fields) } else { Wrong::new() };
        Self { refused, by_api }
    }
}

/// Maps the errors of the API's fields to the fields of the form.
fn of_form(lang: Lang, fields: Wrong) -> Wrong {
    let mut wrong = Wrong::new();
    for (field, text) in fields {
        match field.as_str() {
            // The policy is one field of the API and two fields of the form. Its texts begin with the name of the field.
            "policy" => wrong.extend(text.split("; ").map(|text| match text.split_once(": ") {
                Some((name @ ("budget" | "timeout_sec"), rest)) => (name.to_owned(), rest.to_owned()),
                _ => ("timeout_sec".to_owned(), text.to_owned()),
            })),
            "outputs" | "context_hints" | "labels" => drop(wrong.insert(field, of_line(lang, &text))),
            _ => drop(wrong.insert(field, text)),
        }
    }
    wrong
}

/// Creates the task, and returns its id and the word for what was done. Files are stored first, so that they need not be chosen again if
/// anything else is wrong.
async fn create(visit: &Visit, fields: &Fields, files: &[Upload], inputs: &mut Vec<Input>) -> Result<(String, &'static str), NotCreated> {
    let files: Vec<&Upload> = files.iter().filter(|file| file.field == "files").collect();
    // Checked before a file is stored, because the task would be refused anyway.
    let count = inputs.len() + files.len();
    if count > MAX_INPUTS {
        let lang = visit.layout.at.lang;
        let text = lang.t(
            format!("{count} files, but at most {MAX_INPUTS} are allowed"),
            format!("Файлів {count}, а дозволено щонайбільше {MAX_INPUTS}"),
        );
        return Err(Refused::of_field("inputs", text).into());
    }
    for file in files {
        let stored = visit.upload(file).await.map_err(|refused| match refused.status {
            400 => Refused::of_field("inputs", refused.text.text(&visit.layout.at).to_owned()),
            _ => refused,
        })?;
        let id = stored["id"].as_str().and_then(|id| id.parse().ok());
        inputs.extend(id.map(|id| Input { id, path: file.name.clone() }));
    }
    let (mut body, mut wrong) = body(visit.layout.at.lang, visit.layout.now, fields);
    match find_dependencies(visit, &mut body).await {
        Err(refused) if refused.fields.is_empty() => return Err(refused.into()),
        Err(refused) => wrong.extend(refused.fields),
        Ok(()) => {}
    }
    if !wrong.is_empty() {
        // Calling the API with the other fields would create a task, so they are only checked by the API's rules.
        return Err(NotCreated { by_api: wrong_for_api(&body)?, refused: Refused::of_fields(wrong) });
    }
    let named = inputs.iter().map(|input| json!({ "artifact_id": input.id, "path": input.path }));
    body.insert("inputs".into(), named.collect());
    let created = visit.act(Method::POST, "llm-tasks", &Value::Object(body)).await?;
    // The form sends no unknown fields, so a warning of the API can only be about the agent.
    let done = if created["warnings"].is_array() { UNKNOWN_AGENT } else { "created" };
    Ok((created["id"].as_str().unwrap_or_default().to_owned(), done))
}

fn unwritten(_: serde_json::Error) -> Refused {
    Refused::internal("The task could not be written", "Завдання не вдалося записати")
}

/// The errors that the API would report for this body, by its fields.
fn wrong_for_api(body: &Map<String, Value>) -> Result<Wrong, Refused> {
    let raw = serde_json::value::to_raw_value(body).map_err(unwritten)?;
    Ok(NewTask::read(&raw).err().map(|problems| by_field(&Invalid::from(problems))).unwrap_or_default())
}

/// The body of the API call without the fields that can't be parsed, and the errors of these. The API checks whether numbers are within
/// their limits.
fn body(lang: Lang, now: Ms, fields: &Fields) -> (Map<String, Value>, Wrong) {
    let (mut body, mut policy, mut wrong) = (Map::new(), Map::new(), Wrong::new());
    for (field, kind, _) in FIELDS {
        let Some(text) = fields.get(field) else { continue };
        match read(lang, now, kind, text) {
            Ok(value) if OF_POLICY.contains(&field) => drop(policy.insert(field.into(), value)),
            Ok(value) => drop(body.insert(field.into(), value)),
            Err(text) => drop(wrong.insert(field.into(), text)),
        }
    }
    // As on the command line, a task without a context starts a new conversation.
    body.entry("context_id").or_insert_with(|| json!(Uuid::now_v7()));
    time_limit::add_usual(&mut policy);
    body.insert("policy".into(), Value::Object(policy));
    (body, wrong)
}

/// Converts the typed text to the value for the API.
///
/// # Errors
/// The text can't be parsed; the error says what is expected.
fn read(lang: Lang, now: Ms, kind: Kind, text: &str) -> Result<Value, String> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let number = || text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let typed = || beginning(text.trim(), TYPED_CHARS);
    match kind {
        // Browsers send line breaks as CR LF.
        Kind::Text | Kind::Files => Ok(json!(text.replace("\r\n", "\n"))),
        Kind::Flag => Ok(json!(true)),
        Kind::Word(word) => Ok(json!(word)),
        Kind::Lines => Ok(lines().collect()),
        Kind::Ids => Ok(text.split([' ', ',', '\n', '\r']).filter(|id| !id.is_empty()).collect()),
        Kind::Labels => {
            let label = |line: &str| match line.split_once('=') {
                Some((name, value)) => Ok((name.trim().to_owned(), json!(value.trim()))),
                None => {
                    let text = format!("Expected name=value in each line, received '{line}'");
                    Err(lang.t(text, format!("Очікується назва=значення в кожному рядку, отримано «{line}»")))
                }
            };
            Ok(Value::Object(lines().map(label).collect::<Result<_, _>>()?))
        }
        Kind::Number => number().map(|number| json!(number)).ok_or_else(|| {
            let text = typed();
            lang.t(format!("Expected number, received '{text}'"), format!("Очікується число, отримано «{text}»"))
        }),
        Kind::Dollars => match number() {
            // In the API, 0 means no limit. A person who types 0 here hardly means that.
            Some(0.0) => Err(lang
                .t("A task with 0 could not run; empty is no limit", "Із 0 завдання не виконалося б; порожньо — без обмеження")
                .to_owned()),
            Some(number) => Ok(json!(number)),
            None => {
                let text = typed();
                Err(lang.t(
                    format!("Expected US dollars, like 0.50, received '{text}'"),
                    format!("Очікуються долари США, як-от 0.50, отримано «{text}»"),
                ))
            }
        },
        Kind::Time => {
            let expected = "Очікується час, як-от +2h або 2026-02-25T08:00:00Z";
            time_text::future(text.trim(), now).map(|at| json!(at)).map_err(|text| lang.t(text, expected.to_owned()))
        }
        Kind::Span => time_text::duration(text.trim()).map(|span| json!(span.as_secs())).map_err(|text| lang.t(text, NO_TIME.to_owned())),
    }
}

/// Replaces the parts of ids that lists show by whole ids.
async fn find_dependencies(visit: &Visit, body: &mut Map<String, Value>) -> Result<(), Refused> {
    let lang = visit.layout.at.lang;
    for id in body.get_mut("depends_on").and_then(Value::as_array_mut).into_iter().flatten().take(MAX_DEPENDENCIES) {
        let part = id.as_str().unwrap_or_default().trim_start_matches('…');
        if Uuid::parse_str(part).is_err() {
            let unknown = || Refused::of_field("depends_on", not_one_task(lang, part));
            *id = json!(by_part(visit, part).await?.ok_or_else(unknown)?);
        }
    }
    Ok(())
}

/// Names the line of a wrong list element. The API counts the elements from 0.
fn of_line(lang: Lang, text: &str) -> String {
    match text.split_once(": ").map(|(place, rest)| (place.parse::<usize>(), rest)) {
        Some((Ok(place), rest)) => format!("{} {}: {rest}", lang.t("line", "рядок"), place + 1),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_body() {
        let form = b"prompt=a%0D%0Ab&context_id=c&timeout_sec=60&labels=team%3Ddocs%0D%0A%0D%0Ax%3D1&priority=&depends_on=a,+b&suspend=on&project=docs&ref=&push=on&outputs=out/*.md%0D%0A+log%0D%0A&ttl_after_finished_sec=1h30m";
        let expected = json!({
            "prompt": "a\nb", "context_id": "c", "policy": { "timeout_sec": 60 }, "labels": { "team": "docs", "x": "1" }, "depends_on": ["a", "b"], "suspend": true,
            "project": "docs", "push": "branch", "outputs": ["out/*.md", "log"], "ttl_after_finished_sec": 5400
        });
        assert_eq!(body(Lang::English, 0, &Fields::parse(form)), (expected.as_object().unwrap().clone(), Wrong::new()));
        let wrong = body(Lang::English, 0, &Fields::parse(b"priority=high&labels=x&budget=$3&timeout_sec=soon")).1;
        assert_eq!(wrong.keys().collect::<Vec<_>>(), ["budget", "labels", "priority", "timeout_sec"]);
        assert_eq!(wrong["priority"], "Expected number, received 'high'");
        assert_eq!(wrong["budget"], "Expected US dollars, like 0.50, received '$3'");
        assert_eq!(of_line(Lang::English, "1: The glob must be relative"), "line 2: The glob must be relative");
        let shown = [json!(7_200), json!(90), json!(null)].map(|seconds| text_of(Kind::Span, &seconds));
        assert_eq!(shown, ["2h", "90s", ""]);
        assert_eq!(of_line(Lang::English, "Array must have at most 50 elements"), "Array must have at most 50 elements");
    }
}
