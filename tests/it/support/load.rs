//! Clients and workers that go on whatever happens to the servers, and remember what they were told.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::checker::ClientLog;
use super::client::Api;
use super::{beside, unique};

/// Load on one or more replicas; it runs until it is ended.
pub struct Load {
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<ClientLog>>,
    running: Vec<tokio::task::JoinHandle<()>>,
    /// Completions acknowledged so far.
    completions: Arc<AtomicUsize>,
}

impl Load {
    /// Starts clients that create tasks and workers that claim and complete them; they take turns at the replicas.
    pub fn start(replicas: &[Api]) -> Load {
        let slug = unique("load");
        let mut load = Load { stop: Arc::default(), told: Arc::default(), running: Vec::new(), completions: Arc::default() };
        for i in 0..4 {
            let actor = load.actor(replicas, i);
            load.running.push(beside(actor.create_tasks(slug.clone())));
        }
        for i in 0..4 {
            let actor = load.actor(replicas, i);
            load.running.push(beside(actor.work(slug.clone())));
        }
        load
    }

    fn actor(&self, replicas: &[Api], first: usize) -> Actor {
        Actor {
            replicas: replicas.to_vec(),
            turn: first,
            stop: Arc::clone(&self.stop),
            told: Arc::clone(&self.told),
            completions: Arc::clone(&self.completions),
        }
    }

    /// Waits until this many more completions were acknowledged.
    pub async fn goes_on(&self, more: usize) {
        let wanted = self.completions.load(Ordering::Relaxed) + more;
        super::eventually("the load goes on", || async { (self.completions.load(Ordering::Relaxed) >= wanted).then_some(()) }).await;
    }

    /// Ends it; what was told.
    pub async fn end(self) -> ClientLog {
        self.stop.store(true, Ordering::Relaxed);
        for actor in self.running {
            actor.await.expect("a client");
        }
        std::mem::take(&mut *self.told.lock().expect("the log"))
    }
}

struct Actor {
    replicas: Vec<Api>,
    turn: usize,
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<ClientLog>>,
    completions: Arc<AtomicUsize>,
}

impl Actor {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sends it once; `None` when there was no answer, or one that says "later". The next request goes to the next replica.
    async fn post(&mut self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let api = self.replicas[self.turn % self.replicas.len()].clone();
        let limit = Duration::from_secs(5);
        let answer = tokio::time::timeout(limit, api.try_post(path, body.clone())).await;
        match answer {
            Ok(Ok(answer)) if answer.status < 500 => Some((answer.status, answer.json())),
            Ok(Ok(answer)) => {
                assert_eq!(answer.status, 503, "{}", answer.text);
                assert!(answer.header("retry-after").is_some(), "{}", answer.text);
                self.pass_on().await
            }
            _ => self.pass_on().await,
        }
    }

    async fn pass_on<T>(&mut self) -> Option<T> {
        self.turn += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
        None
    }

    async fn create_tasks(mut self, slug: String) {
        while !self.is_over() {
            let tasks = (0..3)
                .map(|_| json!({ "context_id": unique("load"), "agent_slug": slug, "prompt": "p", "idempotency_key": unique("load") }));
            let batch = json!({ "tasks": tasks.collect::<Vec<_>>() });
            // A request without an answer is repeated: its keys keep it from being done twice.
            while !self.is_over() {
                if let Some((status, made)) = self.post("llm-tasks:batch", &batch).await {
                    assert!(matches!(status, 200 | 201), "{status}: {made}");
                    let ids = made["tasks"].as_array().expect("tasks").iter().map(|task| task["id"].as_str().expect("an id").to_owned());
                    self.told.lock().expect("the log").created.extend(ids);
                    break;
                }
            }
        }
    }

    async fn work(mut self, slug: String) {
        let name = unique("load-worker");
        let me = json!({ "name": name, "capabilities": { "max_concurrency": 8, "agents": [slug] } });
        while !self.is_over() && self.post("workers", &me).await.is_none() {}
        let mut held: Vec<(String, String)> = Vec::new();
        while !self.is_over() {
            let known = held.iter().map(|(_, lease)| lease).collect::<Vec<_>>();
            let claim = json!({ "max": 8, "wait_sec": 1, "held": known });
            let Some((status, answer)) = self.post(&format!("workers/{name}/claim"), &claim).await else { continue };
            assert_eq!(status, 200, "{answer}");
            for entry in answer["leases"].as_array().expect("leases") {
                let [task, lease] = [&entry["task"]["id"], &entry["lease"]["id"]].map(|id| id.as_str().expect("an id").to_owned());
                held.push((task, lease));
            }
            self.complete(&name, &mut held).await;
        }
    }

    /// Completes what is held, one half each alone, the other in one call; keeps what got no answer.
    async fn complete(&mut self, name: &str, held: &mut Vec<(String, String)>) {
        let together = held.split_off(held.len() / 2);
        let mut unanswered = Vec::new();
        for (task, lease) in held.drain(..) {
            let body = json!({ "status": "success", "output": lease, "lease_id": lease, "metrics": { "duration_ms": 1 } });
            match self.post(&format!("llm-tasks/{task}/complete"), &body).await {
                Some((200, _)) => self.note(task, lease),
                // The lease was lost to time while nobody answered: somebody else has the task.
                Some((404 | 409, _)) => {}
                Some((status, body)) => panic!("{status}: {body}"),
                None => unanswered.push((task, lease)),
            }
        }
        let completions = together.iter().map(|(task, lease)| {
            json!({ "task_id": task, "lease_id": lease, "status": "success", "output": lease, "metrics": { "duration_ms": 1 } })
        });
        let body = json!({ "completions": completions.collect::<Vec<_>>() });
        match self.post(&format!("workers/{name}/complete"), &body).await {
            Some((200, answer)) => {
                for ((task, lease), result) in together.into_iter().zip(answer["results"].as_array().expect("results")) {
                    if result["status"] == 200 {
                        self.note(task, lease);
                    }
                }
            }
            Some((status, body)) => panic!("{status}: {body}"),
            None => unanswered.extend(together),
        }
        *held = unanswered;
    }

    fn note(&self, task: String, lease: String) {
        self.completions.fetch_add(1, Ordering::Relaxed);
        self.told.lock().expect("the log").completed.push((task, lease.clone(), lease));
    }
}
