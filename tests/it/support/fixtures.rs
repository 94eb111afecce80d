//! Tasks, workers and leases for tests.
//!
//! A [`Crew`] is an agent slug of its own with workers that serve only that slug, so that tests on a shared server do not get each other's
//! tasks.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Server;
use super::client::{Answer, Api};
use super::unique;

pub struct Crew<'a> {
    pub api: &'a Api,
    pub slug: String,
}

/// One crew, through two replicas.
pub fn crew_on_both(servers: &[Arc<Server>]) -> (Crew<'_>, Crew<'_>) {
    let slug = unique("agent");
    (Crew { api: &servers[0], slug: slug.clone() }, Crew { api: &servers[1], slug })
}

impl Api {
    pub fn crew(&self) -> Crew<'_> {
        Crew { api: self, slug: unique("agent") }
    }

    /// A worker that serves every agent.
    pub fn worker(&self) -> NewWorker<'_> {
        NewWorker { api: self, name: unique("worker"), capabilities: Map::new(), body: Map::new() }
    }

    /// The task with this id.
    pub fn task<'a>(&'a self, id: &str) -> Task<'a> {
        Task { api: self, id: id.to_owned() }
    }
}

impl<'a> Crew<'a> {
    /// A worker that serves only this crew.
    pub fn worker(&self) -> NewWorker<'a> {
        let mut worker = self.api.worker();
        worker.capabilities.insert("agents".into(), json!([self.slug]));
        worker
    }

    /// A task for this crew, in a context of its own.
    pub fn task(&self) -> NewTask<'a> {
        NewTask { api: self.api, body: Map::new() }
            .with("context_id", json!(unique("context")))
            .with("agent_slug", json!(self.slug))
            .with("prompt", json!("Say hello"))
    }

    /// A task of this crew, leased by a lease call.
    pub async fn leased_task(&self) -> (Task<'a>, Lease<'a>) {
        let worker = self.worker().register().await;
        let task = self.task().create().await;
        let lease = task.lease_to(&worker).await;
        (task, lease)
    }
}

pub struct NewWorker<'a> {
    api: &'a Api,
    name: String,
    capabilities: Map<String, Value>,
    body: Map<String, Value>,
}

impl<'a> NewWorker<'a> {
    pub fn slots(self, slots: i64) -> Self {
        self.able("max_concurrency", json!(slots))
    }

    /// Adds this to `capabilities`.
    pub fn able(mut self, key: &str, value: Value) -> Self {
        self.capabilities.insert(key.into(), value);
        self
    }

    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.body.insert(key.into(), value);
        self
    }

    pub async fn answer(&self) -> Answer {
        let mut body = self.body.clone();
        body.insert("name".into(), json!(self.name));
        if !self.capabilities.is_empty() {
            body.insert("capabilities".into(), Value::Object(self.capabilities.clone()));
        }
        self.api.post("workers", Value::Object(body)).await
    }

    pub async fn register(self) -> Worker<'a> {
        self.answer().await.created();
        Worker { api: self.api, name: self.name }
    }
}

#[derive(Clone)]
pub struct Worker<'a> {
    pub api: &'a Api,
    pub name: String,
}

impl Worker<'_> {
    pub fn path(&self, tail: &str) -> String {
        format!("workers/{}{tail}", self.name)
    }

    pub async fn now(&self) -> Value {
        self.api.get(&self.path("")).await.ok()
    }

    pub async fn status(&self) -> String {
        self.now().await["status"].as_str().expect("a status").to_owned()
    }

    /// Claims without waiting; returns `[{lease, task}]`.
    pub async fn claim(&self, max: i64) -> Vec<Value> {
        self.claim_within(max, 0).await
    }

    /// Claims, and waits for work up to this many seconds.
    pub async fn claim_within(&self, max: i64, wait_sec: i64) -> Vec<Value> {
        let answer = self.api.post(&self.path("/claim"), json!({ "max": max, "wait_sec": wait_sec })).await.ok();
        answer["leases"].as_array().expect("leases").clone()
    }

    pub async fn set_status(&self, status: &str) {
        self.api.post("workers", json!({ "name": self.name, "status": status })).await.ok();
    }

    pub async fn cordon(&self) {
        self.api.poke(&self.path("/cordon")).await.ok();
    }
}

/// The ids of the leases that a claim delivered.
pub fn lease_ids(claimed: &[Value]) -> Vec<String> {
    claimed.iter().map(|entry| entry["lease"]["id"].as_str().expect("a lease id").to_owned()).collect()
}

pub struct NewTask<'a> {
    api: &'a Api,
    pub body: Map<String, Value>,
}

