//! Leases, artifacts, and the audit trail.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use uuid::Uuid;

use crate::answer::see_other;
use crate::call::path_part;
use crate::files::{FileRow, size};
use crate::lang::Lang;
use crate::markdown;
use crate::refused::{Refused, Wrong};
use crate::tasks::attempts::{in_words, outcome, status_words};
use crate::tasks::by_part;
use crate::tasks::cells::short_id;
use crate::times::{beginning, dollars, duration, shortened};
use crate::visit::{Fields, Layout, Visit, joined};
use bloom_api::answers::{Audit, Lease};
use bloom_api::results::Artifact;
use bloom_api::tasks::Task;
use bloom_api::when;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::audit::{Action, EntityType, is_name_of_another_actor};
use bloom_core::file::{ArtifactKind, FileKind};
use bloom_core::task::LeaseStatus;

const ROWS: usize = 60;
const CHARS: usize = 160;
const TITLE_CHARS: usize = 60;
/// Of an entry of the audit trail, whose page has other long texts.
const AUDIT_TITLE_CHARS: usize = 40;
const TOLD_CHARS: usize = 80;
/// The beginning of an answer in which its first words are looked for.
const ANSWER_CHARS: usize = 2_000;
/// A longer name has no link: its page has no room for that.
const LINK_BYTES: usize = 120;
/// Keys whose entries a page of the audit trail leads to.
const KEYS: usize = 10;

/// The addresses of the next page and the first one.
struct Pages {
    next: Option<String>,
    first: Option<String>,
}

impl Pages {
    fn of(visit: &Visit, path: &str, filters: &[&str], next: Option<String>) -> Self {
        let own = visit.query().query_of(filters);
        Self {
            next: next.map(|cursor| format!("{path}?{}", joined([&own, &format!("cursor={cursor}")]))),
            first: visit.query().get("cursor").map(|_| format!("{path}?{own}")),
        }
    }
}

/// The query of the API's list for the filters in the address.
///
/// # Errors
/// The address has others.
fn query(visit: &Visit, filters: &[&str]) -> Result<String, Refused> {
    let names = [filters, &["cursor"]].concat();
    visit.query().only(&names)?;
    Ok(format!("limit={ROWS}&{}", visit.query().query_of(&names)))
}

/// The list of the only task whose id has the part that is given as `task_id`; `None` if that is a whole id, or none is given.
///
/// # Errors
/// No task has the part, or several have.
async fn by_part_of_task(visit: &Visit, path: &str, others: &[&str]) -> Result<Option<Response>, Refused> {
    let Some(given) = visit.query().get("task_id").filter(|given| Uuid::parse_str(given).is_err()) else { return Ok(None) };
    // Lists show the end of an id, after a sign for the rest of it.
    match by_part(visit, given.trim().trim_start_matches('…')).await? {
        Some(id) => Ok(Some(see_other(&format!("{path}?{}", joined([&visit.query().query_of(others), &format!("task_id={id}")]))))),
        None => Err(Refused::unknown("task_id", given, &["the id of a task, or its end"])),
    }
}

/// The beginnings of the prompts of these tasks.
async fn titles(visit: &Visit, ids: BTreeSet<Uuid>) -> Result<BTreeMap<Uuid, String>, Refused> {
    by_id(visit, ids, |task| title_of(&task)).await
}

pub(crate) fn title_of(task: &Task<'_>) -> String {
    beginning(&task.prompt, TITLE_CHARS)
}

