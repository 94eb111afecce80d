//! The form for a reply, which is a new task that continues the conversation of this one.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde_json::{Value, json};

use super::id_of;
use crate::answer::see_other;
use crate::refused::Refused;
use crate::visit::{Layout, Posted};
use bloom_api::tasks::Task;
use bloom_api::{inherited, time_limit};
use bloom_core::task::Session;

/// Whether the visitor can reply. A task that runs on its own has no conversation to continue.
pub(crate) fn is_possible(task: &Task<'_>, layout: &Layout) -> bool {
    layout.may_act() && task.session == Session::Context
}

pub(crate) async fn send(Path(id): Path<String>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let Some(prompt) = fields.get("prompt").filter(|prompt| !prompt.trim().is_empty()) else {
        return Err(Refused::new(400, "The reply is empty, so no task was created", "Відповідь порожня, тому завдання не створено"));
    };
    let first: Value = visit.get(&format!("llm-tasks/{id}")).await?;
    if first["session"] != json!(Session::Context.as_str()) {
        return Err(Refused::new(
            409,
            "This task runs on its own, so it has no conversation that could go on",
            "Це завдання виконується окремо, тому не має розмови, яку можна продовжити",
        ));
    }
    let mut body = inherited::for_reply(&first);
    // Browsers send line breaks as CR LF.
    body.insert("prompt".into(), json!(prompt.replace("\r\n", "\n")));
    if let Some(policy) = body.get_mut("policy").and_then(Value::as_object_mut) {
        time_limit::add_usual(policy);
    }
    let created = visit.act(Method::POST, "llm-tasks", &Value::Object(body)).await?;
    Ok(see_other(&format!("/tasks/{}?done=created", created["id"].as_str().unwrap_or_default())))
}
