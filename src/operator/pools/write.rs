//! Writes statuses: only what differs, and the number of busy pods at most every ten seconds.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{LOOK_AFTER_QUEUE, Memory, Pools, Problem, Readable, status};
use crate::api::is_status;
use crate::crds::WorkerPool;
use crate::crds::pool::WorkerPoolStatus;
use crate::difference::difference;
use crate::object::{Error, Identity};

/// Between two writes if only the number of busy pods has changed.
const PAUSE: Duration = Duration::from_secs(10);
/// For this long after a write, the watch may still show the object as it was before.
const WATCH_LAGS: Duration = Duration::from_secs(2);

/// The last write of an object's status.
pub struct Written {
    version: Option<String>,
    status: WorkerPoolStatus,
    at: Instant,
}

impl Memory {
    /// The status that the object has. If the watch does not show the last write yet, what was written counts.
    pub fn shown(&self, pool: &WorkerPool) -> WorkerPoolStatus {
        match &self.written {
            Some(last) if last.version != pool.metadata.resource_version && last.at.elapsed() < WATCH_LAGS => last.status.clone(),
            _ => pool.status.clone().unwrap_or_default(),
        }
    }

    /// The status that was written last, for an object that can't be read.
    pub fn last_written(&self) -> WorkerPoolStatus {
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
        let ago = memory.written.as_ref().map(|last| last.at.elapsed());
        let lags = ago.map(|ago| WATCH_LAGS.saturating_sub(ago)).filter(|lag| !lag.is_zero());
        let Some(change) = difference(&json(shown), &json(&status)) else { return Ok(lags) };
        let is_only_busy = change.as_object().is_some_and(|change| change.keys().all(|field| field == "busyReplicas"));
        if let Some(ago) = ago.filter(|ago| is_only_busy && *ago < PAUSE) {
            return Ok(Some(PAUSE.saturating_sub(ago)));
        }
        // The rest of the object may be unreadable.
        let api: Api<Readable> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        // An object that was created anew under the name has another uid, which the API server refuses to change.
        let body = Patch::Merge(json!({ "metadata": { "uid": metadata.uid }, "status": change }));
        let params = PatchParams::default();
        match self.context.writes.make("WorkerPool", "patch_status", api.patch_status(&identity.name, &params, &body)).await {
            Ok(object) => {
                memory.written = Some(Written { version: object.resource_version(), status, at: Instant::now() });
                Ok(None)
            }
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(None),
            // The rest of the object is refused, of a time when the schema was another one. Trying again would not help.
            Err(error) if is_status(&error, 422) => {
                tracing::warn!(%error, ?identity, "the status of a WorkerPool can't be written");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
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

fn json(status: &WorkerPoolStatus) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}
