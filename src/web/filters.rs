//! The filters of lists that name a task, a worker or a project: what is wrong with one is told at its field, and the form stays filled.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::response::Response;
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::answer::see_other;
use crate::call::{Listed, path_part};
use crate::lang::Lang;
use crate::refused::{Refused, Said, Wrong};
use crate::tasks::by_part;
use crate::times::beginning;
use crate::visit::{Visit, joined};
use bloom_api::projects::Project;
use bloom_api::workers::Worker;
use bloom_core::command::Rejection;
use bloom_core::similar::{did_you_mean, similar};

/// How many workers are searched for the given one, or for one with a similar name.
const WORKERS: usize = 1_000;
/// How many projects are searched for the given one: all that a server can have.
const PROJECTS: usize = 1_000;
/// The maximum length of typed text that an error repeats.
const TYPED_CHARS: usize = 40;

/// The errors of the filters of a list, by the names of the form's fields.
pub(crate) type WrongFilters = BTreeMap<String, Said>;

/// Whether this field of the form has an error.
pub(crate) fn is_wrong(wrong: &WrongFilters, field: &str) -> bool {
    wrong.contains_key(field)
}

/// The errors that the API reports, or that are in its language.
pub(crate) fn by_api(fields: Wrong) -> WrongFilters {
    fields.into_iter().map(|(field, text)| (field, Said::Api(text))).collect()
}

/// The answer to an address whose filters may name a task.
pub(crate) enum OfTask<R> {
    List(Filtered<R>),
    /// The filter has a part of the id of one task: the address of the same list with the whole id.
    Part(Response),
}

impl<R> OfTask<R> {
    /// `field`: the filter that names a task. `filters`: all filters of the list at this path. `list`: the API's answer, which is needed only
    /// if the filter has a whole id or nothing.
    ///
    /// # Errors
    /// As [`Filtered::of`].
    pub(crate) async fn of(
        visit: &Visit,
        (path, field): (&str, &str),
        filters: &[&str],
        list: impl Future<Output = Result<Listed<R>, Refused>>,
    ) -> Result<Self, Refused> {
        let Some(given) = visit.query().get(field).filter(|given| Uuid::parse_str(given).is_err()) else {
            return Filtered::of(visit, filters, list.await).await.map(Self::List);
        };
        // Lists show the end of an id after an ellipsis, which people copy too.
        let part = given.trim().trim_start_matches('…');
        Ok(match by_part(visit, part).await? {
            Some(id) => {
                let others: Vec<&str> = filters.iter().copied().filter(|name| *name != field).collect();
                let kept = visit.query().query_of(&others);
                Self::Part(see_other(&format!("{path}?{}", joined([&kept, &format!("{field}={id}")]))))
            }
            None => {
                let [english, ukrainian] = Lang::ALL.map(|lang| not_one_task(lang, part));
                let wrong = WrongFilters::from([(field.to_owned(), Said::Page(english.into(), ukrainian.into()))]);
                Self::List(Filtered::refused(wrong))
            }
        })
    }
}

/// The error about a part of an id that does not lead to one task.
pub(crate) fn not_one_task(lang: Lang, part: &str) -> String {
    let part = beginning(part, TYPED_CHARS);
    lang.t(
        format!("No task, or more than one, has the id '{part}': give the whole id, or at least four digits of its end"),
        format!(
            "Ідентифікатор «{part}» не має жодне завдання або мають кілька: вкажіть його повністю або щонайменше чотири цифри з його кінця"
        ),
    )
}

/// A page of a list, or what is wrong with its filters.
pub(crate) struct Filtered<R> {
    pub status: StatusCode,
    pub listed: Listed<R>,
    pub wrong: WrongFilters,
}

impl<R> Filtered<R> {
    /// No list, because the filters can't be read.
    fn refused(wrong: WrongFilters) -> Self {
        Self { status: StatusCode::BAD_REQUEST, listed: Listed { rows: Vec::new(), next: None }, wrong }
    }

