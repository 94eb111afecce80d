//! `task describe`.

use serde_json::{Value, json};
use uuid::Uuid;

use super::advice::advice;
use super::{ENTRIES, EVENTS, LEASES, OF_TASK, closed, document, facts, permitted, section};
use crate::CommandError;
use crate::columns::{self, LEAST_TEXT, MAX_TEXT};
use crate::ids::path;
use crate::server_calls::{Server, failed, read, with_query};
use crate::show::{Form, Kind, Shown, read_all};
use crate::table::Column;
use crate::task::follow::in_words;
use crate::task::question::{advice as how_to_answer, told};
use crate::when::time_text;
use crate::{ids, start_event, term, when};
use bloom_api::answers::{Audit, Event, Lease};
use bloom_api::questions::Question;
use bloom_api::results::TaskResult;
use bloom_api::tasks::Task;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::limits::GIVE_BACKS;
use bloom_core::project::PushMode;
use bloom_core::task::{Status, WaitingReason};

const TEXT: usize = 100;
/// The maximum length of a failure's reason. It is long, because the reason is what people look for.
const REASON: usize = 2_000;

/// # Errors
/// The task does not exist, or a call failed.
pub(crate) async fn task(named: &str, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let id = ids::task(server, named).await?;
    let answer = server.get(&path(&id, "")).await.map_err(|failure| failure.about(named))?;
    let task: Task = read(&answer)?;
    let of_task = [("task_id", id.clone())];
    let oldest_first = |mut rows: Vec<Value>| {
        rows.reverse();
        rows
    };
    let leases = permitted(server, "api/runtime/leases", &of_task, LEASES).await?.map(oldest_first);
    let trail = permitted(server, "api/runtime/audit", &of_task, ENTRIES).await?.map(oldest_first);
    let events = with_query(&path(&id, "/events"), &[("last", EVENTS.to_string())]);
    let (events, _) = server.page(&events).await.map_err(failed)?;
    let profile = start_event::newest(server, &id, &events).await.map_err(failed)?.map(|start| start.profile);
    let existing = ids::existing(server, &task.depends_on).await?;
    // A removed task is shown as such, because that is worth knowing.
    let dependency = |on: &Uuid| {
        let found = existing.iter().find(|task| task["id"].as_str().is_some_and(|id| id == on.to_string()));
        found.cloned().unwrap_or_else(|| json!({ "id": on, "status": "removed" }))
    };
    let has_ended = !matches!(task.status, Word::Known(status) if !status.is_final());
    let result = if has_ended || task.project.is_some() { result(server, &id).await? } else { None };
    let asked = if waits_for(&task, WaitingReason::NeedsHuman) { question(server, &id).await? } else { None };
    let dependencies: Vec<Value> = task.depends_on.iter().map(dependency).collect();
    match shown.form_or(Form::Table) {
        Form::Name => term::print(&format!("{id}\n")),
        form if form.is_data() => document(
            form,
            vec![
                ("task", answer),
                ("question", asked.unwrap_or(Value::Null)),
                ("leases", leases.map_or(Value::Null, Value::Array)),
                ("dependencies", Value::Array(dependencies)),
                ("events", Value::Array(events)),
                ("audit", trail.map_or(Value::Null, Value::Array)),
            ],
        ),
        form => {
            let all_paused = all_paused(server, &task).await?;
            let asked = asked.as_ref().map(read::<Question>).transpose()?;
            let result: Option<TaskResult> = result.as_ref().map(read).transpose()?;
            let trail: Option<Vec<Audit>> = trail.map(|rows| read_all(&rows)).transpose()?;
            let is_requeued = trail.iter().flatten().any(|entry| entry.action == Action::TaskRequeued);
            facts(&of(&task, &id, (all_paused, asked.as_ref()), &Of { is_requeued, profile, result }))?;
            match leases {
                Some(leases) => section("Attempts", form, &OF_TASK, &read_all::<Lease>(&leases)?)?,
                None => closed("Attempts")?,
            }
            if !dependencies.is_empty() {
                section("Depends on", form, &DEPENDENCIES, &dependencies)?;
            }
            let mut events: Vec<Event> = read_all(&events)?;
            events.retain(|event| in_words(event).is_some());
            section("Last events", form, &EVENT, &events)?;
            // The keys of people may see their tasks, but not the audit trail of the server.
            let Some(trail) = trail else { return Ok(()) };
            let created_at = task.created_at;
            let steps: Vec<Step> = trail.into_iter().map(|entry| Step { entry, created_at }).collect();
            section("History", form, &STEPS, &steps)
        }
    }
}

/// Whether all queues are paused; `None` if the task does not wait for its queue, or if the key may not list queues.
async fn all_paused(server: &Server, task: &Task<'_>) -> Result<Option<bool>, CommandError> {
    if !waits_for(task, WaitingReason::Paused) {
        return Ok(None);
    }
    // The first row is that of all queues together.
    let first = permitted(server, "api/runtime/queues", &[], 1).await?;
    Ok(first.as_deref().and_then(<[Value]>::first).and_then(|queue| queue["paused"].as_bool()))
}

fn waits_for(task: &Task, reason: WaitingReason) -> bool {
    task.waiting.as_ref().is_some_and(|waiting| waiting.reason == reason)
}

/// The newest result; `None` if there is none.
async fn result(server: &Server, id: &str) -> Result<Option<Value>, CommandError> {
    found(server, &path(id, "/result")).await
}

/// The question of the run; `None` if it has been answered since.
async fn question(server: &Server, id: &str) -> Result<Option<Value>, CommandError> {
    found(server, &path(id, "/question")).await
}

