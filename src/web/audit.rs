//! The audit trail.

use std::collections::BTreeSet;

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use crate::call::path_part;
use crate::filters::{OfTask, WrongFilters, by_api};
use crate::records::{CHARS, Pages, ROWS, by_id, title};
use crate::refused::{Refused, Wrong};
use crate::tasks::attempts::in_words;
use crate::tasks::cells::short_id;
use crate::times::{beginning, shortened};
use crate::visit::{Fields, Layout, Visit, joined};
use bloom_api::answers::Audit;
use bloom_api::time_text;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::audit::{Action, EntityType, is_name_of_another_actor};

/// The limits of an entry's texts. They are short, because the page has other long texts.
const TITLE_CHARS: usize = 40;
const TOLD_CHARS: usize = 80;
/// A longer name has no link: its page has no room for that.
const LINK_BYTES: usize = 120;
/// The maximum number of keys for which the page has a link to their entries.
const KEYS: usize = 10;
/// The usual prefix of the keys of workers. The keys of people are listed before them.
const OF_WORKER: &str = "key:worker-";

struct AuditRow {
    id: Uuid,
    at: Ms,
    request_id: Option<String>,
    action: String,
    actor: String,
    /// The page of the worker or the key that acted; empty if there is none.
    actor_page: String,
    detail: String,
    /// The detail in the language of the page; `None` if it is not translated.
    told: Option<String>,
    task_id: Option<Uuid>,
    title: String,
    worker_id: Option<String>,
    /// The object of the entry and its page, if the object is neither a task nor a worker.
    other: String,
    other_page: String,
}

impl AuditRow {
    /// Whether the same request, by the same actor, did the same.
    fn is_like(&self, other: &Self) -> bool {
        self.request_id.is_some() && (&self.request_id, &self.action, &self.actor) == (&other.request_id, &other.action, &other.actor)
    }

    /// The detail, and whether it is in English.
    fn detail(&self) -> (&str, bool) {
        self.told.as_deref().map_or((&self.detail, true), |told| (told, false))
    }
}

/// An entry, or consecutive ones that differ only in what they are about.
struct Group(Vec<AuditRow>);

impl Group {
    fn all(rows: Vec<AuditRow>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for row in rows {
            match groups.last_mut() {
                Some(Self(alike)) if alike.last().is_some_and(|last| last.is_like(&row)) => alike.push(row),
                _ => groups.push(Self(vec![row])),
            }
        }
        groups
    }

    /// The detail, if it is the same in all entries, and whether it is in English.
    fn detail(&self) -> Option<(&str, bool)> {
        let mut details = self.0.iter().map(AuditRow::detail);
        let first = details.next()?;
        details.all(|other| other == first).then_some(first)
    }
}

/// The page of the object with this name; empty if the name is too long for a link.
fn page_of(kind: &str, name: &str) -> String {
    let page = format!("/{kind}/{}", path_part(name));
    if page.len() <= LINK_BYTES { page } else { String::new() }
}

/// The page of the actor: that of a key, which only administrators see, or that of a worker.
fn page_of_actor(v: &Layout, actor: &str) -> String {
    match actor.strip_prefix("key:") {
        Some(key) if v.is_admin() && !key.contains(':') => page_of("keys", key),
        None if !is_name_of_another_actor(actor) => page_of("workers", actor),
        _ => String::new(),
    }
}

/// The object of an entry that names no task and no worker, and the page of that object.
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
    groups: Vec<Group>,
    pages: Pages,
    wrong: WrongFilters,
    /// The query of all filters except the actor.
    kept: String,
}

impl AuditPage<'_> {
    fn given(&self, field: &str) -> String {
        self.fields.text(field)
    }

    /// The fields of the form next to the action, as name and label. The first two are always visible.
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

    /// Two tabs that keep the other filters: all actions, and those that people decide. Each has its address, its name, and whether it is
    /// this page.
    fn tabs(&self) -> [(String, &'static str, bool); 2] {
        let others = self.fields.query_of(&["actor", "worker_id", "task_id", "request_id", "since", "until"]);
        let tab = |action: &str, own: &str, name| (format!("/audit?{}", joined([own, &others])), name, self.action == action);
        [
            tab("", "", self.v.t("Everything", "Усе")),
            tab(PEOPLE, &format!("action={PEOPLE}"), self.v.t("What people decide", "Рішення людей")),
        ]
    }

    /// The keys that did something on this page, those of people first, each with the address of the same page for this key alone. Empty if
    /// the page is already for one actor.
    fn keys(&self) -> Vec<(&str, String)> {
        let link = |actor: &str| format!("/audit?{}", joined([&format!("actor={}", path_part(actor)), &self.kept]));
        let actors = self.groups.iter().flat_map(|group| &group.0).map(|row| row.actor.as_str()).filter(|_| self.given("actor").is_empty());
        let keys = actors.filter(|actor| actor.starts_with("key:")).map(|actor| (actor.starts_with(OF_WORKER), actor));
        keys.collect::<BTreeSet<_>>().into_iter().take(KEYS).map(|(_, actor)| (actor, link(actor))).collect()
    }

    /// The same page for the key with the name that was typed; `None` if nothing was typed, or if the text already says what kind of actor
    /// it means.
    fn as_key(&self) -> Option<String> {
        let name = self.fields.get("actor").map(str::trim).filter(|name| !name.is_empty() && !name.contains(':'))?;
        let actor = format!("actor={}", path_part(&format!("key:{name}")));
        Some(format!("/audit?{}", joined([&actor, &self.kept])))
    }

    /// Whether one of the filters that are not always visible is set.
    fn has_more(&self) -> bool {
        self.filters().iter().skip(2).any(|(field, _)| self.fields.get(field).is_some())
    }
}

/// The value of `action` that stands for everything that people decide.
const PEOPLE: &str = "people";

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
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
            id: entry.id,
            at: entry.timestamp,
            request_id: entry.request_id.map(|id| id.into_owned()),
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
        match visit.query().get(field).map(|text| time_text::past(text.trim(), visit.layout.now)) {
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
    let list = async { if wrong.is_empty() { visit.list(&path, row).await } else { Err(Refused::of_fields(wrong.clone())) } };
    let mut found = match OfTask::of(&visit, ("/audit", "task_id"), &FIELDS, list).await? {
        OfTask::List(found) => found,
        OfTask::Part(whole) => return Ok(whole),
    };
    found.wrong.extend(by_api(wrong));
    let mut rows = found.listed.rows;
    let ids = rows.iter().filter_map(|row| row.task_id).collect();
    let titles = by_id(&visit, ids, |task| beginning(&task.prompt, TITLE_CHARS)).await?;
    for row in &mut rows {
        row.title = row.task_id.map(|id| title(&titles, id)).unwrap_or_default();
    }
    let page = AuditPage {
        v: &visit.layout,
        fields: visit.query(),
        action,
        actions,
        groups: Group::all(rows),
        pages: Pages::of(&visit, "/audit", &FIELDS, found.listed.next),
        wrong: found.wrong,
        kept: visit.query().query_of(&["action", "worker_id", "task_id", "request_id", "since", "until"]),
    };
    visit.show(found.status, &page)
}
