//! Bodies of error answers.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::invalid::Invalid;
use super::words::Word;

/// An error answer.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorText<'a> {
    /// What went wrong, for people: a text, or texts by field if the content of the request is not valid.
    pub error: Cause<'a>,
    /// The kind of error, for programs. A later version may add words.
    pub code: AnyCode,
}

/// What went wrong: a text, or texts by field.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ErrorCause)]
pub enum Cause<'a> {
    /// What went wrong, in one text.
    Text(Cow<'a, str>),
    /// What is wrong with the content of the request, by field.
    Invalid(Cow<'a, Invalid>),
}

/// The kind of an error: a stable word, which stands beside the text in every error answer.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ErrorCode)]
pub enum Code {
    /// The request is not valid. The same request will be refused again.
    Validation,
    /// The route, or what it names, does not exist.
    NotFound,
    /// The present state of the task, worker or key does not allow the call.
    Conflict,
    /// The task is queued, but something keeps it from running now.
    NotReady,
    /// No worker that may run the task has a free slot.
    NoCapacity,
    /// The key is missing or wrong.
    Unauthorized,
    /// The key does not allow the call, or the request comes from the wrong place.
    Forbidden,
    /// The client sent too many requests. Try again after `Retry-After`.
    RateLimited,
    /// The body, or the output in it, is too large.
    TooLarge,
    /// The server, or a program that it calls, can't answer now. Try again.
    Unavailable,
    /// An error of the server. Its log has the cause under the request id.
    Internal,
}

/// The beginning of the text about a key whose scope does not allow the call; an agent tells then how to create a key that does.
pub const WRONG_SCOPE: &str = "This key has the scope";

/// The beginning of the text about a key of another worker; an agent tells then how to create one of its own.
pub const OTHER_WORKER: &str = "This key is for the worker";

/// Not `Code`, so that clients accept the words of newer servers.
pub type AnyCode = Word<Code>;

impl Code {
    /// The code of an error of which nothing but its status is known.
    pub const fn of(status: u16) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 | 405 | 410 => Self::NotFound,
            409 => Self::Conflict,
            413 => Self::TooLarge,
            429 => Self::RateLimited,
            500 => Self::Internal,
            400..=499 if status != 408 => Self::Validation,
            _ => Self::Unavailable,
        }
    }
}

impl<'a> ErrorText<'a> {
    /// An error with a text for people, and the code by which programs tell it from others.
    pub fn new(code: Code, text: impl Into<Cow<'a, str>>) -> Self {
        Self { error: Cause::Text(text.into()), code: code.into() }
    }
}

impl<'a> From<&'a Invalid> for ErrorText<'a> {
    fn from(invalid: &'a Invalid) -> Self {
        Self { error: Cause::Invalid(Cow::Borrowed(invalid)), code: Code::Validation.into() }
    }
}
