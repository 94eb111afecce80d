//! The controller of Workers: an object for each worker that the server knows, in the operator's own namespace.
//!
//! Whether a worker is cordoned or drained can be changed in its object and over HTTP. The status of the object says what the server did
//! last, so the side that differs from the status was changed since, and the other side follows. If both were changed, the server takes
//! precedence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bloom_api::kubernetes::OPERATOR;
use bloom_core::Ms;
use bloom_core::command::CordonChange;
use bloom_core::op;
use bloom_core::worker::{Worker, WorkerStatus as Word};
use futures_util::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use crate::api::is_status;
use crate::crds::worker::{self, WorkerSpec, WorkerStatus};
use crate::difference::difference;
use crate::object::{Error, Identity, Only, operator_of};
use crate::status::json;
use crate::watch::watch;
use crate::words::{camel, time};
use crate::{Context, command};

/// The shortest pause between two updates of the objects, and the wait after an error.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two updates of the objects, in case a change was missed.
const RESYNC_EVERY_MS: Ms = 60_000;
const NAME_BYTES: usize = 200;

/// What the server last did because of an object, by name: whether the worker is cordoned, and whether it is drained. The status of the
/// object says it too, but later.
type Steered = BTreeMap<String, (bool, bool)>;

/// An object and its worker.
struct Pair<'a> {
    object: &'a worker::Worker,
    worker: &'a Worker,
}

pub(crate) async fn control(context: Arc<Context>) {
    let api: Api<worker::Worker> = Api::namespaced(context.client.clone(), &context.namespace);
    let (reader, writer) = reflector::store();
    let watched = watch(api.clone(), watcher::Config::default(), "Workers", context.health.clone()).reflect(writer).touched_objects();
    let mut watched = std::pin::pin!(watched);
    // If this did not wait until the watch has shown all objects, each of them would be created again.
    loop {
        tokio::select! {
            ready = reader.wait_until_ready() => if ready.is_ok() { break } else { return },
            event = watched.next() => if event.is_none() { return },
        }
    }
    let mut changes = context.engine.replica.subscribe();
    let mut steered = Steered::new();
    let reconciler = context.engine.reconcilers.begin("worker_objects", Some(RESYNC_EVERY_MS));
    let mut due = Instant::now();
    loop {
        tokio::select! {
            event = watched.next() => match event {
                Some(_) => due = due.min(Instant::now() + PAUSE),
                None => return,
            },
            change = changes.recv() => match change {
                Ok(change) if change.workers.is_empty() && change.removed_workers.is_empty() && !change.reset => {}
                Ok(_) | Err(RecvError::Lagged(_)) => due = due.min(Instant::now() + PAUSE),
                Err(RecvError::Closed) => return,
            },
            () = sleep_until(due) => {
                let done = reconciler.observe(sync(&context, &api, &reader, &mut steered)).await;
                if let Err(error) = &done {
                    tracing::debug!(%error, "the Workers could not be brought up to date");
                }
                due = Instant::now() + if done.is_ok() { Duration::from_millis(RESYNC_EVERY_MS as u64) } else { PAUSE };
            }
        }
    }
}

async fn sync(context: &Context, api: &Api<worker::Worker>, objects: &Store<worker::Worker>, steered: &mut Steered) -> Result<(), Error> {
    let workers = context.engine.replica.workers_with_free_slots();
    let workers: BTreeMap<String, Worker> = workers.into_iter().map(|(worker, _)| (object_name(&worker.id), worker)).collect();
    let objects: BTreeMap<String, Arc<worker::Worker>> = objects.state().into_iter().map(|object| (object.name_any(), object)).collect();
    steered.retain(|name, _| workers.contains_key(name));
    for (name, worker) in &workers {
        match objects.get(name) {
            Some(object) => bring_up_to_date(context, api, Pair { object, worker }, steered).await?,
            None => create(context, api, name, worker).await?,
        }
    }
    // Objects that people created by hand are kept.
    let of_worker = |object: &worker::Worker| {
        operator_of(&object.metadata).is_some() || object.status.as_ref().is_some_and(|status| status.worker_id.is_some())
    };
    for (_, object) in objects.iter().filter(|(name, object)| !workers.contains_key(*name) && of_worker(object)) {
        context.delete("Worker", api, &object.metadata, Only::ThisObject).await?;
    }
    Ok(())
}

async fn create(context: &Context, api: &Api<worker::Worker>, name: &str, worker: &Worker) -> kube::Result<()> {
    let object = worker::Worker {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(BTreeMap::from([(OPERATOR.to_owned(), context.namespace.clone())])),
            ..ObjectMeta::default()
        },
        spec: WorkerSpec { unschedulable: worker.cordoned, drain: worker.draining },
        status: None,
    };
    ignoring(context.writes.make("Worker", "create", api.create(&PostParams::default(), &object)).await, 409)
}

