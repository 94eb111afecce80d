//! Request bodies, besides those of tasks and completions.

use super::capabilities::{GivenCapabilities, NewCapabilities};
use super::json::Json;
use super::time_limit::PolicyChange;
use super::values::{HeaderText, HttpUrl, Id, Int, List, MAX_SAFE, Moment, Name, ShortName, Text, WorkerName};
use super::wire::body;
use super::workers::NewPause;
use bloom_core::audit::Actor;
use bloom_core::command::{NewEvent, WorkerChange};
use bloom_core::event::EventKind;
use bloom_core::limits;
use bloom_core::pause::Pause;
use bloom_core::worker::{DispatchMode, MAX_CONCURRENCY, WorkerStatus};

/// The most events in one call.
pub const MAX_EVENTS: usize = 500;
/// The most bytes of one event's data.
pub const MAX_EVENT_BYTES: usize = 256 * 1024;
/// Leases that a worker may name in one call. It holds at most 32, but may also name some that have ended.
const MAX_NAMED_LEASES: usize = 1000;
/// Contexts that a worker may ask about in one call.
pub const MAX_CONTEXTS: usize = 500;
/// The longest time that a call waits, in seconds.
pub const MAX_WAIT_SEC: i64 = 60;
const DEFAULT_DISPATCH_WAIT_SEC: i64 = 25;
const MAX_REASON: usize = 1000;

/// How long a lease lasts without a heartbeat.
pub type LeaseSeconds = Int<1, 86_400>;

/// Accounts that several workers use.
pub type Accounts = List<ShortName, 0, { limits::WORKER_ACCOUNTS }>;

body! {
    /// The address of the control plane, and the key for it.
    pub struct NewConfig {
        /// The http or https URL of the control plane.
        membridge_server_url: HttpUrl,
        /// The key for the control plane. It is stored, and never shown.
        admin_key: HeaderText,
    }

    /// Queues a task again.
    pub struct Requeue {
        /// New limits for its next runs. Default: its limits stay.
        policy: Option<PolicyChange>,
    } with no unknown fields

    /// Registers a worker. For a new worker, absent fields get their default. For a registered one, they keep their value, with two
    /// exceptions: without `pauses`, nothing is paused any more, and if `capabilities` is present, its fields `agents`, `profiles`, `git`
    /// and `projects` and its unknown fields are replaced.
    #[derive(Default)]
    pub struct NewWorker {
        /// The name of the worker, which is its id.
        name: ShortName,
        /// The URL at which its agent listens for pushed tasks; empty = it does not. Default: empty.
        url: Option<Text<0, { limits::URL_CHARS }>>,
        /// Whether it takes tasks. Default `online`.
        status: Option<WorkerStatus>,
        /// What it can do.
        capabilities: Option<GivenCapabilities>,
        /// Its addresses, for people. Default: none.
        ip_addrs: Option<List<Text<0, { limits::IP_ADDR_CHARS }>, 0, { limits::IP_ADDRS }>>,
        /// The version of its agent. Default `unknown`.
        agent_version: Option<Text<0, { limits::AGENT_VERSION_CHARS }>>,
        /// Its operating system, for people. Default: empty.
        os_info: Option<Text<0, { limits::OS_INFO_CHARS }>>,
        /// How its agent was installed, for people. Default `manual`.
        install_method: Option<Text<0, { limits::INSTALL_METHOD_CHARS }>>,
        /// How it gets tasks if it does not claim them. `manual` (default): by lease and dispatch calls; `push`: also pushed by the server.
        dispatch: Option<DispatchMode>,
        /// The id of the agent that registers: a UUID that the agent chooses, and keeps for as long as it has its runs. If another agent
        /// has the name and is not offline, the registration is refused. Default: no id; such a registration is never refused.
        instance: Option<Id>,
        /// Why it takes no tasks, or none of some agents. Absent = nothing is paused.
        pauses: List<NewPause, 0, { limits::WORKER_PAUSES }> = List::default(),
    }

    /// Which worker gets the lease, and for how long.
    pub struct NewLease {
        /// The worker that gets the lease. Default: the server chooses the best worker.
        worker_id: Option<Text>,
        /// How long the lease lasts without a heartbeat, in seconds. Default: the server's LEASE_TTL_SECONDS (300).
        ttl_seconds: Option<LeaseSeconds>,
    }

    /// Which worker the task is sent to, and how long to wait for the agent's answer.
    pub struct NewDispatch {
        /// The worker to which the task is sent. Default: the server chooses the best worker with a URL.
        worker_id: Option<Text>,
        /// Seconds to wait for the agent's answer; the run goes on afterwards.
        wait_sec: Int<0, MAX_WAIT_SEC> = Int(DEFAULT_DISPATCH_WAIT_SEC),
    }

    /// Renews the lease of a task.
    pub struct Heartbeat {
        /// The fencing token: the call is refused if another lease holds the task.
        lease_id: Option<Id>,
        /// The worker that holds the lease; an alternative to `lease_id`.
        worker_id: Option<WorkerName>,
        /// Adds the task to the answer, for an agent that knows only the task's id, from a push.
        with_task: bool = false,
    }

    /// Hands a task back without using an attempt.
    pub struct Release {
        /// The lease that holds the task.
        lease_id: Id,
        /// Why it is handed back, for the audit trail.
        reason: Text<0, MAX_REASON> = Text("no reason given".into()),
    }

    /// An event of a run.
    pub struct EventBody {
        /// Number of the event within its lease; numbers that were sent before are ignored.
        seq: Int<0, MAX_SAFE>,
        /// The kind of event.
        kind: EventKind,
        /// When it happened, in milliseconds since the epoch.
        at: Moment,
        /// Any JSON, at most 256 KiB, nested at most 64 levels deep.
        data: Json<MAX_EVENT_BYTES>,
    }

    /// Events of a run.
    pub struct NewEvents {
        /// The lease under which the task runs.
        lease_id: Id,
        /// The events, in their order: at most 500.
        events: List<EventBody, 0, MAX_EVENTS>,
    }

    /// Events of a run of a worker.
    pub struct RunEvents {
        /// The task that runs.
        task_id: Id,
        /// The lease under which it runs.
        lease_id: Id,
        /// The events, in their order: at most 500.
        events: List<EventBody, 0, MAX_EVENTS>,
    }

    /// Events of many runs of a worker.
    pub struct WorkerEvents {
        /// At most 1000 runs.
        runs: List<RunEvents, 0, MAX_NAMED_LEASES>,
    }

    /// A worker's request for tasks.
    pub struct Claim {
        /// How many tasks to claim at most. It never gets more than it has free slots.
        max: Int<1, MAX_CONCURRENCY>,
        /// Seconds to wait for work if there is none.
        wait_sec: Int<0, MAX_WAIT_SEC> = Int(0),
        /// The leases that the worker knows. Other active leases that a claim gave it are delivered again.
        held: Option<List<Id, 0, MAX_NAMED_LEASES>>,
        /// The `instance` with which the agent has registered: it gets no tasks if another agent has the name, and only its own leases are
        /// delivered to it again.
        instance: Option<Id>,
        /// The accounts of the worker that other workers also use: the answer says which of them are out of quota.
        accounts: Accounts = Accounts::default(),
    }

    /// The contexts of which a worker asks whether they are gone.
    pub struct WorkerContexts {
        /// Ids of contexts: at most 500.
        context_ids: List<Name, 0, MAX_CONTEXTS>,
    }

    /// Renews leases of a worker.
    pub struct WorkerHeartbeat {
        /// Ids of the leases to renew: at most 1000.
        leases: List<Id, 0, MAX_NAMED_LEASES>,
        /// The `instance` with which the agent has registered. The call of an agent that was replaced does not keep the worker online.
        instance: Option<Id>,
        /// The accounts of the worker that other workers also use: the answer says which of them are out of quota.
        accounts: Accounts = Accounts::default(),
    }

    /// The node that becomes the leader of a project.
    pub struct LeaderSelection {
        /// The name of the node.
        primary_node_id: Name,
        /// How long it stays the leader, in seconds.
        lease_seconds: Int<1, MAX_SAFE> = Int(3600),
    }
}

