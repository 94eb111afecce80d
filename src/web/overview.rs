//! The first page: what needs a person, and the current state.

use std::cmp::Reverse;

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use crate::chart::{Chart, LEAST_BARS};
use crate::failures::Failures;
use crate::lang::Lang;
use crate::own_overview::Own;
use crate::refused::Refused;
use crate::tasks::filter::Filter;
use crate::tasks::list::{Row, newest};
use crate::times::{at_least, cost, day, dollars, duration, shortened};
use crate::visit::{Layout, Visit};
use crate::workers::{free_name, trouble};
use bloom_api::questions::Question;
use bloom_api::queues::Queue;
use bloom_api::reports::{Health, Stats, UsageRow};
use bloom_api::tasks::Task;
use bloom_api::workers::Worker;
use bloom_core::task::{Reason, Status};
use bloom_core::worker::WorkerStatus;
use bloom_core::{DAY_MS, Ms};

/// Rows of each list on this page.
const ROWS: usize = 8;
/// The maximum number of recently cancelled tasks that are counted.
const COUNTED: usize = 40;
/// The number of days in the charts.
const DAYS: Ms = 14;
const WORKERS: usize = 1_000;
/// The maximum number of queues that are read.
const QUEUES: usize = 200;
/// The maximum number of workers that recently went offline in the list of problems. Each is listed for at most a day.
const OFFLINE: usize = 5;
/// The limits of the shown part of a question.
const ASKED_CHARS: usize = 300;
const ASKED_LINES: usize = 8;

/// A run that asks a person.
struct Ask {
    id: Uuid,
    prompt: String,
    /// What the run does, in words, and the text of the agent.
    what: &'static str,
    said: String,
    /// The input of the tool, or its beginning.
    input: String,
    /// The question, if a button on this page can answer it. Then the page shows all of the question.
    decides: Option<Uuid>,
}

impl Ask {
    fn of(lang: Lang, row: Row, question: Option<&Question<'_>>) -> Self {
        let note = row.note.text();
        let (what, said) = if let Some(tool) = note.strip_prefix("a person must decide whether it may use ") {
            (lang.t("It wants to use:", "Він хоче скористатися:"), tool)
        } else if let Some(text) = note.strip_prefix("it asks: ") {
            (lang.t("It asks:", "Він запитує:"), text)
        } else {
            ("", note.as_str())
        };
        let texts = question.map(|question| question.questions.join(" ")).filter(|texts| !texts.is_empty());
        let said = texts.map_or_else(|| said.to_owned(), |texts| shortened(&texts, ASKED_CHARS));
        let decides = question.filter(|question| question.questions.is_empty() && question.answer.is_none());
        let whole = decides.map(Question::tool_input).unwrap_or_default();
        let text = whole.text();
        // A text with too many characters or lines would have to be scrolled, and its end might be overlooked before the button is pressed.
        let input = if text.lines().count() > ASKED_LINES { String::new() } else { shortened(&text, ASKED_CHARS) };
        let decides = decides.filter(|_| input == text && !whole.is_cut).map(|question| question.id);
        Self { id: row.id, said, prompt: row.prompt, what, input, decides }
    }
}

/// A worker that needs the attention of a person.
struct Trouble {
    worker: String,
    text: String,
    /// The language of `text`: messages of the worker are in English.
    lang: Lang,
    /// When the worker was last seen, if it is offline.
    last_seen: Option<Ms>,
}

/// Queues that need the attention of a person.
#[derive(Default)]
struct Closed {
    /// Whether all queues together are paused.
    is_all_paused: bool,
    /// Paused queues that have queued tasks.
    paused: Vec<String>,
    /// Queues with queued tasks that no worker serves.
    unserved: Vec<String>,
}

struct Fleet {
    total: usize,
    online: usize,
    /// How many of all workers are online, in words.
    workers: String,
    free_slots: i64,
    slots: i64,
    troubles: Vec<Trouble>,
}

/// What is shown only to keys that see everything.
struct Whole {
    stats: Stats,
    fleet: Fleet,
    closed: Closed,
    charts: Vec<Chart>,
    /// The cost of the runs that ended since midnight, UTC.
    cost_today: String,
    /// How long the oldest queued task that is ready has waited; `None` if there is no such task.
    oldest: Option<String>,
    storage: String,
    membridge: &'static str,
    is_membridge_lost: bool,
    uptime: String,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview<'a> {
    v: &'a Layout,
    whole: Option<Whole>,
    /// The numbers for a key that does not see everything.
    own: Option<Own>,
    asking: Vec<Ask>,
    /// What failed in the last day, one row for each cause.
    failed: Vec<Row>,
    failed_count: String,
    /// How many tasks were cancelled in the last day because a task that they depend on did not complete; empty if there were none.
    dependents: String,
    running: Vec<Row>,
    waiting: Vec<Row>,
    completed: Vec<Row>,
    is_new: bool,
    address: &'a str,
    /// A suggested name for the first worker.
    example: String,
}

