//! Changes of many tasks at once: a page first tells how many there are.

use askama::Template;
use axum::http::Method;
use axum::response::Response;
use serde_json::{Value, json};

use super::act::with_limit;
use super::filter::Filter;
use crate::answer::see_other;
use crate::refused::Refused;
use crate::visit::{Fields, Layout, Posted, Visit};

#[derive(Template)]
#[template(path = "bulk.html")]
struct Confirm<'a> {
    v: &'a Layout,
    action: &'static str,
    count: i64,
    /// How many tasks there are, in words.
    tasks: String,
    filter: &'a Filter,
    ids: Vec<&'a str>,
    /// The list from which the tasks were chosen.
    back: String,
}

/// Repeats of one call for more tasks than it changes at a time.
const MOST_CALLS: usize = 100;

pub async fn change(Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
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
    let filter = Filter::of(&fields);
    let ids: Vec<&str> = fields.all("ids").collect();
    let list = format!("/tasks?{}", fields.query_of(&super::filter::NAMES));
    if fields.get("confirmed") != Some("yes") {
        let found = call(&visit, action, &fields, &filter, true).await?;
        let ids = if is_all(&fields) { Vec::new() } else { ids };
        let (v, count) = (&visit.layout, number(&found, "matched"));
        let tasks = v.at.lang.count(count, ["task", "tasks"], ["завдання", "завдання", "завдань"]);
        let at_least = v.t(format!("at least {tasks}"), format!("щонайменше {tasks}"));
        let tasks = if found["more"] == true { at_least } else { tasks };
        return visit.ok(&Confirm { v, action, count, tasks, filter: &filter, ids, back: list });
    }
    let mut changed = 0;
    for _ in 0..MOST_CALLS {
        let answer = call(&visit, action, &fields, &filter, false).await?;
        changed += number(&answer, "changed");
        if answer["more"] != true || number(&answer, "changed") == 0 {
            break;
        }
    }
    Ok(see_other(&format!("{list}&done={changed}")))
}

fn is_all(fields: &Fields) -> bool {
    fields.get("which") == Some("all")
}

fn number(answer: &Value, name: &str) -> i64 {
    answer[name].as_i64().unwrap_or_default()
}

async fn call(visit: &Visit, action: &str, fields: &Fields, filter: &Filter, dry_run: bool) -> Result<Value, Refused> {
    let ids: Vec<&str> = fields.all("ids").collect();
    let body = match (is_all(fields), ids.is_empty()) {
        (true, _) if filter.is_for_bulk() => json!({ "filter": filter.body(visit.layout.now), "dry_run": dry_run }),
        (true, _) => {
            return Err(Refused::new(
                400,
                "Choose a filter first: without one, this would change every task",
                "Спершу виберіть фільтр: без нього буде змінено всі завдання",
            ));
        }
        (false, true) => {
            return Err(Refused::new(
                400,
                "No task is selected: go back and select some, or choose all that match the filter",
                "Не вибрано жодного завдання: поверніться й виберіть кілька або всі, що відповідають фільтру",
            ));
        }
        (false, false) => json!({ "ids": ids, "dry_run": dry_run }),
    };
    let body = if action == "requeue" { with_limit(body, fields) } else { body };
    visit.act(Method::POST, &format!("llm-tasks:{action}"), &body).await
}
