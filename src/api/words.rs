//! The enums of the core in requests and answers.
//!
//! A request must use values that the server knows. An answer may be read by a client that is older than the server and does not know all
//! values, so in answers the types are `Any…`.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Ref, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::problem_texts::{expected_words, unknown_word};
use super::wire::{Problems, Wire, kind, one_of, problem};
use bloom_core::api_key::Scope;
use bloom_core::audit::{Action, EntityType};
use bloom_core::event::EventKind;
use bloom_core::pause::{PauseCause, PauseKind};
use bloom_core::project::{CloneStatus, PushMode};
use bloom_core::reconciler::ReconcilerState;
use bloom_core::task::{Format, LeaseOutcome, LeaseStatus, Outcome, Reason, Session, Status, WaitingReason};
use bloom_core::worker::{DispatchMode, WorkerStatus};

/// An enum value in an answer: a known one, or its text as received.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Word<T> {
    /// A value that this program knows.
    Known(T),
    /// A value of a newer server, as it was received.
    Other(String),
}

impl<T> From<T> for Word<T> {
    fn from(word: T) -> Self {
        Self::Known(word)
    }
}

impl<T: PartialEq> PartialEq<T> for Word<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Self::Known(word) if word == other)
    }
}

impl<T: fmt::Display> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(word) => word.fmt(f),
            Self::Other(word) => word.fmt(f),
        }
    }
}

/// The schema lists only the known values, although clients should accept others.
impl<T: PartialSchema> PartialSchema for Word<T> {
    fn schema() -> RefOr<Schema> {
        T::schema()
    }
}

impl<T: ToSchema> ToSchema for Word<T> {
    fn name() -> Cow<'static, str> {
        T::name()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
    }
}

// Aliases, because utoipa would give a field of type `Word<…>` a schema with a new name.
/// An action of the audit trail.
pub type AnyAction = Word<Action>;
/// The state of a clone of a project.
pub type AnyCloneStatus = Word<CloneStatus>;
/// How a worker gets its tasks.
pub type AnyDispatchMode = Word<DispatchMode>;
/// The kind of object that an audit entry is about.
pub type AnyEntityType = Word<EntityType>;
/// The kind of an event of a run.
pub type AnyEventKind = Word<EventKind>;
/// The form of a task's output.
pub type AnyFormat = Word<Format>;
/// The status of a lease.
pub type AnyLeaseStatus = Word<LeaseStatus>;
/// Whether a run succeeded.
pub type AnyOutcome = Word<Outcome>;
/// How a lease ended for its run.
pub type AnyLeaseOutcome = Word<LeaseOutcome>;
/// Why an account or a profile is paused.
pub type AnyPauseCause = Word<PauseCause>;
/// What is paused: an account or a profile.
pub type AnyPauseKind = Word<PauseKind>;
/// Whether commits of a run are pushed.
pub type AnyPushMode = Word<PushMode>;
/// Why an attempt failed.
pub type AnyReason = Word<Reason>;
/// Whether a reconciler does its work.
pub type AnyReconcilerState = Word<ReconcilerState>;
/// The rights of a key.
pub type AnyScope = Word<Scope>;
/// Whether a task continues the conversation of its context.
pub type AnySession = Word<Session>;
/// The status of a task.
pub type AnyStatus = Word<Status>;
/// Why a task is waiting.
pub type AnyWaitingReason = Word<WaitingReason>;
/// The status of a worker.
pub type AnyWorkerStatus = Word<WorkerStatus>;

macro_rules! words_on_the_wire {
    ($($name:ident),+ $(,)?) => {$(
        impl Wire for $name {
            fn read(raw: &RawValue) -> Result<Self, Problems> {
                let word = serde_json::from_str::<String>(raw.get());
                if let Some(value) = word.as_deref().ok().and_then(Self::parse) {
                    return Ok(value);
                }
                let known = expected_words(Self::ALL.iter().map(|value| value.as_str()));
                match word {
                    Ok(word) => problem(unknown_word(&known, &shorten(&word))),
                    Err(_) => problem(format!("Expected {known}, received {}", kind(raw))),
                }
            }

            fn describe() -> Schema {
                one_of(Self::ALL.iter().map(|value| value.as_str()))
            }

            fn refer() -> RefOr<Schema> {
                Ref::from_schema_name(<Self as ToSchema>::name()).into()
            }

            fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
                found.push((<Self as ToSchema>::name().into_owned(), <Self as PartialSchema>::schema()));
            }
        }
    )+};
}

words_on_the_wire!(
    CloneStatus,
    Action,
    DispatchMode,
    EntityType,
    EventKind,
    Format,
    LeaseOutcome,
    LeaseStatus,
    Outcome,
    PauseCause,
    PauseKind,
    PushMode,
    Reason,
    Scope,
    Session,
    Status,
    WorkerStatus,
);

/// Limits how much of an invalid value an error text repeats.
fn shorten(word: &str) -> String {
    word.chars().take(40).collect()
}
