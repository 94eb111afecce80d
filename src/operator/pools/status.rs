//! The status of a pool, computed by pure functions from its pods and problems.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::ObjectMeta;

use super::Problem;
use super::pod::{POOL, Setup, pod_name};
use super::scale::{Drain, Phase, PodState};
use crate::crds::pool::WorkerPoolStatus;
use crate::object::Identity;
use crate::words::{cut, time};

/// The size limit of messages. Kubernetes allows 32 KiB in conditions.
const MESSAGE_BYTES: usize = 1_024;
const ACCEPTED: &str = "Accepted";
const READY: &str = "Ready";
const PROGRESSING: &str = "Progressing";
/// Reasons for a waiting container that are normal during its start.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// A condition without its times.
struct Fact {
    kind: &'static str,
    holds: bool,
    reason: String,
    message: String,
}

impl Fact {
    fn new(kind: &'static str, holds: bool, reason: &str, message: String) -> Self {
        Self { kind, holds, reason: reason.to_owned(), message }
    }
}

/// What a status is made from.
pub(crate) struct View<'a> {
    pub desired: usize,
    pub pods: &'a [PodState],
    /// What keeps pods from being created, or from starting.
    pub problem: Option<&'a Problem>,
}

/// The status of a pool that is served.
pub(crate) fn of(metadata: &ObjectMeta, before: &WorkerPoolStatus, setup: &Setup<'_>, view: &View<'_>, now_ms: i64) -> WorkerPoolStatus {
    let count = |holds: &dyn Fn(&PodState) -> bool| i64::try_from(view.pods.iter().filter(|pod| holds(pod)).count()).ok();
    let is_alive = |pod: &PodState| matches!(pod.phase, Phase::Starting | Phase::Online);
    let facts = [Fact::new(ACCEPTED, true, "Accepted", String::new()), ready(view), progressing(setup.identity, view)];
    WorkerPoolStatus {
        observed_generation: metadata.generation,
        replicas: count(&is_alive),
        desired_replicas: i64::try_from(view.desired).ok(),
        ready_replicas: count(&|pod| pod.phase == Phase::Online),
        updated_replicas: count(&|pod| is_alive(pod) && pod.is_current),
        busy_replicas: count(&|pod| pod.leases > 0),
        selector: Some(format!("{POOL}={}", setup.identity.name)),
        image: Some(setup.image.clone()),
        namespaces: Some(setup.namespaces.clone()),
        conditions: facts.map(|fact| condition(metadata, before, fact, now_ms)).into(),
    }
}

/// The status of a pool that is not served. Its existing pods continue.
pub(crate) fn refused(metadata: &ObjectMeta, before: &WorkerPoolStatus, problem: &Problem, now_ms: i64) -> WorkerPoolStatus {
    let of = |kind| Fact::new(kind, false, &problem.reason, problem.message.clone());
    WorkerPoolStatus {
        observed_generation: metadata.generation,
        // The scale subresource does not work without the selector.
        selector: Some(format!("{POOL}={}", metadata.name.as_deref().unwrap_or_default())),
        conditions: [ACCEPTED, READY, PROGRESSING].map(|kind| condition(metadata, before, of(kind), now_ms)).into(),
        ..before.clone()
    }
}

fn ready(view: &View<'_>) -> Fact {
    let online = view.pods.iter().filter(|pod| pod.phase == Phase::Online && pod.drain != Some(Drain::Surplus)).count();
    let desired = view.desired;
    match view.problem {
        _ if online >= desired => Fact::new(READY, true, "WorkersOnline", String::new()),
        Some(problem) => Fact::new(READY, false, &problem.reason, problem.message.clone()),
        None => Fact::new(READY, false, "WaitingForWorkers", format!("{online} of {desired} workers are online")),
    }
}

