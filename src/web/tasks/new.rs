//! The form for a new task.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::known::Known;
use super::{by_part, id_of};
use crate::answer::see_other;
use crate::files::size;
use crate::lang::Lang;
use crate::multipart::Upload;
use crate::refused::{Refused, Said, Wrong, by_field};
use crate::times::NO_TIME;
use crate::visit::{Fields, Layout, Posted, Visit};
use bloom_api::invalid::Invalid;
use bloom_api::new_tasks::{MAX_DEPENDENCIES, NewTask};
use bloom_api::tasks::Task;
use bloom_api::wire::Wire as _;
use bloom_api::{time_limit, when};
use bloom_core::Ms;
use bloom_core::file::MAX_INPUTS;
use bloom_core::project::PushMode;

/// What stands in the fields: as it was typed, so that nothing is lost when a field is wrong.
#[derive(Default)]
struct Typed {
    prompt: String,
    agent_slug: String,
    context_id: String,
    timeout_sec: String,
    budget: String,
    not_before: String,
    max_attempts: String,
    priority: String,
    model: String,
    labels: String,
    desired_format: String,
    session: String,
    exclusive_key: String,
    depends_on: String,
    suspend: bool,
    project: String,
    git_ref: String,
    push: bool,
    inputs: Vec<Input>,
    outputs: String,
    context_hints: String,
    ttl_after_finished_sec: String,
}

/// A file that is stored already.
struct Input {
    id: Uuid,
    path: String,
}

impl Input {
    /// As the form has it: the id, and where the run finds the file.
    fn of(text: &str) -> Option<Self> {
        let (id, path) = text.split_once(' ')?;
        Some(Self { id: id.parse().ok()?, path: path.to_owned() })
    }
}

#[derive(Template)]
#[template(path = "new_task.html")]
struct NewTaskPage<'a> {
    v: &'a Layout,
    typed: Typed,
    wrong: BTreeMap<String, String>,
    /// The fields of which the API says what is wrong, in English.
    said_by_api: BTreeSet<String>,
    error: Option<Said>,
    known: Known,
    /// The most bytes of all files together, in words.
    most: String,
}

/// The fields in the order of the form.
const ORDER: [&str; 21] = [
    "prompt",
    "agent_slug",
    "project",
    "inputs",
    "context_id",
    "model",
    "timeout_sec",
    "budget",
    "ref",
    "push",
    "not_before",
    "max_attempts",
    "priority",
    "desired_format",
    "session",
    "exclusive_key",
    "depends_on",
    "labels",
    "outputs",
    "context_hints",
    "ttl_after_finished_sec",
];
/// Of these, how many are always seen. The others are folded.
const SEEN: usize = 4;

impl NewTaskPage<'_> {
    /// The id of the first field that is wrong.
    fn first_wrong(&self) -> Option<&'static str> {
        let first = ORDER.into_iter().find(|field| self.wrong.contains_key(*field))?;
        Some(if first == "inputs" { "files" } else { first })
    }

    /// Whether one of the folded fields is wrong or was filled in.
    fn is_more_open(&self) -> bool {
        let typed = &self.typed;
        let texts = [
            &typed.context_id,
            &typed.model,
            &typed.timeout_sec,
            &typed.budget,
            &typed.git_ref,
            &typed.not_before,
            &typed.exclusive_key,
            &typed.depends_on,
            &typed.labels,
            &typed.outputs,
            &typed.context_hints,
            &typed.ttl_after_finished_sec,
        ];
        let is_filled = typed.push || typed.suspend || texts.into_iter().any(|text| !text.is_empty());
        is_filled || ORDER.into_iter().skip(SEEN).any(|field| self.wrong.contains_key(field))
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }

    /// The language of what is wrong with the field.
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
    let typed = match visit.query().get("like") {
        Some(id) => like(&visit.get(&format!("llm-tasks/{}", id_of(id)?)).await?),
        None => Typed {
            agent_slug: "default".into(),
            max_attempts: "3".into(),
            priority: "5".into(),
            // The page of a project leads here.
            project: visit.query().text("project"),
            ..Typed::default()
        },
    };
    visit.ok(&page(&visit, typed).await?)
}

async fn page(visit: &Visit, typed: Typed) -> Result<NewTaskPage<'_>, Refused> {
    let lang = visit.layout.at.lang;
    let (known, most) = (Known::of(visit).await?, size(lang, visit.api.most_of_form() as i64));
    Ok(NewTaskPage { v: &visit.layout, typed, wrong: BTreeMap::new(), said_by_api: BTreeSet::new(), error: None, known, most })
}

