//! The form that requeues a finished task, with other limits.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde_json::{Value, json};
use uuid::Uuid;

use super::question::NotTaken;
use super::{id_of, show};
use crate::answer::see_other;
use crate::refused::Refused;
use crate::times::NO_TIME;
use crate::visit::{Fields, Posted, Visit};
use bloom_api::answers::BulkResult;
use bloom_api::time_text;

/// If the limits are refused, the form shows the error and what was typed.
pub(crate) async fn send(Path(id): Path<String>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let body = with_limits(json!({}), &fields).and_then(|body| with_dependents(body, &fields));
    let sent = match body {
        Ok(body) => requeue(&visit, id, body).await,
        Err(refused) => Err(refused),
    };
    match sent {
        Ok(done) => Ok(see_other(&format!("/tasks/{id}?done={done}"))),
        Err(refused) if matches!(refused.status, 400 | 409) => {
            let limits = [fields.text("timeout_sec"), fields.text("budget")];
            let not_taken = NotTaken { limits, ..NotTaken::new(&refused, &visit.layout.at) };
            show::page(&visit, id, Some((refused.status, not_taken))).await
        }
        Err(refused) => Err(refused),
    }
}

/// Returns the word for what was done.
async fn requeue(visit: &Visit, id: Uuid, mut body: Value) -> Result<&'static str, Refused> {
    if body.get("with_dependents").is_some() {
        body["ids"] = json!([id]);
        let result: BulkResult = visit.post("llm-tasks:requeue", &body).await?;
        if result.changed > 0 {
            return Ok(if result.changed < result.matched || result.more { "requeue-part" } else { "requeue" });
        }
        // The call for a single task says why the task can't be requeued.
        body = json!({ "policy": body["policy"] });
    }
    visit.act(Method::POST, &format!("llm-tasks/{id}/requeue"), &body).await.map(|_| "requeue")
}

/// The body of a call that requeues, which also asks for the cancelled dependents if the box for that was checked.
///
/// # Errors
/// The field has another value than the box.
pub(crate) fn with_dependents(mut body: Value, fields: &Fields) -> Result<Value, Refused> {
    if fields.word("with_dependents", &["true"])? == "true" {
        body["with_dependents"] = json!(true);
    }
    Ok(body)
}

/// The body of a call that requeues, with the limits that were typed.
///
/// # Errors
/// One of them can't be parsed. The API checks whether they are allowed.
pub(crate) fn with_limits(mut body: Value, fields: &Fields) -> Result<Value, Refused> {
    let given = |field| fields.get(field).map(str::trim).filter(|text| !text.is_empty());
    if let Some(limit) = given("timeout_sec") {
        let told = |text| {
            Refused::new(400, format!("The time limit can't be read: {text}"), format!("Обмеження часу не вдалося прочитати: {NO_TIME}"))
        };
        body["policy"]["timeout_sec"] = json!(time_text::duration(limit).map_err(told)?.as_secs());
    }
    if let Some(budget) = given("budget") {
        let told = || {
            Refused::new(
                400,
                "The budget can't be read: expected US dollars, like 0.50; 0 is no limit",
                "Бюджет не вдалося прочитати: очікуються долари США, як-от 0.50; 0 — без обмеження",
            )
        };
        body["policy"]["budget"] = json!(budget.parse::<f64>().ok().filter(|usd| usd.is_finite()).ok_or_else(told)?);
    }
    Ok(body)
}