impl Overview<'_> {
    /// The number of tasks in the list of this status.
    fn count(&self, status: Status) -> i64 {
        let Some(whole) = &self.whole else { return 0 };
        let counts = &whole.stats.tasks.by_status;
        Filter::of_status(status).statuses().iter().flatten().filter_map(|status| counts.get(status.as_str())).sum()
    }
}

pub(crate) async fn show(visit: Visit) -> Result<Response, Refused> {
    let tasks = async |status, limit| newest(&visit, &Filter::of_status(status), None, limit).await.map(|listed| listed.rows);
    let asking = asking(&visit).await?;
    let (mut running, mut waiting) = (tasks(Status::Running, ROWS).await?, tasks(Status::Queued, ROWS).await?);
    let completed = newest(&visit, &Filter::of_last_hour(Status::Completed), None, ROWS).await?.rows;
    running.retain(|row| !row.needs_person);
    waiting.retain(|row| !row.note.is_empty());
    let failures = Failures::lately(&visit).await?;
    let failed_count = failures.count(&visit);
    let mut failed = failures.rows;
    failed.truncate(ROWS);
    let dependents = cancelled_dependents(&visit).await?;
    let (whole, own) = match visit.layout.sees_all() {
        true => (Some(whole(&visit).await?), None),
        false => (None, Some(Own::of(&visit).await?)),
    };
    let is_new = whole.as_ref().is_some_and(|whole| whole.stats.tasks.total == 0 || whole.fleet.total == 0);
    // The page explains how to add a worker only while there is none.
    let example = free_name(&[]);
    visit.ok(&Overview {
        v: &visit.layout,
        whole,
        own,
        asking,
        failed,
        failed_count,
        dependents,
        running,
        waiting,
        completed,
        is_new,
        address: &visit.address,
        example,
    })
}

async fn cancelled_dependents(visit: &Visit) -> Result<String, Refused> {
    let query = Filter::of_last_day(Status::Cancelled).query(Some(Status::Cancelled), visit.layout.now);
    let is_dependent = |task: Task| task.last_failure().is_some_and(|failure| failure.reason == Reason::DependencyFailed);
    let listed = visit.list(&format!("llm-tasks?limit={COUNTED}&{query}"), is_dependent).await?;
    let count = listed.rows.iter().filter(|is_dependent| **is_dependent).count();
    Ok(if count == 0 { String::new() } else { at_least(visit.layout.at.lang, count as i64, listed.next.is_some()) })
}

/// The tasks that the visitor may see and whose runs wait for a person.
async fn asking(visit: &Visit) -> Result<Vec<Ask>, Refused> {
    let lang = visit.layout.at.lang;
    let mut asks = Vec::new();
    for row in newest(visit, &Filter::asking(), None, ROWS).await?.rows {
        let question: Option<Question> = visit.find(&format!("llm-tasks/{}/question", row.id)).await?;
        asks.push(Ask::of(lang, row, question.as_ref()));
    }
    Ok(asks)
}