/// The same task again.
fn like(task: &Task<'_>) -> Typed {
    Typed {
        prompt: task.prompt.to_string(),
        agent_slug: task.agent_slug.to_string(),
        context_id: task.context_id.to_string(),
        timeout_sec: if task.policy.timeout_is_default { String::new() } else { task.policy.timeout_sec.to_string() },
        budget: if task.policy.budget > 0.0 { task.policy.budget.to_string() } else { String::new() },
        max_attempts: task.max_attempts.to_string(),
        priority: task.priority.to_string(),
        model: task.model.as_deref().unwrap_or_default().to_owned(),
        labels: task.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("\n"),
        desired_format: task.desired_format.to_string(),
        session: task.session.to_string(),
        exclusive_key: task.exclusive_key.as_deref().unwrap_or_default().to_owned(),
        project: task.project.as_deref().unwrap_or_default().to_owned(),
        git_ref: task.r#ref.as_deref().unwrap_or_default().to_owned(),
        push: task.push == PushMode::Branch,
        inputs: task.inputs.iter().map(|input| Input { id: input.artifact_id, path: input.path.to_string() }).collect(),
        outputs: task.outputs.join("\n"),
        context_hints: task.context_hints.join("\n"),
        ttl_after_finished_sec: task.ttl_after_finished_sec.map(|sec| sec.to_string()).unwrap_or_default(),
        ..Typed::default()
    }
}

