//! Changes of many tasks at once. A page first shows how many tasks there are, and asks for confirmation.

use askama::Template;
use axum::response::Response;
use serde_json::{Value, json};

use super::filter::{Filter, kept};
use super::requeue::{with_dependents, with_limits};
use crate::answer::see_other;
use crate::refused::Refused;
use crate::visit::{FORM_TOKEN, Fields, Layout, Posted, Visit};
use bloom_api::answers::{BulkResult, NotChangedReason};
use bloom_core::Ms;

#[derive(Template)]
#[template(path = "bulk.html")]
struct Confirm<'a> {
    v: &'a Layout,
    action: &'static str,
    count: i64,
    /// How many tasks were cancelled because these did not complete, and can be requeued with them; empty if there are none.
    dependents: String,
    /// When the tasks were counted. The form sends it back, because tasks that match only since then were not confirmed.
    as_of: Option<Ms>,
    /// The number of tasks, in words.
    tasks: String,
    filter: &'a Filter,
    ids: Vec<&'a str>,
    /// The fields of the list's address.
    kept: Vec<(&'a str, &'a str)>,
    /// The address of the list in which the tasks were chosen.
    back: String,
}

/// How often a call is repeated if there are more tasks than one call changes.
const MOST_CALLS: usize = 100;

pub(crate) async fn change(Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let action = match fields.get("action") {
        Some("cancel") => "cancel",
        Some("requeue") => "requeue",
        _ => {
            return Err(Refused::new(
                400,
                "The form does not say what to do with the tasks: choose one of its buttons",
                "Форма не каже, що зробити із завданнями: виберіть одну з її кнопок",
            ));
        }
    };
    let others = [FORM_TOKEN, "action", "confirmed", "which", "ids", "timeout_sec", "budget", "with_dependents", "as_of", "sort", "cursor"];
    let filter = Filter::of(&fields, &others)?;
    fields.word("which", &["all"])?;
    fields.word("confirmed", &["yes"])?;
    let ids: Vec<&str> = fields.all("ids").collect();
    let list = format!("/tasks?{}", fields.query_of(&kept()));
    if ids.is_empty() && !is_all(&fields) {
        return Ok(see_other(&format!("{list}&unselected=1")));
    }
    let named = named(visit.layout.now, &fields, &filter, &ids)?;
    if fields.get("confirmed") != Some("yes") {
        let found = call(&visit, action, &fields, &named, (true, Value::Null)).await?;
        let (count, more, as_of) = (found.matched, found.more, found.as_of);
        let dependents = if action == "requeue" { dependents(&visit, &fields, named, as_of).await } else { String::new() };
        let ids = if is_all(&fields) { Vec::new() } else { ids };
        let v = &visit.layout;
        let tasks = v.at.lang.count(count, ["task", "tasks"], ["завдання", "завдання", "завдань"]);
        let at_least = v.t(format!("at least {tasks}"), format!("щонайменше {tasks}"));
        let tasks = if more { at_least } else { tasks };
        return visit.ok(&Confirm {
            v,
            action,
            count,
            dependents,
            as_of,
            tasks,
            filter: &filter,
            ids,
            kept: fields.given(&kept()).collect(),
            back: list,
        });
    }
    // If the value is not a time, the API refuses it.
    let as_of = fields.get("as_of").map(|text| text.parse::<Ms>().map_or_else(|_| json!(text), |at| json!(at)));
    let as_of = as_of.unwrap_or(Value::Null);
    let (mut changed, mut left, mut depends) = (0, 0, false);
    for _ in 0..MOST_CALLS {
        let answer = call(&visit, action, &fields, &named, (false, as_of.clone())).await?;
        changed += answer.changed;
        // Tasks that an earlier call left unchanged are matched by this call again, so only the last count is used.
        left = answer.matched - answer.changed;
        depends |= answer.not_changed.iter().any(|task| task.reason == NotChangedReason::Dependency);
        if !answer.more || answer.changed == 0 {
            break;
        }
    }
    let depends = if depends && left > 0 { "&depends=1" } else { "" };
    Ok(see_other(&format!("{list}&done={changed}&matched={}{depends}", changed + left)))
}

fn is_all(fields: &Fields) -> bool {
    fields.get("which") == Some("all")
}

/// The number of tasks that were cancelled because the selected ones did not complete; empty if there are none, or if they can't be counted:
/// the choice of the visitor does not depend on it.
async fn dependents(visit: &Visit, fields: &Fields, mut named: Value, as_of: Option<Ms>) -> String {
    named["with_dependents"] = json!(true);
    match call(visit, "requeue", fields, &named, (true, json!(as_of))).await {
        Ok(found) if found.dependents > 0 => format!("{}{}", found.dependents, if found.more { "+" } else { "" }),
        _ => String::new(),
    }
}

/// The selection of tasks for the body of an API call.
fn named(now: Ms, fields: &Fields, filter: &Filter, ids: &[&str]) -> Result<Value, Refused> {
    if !is_all(fields) {
        return Ok(json!({ "ids": ids }));
    }
    if filter.is_for_bulk() {
        return Ok(json!({ "filter": filter.body(now) }));
    }
    Err(Refused::new(
        400,
        "Choose a filter first: without one, this would change every task",
        "Спершу виберіть фільтр: без нього буде змінено всі завдання",
    ))
}

/// `dry_run` and `as_of` are the fields of the API with these names.
async fn call(visit: &Visit, action: &str, fields: &Fields, named: &Value, (dry_run, as_of): (bool, Value)) -> Result<BulkResult, Refused> {
    let mut body = named.clone();
    body["dry_run"] = json!(dry_run);
    body["as_of"] = as_of;
    let body = if action == "requeue" { with_limits(body, fields)? } else { body };
    let body = with_dependents(body, fields)?;
    visit.post(&format!("llm-tasks:{action}"), &body).await
}
