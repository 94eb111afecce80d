//! Workers as answers show them, and their pauses, as agents tell them and answers show them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::capabilities::shown;
use super::values::{List, Moment, ShortName, Text, WorkerName};
use super::wire::body;
use super::words::{AnyDispatchMode, AnyPauseCause, AnyPauseKind, AnyWorkerStatus};
use bloom_core::pause::{self, PauseCause, PauseKind};
use bloom_core::{Ms, limits};

/// A machine that runs tasks.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Worker<'a> {
    /// The name of the worker.
    pub id: Cow<'a, str>,
    /// The same as `id`.
    pub node_id: Cow<'a, str>,
    /// The URL at which its agent listens for pushed tasks; empty = it does not.
    pub url: Cow<'a, str>,
    /// Whether it is online and takes tasks.
    pub status: AnyWorkerStatus,
    /// What it can do.
    pub capabilities: Capabilities<'a>,
    /// When it was last seen.
    pub last_heartbeat: Ms,
    /// Its addresses.
    pub ip_addrs: Cow<'a, [String]>,
    /// Number of observations, as the control plane lists it.
    pub obs_count: i64,
    /// Digest of the memory database, as the control plane lists it.
    pub db_sha: Cow<'a, str>,
    /// When it was registered.
    pub registered_at: Ms,
    /// Number of tasks that it holds now.
    pub active_leases: i64,
    /// The version of its agent.
    pub agent_version: Cow<'a, str>,
    /// Its operating system.
    pub os_info: Cow<'a, str>,
    /// How its agent was installed.
    pub install_method: Cow<'a, str>,
    /// How it gets tasks if it does not claim them.
    pub dispatch: AnyDispatchMode,
    /// Whether it is cordoned: it gets no new tasks.
    pub cordoned: bool,
    /// Whether it is drained: it gets no new tasks, and must finish or hand back those that it has.
    pub draining: bool,
    /// The id of the agent that works under its name; absent if that agent sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub instance: Option<Uuid>,
    /// Since when that agent has the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub instance_since: Option<Ms>,
    /// Why it takes no tasks, or none of some agents, although it is online; absent if nothing is paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<Pause<'a>>,
}

/// What a worker can do.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Capabilities<'a> {
    /// Whether it can run the Claude CLI.
    pub claude_cli: bool,
    /// Number of slots: how many tasks it can run at a time.
    pub max_concurrency: i64,
    /// Labels of the worker, for people.
    pub labels: Cow<'a, [String]>,
    /// The agents (slugs) that it serves; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub agents: Option<Cow<'a, [String]>>,
    /// The agents (slugs) for which it has profiles of their own; absent = it did not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub profiles: Option<Cow<'a, [String]>>,
    /// The Kubernetes namespaces whose LLMTasks it serves, and no other tasks; absent = all tasks, also those of no namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub namespaces: Option<Cow<'a, [String]>>,
    /// Whether it can clone any project; absent = it can't.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub git: bool,
    /// The projects whose tasks it serves, besides those without a project; absent = all if it has `git`, else none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub projects: Option<Cow<'a, [String]>>,
    /// What else its agent says of itself.
    #[serde(flatten)]
    #[schema(ignore)]
    pub other: BTreeMap<Cow<'a, str>, Value>,
}

impl Capabilities<'_> {
    /// The agents that it knows by name: those that it names, and those for which it has profiles.
    pub fn named_agents(&self) -> impl Iterator<Item = &str> {
        self.agents.iter().chain(&self.profiles).flat_map(|names| names.iter().map(String::as_str))
    }
}

