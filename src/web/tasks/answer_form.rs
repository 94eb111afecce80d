//! The form that answers the question of a run.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde_json::{Value, json};

use super::question::NotTaken;
use super::{id_of, show};
use crate::answer::see_other;
use crate::refused::Refused;
use crate::visit::{Fields, Posted};

/// If the answer is refused, the form shows the error and what was typed.
pub(crate) async fn send(Path(id): Path<String>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let id = id_of(&id)?;
    let sent = match body(&fields) {
        Ok(body) => visit.act(Method::POST, &format!("llm-tasks/{id}/answer"), &body).await,
        Err(refused) => Err(refused),
    };
    match sent {
        Ok(_) => Ok(see_other(&format!("/tasks/{id}?done=answer"))),
        Err(refused) if matches!(refused.status, 400 | 409 | 422) => {
            let at = &visit.layout.at;
            let not_taken = NotTaken {
                answers: fields.every("answers").map(str::to_owned).collect(),
                message: fields.text("message"),
                ..NotTaken::new(&refused, at)
            };
            show::page(&visit, id, Some((refused.status, not_taken))).await
        }
        Err(refused) => Err(refused),
    }
}

/// The answer is for the question that the person has seen, even if the run has asked another one since.
fn body(fields: &Fields) -> Result<Value, Refused> {
    let allow = match fields.get("decision") {
        Some("allow") => true,
        Some("deny") => false,
        _ => {
            return Err(Refused::new(
                400,
                "The form does not say whether to allow or to deny: choose one of its buttons",
                "Форма не каже, дозволити чи відмовити: виберіть одну з її кнопок",
            ));
        }
    };
    let mut body = json!({ "allow": allow });
    // Without the id, the API would apply the answer to whatever the run asks now.
    body["question_id"] = json!(fields.text("question_id"));
    if allow {
        let answers: Vec<_> = fields.every("answers").collect();
        if answers.iter().any(|answer| answer.trim().is_empty()) {
            return Err(Refused::new(
                400,
                "Answer each of the questions, or deny them",
                "Дайте відповідь на кожне із запитань або відмовте",
            ));
        }
        body["answers"] = json!(answers);
    } else if let Some(message) = fields.get("message") {
        body["message"] = json!(message);
    }
    Ok(body)
}
