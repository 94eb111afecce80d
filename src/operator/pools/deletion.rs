//! The deletion of a pool: its pods are deleted, their agents get their grace period, and what they leave behind is removed.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::core::ObjectMeta;
use kube::runtime::controller::Action;

use super::pod::ordinal_of;
use super::{FINALIZER, Pools, RETRY_AFTER, keys};
use crate::crds::WorkerPool;
use crate::object::{Error, Identity};

/// How much longer than the pods' grace period a deletion waits for them, because their nodes may not answer.
const PATIENCE_SECONDS: i64 = 60;

impl Pools {
    pub(super) async fn finalize(&self, metadata: &ObjectMeta, identity: &Identity, grace_seconds: i64) -> Result<Action, Error> {
        if !FINALIZER.is_on(metadata) {
            return Ok(Action::await_change());
        }
        let seen = self.read(identity, "").await?;
        for (_, pod) in seen.pods.iter().filter(|(_, pod)| pod.metadata.deletion_timestamp.is_none()) {
            self.delete(identity, pod).await?;
        }
        let waited = metadata.deletion_timestamp.as_ref().map_or(0, |at| Timestamp::now().as_second() - at.0.as_second());
        let patience = grace_seconds.saturating_add(PATIENCE_SECONDS) - waited;
        if let Some(patience) = u64::try_from(patience).ok().filter(|left| *left > 0 && !seen.pods.is_empty()) {
            // The watch reports the end of a pod, so the pool is reconciled then.
            return Ok(Action::requeue(Duration::from_secs(patience)));
        }
        let keys = self.context.store.api_keys().await?;
        let prefix = super::pod::worker_prefix(identity);
        let of_workers = seen.workers.iter().filter_map(|(worker, _)| ordinal_of(&prefix, &worker.id));
        for ordinal in of_workers.chain(keys::ordinals(&keys, identity.uid)).collect::<std::collections::BTreeSet<u32>>() {
            self.forget_pod(identity, ordinal).await?;
        }
        let removed = FINALIZER.remove::<WorkerPool>(&self.context, metadata).await?;
        Ok(if removed { Action::await_change() } else { Action::requeue(RETRY_AFTER) })
    }
}