/// What a page shows of these tasks, by one call of the API. Of tasks that are no more, there is nothing.
pub(crate) async fn by_id<R>(visit: &Visit, ids: BTreeSet<Uuid>, convert: fn(Task<'static>) -> R) -> Result<BTreeMap<Uuid, R>, Refused> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    let path = format!("llm-tasks?limit={ROWS}&ids={}", ids.join(","));
    Ok(visit.list(&path, |task: Task<'static>| (task.id, convert(task))).await?.rows.into_iter().collect())
}

/// What a task is called: by its prompt, or else by its id.
fn title(titles: &BTreeMap<Uuid, String>, id: Uuid) -> String {
    titles.get(&id).cloned().unwrap_or_else(|| short_id(&id.to_string()))
}

struct LeaseRow {
    task_id: Uuid,
    title: String,
    worker_id: String,
    /// The class of its badge.
    status: &'static str,
    outcome: &'static str,
    /// Why its run failed.
    reason: String,
    cost: String,
    started_at: Ms,
    expires_at: Ms,
    took: String,
    is_active: bool,
}

#[derive(Template)]
#[template(path = "leases.html")]
struct Leases<'a> {
    v: &'a Layout,
    status: String,
    worker_id: String,
    task_id: String,
    statuses: Vec<(&'static str, &'static str)>,
    rows: Vec<LeaseRow>,
    pages: Pages,
}

pub(crate) async fn leases(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 3] = ["status", "worker_id", "task_id"];
    if !visit.layout.sees_all() {
        return Err(Refused::new(
            403,
            "Your key sees the leases of single tasks: the page of a task has them as its attempts",
            "Ваш ключ показує оренди лише окремих завдань: на сторінці завдання це його спроби",
        ));
    }
    if let Some(found) = by_part_of_task(&visit, "/leases", &["status", "worker_id"]).await? {
        return Ok(found);
    }
    let (now, lang) = (visit.layout.now, visit.layout.at.lang);
    let statuses: Vec<_> = LeaseStatus::ALL.iter().map(|status| status.as_str()).collect();
    let status = visit.query().word("status", &statuses)?;
    let row = |lease: Lease| {
        let (status, outcome) = outcome(lang, &lease);
        LeaseRow {
            task_id: lease.task_id,
            title: String::new(),
            outcome,
            reason: lease.reason.as_ref().map(|reason| lang.word(&reason.to_string()).into_owned()).unwrap_or_default(),
            cost: lease.usage.map(|usage| dollars(lang, usage.cost_usd)).unwrap_or_default(),
            worker_id: lease.worker_id.to_string(),
            is_active: lease.status == LeaseStatus::Active,
            status,
            started_at: lease.started_at,
            expires_at: lease.expires_at,
            took: duration(lang, lease.ended_at.unwrap_or(now) - lease.started_at),
        }
    };
    let mut listed = visit.list(&format!("leases?{}", query(&visit, &FILTERS)?), row).await?;
    let titles = titles(&visit, listed.rows.iter().map(|row| row.task_id).collect()).await?;
    for row in &mut listed.rows {
        row.title = title(&titles, row.task_id);
    }
    visit.ok(&Leases {
        v: &visit.layout,
        status,
        worker_id: visit.query().text("worker_id"),
        task_id: visit.query().text("task_id"),
        statuses: LeaseStatus::ALL.iter().map(|status| (status.as_str(), status_words(lang, *status))).collect(),
        rows: listed.rows,
        pages: Pages::of(&visit, "/leases", &FILTERS, listed.next),
    })
}

struct ArtifactRow {
    id: Uuid,
    /// None of an upload.
    task_id: Option<Uuid>,
    title: String,
    kind: String,
    tags: String,
    created_at: Ms,
    /// The first words of the answer.
    content: String,
    /// Empty: there is no answer.
    size: String,
    file: Option<FileRow>,
}

/// The first words of an answer, without the signs of Markdown.
fn first_words(answer: &str) -> String {
    let start = shortened(answer, ANSWER_CHARS);
    let words = markdown::to_line(&start);
    beginning(if words.is_empty() { &start } else { &words }, CHARS)
}

/// The type of an artifact in words. Runs may give their answers types of their own.
fn kind(lang: Lang, word: &str) -> String {
    match (word, FileKind::parse(word)) {
        (_, Some(FileKind::Input)) => lang.t("upload", "завантажений файл").to_owned(),
        (_, Some(FileKind::Output)) => lang.t("file of a run", "файл запуску").to_owned(),
        (_, Some(FileKind::GitDiff)) => lang.t("changes of a run", "зміни запуску").to_owned(),
        ("LLM_RESULT", None) => lang.t("answer", "відповідь").to_owned(),
        (other, None) => shortened(other, CHARS),
    }
}

/// A tag in words. Runs may give their answers tags of their own.
fn tag(lang: Lang, word: &str) -> &str {
    match word {
        "tools_denied" => lang.t("tools denied", "інструментам відмовлено"),
        "output_cut" => lang.t("output cut", "вивід скорочено"),
        other => other,
    }
}

#[derive(Template)]
#[template(path = "artifacts.html")]
struct Artifacts<'a> {
    v: &'a Layout,
    task_id: String,
    /// The key sees only some tasks, and none is chosen: the list has the files that it uploaded.
    is_of_key: bool,
    /// The kind that is chosen; empty: all.
    kind: String,
    /// The kinds by their words, and what they are called.
    tabs: [(&'static str, &'static str); 3],
    rows: Vec<ArtifactRow>,
    pages: Pages,
}

impl Artifacts<'_> {
    /// Uploads have no task, and files no tags.
    fn has_tasks(&self) -> bool {
        self.rows.iter().any(|row| row.task_id.is_some())
    }

    fn has_tags(&self) -> bool {
        self.rows.iter().any(|row| !row.tags.is_empty())
    }
}

