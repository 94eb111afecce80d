//! Finds the pools to reconcile after changes in the engine: of their workers, of the tasks that these hold, and of tasks that they could
//! take.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bloom_core::ids::WorkerId;
use bloom_engine::Changes;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until};

use super::Readable;
use super::pod::worker_prefix;
use crate::Context;
use crate::object::Identity;

/// How long changes are gathered, because a busy queue changes all the time.
const GATHER: Duration = Duration::from_millis(500);
/// How often all pools are reconciled, because a wake-up may be lost.
const RESYNC_EVERY: Duration = Duration::from_secs(600);

/// The gathered changes that determine which pools to reconcile.
#[derive(Default)]
struct Changed {
    workers: BTreeSet<WorkerId>,
    namespaces: BTreeSet<String>,
    all: bool,
}

/// Sends the affected pools to `one`.
pub(crate) async fn follow(context: Arc<Context>, pools: Store<Readable>, one: Sender<ObjectRef<Readable>>) {
    let mut changes = context.engine.replica.subscribe();
    let mut revisions = HashMap::new();
    let mut changed = Changed::default();
    let mut resync = Instant::now() + RESYNC_EVERY;
    let mut due = resync;
    loop {
        tokio::select! {
            change = changes.recv() => {
                match change {
                    Ok(change) if !change.reset => changed.add(&change, &mut revisions),
                    Ok(_) | Err(RecvError::Lagged(_)) => changed.all = true,
                    Err(RecvError::Closed) => return,
                }
                if !changed.is_empty() {
                    due = due.min(Instant::now() + GATHER);
                }
            }
            () = sleep_until(due) => {
                if Instant::now() >= resync {
                    resync = Instant::now() + RESYNC_EVERY;
                    changed.all = true;
                }
                due = resync;
                let concerned: Vec<_> = pools.state().iter().filter_map(|pool| changed.concerns(pool)).collect();
                changed = Changed::default();
                for pool in concerned {
                    if one.send(pool).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

impl Changed {
    fn is_empty(&self) -> bool {
        self.workers.is_empty() && self.namespaces.is_empty() && !self.all
    }

    fn add(&mut self, changes: &Changes, revisions: &mut HashMap<WorkerId, i64>) {
        for task in &changes.tasks {
            self.namespaces.extend(task.namespace.clone());
            self.workers.extend(task.lease.as_ref().map(|lease| lease.worker_id.clone()));
            self.workers.extend(task.last_lease.as_ref().map(|lease| lease.worker_id.clone()));
        }
        for worker in &changes.workers {
            // A sign of life alone does not change the revision of a worker.
            if revisions.insert(worker.id.clone(), worker.revision) != Some(worker.revision) {
                self.workers.insert(worker.id.clone());
            }
        }
        for worker in &changes.removed_workers {
            revisions.remove(worker);
            self.workers.insert(worker.clone());
        }
    }

    /// The pool, if it must be reconciled.
    fn concerns(&self, pool: &Readable) -> Option<ObjectRef<Readable>> {
        let pool = pool.0.as_ref().ok()?;
        let identity = Identity::of(&pool.metadata).ok()?;
        let prefix = worker_prefix(&identity);
        let has_changed = || self.workers.range(prefix.clone()..).next().is_some_and(|worker| worker.starts_with(&prefix));
        let serves = || {
            let named = &pool.spec.namespaces;
            let of_queue = |namespace: &String| self.namespaces.contains(namespace);
            if named.is_empty() { of_queue(&identity.namespace) } else { named.iter().any(of_queue) }
        };
        let is_concerned = self.all || has_changed() || (pool.spec.max_replicas.is_some() && serves());
        is_concerned.then(|| ObjectRef::new(&identity.name).within(&identity.namespace))
    }
}
