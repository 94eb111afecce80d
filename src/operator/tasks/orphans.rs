//! Tasks whose objects are gone: somebody removed the finalizer by hand, or the deletion could not wait. They are cancelled.

use std::sync::Arc;
use std::time::Duration;

use bloom_core::ids::TaskId;
use bloom_core::namespace::KubernetesObject;
use bloom_core::op;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::sleep;

use super::{Error, Identity, Readable, Tasks};
use crate::api::within_limit;
use crate::crds::LLMTask;

const LOOK_EVERY: Duration = Duration::from_secs(60);
const PAGE: i64 = 500;

pub(super) async fn sweep(tasks: Arc<Tasks>, namespace: Option<String>) {
    // Only a watch that has shown all objects tells which are gone.
    if tasks.objects.wait_until_ready().await.is_err() {
        return std::future::pending().await;
    }
    loop {
        if let Err(error) = sweep_once(&tasks, namespace.as_deref()).await {
            tracing::debug!(%error, "the tasks of deleted LLMTasks could not be looked for");
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn sweep_once(tasks: &Tasks, namespace: Option<&str>) -> Result<(), Error> {
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

/// The watch may be behind, so the API server is asked too.
async fn is_gone(tasks: &Tasks, object: &KubernetesObject) -> Result<bool, Error> {
    let uid = object.uid.to_string();
    let known = tasks.objects.get(&ObjectRef::<Readable>::new(&object.name).within(&object.namespace));
    if known.is_some_and(|known| known.uid().as_ref() == Some(&uid)) {
        return Ok(false);
    }
    let api: Api<LLMTask> = Api::namespaced(tasks.context.client.clone(), &object.namespace);
    Ok(within_limit(api.get_metadata_opt(&object.name)).await?.is_none_or(|found| found.metadata.uid != Some(uid)))
}
