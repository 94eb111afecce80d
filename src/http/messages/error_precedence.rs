//! The order of errors in calls on a task: first that the task does not exist, then that it is in the wrong state, and only then that the
//! request's content is invalid. So if the content is invalid, the task is checked first.

use serde_json::value::RawValue;

use crate::AppState;
use crate::messages::error::Error;
use crate::messages::path_ids::TaskPath;
use bloom_api::values::Id;
use bloom_api::wire::{Members, Wire};
use bloom_core::command::{Holder, Rejection};
use bloom_core::ids::LeaseId;
use bloom_core::task::TaskState;

/// The kind of call on the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A lease call or a dispatch.
    Lease,
    Heartbeat,
    Complete,
    Release,
    Events,
    Question,
}

impl AppState {
    /// The error of a request whose content is invalid: `wrong`, unless an error of the task comes first.
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
    /// Why the task in its present state rejects this call whatever its content is.
    fn objection(self, task: Option<&TaskState>, named: Option<LeaseId>) -> Option<Rejection> {
        let Some(task) = task else {
            return Some(if self == Self::Heartbeat { Rejection::TaskOrLeaseNotFound } else { Rejection::TaskNotFound });
        };
        match self {
            Self::Lease => task.check_leasable(),
            Self::Heartbeat => task.held_by(&Holder { lease: named, worker: None }).map(drop),
            Self::Release | Self::Question => task.active_lease(named).map(drop),
            Self::Events => task.check_events(&Holder { lease: named, worker: None }),
            Self::Complete if named.is_some_and(|lease| task.ended_last(lease)) => Ok(()),
            Self::Complete => task.active_lease(named).map(drop).map_err(|not_held| task.not_completable(not_held)),
        }
        .err()
    }
}