async fn found(server: &Server, path: &str) -> Result<Option<Value>, CommandError> {
    match server.client.get(path).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.status() == Some(404) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// What is known about the newest run.
struct Of<'a> {
    /// Whether somebody has requeued the task, with all its attempts.
    is_requeued: bool,
    profile: Option<String>,
    result: Option<TaskResult<'a>>,
}

fn of(task: &Task, id: &str, (all_paused, asked): (Option<bool>, Option<&Question>), run: &Of<'_>) -> Vec<(&'static str, String)> {
    let now = when::now();
    let waiting = task.waiting.as_ref().map(|waiting| format!("{}: {}", waiting.reason, waiting.message));
    let failure = task
        .failure
        .as_ref()
        .map(|failure| format!("{} ({} ago)", term::short(&columns::failure(failure), REASON), columns::age(failure.at, now)));
    let usage = task.usage.as_ref().map(columns::used);
    let labels = task.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ");
    let given_back =
        if task.infra_retries > 0 { format!(", given back {} of at most {GIVE_BACKS}", task.infra_retries) } else { String::new() };
    let since = if run.is_requeued { " since it was requeued" } else { "" };
    let will_wait = task.suspend && !matches!(task.status, Word::Known(Status::Queued | Status::Completed));
    let or_of_profile = if task.policy.timeout_is_default { " (or the limit of the agent's profile)" } else { "" };
    let budget = if task.policy.budget > 0.0 {
        format!(", at most {} for all attempts", columns::dollars(task.policy.budget))
    } else {
        String::new()
    };
    let short = ids::short(&task.id);
    let what_to_do = asked.map_or_else(|| advice(task, &short, all_paused), |asked| how_to_answer(asked, &short));
    vec![
        ("Task", id.to_owned()),
        ("Status", columns::status_of_task(task, now)),
        ("Waits for", waiting.unwrap_or_default()),
        ("Asks", asked.map(told).unwrap_or_default()),
        ("Question", asked.map(|asked| asked.id.to_string()).unwrap_or_default()),
        ("Failure", failure.unwrap_or_default()),
        ("Warnings", run.result.as_ref().map(|result| result.warnings.join("; ")).unwrap_or_default()),
        ("What to do", what_to_do),
        ("Agent", task.agent_slug.to_string()),
        ("Context", format!("{} (session: {})", task.context_id, task.session)),
        ("Worker", columns::given(&task.worker_id)),
        ("Profile", run.profile.clone().unwrap_or_default()),
        ("Project", project(task)),
        ("Branch", run.result.as_ref().map(columns::branch).unwrap_or_default()),
        ("Prompt", term::short(&task.prompt, TEXT)),
        ("Priority", task.priority.to_string()),
        ("Not before", task.not_before.map(time_text).unwrap_or_default()),
        ("Suspended", if will_wait { "when it is queued again".into() } else { String::new() }),
        ("Labels", labels),
        ("Model", columns::given(&task.model)),
        ("Exclusive key", columns::given(&task.exclusive_key)),
        ("Limits", format!("{} for a run{or_of_profile}{budget}", when::limit_text(task.policy.timeout_sec))),
        ("Attempts used", format!("{} of {}{since}{given_back}", task.attempts, task.max_attempts)),
        ("Usage", usage.unwrap_or_default()),
        ("Created", format!("{} ({} ago)", time_text(task.created_at), columns::age(task.created_at, now))),
        ("Changed", format!("{} ago", columns::age(task.updated_at, now))),
    ]
}

fn project(task: &Task) -> String {
    let Some(project) = &task.project else { return String::new() };
    let from = task.r#ref.as_ref().map_or_else(String::new, |from| format!(", from {from}"));
    let pushed = if task.push == PushMode::Branch { "; its branch is pushed after each run" } else { "" };
    format!("{project}{from}{pushed}")
}

static DEPENDENCIES: Kind<Value> = Kind {
    columns: &[
        Column::new("ID", |task, _| columns::text(&task["id"])),
        Column::new("STATUS", |task, _| columns::text(&task["status"])),
        Column::new("PROMPT", |task: &Value, _| term::short(task["prompt"].as_str().unwrap_or_default(), MAX_TEXT))
            .cut(LEAST_TEXT, 40)
            .spare(1),
    ],
    name: |task| columns::text(&task["id"]),
};

static EVENT: Kind<Event<'static>> = Kind {
    columns: &[
        Column::new("AGE", |event, now| columns::age(event.at, now)),
        Column::new("KIND", |event, _| event.kind.to_string()),
        Column::new("EVENT", |event: &Event, _| term::short(&in_words(event).unwrap_or_default(), MAX_TEXT)).cut(LEAST_TEXT, TEXT),
    ],
    name: |event| event.number.to_string(),
};

/// An entry of the audit trail, with the time since the creation of the task.
struct Step {
    entry: Audit<'static>,
    created_at: Ms,
}

static STEPS: Kind<Step> = Kind {
    columns: &[
        Column::short("AFTER", |step, _| columns::age(step.created_at, step.entry.timestamp), |step, _| time_text(step.entry.timestamp)),
        Column::new("ACTION", |step, _| step.entry.action.to_string()),
        Column::new("ACTOR", |step: &Step, _| step.entry.actor.to_string()).spare(2),
        Column::new("DETAIL", |step: &Step, _| term::short(&step.entry.detail, MAX_TEXT)).cut(LEAST_TEXT, TEXT).spare(1),
        Column::wide("REQUEST", |step, _| columns::given(&step.entry.request_id)),
    ],
    name: |step| step.entry.id.to_string(),
};
