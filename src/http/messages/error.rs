//! Errors, and the answers to them.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use bloom_api::error::{Code, ErrorText};
use bloom_api::invalid::Invalid;
use bloom_api::wire::Problems;
use bloom_core::command::Rejection;
use bloom_store::Outage;
use serde::Serialize;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    Text {
        status: u16,
        text: Cow<'static, str>,
    },
    /// The state of tasks and workers does not allow the call.
    Rejected {
        status: u16,
        code: Code,
        text: String,
        /// The number of seconds after which the call may be repeated.
        retry_after: Option<i64>,
    },
    /// The content of a request is wrong: 400.
    Invalid(Invalid),
    /// Temporarily unavailable, try again in a second: 503.
    Later(&'static str),
    /// Like `Later`, for probes. The cause is only logged.
    Unready {
        text: Cow<'static, str>,
        cause: String,
    },
    /// Like `Later`, if the reason is the database. The cause is only logged.
    Away {
        text: Cow<'static, str>,
        cause: Option<String>,
    },
    /// An internal error: 500. The cause is only logged.
    Internal(String),
}

const INTERNAL: &str = "Internal error; see the server's log for this request id";

impl Error {
    pub const fn fixed(status: u16, text: &'static str) -> Self {
        Self::Text { status, text: Cow::Borrowed(text) }
    }

    pub const TASK_NOT_FOUND: Self = Self::fixed(404, "Task not found");
    pub const CONTEXT_NOT_FOUND: Self = Self::fixed(404, "No task belongs to this context");
    pub const WORKER_NOT_FOUND: Self = Self::fixed(404, "Worker not found");

    /// An error in one field.
    pub fn field(name: &'static str, text: impl Into<String>) -> Self {
        Self::Invalid(Invalid::field(name, text))
    }

    /// Reports errors in the content as errors within this field.
    pub fn under(self, field: &'static str) -> Self {
        if let Self::Invalid(invalid) = self { Self::Invalid(invalid.under(field)) } else { self }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::Text { status, .. } | Self::Rejected { status, .. } => *status,
            Self::Invalid(_) => 400,
            Self::Later(_) | Self::Unready { .. } | Self::Away { .. } => 503,
            Self::Internal(_) => 500,
        }
    }

    /// The kind of error, for programs.
    pub fn code(&self) -> Code {
        if let Self::Rejected { code, .. } = self { *code } else { Code::of(self.status()) }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        match self {
            Self::Invalid(invalid) => to_json(&ErrorText::from(invalid)),
            _ => to_json(&ErrorText::new(self.code(), self.line())),
        }
    }

    /// The error in one line, for answers about many objects.
    pub fn line(&self) -> String {
        match self {
            Self::Text { text, .. } | Self::Unready { text, .. } | Self::Away { text, .. } => text.to_string(),
            Self::Rejected { text, .. } => text.clone(),
            Self::Later(text) => (*text).to_owned(),
            Self::Internal(_) => INTERNAL.to_owned(),
            Self::Invalid(invalid) => invalid.line(),
        }
    }
}

/// The serialization of these bodies can't fail, because they are plain data.
fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// Marks an error whose reason may be the database. The middleware knows why nothing can be written, and adds that to the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfDatabase;

/// Why an answer is a 500 or 503. The middleware logs it and removes it from the answer.
#[derive(Clone, Debug)]
pub(crate) struct Cause(pub String);

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, [(CONTENT_TYPE, "application/json")], self.body()).into_response();
        let retry_after = match &self {
            Self::Later(_) | Self::Unready { .. } | Self::Away { .. } => Some(1),
            Self::Rejected { retry_after, .. } => *retry_after,
            Self::Text { .. } | Self::Invalid(_) | Self::Internal(_) => None,
        };
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if matches!(self, Self::Away { .. }) {
            response.extensions_mut().insert(OfDatabase);
        }
        if let Self::Unready { cause, .. } | Self::Away { cause: Some(cause), .. } | Self::Internal(cause) = self {
            response.extensions_mut().insert(Cause(cause));
        }
        response
    }
}

