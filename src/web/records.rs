//! Leases and artifacts, and what their lists share with that of the audit trail.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use crate::files::{FileRow, size};
use crate::filters::{Filtered, OfTask, WrongFilters};
use crate::lang::Lang;
use crate::markdown;
use crate::refused::Refused;
use crate::tasks::attempts::{outcome, status_words, why};
use crate::tasks::cells::{short_id, short_name};
use crate::tasks::filter::{moment, reason_of, reasons, times};
use crate::tasks::list::needs_person;
use crate::times::{beginning, dollars, duration, shortened};
use crate::visit::{Fields, Layout, Visit, joined};
use bloom_api::answers::Lease;
use bloom_api::results::Artifact;
use bloom_api::tasks::Task;
use bloom_core::Ms;
use bloom_core::file::{ArtifactKind, FileKind};
use bloom_core::task::{LeaseOutcome, LeaseStatus};

pub(crate) const ROWS: usize = 60;
pub(crate) const CHARS: usize = 160;
const TITLE_CHARS: usize = 60;
/// How much of an answer is read to find its first words.
const ANSWER_CHARS: usize = 2_000;

/// The addresses of the next page and of the first one.
pub(crate) struct Pages {
    pub next: Option<String>,
    pub first: Option<String>,
}

impl Pages {
    pub(crate) fn of(visit: &Visit, path: &str, filters: &[&str], next: Option<String>) -> Self {
        let own = visit.query().query_of(filters);
        Self {
            next: next.map(|cursor| format!("{path}?{}", joined([&own, &format!("cursor={cursor}")]))),
            first: visit.query().get("cursor").map(|_| format!("{path}?{own}")),
        }
    }
}

/// The query for the API's list, from the filters in the address. `since` is a time of its own in the API.
///
/// # Errors
/// The address has a field that is not among these filters.
fn query(visit: &Visit, filters: &[&str]) -> Result<String, Refused> {
    let names = [filters, &["cursor"]].concat();
    visit.query().only(&names)?;
    let of_api: Vec<&str> = names.into_iter().filter(|name| *name != "since").collect();
    Ok(format!("limit={ROWS}&{}", visit.query().query_of(&of_api)))
}

pub(crate) fn title_of(task: &Task<'_>) -> String {
    beginning(&task.prompt, TITLE_CHARS)
}

