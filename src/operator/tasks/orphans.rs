//! Cleans up after an operator that was killed, or whose work somebody undid by hand: tasks without objects, and objects of ended leases.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::ids::TaskId;
use bloom_core::namespace::KubernetesObject;
use bloom_core::op;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::sleep;

use super::{Error, Identity, Readable, Tasks, leases};
use crate::api::within_limit;
use crate::crds::LLMTask;
use crate::object::is_of_other;

const LOOK_EVERY: Duration = Duration::from_secs(60);
const PAGE: i64 = 500;

pub(super) async fn sweep(tasks: Arc<Tasks>, namespace: Option<String>) {
    // Only watches that have shown all objects can tell which are gone.
    if tasks.objects.wait_until_ready().await.is_err() || tasks.leases.wait_until_ready().await.is_err() {
        return std::future::pending().await;
    }
    loop {
        if let Err(error) = cancel_tasks(&tasks, namespace.as_deref()).await {
            tracing::debug!(%error, "the tasks of deleted LLMTasks could not be looked for");
        }
        if let Err(error) = delete_leases(&tasks).await {
            tracing::debug!(%error, "TaskLeases of leases that are over could not be looked for");
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Cancels the tasks whose objects are gone because somebody removed the finalizer by hand, or because the deletion could not wait any
/// longer.
async fn cancel_tasks(tasks: &Tasks, namespace: Option<&str>) -> Result<(), Error> {
    let mut after = TaskId::nil();
    loop {
        let ids = tasks.context.store.unfinished_of_objects(after, PAGE).await?;
        let Some(last) = ids.last() else { return Ok(()) };
        after = *last;
        for spec in tasks.context.store.specs(&ids).await? {
            let Some(object) = spec.object.as_ref().filter(|object| namespace.is_none_or(|namespace| namespace == object.namespace)) else {
                continue;
            };
            if is_gone(tasks, object).await? {
                let identity = Identity { namespace: object.namespace.clone(), name: object.name.clone(), uid: object.uid };
                let cancelled = tasks.submit(&identity, op::Cancel { task: spec.id }).await?;
                tracing::info!(task = %spec.id, ?identity, ok = cancelled.is_ok(), "the LLMTask of a task is gone, so the task is cancelled");
            }
        }
    }
}

/// Whether the object is gone. The watch may be behind, so the API server is asked too.
async fn is_gone(tasks: &Tasks, object: &KubernetesObject) -> Result<bool, Error> {
    let uid = object.uid.to_string();
    let known = tasks.objects.get(&ObjectRef::<Readable>::new(&object.name).within(&object.namespace));
    if known.is_some_and(|known| known.uid().as_ref() == Some(&uid)) {
        return Ok(false);
    }
    let api: Api<LLMTask> = Api::namespaced(tasks.context.client.clone(), &object.namespace);
    Ok(within_limit(api.get_metadata_opt(&object.name)).await?.is_none_or(|found| found.metadata.uid != Some(uid)))
}

/// Deletes TaskLeases that no status names, because their operator was killed before it wrote the status.
async fn delete_leases(tasks: &Tasks) -> Result<(), Error> {
    for lease in tasks.leases.state() {
        let (Some(name), Some(namespace)) = (&lease.metadata.name, &lease.metadata.namespace) else { continue };
        let Some(task) = tasks.objects.get(&ObjectRef::new(&lease.spec.task_name).within(namespace)) else { continue };
        let Ok(task) = &task.0 else { continue };
        let identity = Identity::of(&task.metadata)?;
        if is_of_other(&tasks.context, &task.metadata) || tasks.statuses.shown(task, &identity).lease_name.as_ref() == Some(name) {
            continue;
        }
        let row = tasks.context.store.task_of_object(identity.uid).await?;
        let active = row.and_then(|row| row.state.lease).map(|active| leases::name(&identity, active.id));
        if active.as_ref() != Some(name) && leases::is_of(&lease, &identity) {
            tasks.delete_lease_object(&identity, name).await?;
        }
    }
    Ok(())
}
