//! The current state of a pool: its pods and their workers.

use std::time::Duration;

use bloom_core::ids::TaskId;
use bloom_core::worker::{Worker, WorkerStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;

use super::pod::{DRAIN, POOL, TEMPLATE, belongs_to, ordinal_of, pod_name, worker_prefix};
use super::scale::{Drain, Phase, PodState};
use super::status::trouble;
use super::{Pools, Problem};
use crate::api::within_limit;
use crate::object::{Error, Identity};

/// If a pod still exists this long after its grace period, its node does not answer.
const STUCK_AFTER_SECONDS: i64 = 30;

/// The pods of one pool and their workers, with their relevant properties.
pub(crate) struct Seen {
    /// The pods with their numbers.
    pub pods: Vec<(u32, Pod)>,
    /// The workers, each with the tasks that it holds.
    pub workers: Vec<(Worker, Vec<TaskId>)>,
    /// In the order of the pods.
    pub states: Vec<PodState>,
    /// When the next pod that is being deleted counts as stuck.
    pub stuck_in: Option<Duration>,
}

impl Seen {
    pub(crate) fn pod(&self, ordinal: u32) -> Option<&Pod> {
        self.pods.iter().find(|(other, _)| *other == ordinal).map(|(_, pod)| pod)
    }

    /// Why a pod does not start, or the error that its worker reports.
    pub(crate) fn trouble(&self) -> Option<Problem> {
        let failing = |(worker, _): &(Worker, Vec<TaskId>)| {
            let text = format!("The worker {} reports an error: its credentials may have been refused; its log tells more", worker.id);
            (worker.shown_status() == WorkerStatus::Error).then(|| Problem::new("WorkerError", text))
        };
        self.pods.iter().find_map(|(_, pod)| trouble(pod)).or_else(|| self.workers.iter().find_map(failing))
    }
}

impl Pools {
    pub(super) fn workers(&self, identity: &Identity) -> Vec<(Worker, Vec<TaskId>)> {
        let prefix = worker_prefix(identity);
        let mut workers = self.context.engine.replica.workers_named(&prefix);
        workers.retain(|(worker, _)| ordinal_of(&prefix, &worker.id).is_some());
        workers
    }

    /// The pool as the watch last showed it.
    pub(super) fn watched(&self, identity: &Identity, template: &str) -> Seen {
        let pods = self.pods.state().into_iter().filter(|pod| pod.metadata.namespace.as_ref() == Some(&identity.namespace));
        self.seen(identity, template, pods.map(|pod| (*pod).clone()).collect())
    }

    /// The pool as the API server reports it now.
    pub(super) async fn read(&self, identity: &Identity, template: &str) -> Result<Seen, Error> {
        let pods = self.pods_api(identity);
        let of_pool = ListParams::default().labels(&format!("{POOL}={}", identity.name));
        Ok(self.seen(identity, template, within_limit(pods.list(&of_pool)).await?.items))
    }

    fn seen(&self, identity: &Identity, template: &str, pods: Vec<Pod>) -> Seen {
        let prefix = format!("{}-", identity.name);
        let numbered = |pod: Pod| Some((ordinal_of(&prefix, pod.metadata.name.as_deref()?)?, pod));
        let mut pods: Vec<(u32, Pod)> = pods.into_iter().filter(|pod| belongs_to(&pod.metadata, identity)).filter_map(numbered).collect();
        pods.sort_by_key(|(ordinal, _)| *ordinal);
        let workers = self.workers(identity);
        let now = Timestamp::now().as_second();
        let states = pods.iter().map(|(ordinal, pod)| state(identity, *ordinal, pod, template, &workers, now)).collect();
        let ends = pods.iter().filter_map(|(_, pod)| pod.metadata.deletion_timestamp.as_ref());
        let left = ends.map(|end| end.0.as_second() + STUCK_AFTER_SECONDS + 1 - now).filter(|left| *left > 0).min();
        let stuck_in = left.and_then(|left| u64::try_from(left).ok()).map(Duration::from_secs);
        Seen { pods, workers, states, stuck_in }
    }
}

/// Whether the container of the pod was started.
pub(crate) fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
}

fn state(identity: &Identity, ordinal: u32, pod: &Pod, template: &str, workers: &[(Worker, Vec<TaskId>)], now: i64) -> PodState {
    let prefix = worker_prefix(identity);
    let worker = workers.iter().find(|(worker, _)| ordinal_of(&prefix, &worker.id) == Some(ordinal));
    let phase = match (&pod.metadata.deletion_timestamp, pod.status.as_ref().and_then(|status| status.phase.as_deref())) {
        (Some(end), _) if now > end.0.as_second() + STUCK_AFTER_SECONDS => Phase::Stuck,
        (Some(_), _) => Phase::Terminating,
        (None, Some("Failed" | "Succeeded")) => Phase::Ended,
        (None, _) if is_running(pod) && worker.is_some_and(|(worker, _)| worker.is_online()) => Phase::Online,
        (None, _) => Phase::Starting,
    };
    debug_assert_eq!(pod.metadata.name, Some(pod_name(identity, ordinal)));
    PodState {
        ordinal,
        phase,
        is_current: pod.annotations().get(TEMPLATE).is_some_and(|made_from| made_from == template),
        drain: pod.annotations().get(DRAIN).map(|why| Drain::read(why)),
        leases: worker.map_or(0, |(_, tasks)| tasks.len()),
        is_open: worker.is_some_and(|(worker, _)| !worker.cordoned && !worker.draining),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use uuid::Uuid;

    fn phase(metadata: Value, status: Value, worker: Option<Worker>) -> PodState {
        let identity = Identity { namespace: "team-a".into(), name: "coders".into(), uid: Uuid::from_u128(7) };
        let mut metadata = metadata;
        metadata["name"] = "coders-3".into();
        let pod = serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap();
        let workers: Vec<(Worker, Vec<TaskId>)> = worker.map(|worker| (worker, vec![TaskId::nil(); 2])).into_iter().collect();
        let now = "2026-11-22T12:00:00Z".parse::<Timestamp>().unwrap().as_second();
        state(&identity, 3, &pod, "t1", &workers, now)
    }

    #[test]
    fn a_pod_is_online_with_its_worker() {
        let worker = || Some(Worker::new("team-a.coders-3".into(), 0));
        let running = || json!({ "phase": "Running" });
        let seen = phase(json!({ "annotations": { TEMPLATE: "t1", DRAIN: "outdated" } }), running(), worker());
        let wanted =
            PodState { ordinal: 3, phase: Phase::Online, is_current: true, drain: Some(Drain::Outdated), leases: 2, is_open: true };
        assert_eq!(seen, wanted);
        let lost = worker().map(|worker| Worker { lost: true, cordoned: true, ..worker });
        let seen = phase(json!({}), running(), lost);
        assert_eq!((seen.phase, seen.is_current, seen.is_open), (Phase::Starting, false, false));
        assert_eq!(phase(json!({}), json!({ "phase": "Pending" }), worker()).phase, Phase::Starting);
        assert_eq!(phase(json!({}), json!({ "phase": "Failed" }), worker()).phase, Phase::Ended);
    }

    #[test]
    fn a_pod_that_should_be_gone_is_stuck() {
        let deleted = |at: &str| phase(json!({ "deletionTimestamp": at }), json!({ "phase": "Running" }), None).phase;
        assert_eq!(deleted("2026-11-22T12:05:00Z"), Phase::Terminating);
        assert_eq!(deleted("2026-11-22T11:59:30Z"), Phase::Terminating);
        assert_eq!(deleted("2026-11-22T11:59:29Z"), Phase::Stuck);
    }
}
