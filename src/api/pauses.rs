//! Pauses of workers, as agents tell them and answers show them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::values::{List, Moment, ShortName, Text};
use super::wire::body;
use super::words::{AnyPauseCause, AnyPauseKind};
use bloom_core::pause::{self, PauseCause, PauseKind};
use bloom_core::{Ms, limits};

body! {
    /// Why a worker takes no tasks, or none of some agents, although it is there.
    pub struct NewPause {
        /// What is paused: an `account`, a `profile`, or the whole `worker`.
        kind: PauseKind,
        /// The name of the account, the profile or the worker.
        name: Text<0, { limits::NAME_CHARS }>,
        /// Why it is paused.
        cause: PauseCause,
        /// Since when, in milliseconds since the epoch.
        since: Moment,
        /// When it ends, or when the agent tries again, in milliseconds since the epoch.
        until: Moment,
        /// For people: what is paused, why, and what to do.
        message: Text<0, { limits::PAUSE_MESSAGE_CHARS }>,
        /// The agents (slugs) whose tasks are not taken; absent = all.
        agents: Option<List<ShortName, 0, { limits::WORKER_AGENTS }>>,
    }
}

impl From<NewPause> for pause::Pause {
    fn from(pause: NewPause) -> Self {
        Self {
            kind: pause.kind,
            name: pause.name.0,
            cause: pause.cause,
            since: pause.since.0,
            until: pause.until.0,
            message: pause.message.0,
            agents: pause.agents.map(List::texts),
        }
    }
}

/// Why a worker takes no tasks, or none of some agents, although it is there.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Pause<'a> {
    /// What is paused.
    pub kind: AnyPauseKind,
    /// The name of the account, the profile or the worker.
    pub name: Cow<'a, str>,
    /// Why it is paused.
    pub cause: AnyPauseCause,
    /// Since when.
    pub since: Ms,
    /// When it ends, or when the agent tries again.
    pub until: Ms,
    /// For people: what is paused, why, and what to do.
    pub message: Cow<'a, str>,
    /// The agents (slugs) whose tasks are not taken; absent = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub agents: Option<Cow<'a, [String]>>,
}

impl<'a> Pause<'a> {
    pub fn new(pause: &'a pause::Pause) -> Self {
        Self {
            kind: pause.kind.into(),
            name: (&pause.name).into(),
            cause: pause.cause.into(),
            since: pause.since,
            until: pause.until,
            message: (&pause.message).into(),
            agents: pause.agents.as_deref().map(Cow::from),
        }
    }
}
