//! Errors of the control plane: `{"detail": …}`, a text or, for a body that is wrong, a list with the place of each mistake.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::error::{Cause, Error};

#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// 422: what is wrong with the request, and where.
    Invalid(Vec<Mistake>),
    Other(Error),
}

/// One mistake in a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mistake {
    /// `body` or `path`, then the names of fields and the numbers of elements.
    pub loc: Vec<Value>,
    pub msg: String,
    /// A stable word for programs.
    #[serde(rename = "type")]
    pub kind: &'static str,
}

impl Failure {
    pub fn fixed(status: u16, text: &'static str) -> Self {
        Self::Other(Error::fixed(status, text))
    }

    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::Other(Error::Text { status, text: text.into().into() })
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::Invalid(_) => 422,
            Self::Other(error) => error.status(),
        }
    }

    /// The failure in one line.
    pub fn line(&self) -> String {
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
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = match &self {
            Self::Invalid(mistakes) => json!({ "detail": mistakes }),
            Self::Other(error) => json!({ "detail": error.line() }),
        };
        let mut response = (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response();
        match self {
            Self::Other(Error::Later(_)) => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Other(Error::Internal(cause)) => {
                response.extensions_mut().insert(Cause(cause));
            }
            Self::Invalid(_) | Self::Other(_) => {}
        }
        response
    }
}