pub(crate) async fn send(Posted { visit, fields, files, .. }: Posted) -> Result<Response, Refused> {
    let mut typed = typed(&fields);
    let NotCreated { refused, by_api } = match create(&visit, &fields, &files, &mut typed.inputs).await {
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
    let said_by_api = by_api.keys().cloned().collect();
    wrong.extend(by_api);
    let error = wrong.is_empty().then_some(refused.text);
    visit.show(status, &NewTaskPage { wrong, said_by_api, error, ..page(&visit, typed).await? })
}

/// Why no task was created.
struct NotCreated {
    /// With what the page says is wrong, in its language.
    refused: Refused,
    /// What the API says is wrong, in English.
    by_api: Wrong,
}

impl From<Refused> for NotCreated {
    fn from(mut refused: Refused) -> Self {
        let by_api = if matches!(refused.text, Said::Api(_)) { std::mem::take(&mut refused.fields) } else { Wrong::new() };
        Self { refused, by_api }
    }
}

/// What is wrong with the fields of the API, by the fields of the form.
fn of_form(lang: Lang, fields: Wrong) -> Wrong {
    let mut wrong = Wrong::new();
    for (field, text) in fields {
        match field.as_str() {
            // The policy is one field of the API and two of the form; its texts name which.
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

/// The id of the new task, and the word for what was done. Files are stored first, so that they need not be chosen again if anything else is wrong.
async fn create(visit: &Visit, fields: &Fields, files: &[Upload], inputs: &mut Vec<Input>) -> Result<(String, &'static str), NotCreated> {
    let files: Vec<&Upload> = files.iter().filter(|file| file.field == "files").collect();
    // Before any is stored: the task would be refused.
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
        // The API is not called with the rest, which would create a task, but says what else is wrong.
        return Err(NotCreated { by_api: wrong_for_api(&body)?, refused: Refused::of_fields(wrong) });
    }
    let named = inputs.iter().map(|input| json!({ "artifact_id": input.id, "path": input.path }));
    body.insert("inputs".into(), named.collect());
    let created = visit.act(Method::POST, "llm-tasks", &Value::Object(body)).await?;
    // The form sends no field that tasks do not have, so the agent is what the API warns of.
    let done = if created["warnings"].is_array() { "created-unknown-agent" } else { "created" };
    Ok((created["id"].as_str().unwrap_or_default().to_owned(), done))
}

fn typed(fields: &Fields) -> Typed {
    let text = |name| fields.text(name);
    Typed {
        prompt: text("prompt"),
        agent_slug: text("agent_slug"),
        context_id: text("context_id"),
        timeout_sec: text("timeout_sec"),
        budget: text("budget"),
        not_before: text("not_before"),
        max_attempts: text("max_attempts"),
        priority: text("priority"),
        model: text("model"),
        labels: text("labels"),
        desired_format: text("desired_format"),
        session: text("session"),
        exclusive_key: text("exclusive_key"),
        depends_on: text("depends_on"),
        suspend: fields.get("suspend").is_some(),
        project: text("project"),
        git_ref: text("ref"),
        push: fields.get("push").is_some(),
        inputs: fields.all("input").filter_map(Input::of).collect(),
        outputs: text("outputs"),
        context_hints: text("context_hints"),
        ttl_after_finished_sec: text("ttl_after_finished_sec"),
    }
}

/// What the API would say of this body, by its fields.
fn wrong_for_api(body: &Map<String, Value>) -> Result<Wrong, Refused> {
    let unwritten = |_| Refused::internal("The task could not be written", "Завдання не вдалося записати");
    let raw = serde_json::value::to_raw_value(body).map_err(unwritten)?;
    Ok(NewTask::read(&raw).err().map(|problems| by_field(&Invalid::from(problems))).unwrap_or_default())
}

/// The body of the API's call, without the fields that can't be read, and what is wrong with these. Numbers are read here; whether they are
/// within their limits, the API says.
fn body(lang: Lang, now: Ms, fields: &Fields) -> (Map<String, Value>, Wrong) {
    let (mut body, mut wrong) = (Map::new(), BTreeMap::new());
    for name in ["prompt", "agent_slug", "context_id", "model", "desired_format", "session", "exclusive_key", "project", "ref"] {
        if let Some(text) = fields.get(name) {
            // Browsers send the ends of lines as CR LF.
            body.insert(name.into(), json!(text.replace("\r\n", "\n")));
        }
    }
    // As on the command line, a task that names no context begins a conversation.
    body.entry("context_id").or_insert_with(|| json!(Uuid::now_v7()));
    let mut read = |name: &str, read: &dyn Fn(&str) -> Result<Value, String>| match read(fields.get(name)?.trim()) {
        Ok(value) => Some((name.to_owned(), value)),
        Err(text) => {
            wrong.insert(name.to_owned(), text);
            None
        }
    };
    let number = |text: &str| match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(json!(number)),
        _ => {
            let text = crate::times::beginning(text, 40);
            Err(lang.t(format!("Expected number, received '{text}'"), format!("Очікується число, отримано «{text}»")))
        }
    };
    let dollars = |text: &str| match text.parse::<f64>() {
        // For the API, 0 is no limit; who types it here hardly means that.
        Ok(0.0) => Err(lang
            .t("A task with 0 could not run; empty is no limit", "Із 0 завдання не виконалося б; порожньо — без обмеження")
            .to_owned()),
        _ => number(text),
    };
    let start = |text: &str| {
        let expected = "Очікується час, як-от +2h або 2026-02-25T08:00:00Z";
        when::future(text, now).map(|at| json!(at)).map_err(|text| lang.t(text, expected.to_owned()))
    };
    let span = |text: &str| when::duration(text).map(|span| json!(span.as_secs())).map_err(|text| lang.t(text, NO_TIME.to_owned()));
    let mut policy: Map<String, Value> = [read("timeout_sec", &span), read("budget", &dollars)].into_iter().flatten().collect();
    time_limit::add_usual(&mut policy);
    body.insert("policy".into(), Value::Object(policy));
    body.extend(
        [read("not_before", &start), read("max_attempts", &number), read("priority", &number), read("ttl_after_finished_sec", &span)]
            .into_iter()
            .flatten(),
    );
    for name in ["outputs", "context_hints"] {
        body.insert(name.into(), json!(lines(fields, name)));
    }
    let mut labels = Map::new();
    for line in lines(fields, "labels") {
        match line.split_once('=') {
            Some((name, value)) => drop(labels.insert(name.trim().into(), json!(value.trim()))),
            None => {
                let text = format!("Expected name=value in each line, received '{line}'");
                let text = lang.t(text, format!("Очікується назва=значення в кожному рядку, отримано «{line}»"));
                wrong.insert("labels".into(), text);
            }
        }
    }
    body.insert("labels".into(), Value::Object(labels));
    let depends_on = fields.text("depends_on");
    body.insert("depends_on".into(), json!(depends_on.split([' ', ',', '\n', '\r']).filter(|id| !id.is_empty()).collect::<Vec<_>>()));
    if fields.get("suspend").is_some() {
        body.insert("suspend".into(), json!(true));
    }
    if fields.get("push").is_some() {
        body.insert("push".into(), json!(PushMode::Branch.as_str()));
    }
    (body, wrong)
}

/// What stands in the lines of a field.
fn lines(fields: &Fields, name: &str) -> Vec<String> {
    fields.text(name).lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Puts whole ids in place of the parts that lists show.
async fn find_dependencies(visit: &Visit, body: &mut Map<String, Value>) -> Result<(), Refused> {
    let lang = visit.layout.at.lang;
    for id in body.get_mut("depends_on").and_then(Value::as_array_mut).into_iter().flatten().take(MAX_DEPENDENCIES) {
        let part = id.as_str().unwrap_or_default().trim_start_matches('…');
        if Uuid::parse_str(part).is_err() {
            let unknown = || {
                let part = crate::times::beginning(part, 40);
                let text = format!("No task, or more than one, has the id '{part}'");
                Refused::of_field("depends_on", lang.t(text, format!("Ідентифікатор «{part}» не має жодне завдання або мають кілька")))
            };
            *id = json!(by_part(visit, part).await?.ok_or_else(unknown)?);
        }
    }
    Ok(())
}

/// A problem of a list's element, which the API counts from 0, named by its line.
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
            "project": "docs", "push": "branch", "outputs": ["out/*.md", "log"], "context_hints": [], "ttl_after_finished_sec": 5400
        });
        assert_eq!(body(Lang::English, 0, &Fields::parse(form)), (expected.as_object().unwrap().clone(), Wrong::new()));
        let wrong = body(Lang::English, 0, &Fields::parse(b"priority=high&labels=x&budget=$3&timeout_sec=soon")).1;
        assert_eq!(wrong.keys().collect::<Vec<_>>(), ["budget", "labels", "priority", "timeout_sec"]);
        assert_eq!(wrong["priority"], "Expected number, received 'high'");
        assert_eq!(of_line(Lang::English, "1: The glob must be relative"), "line 2: The glob must be relative");
        assert_eq!(of_line(Lang::English, "Array must have at most 50 elements"), "Array must have at most 50 elements");
    }
}
