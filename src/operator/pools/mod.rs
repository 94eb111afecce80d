//! The controller of WorkerPools, whose agents run as pods. The controller manages the pods itself instead of using a StatefulSet, because
//! only it knows which of them are idle.
//!
//! The state of a pool is kept in its pods: a pod that is being drained has an annotation that says so. A reconcile plans with what the
//! watch has shown. If there is something to do, it reads the pods from the API server and plans again, so that it never acts on outdated
//! information.

mod accept;
mod act;
mod backoff;
mod deletion;
mod demand;
mod keys;
mod leftovers;
mod needs;
mod observe;
mod pod;
mod profiles;
mod scale;
mod status;
mod wakeups;
mod write;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bloom_core::command::{Op, Operation, Rejection};
use bloom_core::ids::TaskId;
use bloom_engine::Reconciler;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::core::{DeserializeGuard, Status};
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::{Api, Resource};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use uuid::Uuid;

use crate::crds::WorkerPool;
use crate::crds::pool::WorkerPoolStatus;
use crate::object::{Error, Finalizer, Identity, is_of_other};
use crate::status::Written;
use crate::watch::watch;
use crate::{Context, command};
use backoff::Backoff;
use observe::Seen;
use scale::{PodState, Surplus};
use status::View;

/// An object that the API server accepted and this program can't read must not stop the others.
type Readable = DeserializeGuard<WorkerPool>;

/// Keeps the pool until its pods are gone and their keys are revoked.
const FINALIZER: Finalizer = Finalizer { kind: "WorkerPool", name: "bloom-runtime.dev/pods" };
/// How many pools are reconciled at a time.
const CONCURRENCY: u16 = 8;
const WAKEUPS: usize = 256;
/// How long a pool waits for the first result of the watch of pods.
const PODS_LIMIT: Duration = Duration::from_secs(10);
/// The wait after an error of the database or of the API server.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// When a pool whose pods are not all online is checked again, because a Secret may be damaged.
const LOOK_AFTER_PODS: Duration = Duration::from_secs(10);
/// When an autoscaled pool is checked again, because a queue may have been resumed.
const LOOK_AFTER_QUEUE: Duration = Duration::from_secs(30);
/// When a problem outside of the cluster, such as a setting, is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// Why a pool is not served, or why its pods do not run.
#[derive(Clone, Debug, PartialEq)]
struct Problem {
    /// One word, for a condition.
    reason: Cow<'static, str>,
    message: String,
}

impl Problem {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason: reason.into(), message }
    }

    /// A problem whose reason comes from the cluster.
    fn new_owned(reason: &str, message: String) -> Self {
        Self { reason: reason.to_owned().into(), message }
    }

    /// The problem if the API server has refused a call and another try would not change that.
    ///
    /// # Errors
    /// Other errors of the call.
    fn of(error: kube::Error, what: &str) -> Result<Self, Error> {
        match error {
            kube::Error::Api(status) if is_refusal(&status) => Ok(Self::new("Refused", format!("{what}: {}", status.message))),
            error => Err(error.into()),
        }
    }
}

fn is_refusal(status: &Status) -> bool {
    (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 409 | 429)
}

/// What is remembered about a pool. If it is lost, a delay begins again or a call is made twice, which does no harm.
#[derive(Default)]
struct Memory {
    /// Since when an autoscaled pool has needed fewer pods.
    surplus: Option<Surplus>,
    backoff: Backoff,
    /// The generation of the object when it was last reconciled.
    generation: Option<i64>,
    /// Why the last pod could not be created.
    refusal: Option<Problem>,
    /// The refusal that was last reported by an event.
    told: Option<Problem>,
    /// The numbers of pods that may have left a key, a Secret or a worker; `None` if that is not known.
    ordinals: Option<BTreeSet<u32>>,
    /// When the prerequisites of starting pods were last checked, and what was wrong.
    checked: Option<(Instant, Option<Problem>)>,
    written: Option<Written<WorkerPoolStatus>>,
}

/// What the reconciler of one watch needs.
struct Pools {
    context: Arc<Context>,
    reconciler: Arc<Reconciler>,
    /// The objects and their pods, as the watches last showed them.
    objects: Store<Readable>,
    pods: Store<Pod>,
    memories: Mutex<HashMap<Uuid, Memory>>,
}

