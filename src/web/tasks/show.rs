//! The page of a task.

use askama::Template;
use axum::extract::Path;
use axum::response::Response;
use serde_json::Value;
use uuid::Uuid;

use super::events::Shown;
use super::id_of;
use crate::advice::{self, Advice};
use crate::answer::plain;
use crate::files::Files;
use crate::lang::Lang;
use crate::refused::Refused;
use crate::times::{dollars, duration, shortened};
use crate::visit::{Layout, Visit};
use bloom_api::answers::{Audit, Event, Lease};
use bloom_api::questions::Question;
use bloom_api::results::TaskResult;
use bloom_api::tasks::{Policy, Task};
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::project::PushMode;
use bloom_core::task::{Status, WaitingReason};

/// Of long texts, the page shows the beginning; their own pages have the whole.
const TEXT_CHARS: usize = 6_000;
const EVENTS: usize = 40;
const ATTEMPTS: usize = 20;
const ENTRIES: usize = 30;

pub struct Attempt {
    pub status: String,
    pub worker_id: String,
    pub started_at: Ms,
    pub took: String,
    pub model: String,
    pub cost: String,
    pub is_active: bool,
}

pub struct Asked {
    pub id: Uuid,
    pub tool: String,
    pub input: String,
    pub questions: Vec<String>,
    pub until: Ms,
    pub is_answered: bool,
}

pub struct Entry {
    pub at: Ms,
    pub action: String,
    pub actor: String,
    pub detail: String,
}

/// The branch with the commits of a run.
pub struct Branch {
    pub name: String,
    pub commit: String,
}

pub struct Answer {
    pub text: String,
    pub is_cut: bool,
    pub error: String,
    pub warnings: Vec<String>,
    pub took: String,
}

#[derive(Template)]
#[template(path = "task.html")]
struct TaskPage<'a> {
    v: &'a Layout,
    task: &'a Task<'a>,
    title: String,
    prompt: String,
    is_prompt_cut: bool,
    advice: Option<Advice>,
    question: Option<Asked>,
    answer: Option<Answer>,
    attempts: Option<Vec<Attempt>>,
    events: Vec<Shown>,
    earlier: bool,
    trail: Option<Vec<Entry>>,
    cost: String,
    from: Option<&'a str>,
    pushes: bool,
    branch: Option<Branch>,
    files: Files,
    timeout: String,
    budget: String,
    done: Option<&'static str>,
    may: May,
}

/// Which of the buttons make sense now.
struct May {
    cancel: bool,
    requeue: bool,
    suspend: bool,
    resume: bool,
    delete: bool,
}

impl May {
    fn of(task: &Task<'_>, layout: &Layout) -> Self {
        let is = |statuses: &[Status]| layout.may_act() && matches!(&task.status, Word::Known(known) if statuses.contains(known));
        let is_open = is(&[Status::Queued, Status::Leased, Status::Running]);
        Self {
            cancel: is_open && !task.cancel_requested,
            requeue: is(&[Status::Failed, Status::Dead, Status::Cancelled]),
            suspend: is_open && !task.suspend,
            resume: is_open && task.suspend,
            delete: is(&[Status::Completed, Status::Failed, Status::Dead, Status::Cancelled]),
        }
    }
}

pub async fn show(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let task: Task = visit.get(&format!("llm-tasks/{id}")).await?;
    let (now, lang) = (visit.layout.now, visit.layout.at.lang);
    let of_task = |list: &str, limit: usize| format!("{list}?task_id={id}&limit={limit}");
    let attempts = visit.list_if_allowed(&of_task("leases", ATTEMPTS), |lease: Lease| attempt(lang, &lease, now)).await?;
    let trail = visit.list_if_allowed(&of_task("audit", ENTRIES), |audit| entry(lang, audit)).await?;
    let events = visit.list(&format!("llm-tasks/{id}/events?last={EVENTS}"), |event: Event| Shown::of(event)).await?.rows;
    let asks = task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingReason::NeedsHuman);
    let question: Option<Question> = if asks { visit.find(&format!("llm-tasks/{id}/question")).await? } else { None };
    let result: Option<TaskResult> = visit.find(&format!("llm-tasks/{id}/result")).await?;
    let prompt = shortened(&task.prompt, TEXT_CHARS);
    let files = Files::of(&visit, &task).await?;
    visit.ok(&TaskPage {
        v: &visit.layout,
        title: crate::times::beginning(&task.prompt, 80),
        is_prompt_cut: prompt.len() != task.prompt.len(),
        prompt,
        // The question itself says it, with its buttons.
        advice: advice::of(lang, &task).filter(|_| question.is_none()),
        question: question.map(asked),
        answer: result
            .as_ref()
            .map(|result| answer(lang, result, task.failure.as_ref().map(|failure| &*failure.message).unwrap_or_default())),
        attempts: attempts.map(|listed| listed.rows),
        earlier: events.first().is_some_and(|first| first.number > 1),
        events,
        trail: trail.map(|listed| listed.rows),
        from: task.r#ref.as_deref(),
        pushes: task.push == PushMode::Branch,
        branch: result.as_ref().and_then(branch),
        files,
        cost: task.usage.map(|usage| cost(lang, &usage)).unwrap_or_default(),
        timeout: timeout(lang, &task.policy),
        budget: lang.t(format!("${}", task.policy.budget), format!("{}\u{a0}$", task.policy.budget.to_string().replace('.', ","))),
        done: visit.query().get("done").and_then(|word| super::act::done(lang, word)),
        may: May::of(&task, &visit.layout),
        task: &task,
    })
}

