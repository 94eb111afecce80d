//! Executes the steps of a pool. Each step may be executed twice, and checks its preconditions itself.

use std::time::Instant;

use bloom_core::command::{CordonChange, Loss, Rejection};
use bloom_core::op;
use bloom_core::reply::ChangedWorker;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Resource;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::events::EventType;
use serde_json::{Value, json};

use super::observe::Seen;
use super::pod::{DRAIN, Setup, belongs_to, pod_name, worker_name};
use super::scale::{Drain, Step};
use super::{Memory, Pools, Problem};
use crate::AgentKeys;
use crate::api::{is_status, within_limit};
use crate::events::event;
use crate::object::{Error, Identity, Only};

impl Pools {
    /// Executes the steps. Remembers what prevents pods from being created.
    pub(super) async fn act(&self, setup: &Setup<'_>, seen: &Seen, steps: &[Step], memory: &mut Memory) -> Result<(), Error> {
        let (mut created, mut drained, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let name = |ordinal: u32| pod_name(setup.identity, ordinal);
        let may_create = memory.backoff.may_try(Instant::now());
        if may_create {
            memory.refusal = None;
        }
        if steps.iter().any(|step| matches!(step, Step::Clear(_))) {
            memory.backoff.fail(Instant::now());
        }
        for step in steps {
            match *step {
                Step::Create(_) if !may_create || memory.refusal.is_some() => {}
                Step::Create(ordinal) => match self.create(setup, ordinal, memory).await? {
                    Ok(()) => created.push(name(ordinal)),
                    Err(problem) => memory.refusal = Some(problem),
                },
                Step::Drain(ordinal, why) => {
                    if let Some(pod) = seen.pod(ordinal) {
                        self.mark(setup.identity, pod, why.as_str().into()).await?;
                        self.cordon(setup.identity, ordinal, CordonChange::Cordon).await?;
                        if why == Drain::Surplus {
                            drained.push(name(ordinal));
                        }
                    }
                }
                Step::Cordon(ordinal) => drop(self.cordon(setup.identity, ordinal, CordonChange::Cordon).await?),
                Step::Keep(ordinal) => {
                    if let Some(pod) = seen.pod(ordinal) {
                        self.cordon(setup.identity, ordinal, CordonChange::Uncordon).await?;
                        self.mark(setup.identity, pod, Value::Null).await?;
                        kept.push(name(ordinal));
                    }
                }
                Step::Remove(ordinal) => {
                    // After this commit the worker gets no more tasks, and the commit has counted its leases.
                    let mut worker = self.cordon(setup.identity, ordinal, CordonChange::Cordon).await?;
                    if worker.is_none() && setup.has_keys {
                        // Without its key the worker can't register any more. But it may have registered meanwhile.
                        self.drop_key(setup.identity, ordinal).await?;
                        worker = self.cordon(setup.identity, ordinal, CordonChange::Cordon).await?;
                    }
                    if let Some(pod) = seen.pod(ordinal).filter(|_| worker.is_none_or(|worker| worker.active_leases == 0)) {
                        // If the call is executed late, the pod may be kept by then, and its run must not be ended. Keeping a pod changes
                        // its version.
                        self.context.delete("Pod", &self.pods_api(setup.identity), &pod.metadata, Only::ThisVersion).await?;
                    }
                }
                Step::Clear(ordinal) => {
                    if let Some(pod) = seen.pod(ordinal) {
                        self.delete(setup.identity, pod).await?;
                    }
                }
            }
        }
        let about = setup.pool.object_ref(&());
        for (pods, reason, what) in
            [(created, "ScaledUp", "Created"), (drained, "ScaledDown", "Takes out of service"), (kept, "ScaledUp", "Keeps")]
        {
            for name in pods {
                let note = format!("{what} {name}");
                let metadata = ObjectMeta { name: Some(name), namespace: about.namespace.clone(), ..ObjectMeta::default() };
                let pod = Pod { metadata, ..Pod::default() }.object_ref(&());
                self.context.tell(&about, Some(pod), event(EventType::Normal, reason, &note)).await;
            }
        }
        if let Some(problem) = memory.refusal.as_ref().filter(|_| may_create && steps.iter().any(|step| matches!(step, Step::Create(_)))) {
            memory.backoff.fail(Instant::now());
            if memory.told.as_ref() != Some(problem) {
                self.context.tell(&about, None, event(EventType::Warning, &problem.reason, &problem.message)).await;
                memory.told = Some(problem.clone());
            }
        }
        Ok(())
    }

    async fn create(&self, setup: &Setup<'_>, ordinal: u32, memory: &mut Memory) -> Result<Result<(), Problem>, Error> {
        let (identity, client) = (setup.identity, &self.context.client);
        memory.ordinals.get_or_insert_default().insert(ordinal);
        if self.context.options.agent_keys == AgentKeys::Named
            && let Err(problem) = self.ensure_key(setup, ordinal).await?
        {
            return Ok(Err(problem));
        }
        // There is no pod with this number, so the agent of the previous one is gone, and the next one may use its name at once.
        let ended = op::MarkOffline { worker: worker_name(identity, ordinal), cause: Loss::PodEnded };
        if let Err(rejection) = self.submit(identity, ended).await? {
            return Err(Error::Engine(bloom_engine::Error::Rejected(rejection)));
        }
        // The worker of the previous pod may have been cordoned.
        self.cordon(identity, ordinal, CordonChange::Uncordon).await?;
        if let Some(claim) = setup.claim(ordinal) {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &identity.namespace);
            let params = PostParams::default();
            match self.context.writes.make("PersistentVolumeClaim", "create", claims.create(&params, &claim)).await {
                Err(error) if !is_status(&error, 409) => {
                    return Problem::of(error, "The claim of a volume can't be created").map(Err);
                }
                _ => {}
            }
        }
        let pod = match setup.pod(ordinal) {
            Ok(pod) => pod,
            Err(error) => return Ok(Err(Problem::new("Invalid", error.to_string()))),
        };
        let (name, pods) = (pod_name(identity, ordinal), self.pods_api(identity));
        match self.context.writes.make("Pod", "create", pods.create(&PostParams::default(), &pod)).await {
            Ok(_) => Ok(Ok(())),
            Err(error) if is_status(&error, 409) => {
                let found = within_limit(pods.get_opt(&name)).await?;
                if found.is_none_or(|found| belongs_to(&found.metadata, identity)) {
                    return Ok(Ok(()));
                }
                let message = format!("The pod '{name}' exists and is not the pool's: remove it, or choose another name for the pool");
                Ok(Err(Problem::new("PodExists", message)))
            }
            Err(error) => Problem::of(error, &format!("The pod '{name}' can't be created")).map(Err),
        }
    }

