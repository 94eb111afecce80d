//! The steps of histories.

use bloom_core::command::QueueChange;

/// Numbers select among the objects that exist when the step runs.
#[derive(Clone, Debug)]
pub enum Step {
    Create(Vec<NewTask>),
    Lease {
        task: usize,
        worker: Option<usize>,
        dispatch: bool,
    },
    /// The leader pushes a ready task to the worker.
    Push {
        worker: usize,
    },
    EndPush {
        lease: usize,
        end: usize,
    },
    Claim {
        worker: usize,
        max: usize,
        held: Option<bool>,
        /// The number of the agent.
        instance: Option<u128>,
    },
    Heartbeat {
        lease: usize,
        named: Named,
    },
    Renew {
        worker: usize,
    },
    Complete {
        lease: usize,
        named: Named,
        end: End,
    },
    /// An earlier completion is sent again.
    Repeat {
        sent: usize,
    },
    Release {
        lease: usize,
    },
    Events {
        lease: usize,
        seq: i64,
    },
    /// The run of the lease asks a person, or its question of this number is over.
    Ask {
        lease: usize,
        id: u128,
        is_over: bool,
    },
    Answer {
        task: usize,
        allow: bool,
    },
    Cancel {
        task: usize,
    },
    Requeue {
        task: usize,
    },
    Edit {
        task: usize,
        priority: Option<i64>,
        /// Milliseconds from now; `Some(None)` clears `not_before`.
        later: Option<Option<i64>>,
        /// `Some(None)` removes the label.
        label: Option<Option<bool>>,
    },
    Suspend {
        task: usize,
        suspend: bool,
    },
    Delete {
        task: usize,
    },
    Expire {
        lease: usize,
    },
    /// The leader processes the wake-ups that dead replicas left in the database.
    ProcessWakeups,
    /// As [`Expire`](Self::Expire), right after an outage.
    Grace {
        lease: usize,
    },
    Register {
        worker: usize,
        slots: i64,
        /// How many of the namespaces the worker is limited to.
        namespaces: Option<usize>,
        /// How many of the projects it names, unless it serves all.
        projects: Option<usize>,
        /// The number of the agent.
        instance: Option<u128>,
    },
    Remove {
        worker: usize,
    },
    ResumeAccount {
        worker: usize,
    },
    ResetContext {
        context: usize,
    },
    Cordon {
        worker: usize,
        change: usize,
    },
    /// Pauses, resumes or limits the queue of all tasks of the history, or all queues.
    Queue {
        all: bool,
        change: QueueChange,
    },
    Seen {
        worker: usize,
    },
    Silent {
        worker: usize,
    },
    /// Keys have one of a few names; every third one is a join token, and every fourth one has expired when time has passed.
    CreateKey {
        name: usize,
    },
    RevokeKey {
        name: usize,
    },
    Enroll {
        token: usize,
        worker: usize,
    },
    /// Projects have one of a few names.
    CreateProject {
        name: usize,
    },
    EditProject {
        project: usize,
        prefix: usize,
    },
    DeleteProject {
        project: usize,
    },
    /// The agents of these workers were asked for a clone; those of odd numbers refused.
    RecordClones {
        project: usize,
        workers: Vec<usize>,
        propagated: bool,
    },
    /// The holder of a lease uploads a file, one of a few.
    AddFile {
        lease: usize,
        name: usize,
    },
    /// A client uploads a file.
    Upload {
        owner: usize,
    },
    DeleteFile {
        file: usize,
    },
    /// A command of the control plane.
    ControlPlane {
        which: usize,
        at: usize,
    },
    /// Time passes, and the reconcilers do what is due.
    Pass {
        ms: i64,
    },
    /// The process dies after the next commit, so its wake-ups stay in the database.
    Crash,
    /// The replica stops (or starts) learning of other replicas' commits.
    Stale(bool),
    Batch(Vec<Step>),
}

#[derive(Clone, Debug)]
pub struct NewTask {
    pub context: usize,
    pub session: bool,
    pub key: Option<usize>,
    pub idempotency: Option<usize>,
    /// The Kubernetes object that it is created for.
    pub object: Option<usize>,
    pub project: Option<usize>,
    pub depends_on: Option<usize>,
    pub priority: i64,
    pub max_attempts: i64,
    pub later: bool,
    pub suspend: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Named {
    Nobody,
    Lease,
    Worker,
}

#[derive(Clone, Copy, Debug)]
pub enum End {
    Success,
    Error,
    Again,
    AgainLater,
    NoAttempt,
}
