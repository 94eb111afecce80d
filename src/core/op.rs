//! The operations of the state model. Each one is declared in a file of [`decide`](super::decide), with what it needs, does and returns.

pub use super::arguments::{Claim, Completion, WorkerChange};
pub use super::decide::accounts::ResumeAccount;
pub use super::decide::api_keys::{CreateKey, Enroll, RevokeKey, RotateKey};
pub use super::decide::append_events::AppendEvents;
pub use super::decide::cancel::Cancel;
pub use super::decide::configure::Configure;
pub use super::decide::contexts::ResetContext;
pub use super::decide::control_plane::{
    RecordJob, RecordNode, RegisterAgent, RegisterProject, RemoveAgent, RemoveProject, SelectLeader, StoreMemory,
};
pub use super::decide::cordon::Cordon;
pub use super::decide::create::Create;
pub use super::decide::delete::Delete;
pub use super::decide::edit::Edit;
pub use super::decide::expire::{ClockStepped, ExpireLease};
pub use super::decide::files::{AddFile, DeleteFile, FileOfRun};
pub use super::decide::lease::Lease;
pub use super::decide::lease_end::Release;
pub use super::decide::presence::{MarkOffline, RecordLastSeen};
pub use super::decide::projects::{ClonedFor, CreateProject, DeleteProject, EditProject, NodeClone, RecordClones};
pub use super::decide::push::{EndPush, Push};
pub use super::decide::questions::{AnswerQuestion, AskPerson, NewQuestion};
pub use super::decide::queues::ChangeQueue;
pub use super::decide::quotas::SetQuota;
pub use super::decide::record_audit::RecordAudit;
pub use super::decide::reevaluate::Reevaluate;
pub use super::decide::remove_worker::RemoveWorker;
pub use super::decide::renew::{Heartbeat, RenewLeases};
pub use super::decide::requeue::Requeue;
pub use super::decide::suspend::Suspend;

use super::operation::{Operation, Urgency, Weight};
use super::reply::Reply;
use super::row_keys::RowKeys;
use super::working_set::{Halt, WorkingSet};

macro_rules! operations {
    ($($name:ident $(($boxed:ident))? = $text:literal),+ $(,)?) => {
        /// Any operation.
        #[derive(Clone, Debug)]
        pub enum Op {
            $(
                /// The operation with its arguments.
                $name(operations!(@held $name $($boxed)?)),
            )+
        }

        $(impl From<operations!(@type $name $($boxed)?)> for Op {
            fn from(operation: operations!(@type $name $($boxed)?)) -> Self {
                Self::$name(operation.into())
            }
        })+

        impl Op {
            /// The operation's name in metrics and logs.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $text,)+ }
            }
        }

        impl Operation for Op {
            type Reply = Reply;

            fn is_placement(&self) -> bool {
                match self { $(Self::$name(operation) => operation.is_placement(),)+ }
            }

            fn weight(&self) -> Weight {
                match self { $(Self::$name(operation) => operation.weight(),)+ }
            }

            fn urgency(&self) -> Urgency {
                match self { $(Self::$name(operation) => operation.urgency(),)+ }
            }

            fn add_keys(&self, keys: &mut RowKeys) {
                match self { $(Self::$name(operation) => operation.add_keys(keys),)+ }
            }

            fn decide(&self, set: &mut WorkingSet) -> Result<Reply, Halt> {
                match self { $(Self::$name(operation) => operation.decide(set).map(Reply::from),)+ }
            }
        }
    };
    (@type $name:ident) => { $name };
    (@type $name:ident $boxed:ident) => { $boxed };
    (@held $name:ident) => { $name };
    (@held $name:ident $boxed:ident) => { Box<$boxed> };
}

operations! {
    Create = "create",
    Lease = "lease",
    Push = "push",
    EndPush = "end_push",
    Claim = "claim",
    Heartbeat = "heartbeat",
    RenewLeases = "renew_leases",
    Complete(Completion) = "complete",
    Release = "release",
    AppendEvents = "append_events",
    AskPerson = "ask_person",
    AnswerQuestion = "answer_question",
    Cancel = "cancel",
    Requeue = "requeue",
    Edit = "edit",
    Suspend = "suspend",
    Delete = "delete",
    ExpireLease = "expire_lease",
    ClockStepped = "clock_stepped",
    Reevaluate = "reevaluate",
    RegisterWorker(WorkerChange) = "register_worker",
    RemoveWorker = "remove_worker",
    Cordon = "cordon",
    ResumeAccount = "resume_account",
    ResetContext = "reset_context",
    RecordLastSeen = "record_last_seen",
    MarkOffline = "mark_offline",
    ChangeQueue = "change_queue",
    Configure = "configure",
    RecordAudit = "record_audit",
    CreateKey = "create_key",
    RotateKey = "rotate_key",
    RevokeKey = "revoke_key",
    SetQuota = "set_quota",
    Enroll = "enroll",
    CreateProject = "create_project",
    EditProject = "edit_project",
    DeleteProject = "delete_project",
    RecordClones = "record_clones",
    RegisterAgent = "register_agent",
    RemoveAgent = "remove_agent",
    RecordNode = "record_node",
    RegisterProject = "register_project",
    RemoveProject = "remove_project",
    SelectLeader = "select_leader",
    StoreMemory = "store_memory",
    RecordJob = "record_job",
    AddFile = "add_file",
    DeleteFile = "delete_file",
}

impl Op {
    /// The rows that the operation always needs.
    pub fn keys(&self) -> RowKeys {
        let mut keys = RowKeys::default();
        self.add_keys(&mut keys);
        keys
    }
}