/// Runs the controller of one namespace, or of all.
pub(crate) async fn control(context: Arc<Context>, namespace: Option<String>, reconciler: Arc<Reconciler>) {
    let (reader, writer) = reflector::store();
    let objects = context.objects::<Readable>(namespace.as_deref());
    let watched = watch(objects, watcher::Config::default(), "WorkerPools", context.health.clone()).reflect(writer);
    let (pods, pods_writer) = reflector::store();
    let of_pools = watcher::Config::default().labels(pod::POOL);
    let watched_pods = watch(context.objects::<Pod>(namespace.as_deref()), of_pools, "Pods", context.health.clone())
        .modify(|pod| pod.metadata.managed_fields = None)
        .reflect(pods_writer)
        .touched_objects();
    let (one, ones) = mpsc::channel(WAKEUPS);
    let wakeups = wakeups::follow(context.clone(), reader.clone(), one);
    let pools = Arc::new(Pools { context: context.clone(), reconciler, objects: reader.clone(), pods, memories: Mutex::default() });
    let controller = Controller::for_stream(watched.applied_objects(), reader)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .owns_stream(watched_pods)
        .reconcile_on(ReceiverStream::new(ones))
        .run(reconcile, |_, error, _| retry(error), pools.clone())
        .for_each(|_| std::future::ready(()));
    tokio::select! {
        () = wakeups => {}
        () = controller => {}
        () = leftovers::sweep(pools, namespace) => {}
    }
}

fn retry(error: &Error) -> Action {
    tracing::debug!(%error, "a WorkerPool could not be reconciled");
    Action::requeue(RETRY_AFTER)
}

async fn reconcile(object: Arc<Readable>, pools: Arc<Pools>) -> Result<Action, Error> {
    pools.reconciler.progress().add(1);
    pools.reconciler.observe(pools.reconcile(&object)).await
}

impl Pools {
    async fn reconcile(&self, object: &Readable) -> Result<Action, Error> {
        if is_of_other(&self.context, object.meta()) {
            return Ok(Action::await_change());
        }
        let identity = Identity::of(object.meta())?;
        if object.meta().deletion_timestamp.is_some() {
            self.memories.lock().remove(&identity.uid);
            let grace = object.0.as_ref().map_or(0, |pool| pool.spec.termination_grace_period_seconds);
            return self.finalize(object.meta(), &identity, grace).await;
        }
        if !FINALIZER.add::<WorkerPool>(&self.context, object.meta()).await? {
            return Ok(Action::await_change());
        }
        // The memory can be taken out, because an object is never reconciled twice at the same time.
        let mut memory = self.memories.lock().remove(&identity.uid).unwrap_or_default();
        let outcome = match &object.0 {
            Ok(pool) => self.serve(pool, &identity, &mut memory).await,
            Err(invalid) => {
                let message = format!("The object can't be read by this version of the operator: {}", invalid.error);
                let problem = Problem::new("Invalid", message);
                let before = memory.last_written();
                self.report(&invalid.metadata, &before, &problem, &identity, &mut memory).await
            }
        };
        self.memories.lock().insert(identity.uid, memory);
        outcome
    }