    /// The API's answer. If its list is empty, the filters may name something that does not exist. `fields` are those of the form.
    ///
    /// # Errors
    /// The API refuses the call for another reason than one of these fields.
    pub(crate) async fn of(visit: &Visit, fields: &[&str], answer: Result<Listed<R>, Refused>) -> Result<Self, Refused> {
        match answer {
            Ok(listed) => {
                let wrong = if listed.rows.is_empty() { unknown(visit, fields).await? } else { WrongFilters::new() };
                Ok(Self { status: StatusCode::OK, listed, wrong })
            }
            Err(refused) if fields.iter().any(|field| refused.fields.contains_key(*field)) => Ok(Self::refused(by_api(refused.fields))),
            Err(refused) => Err(refused),
        }
    }
}

/// The filters among these fields that name a task, a worker or a project that does not exist. What was removed may still be in lists, so
/// this is asked only of lists that are empty.
pub(crate) async fn unknown(visit: &Visit, fields: &[&str]) -> Result<WrongFilters, Refused> {
    let mut wrong = WrongFilters::new();
    let given = |field| visit.query().get(field).filter(|_| fields.contains(&field));
    if let Some(id) = given("task_id").filter(|id| Uuid::parse_str(id).is_ok())
        && visit.find::<IgnoredAny>(&format!("llm-tasks/{}", path_part(id))).await?.is_none()
    {
        let text = Said::Page(
            "There is no task with this id, or it was removed: the list of tasks has those that there are".into(),
            "Завдання з таким ідентифікатором немає або його видалено: наявні завдання є у списку завдань".into(),
        );
        wrong.insert("task_id".to_owned(), text);
    }
    if let Some(name) = given("worker_id") {
        wrong.extend(unknown_worker(visit, name).await?.map(|text| ("worker_id".to_owned(), text)));
    }
    if let Some(name) = given("project") {
        wrong.extend(unknown_project(visit, name).await?.map(|text| ("project".to_owned(), Said::Api(text))));
    }
    Ok(wrong)
}

/// The error about an unknown worker, with a similar name if there is one; `None` if the worker exists, or if the key may not list workers.
async fn unknown_worker(visit: &Visit, name: &str) -> Result<Option<Said>, Refused> {
    let id = |worker: Worker<'_>| worker.id.into_owned();
    let Some(workers) = visit.list_if_allowed(&format!("workers?limit={WORKERS}"), id).await? else { return Ok(None) };
    let is_known = workers.rows.iter().any(|worker| worker == name)
        || workers.next.is_some() && visit.find::<IgnoredAny>(&format!("workers/{}", path_part(name))).await?.is_some();
    if is_known {
        return Ok(None);
    }
    let near = similar(name, workers.rows.iter().map(String::as_str));
    let name = beginning(name, TYPED_CHARS);
    let [english, ukrainian] = match near {
        Some(near) => [
            format!("No worker has the name '{name}'. Did you mean {near}?"),
            format!("Жоден воркер не має назви «{name}». Можливо, {near}?"),
        ],
        None => [
            format!("No worker has the name '{name}': the page Workers lists those that there are"),
            format!("Жоден воркер не має назви «{name}»: наявні є на сторінці «Воркери»"),
        ],
    };
    Ok(Some(Said::Page(english.into(), ukrainian.into())))
}

/// The API's error about an unknown project, with a similar name if there is one; `None` if the project exists, or if the key may not list
/// projects.
pub(crate) async fn unknown_project(visit: &Visit, named: &str) -> Result<Option<String>, Refused> {
    let row = |project: Project<'_>| (project.id.to_string(), project.name.into_owned());
    let Some(listed) = visit.list_if_allowed(&format!("projects?limit={PROJECTS}"), row).await? else { return Ok(None) };
    if listed.rows.iter().any(|(id, name)| id == named || name == named) {
        return Ok(None);
    }
    let meant = did_you_mean(named, listed.rows.iter().map(|(_, name)| name.as_str()));
    let unknown = Rejection::UnknownProject(beginning(named, TYPED_CHARS));
    Ok(Some(format!("{unknown}{meant}")))
}
