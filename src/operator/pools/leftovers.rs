//! Removes what pods leave behind when they are gone for good: keys, Secrets and workers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bloom_core::op;
use kube::{Resource, ResourceExt};
use tokio::time::sleep;
use uuid::Uuid;

use super::observe::Seen;
use super::pod::{ordinal_of, worker_name};
use super::scale::Step;
use super::{Memory, Pools, keys};
use crate::AgentKeys;
use crate::object::{Error, Identity, is_of_other};

/// How often to look for keys of pools whose finalizer was removed by hand.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The numbers of pods that are gone and may have left something. A worker with a task is left alone until the task's lease has ended.
pub(crate) fn of(seen: &Seen, steps: &[Step], known: Option<&BTreeSet<u32>>) -> Vec<u32> {
    let number = |name: &str| name.rsplit_once('-').and_then(|(prefix, _)| ordinal_of(&format!("{prefix}-"), name));
    let offline = seen.workers.iter().filter(|(worker, _)| !worker.is_online()).filter_map(|(worker, _)| number(&worker.id));
    let busy: BTreeSet<u32> =
        seen.workers.iter().filter(|(_, tasks)| !tasks.is_empty()).filter_map(|(worker, _)| number(&worker.id)).collect();
    let all: BTreeSet<u32> = known.into_iter().flatten().copied().chain(offline).collect();
    let is_gone = |ordinal: &u32| seen.pod(*ordinal).is_none() && !busy.contains(ordinal) && !steps.contains(&Step::Create(*ordinal));
    all.into_iter().filter(is_gone).collect()
}

impl Pools {
    /// Finds out which pods may have left something, if that is not known.
    pub(super) async fn recall(&self, identity: &Identity, memory: &mut Memory) -> Result<(), Error> {
        if memory.ordinals.is_none() {
            let keys = self.context.store.api_keys().await?;
            memory.ordinals = Some(keys::ordinals(&keys, identity.uid).collect());
        }
        Ok(())
    }

    pub(super) async fn clear(&self, identity: &Identity, gone: &[u32], memory: &mut Memory) -> Result<(), Error> {
        for ordinal in gone {
            self.forget_pod(identity, *ordinal).await?;
            memory.ordinals.get_or_insert_default().remove(ordinal);
        }
        Ok(())
    }

    /// Revokes the pod's key, and removes its Secret and its worker. Tasks that the worker still holds are queued again.
    pub(super) async fn forget_pod(&self, identity: &Identity, ordinal: u32) -> Result<(), Error> {
        if self.context.options.agent_keys == AgentKeys::Named {
            self.drop_key(identity, ordinal).await?;
        }
        // This is refused if the worker has never registered, or was already removed.
        self.submit(identity, op::RemoveWorker { worker: worker_name(identity, ordinal) }).await?.ok();
        Ok(())
    }
}

/// Revokes the keys of pools that were deleted without this program, because somebody removed their finalizer.
pub(crate) async fn sweep(pools: Arc<Pools>, namespace: Option<String>) {
    // Only a watch that has shown all objects can tell which are gone.
    if pools.objects.wait_until_ready().await.is_err() {
        return std::future::pending().await;
    }
    loop {
        if let Err(error) = sweep_once(&pools, namespace.as_deref()).await {
            tracing::debug!(%error, "the keys of deleted WorkerPools could not be looked for");
        }
        sleep(SWEEP_EVERY).await;
    }
}

async fn sweep_once(pools: &Pools, namespace: Option<&str>) -> Result<(), Error> {
    // The keys are read before the objects, because a pool is known before it has keys.
    let all = pools.context.store.api_keys().await?;
    let objects = pools.objects.state();
    // The keys of a pool that now belongs to another server are of no use here.
    let own = objects.iter().filter(|pool| !is_of_other(&pools.context, pool.meta()));
    let known: BTreeSet<Uuid> = own.filter_map(|pool| pool.uid()?.parse().ok()).collect();
    pools.memories.lock().retain(|pool, _| known.contains(pool));
    for key in all {
        let Some(pool) = keys::pool_of(&key).filter(|pool| !known.contains(pool)) else { continue };
        let Some(creator) = key.pool_namespace().filter(|creator| namespace.is_none_or(|own| own == *creator)) else { continue };
        let identity = Identity { namespace: creator.to_owned(), name: String::new(), uid: pool };
        pools.submit(&identity, op::RevokeKey { name: key.name.clone() }).await?.ok();
        if let Some(worker) = key.worker.as_ref().filter(|worker| worker.starts_with(&format!("{creator}."))) {
            pools.submit(&identity, op::RemoveWorker { worker: worker.clone() }).await?.ok();
        }
        tracing::info!(key = key.name, "the WorkerPool of a key is gone, so the key is revoked");
    }
    Ok(())
}
