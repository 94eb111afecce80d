//! Contexts: the list, and a context's page with its tasks and the button that resets it.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde_json::json;

use crate::answer::see_other;
use crate::call::path_part;
use crate::filters::{Filtered, WrongFilters};
use crate::html::Html;
use crate::json::folds_of;
use crate::markdown;
use crate::records::{by_id, title_of};
use crate::refused::Refused;
use crate::tasks::buttons::Confirm;
use crate::tasks::cells::short_name;
use crate::tasks::list::needs_person;
use crate::tasks::reply_form::is_possible;
use crate::times::{beginning, cost, shortened};
use crate::visit::{Fields, Layout, Posted, Visit, joined};
use bloom_api::contexts::{Context, ContextTasks, RECENT};
use bloom_api::results::TaskResult;
use bloom_api::tasks::Task;
use bloom_core::Ms;
use uuid::Uuid;

/// With a prompt in each row, the page stays below 60 KB.
const ROWS: usize = 40;
/// How many of a context's newest tasks its page shows with their prompts and answers.
const TURNS: usize = 10;
/// If all of these texts have the maximum length, the page stays below 60 KB.
const PROMPT_CHARS: usize = 200;
const ANSWER_CHARS: usize = 700;
/// An answer whose HTML would be longer is shown as plain text.
const ANSWER_HTML: usize = 3_500;
/// How many tasks that ask a person are read, for all contexts together.
const ASKING: usize = 200;
const NAME_CHARS: usize = 60;
const HEADING_CHARS: usize = 80;

struct Row {
    id: String,
    name: String,
    /// The name, shortened to fit a row.
    short: String,
    /// The beginning of the prompt of its newest task; empty if that is unknown.
    title: String,
    namespace: String,
    project: String,
    /// The number of its tasks by status, in words.
    tasks: String,
    last_task: Uuid,
    last_status: String,
    last_at: Ms,
    /// A task of this context whose run asks a person.
    asks: Option<Uuid>,
    session: String,
    /// The worker of the current run, or else of the last one.
    worker: String,
    cost: String,
    reset_at: Option<Ms>,
}

/// The number of tasks by status, without the statuses that have none.
fn told(v: &Layout, tasks: &ContextTasks) -> String {
    let ContextTasks { queued, running, finished, more } = tasks;
    let plus = if *more { "+" } else { "" };
    let parts = [
        (*queued, v.t(format!("{queued} queued"), format!("у черзі {queued}"))),
        (*running, v.t(format!("{running} running"), format!("виконується {running}"))),
        (*finished, v.t(format!("{finished}{plus} finished"), format!("закінчено {finished}{plus}"))),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
    parts.join(" · ")
}

fn row(layout: &Layout, context: Context<'_>) -> Row {
    let used = context.usage;
    Row {
        name: shortened(&context.context_id, NAME_CHARS),
        short: short_name(&context.context_id),
        title: String::new(),
        id: context.context_id.into_owned(),
        namespace: context.namespace.unwrap_or_default().into_owned(),
        project: context.project.unwrap_or_default().into_owned(),
        tasks: told(layout, &context.tasks),
        last_task: context.last_task.id,
        last_status: context.last_task.status.to_string(),
        last_at: context.last_task.updated_at,
        asks: None,
        session: shortened(&context.session_id.unwrap_or_default(), NAME_CHARS),
        worker: context.worker_id.unwrap_or_default().into_owned(),
        cost: cost(layout.at.lang, used.cost_usd, used.cost_estimated),
        reset_at: context.reset_at,
    }
}

#[derive(Template)]
#[template(path = "contexts.html")]
struct Contexts<'a> {
    v: &'a Layout,
    rows: Vec<Row>,
    fields: &'a Fields,
    wrong: WrongFilters,
    is_by_name: bool,
    /// The query of the same list in the other order.
    other_order: String,
    next: Option<String>,
}

