//! The deletion of an object. Its run is stopped first, but the deletion does not wait for it for long.

use std::time::Duration;

use bloom_core::namespace::qualified;
use bloom_core::op;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::runtime::controller::Action;

use super::{Error, Identity, RETRY_AFTER, Tasks};
use crate::crds::LLMTask;
use crate::object::Finalizer;

/// Keeps the object until its run has ended.
pub(crate) const FINALIZER: Finalizer = Finalizer { kind: "LLMTask", name: "bloom-runtime.dev/run" };
/// How long a deletion waits for the end of the run. The worker or the database may be unavailable; then the run ends with its lease.
const PATIENCE: Duration = Duration::from_secs(60);

impl Tasks {
    /// Stops the run and removes the finalizer. `ttl_sec` is how long the object of a finished task would have been kept.
    pub(super) async fn finalize(&self, metadata: &ObjectMeta, identity: &Identity, ttl_sec: Option<i64>) -> Result<Action, Error> {
        if !FINALIZER.is_on(metadata) {
            return Ok(Action::await_change());
        }
        let waited = metadata.deletion_timestamp.as_ref().map_or(0, |at| Timestamp::now().as_second() - at.0.as_second());
        let patience = PATIENCE.saturating_sub(Duration::from_secs(u64::try_from(waited).unwrap_or(0)));
        match self.stop_run(identity, ttl_sec).await {
            Ok(true) => {}
            outcome if !patience.is_zero() => return outcome.map(|_| Action::requeue(patience)),
            outcome => tracing::warn!(?identity, ?outcome, "the run of a deleted LLMTask has not ended; it ends with its lease"),
        }
        let removed = FINALIZER.remove::<LLMTask>(&self.context, metadata).await?;
        Ok(if removed { Action::await_change() } else { Action::requeue(RETRY_AFTER) })
    }

    /// Cancels the task. Returns whether the task has ended.
    async fn stop_run(&self, identity: &Identity, ttl_sec: Option<i64>) -> Result<bool, Error> {
        let Some(row) = self.context.store.task_of_object(identity.uid).await? else { return Ok(true) };
        let mut state = row.state;
        if !state.status.is_final() && !state.cancel_requested {
            state = self.submit_or(identity, op::Cancel { task: state.id }, state).await?;
        }
        if !state.status.is_final() {
            return Ok(false);
        }
        let is_shared = row.spec.idempotency_key.as_ref().is_some_and(|key| self.is_shown_by_another(identity, key));
        if self.remains(ttl_sec, &state) == Some(Duration::ZERO) && !is_shared {
            // A task that was removed by somebody else meanwhile is no error.
            let _ = self.submit(identity, op::Delete { task: state.id }).await?;
        }
        Ok(true)
    }

    /// Whether another object uses the same idempotency key. It shows the same task, so the task must be kept.
    fn is_shown_by_another(&self, identity: &Identity, key: &str) -> bool {
        let uses_it = |task: &LLMTask| {
            let own = task.spec.idempotency_key.as_ref().map(|own| qualified(&identity.namespace, own));
            task.metadata.namespace.as_ref() == Some(&identity.namespace)
                && task.metadata.uid != Some(identity.uid.to_string())
                && own.as_deref() == Some(key)
        };
        self.objects.state().iter().any(|object| object.0.as_ref().is_ok_and(uses_it))
    }
}
