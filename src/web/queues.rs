//! Queues: the list, the buttons that pause and resume them, and the form that limits them.

use std::collections::BTreeSet;

use askama::Template;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use crate::answer::see_other;
use crate::call::{Listed, path_part};
use crate::refused::{Refused, Wrong};
use crate::tasks::buttons::Confirm;
use crate::times::shortened;
use crate::visit::{Fields, Layout, Posted, Visit};
use bloom_api::queues::Queue;
use bloom_api::workers::Worker;
use bloom_core::Ms;

const ROWS: usize = 40;
const NAME_CHARS: usize = 60;
/// The maximum number of workers whose agents are shown.
const WORKERS: usize = 1_000;
/// What the buttons of the page send as `action`.
const ACTIONS: [&str; 3] = ["pause", "resume", "limit"];

struct Row {
    /// `None` for all queues together.
    agent_slug: Option<String>,
    name: String,
    /// The query that restricts a list to the tasks of this queue, in addition to the status.
    filter: String,
    /// The address of the list of its tasks.
    tasks: String,
    paused_at: Option<Ms>,
    limit: Option<i64>,
    queued: i64,
    running: i64,
    /// Whether tasks are queued although no worker serves the queue.
    is_unserved: bool,
}

fn row(v: &Layout, queue: Queue<'_>) -> Row {
    let agent_slug = queue.agent_slug.map(|agent| agent.into_owned());
    let filter = agent_slug.as_deref().map(|agent| format!("&agent_slug={}", path_part(agent))).unwrap_or_default();
    Row {
        name: agent_slug
            .as_deref()
            .map_or_else(|| v.t("all queues together", "усі черги разом").to_owned(), |agent| shortened(agent, NAME_CHARS)),
        tasks: format!("/tasks{}", filter.replacen('&', "?", 1)),
        filter,
        agent_slug,
        paused_at: queue.paused_at,
        limit: queue.max_concurrency,
        queued: queue.queued,
        running: queue.active_leases,
        is_unserved: queue.queued > 0 && queue.workers == 0,
    }
}

#[derive(Template)]
#[template(path = "queues.html")]
struct Queues<'a> {
    v: &'a Layout,
    rows: Vec<Row>,
    /// Whether all queues together are paused. Then no queue gives out tasks, whatever its own state is.
    is_all_paused: bool,
    next: Option<String>,
    /// What was typed into the form.
    typed: &'a Fields,
    wrong: Wrong,
    done: Option<&'static str>,
}

impl Queues<'_> {
    fn typed(&self, field: &str) -> String {
        if self.is_in_row() { String::new() } else { self.typed.text(field) }
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field).filter(|_| !self.is_in_row())
    }

    /// Whether the limit was typed in the row of its queue. The error is then shown in that row.
    fn is_in_row(&self) -> bool {
        self.rows.iter().any(|row| self.wrong_in(row).is_some())
    }

    /// The error about the limit that was typed in this row.
    fn wrong_in(&self, row: &Row) -> Option<&String> {
        let is_of_row =
            self.typed.get("row").is_some() && row.agent_slug.is_some() && row.agent_slug.as_deref() == self.typed.get("agent_slug");
        self.wrong.get("max_concurrency").filter(|_| is_of_row)
    }

    fn typed_in_row(&self) -> String {
        self.typed.text("max_concurrency")
    }
}

async fn page<'a>(visit: &'a Visit, typed: &'a Fields) -> Result<Queues<'a>, Refused> {
    let v = &visit.layout;
    let mut listed = visit.list(&format!("queues?limit={ROWS}&{}", visit.query().query_of(&["cursor"])), |queue| row(v, queue)).await?;
    let is_all_paused = is_all_paused(visit, &listed.rows).await?;
    if v.sees_all() {
        add_served(visit, &mut listed).await?;
    }
    let next = listed.next.map(|cursor| format!("/queues?cursor={}", path_part(&cursor)));
    let done = visit.query().get("done").and_then(|word| done(v, word));
    Ok(Queues { v, rows: listed.rows, is_all_paused, next, typed, wrong: Wrong::new(), done })
}

/// The row of all queues together is the first one of the first page.
async fn is_all_paused(visit: &Visit, rows: &[Row]) -> Result<bool, Refused> {
    let is_paused = |row: &Row| row.agent_slug.is_none() && row.paused_at.is_some();
    if visit.query().get("cursor").is_none() {
        return Ok(rows.iter().any(is_paused));
    }
    let first = visit.list("queues?limit=1", |queue| row(&visit.layout, queue)).await?;
    Ok(first.rows.iter().any(is_paused))
}

