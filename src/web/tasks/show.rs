//! The page of a task.

use askama::Template;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;
use uuid::Uuid;

use super::attempts::{self, Attempt, Entry};
use super::cells::{short_id, short_name};
use super::events::{self, Group, Room, Shown, grouped};
use super::question::{Asked, NotTaken};
use super::result::{Answer, Body, RAW};
use super::suggestions::Known;
use super::{UNKNOWN_AGENT, by_part, id_of};
use crate::advice::{self, Advice};
use crate::answer::{plain, see_other};
use crate::call::Listed;
use crate::diff::Change;
use crate::files::Files;
use crate::lang::Lang;
use crate::records::{by_id, title_of};
use crate::refused::Refused;
use crate::times::{dollars, duration, limit, shortened, used};
use crate::visit::{Layout, Visit};
use bloom_api::answers::{Audit, Event, Lease};
use bloom_api::questions::Question;
use bloom_api::results::TaskResult;
use bloom_api::tasks::{Policy, Task};
use bloom_api::time_text::limit_text;
use bloom_api::words::{AnyStatus, Word};
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::limits::GIVE_BACKS;
use bloom_core::project::PushMode;
use bloom_core::task::{Outcome, Reason, Status, WaitingReason};

/// The page shows only the beginning of longer texts. They have pages of their own.
const TEXT_CHARS: usize = 6_000;
const EVENTS: usize = 40;
const ENTRIES: usize = 30;
/// The maximum number of dependencies that the page lists, and of dependents.
const DEPENDENCIES: usize = 20;

/// The branch with the commits of a run.
pub(crate) struct Branch {
    pub name: String,
    pub commit: String,
}

/// A task that this task depends on.
struct Dependency {
    id: Uuid,
    /// The beginning of its prompt, or else the end of its id.
    title: String,
    /// `None` if the visitor may not see the task, or if it was removed.
    status: Option<AnyStatus>,
}

/// The tasks that depend on the task of the page.
struct Dependents {
    /// The newest of them.
    tasks: Vec<Dependency>,
    more: bool,
    /// Whether one was cancelled because the task did not complete.
    are_cancelled: bool,
}

#[derive(Template)]
#[template(path = "task.html")]
struct TaskPage<'a> {
    v: &'a Layout,
    task_id: Uuid,
    task: &'a Task<'a>,
    title: String,
    prompt: String,
    is_prompt_cut: bool,
    advice: Option<Advice>,
    question: Option<Asked>,
    /// Whether it waits for the answer of a person.
    asks: bool,
    not_taken: Option<NotTaken>,
    /// Whether a worker has the task. The page then begins with the events, and follows them.
    runs: bool,
    is_completed: bool,
    /// How long the finished run took.
    took: String,
    /// The cost of all attempts that have ended, in US dollars; empty if there was none.
    spent: String,
    answer: Option<Answer>,
    sees_attempts: bool,
    attempts: &'a [Attempt],
    /// The newest attempt comes last while it runs, otherwise first.
    groups: Vec<Group<'a>>,
    earlier: bool,
    trail: Option<Vec<Entry>>,
    cost: String,
    /// The time limit, in a short form.
    limit: String,
    /// How many of the attempts count.
    counted: String,
    from: Option<&'a str>,
    pushes: bool,
    branch: Option<Branch>,
    files: Files,
    /// The first of the tasks that it depends on.
    dependencies: Vec<Dependency>,
    dependents: Dependents,
    /// The end of an id, or a name that is shortened to fit the column.
    short_context: String,
    budget: String,
    done: Option<String>,
    may: May,
}

impl TaskPage<'_> {
    /// The attempt whose events the advice links to.
    fn last_events(&self) -> Option<usize> {
        let last = if self.runs { self.groups.last() } else { self.groups.first() };
        last.and_then(|group| group.anchor)
    }

    /// How long the current run has lasted.
    fn lasted(&self, began: &Ms) -> String {
        duration(self.v.at.lang, self.v.now - began)
    }

    /// The current time limit, in the format of the field.
    fn limit_now(&self) -> String {
        limit_text(self.task.policy.timeout_sec)
    }

    /// What was typed into a field of the form that requeues, if the form was refused.
    fn typed_limit(&self, field: usize) -> &str {
        self.not_taken.as_ref().and_then(|refused| refused.limits.get(field)).map(String::as_str).unwrap_or_default()
    }

    fn has_events(&self, attempt: &usize) -> bool {
        self.groups.iter().any(|group| group.anchor == Some(*attempt))
    }
}

/// The buttons that make sense in the current state.
struct May {
    cancel: bool,
    requeue: bool,
    suspend: bool,
    resume: bool,
    delete: bool,
    reply: bool,
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
            reply: super::reply_form::is_possible(task, layout),
        }
    }
}

/// The page of a task. If the path has only a part of an id, redirects to the task if exactly one has this part.
pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    match id_of(&id) {
        Ok(id) => page(&visit, id, None).await,
        Err(unknown) => Ok(see_other(&format!("/tasks/{}", by_part(&visit, &id).await?.ok_or(unknown)?))),
    }
}

