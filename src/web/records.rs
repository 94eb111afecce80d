//! Leases, artifacts, and the audit trail.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use crate::answer::see_other;
use crate::call::{Listed, path_part};
use crate::files::FileRow;
use crate::lang::Lang;
use crate::refused::{Refused, Said};
use crate::tasks::attempts::{outcome, status_words};
use crate::tasks::by_part;
use crate::tasks::cells::short_id;
use crate::times::{beginning, dollars, duration, shortened};
use crate::visit::{Layout, Visit, joined};
use bloom_api::answers::{Audit, Lease};
use bloom_api::results::Artifact;
use bloom_api::tasks::Task;
use bloom_api::when;
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::file::FileKind;
use bloom_core::task::LeaseStatus;

const ROWS: usize = 60;
const CHARS: usize = 160;
const TITLE_CHARS: usize = 60;

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

/// The beginnings of the prompts of these tasks, by one call of the API. Of tasks that are no more, there is none.
pub(crate) async fn titles(visit: &Visit, ids: BTreeSet<Uuid>) -> Result<BTreeMap<Uuid, String>, Refused> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    let path = format!("llm-tasks?limit={ROWS}&ids={}", ids.join(","));
    Ok(visit.list(&path, |task: Task| (task.id, beginning(&task.prompt, TITLE_CHARS))).await?.rows.into_iter().collect())
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
    statuses: Vec<(&'static str, &'static str)>,
    rows: Vec<LeaseRow>,
    pages: Pages,
}

pub(crate) async fn leases(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 2] = ["status", "worker_id"];
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
    content: String,
    file: Option<FileRow>,
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

#[derive(Template)]
#[template(path = "artifacts.html")]
struct Artifacts<'a> {
    v: &'a Layout,
    task_id: String,
    /// The key sees only some tasks, and none is chosen: the list has the files that it uploaded.
    is_of_key: bool,
    rows: Vec<ArtifactRow>,
    pages: Pages,
}

pub(crate) async fn artifacts(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 1] = ["task_id"];
    if let Some(given) = visit.query().get("task_id").filter(|given| Uuid::parse_str(given).is_err()) {
        // Lists show the end of an id, after a sign for the rest of it.
        return match by_part(&visit, given.trim().trim_start_matches('…')).await? {
            Some(id) => Ok(see_other(&format!("/artifacts?task_id={id}"))),
            None => Err(Refused::unknown("task_id", given, &["the id of a task, or its end"])),
        };
    }
    let row = |artifact: Artifact| ArtifactRow {
        id: artifact.id,
        task_id: artifact.task_id,
        title: String::new(),
        file: FileRow::of(visit.layout.at.lang, &artifact),
        kind: kind(visit.layout.at.lang, &artifact.r#type),
        tags: shortened(&artifact.tags.join(", "), CHARS),
        created_at: artifact.created_at,
        content: beginning(artifact.content.as_deref().unwrap_or_default(), CHARS),
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
        rows: listed.rows,
        pages: Pages::of(&visit, "/artifacts", &FILTERS, listed.next),
    })
}

struct AuditRow {
    at: Ms,
    action: String,
    actor: String,
    detail: String,
    task_id: Option<Uuid>,
    /// The end of its id.
    task: String,
    worker_id: Option<String>,
    /// What it is about, if that is neither a task nor a worker.
    other: String,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage<'a> {
    v: &'a Layout,
    action: String,
    actor: String,
    worker_id: String,
    task_id: String,
    request_id: String,
    since: String,
    until: String,
    actions: Vec<&'static str>,
    rows: Vec<AuditRow>,
    pages: Pages,
    wrong: Option<Said>,
    /// The query of all filters but who it was.
    kept: String,
}

impl AuditPage<'_> {
    /// The same page for the key of the name that was typed; `None` if none was typed, or the text says already who is meant.
    fn as_key(&self) -> Option<String> {
        let name = Some(self.actor.trim()).filter(|name| !name.is_empty() && !name.contains(':'))?;
        let actor = format!("actor={}", path_part(&format!("key:{name}")));
        Some(format!("/audit?{}", joined([&actor, &self.kept])))
    }

    /// Whether a filter is given that is not always seen.
    fn has_more(&self) -> bool {
        [&self.until, &self.worker_id, &self.task_id, &self.request_id].into_iter().any(|filter| !filter.is_empty())
    }
}

pub(crate) async fn audit(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 5] = ["action", "actor", "worker_id", "task_id", "request_id"];
    const FIELDS: [&str; 7] = ["action", "actor", "worker_id", "task_id", "request_id", "since", "until"];
    visit.query().only(&[&FIELDS[..], &["cursor"]].concat())?;
    let actions: Vec<_> = Action::ALL.iter().map(|action| action.as_str()).collect();
    let action = visit.query().text("action");
    for word in action.split(',').filter(|word| !word.is_empty()) {
        if !actions.contains(&word) {
            return Err(Refused::unknown("action", word, &actions));
        }
    }
    let row = |entry: Audit| AuditRow {
        at: entry.timestamp,
        action: entry.action.to_string(),
        actor: shortened(&entry.actor, CHARS),
        detail: match entry.task_id.map(|id| id.to_string()) {
            Some(id) => shortened(&entry.detail.replace(&id, &short_id(&id)), CHARS),
            None => shortened(&entry.detail, CHARS),
        },
        task: entry.task_id.map(|id| short_id(&id.to_string())).unwrap_or_default(),
        task_id: entry.task_id,
        other: match (entry.task_id, &entry.worker_id) {
            (None, None) => shortened(&entry.entity_id, CHARS),
            _ => String::new(),
        },
        worker_id: entry.worker_id.map(|worker| worker.into_owned()),
    };
    let mut times = String::new();
    let mut wrong = None;
    for (field, parameter) in [("since", "created_after"), ("until", "created_before")] {
        match visit.query().get(field).map(|text| when::past(text.trim(), visit.layout.now)) {
            None => {}
            Some(Ok(at)) => times.push_str(&format!("&{parameter}={at}")),
            Some(Err(text)) => wrong = Some(Said::Api(text)),
        }
    }
    let path = format!("audit?limit={ROWS}&{}{times}", visit.query().query_of(&[&FILTERS[..], &["cursor"]].concat()));
    let mut listed = Listed { rows: Vec::new(), next: None };
    if wrong.is_none() {
        match visit.list(&path, row).await {
            Ok(found) => listed = found,
            Err(refused) if refused.status == 400 => wrong = Some(refused.text),
            Err(refused) => return Err(refused),
        }
    }
    visit.ok(&AuditPage {
        v: &visit.layout,
        action,
        actor: visit.query().text("actor"),
        worker_id: visit.query().text("worker_id"),
        task_id: visit.query().text("task_id"),
        request_id: visit.query().text("request_id"),
        since: visit.query().text("since"),
        until: visit.query().text("until"),
        actions,
        rows: listed.rows,
        pages: Pages::of(&visit, "/audit", &FIELDS, listed.next),
        wrong,
        kept: visit.query().query_of(&["action", "worker_id", "task_id", "request_id", "since", "until"]),
    })
}