    async fn serve(&self, pool: &WorkerPool, identity: &Identity, memory: &mut Memory) -> Result<Action, Error> {
        if memory.generation != pool.metadata.generation {
            // The change may have corrected what was wrong.
            memory.generation = pool.metadata.generation;
            memory.backoff = Backoff::default();
        }
        let before = memory.shown(pool);
        if timeout(PODS_LIMIT, self.pods.wait_until_ready()).await.is_err() {
            let message =
                "The operator can't watch pods: install its roles (manifests/kubernetes/operator-rbac.yaml) as they are now".into();
            return self.report(&pool.metadata, &before, &Problem::new("PodsNotWatched", message), identity, memory).await;
        }
        let setup = match self.setup(pool, identity) {
            Ok(setup) => setup,
            Err(problem) => return self.report(&pool.metadata, &before, &problem, identity, memory).await,
        };
        let template = match setup.template() {
            Ok(template) => template,
            Err(error) => {
                let problem = Problem::new("Invalid", error.to_string());
                return self.report(&pool.metadata, &before, &problem, identity, memory).await;
            }
        };
        let ready = match self.ready(&setup).await? {
            Ok(ready) => ready,
            Err(problem) => return self.report(&pool.metadata, &before, &problem, identity, memory).await,
        };
        // The workers are read after the ready tasks, so that a task that a worker takes in between is not missed.
        let mut seen = self.watched(identity, &template);
        let (desired, look_again) = desired(pool, &ready, &seen, memory);
        let mut steps = scale::steps(desired, &seen.states);
        let left = |seen: &Seen, steps: &[scale::Step], memory: &Memory| leftovers::of(seen, steps, memory.ordinals.as_ref());
        self.recall(identity, memory).await?;
        let is_idle = steps.is_empty() && left(&seen, &steps, memory).is_empty();
        if !is_idle {
            seen = self.read(identity, &template).await?;
            steps = scale::steps(desired, &seen.states);
            self.act(&setup, &seen, &steps, memory).await?;
            self.clear(identity, &left(&seen, &steps, memory), memory).await?;
        }
        if !steps.iter().any(|step| matches!(step, scale::Step::Create(_))) {
            memory.refusal = None;
        }
        self.check_needs(&setup, &seen, memory).await?;
        let is_all_online = seen.states.len() >= desired && seen.states.iter().all(PodState::is_online);
        if is_all_online && memory.refusal.is_none() {
            memory.backoff = Backoff::default();
            memory.told = None;
        }
        let trouble = seen.trouble();
        let of_needs = memory.checked.as_ref().and_then(|(_, problem)| problem.as_ref());
        let problem = memory.refusal.as_ref().or(of_needs).or(trouble.as_ref());
        let view = View { desired, pods: &seen.states, problem };
        let status = status::of(&pool.metadata, &before, &setup, &view, Timestamp::now().as_millisecond());
        let later = self.write(&pool.metadata, identity, &before, status, memory).await?;
        let times = [
            look_again,
            later,
            memory.backoff.left(Instant::now()).filter(|_| memory.refusal.is_some() || seen.states.len() < desired),
            (!is_all_online).then_some(LOOK_AFTER_PODS),
            seen.stuck_in,
            pool.spec.max_replicas.map(|_| LOOK_AFTER_QUEUE),
        ];
        Ok(Action::requeue(times.into_iter().flatten().min().unwrap_or(LOOK_AGAIN)))
    }

    fn pods_api(&self, identity: &Identity) -> Api<Pod> {
        Api::namespaced(self.context.client.clone(), &identity.namespace)
    }

    /// Executes a command in the name of the pool's namespace.
    async fn submit<O>(&self, identity: &Identity, op: O) -> Result<Result<O::Reply, Rejection>, Error>
    where
        O: Operation + Into<Op>,
    {
        match self.context.engine.writers.submit(command(&identity.namespace, op)).await {
            Ok(reply) => Ok(Ok(reply)),
            Err(bloom_engine::Error::Rejected(rejection)) => Ok(Err(rejection)),
            Err(error) => Err(Error::Engine(error)),
        }
    }
}

/// How many pods there should be, and when to look again.
fn desired(pool: &WorkerPool, ready: &[TaskId], seen: &Seen, memory: &mut Memory) -> (usize, Option<Duration>) {
    let spec = &pool.spec;
    let Some(max) = spec.max_replicas else {
        return (usize::try_from(spec.replicas).unwrap_or(0), None);
    };
    let tasks = scale::tasks(ready, seen.workers.iter().flat_map(|(_, tasks)| tasks).copied());
    let recommended = scale::recommended(tasks, spec.slots, spec.min_replicas.unwrap_or(0), max);
    let current = seen.states.iter().filter(|pod| pod.is_kept()).count().min(usize::try_from(max).unwrap_or(0));
    let delay = Duration::from_secs(u64::try_from(spec.scale_down_delay_seconds).unwrap_or(0));
    scale::with_delay(recommended, current, &mut memory.surplus, Instant::now(), delay)
}