fn branch(result: &TaskResult<'_>) -> Option<Branch> {
    let commit = result.commit.as_deref().unwrap_or_default().to_owned();
    result.branch.as_deref().map(|name| Branch { name: name.to_owned(), commit })
}

fn timeout(lang: Lang, policy: &Policy) -> String {
    let seconds = policy.timeout_sec;
    let or_of_profile = lang.t(" (or the limit of the agent’s profile)", " (або обмеження профілю агента)");
    format!("{seconds} {}{}", lang.t("s", "с"), if policy.timeout_is_default { or_of_profile } else { "" })
}

fn cost(lang: Lang, usage: &bloom_api::usage::Usage) -> String {
    let about = if usage.cost_estimated { lang.t("about ", "приблизно ") } else { "" };
    let (cost, read, written) = (dollars(lang, usage.cost_usd), usage.input_tokens, usage.output_tokens);
    lang.t(
        format!("{about}{cost} for {read} tokens in, {written} out"),
        format!("{about}{cost}; токенів: вхідних {read}, вихідних {written}"),
    )
}

fn attempt(lang: Lang, lease: &Lease<'_>, now: Ms) -> Attempt {
    let is_active = lease.status == bloom_core::task::LeaseStatus::Active;
    Attempt {
        status: lease.status.to_string(),
        worker_id: lease.worker_id.to_string(),
        started_at: lease.started_at,
        took: duration(lang, lease.ended_at.unwrap_or(now) - lease.started_at),
        model: lease.model.as_deref().unwrap_or_default().to_owned(),
        cost: lease.usage.map(|usage| dollars(lang, usage.cost_usd)).unwrap_or_default(),
        is_active,
    }
}

fn entry(lang: Lang, entry: Audit<'_>) -> Entry {
    Entry {
        at: entry.timestamp,
        action: lang.word(&entry.action.to_string()).into_owned(),
        actor: entry.actor.to_string(),
        detail: shortened(&entry.detail, 300),
    }
}

fn asked(question: Question<'_>) -> Asked {
    let input: Value = serde_json::from_str(question.input.get()).unwrap_or_default();
    Asked {
        id: question.id,
        tool: question.tool.to_string(),
        input: shortened(&pretty(&input), TEXT_CHARS),
        questions: question.questions.iter().map(|text| shortened(text, TEXT_CHARS)).collect(),
        until: question.until,
        is_answered: question.answer.is_some(),
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// `told`: what the page says of the failure above, which is not repeated.
fn answer(lang: Lang, result: &TaskResult<'_>, told: &str) -> Answer {
    let text = result.output.as_deref().unwrap_or_default();
    // Only what is shown whole can be laid out as JSON.
    let laid_out = if text.len() <= TEXT_CHARS {
        serde_json::from_str::<Value>(text).ok().filter(|value| value.is_object() || value.is_array())
    } else {
        None
    };
    let shown = laid_out.map_or_else(|| shortened(text, TEXT_CHARS), |value| pretty(&value));
    Answer {
        is_cut: text.chars().nth(TEXT_CHARS).is_some(),
        text: shown,
        error: result
            .error_message
            .as_deref()
            .filter(|error| !told.contains(error))
            .map(|error| shortened(error, 2_000))
            .unwrap_or_default(),
        warnings: result.warnings.to_vec(),
        took: duration(lang, result.metrics.duration_ms),
    }
}

/// The whole prompt, as text.
pub async fn prompt(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let task: Task = visit.get(&format!("llm-tasks/{}", id_of(&id)?)).await?;
    Ok(plain(task.prompt.into_owned(), None))
}

/// The whole answer, as a file.
pub async fn output(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let result: TaskResult = visit.get(&format!("llm-tasks/{id}/result")).await?;
    let output = result.output.map(|text| text.into_owned()).unwrap_or_default();
    let ending = if serde_json::from_str::<serde::de::IgnoredAny>(&output).is_ok() { "json" } else { "txt" };
    Ok(plain(output, Some(&format!("{id}.{ending}"))))
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage<'a> {
    v: &'a Layout,
    id: Uuid,
    events: Vec<Shown>,
    next: Option<i64>,
}

/// All events of a task, a page at a time.
pub async fn events(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    const PAGE: usize = 50;
    let id = id_of(&id)?;
    let after = visit.query().get("after").and_then(|text| text.parse::<i64>().ok()).unwrap_or_default().max(0);
    let events = visit.list(&format!("llm-tasks/{id}/events?after={after}&limit={PAGE}"), |event: Event| Shown::of(event)).await?.rows;
    let next = events.last().filter(|_| events.len() == PAGE).map(|last| last.number);
    visit.ok(&EventsPage { v: &visit.layout, id, events, next })
}
