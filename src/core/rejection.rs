//! Why an operation is refused.

use std::fmt;

use super::Ms;
use super::agent_queue::{Closed, MAX_QUEUES};
use super::api_key::{MAX_KEYS, MAX_POOL_KEYS, MAX_POOL_KEYS_OF_NAMESPACE, Scope};
use super::control_plane::{MAX_AGENTS, MAX_NODES};
use super::file::{FileId, MAX_FILE_BYTES_OF_TASK, MAX_FILES_OF_LEASE, MAX_UNUSED_BYTES, MAX_UNUSED_UPLOADS};
use super::ids::{TaskId, WorkerId};
use super::limits::{TASK_LABELS, WORKER_AGENTS};
use super::namespace::RESERVED;
use super::project::{MAX_PROJECT_NODES, MAX_PROJECTS};
use super::task::{Parked, Status};

/// The beginning of the error for an agent whose name another agent already has. Agents recognize this text.
pub const OTHER_AGENT: &str = "Another agent runs as worker";

/// The beginning of the error for a task whose project does not exist; the project's name or id follows in quotes. The command line adds
/// suggestions.
pub const UNKNOWN_PROJECT: &str = "No project has the name or id";

/// Why a command was rejected. A rejected command has changed nothing. The texts are part of the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Rejection {
    /// No task has this id, or it was removed.
    TaskNotFound,
    /// No task has this id, or no lease was ever made for it.
    TaskOrLeaseNotFound,
    /// The task has no active lease.
    LeaseNotFound,
    /// No worker has this name.
    WorkerNotFound,
    /// Another lease holds the task, or another worker has the named lease. The text is the lease or the worker that the call named.
    NotTheActiveLease(String),
    /// The call needs a task in another state.
    WrongStatus {
        /// The state of the task.
        status: Status,
        /// The states that the call needs, as words in quotes.
        expected: &'static str,
    },
    /// A task in this state can't be queued again: it has not ended, or was completed.
    CannotRequeue(Status),
    /// The task depends on one that did not complete or was removed, so it would be cancelled as soon as it is requeued.
    CannotRequeueBefore {
        /// The task that it depends on.
        dependency: TaskId,
        /// Whether that task was removed, so that its outcome is unknown.
        is_removed: bool,
    },
    /// A task in this state can't be cancelled: it has ended.
    CannotCancel(Status),
    /// A task in this state can't be edited: it is not queued.
    CannotEdit(Status),
    /// A task in this state can't be deleted: it has not ended.
    CannotDelete(Status),
    /// A task in this state can't be suspended: it has ended.
    CannotSuspend(Status),
    /// A task in this state can't be resumed: it has ended.
    CannotResume(Status),
    /// The question can't be answered, or there is none.
    CannotAnswer {
        /// The state of the task.
        status: Status,
        /// What prevents the answer, for the end of a sentence.
        why: &'static str,
    },
    /// The number of answers is wrong. A run that asks questions in words needs one answer for each. A permission request takes none, and
    /// neither does a denial.
    WrongAnswers {
        /// How many questions in words the run asks; 0 if it asks for permission to use a tool.
        asked: usize,
        /// How many answers in words the call gives.
        given: usize,
        /// Whether the call allows what is asked; `false` means that it denies it.
        allow: bool,
    },
    /// The task would have this many labels, which is more than the limit.
    TooManyLabels(usize),
    /// The task is parked or suspended, so that no lease call, dispatch call or push can have it.
    NotReady(Parked),
    /// The task's queue is paused, or has as many leases as its limit allows.
    QueueClosed(Closed),
    /// The change would pause or limit more queues than the limit allows.
    TooManyQueues,
    /// No worker that may run the task has a free slot, or the named worker may not run it or is full.
    NoWorker,
    /// The worker has no URL to push to.
    NoUrl(WorkerId),
    /// The task names these dependencies, which do not exist.
    UnknownDependencies(Vec<TaskId>),
    /// Another task was created with this idempotency key.
    IdempotencyConflict(String),
    /// This field has a name that belongs to another Kubernetes namespace, or to any namespace although the task belongs to none.
    ReservedName(&'static str),
    /// The worker would serve this many combinations of a namespace, an agent and a project, which is more than the limit.
    TooManyCombinations(usize),
    /// No project has this name or id.
    UnknownProject(String),
    /// No named key has this name.
    KeyNotFound,
    /// This key can't be rotated; the text says what to do instead.
    NotRotated(&'static str),
    /// A named key already has this name.
    KeyExists(String),
    /// The number of named keys, without those of WorkerPools, has reached its limit.
    TooManyKeys,
    /// The WorkerPools of all Kubernetes namespaces together have reached their limit of keys.
    TooManyPoolKeys,
    /// The WorkerPools of this Kubernetes namespace have reached their limit of keys.
    TooManyPoolKeysOf(String),
    /// A worker of this name exists, or has a key.
    WorkerTaken(WorkerId),
    /// Another agent already works under this name.
    OtherAgent {
        /// The name that both agents want.
        worker: WorkerId,
        /// How long ago the other agent was last seen, in ms.
        seen_ago: Ms,
    },
    /// The join token was used, was revoked or has expired since the request was admitted.
    JoinTokenGone,
    /// The join token is for another worker.
    JoinTokenFor(WorkerId),
    /// The object with the output may soon be removed, because no artifact has referred to it for too long.
    ObjectTooOld,
    /// No artifact that can be deleted has this id.
    ArtifactNotFound,
    /// The artifact is the output of a run, and is only removed with its task.
    ArtifactOfTask,
    /// A task uses the upload.
    ArtifactInUse,
    /// The upload took too long.
    UploadTooOld,
    /// The lease has already uploaded the maximum number of files.
    TooManyFiles,
    /// The files of the task would exceed their total size limit.
    TooManyFileBytes,
    /// There are too many uploads that no task uses.
    TooManyUploads,
    /// The key of the request was revoked since the request was admitted.
    KeyGone,
    /// The attempts since the task was created or requeued have cost this many US dollars, and the new budget is not higher.
    BudgetIsSpent(f64),
    /// Only submit keys have quotas.
    NoQuotaFor(Scope),
    /// The key's open tasks have reached its quota, or would exceed it.
    QuotaOfOpenTasks {
        /// The quota.
        most: i64,
        /// The key's current open tasks, without those of the call.
        open: i64,
    },
    /// The key's stored bytes have reached its quota, or would exceed it.
    QuotaOfStoredBytes {
        /// The quota, in bytes.
        most: i64,
        /// The bytes that the key stores now, without what the call adds.
        stored: i64,
    },
    /// The call alone creates more tasks than the quota allows in a minute.
    QuotaOfOneCall {
        /// The quota, in tasks per minute.
        most: i64,
    },
    /// The tasks that the key created in the last minute have reached its quota.
    QuotaOfTasksPerMinute {
        /// The quota, in tasks per minute.
        most: i64,
        /// How long until there is room for the call, in ms.
        wait_ms: Ms,
    },
    /// The call is limited by the quota of the key that created the task; the inner rejection says why.
    QuotaOfCreator(String, Box<Rejection>),
    /// These files do not exist, or belong to somebody else.
    UnknownInputs(Vec<FileId>),
    /// Two inputs exclude each other: their paths are equal, or one is a directory of the other.
    InputsClash(String, String),
    /// No project has this id. (In the control plane: no project has this name or canonical id.)
    ProjectNotFound,
    /// A project already has this name.
    ProjectExists(String),
    /// The number of projects has reached its limit.
    TooManyProjects,
    /// The project has reached its limit of workers with a recorded clone.
    TooManyProjectNodes,
    /// No agent with this name is registered at the control plane.
    AgentNotFound,
    /// An agent with this name is already registered at the control plane.
    AgentExists(String),
    /// The number of agents that are registered at the control plane has reached its limit.
    TooManyAgents,
    /// The project of the control plane has reached its limit of nodes.
    TooManyNodes,
    /// Neither a node of the project nor a registered agent has this name, so it can't lead the project.
    NodeNotFound(String),
    /// The node does not lead the project.
    NotPrimary {
        /// The node that wanted to act as the leader.
        node: String,
        /// The node that leads; `None` if no node leads at present.
        primary: Option<String>,
    },
    /// The project has a new leader since the caller read it.
    TermChanged {
        /// The term that the caller read.
        seen: i64,
        /// The term of the project when the command was decided.
        now: i64,
    },
    /// The leadership term under which the command was sent has ended.
    NotLeader,
}

/// How the text of a rejection for want of quota begins; clients say then what to do.
pub const QUOTA_IS: &str = "The quota of this key is";
/// What it says before the time if there will be room by itself.
pub const QUOTA_LATER: &str = "try again in";

impl Rejection {
    /// Whether the rejection is due to a quota.
    pub fn is_of_quota(&self) -> bool {
        matches!(
            self,
            Self::QuotaOfOpenTasks { .. } | Self::QuotaOfStoredBytes { .. } | Self::QuotaOfTasksPerMinute { .. } | Self::QuotaOfCreator(..)
        )
    }

    /// Seconds after which the call may succeed, if that is known.
    pub fn retry_after_sec(&self) -> Option<Ms> {
        match self {
            Self::QuotaOfTasksPerMinute { wait_ms, .. } => Some(wait_sec(*wait_ms)),
            Self::QuotaOfCreator(_, refusal) => refusal.retry_after_sec(),
            _ => None,
        }
    }
}

fn wait_sec(ms: Ms) -> Ms {
    (ms + 999) / 1000
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TaskNotFound => f.write_str("Task not found"),
            Self::TaskOrLeaseNotFound => f.write_str("Task or lease not found"),
            Self::LeaseNotFound => f.write_str("Lease not found or already expired"),
            Self::WorkerNotFound => f.write_str("Worker not found"),
            Self::NotTheActiveLease(named) => write!(f, "Lease '{named}' is not the task's active lease"),
            Self::WrongStatus { status, expected } => write!(f, "Task status is '{status}', expected {expected}"),
            Self::CannotRequeue(status) => write!(f, "Cannot requeue task with status '{status}'"),
            Self::CannotRequeueBefore { dependency, is_removed: false } => {
                write!(f, "Cannot requeue it: it depends on task {dependency}, which did not complete; requeue that one first")
            }
            Self::CannotRequeueBefore { dependency, is_removed: true } => {
                write!(f, "Cannot requeue it: it depends on task {dependency}, which was removed; submit this task again without it")
            }
            Self::CannotCancel(status) => write!(f, "Cannot cancel task with status '{status}'"),
            Self::CannotEdit(status) => write!(f, "Cannot edit task with status '{status}': only a queued task can be edited"),
            Self::CannotDelete(status) => write!(f, "Cannot delete task with status '{status}': cancel it first"),
            Self::CannotSuspend(status) => write!(f, "Cannot suspend task with status '{status}'"),
            Self::CannotResume(status) => write!(f, "Cannot resume task with status '{status}'"),
            Self::CannotAnswer { status, why } => write!(f, "Cannot answer task with status '{status}': {why}"),
            Self::WrongAnswers { given, allow: false, .. } => write!(f, "{given} given, but a denial has none: say why in message"),
            Self::WrongAnswers { asked: 0, given, .. } => {
                write!(f, "{given} given, but the run asks whether it may use a tool: only allow or deny it")
            }
            Self::WrongAnswers { asked, given, .. } => {
                write!(f, "{given} given, but the run asks {asked} questions in words: give one answer for each, or deny them")
            }
            Self::TooManyLabels(count) => write!(f, "The task would have {count} labels; at most {TASK_LABELS} are allowed"),
            Self::NotReady(parked) => write!(f, "Task is not ready: {parked}"),
            Self::QueueClosed(closed) => write!(f, "Task is not ready: {closed}"),
            Self::TooManyQueues => write!(
                f,
                "{MAX_QUEUES} queues are paused or limited already, which is the most: resume one, or remove its limit, and try again"
            ),
            Self::NoWorker => f.write_str("No available worker with free capacity"),
            Self::NoUrl(worker) => write!(f, "Worker \"{worker}\" has no URL configured"),
            Self::UnknownDependencies(ids) => {
                f.write_str("unknown task")?;
                ids.iter().try_for_each(|id| write!(f, " {id}"))
            }
            Self::IdempotencyConflict(key) => {
                write!(f, "Idempotency key '{key}' was used for another task: context_id, agent_slug or prompt differ")
            }
            Self::ReservedName(_) => {
                write!(f, "String must not begin with '{RESERVED}', which is kept for the names of tasks in Kubernetes namespaces")
            }
            Self::TooManyCombinations(count) => write!(
                f,
                "The worker would serve {count} combinations of a namespace, an agent and a project; at most {WORKER_AGENTS} are allowed: name \
                 fewer of one of them, or no agents, which is all of them"
            ),
            Self::UnknownProject(named) => {
                write!(f, "{UNKNOWN_PROJECT} '{named}': create it, or name one that the list of projects shows")
            }
            Self::KeyNotFound => f.write_str("Key not found"),
            Self::KeyExists(name) => write!(f, "A key '{name}' exists: revoke it first, or choose another name"),
            Self::TooManyKeys => {
                write!(f, "There are {MAX_KEYS} keys besides those of WorkerPools, which is the limit: revoke some that are no longer used")
            }
            Self::TooManyPoolKeys => write!(
                f,
                "The WorkerPools of all namespaces have {MAX_POOL_KEYS} keys, which is the limit of this server: scale some down, or delete \
                 those that are no longer used"
            ),
            Self::TooManyPoolKeysOf(namespace) => write!(
                f,
                "The WorkerPools of the namespace '{namespace}' have {MAX_POOL_KEYS_OF_NAMESPACE} keys, which is the limit of a namespace: \
                 scale some down, or delete those that are no longer used"
            ),
            Self::WorkerTaken(worker) => {
                write!(f, "A worker '{worker}' or a key of it exists: create a join token for this worker (--worker {worker})")
            }
            Self::OtherAgent { worker, seen_ago } => write!(
                f,
                "{OTHER_AGENT} '{worker}', seen {} s ago: give one of the two another name (--name). If that agent is gone for good, its \
                 name is free once the server shows the worker as offline, or at once after: bloom-runtime worker remove {worker}",
                seen_ago / 1000
            ),
            Self::JoinTokenGone => f.write_str("The join token was used, was revoked or has expired: create another one"),
            Self::JoinTokenFor(worker) => {
                write!(f, "This join token enrolls only the worker '{worker}': start its agent with --name {worker}")
            }
            Self::ObjectTooOld => {
                f.write_str("It took too long to complete the task after its output was stored: send the completion again")
            }
            Self::ArtifactNotFound => f.write_str("Artifact not found"),
            Self::ArtifactOfTask => f.write_str("The artifact belongs to its task, and is removed with it: delete the task"),
            Self::ArtifactInUse => f.write_str("A task uses the artifact as an input: delete its tasks first"),
            Self::UploadTooOld => f.write_str("It took too long to store the file: send it again"),
            Self::TooManyFiles => write!(f, "The lease has uploaded {MAX_FILES_OF_LEASE} files, which is the most"),
            Self::TooManyFileBytes => {
                write!(f, "The files of the task would have more than {} MiB together, which is the most", MAX_FILE_BYTES_OF_TASK >> 20)
            }
            Self::TooManyUploads => write!(
                f,
                "There are {MAX_UNUSED_UPLOADS} uploads that no task uses, or {} GiB of them, which is the most: create the tasks that need \
                 them, or delete some (DELETE artifacts/ID)",
                MAX_UNUSED_BYTES >> 30
            ),
            Self::KeyGone => f.write_str("The key was revoked"),
            Self::BudgetIsSpent(cost) => {
                write!(f, "The attempts of the task have cost {cost:.4} US dollars already: give a budget of more, or 0 for no limit")
            }
            Self::NotRotated(why) => f.write_str(why),
            Self::NoQuotaFor(scope) => {
                write!(f, "A quota is for keys of the scopes 'submit' and 'member', and this key has the scope '{scope}'")
            }
            Self::QuotaOfOpenTasks { most, open: 0 } => {
                write!(f, "{QUOTA_IS} {most} open tasks, and this call alone creates more: send them in several calls")
            }
            Self::QuotaOfOpenTasks { most, open } => {
                write!(f, "{QUOTA_IS} {most} open tasks, and {open} are open: wait until some end, or cancel some")
            }
            Self::QuotaOfStoredBytes { most, stored } => write!(
                f,
                "{QUOTA_IS} {most} stored bytes, and {stored} are stored: delete finished tasks, or uploads that no task \
                 uses (what is deleted counts for a minute more)"
            ),
            Self::QuotaOfOneCall { most } => {
                write!(f, "{QUOTA_IS} {most} tasks a minute, and this call alone creates more: send them in several calls")
            }
            Self::QuotaOfTasksPerMinute { most, wait_ms } => {
                write!(f, "{QUOTA_IS} {most} tasks a minute: {QUOTA_LATER} {} s", wait_sec(*wait_ms))
            }
            Self::QuotaOfCreator(key, refusal) => {
                f.write_str(&refusal.to_string().replacen("this key", &format!("the key '{key}', which created the task,"), 1))
            }
            Self::InputsClash(one, other) if one == other => write!(f, "two inputs have the path '{one}': give each another path"),
            Self::InputsClash(one, other) => write!(f, "the path '{one}' is a directory of '{other}': give each input another path"),
            Self::UnknownInputs(ids) => {
                f.write_str("unknown upload")?;
                ids.iter().try_for_each(|id| write!(f, " {id}"))
            }
            Self::ProjectNotFound => f.write_str("Project not found"),
            Self::ProjectExists(name) => write!(f, "A project '{name}' exists: delete it first, or choose another name"),
            Self::TooManyProjects => {
                write!(f, "There are {MAX_PROJECTS} projects, which is the limit: delete some that are no longer used")
            }
            Self::TooManyProjectNodes => write!(
                f,
                "The project was cloned to {MAX_PROJECT_NODES} workers, which is the limit: delete it and create it again to forget those \
                 that are gone"
            ),
            Self::AgentNotFound => f.write_str("Agent not found"),
            Self::AgentExists(name) => write!(f, "Agent '{name}' is registered already: remove it first, or choose another name"),
            Self::TooManyAgents => write!(f, "{MAX_AGENTS} agents are registered, which is the most: remove those that are gone"),
            Self::TooManyNodes => write!(f, "The project has {MAX_NODES} nodes, which is the most"),
            Self::NodeNotFound(node) => write!(f, "Node '{node}' is neither a node of this project nor a registered agent"),
            Self::NotPrimary { node, primary: Some(primary) } => {
                write!(f, "Node '{node}' does not lead this project: '{primary}' does; only the leader may push")
            }
            Self::NotPrimary { node, primary: None } => write!(
                f,
                "Node '{node}' does not lead this project, and nobody does now: select a leader (POST /projects/ID/leadership/select)"
            ),
            Self::TermChanged { seen, now } => write!(f, "The leadership of this project changed: its term is {now}, not {seen}"),
            Self::NotLeader => f.write_str("Leadership is over"),
        }
    }
}
