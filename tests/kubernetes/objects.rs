//! LLMTasks, for tests.

use bloom_operator::crds::LLMTask;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::cluster::Tenant;
use crate::support::{Api as HttpApi, Server, eventually, unique};

/// An LLMTask for agents of this slug.
pub fn object(name: &str, slug: &str, fields: Value) -> Value {
    let mut spec = json!({ "contextId": "repo", "agentSlug": slug, "session": "none" });
    if fields.get("promptFrom").is_none() {
        spec["prompt"] = "Say hello".into();
    }
    spec.as_object_mut().expect("a spec").extend(fields.as_object().expect("fields").clone());
    json!({ "apiVersion": "bloom-runtime.dev/v1alpha1", "kind": "LLMTask", "metadata": { "name": name }, "spec": spec })
}

impl Tenant {
    pub async fn create(&self, slug: &str, fields: Value) -> String {
        let name = unique("task");
        let object: LLMTask = serde_json::from_value(object(&name, slug, fields)).expect("an LLMTask");
        self.api::<LLMTask>().create(&PostParams::default(), &object).await.expect("it is created");
        name
    }

    pub async fn get(&self, name: &str) -> LLMTask {
        self.api::<LLMTask>().get(name).await.expect("an LLMTask")
    }

    /// Waits until the object shows this.
    pub async fn shows(&self, name: &str, what: &str, holds: impl Fn(&LLMTask) -> bool) -> LLMTask {
        let api: Api<LLMTask> = self.api();
        eventually(&format!("{name}: {what}"), || async { api.get(name).await.ok().filter(&holds) }).await
    }

    pub async fn is_in_phase(&self, name: &str, wanted: &str) -> LLMTask {
        self.shows(name, wanted, |object| phase(object) == Some(wanted)).await
    }

    /// Waits until there is no such object.
    pub async fn is_gone(&self, name: &str) {
        let api: Api<LLMTask> = self.api();
        eventually(&format!("{name} is gone"), || async { api.get_opt(name).await.ok().filter(Option::is_none) }).await;
    }

    pub async fn patch(&self, name: &str, spec: Value) -> kube::Result<LLMTask> {
        let patch = kube::api::Patch::Merge(json!({ "spec": spec }));
        self.api::<LLMTask>().patch(name, &kube::api::PatchParams::default(), &patch).await
    }

    pub async fn delete(&self, name: &str) {
        self.api::<LLMTask>().delete(name, &kube::api::DeleteParams::default()).await.expect("it is deleted");
    }

    pub async fn task_id(&self, name: &str) -> String {
        let object = self.shows(name, "its task", |object| task_id(object).is_some()).await;
        task_id(&object).expect("an id").to_owned()
    }
}

pub fn phase(object: &LLMTask) -> Option<&str> {
    object.status.as_ref()?.phase.as_deref()
}

pub fn task_id(object: &LLMTask) -> Option<&str> {
    object.status.as_ref()?.task_id.as_deref()
}

pub fn lease_name(object: &LLMTask) -> Option<&str> {
    object.status.as_ref()?.lease_name.as_deref()
}

pub fn condition<'a>(object: &'a LLMTask, kind: &str) -> Option<&'a Condition> {
    object.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
}

pub fn is_true(object: &LLMTask, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition.status == "True")
}

/// A worker that a test plays over HTTP.
pub struct Player<'a> {
    server: &'a Server,
    pub name: String,
}

impl<'a> Player<'a> {
    pub async fn join(server: &'a Server, slug: &str, slots: u32) -> Player<'a> {
        Self::able(server, json!({ "max_concurrency": slots, "agents": [slug] })).await
    }

    /// A worker with these capabilities.
    pub async fn able(server: &'a Server, capabilities: Value) -> Player<'a> {
        let name = unique("worker");
        server.post("workers", json!({ "name": name, "capabilities": capabilities })).await.created();
        Self { server, name }
    }

    /// Whether there is nothing for it now.
    pub async fn finds_nothing(&self) -> bool {
        self.server.post(&format!("workers/{}/claim", self.name), json!({ "max": 1 })).await.ok()["leases"] == json!([])
    }

    /// Claims a task; waits for it for a while.
    pub async fn claim(&self) -> Value {
        let answer = self.server.post(&format!("workers/{}/claim", self.name), json!({ "max": 1, "wait_sec": 30 })).await.ok();
        let leases = answer["leases"].as_array().expect("leases").clone();
        leases.into_iter().next().unwrap_or_else(|| panic!("no task for {}: {answer}", self.name))
    }

    pub async fn complete(&self, claimed: &Value, more: Value) {
        let mut body = json!({
            "status": "success", "output": "done", "metrics": { "duration_ms": 5 }, "lease_id": claimed["lease"]["id"],
        });
        body.as_object_mut().expect("a body").extend(more.as_object().expect("fields").clone());
        let id = claimed["task"]["id"].as_str().expect("an id");
        self.server.post(&format!("llm-tasks/{id}/complete"), body).await.ok();
    }
}

/// How many calls of the operator have changed what belongs to tasks: not Workers, and not the leader's Lease.
pub async fn writes(server: &Server) -> f64 {
    writes_of(server, &["LLMTask", "TaskLease", "Event"]).await
}

/// How many calls of the operator have changed objects of these kinds.
pub async fn writes_of(server: &HttpApi, kinds: &[&str]) -> f64 {
    let text = server.get("/metrics").await.expect(200).text;
    let is_of = |line: &&str| kinds.iter().any(|kind| line.contains(&format!("kind=\"{kind}\"")));
    let lines = text.lines().filter(|line| line.starts_with("bloom_kubernetes_writes_total"));
    lines.filter(is_of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
