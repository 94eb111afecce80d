//! Contexts: the conversations of tasks.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::lists::{cursor_param, integer, parameter, text};
use super::usage::Usage;
use super::wire::one_of;
use super::words::AnyStatus;
use bloom_core::Ms;

/// The most contexts of a page: each costs a look at its tasks.
pub const MAX_CONTEXTS_PAGE: i64 = 100;

/// A context: a conversation, with its tasks.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Context<'a> {
    /// The id of the context.
    pub context_id: Cow<'a, str>,
    /// The Kubernetes namespace that the context belongs to; null: none.
    pub namespace: Option<Cow<'a, str>>,
    /// The project of its newest task; null: none.
    pub project: Option<Cow<'a, str>>,
    /// How many tasks it has.
    pub tasks: ContextTasks,
    /// Its newest task.
    pub last_task: LastTask<'a>,
    /// The session of the last completed run; null: the run reported none. After a reset, the next run begins a new one.
    pub session_id: Option<Cow<'a, str>>,
    /// The worker of that run; null: no run has completed.
    pub worker_id: Option<Cow<'a, str>>,
    /// What the runs of the counted tasks have used.
    pub usage: Usage,
    /// When the context was last reset, in milliseconds since the epoch; null: never. Runs that are leased later do not continue a session
    /// that began before the reset.
    pub reset_at: Option<Ms>,
}

/// The number of a context's tasks by status. Only its 1000 newest tasks are counted.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ContextTasks {
    /// Number of queued tasks, including those that are not ready.
    pub queued: i64,
    /// Number of tasks that a worker has: leased or running.
    pub running: i64,
    /// Number of finished tasks: completed, failed, dead or cancelled.
    pub finished: i64,
    /// Whether the context may have older tasks, which were not counted.
    pub more: bool,
}

/// The newest task of a context.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct LastTask<'a> {
    /// The id of the task.
    pub id: Uuid,
    /// Its status.
    pub status: AnyStatus,
    /// The kind of agent that it is for.
    pub agent_slug: Cow<'a, str>,
    /// When it last changed, in milliseconds since the epoch.
    pub updated_at: Ms,
}

/// The order of contexts by their newest tasks.
pub const RECENT: &str = "recent";

/// `limit`, `cursor`, the order and the filter of the list of contexts.
pub struct ContextPageParams;

const ORDER: &str = "`recent`: the contexts of the newest 2000 tasks that the caller can see, sorted by their newest tasks, all on \
    one page. Default: all contexts, sorted by id.";

impl IntoParams for ContextPageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let limit = "Maximum number of contexts per page. Any value that is not a whole number from 1 to 100 counts as 100.";
        vec![
            parameter("limit", limit, integer(1..=MAX_CONTEXTS_PAGE, MAX_CONTEXTS_PAGE), 20),
            cursor_param(r"^(=[^\x00]*)?$", "=docs-review"),
            parameter("project", "Only contexts with tasks in the project of this name.", text(), "docs"),
            parameter("order", ORDER, one_of([RECENT]), RECENT),
        ]
    }
}
