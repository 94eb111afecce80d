//! The end of an object: its run is stopped first, but never for long.

use std::time::Duration;

use bloom_core::op;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use serde_json::json;

use super::{Error, Identity, RETRY_AFTER, Tasks};
use crate::api::is_status;
use crate::crds::LLMTask;

/// Its object stays until the run has ended.
pub const FINALIZER: &str = "bloom-runtime.dev/run";
/// How long a deletion waits for the end of the run. Its worker may be gone, or the database; the run then ends with its lease.
const PATIENCE: Duration = Duration::from_secs(60);

impl Tasks {
    /// Gives the object its finalizer. Returns whether it has it: not if it was deleted meanwhile.
    pub(super) async fn hold(&self, task: &LLMTask, identity: &Identity) -> Result<bool, Error> {
        let finalizers = task.metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|name| name == FINALIZER) {
            return Ok(true);
        }
        let finalizers = finalizers.into_iter().chain([FINALIZER.to_owned()]).collect();
        self.set_finalizers(task, identity, finalizers, "add_finalizer").await
    }

    pub(super) async fn finalize(&self, task: &LLMTask, identity: &Identity) -> Result<Action, Error> {
        let finalizers = task.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            return Ok(Action::await_change());
        }
        let waited = task.metadata.deletion_timestamp.as_ref().map_or(0, |at| Timestamp::now().as_second() - at.0.as_second());
        let patience = PATIENCE.saturating_sub(Duration::from_secs(u64::try_from(waited).unwrap_or(0)));
        match self.stop_run(task, identity).await {
            Ok(true) => {}
            outcome if !patience.is_zero() => return outcome.map(|_| Action::requeue(patience)),
            outcome => tracing::warn!(?identity, ?outcome, "the run of a deleted LLMTask has not ended; it ends with its lease"),
        }
        let others = finalizers.into_iter().filter(|name| name != FINALIZER).collect();
        let removed = self.set_finalizers(task, identity, others, "remove_finalizer").await?;
        Ok(if removed { Action::await_change() } else { Action::requeue(RETRY_AFTER) })
    }

    /// Cancels the task. Returns whether it has ended.
    async fn stop_run(&self, task: &LLMTask, identity: &Identity) -> Result<bool, Error> {
        let Some(row) = self.context.store.task_of_object(identity.uid).await? else { return Ok(true) };
        let mut state = row.state;
        if !state.status.is_final() && !state.cancel_requested {
            state = self.submit_or(identity, op::Cancel { task: state.id }, state).await?;
        }
        if !state.status.is_final() {
            return Ok(false);
        }
        if self.remains(task, &state) == Some(Duration::ZERO) {
            // A task that was removed by somebody else meanwhile is no error.
            let _ = self.submit(identity, op::Delete { task: state.id }).await?;
        }
        Ok(true)
    }

    /// Returns whether the object exists and has these finalizers now. Its version is checked, because others may have finalizers too.
    async fn set_finalizers(
        &self,
        task: &LLMTask,
        identity: &Identity,
        finalizers: Vec<String>,
        verb: &'static str,
    ) -> Result<bool, Error> {
        let api: Api<LLMTask> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        let metadata = json!({ "uid": identity.uid, "resourceVersion": task.metadata.resource_version, "finalizers": finalizers });
        let body = Patch::Merge(json!({ "metadata": metadata }));
        match self.context.writes.make("LLMTask", verb, api.patch(&identity.name, &PatchParams::default(), &body)).await {
            Ok(_) => Ok(true),
            // The next version of the object is reconciled as well.
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
