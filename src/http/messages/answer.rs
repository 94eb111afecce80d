//! HTTP responses.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, LINK};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

use crate::messages::error::Error;

pub(crate) type HandlerResult = Result<Response, Error>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// A JSON answer.
///
/// # Errors
/// The body can't be serialized, which is a bug.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> HandlerResult {
    Ok(json_bytes(status, to_json(body)?.into()))
}

/// # Errors
/// The body can't be serialized, which is a bug.
pub(crate) fn to_json(body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body).map_err(|error| Error::Internal(error.to_string()))
}

pub(crate) fn ok(body: &impl Serialize) -> HandlerResult {
    json(StatusCode::OK, body)
}

pub(crate) fn json_bytes(status: StatusCode, body: Bytes) -> Response {
    typed(status, JSON, body)
}

pub(crate) fn typed(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A JSON answer whose body may be a stream.
pub(crate) fn json_body(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// A page of a list, with the link to the next one.
pub(crate) fn page(rows: &impl Serialize, next: Option<String>) -> HandlerResult {
    Ok(linked(ok(rows)?, next))
}

pub(crate) fn linked(mut response: Response, next: Option<String>) -> Response {
    if let Some(link) = next.and_then(|link| HeaderValue::try_from(link).ok()) {
        response.headers_mut().insert(LINK, link);
    }
    response
}