async fn bring_up_to_date(context: &Context, api: &Api<worker::Worker>, pair: Pair<'_>, steered: &mut Steered) -> Result<(), Error> {
    let Pair { object, worker } = &pair;
    let name = &object.name_any();
    let wanted = (object.spec.unschedulable || object.spec.drain, object.spec.drain);
    let known = (worker.cordoned, worker.draining);
    let shown = object.status.as_ref().and_then(|status| Some((status.unschedulable?, status.draining?)));
    // If the server has done something else since, only the status is considered.
    steered.retain(|of, steered| of != name || *steered == known);
    let last = steered.get(name).copied().or(shown);
    if wanted != known && last.is_none_or(|last| last == known) {
        // The change comes back through the engine, and then into the status.
        steered.insert(name.to_owned(), wanted);
        steer(context, worker, wanted).await;
        return Ok(());
    }
    if wanted != known {
        let spec = Patch::Merge(serde_json::json!({ "spec": { "unschedulable": worker.cordoned, "drain": worker.draining } }));
        ignoring(context.writes.make("Worker", "patch", api.patch(name, &PatchParams::default(), &spec)).await.map(|_| ()), 404)?;
    }
    let shown = object.status.as_ref().map_or(Value::Null, json);
    if let Some(change) = difference(&shown, &json(&status(&pair))) {
        context.patch_status::<worker::Worker>("Worker", &Identity::of(&object.metadata)?, &change).await?;
    }
    Ok(())
}

/// Cordons, drains or uncordons the worker. If that is refused because the worker is gone, the next update notices it.
async fn steer(context: &Context, worker: &Worker, (unschedulable, drain): (bool, bool)) {
    let changes: &[CordonChange] = match (unschedulable, drain) {
        (_, true) => &[CordonChange::Drain],
        (true, false) if worker.draining => &[CordonChange::Uncordon, CordonChange::Cordon],
        (true, false) => &[CordonChange::Cordon],
        (false, false) => &[CordonChange::Uncordon],
    };
    for change in changes {
        let op = op::Cordon { worker: worker.id.clone(), change: *change };
        if let Err(error) = context.engine.writers.submit(command(&context.namespace, op)).await {
            tracing::debug!(?error, worker = worker.id, "a worker could not be cordoned or uncordoned");
        }
    }
}

fn status(Pair { object, worker }: &Pair<'_>) -> WorkerStatus {
    let is_ready = worker.is_online();
    let word = camel(worker.shown_status().as_str());
    let before = object.status.iter().flat_map(|status| &status.conditions).find(|condition| condition.type_ == "Ready");
    let state = if is_ready { "True" } else { "False" };
    let kept = before.filter(|before| before.status == state).map(|before| before.last_transition_time.clone());
    let ready = Condition {
        type_: "Ready".into(),
        status: state.into(),
        observed_generation: object.metadata.generation,
        last_transition_time: kept.unwrap_or_else(|| time(worker.updated_at)),
        reason: word.clone(),
        message: match (worker.shown_status(), worker.pauses.first()) {
            (Word::Offline, _) => "It was not seen for too long, or has left".into(),
            (_, Some(pause)) => pause.message.clone(),
            _ => String::new(),
        },
    };
    WorkerStatus {
        observed_generation: object.metadata.generation,
        worker_id: Some(worker.id.clone()),
        phase: Some(word),
        slots: Some(worker.capabilities.max_concurrency),
        agents: worker.capabilities.agents.clone(),
        namespaces: worker.capabilities.namespaces.clone(),
        agent_version: Some(worker.agent_version.clone()),
        unschedulable: Some(worker.cordoned),
        draining: Some(worker.draining),
        conditions: vec![ready],
    }
}

fn ignoring<T>(outcome: kube::Result<T>, status: u16) -> kube::Result<()> {
    match outcome {
        Err(error) if !is_status(&error, status) => Err(error),
        _ => Ok(()),
    }
}

/// The name of the object. It is the name of the worker if that is a valid name of an object; otherwise its valid characters and a part of
/// its digest.
fn object_name(worker: &str) -> String {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-');
    if worker.len() <= NAME_BYTES && worker.split('.').all(is_label) {
        return worker.to_owned();
    }
    let kept: String =
        worker.to_ascii_lowercase().chars().map(|c| if u8::try_from(c).is_ok_and(is_inner) { c } else { '-' }).take(40).collect();
    let digest = Sha256::digest(worker.as_bytes());
    let digest: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("worker-{}-{digest}", kept.trim_matches('-')).replace("--", "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_a_name_of_its_own() {
        for name in ["rack-1", "node.internal", "a"] {
            assert_eq!(object_name(name), name);
        }
        let odd = ["Rack 1", "rack 1", "ü", "-", "a..b", "a_b", &"x".repeat(300)];
        let names: std::collections::BTreeSet<_> = odd.iter().map(|name| object_name(name)).collect();
        assert_eq!(names.len(), odd.len());
        assert!(names.iter().all(|name| object_name(name) == *name), "they are names for objects: {names:?}");
    }
}
