//! Changes of many tasks at once: a page first tells how many there are.

use askama::Template;
use axum::response::Response;
use serde_json::{Value, json};

use super::filter::{Filter, kept};
use super::requeue::with_limits;
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
    /// When they were counted, for the form: tasks that match since then are not confirmed.
    as_of: Option<Ms>,
    /// How many tasks there are, in words.
    tasks: String,
    filter: &'a Filter,
    ids: Vec<&'a str>,
    /// What the address of the list said.
    kept: Vec<(&'a str, &'a str)>,
    /// The list from which the tasks were chosen.
    back: String,
}

/// Repeats of one call for more tasks than it changes at a time.
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
    let others = [FORM_TOKEN, "action", "confirmed", "which", "ids", "timeout_sec", "budget", "as_of", "sort", "cursor"];
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
        let (mut count, mut more, mut as_of) = (0, false, None);
        for body in &named {
            let found = call(&visit, action, &fields, body, (true, json!(as_of))).await?;
            (count, more, as_of) = (count + found.matched, more || found.more, as_of.or(found.as_of));
        }
        let ids = if is_all(&fields) { Vec::new() } else { ids };
        let v = &visit.layout;
        let tasks = v.at.lang.count(count, ["task", "tasks"], ["завдання", "завдання", "завдань"]);
        let at_least = v.t(format!("at least {tasks}"), format!("щонайменше {tasks}"));
        let tasks = if more { at_least } else { tasks };
        return visit.ok(&Confirm {
            v,
            action,
            count,
            as_of,
            tasks,
            filter: &filter,
            ids,
            kept: fields.given(&kept()).collect(),
            back: list,
        });
    }
    // What is no time is left to the API, which refuses it.
    let as_of = fields.get("as_of").map(|text| text.parse::<Ms>().map_or_else(|_| json!(text), |at| json!(at)));
    let as_of = as_of.unwrap_or(Value::Null);
    let (mut changed, mut left, mut depends) = (0, 0, false);
    for body in &named {
        let mut left_now = 0;
        for _ in 0..MOST_CALLS {
            let answer = call(&visit, action, &fields, body, (false, as_of.clone())).await?;
            changed += answer.changed;
            // What an earlier call has left is among those that this one has met.
            left_now = answer.matched - answer.changed;
            depends |= answer.not_changed.iter().any(|task| task.reason == NotChangedReason::Dependency);
            if !answer.more || answer.changed == 0 {
                break;
            }
        }
        left += left_now;
    }
    let depends = if depends && left > 0 { "&depends=1" } else { "" };
    Ok(see_other(&format!("{list}&done={changed}&matched={}{depends}", changed + left)))
}

fn is_all(fields: &Fields) -> bool {
    fields.get("which") == Some("all")
}

/// The tasks, as calls of the API name them: one call for each status.
fn named(now: Ms, fields: &Fields, filter: &Filter, ids: &[&str]) -> Result<Vec<Value>, Refused> {
    if !is_all(fields) {
        return Ok(vec![json!({ "ids": ids })]);
    }
    if filter.is_for_bulk() {
        return Ok(filter.statuses().into_iter().map(|status| json!({ "filter": filter.body(status, now) })).collect());
    }
    Err(Refused::new(
        400,
        "Choose a filter first: without one, this would change every task",
        "Спершу виберіть фільтр: без нього буде змінено всі завдання",
    ))
}

/// `dry_run` and `as_of`, as the API has them.
async fn call(visit: &Visit, action: &str, fields: &Fields, named: &Value, (dry_run, as_of): (bool, Value)) -> Result<BulkResult, Refused> {
    let mut body = named.clone();
    body["dry_run"] = json!(dry_run);
    body["as_of"] = as_of;
    let body = if action == "requeue" { with_limits(body, fields)? } else { body };
    visit.post(&format!("llm-tasks:{action}"), &body).await
}