/// The page. `refused`: the status and the content of a form of the page that was refused.
pub(crate) async fn page(visit: &Visit, id: Uuid, refused: Option<(u16, NotTaken)>) -> Result<Response, Refused> {
    let (status, not_taken) = refused.unzip();
    let status = status.map_or(StatusCode::OK, |status| StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST));
    let task: Task = visit.get(&format!("llm-tasks/{id}")).await?;
    let lang = visit.layout.at.lang;
    let (mut trail, attempts) = history(visit, id).await?;
    let is_requeued = trail.iter().flatten().any(|entry| entry.action == Action::TaskRequeued);
    trail.iter_mut().for_each(|entries| entries.truncate(ENTRIES));
    let events = shown(visit, &format!("llm-tasks/{id}/events?last={EVENTS}")).await?;
    let asks = task.waiting.as_ref().is_some_and(|waiting| waiting.reason == WaitingReason::NeedsHuman);
    let question: Option<Question> = if asks { visit.find(&format!("llm-tasks/{id}/question")).await? } else { None };
    let result: Option<TaskResult> = visit.find(&format!("llm-tasks/{id}/result")).await?;
    let prompt = shortened(&task.prompt, TEXT_CHARS);
    let files = Files::of(visit, &task).await?;
    let dependencies = dependencies(visit, &task).await?;
    let dependents = dependents(visit, id).await?;
    let done = match visit.query().get("done") {
        Some(UNKNOWN_AGENT) => Some(Known::of(visit).await?.told_of_unknown(lang, &task.agent_slug)),
        word => word.and_then(|word| super::buttons::done(lang, word)).map(str::to_owned),
    };
    let is = |statuses: &[Status]| matches!(&task.status, Word::Known(known) if statuses.contains(known));
    let may = May::of(&task, &visit.layout);
    let runs = is(&[Status::Leased, Status::Running]);
    let is_over = !runs && !is(&[Status::Queued]);
    let asks = question.as_ref().is_some_and(|question| question.answer.is_none());
    let has_seen_outage = attempts.iter().flatten().skip(1).any(|attempt| attempt.is_of_provider);
    let advice = if has_seen_outage { advice::after_outage(lang, &task) } else { advice::of(lang, &task) };
    let earlier = events.first().is_some_and(|first| first.number > 1);
    let mut groups = grouped(events, attempts.as_deref().unwrap_or_default());
    if !runs {
        // The box of events shows its end while a run goes on, and its beginning otherwise. In both cases the last attempt should be
        // visible.
        groups.reverse();
    }
    visit.show(
        status,
        &TaskPage {
            v: &visit.layout,
            title: crate::times::beginning(&task.prompt, 80),
            is_prompt_cut: prompt.len() != task.prompt.len(),
            prompt,
            // The question is shown with its buttons, so the advice would only repeat it.
            advice: advice.filter(|_| question.is_none()),
            asks,
            question: question.map(|question| Asked::of(&question, not_taken.as_ref())),
            not_taken,
            runs,
            is_completed: is(&[Status::Completed]),
            took: task.started_at.zip(task.finished_at).map(|(began, ended)| duration(lang, ended - began)).unwrap_or_default(),
            spent: task.usage.filter(|usage| usage.cost_usd > 0.0).map(|usage| dollars(lang, usage.cost_usd)).unwrap_or_default(),
            // While the task goes on, the failure of an earlier attempt is shown with that attempt.
            answer: result.as_ref().filter(|result| is_over || result.status != Outcome::Error).map(|result| {
                let told = task.failure.as_ref().map(|failure| &*failure.message).unwrap_or_default();
                Answer::of(result, told, visit.query().get("answer") == Some(RAW))
            }),
            sees_attempts: attempts.is_some(),
            earlier,
            groups,
            attempts: attempts.as_deref().unwrap_or_default(),
            trail,
            from: task.r#ref.as_deref(),
            pushes: task.push == PushMode::Branch,
            branch: result.as_ref().and_then(branch),
            files,
            dependencies,
            dependents,
            cost: task.usage.map(|usage| used(lang, &usage)).unwrap_or_default(),
            limit: short_limit(lang, &task.policy),
            counted: counted(lang, &task, is_requeued),
            short_context: short_name(&task.context_id),
            budget: lang.t(format!("${}", task.policy.budget), format!("{}\u{a0}$", task.policy.budget.to_string().replace('.', ","))),
            done,
            may: May { reply: may.reply && !asks, ..may },
            task_id: id,
            task: &task,
        },
    )
}

async fn dependencies(visit: &Visit, task: &Task<'_>) -> Result<Vec<Dependency>, Refused> {
    let ids: Vec<Uuid> = task.depends_on.iter().copied().take(DEPENDENCIES).collect();
    let known = by_id(visit, ids.iter().copied().collect(), |task| (title_of(&task), task.status)).await?;
    let told = |id: Uuid| match known.get(&id) {
        Some((title, status)) => Dependency { id, title: title.clone(), status: Some(status.clone()) },
        None => Dependency { id, title: short_id(&id.to_string()), status: None },
    };
    Ok(ids.into_iter().map(told).collect())
}

