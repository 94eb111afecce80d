//! Commands, their parts, and the reasons why one is rejected.

pub use super::arguments::{
    ArtifactObject, Choice, Claim, Completion, CordonChange, Grace, Holder, Loss, NewEvent, PushEnd, QueueChange, WorkerChange,
};
pub use super::audit::Requester;
pub use super::op::Op;
pub use super::operation::{Operation, Urgency, Weight};
pub use super::rejection::{OTHER_AGENT, QUOTA_IS, QUOTA_LATER, Rejection, UNKNOWN_PROJECT};
pub use super::reply::Reply;
pub use super::row_keys::{AFTER_ALL, ControlPlaneKeys, NodeKey, RowKeys};

/// An operation, from a request or a reconciler.
#[derive(Clone, Debug)]
pub struct Command<O = Op> {
    /// The operation to apply.
    pub op: O,
    /// The request that the command comes from; empty for a command of the server itself.
    pub by: Requester,
    /// The epoch of the leader that sent the command; set by reconcilers. The command is rejected if that leadership has ended.
    pub epoch: Option<i64>,
}

impl<O: Into<Op>> Command<O> {
    /// The same command for the inbox, which takes any operation.
    pub fn into_any(self) -> Command {
        Command { op: self.op.into(), by: self.by, epoch: self.epoch }
    }
}

impl<O: Operation> From<O> for Command<O> {
    fn from(op: O) -> Self {
        Self { op, by: Requester::default(), epoch: None }
    }
}
