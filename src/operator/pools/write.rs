//! Writes statuses: only differences, and the number of busy pods at most every ten seconds.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::core::ObjectMeta;
use kube::runtime::controller::Action;

use super::{LOOK_AFTER_QUEUE, Memory, Pools, Problem, status};
use crate::crds::WorkerPool;
use crate::crds::pool::WorkerPoolStatus;
use crate::difference::difference;
use crate::object::{Error, Identity};
use crate::status::{Written, json};

/// The pause between two writes if only the number of busy pods has changed.
const PAUSE: Duration = Duration::from_secs(10);

impl Memory {
    /// The current status of the object.
    pub(crate) fn shown(&self, pool: &WorkerPool) -> WorkerPoolStatus {
        Written::shown(self.written.as_ref(), &pool.metadata, pool.status.as_ref())
    }

    /// The last status that was written, for an object that can't be read.
    pub(crate) fn last_written(&self) -> WorkerPoolStatus {
        self.written.as_ref().map(|last| last.status.clone()).unwrap_or_default()
    }
}

impl Pools {
    /// Makes the object show this status. Returns when to look again, if that is needed.
    pub(super) async fn write(
        &self,
        metadata: &ObjectMeta,
        identity: &Identity,
        shown: &WorkerPoolStatus,
        status: WorkerPoolStatus,
        memory: &mut Memory,
    ) -> Result<Option<Duration>, Error> {
        let (ago, lag) = memory.written.as_ref().map(|last| (last.ago(), last.lag(metadata))).unzip();
        let Some(change) = difference(&json(shown), &json(&status)) else { return Ok(lag.flatten()) };
        let is_only_busy = change.as_object().is_some_and(|change| change.keys().all(|field| field == "busyReplicas"));
        if let Some(ago) = ago.filter(|ago| is_only_busy && *ago < PAUSE) {
            return Ok(Some(PAUSE.saturating_sub(ago)));
        }
        if let Some(version) = self.context.patch_status::<WorkerPool>("WorkerPool", identity, &change).await? {
            memory.written = Some(Written::now(version, status));
        }
        Ok(None)
    }

    /// Shows that the pool can't be served, and looks at it again later.
    pub(super) async fn report(
        &self,
        metadata: &ObjectMeta,
        before: &WorkerPoolStatus,
        problem: &Problem,
        identity: &Identity,
        memory: &mut Memory,
    ) -> Result<Action, Error> {
        let status = status::refused(metadata, before, problem, Timestamp::now().as_millisecond());
        let later = self.write(metadata, identity, before, status, memory).await?;
        Ok(Action::requeue(later.unwrap_or(LOOK_AFTER_QUEUE)))
    }
}