fn progressing(identity: &Identity, view: &View<'_>) -> Fact {
    let names = |holds: &dyn Fn(&PodState) -> bool| {
        let names: Vec<String> = view.pods.iter().filter(|pod| holds(pod)).map(|pod| pod_name(identity, pod.ordinal)).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let is = |holds: bool, reason: &str, message: String| Fact::new(PROGRESSING, holds, reason, message);
    if let Some(names) = names(&|pod| pod.drain == Some(Drain::Surplus) && pod.leases > 0) {
        return is(true, "Draining", format!("Removed when their tasks have ended: {names}"));
    }
    if let Some(names) = names(&|pod| pod.drain == Some(Drain::Outdated)) {
        return is(true, "Replacing", format!("Replaced when their tasks have ended: {names}"));
    }
    if view.pods.iter().any(|pod| pod.phase != Phase::Online) || view.pods.len() != view.desired {
        return is(true, "Scaling", "Pods are being created or deleted".to_owned());
    }
    is(false, "Complete", String::new())
}

fn condition(metadata: &ObjectMeta, before: &WorkerPoolStatus, fact: Fact, now_ms: i64) -> Condition {
    let status = if fact.holds { "True" } else { "False" };
    let known = before.conditions.iter().find(|condition| condition.type_ == fact.kind && condition.status == status);
    Condition {
        type_: fact.kind.into(),
        status: status.into(),
        observed_generation: metadata.generation,
        last_transition_time: known.map_or_else(|| time(now_ms), |known| known.last_transition_time.clone()),
        reason: fact.reason,
        message: cut(&fact.message, MESSAGE_BYTES).to_owned(),
    }
}

/// Why a pod does not start, in the cluster's words.
pub(crate) fn trouble(pod: &Pod) -> Option<Problem> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    if let Some(unscheduled) = conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False") {
        let why = unscheduled.message.as_deref().unwrap_or_default();
        return Some(Problem::new("Unschedulable", format!("The pod {name} can't be scheduled: {why}")));
    }
    let container = status.container_statuses.iter().flatten().next()?;
    let state = container.state.as_ref()?;
    // A container that has ended is first in the state `terminated`, and then waits for its next start.
    let end = state.terminated.as_ref().or_else(|| container.last_state.as_ref()?.terminated.as_ref());
    let end = end.filter(|end| end.exit_code != 0);
    let (reason, message) = match (&state.waiting, &state.terminated) {
        (Some(waiting), _) => (waiting.reason.as_deref(), waiting.message.as_deref()),
        (None, Some(_)) => (end?.reason.as_deref(), None),
        (None, None) => return None,
    };
    let reason = reason.filter(|reason| !STARTING.contains(reason) && !reason.is_empty())?;
    let last_words = end.and_then(|end| end.message.as_deref()).filter(|message| !message.trim().is_empty());
    let why = last_words.or(message).map_or_else(|| exit_status(end), |why| why.trim().to_owned());
    Some(Problem::new_owned(reason, format!("The pod {name} does not start: {why}")))
}

fn exit_status(end: Option<&ContainerStateTerminated>) -> String {
    end.map_or_else(String::new, |end| format!("its agent ended with the exit status {}", end.exit_code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "p-0" }, "status": status })).unwrap()
    }

    #[test]
    fn the_words_of_the_cluster_are_told() {
        let told = |status| trouble(&pod(status)).map(|problem| (problem.reason.to_string(), problem.message));
        let is = |reason: &str, message: &str| Some((reason.to_owned(), message.to_owned()));
        let unscheduled = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" }] });
        assert_eq!(told(unscheduled), is("Unschedulable", "The pod p-0 can't be scheduled: 0/3 nodes are available"));
        let container = |state: serde_json::Value, last: serde_json::Value| {
            let container = json!({ "name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 1, "state": state, "lastState": last });
            json!({ "containerStatuses": [container] })
        };
        let waiting = |reason: &str| json!({ "waiting": { "reason": reason, "message": "no such image" } });
        let none = json!({});
        assert_eq!(
            told(container(waiting("ImagePullBackOff"), none.clone())),
            is("ImagePullBackOff", "The pod p-0 does not start: no such image")
        );
        let ended = json!({ "terminated": { "exitCode": 2, "message": "error: no profile\n" } });
        assert_eq!(
            told(container(waiting("CrashLoopBackOff"), ended)),
            is("CrashLoopBackOff", "The pod p-0 does not start: error: no profile")
        );
        let ended = |code: i32, message: &str| json!({ "terminated": { "exitCode": code, "reason": "Error", "message": message } });
        assert_eq!(told(container(ended(2, "error: no key"), none.clone())), is("Error", "The pod p-0 does not start: error: no key"));
        assert_eq!(
            told(container(ended(3, ""), none.clone())),
            is("Error", "The pod p-0 does not start: its agent ended with the exit status 3")
        );
        assert_eq!(told(container(ended(0, ""), none.clone())), None);
        assert_eq!(told(container(waiting("ContainerCreating"), none.clone())), None);
        assert_eq!(told(container(json!({ "running": {} }), none)), None);
    }
}
