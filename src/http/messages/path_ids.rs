//! Ids in paths. An invalid id is a 404, which is returned after the check of the body's syntax.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use uuid::Uuid;

use crate::AppState;
use crate::identity::ownership;
use crate::messages::error::Error;
use crate::middleware::Caller;
use bloom_api::values::{parse_id, text_problem};
use bloom_core::api_key::is_key_name;
use bloom_core::command::Rejection;
use bloom_core::ids::TaskId;
use bloom_core::limits::NAME_CHARS;

/// `{id}` of a task, or the uid of the Kubernetes object that it was created for. For a submit key, other keys' tasks do not exist.
pub struct TaskPath(Option<TaskId>);

impl TaskPath {
    pub fn known(&self) -> Option<TaskId> {
        self.0
    }

    pub fn id(&self) -> Result<TaskId, Error> {
        self.0.ok_or(Error::TASK_NOT_FOUND)
    }
}

impl FromRequestParts<AppState> for TaskPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Some(id) = part(parts, app).await.and_then(|text| parse_id(&text)) else { return Ok(Self(None)) };
        // Ids of tasks are UUIDs of version 7, uids of objects are not.
        let of_object = if id.get_version_num() == 7 { None } else { app.store.task_id_of_object(id).await? };
        let id = of_object.unwrap_or(id);
        Ok(Self(ownership::tasks(app, &caller, vec![id]).await?.pop()))
    }
}

/// `{id}` of a worker, its name. A worker's key may name only its own worker.
pub(crate) struct WorkerPath(Option<String>);

impl WorkerPath {
    pub(crate) fn name(self) -> Result<String, Error> {
        self.0.ok_or(Error::WORKER_NOT_FOUND)
    }
}

impl FromRequestParts<AppState> for WorkerPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let name = part(parts, app).await;
        ownership::worker(app, &caller, name.as_deref().unwrap_or_default())?;
        // No worker has a NUL in its name, and PostgreSQL would refuse the query.
        Ok(Self(name.filter(|name| !name.contains('\0'))))
    }
}

/// `{id}` of a named key, its name.
pub(crate) struct KeyPath(Option<String>);

impl KeyPath {
    pub(crate) fn name(self) -> Result<String, Error> {
        self.0.ok_or(Rejection::KeyNotFound.into())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for KeyPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        Ok(Self(part(parts, state).await.filter(|name| is_key_name(name))))
    }
}

/// `{agent_slug}` of a queue. Every slug that a task may have has a queue.
pub(crate) struct QueuePath(Option<String>);

impl QueuePath {
    pub(crate) fn agent_slug(self) -> Result<String, Error> {
        self.0.ok_or(Error::fixed(404, "No agent has this slug: an agent_slug has 1 to 128 characters, and no NUL"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        Ok(Self(part(parts, state).await.filter(|slug| text_problem(slug, 1, NAME_CHARS).is_none())))
    }
}

/// `{name}` of an account.
pub(crate) struct AccountPath(Option<String>);

impl AccountPath {
    pub(crate) fn name(self) -> Result<String, Error> {
        self.0.ok_or(Error::fixed(404, "No account has this name: a name has 1 to 128 characters, and no NUL"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AccountPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        Ok(Self(part(parts, state).await.filter(|name| text_problem(name, 1, NAME_CHARS).is_none())))
    }
}

/// `{context_id}`. A submit or member key may leave out the prefix of its own names, as it may when it creates tasks.
pub(crate) struct ContextPath(Option<String>);

impl ContextPath {
    pub(crate) async fn id(self, app: &AppState, caller: &Caller) -> Result<String, Error> {
        ownership::context(app, caller, self.0.ok_or(Error::CONTEXT_NOT_FOUND)?).await
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ContextPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        Ok(Self(part(parts, state).await.filter(|id| !id.contains('\0'))))
    }
}

/// `{cid}` of a project of the control plane. It becomes a segment of a URL there and must not lead to another path: URL parsers drop
/// control characters and then resolve dots.
pub(crate) struct ProjectPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for ProjectPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let id = part(parts, state).await.filter(|id| !id.chars().any(char::is_control) && !is_dots(id));
        id.map(Self).ok_or(Error::fixed(404, "Project not found"))
    }
}

/// `{id}` of a project of this server.
pub(crate) struct ProjectId(Option<Uuid>);

impl ProjectId {
    pub(crate) fn id(&self) -> Result<Uuid, Error> {
        self.0.ok_or(Rejection::ProjectNotFound.into())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ProjectId {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        Ok(Self(part(parts, state).await.and_then(|text| parse_id(&text))))
    }
}

/// Whether URL parsers resolve this path segment instead of keeping it. They do so even if it is percent-encoded.
pub(crate) fn is_dots(part: &str) -> bool {
    matches!(part, "." | "..")
}

/// The only parameter of the route's path, decoded; `None` if it is not UTF-8.
async fn part<S: Send + Sync>(parts: &mut Parts, state: &S) -> Option<String> {
    Path::<String>::from_request_parts(parts, state).await.ok().map(|Path(text)| text)
}