/// Adds the agents that workers serve by name and that have no row of their own yet. Each is added on the page to which its name belongs,
/// as long as there is room.
async fn add_served(visit: &Visit, listed: &mut Listed<Row>) -> Result<(), Refused> {
    let named = |worker: Worker<'_>| worker.capabilities.named_agents().map(str::to_owned).collect::<Vec<_>>();
    let served: BTreeSet<String> = visit.list(&format!("workers?limit={WORKERS}"), named).await?.rows.into_iter().flatten().collect();
    // A cursor is a prefix and the name of the last queue of the previous page.
    let after = visit.query().text("cursor");
    let last = listed.rows.last().filter(|_| listed.next.is_some()).and_then(|row| row.agent_slug.clone());
    let is_here = |agent: &String| {
        agent.as_str() > after.strip_prefix('=').unwrap_or_default()
            && last.as_ref().is_none_or(|last| agent < last)
            && listed.rows.iter().all(|row| row.agent_slug.as_ref() != Some(agent))
    };
    let room = ROWS.saturating_sub(listed.rows.len());
    let idle: Vec<Row> = served.into_iter().filter(is_here).take(room).map(|agent| row(&visit.layout, empty(agent))).collect();
    listed.rows.extend(idle);
    listed.rows.sort_by_cached_key(|row| row.agent_slug.clone());
    Ok(())
}

/// A queue without tasks, pause and limit.
fn empty(agent: String) -> Queue<'static> {
    Queue { agent_slug: Some(agent.into()), paused: false, paused_at: None, max_concurrency: None, queued: 0, active_leases: 0, workers: 1 }
}

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    visit.query().only(&["cursor", "done"])?;
    visit.ok(&page(&visit, &Fields::default()).await?)
}

fn done(v: &Layout, word: &str) -> Option<&'static str> {
    Some(match word {
        "pause" => {
            v.t("No new runs of the queue begin. Those that run go on.", "Нові запуски цієї черги не починаються. Розпочаті тривають.")
        }
        "resume" => v.t("The pause is over.", "Паузу завершено."),
        "limit" => v.t("The limit counts from now on.", "Обмеження діє відтепер."),
        _ => return None,
    })
}

/// Pauses, resumes or limits the queue of an agent. Without an agent, it resumes all queues.
pub(crate) async fn change(Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let action = fields.word("action", &ACTIONS)?;
    let changed = match body(&visit.layout, &action, &fields) {
        Ok((path, body)) => visit.act(Method::POST, &path, &body).await,
        Err((field, text)) => Err(Refused::of_field(field, text)),
    };
    match changed {
        Ok(_) => Ok(see_other(&format!("/queues?done={action}"))),
        Err(refused) if !refused.fields.is_empty() => {
            visit.show(StatusCode::BAD_REQUEST, &Queues { wrong: refused.fields, ..page(&visit, &fields).await? })
        }
        Err(refused) => Err(refused),
    }
}

pub(crate) async fn confirm_pause(visit: Visit) -> Result<Response, Refused> {
    visit.must_be_admin()?;
    let v = &visit.layout;
    visit.ok(&Confirm {
        v,
        title: v.t("Pause all queues?", "Зупинити всі черги?"),
        text: v.t(
            "No new run of any agent begins until they are resumed. Those that run go on.",
            "Жоден новий запуск не почнеться, доки черги не відновлять. Розпочаті тривають.",
        ),
        target: "/queues/pause".to_owned(),
        button: v.t("Pause all", "Зупинити всі"),
        back: "/queues".to_owned(),
    })
}

pub(crate) async fn pause_all(Posted { visit, .. }: Posted) -> Result<Response, Refused> {
    visit.act(Method::POST, "queues:pause", &json!({})).await?;
    Ok(see_other("/queues?done=pause"))
}

/// The path and the body of the API call.
fn body(v: &Layout, action: &str, fields: &Fields) -> Result<(String, Value), (&'static str, String)> {
    let path = match fields.get("agent_slug") {
        Some(agent) => format!("queues/{}/{action}", path_part(agent)),
        // Only the button for all queues sends this field.
        None if fields.get("all").is_some() && action == "resume" => "queues:resume".to_owned(),
        None => return Err(("agent_slug", v.t("Name the agent", "Назвіть агента").to_owned())),
    };
    let limit = match fields.get("max_concurrency").map(|text| text.trim().parse::<f64>()) {
        _ if action != "limit" => return Ok((path, json!({}))),
        // An empty field removes the limit.
        None => Value::Null,
        Some(Ok(number)) if number.is_finite() && number.fract() == 0.0 => json!(number as i64),
        Some(_) => return Err(("max_concurrency", v.t("Expected a whole number", "Очікується ціле число").to_owned())),
    };
    Ok((path, json!({ "max_concurrency": limit })))
}