impl From<NewWorker> for WorkerChange {
    fn from(worker: NewWorker) -> Self {
        // Else an agent that serves all again, after a start with some profiles only, could not say so.
        let served = worker.capabilities.as_ref().map(|given| given.known.agents.clone().map(List::texts));
        let profiles = worker.capabilities.as_ref().map(|given| given.known.profiles.clone().map(List::texts));
        let other_capabilities = worker.capabilities.as_ref().map(|given| given.other.clone());
        // An agent that has the name now may know less than the one before.
        let git = worker.capabilities.as_ref().map(|given| given.known.git.unwrap_or_default());
        let projects = worker.capabilities.as_ref().map(|given| given.known.projects.clone().map(|names| names.map(|name| name.0)));
        let NewCapabilities { claude_cli, max_concurrency, labels, namespaces, .. } = worker.capabilities.unwrap_or_default().known;
        Self {
            id: worker.name.0,
            url: worker.url.map(|url| url.0),
            status: worker.status,
            claude_cli,
            max_concurrency: max_concurrency.map(|slots| slots.0),
            labels: labels.map(List::texts),
            agents: served,
            profiles,
            namespaces: namespaces.map(|names| names.map(|name| name.0)),
            git,
            projects,
            other_capabilities,
            ip_addrs: worker.ip_addrs.map(List::texts),
            agent_version: worker.agent_version.map(|text| text.0),
            os_info: worker.os_info.map(|text| text.0),
            install_method: worker.install_method.map(|text| text.0),
            dispatch: worker.dispatch,
            obs_count: None,
            db_sha: None,
            pauses: Some(worker.pauses.map(Pause::from)),
            instance: worker.instance.map(|id| id.0),
            actor: Actor::Api,
        }
    }
}

impl From<EventBody> for NewEvent {
    fn from(event: EventBody) -> Self {
        Self { seq: event.seq.0, kind: event.kind, at: event.at.0, data: event.data.0 }
    }
}
