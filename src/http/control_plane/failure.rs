//! Errors of the control plane: `{"detail": …}`. The detail is a text or, for an invalid body, a list with the location of each mistake.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use crate::messages::error::Error;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// 422: what is wrong with the request, and where.
    Invalid(Vec<Mistake>),
    Other(Error),
}

/// One mistake in a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Mistake {
    /// `body` or `path`, then the names of fields and the numbers of elements.
    pub loc: Vec<Value>,
    pub msg: String,
    /// A stable word for programs.
    #[serde(rename = "type")]
    pub kind: &'static str,
}

impl Failure {
    pub(crate) fn fixed(status: u16, text: &'static str) -> Self {
        Self::Other(Error::fixed(status, text))
    }

    pub(crate) fn text(status: u16, text: impl Into<String>) -> Self {
        Self::Other(Error::Text { status, text: text.into().into() })
    }

    /// The failure in one line.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Invalid(mistakes) => mistakes.iter().map(|mistake| mistake.msg.as_str()).collect::<Vec<_>>().join("; "),
            Self::Other(error) => error.line(),
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (body, mut response) = match self {
            Self::Invalid(mistakes) => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                (json!({ "detail": mistakes }), (status, [(CONTENT_TYPE, "application/json")]).into_response())
            }
            Self::Other(error) => (json!({ "detail": error.line() }), error.into_response()),
        };
        *response.body_mut() = body.to_string().into();
        response
    }
}