/// The order by name lists all contexts. Without it, the page has the contexts of the newest tasks.
const BY_NAME: &str = "name";

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    let (v, query) = (&visit.layout, visit.query());
    query.only(&["cursor", "project", "order"])?;
    let is_by_name = !query.word("order", &[BY_NAME])?.is_empty();
    let order = if is_by_name { String::new() } else { format!("&order={RECENT}") };
    let path = format!("contexts?limit={ROWS}&{}{order}", query.query_of(&["cursor", "project"]));
    let answer = visit.list(&path, |context| row(v, context)).await;
    let Filtered { status, mut listed, wrong } = Filtered::of(&visit, &["project"], answer).await?;
    let newest = listed.rows.iter().map(|row| row.last_task).collect();
    let mut newest = by_id(&visit, newest, |task| (title_of(&task), task.worker_id)).await?;
    let asking = |task: Task<'static>| (task.context_id.into_owned(), (task.id, task.worker_id));
    let mut asking: BTreeMap<_, _> = visit.list(&format!("llm-tasks?asks=true&limit={ASKING}"), asking).await?.rows.into_iter().collect();
    for row in &mut listed.rows {
        let (title, of_newest) = newest.remove(&row.last_task).unwrap_or_default();
        let (asks, of_asking) = asking.remove(&row.id).unzip();
        (row.title, row.asks) = (title, asks);
        if let Some(worker) = of_asking.flatten().or(of_newest) {
            row.worker = worker.into_owned();
        }
    }
    let kept = query.query_of(&["project", "order"]);
    let next = listed.next.map(|cursor| format!("/contexts?cursor={}&{kept}", path_part(&cursor)));
    let by_name = if is_by_name { String::new() } else { format!("order={BY_NAME}") };
    let other_order = joined([&query.query_of(&["project"]), &by_name]);
    visit.show(status, &Contexts { v, rows: listed.rows, fields: query, wrong, is_by_name, other_order, next })
}

/// The prompt of one task of the conversation, and the beginning of its answer.
struct Turn {
    id: Uuid,
    status: String,
    /// Whether its run asks a person.
    asks: bool,
    prompt: String,
    /// The beginning of the answer, as text and as HTML.
    answer: String,
    laid_out: Option<Html>,
    /// Whether the answer is longer than what is shown.
    is_cut: bool,
    error: String,
    created_at: Ms,
    /// Whether a reply to this task continues the conversation.
    takes_reply: bool,
}

impl Turn {
    fn of(layout: &Layout, task: Task<'_>) -> Self {
        Self {
            id: task.id,
            status: task.status.to_string(),
            asks: needs_person(&task),
            prompt: shortened(task.prompt.trim(), PROMPT_CHARS),
            answer: String::new(),
            laid_out: None,
            is_cut: false,
            error: task.failure.as_ref().map(|failure| beginning(&failure.message, PROMPT_CHARS)).unwrap_or_default(),
            created_at: task.created_at,
            takes_reply: is_possible(&task, layout),
        }
    }

    fn answered(&mut self, whole: &str) {
        let mut cut = shortened(whole, ANSWER_CHARS);
        self.is_cut = cut.len() != whole.len();
        // A long answer is cut at the end of a line if possible, so that its Markdown stays intact.
        if self.is_cut
            && let Some(end) = cut.rfind('\n').filter(|end| *end > cut.len() / 2)
        {
            cut.truncate(end);
        }
        self.laid_out = folds_of(&cut).or_else(|| markdown::to_html(&cut)).filter(|html| html.len() <= ANSWER_HTML);
        self.answer = cut;
    }
}

#[derive(Template)]
#[template(path = "context.html")]
struct ContextPage<'a> {
    v: &'a Layout,
    /// The first line of the prompt of its newest task, or else its name.
    heading: String,
    context: Row,
    turns: Vec<Turn>,
    /// The newest task to which a reply can be sent.
    reply_to: Option<Uuid>,
    done: bool,
}

pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let v = &visit.layout;
    let mut context = row(v, visit.get(&format!("contexts/{}", path_part(&id))).await?);
    let tasks = format!("llm-tasks?context_id={}&limit={TURNS}", path_part(&context.id));
    let mut turns = visit.list(&tasks, |task: Task| Turn::of(v, task)).await?.rows;
    let reply_to = turns.iter().find(|turn| turn.takes_reply).map(|turn| turn.id);
    context.asks = turns.iter().find(|turn| turn.asks).map(|turn| turn.id);
    for turn in &mut turns {
        let result: Option<TaskResult> = visit.find(&format!("llm-tasks/{}/result", turn.id)).await?;
        turn.answered(result.and_then(|result| result.output).unwrap_or_default().trim());
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
