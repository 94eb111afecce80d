//! Contexts: the list, and a context's page with its tasks and the button that resets it.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde_json::json;

use crate::answer::see_other;
use crate::call::path_part;
use crate::records::titles;
use crate::refused::Refused;
use crate::tasks::act::Confirm;
use crate::tasks::reply::is_possible;
use crate::times::{beginning, cost, shortened};
use crate::visit::{Layout, Posted, Visit, joined};
use bloom_api::contexts::{Context, RECENT};
use bloom_api::results::TaskResult;
use bloom_api::tasks::Task;
use bloom_core::Ms;
use uuid::Uuid;

/// With a prompt in each row, the page stays below 60 KB.
const ROWS: usize = 40;
/// The newest tasks of a context, of which its page shows what was said.
const TURNS: usize = 10;
/// With the longest texts of all of them, the page stays below 60 KB.
const PROMPT_CHARS: usize = 200;
const ANSWER_CHARS: usize = 400;
const NAME_CHARS: usize = 60;
const HEADING_CHARS: usize = 80;

struct Row {
    id: String,
    name: String,
    /// The beginning of the prompt of its newest task; empty: it is not known.
    title: String,
    namespace: String,
    project: String,
    queued: i64,
    running: i64,
    finished: i64,
    more: bool,
    last_task: Uuid,
    last_status: String,
    last_at: Ms,
    session: String,
    worker: String,
    cost: String,
    reset_at: Option<Ms>,
}

fn row(layout: &Layout, context: Context<'_>) -> Row {
    let used = context.usage;
    Row {
        name: shortened(&context.context_id, NAME_CHARS),
        title: String::new(),
        id: context.context_id.into_owned(),
        namespace: context.namespace.unwrap_or_default().into_owned(),
        project: context.project.unwrap_or_default().into_owned(),
        queued: context.tasks.queued,
        running: context.tasks.running,
        finished: context.tasks.finished,
        more: context.tasks.more,
        last_task: context.last_task.id,
        last_status: context.last_task.status.to_string(),
        last_at: context.last_task.updated_at,
        session: shortened(&context.session_id.unwrap_or_default(), NAME_CHARS),
        worker: context.worker_id.unwrap_or_default().into_owned(),
        cost: if used.cost_usd > 0.0 { cost(layout.at.lang, used.cost_usd, used.cost_estimated) } else { "–".into() },
        reset_at: context.reset_at,
    }
}

#[derive(Template)]
#[template(path = "contexts.html")]
struct Contexts<'a> {
    v: &'a Layout,
    rows: Vec<Row>,
    project: String,
    is_by_name: bool,
    /// The query of the same list in the other order.
    other_order: String,
    next: Option<String>,
}

/// The order of all contexts; else, the page has those of the newest tasks.
const BY_NAME: &str = "name";

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    let (v, query) = (&visit.layout, visit.query());
    query.only(&["cursor", "project", "order"])?;
    let is_by_name = !query.word("order", &[BY_NAME])?.is_empty();
    let order = if is_by_name { String::new() } else { format!("&order={RECENT}") };
    let path = format!("contexts?limit={ROWS}&{}{order}", query.query_of(&["cursor", "project"]));
    let mut listed = visit.list(&path, |context| row(v, context)).await?;
    let mut titles = titles(&visit, listed.rows.iter().map(|row| row.last_task).collect()).await?;
    for row in &mut listed.rows {
        row.title = titles.remove(&row.last_task).unwrap_or_default();
    }
    let kept = query.query_of(&["project", "order"]);
    let next = listed.next.map(|cursor| format!("/contexts?cursor={}&{kept}", path_part(&cursor)));
    let project = query.text("project");
    let by_name = if is_by_name { String::new() } else { format!("order={BY_NAME}") };
    let other_order = joined([&query.query_of(&["project"]), &by_name]);
    visit.ok(&Contexts { v, rows: listed.rows, project, is_by_name, other_order, next })
}

/// What was asked in a task of the conversation, and the beginning of what was answered.
struct Turn {
    id: Uuid,
    status: String,
    prompt: String,
    answer: String,
    error: String,
    created_at: Ms,
    /// A reply to it goes on with the conversation.
    takes_reply: bool,
}

impl Turn {
    fn of(layout: &Layout, task: Task<'_>) -> Self {
        Self {
            id: task.id,
            status: task.status.to_string(),
            prompt: shortened(task.prompt.trim(), PROMPT_CHARS),
            answer: String::new(),
            error: task.failure.as_ref().map(|failure| beginning(&failure.message, PROMPT_CHARS)).unwrap_or_default(),
            created_at: task.created_at,
            takes_reply: is_possible(&task, layout),
        }
    }
}

#[derive(Template)]
#[template(path = "context.html")]
struct ContextPage<'a> {
    v: &'a Layout,
    /// The first line of its newest prompt, or else its name.
    heading: String,
    context: Row,
    turns: Vec<Turn>,
    /// The newest task to which a reply can be sent.
    reply_to: Option<Uuid>,
    done: bool,
}

pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let v = &visit.layout;
    let context = row(v, visit.get(&format!("contexts/{}", path_part(&id))).await?);
    let tasks = format!("llm-tasks?context_id={}&limit={TURNS}", path_part(&context.id));
    let mut turns = visit.list(&tasks, |task: Task| Turn::of(v, task)).await?.rows;
    let reply_to = turns.iter().find(|turn| turn.takes_reply).map(|turn| turn.id);
    for turn in &mut turns {
        let result: Option<TaskResult> = visit.find(&format!("llm-tasks/{}/result", turn.id)).await?;
        turn.answer = shortened(result.and_then(|result| result.output).unwrap_or_default().trim(), ANSWER_CHARS);
    }
    let prompt = turns.first().and_then(|turn| turn.prompt.lines().next()).map(|line| beginning(line, HEADING_CHARS));
    let heading = prompt.filter(|line| !line.is_empty()).unwrap_or_else(|| context.name.clone());
    turns.reverse();
    visit.ok(&ContextPage { v, heading, context, turns, reply_to, done: visit.query().get("done").is_some() })
}

pub(crate) async fn reset(Path(id): Path<String>, Posted { visit, .. }: Posted) -> Result<Response, Refused> {
    let path = format!("contexts/{}", path_part(&id));
    visit.act(Method::POST, &format!("{path}/reset"), &json!({})).await?;
    Ok(see_other(&format!("/{path}?done=1")))
}

pub(crate) async fn confirm_reset(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let path = format!("contexts/{}", path_part(&id));
    let context: Context = visit.get(&path).await?;
    let (v, name) = (&visit.layout, shortened(&context.context_id, NAME_CHARS));
    visit.ok(&Confirm {
        v,
        title: &v.t(format!("Reset the context {name}?"), format!("Скинути контекст {name}?")),
        text: v.t(
            "Its next run begins a new session and knows nothing of what was said before. A run that goes on now ends in its own session. The files of the context stay.",
            "Його наступний запуск почне новий сеанс і не знатиме, про що йшлося раніше. Запуск, який триває зараз, закінчиться у своєму сеансі. Файли контексту залишаться.",
        ),
        target: format!("/{path}/reset"),
        button: v.t("Reset it", "Скинути"),
        back: format!("/{path}"),
    })
}