/// Reads these tasks by one call of the API, and converts each to what a page shows. Tasks that no longer exist are left out.
pub(crate) async fn by_id<R>(visit: &Visit, ids: BTreeSet<Uuid>, convert: fn(Task<'static>) -> R) -> Result<BTreeMap<Uuid, R>, Refused> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    let path = format!("llm-tasks?limit={ROWS}&ids={}", ids.join(","));
    Ok(visit.list(&path, |task: Task<'static>| (task.id, convert(task))).await?.rows.into_iter().collect())
}

/// The title of a task: the beginning of its prompt, or else the end of its id.
pub(crate) fn title(titles: &BTreeMap<Uuid, String>, id: Uuid) -> String {
    titles.get(&id).cloned().unwrap_or_else(|| short_id(&id.to_string()))
}

struct LeaseRow {
    task_id: Uuid,
    title: String,
    worker_id: String,
    /// Its name, shortened to fit a column that is not wrapped.
    worker: String,
    /// The class of its badge.
    status: &'static str,
    outcome: &'static str,
    /// Why its run failed, in words; empty if the outcome says it.
    reason: String,
    /// The text of the worker or the server about that.
    message: String,
    cost: String,
    started_at: Ms,
    expires_at: Ms,
    took: String,
    is_active: bool,
    /// Whether its run waits for the answer of a person.
    asks: bool,
}

#[derive(Template)]
#[template(path = "leases.html")]
struct Leases<'a> {
    v: &'a Layout,
    status: String,
    /// Lists only runs with this outcome; empty: all runs, also those that have not ended.
    outcome: String,
    /// The words of the outcomes and their labels.
    tabs: [(&'static str, &'static str); 4],
    /// The other filters, as a query string.
    filters: String,
    fields: &'a Fields,
    wrong: WrongFilters,
    statuses: Vec<(&'static str, &'static str)>,
    /// The chosen reason; empty: all leases.
    reason: String,
    reasons: Vec<(&'static str, Cow<'static, str>)>,
    /// How long ago a lease was made at most; empty: at any time.
    since: String,
    times: [(&'static str, &'static str); 4],
    rows: Vec<LeaseRow>,
    pages: Pages,
}

impl Leases<'_> {
    /// The fields of the form next to the status, as name and label.
    fn texts(&self) -> [(&'static str, &'static str); 2] {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        [("worker_id", t("Worker", "Воркер")), ("task_id", t("Id of the task", "Ідентифікатор завдання"))]
    }

    /// Whether a filter is set.
    fn is_filtered(&self) -> bool {
        !self.outcome.is_empty() || !self.filters.is_empty()
    }
}

pub(crate) async fn leases(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 6] = ["status", "outcome", "reason", "worker_id", "since", "task_id"];
    if !visit.layout.sees_all() {
        return Err(Refused::new(
            403,
            "Your key sees the leases of single tasks: the page of a task has them as its attempts",
            "Ваш ключ показує оренди лише окремих завдань: на сторінці завдання це його спроби",
        ));
    }
    let (now, lang) = (visit.layout.now, visit.layout.at.lang);
    let statuses: Vec<_> = LeaseStatus::ALL.iter().map(|status| status.as_str()).collect();
    let status = visit.query().word("status", &statuses)?;
    let outcomes = [LeaseOutcome::Success, LeaseOutcome::Error, LeaseOutcome::Interrupted].map(LeaseOutcome::as_str);
    let [success, error, interrupted] = outcomes;
    let ended = visit.query().word("outcome", &outcomes)?;
    let chosen_reason = reason_of(visit.query())?;
    let times = times(lang);
    let since = visit.query().word("since", &times.map(|(word, _)| word))?;
    let row = |lease: Lease| {
        let (status, outcome) = outcome(lang, &lease);
        let (reason, message) = why(lang, &lease);
        LeaseRow {
            task_id: lease.task_id,
            title: String::new(),
            outcome,
            reason,
            message: shortened(&message, CHARS),
            cost: lease.usage.map(|usage| dollars(lang, usage.cost_usd)).unwrap_or_default(),
            worker: short_name(&lease.worker_id),
            worker_id: lease.worker_id.to_string(),
            is_active: lease.status == LeaseStatus::Active,
            status,
            started_at: lease.started_at,
            expires_at: lease.expires_at,
            took: duration(lang, lease.ended_at.unwrap_or(now) - lease.started_at),
            asks: false,
        }
    };
    let own = query(&visit, &FILTERS)?;
    let path = match moment(&since, now) {
        None => format!("leases?{own}"),
        Some(at) => format!("leases?{own}&created_after={at}"),
    };
    let found = OfTask::of(&visit, ("/leases", "task_id"), &FILTERS, visit.list(&path, row)).await?;
    let Filtered { status: code, mut listed, wrong } = match found {
        OfTask::List(found) => found,
        OfTask::Part(whole) => return Ok(whole),
    };
    let ids = listed.rows.iter().map(|row| row.task_id).collect();
    let tasks = by_id(&visit, ids, |task| (title_of(&task), needs_person(&task))).await?;
    for row in &mut listed.rows {
        let (title, asks) = tasks.get(&row.task_id).cloned().unwrap_or_else(|| (short_id(&row.task_id.to_string()), false));
        row.title = title;
        row.asks = asks && row.is_active;
    }
    let page = Leases {
        v: &visit.layout,
        status,
        fields: visit.query(),
        wrong,
        filters: visit.query().query_of(&FILTERS.map(|name| if name == "outcome" { "" } else { name })),
        outcome: ended,
        tabs: [
            ("", lang.t("all", "усі")),
            (success, lang.t("completed", "завершено")),
            (error, lang.t("failed", "з помилкою")),
            (interrupted, lang.t("interrupted", "перервано")),
        ],
        reasons: reasons(lang),
        reason: chosen_reason,
        times,
        since,
        statuses: LeaseStatus::ALL.iter().map(|status| (status.as_str(), status_words(lang, *status))).collect(),
        rows: listed.rows,
        pages: Pages::of(&visit, "/leases", &FILTERS, listed.next),
    };
    visit.show(code, &page)
}

