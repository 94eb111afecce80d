//! The order in which a task's sub-resource complains: the task is not there, then it is not in the right state, and only then
//! that the request's content is wrong. So when the content is wrong, the task is looked at first.

use serde_json::value::RawValue;

use super::AppState;
use super::error::Error;
use super::path::TaskPath;
use bloom_api::values::Id;
use bloom_api::wire::{Members, Wire};
use bloom_core::command::Rejection;
use bloom_core::ids::LeaseId;
use bloom_core::task::{Status, TaskState};

/// What is asked of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Or a dispatch.
    Lease,
    Heartbeat,
    Complete,
    Release,
    Events,
}

impl AppState {
    /// What to answer to content that is wrong in this way.
    pub async fn most_important_error(&self, path: &TaskPath, ask: Ask, body: &RawValue, wrong: Error) -> Error {
        let state = match path.known() {
            None => None,
            Some(id) => match self.store.task_states(&[id]).await {
                Ok(states) => states.into_iter().next(),
                Err(error) => return error.into(),
            },
        };
        ask.objection(state.as_ref(), named_lease(body)).map_or(wrong, Error::from)
    }
}

/// The lease that the body names, as far as it can be read.
fn named_lease(body: &RawValue) -> Option<LeaseId> {
    let members = Members::of(body).ok()?;
    Id::read(members.get("lease_id")?).ok().map(|id| id.0)
}

impl Ask {
    /// Why the task, as it is, does not take this at all.
    fn objection(self, task: Option<&TaskState>, named: Option<LeaseId>) -> Option<Rejection> {
        let Some(task) = task else {
            return Some(if self == Self::Heartbeat { Rejection::TaskOrLeaseNotFound } else { Rejection::TaskNotFound });
        };
        if self == Self::Lease {
            return match task.parked {
                _ if task.status != Status::Queued => Some(Rejection::WrongStatus { status: task.status, expected: "'queued'" }),
                Some(parked) if parked.as_str() != "session" => Some(Rejection::NotReady(parked)),
                _ => None,
            };
        }
        if let Some(active) = &task.lease {
            return named.filter(|named| *named != active.id).map(|named| Rejection::NotTheActiveLease(named.to_string()));
        }
        let is_last = named.is_some() && task.last_lease.as_ref().map(|last| last.id) == named;
        match self {
            Self::Heartbeat if task.lease_count == 0 => Some(Rejection::TaskOrLeaseNotFound),
            Self::Complete | Self::Events if is_last => None,
            Self::Complete => Some(Rejection::WrongStatus { status: task.status, expected: "'leased' or 'running'" }),
            _ => Some(Rejection::LeaseNotFound),
        }
    }
}
