//! What goes wrong, as a client sees it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::wire::{MAX_PROBLEMS, Problem, Problems};
use crate::core::command::Rejection;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    Text {
        status: u16,
        text: Cow<'static, str>,
    },
    /// The content of a request is wrong: 400.
    Invalid(Invalid),
    /// Come again in a second: 503.
    Later(&'static str),
    /// A fault of ours: 500. The cause is for the log only.
    Internal(String),
}

const INTERNAL: &str = "Internal error; the server's log says more under this request's id";

impl Failure {
    pub const fn fixed(status: u16, text: &'static str) -> Self {
        Self::Text { status, text: Cow::Borrowed(text) }
    }

    pub const TASK_NOT_FOUND: Self = Self::fixed(404, "Task not found");
    pub const WORKER_NOT_FOUND: Self = Self::fixed(404, "Worker not found");

    /// One field is wrong.
    pub fn field(name: &'static str, text: impl Into<String>) -> Self {
        let mut invalid = Invalid::default();
        invalid.fields.insert(name.into(), vec![text.into()]);
        Self::Invalid(invalid)
    }

    /// The same, of an object that stands in this field: its complaints become the field's, each naming the nested one.
    pub fn under(self, field: &'static str) -> Self {
        let Self::Invalid(inner) = self else { return self };
        let nested = inner.fields.into_iter().flat_map(|(name, texts)| texts.into_iter().map(move |text| format!("{name}: {text}")));
        Self::Invalid(Invalid { form: inner.form, fields: BTreeMap::from([(field.to_owned(), nested.collect())]) })
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::Text { status, .. } => *status,
            Self::Invalid(_) => 400,
            Self::Later(_) => 503,
            Self::Internal(_) => 500,
        }
    }

    /// The answer's body.
    pub fn body(&self) -> Vec<u8> {
        match self {
            Self::Text { text, .. } => to_json(&ErrorText { error: text }),
            Self::Invalid(invalid) => to_json(&ValidationError { error: invalid.clone() }),
            Self::Later(text) => to_json(&ErrorText { error: text }),
            Self::Internal(_) => to_json(&ErrorText { error: INTERNAL }),
        }
    }

    /// In one line, where an answer holds many.
    pub fn line(&self) -> String {
        match self {
            Self::Text { text, .. } => text.to_string(),
            Self::Later(text) => (*text).to_owned(),
            Self::Internal(_) => INTERNAL.to_owned(),
            Self::Invalid(invalid) => {
                let fields = invalid.fields.iter().flat_map(|(name, texts)| texts.iter().map(move |text| format!("{name}: {text}")));
                invalid.form.iter().cloned().chain(fields).collect::<Vec<_>>().join("; ")
            }
        }
    }
}

/// Bodies of answers are plain data: they can't fail to become JSON.
fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_default()
}

/// An error.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorText<'a> {
    /// What went wrong.
    pub error: &'a str,
}

/// The request's content was not accepted.
#[derive(Serialize, ToSchema)]
pub struct ValidationError {
    pub error: Invalid,
}

/// What is wrong, by top-level field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Invalid {
    /// About the request as a whole.
    #[serde(rename = "formErrors")]
    pub form: Vec<String>,
    /// About a field; a text names the nested field where it is about one.
    #[serde(rename = "fieldErrors")]
    pub fields: BTreeMap<String, Vec<String>>,
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        let mut invalid = Invalid::default();
        for (field, text) in problems.into_iter().take(MAX_PROBLEMS).map(Problem::flatten) {
            match field {
                Some(field) => invalid.fields.entry(field.into_owned()).or_default().push(text),
                None => invalid.form.push(text),
            }
        }
        Self::Invalid(invalid)
    }
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        let status = match &rejection {
            Rejection::TaskNotFound | Rejection::TaskOrLeaseNotFound | Rejection::LeaseNotFound | Rejection::WorkerNotFound => 404,
            Rejection::NotTheActiveLease(_)
            | Rejection::WrongStatus { .. }
            | Rejection::CannotRequeue(_)
            | Rejection::CannotCancel(_)
            | Rejection::NotReady(_)
            | Rejection::IdempotencyConflict => 409,
            Rejection::UnknownDependencies(_) => return Self::field("depends_on", rejection.to_string()),
            Rejection::NoUrl(_) => 400,
            Rejection::NoWorker => 503,
            // Only reconcilers' commands hang on a leadership.
            Rejection::NotLeader => return Self::Internal(rejection.to_string()),
        };
        Self::Text { status, text: rejection.to_string().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_text_or_texts_by_field() {
        assert_eq!(Failure::TASK_NOT_FOUND.body(), br#"{"error":"Task not found"}"#);
        assert_eq!(
            Failure::field("lease_id", "Required").body(),
            br#"{"error":{"formErrors":[],"fieldErrors":{"lease_id":["Required"]}}}"#
        );
    }

    #[test]
    fn rejections_have_their_statuses() {
        let check = |rejection: Rejection, status, text: &str| {
            let failure = Failure::from(rejection);
            assert_eq!((failure.status(), failure.line().as_str()), (status, text));
        };
        let status = crate::core::task::Status::Leased;
        check(Rejection::WrongStatus { status, expected: "'queued'" }, 409, "Task status is 'leased', expected 'queued'");
        check(Rejection::CannotRequeue(status), 409, "Cannot requeue task with status 'leased'");
        check(Rejection::CannotCancel(status), 409, "Cannot cancel task with status 'leased'");
        check(Rejection::LeaseNotFound, 404, "Lease not found or already expired");
        check(Rejection::TaskOrLeaseNotFound, 404, "Task or lease not found");
        check(Rejection::NoUrl("w".into()), 400, "Worker \"w\" has no URL configured");
        check(Rejection::NoWorker, 503, "No available worker with free capacity");
        assert_eq!(Failure::from(Rejection::UnknownDependencies(Vec::new())).status(), 400);
    }
}
