//! Request bodies, besides those of tasks and completions.

use super::values::{HeaderText, HttpUrl, Id, Int, Json, List, MAX_SAFE, Moment, Name, ShortName, Text};
use super::wire::body;
use bloom_core::command::{NewEvent, WorkerChange};
use bloom_core::task::EventKind;
use bloom_core::worker::{DispatchMode, MAX_CONCURRENCY, WorkerStatus};

pub const MAX_EVENTS: usize = 500;
pub const MAX_EVENT_BYTES: usize = 256 * 1024;
/// Leases that a worker may name in one call; it has 32 at most, and may remember some more.
const MAX_NAMED_LEASES: usize = 1000;
pub const MAX_WAIT_SEC: i64 = 60;
const DEFAULT_DISPATCH_WAIT_SEC: i64 = 25;
const MAX_REASON: usize = 1000;

body! {
    /// Where the control plane is.
    pub struct NewConfig {
        membridge_server_url: HttpUrl,
        admin_key: HeaderText,
    }

    /// What the worker can do.
    pub struct NewCapabilities {
        claude_cli: Option<bool>,
        /// Tasks at a time; 1 unless given.
        max_concurrency: Option<Int<1, MAX_CONCURRENCY>>,
        labels: Option<List<Text>>,
        /// The agents it serves; none given = all.
        agents: Option<List<ShortName>>,
    }

    /// A worker that registers. What is absent keeps its value, or gets its default.
    pub struct NewWorker {
        name: ShortName,
        url: Option<Text<0, 2048>>,
        status: Option<WorkerStatus>,
        capabilities: Option<NewCapabilities>,
        ip_addrs: Option<List<Text>>,
        agent_version: Option<Text>,
        os_info: Option<Text>,
        install_method: Option<Text>,
        /// How it gets tasks when it does not claim them.
        dispatch: Option<DispatchMode>,
    }

    /// Who is to run the task, and for how long.
    pub struct NewLease {
        /// Unless named, the best worker is chosen.
        worker_id: Option<Text>,
        /// 300 unless given.
        ttl_seconds: Option<Int<1, 86_400>>,
    }

    /// Where the task is to be pushed, and how long its agent's answer is waited for.
    pub struct NewDispatch {
        /// Unless named, the best worker with a URL is chosen.
        worker_id: Option<Text>,
        /// Seconds; the run goes on afterwards.
        wait_sec: Int<0, MAX_WAIT_SEC> = Int(DEFAULT_DISPATCH_WAIT_SEC),
    }

    /// Who sends the sign of life.
    pub struct Heartbeat {
        /// The fencing token: an older lease changes nothing.
        lease_id: Option<Id>,
        worker_id: Option<Text>,
    }

    /// A task handed back unharmed.
    pub struct Release {
        lease_id: Id,
        reason: Text<0, MAX_REASON> = Text("no reason given".into()),
    }

    /// An entry of a run's live record.
    pub struct EventBody {
        /// Counts up in a lease; a number that was sent before is ignored.
        seq: Int<0, MAX_SAFE>,
        kind: EventKind,
        at: Moment,
        /// Any JSON of 256 KiB at most.
        data: Json<MAX_EVENT_BYTES>,
    }

    /// What a run tells of itself.
    pub struct NewEvents {
        lease_id: Id,
        events: List<EventBody, 0, MAX_EVENTS>,
    }

    /// A worker asks for tasks.
    pub struct Claim {
        max: Int<1, MAX_CONCURRENCY>,
        /// Seconds to wait for work.
        wait_sec: Int<0, MAX_WAIT_SEC> = Int(0),
        /// The leases it knows; claimed ones that are missing here are delivered again.
        held: Option<List<Id, 0, MAX_NAMED_LEASES>>,
    }

    /// A sign of life of all runs of a worker.
    pub struct WorkerHeartbeat {
        leases: List<Id, 0, MAX_NAMED_LEASES>,
    }

    /// The node that is to lead a project.
    pub struct LeaderSelection {
        primary_node_id: Name,
        lease_seconds: Int<1, MAX_SAFE> = Int(3600),
    }
}

impl From<NewWorker> for WorkerChange {
    fn from(worker: NewWorker) -> Self {
        let (claude_cli, max_concurrency, labels, agents) = worker
            .capabilities
            .map_or((None, None, None, None), |given| (given.claude_cli, given.max_concurrency, given.labels, given.agents));
        Self {
            id: worker.name.0,
            url: worker.url.map(|url| url.0),
            status: worker.status,
            claude_cli,
            max_concurrency: max_concurrency.map(|slots| slots.0),
            labels: labels.map(List::texts),
            agents: agents.map(List::texts),
            ip_addrs: worker.ip_addrs.map(List::texts),
            agent_version: worker.agent_version.map(|text| text.0),
            os_info: worker.os_info.map(|text| text.0),
            install_method: worker.install_method.map(|text| text.0),
            dispatch: worker.dispatch,
            obs_count: None,
            db_sha: None,
            actor: "api",
        }
    }
}

impl From<EventBody> for NewEvent {
    fn from(event: EventBody) -> Self {
        Self { seq: event.seq.0, kind: event.kind, at: event.at.0, data: event.data.0 }
    }
}