struct ArtifactRow {
    id: Uuid,
    /// `None` for an upload.
    task_id: Option<Uuid>,
    title: String,
    kind: String,
    tags: String,
    created_at: Ms,
    /// The first words of the answer.
    content: String,
    /// Empty if there is no answer.
    size: String,
    file: Option<FileRow>,
}

/// The first words of an answer, without Markdown.
fn first_words(answer: &str) -> String {
    let start = shortened(answer, ANSWER_CHARS);
    let words = markdown::to_line(&start);
    beginning(if words.is_empty() { &start } else { &words }, CHARS)
}

/// The label of an artifact's type. Runs may give their answers types of their own, which are shown unchanged.
fn kind(lang: Lang, word: &str) -> String {
    match (word, FileKind::parse(word)) {
        (_, Some(FileKind::Input)) => lang.t("upload", "завантажений файл").to_owned(),
        (_, Some(FileKind::Output)) => lang.t("file of a run", "файл запуску").to_owned(),
        (_, Some(FileKind::GitDiff)) => lang.t("changes of a run", "зміни запуску").to_owned(),
        ("LLM_RESULT", None) => lang.t("answer", "відповідь").to_owned(),
        (other, None) => shortened(other, CHARS),
    }
}

/// The label of a tag. Runs may give their answers tags of their own, which are shown unchanged.
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
    fields: &'a Fields,
    wrong: WrongFilters,
    /// Whether the list has the files that this key uploaded: the key sees only some tasks, and no task is chosen.
    is_of_key: bool,
    /// The chosen kind; empty: all kinds.
    kind: String,
    /// The filter by task, as the query of an address.
    filters: String,
    /// The words of the kinds and their labels.
    tabs: [(&'static str, &'static str); 3],
    rows: Vec<ArtifactRow>,
    pages: Pages,
}

impl Artifacts<'_> {
    /// Uploads belong to no task, and files have no tags.
    fn has_tasks(&self) -> bool {
        self.rows.iter().any(|row| row.task_id.is_some())
    }

    fn has_tags(&self) -> bool {
        self.rows.iter().any(|row| !row.tags.is_empty())
    }
}

pub(crate) async fn artifacts(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 2] = ["task_id", "kind"];
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
    let path = format!("artifacts?{}", query(&visit, &FILTERS)?);
    let found = OfTask::of(&visit, ("/artifacts", "task_id"), &FILTERS, visit.list(&path, row)).await?;
    let Filtered { status, mut listed, wrong } = match found {
        OfTask::List(found) => found,
        OfTask::Part(whole) => return Ok(whole),
    };
    if visit.query().get("task_id").is_none() {
        // Failed runs have no answer. They are left out, so that they do not crowd out the answers.
        listed.rows.retain(|row| row.file.is_some() || !row.content.is_empty());
    }
    let titles = by_id(&visit, listed.rows.iter().filter_map(|row| row.task_id).collect(), |task| title_of(&task)).await?;
    for row in &mut listed.rows {
        row.title = row.task_id.map(|id| title(&titles, id)).unwrap_or_default();
    }
    let page = Artifacts {
        v: &visit.layout,
        fields: visit.query(),
        wrong,
        is_of_key: !visit.layout.sees_all() && visit.query().get("task_id").is_none(),
        kind: chosen,
        filters: visit.query().query_of(&["task_id"]),
        tabs: [("", lang.t("all", "усі")), (answers, lang.t("answers", "відповіді")), (files, lang.t("files", "файли"))],
        rows: listed.rows,
        pages: Pages::of(&visit, "/artifacts", &FILTERS, listed.next),
    };
    visit.show(status, &page)
}