impl<'a> NewTask<'a> {
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.body.insert(key.into(), value);
        self
    }

    pub fn without(mut self, key: &str) -> Self {
        self.body.remove(key);
        self
    }

    pub fn prompt(self, text: &str) -> Self {
        self.with("prompt", json!(text))
    }

    pub fn context(self, context: &str) -> Self {
        self.with("context_id", json!(context))
    }

    pub fn attempts(self, most: i64) -> Self {
        self.with("max_attempts", json!(most))
    }

    pub fn json(&self) -> Value {
        Value::Object(self.body.clone())
    }

    pub async fn answer(self) -> Answer {
        self.api.post("llm-tasks", Value::Object(self.body)).await
    }

    pub async fn create(self) -> Task<'a> {
        let api = self.api;
        let task = self.answer().await.created();
        api.task(task["id"].as_str().expect("an id"))
    }
}

#[derive(Clone)]
pub struct Task<'a> {
    pub api: &'a Api,
    pub id: String,
}

impl<'a> Task<'a> {
    pub fn path(&self, tail: &str) -> String {
        format!("llm-tasks/{}{tail}", self.id)
    }

    pub async fn now(&self) -> Value {
        self.api.get(&self.path("")).await.ok()
    }

    pub async fn status(&self) -> String {
        self.now().await["status"].as_str().expect("a status").to_owned()
    }

    /// Waits until the task has this status, and returns it.
    pub async fn reaches(&self, status: &str) -> Value {
        super::eventually(&format!("task {} is {status}", self.id), || async {
            let task = self.now().await;
            (task["status"] == status).then_some(task)
        })
        .await
    }

    /// Why the task waits; `""` if it does not.
    pub async fn waits_for(&self) -> String {
        self.now().await["waiting"]["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// A lease call.
    pub async fn lease(&self, body: Value) -> Answer {
        self.api.post(&self.path("/lease"), body).await
    }

    pub async fn lease_to(&self, worker: &Worker<'_>) -> Lease<'a> {
        self.lease_for(worker, 300).await
    }

    pub async fn lease_for(&self, worker: &Worker<'_>, ttl_seconds: i64) -> Lease<'a> {
        let answer = self.lease(json!({ "worker_id": worker.name, "ttl_seconds": ttl_seconds })).await.created();
        Lease { task: self.clone(), id: answer["lease"]["id"].as_str().expect("an id").to_owned(), json: answer["lease"].clone() }
    }

    pub async fn heartbeat(&self, body: Value) -> Answer {
        self.api.post(&self.path("/heartbeat"), body).await
    }

    pub async fn complete(&self, body: Value) -> Answer {
        self.api.post(&self.path("/complete"), body).await
    }

    /// Completes the task with success, naming neither lease nor worker.
    pub async fn succeed(&self, output: &str) -> Value {
        self.complete(json!({ "status": "success", "output": output, "metrics": { "duration_ms": 5 } })).await.ok()
    }

    /// Completes the task with an error, naming neither lease nor worker.
    pub async fn fail(&self, message: &str) -> Value {
        self.complete(json!({ "status": "error", "error_message": message, "metrics": { "duration_ms": 5 } })).await.ok()
    }

    pub async fn cancel(&self) -> Answer {
        self.api.poke(&self.path("/cancel")).await
    }

    pub async fn requeue(&self) -> Answer {
        self.api.poke(&self.path("/requeue")).await
    }
}

#[derive(Clone)]
pub struct Lease<'a> {
    pub task: Task<'a>,
    pub id: String,
    /// The lease in the answer to the lease call.
    pub json: Value,
}

impl Lease<'_> {
    /// The lease as the list of leases shows it.
    pub async fn now(&self) -> Value {
        let mut page = Some("/api/runtime/leases?limit=1000".to_owned());
        while let Some(path) = page {
            let answer = self.task.api.get(&path).await.expect(200);
            page = answer.next_page();
            let found = answer.json().as_array().expect("a list").iter().find(|lease| lease["id"] == self.id).cloned();
            if let Some(lease) = found {
                return lease;
            }
        }
        panic!("lease {} is in no list", self.id);
    }

    /// Waits until the lease has this status.
    pub async fn reaches(&self, status: &str) -> Value {
        super::eventually(&format!("lease {} is {status}", self.id), || async {
            let lease = self.now().await;
            (lease["status"] == status).then_some(lease)
        })
        .await
    }

    /// A completion that names this lease, with the fields of `more` added.
    pub async fn complete(&self, status: &str, more: Value) -> Answer {
        let mut body = json!({ "status": status, "lease_id": self.id, "metrics": { "duration_ms": 5 } });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        self.task.complete(body).await
    }

    pub async fn heartbeat(&self) -> Answer {
        self.task.heartbeat(json!({ "lease_id": self.id })).await
    }
}
