//! The order in which a task's sub-resource complains: the task is not there, then it is not in the right state, and only then
//! that the request's content is wrong. So when the content is wrong, the task is looked at first.

use serde_json::value::RawValue;

use super::AppState;
use super::error::Error;
use super::path::TaskPath;
use bloom_api::values::Id;
use bloom_api::wire::{Members, Wire};
use bloom_core::command::{Holder, Rejection};
use bloom_core::ids::LeaseId;
use bloom_core::task::TaskState;

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
        match self {
            Self::Lease => task.check_queued().and_then(|()| match task.parked {
                Some(parked) if parked.as_str() != "session" => Err(Rejection::NotReady(parked)),
                _ => Ok(()),
            }),
            Self::Heartbeat => task.held_by(&Holder { lease: named, worker: None }).map(drop),
            Self::Release => task.active_lease(named).map(drop),
            Self::Events => task.check_events(named),
            Self::Complete if named.is_some_and(|lease| task.ended_last(lease)) => Ok(()),
            Self::Complete => task.active_lease(named).map(drop).map_err(|not_held| task.not_completable(not_held)),
        }
        .err()
    }
}
