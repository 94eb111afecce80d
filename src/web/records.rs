//! Leases, artifacts, and the audit trail.

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use crate::files::FileRow;
use crate::refused::{Refused, Said};
use crate::times::{duration, shortened};
use crate::visit::{Layout, Visit};
use bloom_api::answers::{Audit, Lease};
use bloom_api::results::Artifact;
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::task::LeaseStatus;

const ROWS: usize = 60;
const CHARS: usize = 160;

/// The addresses of the next page and the first one.
struct Pages {
    next: Option<String>,
    first: Option<String>,
}

impl Pages {
    fn of(visit: &Visit, path: &str, filters: &[&str], next: Option<String>) -> Self {
        let own = visit.query().query_of(filters);
        let joint = if own.is_empty() { "" } else { "&" };
        Self {
            next: next.map(|cursor| format!("{path}?{own}{joint}cursor={cursor}")),
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

struct LeaseRow {
    task_id: Uuid,
    worker_id: String,
    status: String,
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
    statuses: Vec<&'static str>,
    rows: Vec<LeaseRow>,
    pages: Pages,
}

pub async fn leases(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 2] = ["status", "worker_id"];
    let (now, lang) = (visit.layout.now, visit.layout.at.lang);
    let statuses: Vec<_> = LeaseStatus::ALL.iter().map(|status| status.as_str()).collect();
    let status = visit.query().word("status", &statuses)?;
    let row = |lease: Lease| LeaseRow {
        task_id: lease.task_id,
        worker_id: lease.worker_id.to_string(),
        is_active: lease.status == LeaseStatus::Active,
        status: lease.status.to_string(),
        started_at: lease.started_at,
        expires_at: lease.expires_at,
        took: duration(lang, lease.ended_at.unwrap_or(now) - lease.started_at),
    };
    let listed = visit.list(&format!("leases?{}", query(&visit, &FILTERS)?), row).await?;
    visit.ok(&Leases {
        v: &visit.layout,
        status,
        worker_id: visit.query().text("worker_id"),
        statuses,
        rows: listed.rows,
        pages: Pages::of(&visit, "/leases", &FILTERS, listed.next),
    })
}

struct ArtifactRow {
    id: Uuid,
    /// None of an upload.
    task_id: Option<Uuid>,
    kind: String,
    tags: String,
    created_at: Ms,
    content: String,
    file: Option<FileRow>,
}

#[derive(Template)]
#[template(path = "artifacts.html")]
struct Artifacts<'a> {
    v: &'a Layout,
    task_id: String,
    rows: Vec<ArtifactRow>,
    pages: Pages,
}

pub async fn artifacts(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 1] = ["task_id"];
    if let Some(given) = visit.query().get("task_id").filter(|given| Uuid::parse_str(given).is_err()) {
        return Err(Refused::unknown("task_id", given, &["the whole id of a task"]));
    }
    let row = |artifact: Artifact| ArtifactRow {
        id: artifact.id,
        task_id: artifact.task_id,
        file: FileRow::of(visit.layout.at.lang, &artifact),
        kind: shortened(&artifact.r#type, CHARS),
        tags: shortened(&artifact.tags.join(", "), CHARS),
        created_at: artifact.created_at,
        content: crate::times::beginning(artifact.content.as_deref().unwrap_or_default(), CHARS),
    };
    let listed = visit.list(&format!("artifacts?{}", query(&visit, &FILTERS)?), row).await?;
    visit.ok(&Artifacts {
        v: &visit.layout,
        task_id: visit.query().text("task_id"),
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
    worker_id: Option<String>,
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
    actions: Vec<&'static str>,
    rows: Vec<AuditRow>,
    pages: Pages,
    wrong: Option<Said>,
}

pub async fn audit(visit: Visit) -> Result<Response, Refused> {
    const FILTERS: [&str; 5] = ["action", "actor", "worker_id", "task_id", "request_id"];
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
        detail: shortened(&entry.detail, CHARS),
        task_id: entry.task_id,
        worker_id: entry.worker_id.map(|worker| worker.into_owned()),
    };
    let (rows, next, wrong) = match visit.list(&format!("audit?{}", query(&visit, &FILTERS)?), row).await {
        Ok(listed) => (listed.rows, listed.next, None),
        Err(refused) if refused.status == 400 => (Vec::new(), None, Some(refused.text)),
        Err(refused) => return Err(refused),
    };
    visit.ok(&AuditPage {
        v: &visit.layout,
        action,
        actor: visit.query().text("actor"),
        worker_id: visit.query().text("worker_id"),
        task_id: visit.query().text("task_id"),
        request_id: visit.query().text("request_id"),
        actions,
        rows,
        pages: Pages::of(&visit, "/audit", &FILTERS, next),
        wrong,
    })
}