pub(crate) async fn artifacts(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 2] = ["task_id", "kind"];
    if let Some(found) = by_part_of_task(&visit, "/artifacts", &["kind"]).await? {
        return Ok(found);
    }
    let lang = visit.layout.at.lang;
    let (answers, files) = (ArtifactKind::Answer.as_str(), ArtifactKind::File.as_str());
    let chosen = visit.query().word("kind", &[answers, files])?;
    let row = |artifact: Artifact| {
        let (file, answer) = (FileRow::of(lang, &artifact), artifact.content.as_deref().unwrap_or_default());
        ArtifactRow {
            id: artifact.id,
            task_id: artifact.task_id,
            title: String::new(),
            size: match &file {
                Some(file) => file.size.clone(),
                None if answer.is_empty() => String::new(),
                None => size(lang, i64::try_from(answer.len()).unwrap_or(i64::MAX)),
            },
            file,
            kind: kind(lang, &artifact.r#type),
            tags: shortened(&artifact.tags.iter().map(|word| tag(lang, word)).collect::<Vec<_>>().join(", "), CHARS),
            created_at: artifact.created_at,
            content: first_words(answer),
        }
    };
    let mut listed = visit.list(&format!("artifacts?{}", query(&visit, &FILTERS)?), row).await?;
    if visit.query().get("task_id").is_none() {
        // Runs that failed have no answer, and would hide those that have one.
        listed.rows.retain(|row| row.file.is_some() || !row.content.is_empty());
    }
    let titles = titles(&visit, listed.rows.iter().filter_map(|row| row.task_id).collect()).await?;
    for row in &mut listed.rows {
        row.title = row.task_id.map(|id| title(&titles, id)).unwrap_or_default();
    }
    visit.ok(&Artifacts {
        v: &visit.layout,
        task_id: visit.query().text("task_id"),
        is_of_key: !visit.layout.sees_all() && visit.query().get("task_id").is_none(),
        kind: chosen,
        tabs: [("", lang.t("all", "усі")), (answers, lang.t("answers", "відповіді")), (files, lang.t("files", "файли"))],
        rows: listed.rows,
        pages: Pages::of(&visit, "/artifacts", &FILTERS, listed.next),
    })
}

struct AuditRow {
    at: Ms,
    action: String,
    actor: String,
    /// The page of the worker or the key that did it; empty: there is none.
    actor_page: String,
    detail: String,
    /// The detail in the language of the page; `None`: it is not translated.
    told: Option<String>,
    task_id: Option<Uuid>,
    title: String,
    worker_id: Option<String>,
    /// What it is about, if that is neither a task nor a worker, and the page of that.
    other: String,
    other_page: String,
}

/// The page of a thing that has this name; empty: the name is too long for a link.
fn page_of(kind: &str, name: &str) -> String {
    let page = format!("/{kind}/{}", path_part(name));
    if page.len() <= LINK_BYTES { page } else { String::new() }
}

/// The page of who did something: a key, which only administrators see, or a worker.
fn page_of_actor(v: &Layout, actor: &str) -> String {
    match actor.strip_prefix("key:") {
        Some(key) if v.is_admin() && !key.contains(':') => page_of("keys", key),
        None if !is_name_of_another_actor(actor) => page_of("workers", actor),
        _ => String::new(),
    }
}

/// What an entry is about that names no task and no worker, and its page.
fn other(v: &Layout, entry: &Audit<'_>) -> (String, String) {
    let id = &*entry.entity_id;
    let page = match &entry.entity_type {
        Word::Known(EntityType::Project) if Uuid::parse_str(id).is_ok() => return (short_id(id), page_of("projects", id)),
        Word::Known(EntityType::Context) => page_of("contexts", id),
        Word::Known(EntityType::Key) if v.is_admin() => page_of("keys", id),
        Word::Known(EntityType::Queue) => "/queues".to_owned(),
        _ => String::new(),
    };
    (shortened(id, CHARS), page)
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage<'a> {
    v: &'a Layout,
    fields: &'a Fields,
    action: String,
    actions: Vec<&'static str>,
    rows: Vec<AuditRow>,
    pages: Pages,
    wrong: Wrong,
    /// The query of all filters but who it was.
    kept: String,
}

