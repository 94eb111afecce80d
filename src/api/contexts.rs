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
    /// The session of the last run that has completed; null: it told of none. After a reset, the next run begins another one.
    pub session_id: Option<Cow<'a, str>>,
    /// The worker of that run; null: no run has completed.
    pub worker_id: Option<Cow<'a, str>>,
    /// What the runs of the counted tasks have used.
    pub usage: Usage,
    /// When the context was last reset, in milliseconds since the epoch; null: never. Runs whose lease is later continue no session that
    /// began before.
    pub reset_at: Option<Ms>,
}

/// The numbers of the tasks of a context: of its 1000 newest ones.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ContextTasks {
    /// Tasks that are queued, those that are not ready among them.
    pub queued: i64,
    /// Tasks that a worker has: leased or running.
    pub running: i64,
    /// Tasks that are finished: completed, failed, dead or cancelled.
    pub finished: i64,
    /// So many tasks were counted that the context may have older ones.
    pub more: bool,
}

/// The newest task of a context.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct LastTask<'a> {
    /// The id of the task.
    pub id: Uuid,
    /// How far it is.
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

const ORDER: &str = "`recent`: the contexts of the newest 2000 tasks that the caller can see, sorted by their newest tasks, all on one page. Default: all contexts, sorted by id.";

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