    /// Cordons or uncordons the worker. `None` if it has never registered.
    pub(super) async fn cordon(&self, identity: &Identity, ordinal: u32, change: CordonChange) -> Result<Option<ChangedWorker>, Error> {
        let op = op::Cordon { worker: worker_name(identity, ordinal), change };
        match self.submit(identity, op).await? {
            Ok(changed) => Ok(Some(changed)),
            Err(Rejection::WorkerNotFound) => Ok(None),
            Err(other) => Err(Error::Engine(bloom_engine::Error::Rejected(other))),
        }
    }

    /// Records in the pod why it is being drained; `null` if it is not.
    async fn mark(&self, identity: &Identity, pod: &Pod, why: Value) -> Result<(), Error> {
        let body = Patch::Merge(json!({ "metadata": { "uid": pod.metadata.uid, "annotations": { (DRAIN): why } } }));
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let pods = self.pods_api(identity);
        match self.context.writes.make("Pod", "patch", pods.patch(name, &PatchParams::default(), &body)).await {
            Err(error) if !is_status(&error, 404) && !is_status(&error, 409) => Err(error.into()),
            _ => Ok(()),
        }
    }

    pub(super) async fn delete(&self, identity: &Identity, pod: &Pod) -> Result<(), Error> {
        self.context.delete("Pod", &self.pods_api(identity), &pod.metadata, Only::ThisObject).await
    }
}