impl AuditPage<'_> {
    fn given(&self, field: &str) -> String {
        self.fields.text(field)
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }

    /// The fields of the form beside the action: name and label. The first two are always seen.
    fn filters(&self) -> [(&'static str, &'static str); 6] {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        [
            ("actor", t("Who", "Хто")),
            ("since", t("Since", "Від")),
            ("until", t("Until", "До")),
            ("worker_id", t("Worker", "Воркер")),
            ("task_id", t("Id of the task", "Ідентифікатор завдання")),
            ("request_id", t("Id of the request", "Ідентифікатор запиту")),
        ]
    }

    /// The keys that did something on this page, and the same page for each alone; none if the page is for one actor.
    fn keys(&self) -> Vec<(&str, String)> {
        let link = |actor: &str| format!("/audit?{}", joined([&format!("actor={}", path_part(actor)), &self.kept]));
        let actors = self.rows.iter().map(|row| row.actor.as_str()).filter(|_| self.given("actor").is_empty());
        let keys: BTreeSet<&str> = actors.filter(|actor| actor.starts_with("key:")).collect();
        keys.into_iter().take(KEYS).map(|actor| (actor, link(actor))).collect()
    }

    /// The same page for the key of the name that was typed; `None` if none was typed, or the text says already who is meant.
    fn as_key(&self) -> Option<String> {
        let name = self.fields.get("actor").map(str::trim).filter(|name| !name.is_empty() && !name.contains(':'))?;
        let actor = format!("actor={}", path_part(&format!("key:{name}")));
        Some(format!("/audit?{}", joined([&actor, &self.kept])))
    }

    /// Whether a filter is given that is not always seen.
    fn has_more(&self) -> bool {
        self.filters().iter().skip(2).any(|(field, _)| self.fields.get(field).is_some())
    }
}

/// Beside the actions: all that people decide.
const PEOPLE: &str = "people";

pub(crate) async fn audit(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 4] = ["actor", "worker_id", "task_id", "request_id"];
    const FIELDS: [&str; 7] = ["action", "actor", "worker_id", "task_id", "request_id", "since", "until"];
    visit.query().only(&[&FIELDS[..], &["cursor"]].concat())?;
    let actions: Vec<_> = Action::ALL.iter().map(|action| action.as_str()).collect();
    let action = visit.query().text("action");
    for word in action.split(',').filter(|word| !word.is_empty() && action != PEOPLE) {
        if !actions.contains(&word) {
            return Err(Refused::unknown("action", word, &actions));
        }
    }
    let row = |entry: Audit| {
        let (other, other_page) = match (entry.task_id, &entry.worker_id) {
            (None, None) => other(&visit.layout, &entry),
            _ => (String::new(), String::new()),
        };
        AuditRow {
            at: entry.timestamp,
            action: entry.action.to_string(),
            actor_page: page_of_actor(&visit.layout, &entry.actor),
            actor: shortened(&entry.actor, CHARS),
            detail: match entry.task_id.map(|id| id.to_string()) {
                Some(id) => shortened(&entry.detail.replace(&id, &short_id(&id)), CHARS),
                None => shortened(&entry.detail, CHARS),
            },
            told: in_words(visit.layout.at.lang, &entry.action, &entry.detail).map(|told| shortened(&told, TOLD_CHARS)),
            title: String::new(),
            task_id: entry.task_id,
            other,
            other_page,
            worker_id: entry.worker_id.map(|worker| worker.into_owned()),
        }
    };
    let (mut times, mut wrong) = (String::new(), Wrong::new());
    for (field, parameter) in [("since", "created_after"), ("until", "created_before")] {
        match visit.query().get(field).map(|text| when::past(text.trim(), visit.layout.now)) {
            None => {}
            Some(Ok(at)) => times.push_str(&format!("&{parameter}={at}")),
            Some(Err(text)) => drop(wrong.insert(field.to_owned(), text)),
        }
    }
    let action_query = match action.as_str() {
        "" => String::new(),
        PEOPLE => "&people=true".to_owned(),
        actions => format!("&action={actions}"),
    };
    let path = format!("audit?limit={ROWS}&{}{action_query}{times}", visit.query().query_of(&[&FILTERS[..], &["cursor"]].concat()));
    let found = if wrong.is_empty() { visit.list(&path, row).await } else { Err(Refused::of_fields(wrong)) };
    let mut page = AuditPage {
        v: &visit.layout,
        fields: visit.query(),
        action,
        actions,
        rows: Vec::new(),
        pages: Pages::of(&visit, "/audit", &FIELDS, None),
        wrong: Wrong::new(),
        kept: visit.query().query_of(&["action", "worker_id", "task_id", "request_id", "since", "until"]),
    };
    match found {
        Ok(listed) => {
            let ids = listed.rows.iter().filter_map(|row| row.task_id).collect();
            let titles = by_id(&visit, ids, |task| beginning(&task.prompt, AUDIT_TITLE_CHARS)).await?;
            page.rows = listed.rows;
            for row in &mut page.rows {
                row.title = row.task_id.map(|id| title(&titles, id)).unwrap_or_default();
            }
            page.pages = Pages::of(&visit, "/audit", &FIELDS, listed.next);
            visit.ok(&page)
        }
        Err(refused) if page.filters().iter().any(|(field, _)| refused.fields.contains_key(*field)) => {
            page.wrong = refused.fields;
            visit.show(StatusCode::BAD_REQUEST, &page)
        }
        Err(refused) => Err(refused),
    }
}
