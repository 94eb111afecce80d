//! Answers of the push server.

use axum::Json;
use axum::http::StatusCode;
use serde_json::{Value, json};

pub(crate) type PushResponse = (StatusCode, Json<Value>);

pub(crate) fn refuse(status: StatusCode, why: &str) -> PushResponse {
    (status, Json(json!({"error": why})))
}