async fn dependents(visit: &Visit, task: Uuid) -> Result<Dependents, Refused> {
    let row = |task: Task| {
        let is_cancelled = task.last_failure().is_some_and(|failure| failure.reason == Reason::DependencyFailed);
        (Dependency { id: task.id, title: title_of(&task), status: Some(task.status) }, is_cancelled)
    };
    let listed = visit.list(&format!("llm-tasks?depends_on={task}&limit={DEPENDENCIES}"), row).await?;
    let (tasks, are_cancelled): (Vec<_>, Vec<_>) = listed.rows.into_iter().unzip();
    Ok(Dependents { tasks, more: listed.next.is_some(), are_cancelled: are_cancelled.contains(&true) })
}

fn branch(result: &TaskResult<'_>) -> Option<Branch> {
    let commit = result.commit.as_deref().unwrap_or_default().to_owned();
    result.branch.as_deref().map(|name| Branch { name: name.to_owned(), commit })
}

fn short_limit(lang: Lang, policy: &Policy) -> String {
    let or_of_profile =
        if policy.timeout_is_default { lang.t(" (or its profile’s limit)", " (або обмеження профілю)") } else { "" };
    format!("{}{or_of_profile}", limit(lang, policy.timeout_sec))
}

/// `is_requeued`: the attempts before the task was requeued are listed, but do not count.
fn counted(lang: Lang, task: &Task<'_>, is_requeued: bool) -> String {
    let (count, most, back) = (task.attempts, task.max_attempts, task.infra_retries);
    let since = if is_requeued { lang.t(" since it was requeued", " після повернення в чергу") } else { "" };
    match back {
        0 => lang.t(format!("{count} of {most}{since}"), format!("{count} із {most}{since}")),
        _ => lang.t(
            format!("{count} of {most} counted{since}, given back {back} of at most {GIVE_BACKS}"),
            format!("враховано {count} із {most}{since}, повернено {back} щонайбільше із {GIVE_BACKS}"),
        ),
    }
}

/// The whole prompt, as text.
pub(crate) async fn prompt(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let task: Task = visit.get(&format!("llm-tasks/{}", id_of(&id)?)).await?;
    Ok(plain(task.prompt.into_owned(), None))
}

/// The whole answer, as a file.
pub(crate) async fn output(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
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
    task_id: Uuid,
    groups: Vec<Group<'a>>,
    runs: bool,
    next: Option<i64>,
}

/// All events of a task, a page at a time.
pub(crate) async fn events(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    const PAGE: usize = 50;
    let id = id_of(&id)?;
    let after = visit.query().get("after").and_then(|text| text.parse::<i64>().ok()).unwrap_or_default().max(0);
    let events = shown(&visit, &format!("llm-tasks/{id}/events?after={after}&limit={PAGE}")).await?;
    let next = events.last().filter(|_| events.len() == PAGE).map(|last| last.number);
    let (_, attempts) = history(&visit, id).await?;
    visit.ok(&EventsPage {
        v: &visit.layout,
        task_id: id,
        groups: grouped(events, attempts.as_deref().unwrap_or_default()),
        runs: false,
        next,
    })
}

/// One event, whole, as text.
pub(crate) async fn event(Path((id, number)): Path<(String, String)>, visit: Visit) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let missing = || Refused::new(404, "There is no such event", "Такої події немає");
    let number = number.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(missing)?;
    let told = |event: Event| serde_json::from_str(event.data.get()).map(|data: Value| events::told(&data).0).unwrap_or_default();
    let path = format!("llm-tasks/{id}/events?after={}&limit=1", number - 1);
    let found = visit.list(&path, |event: Event| (event.number, told(event))).await?.rows;
    let (_, text) = found.into_iter().find(|(found, _)| *found == i64::from(number)).ok_or_else(missing)?;
    Ok(plain(text, None))
}

async fn shown(visit: &Visit, path: &str) -> Result<Vec<Shown>, Refused> {
    let (room, lang) = (Room::new(), visit.layout.at.lang);
    Ok(visit.list(path, |event: Event| Shown::of(lang, event, &room)).await?.rows)
}

/// The audit trail and the attempts of a task, the newest first; `None` for what the visitor may not see.
async fn history(visit: &Visit, id: Uuid) -> Result<(Option<Vec<Entry>>, Option<Vec<Attempt>>), Refused> {
    let (now, lang) = (visit.layout.now, visit.layout.at.lang);
    let leases: Option<Listed<Lease>> =
        visit.list_if_allowed(&format!("leases?task_id={id}&limit={}", attempts::MOST), |lease: Lease| lease).await?;
    let trail =
        visit.list_if_allowed(&format!("audit?task_id={id}&limit={}", attempts::ENTRIES), |entry: Audit| Entry::of(lang, entry)).await?;
    let trail = trail.map(|listed| listed.rows);
    Ok((trail, leases.map(|leases| attempts::of(lang, &leases, now))))
}