async fn whole(visit: &Visit) -> Result<Whole, Refused> {
    let lang = visit.layout.at.lang;
    let stats: Stats = visit.get("stats").await?;
    let health: Health = visit.get("health").await?;
    let workers = visit.list(&format!("workers?limit={WORKERS}"), |worker| seen(lang, visit.layout.now, worker)).await?.rows;
    let closed_queues = closed(visit).await?;
    let hour = visit.api.last_hour().await.map_err(|_| Refused::new(503, "The database does not answer", "База даних не відповідає"))?;
    let oldest = hour.last().and_then(|now| now.waited_ms);
    let now = visit.layout.now;
    let from = (now / DAY_MS - DAYS + 1) * DAY_MS;
    let usage = visit
        .list(&format!("usage?by=day&from={}", from.max(0)), |row: UsageRow| {
            (row.key.to_string(), row.runs as f64, row.cost_usd, row.cost_estimated)
        })
        .await?
        .rows;
    let cost_today = usage.iter().find(|row| row.0 == day(now)).map_or_else(|| dollars(lang, 0.0), |row| cost(lang, row.2, row.3));
    let mut charts = vec![
        Chart::of_hour(lang, lang.t("Tasks queued", "Завдань у черзі"), &hour, |moment, _| moment.queued, |tasks| tasks.to_string()),
        Chart::of_hour(
            lang,
            lang.t("Wait of the oldest", "Очікування найстарішого"),
            &hour,
            |moment, _| moment.waited_ms.unwrap_or_default(),
            |ms| duration(lang, ms),
        ),
        Chart::of_hour(
            lang,
            lang.t("Runs begun in two minutes", "Запусків за дві хвилини"),
            &hour,
            |moment, before| moment.runs - before.runs,
            |runs| runs.to_string(),
        ),
    ];
    if !usage.is_empty() {
        let of_day = |day: &str| usage.iter().find(|row| row.0 == day);
        let (runs, cost) = (lang.t("Runs per day", "Запусків за день"), lang.t("Cost per day", "Витрати за день"));
        charts.push(Chart::per_day(lang, runs, now, DAYS, |day| of_day(day).map(|row| row.1), |runs| runs.to_string()));
        charts.push(Chart::per_day(lang, cost, now, DAYS, |day| of_day(day).map(|row| row.2), |usd| dollars(lang, usd)));
    }
    charts.retain(|chart| chart.filled >= LEAST_BARS);
    let state = &health.membridge;
    let is_membridge_lost = !state.connected && (state.last_success.is_some() || state.last_error.is_some());
    let membridge = match state.connected {
        true => lang.t("connected", "з’єднано"),
        false if is_membridge_lost => lang.t("not reached", "немає зв’язку"),
        false => lang.t("not used", "не задіяно"),
    };
    // A worker whose account is paused counts as online. Its pause is shown next to the number.
    let online = workers.iter().filter(|worker| worker.is_online || worker.is_paused).count();
    let paused = match workers.iter().filter(|worker| worker.is_paused).count() {
        0 => String::new(),
        count => lang.t(format!(", {count} paused"), format!(", на паузі: {count}")),
    };
    let closed = match workers.iter().filter(|worker| worker.is_online && worker.is_closed).count() {
        0 => String::new(),
        count => lang.t(format!(", {count} closed to new tasks"), format!(", закрито для нових завдань: {count}")),
    };
    let all = lang.count(workers.len() as i64, ["worker", "workers"], ["воркера", "воркерів", "воркерів"]);
    Ok(Whole {
        stats,
        closed: closed_queues,
        charts,
        cost_today,
        oldest: oldest.map(|ms| duration(lang, ms)),
        storage: health.storage.to_string(),
        membridge,
        is_membridge_lost,
        uptime: duration(lang, (health.uptime * 1_000.0) as Ms),
        fleet: Fleet {
            total: workers.len(),
            online,
            workers: lang.t(format!("{online} of {all} online{paused}{closed}"), format!("на зв’язку {online} із {all}{paused}{closed}")),
            free_slots: workers.iter().map(|worker| worker.free_slots).sum(),
            slots: workers.iter().filter(|worker| worker.is_online).map(|worker| worker.slots).sum(),
            troubles: most_urgent(workers.into_iter().flat_map(|worker| worker.troubles).collect()),
        },
    })
}

async fn closed(visit: &Visit) -> Result<Closed, Refused> {
    let mut closed = Closed::default();
    for queue in visit.list(&format!("queues?limit={QUEUES}"), |queue: Queue| queue).await?.rows {
        match queue.agent_slug {
            None => closed.is_all_paused = queue.paused,
            Some(_) if queue.queued == 0 => {}
            Some(agent) if queue.paused => closed.paused.push(agent.into_owned()),
            Some(agent) if queue.workers == 0 => closed.unserved.push(agent.into_owned()),
            Some(_) => {}
        }
    }
    closed.paused.truncate(ROWS);
    closed.unserved.truncate(ROWS);
    Ok(closed)
}

/// The problems that fit on the page. Workers that merely went offline come last, the most recent ones first.
fn most_urgent(mut troubles: Vec<Trouble>) -> Vec<Trouble> {
    troubles.sort_by_key(|trouble| trouble.last_seen.map(Reverse));
    let others = troubles.iter().filter(|trouble| trouble.last_seen.is_none()).count();
    troubles.truncate((others + OFFLINE).min(ROWS));
    troubles
}

struct Seen {
    is_online: bool,
    /// Whether the worker is reachable, but takes no tasks until a paused account or profile can be used again.
    is_paused: bool,
    /// Whether it gets no new tasks, because it is drained or cordoned.
    is_closed: bool,
    slots: i64,
    free_slots: i64,
    troubles: Vec<Trouble>,
}

fn seen(lang: Lang, now: Ms, worker: Worker<'_>) -> Seen {
    let is_online = worker.status == WorkerStatus::Online;
    let slots = worker.capabilities.max_concurrency;
    let name = worker.id.to_string();
    let mut troubles: Vec<Trouble> = worker
        .pauses
        .iter()
        .map(|pause| Trouble { worker: name.clone(), text: pause.message.to_string(), lang: Lang::English, last_seen: None })
        .collect();
    let went_lately = worker.status == WorkerStatus::Offline && now - worker.last_heartbeat < DAY_MS;
    let last_seen = (went_lately && worker.active_leases == 0).then_some(worker.last_heartbeat);
    let is_away = last_seen.is_some() && troubles.is_empty();
    let away = lang.t("it is offline, last seen", "він не на зв’язку, останній сигнал");
    let word = trouble(lang, &worker).or_else(|| is_away.then_some(away));
    troubles.extend(word.map(|text| Trouble { worker: name, text: text.to_owned(), lang, last_seen }));
    let is_closed = worker.cordoned || worker.draining;
    let free_slots = if is_online && !is_closed { (slots - worker.active_leases).max(0) } else { 0 };
    let is_paused = !is_online && worker.status != WorkerStatus::Offline && !worker.pauses.is_empty();
    Seen { is_online, is_paused, is_closed, slots, free_slots, troubles }
}