const UNAVAILABLE: &str = "The database is not reachable right now, try again";
const BUSY: &str = "The server is overloaded right now, try again";
const LOCKED: &str = "Another program keeps rows of the database locked, try again when it has ended its transaction";

impl Error {
    const fn away(text: &'static str, cause: Option<String>) -> Self {
        Self::Away { text: Cow::Borrowed(text), cause }
    }

    /// The answer while nothing can be written.
    pub(crate) fn of_outage(outage: &Outage) -> Self {
        let text = format!("Nothing can be stored right now, try again: {}", outage.told());
        Self::Away { text: text.into(), cause: Some(format!("{}: {}", outage.reason.as_str(), outage.error)) }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Problems> for Error {
    fn from(problems: Problems) -> Self {
        Self::Invalid(problems.into())
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        let status = match &rejection {
            Rejection::TaskNotFound
            | Rejection::TaskOrLeaseNotFound
            | Rejection::LeaseNotFound
            | Rejection::WorkerNotFound
            | Rejection::KeyNotFound
            | Rejection::ProjectNotFound
            | Rejection::ArtifactNotFound
            | Rejection::AgentNotFound
            | Rejection::NodeNotFound(_) => 404,
            Rejection::NotTheActiveLease(_)
            | Rejection::WrongStatus { .. }
            | Rejection::CannotRequeue(_)
            | Rejection::CannotRequeueBefore { .. }
            | Rejection::CannotCancel(_)
            | Rejection::CannotEdit(_)
            | Rejection::CannotDelete(_)
            | Rejection::CannotSuspend(_)
            | Rejection::CannotResume(_)
            | Rejection::CannotAnswer { .. }
            | Rejection::NotReady(_)
            | Rejection::QueueClosed(_)
            | Rejection::TooManyQueues
            | Rejection::IdempotencyConflict(_)
            | Rejection::KeyExists(_)
            | Rejection::TooManyKeys
            | Rejection::ProjectExists(_)
            | Rejection::ArtifactOfTask
            | Rejection::ArtifactInUse
            | Rejection::TooManyUploads
            | Rejection::BudgetIsSpent(_)
            | Rejection::NotRotated(_)
            | Rejection::NoQuotaFor(_)
            | Rejection::QuotaOfOpenTasks { .. }
            | Rejection::QuotaOfStoredBytes { .. }
            | Rejection::QuotaOfOneCall { .. }
            | Rejection::TooManyProjects
            | Rejection::TooManyProjectNodes
            | Rejection::TooManyPoolKeys
            | Rejection::TooManyPoolKeysOf(_)
            | Rejection::WorkerTaken(_)
            | Rejection::AgentExists(_)
            | Rejection::TooManyAgents
            | Rejection::TooManyNodes
            | Rejection::NotPrimary { .. }
            | Rejection::TermChanged { .. }
            | Rejection::OtherAgent { .. } => 409,
            Rejection::TooManyFiles | Rejection::TooManyFileBytes => 413,
            Rejection::QuotaOfTasksPerMinute { .. } => 429,
            Rejection::QuotaOfCreator(_, refusal) => Self::from((**refusal).clone()).status(),
            Rejection::JoinTokenGone | Rejection::KeyGone => 401,
            Rejection::JoinTokenFor(_) => 403,
            Rejection::ReservedName(field) => return Self::field(field, rejection.to_string()),
            Rejection::UnknownDependencies(_) => return Self::field("depends_on", rejection.to_string()),
            Rejection::TooManyCombinations(_) => return Self::field("capabilities", rejection.to_string()),
            Rejection::UnknownInputs(_) | Rejection::InputsClash(..) => return Self::field("inputs", rejection.to_string()),
            Rejection::UnknownProject(_) => return Self::field("project", rejection.to_string()),
            Rejection::TooManyLabels(_) => return Self::field("labels", rejection.to_string()),
            Rejection::WrongAnswers { .. } => return Self::field("answers", rejection.to_string()),
            Rejection::NoUrl(_) => 400,
            Rejection::NoWorker | Rejection::ObjectTooOld | Rejection::UploadTooOld => 503,
            // Only commands of reconcilers depend on leadership, so this is a bug.
            Rejection::NotLeader => return Self::Internal(rejection.to_string()),
        };
        let code = match &rejection {
            Rejection::NotReady(_) | Rejection::QueueClosed(_) => Code::NotReady,
            Rejection::NoWorker => Code::NoCapacity,
            _ => Code::of(status),
        };
        Self::Rejected { status, code, text: rejection.to_string(), retry_after: rejection.retry_after_sec() }
    }
}

impl From<bloom_engine::Error> for Error {
    fn from(error: bloom_engine::Error) -> Self {
        match error {
            bloom_engine::Error::Rejected(rejection) => rejection.into(),
            bloom_engine::Error::Busy => Self::away(BUSY, None),
            bloom_engine::Error::Locked(cause) => Self::away(LOCKED, Some(cause)),
            bloom_engine::Error::Unavailable => Self::away(UNAVAILABLE, None),
            bloom_engine::Error::Internal => Self::Internal("the write path failed; its own log entry says why".into()),
        }
    }
}

impl From<bloom_store::Error> for Error {
    fn from(error: bloom_store::Error) -> Self {
        match error.fault() {
            Some(fault) => Self::away(fault.text(), Some(error.to_string())),
            None => bloom_database::Error::from(error).into(),
        }
    }
}

impl From<bloom_database::Error> for Error {
    fn from(error: bloom_database::Error) -> Self {
        if error.is_unavailable() { Self::away(UNAVAILABLE, Some(error.to_string())) } else { Self::Internal(error.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_text_or_texts_by_field() {
        assert_eq!(Error::TASK_NOT_FOUND.body(), br#"{"error":"Task not found","code":"not_found"}"#);
        let by_field = br#"{"error":{"formErrors":[],"fieldErrors":{"lease_id":["Required"]}},"code":"validation"}"#;
        assert_eq!(Error::field("lease_id", "Required").body(), by_field);
    }

    #[test]
    fn an_internal_error_keeps_its_cause_to_itself() {
        let body = String::from_utf8(Error::Internal("secret".into()).body()).unwrap();
        assert!(body.contains(INTERNAL) && body.ends_with(r#""code":"internal"}"#) && !body.contains("secret"), "{body}");
    }

    #[test]
    fn every_status_has_a_code() {
        let codes = |statuses: &[u16]| statuses.iter().map(|status| Code::of(*status)).collect::<Vec<_>>();
        assert_eq!(codes(&[400, 422, 404, 405, 413, 429]), {
            use Code::{NotFound, RateLimited, TooLarge, Validation};
            [Validation, Validation, NotFound, NotFound, TooLarge, RateLimited]
        });
        // A control plane may also answer with a redirect, which is not followed.
        assert_eq!(codes(&[302, 408, 502, 503, 504]), [Code::Unavailable; 5]);
    }

    #[test]
    fn rejections_have_their_statuses() {
        let check = |rejection: Rejection, status, text: &str| {
            let failure = Error::from(rejection);
            assert_eq!((failure.status(), failure.line().as_str()), (status, text));
        };
        assert_eq!(Error::from(Rejection::NoWorker).code(), Code::NoCapacity);
        let parked = bloom_core::task::Parked::NotBefore;
        assert_eq!(Error::from(Rejection::NotReady(parked)).code(), Code::NotReady);
        assert_eq!(Error::from(Rejection::CannotCancel(bloom_core::task::Status::Dead)).code(), Code::Conflict);
        let status = bloom_core::task::Status::Leased;
        check(Rejection::WrongStatus { status, expected: "'queued'" }, 409, "Task status is 'leased', expected 'queued'");
        check(Rejection::CannotRequeue(status), 409, "Cannot requeue task with status 'leased'");
        check(Rejection::CannotCancel(status), 409, "Cannot cancel task with status 'leased'");
        check(Rejection::LeaseNotFound, 404, "Lease not found or already expired");
        check(Rejection::TaskOrLeaseNotFound, 404, "Task or lease not found");
        check(Rejection::NoUrl("w".into()), 400, "Worker \"w\" has no URL configured");
        check(Rejection::NoWorker, 503, "No available worker with free capacity");
        assert_eq!(Error::from(Rejection::UnknownDependencies(Vec::new())).status(), 400);
    }
}