impl<'a> Worker<'a> {
    /// A worker as the API shows it, with the number of its active leases.
    pub fn new(worker: &'a bloom_core::worker::Worker, active_leases: i64) -> Self {
        let capabilities = &worker.capabilities;
        Self {
            id: (&worker.id).into(),
            node_id: (&worker.id).into(),
            url: (&worker.url).into(),
            status: worker.shown_status().into(),
            capabilities: Capabilities {
                claude_cli: capabilities.claude_cli,
                max_concurrency: capabilities.max_concurrency,
                labels: (&capabilities.labels).into(),
                agents: capabilities.agents.as_deref().map(Cow::from),
                profiles: capabilities.profiles.as_deref().map(Cow::from),
                namespaces: capabilities.namespaces.as_deref().map(Cow::from),
                git: capabilities.git,
                projects: capabilities.projects.as_deref().map(Cow::from),
                other: shown(&capabilities.other).into_iter().map(|(name, value)| (name.into(), value)).collect(),
            },
            last_heartbeat: worker.last_seen,
            ip_addrs: (&worker.ip_addrs).into(),
            obs_count: worker.obs_count,
            db_sha: (&worker.db_sha).into(),
            registered_at: worker.registered_at,
            active_leases,
            agent_version: (&worker.agent_version).into(),
            os_info: (&worker.os_info).into(),
            install_method: (&worker.install_method).into(),
            dispatch: worker.dispatch.into(),
            cordoned: worker.cordoned,
            draining: worker.draining,
            instance: worker.instance.map(|agent| agent.id),
            instance_since: worker.instance.map(|agent| agent.since),
            pauses: worker.pauses.iter().map(Pause::new).collect(),
        }
    }

    /// What a member key sees of it: its name, its state and which tasks it serves, without addresses, accounts and the tasks of others.
    pub fn for_member(self, active_leases: i64) -> Self {
        Self {
            url: Cow::default(),
            capabilities: Capabilities { other: BTreeMap::new(), ..self.capabilities },
            ip_addrs: Cow::default(),
            obs_count: 0,
            db_sha: Cow::default(),
            active_leases,
            os_info: Cow::default(),
            install_method: Cow::default(),
            instance: None,
            instance_since: None,
            pauses: Vec::new(),
            ..self
        }
    }
}

body! {
    /// Why a worker takes no tasks, or none of some agents, although it is online.
    pub struct NewPause {
        /// What is paused: an `account`, a `profile`, or the whole `worker`.
        kind: PauseKind,
        /// The name of the account, the profile or the worker.
        name: Text<0, { limits::NAME_CHARS }>,
        /// Why it is paused.
        cause: PauseCause,
        /// When the pause began, in milliseconds since the epoch.
        since: Moment,
        /// When it ends, or when the agent tries again, in milliseconds since the epoch. A time more than an hour from now counts as one
        /// hour: report a longer pause again.
        until: Moment,
        /// For people: what is paused, why, and what to do.
        message: Text<0, { limits::PAUSE_MESSAGE_CHARS }>,
        /// The agents (slugs) whose tasks are not taken; absent = all that the worker serves.
        agents: Option<List<ShortName, 0, { limits::WORKER_AGENTS }>>,
        /// The worker that detected the cause, if it was another one: the server then does not pass the pause on to further workers.
        told_by: Option<WorkerName>,
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
            told_by: pause.told_by.map(|worker| worker.0),
            is_resumed: false,
        }
    }
}

/// Why a worker takes no tasks, or none of some agents, although it is online.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Pause<'a> {
    /// What is paused.
    pub kind: AnyPauseKind,
    /// The name of the account, the profile or the worker.
    pub name: Cow<'a, str>,
    /// Why it is paused.
    pub cause: AnyPauseCause,
    /// When it began.
    pub since: Ms,
    /// When it ends, or when the agent tries again.
    pub until: Ms,
    /// For people: what is paused, why, and what to do.
    pub message: Cow<'a, str>,
    /// The agents (slugs) whose tasks are not taken; absent = all that the worker serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub agents: Option<Cow<'a, [String]>>,
    /// The worker that detected the cause, if it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub told_by: Option<Cow<'a, str>>,
}

impl<'a> Pause<'a> {
    /// A pause as the API shows it.
    pub fn new(pause: &'a pause::Pause) -> Self {
        Self {
            kind: pause.kind.into(),
            name: (&pause.name).into(),
            cause: pause.cause.into(),
            since: pause.since,
            until: pause.until,
            message: (&pause.message).into(),
            agents: pause.agents.as_deref().map(Cow::from),
            told_by: pause.told_by.as_deref().map(Cow::from),
        }
    }
}
