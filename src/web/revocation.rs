//! The page that asks before a key is revoked. It tells what becomes of the tasks that the key created, as `key revoke` does.

use askama::Template;
use axum::extract::Path;
use axum::response::Response;
use serde_json::json;

use crate::call::path_part;
use crate::keys::{Row, find};
use crate::refused::Refused;
use crate::times::{at_least, number};
use crate::visit::{Layout, Visit};
use bloom_api::answers::BulkResult;
use bloom_core::api_key::Scope;

#[derive(Template)]
#[template(path = "revoke.html")]
struct Revoke<'a> {
    v: &'a Layout,
    title: &'a str,
    text: &'a str,
    target: String,
    button: &'a str,
    back: String,
    /// What becomes of the tasks that the key created; empty if it can create none.
    tasks: String,
    /// Where these tasks are listed, and the text of the link; `None` if there are none.
    list: Option<(String, &'a str)>,
}

pub(crate) async fn confirm(Path(name): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let key = find(&visit, &name).await?;
    let name = &key.name;
    let v = &visit.layout;
    let path = format!("keys/{}", path_part(name));
    let (tasks, list) = tasks_of(&visit, &key).await?;
    let is_own = visit.caller.key.as_ref().is_some_and(|own| own.name == *name);
    let text = if is_own {
        v.t(
            "This is your own key: afterwards you are signed out, and nobody can undo it.",
            "Це ваш власний ключ: після цього ваш сеанс завершиться, і ніхто не зможе цього скасувати.",
        )
    } else if key.scope == Scope::Worker.as_str() {
        v.t(
            "The agent that uses it is refused from then on. Its runs go on, and are lost if it has no other key when their leases expire.",
            "Агентові, який ним користується, відтоді буде відмовлено. Його запуски триватимуть; їх буде втрачено, якщо агент не матиме іншого ключа, коли закінчаться їхні оренди.",
        )
    } else {
        v.t("Whoever uses it is refused from then on.", "Усім, хто ним користується, відтоді буде відмовлено.")
    };
    visit.ok(&Revoke {
        v,
        title: &v.t(format!("Revoke the key {name}?"), format!("Відкликати ключ {name}?")),
        text,
        target: format!("/{path}/revoke"),
        button: v.t("Revoke it", "Відкликати"),
        back: format!("/{path}"),
        tasks,
        list,
    })
}

/// What becomes of the tasks of this key, and where they are listed.
async fn tasks_of<'a>(visit: &'a Visit, key: &Row) -> Result<(String, Option<(String, &'a str)>), Refused> {
    let (v, name) = (&visit.layout, path_part(&key.name));
    if key.scope == Scope::Admin.as_str() {
        let stay =
            v.t("Tasks that it created stay, and run as before.", "Завдання, які він створив, залишаться й виконуватимуться, як раніше.");
        let list = format!("/audit?actor=key%3A{name}&action=task_created");
        return Ok((stay.to_owned(), Some((list, v.t("Which tasks it created", "Які завдання він створив")))));
    }
    if !key.owns_tasks() {
        return Ok((String::new(), None));
    }
    let (queued, active) = (open(visit, &key.name, "queued").await?, open(visit, &key.name, "leased,running").await?);
    let (waits, runs) = (queued.matched, active.matched);
    if waits + runs == 0 {
        let none = v.t("No task that it created waits or runs.", "Жодне завдання, яке він створив, не очікує й не виконується.");
        return Ok((none.to_owned(), None));
    }
    let (waits, runs) = (at_least(v.at.lang, waits, queued.more), number(runs));
    let stay = v.t(
        format!("Of the tasks that it created, {waits} wait and {runs} run. They stay, and run as before."),
        format!("Із завдань, які він створив, очікують {waits}, виконуються {runs}. Вони залишаться й виконуватимуться, як раніше."),
    );
    Ok((stay, Some((format!("/tasks?owner={name}"), v.t("Its tasks", "Його завдання")))))
}

/// How many tasks of the owner have one of these statuses. A dry run counts them, because a list would have all their prompts.
async fn open(visit: &Visit, owner: &str, statuses: &str) -> Result<BulkResult, Refused> {
    let body = json!({ "filter": { "owner": owner, "status": statuses }, "dry_run": true });
    visit.post("llm-tasks:cancel", &body).await
}
