//! The object of a task's active lease, which exists as long as the lease. If somebody deletes the object, the lease is revoked.

use bloom_core::ids::LeaseId;
use bloom_core::op;
use bloom_core::task::{ActiveLease, TaskState};
use bloom_store::TaskRow;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Resource};

use super::{Error, Identity, Only, Tasks, is_own};
use crate::api::{is_status, within_limit};
use crate::crds::lease::TaskLeaseSpec;
use crate::crds::{LLMTask, TaskLease};
use crate::words::{cut, time};

/// How much of the task's name is used in the name of its lease. Names of objects have at most 253 characters.
const NAME_BYTES: usize = 200;

impl Tasks {
    /// Makes sure that the object of the active lease exists, and no other lease object of the task. Returns the resulting task.
    pub(super) async fn keep_lease_object(&self, task: &LLMTask, identity: &Identity, row: TaskRow) -> Result<TaskRow, Error> {
        let TaskRow { spec, state } = row;
        if !is_own(&spec, identity) {
            return Ok(TaskRow { spec, state });
        }
        let api: Api<TaskLease> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        let shown = self.statuses.shown(task, identity).lease_name;
        let wanted = state.lease.as_ref().map(|lease| name(identity, lease.id));
        // Somebody may have edited the status, so only a lease of this task is removed.
        if let Some(old) = shown.as_ref().filter(|shown| Some(*shown) != wanted.as_ref() && shown.starts_with(&prefix(identity))) {
            self.delete_lease_object(identity, old).await?;
        }
        let (Some(lease), Some(wanted)) = (&state.lease, wanted) else { return Ok(TaskRow { spec, state }) };
        if shown.as_ref() == Some(&wanted) {
            let found = within_limit(api.get_metadata_opt(&wanted)).await?;
            if found.is_some_and(|found| found.metadata.deletion_timestamp.is_none()) {
                return Ok(TaskRow { spec, state });
            }
            let release = op::Release { task: state.id, lease: lease.id, reason: "its TaskLease was deleted".into() };
            let state = self.submit_or(identity, release, state).await?;
            return Ok(TaskRow { spec, state });
        }
        let object = object(task, identity, lease, state.attempts, wanted);
        match self.context.writes.make("TaskLease", "create", api.create(&PostParams::default(), &object)).await {
            Err(error) if !is_status(&error, 409) => Err(error.into()),
            _ => Ok(TaskRow { spec, state }),
        }
    }

    pub(super) async fn delete_lease_object(&self, identity: &Identity, name: &str) -> Result<(), Error> {
        let api: Api<TaskLease> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        let named = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        self.context.delete("TaskLease", &api, &named, Only::ThisObject).await
    }
}

fn prefix(identity: &Identity) -> String {
    format!("{}-", cut(&identity.name, NAME_BYTES).trim_end_matches(['.', '-']))
}

/// The name of the object. It contains the lease, so creating the object twice has no further effect.
pub(crate) fn name(identity: &Identity, lease: LeaseId) -> String {
    format!("{}{}", prefix(identity), lease.simple())
}

/// Whether the lease object belongs to this LLMTask, with which it is removed.
pub(crate) fn is_of(lease: &TaskLease, identity: &Identity) -> bool {
    lease.metadata.owner_references.iter().flatten().any(|owner| owner.uid == identity.uid.to_string())
}

/// A reference to the lease object of the current or the last attempt, for events. The object may be gone.
pub(crate) fn reference(identity: &Identity, state: &TaskState) -> Option<ObjectReference> {
    let lease = state.lease.as_ref().map(|lease| lease.id).or(state.last_lease.as_ref().map(|last| last.id))?;
    let object = ObjectMeta { name: Some(name(identity, lease)), namespace: Some(identity.namespace.clone()), ..ObjectMeta::default() };
    Some(TaskLease { metadata: object, spec: TaskLeaseSpec::default() }.object_ref(&()))
}

fn object(task: &LLMTask, identity: &Identity, lease: &ActiveLease, attempt: i64, name: String) -> TaskLease {
    TaskLease {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(identity.namespace.clone()),
            owner_references: task.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: TaskLeaseSpec {
            task_name: identity.name.clone(),
            worker_name: lease.worker_id.clone(),
            lease_id: lease.id.to_string(),
            attempt,
            start_time: Some(time(lease.started_at)),
        },
    }
}
