//! Answers as HTTP has them.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, LINK, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::error::Failure;
use crate::{database, engine, store};

pub type Answer = Result<Response, Failure>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A JSON answer.
///
/// # Errors
/// What is shown can't be JSON: a fault of ours.
pub fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(body).map_err(|error| Failure::Internal(error.to_string()))?;
    Ok(json_bytes(status, body.into()))
}

pub fn ok(body: &impl Serialize) -> Answer {
    json(StatusCode::OK, body)
}

pub fn json_bytes(status: StatusCode, body: Bytes) -> Response {
    typed(status, JSON, body)
}

pub fn typed(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A page of a list, with the way to the next one.
pub fn page(rows: &impl Serialize, next: Option<String>) -> Answer {
    let mut response = ok(rows)?;
    if let Some(link) = next.and_then(|link| HeaderValue::try_from(link).ok()) {
        response.headers_mut().insert(LINK, link);
    }
    Ok(response)
}

/// Why an answer is a 500, for the log; it goes no further than the gate.
#[derive(Clone, Debug)]
pub struct Cause(pub String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json_bytes(status, self.body().into());
        match self {
            Self::Later(_) => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Internal(cause) => {
                response.extensions_mut().insert(Cause(cause));
            }
            Self::Text { .. } | Self::Invalid(_) => {}
        }
        response
    }
}

const UNAVAILABLE: Failure = Failure::Later("The database is not reachable right now, try again");

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::Rejected(rejection) => rejection.into(),
            engine::Error::Busy => Self::Later("The server has too much to do right now, try again"),
            engine::Error::Unavailable => UNAVAILABLE,
            engine::Error::Internal => Self::Internal("the write path failed; its own log entry says why".into()),
        }
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        match error.trouble() {
            Some(trouble) => Self::Later(trouble.text()),
            None => database::Error::from(error).into(),
        }
    }
}

impl From<database::Error> for Failure {
    fn from(error: database::Error) -> Self {
        if error.is_unavailable() { UNAVAILABLE } else { Self::Internal(error.to_string()) }
    }
}

/// A reply that does not belong to its command.
pub fn odd_reply(op: &str) -> Failure {
    Failure::Internal(format!("the write path answered {op} with something else"))
}
