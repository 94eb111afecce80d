//! The buttons of a task.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde_json::json;
use uuid::Uuid;

use super::id_of;
use crate::answer::see_other;
use crate::lang::Lang;
use crate::refused::Refused;
use crate::times::beginning;
use crate::visit::{Layout, Posted, Visit};
use bloom_api::tasks::Task;

/// The message about the action, for the page that is shown after it.
pub(crate) fn done(lang: Lang, word: &str) -> Option<&'static str> {
    Some(match word {
        "cancel" => lang.t(
            "It is cancelled, or will be as soon as its worker has ended the run.",
            "Його скасовано або буде скасовано, щойно воркер закінчить запуск.",
        ),
        "requeue-part" => lang.t(
            "Some of the tasks are back in the queue, but not all of those that were cancelled: the quota of the key or another task is in their way. Do it again later.",
            "Частину завдань повернено в чергу, але не всі скасовані: цьому заважає квота ключа або інше завдання. Повторіть це пізніше.",
        ),
        "requeue" => lang.t("It is back in the queue.", "Його повернено в чергу."),
        "suspend" => lang.t(
            "It is suspended: no worker gets it until it is resumed.",
            "Його призупинено: жоден воркер не отримає його, доки його не відновлять.",
        ),
        "resume" => lang.t("It is resumed.", "Його відновлено."),
        "answer" => lang.t("Your answer was stored, and the run goes on.", "Вашу відповідь збережено, і запуск триває."),
        "created" => lang.t("The task was created.", "Завдання створено."),
        _ => return None,
    })
}

pub(crate) async fn act(Path((id, action)): Path<(String, String)>, Posted { visit, .. }: Posted) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let body = match action.as_str() {
        "cancel" | "suspend" | "resume" => json!({}),
        "delete" => return delete(&visit, id).await,
        _ => return Err(Refused::new(404, "There is no such button", "Такої кнопки немає")),
    };
    visit.act(Method::POST, &format!("llm-tasks/{id}/{action}"), &body).await?;
    Ok(see_other(&format!("/tasks/{id}?done={action}")))
}

async fn delete(visit: &Visit, id: Uuid) -> Result<Response, Refused> {
    visit.act(Method::DELETE, &format!("llm-tasks/{id}"), &json!({})).await?;
    Ok(see_other("/tasks?done=1"))
}

#[derive(Template)]
#[template(path = "confirm.html")]
pub(crate) struct Confirm<'a> {
    pub v: &'a Layout,
    pub title: &'a str,
    pub text: &'a str,
    pub target: String,
    pub button: &'a str,
    pub back: String,
}

pub(crate) async fn confirm_delete(Path(id): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let task: Task = visit.get(&format!("llm-tasks/{id}")).await?;
    let (v, prompt) = (&visit.layout, beginning(&task.prompt, 120));
    visit.ok(&Confirm {
        v,
        title: v.t("Delete this task?", "Видалити це завдання?"),
        text: &v.t(
            format!("“{prompt}” is removed with its events, results and artifacts. This can't be undone."),
            format!("«{prompt}» буде видалено разом із подіями, результатами й артефактами. Цього не можна скасувати."),
        ),
        target: format!("/tasks/{id}/delete"),
        button: v.t("Delete it", "Видалити"),
        back: format!("/tasks/{id}"),
    })
}
