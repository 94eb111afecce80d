//! Ids in paths. What is no id names nothing: a 404, said after the body's syntax was checked.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::error::Error;
use bloom_api::values::parse_id;
use bloom_core::ids::TaskId;

/// `{id}` of a task.
pub struct TaskPath(Option<TaskId>);

impl TaskPath {
    pub fn known(&self) -> Option<TaskId> {
        self.0
    }

    pub fn id(&self) -> Result<TaskId, Error> {
        self.0.ok_or(Error::TASK_NOT_FOUND)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        Ok(Self(part(parts, state).await.and_then(|text| parse_id(&text))))
    }
}

/// `{id}` of a worker, its name.
pub struct WorkerPath(Option<String>);

impl WorkerPath {
    pub fn name(self) -> Result<String, Error> {
        self.0.ok_or(Error::WORKER_NOT_FOUND)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for WorkerPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        // No database keeps a NUL in text, so no worker has one in its name.
        Ok(Self(part(parts, state).await.filter(|name| !name.contains('\0'))))
    }
}

/// `{cid}` of a project of the control plane. It becomes a part of a path there, which it must not lead out of: parsers of URLs drop
/// control characters, and then resolve dots.
pub struct ProjectPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for ProjectPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let id = part(parts, state).await.filter(|id| !id.chars().any(char::is_control) && !is_dots(id));
        id.map(Self).ok_or(Error::fixed(404, "Project not found"))
    }
}

/// Parsers of URLs take such a part of a path for a step, also when it is percent-encoded.
pub fn is_dots(part: &str) -> bool {
    matches!(part, "." | "..")
}

/// The one variable part of the route, decoded; `None` if that is not UTF-8.
async fn part<S: Send + Sync>(parts: &mut Parts, state: &S) -> Option<String> {
    Path::<String>::from_request_parts(parts, state).await.ok().map(|Path(text)| text)
}
