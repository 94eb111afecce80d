//! Clients and workers that continue through all faults, and record what they were told.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::checker::{ClaimTime, ClientLog, Link, SHARED_CONTEXT};
use super::client::Api;
use super::{beside, delays, now_ms, unique};

/// How long a client waits for an answer before it asks another replica. Longer than a claim waits.
const LIMIT: Duration = Duration::from_secs(6);
/// For how many calls a replica that did not answer is skipped, so that most of the load continues while a replica is frozen.
const PASSED_OVER: usize = 12;
/// How long a claim waits for work.
const CLAIM_WAIT_SEC: i64 = 3;
/// Unfinished tasks.
const OPEN: &str = "task_state WHERE status IN ('queued', 'leased', 'running')";
/// How long the load may drain without a task finishing. Leases and reservations of workers that are gone end sooner.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
/// The number of unfinished tasks above which clients pause.
const AHEAD: usize = 120;

/// Load on one or more replicas, until it is ended.
pub struct Load {
    shared: Arc<Shared>,
    running: Vec<tokio::task::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Set to start nothing new.
    drain: AtomicBool,
    stop: AtomicBool,
    told: Mutex<ClientLog>,
    created: AtomicUsize,
    /// The number of acknowledged completions.
    completions: AtomicUsize,
    /// Notified when a task is completed.
    slot_freed: tokio::sync::Notify,
}

impl Load {
    /// Starts clients that create tasks of all kinds, workers that claim and complete them, and workers that disappear with the tasks that
    /// they hold. Each of them uses another replica for every call.
    pub fn start(replicas: &[Api]) -> Load {
        let slugs = [unique("load"), unique("load-too")];
        let mut load = Load { shared: Arc::default(), running: Vec::new() };
        for i in 0..3 {
            load.running.push(beside(load.actor(replicas, i).create_tasks(slugs.clone())));
        }
        for i in 0..4 {
            // Half of the workers serve both agents.
            let serves = if i % 2 == 0 { slugs.to_vec() } else { slugs[..1].to_vec() };
            load.running.push(beside(load.actor(replicas, i).work(serves)));
        }
        load.running.push(beside(load.actor(replicas, 0).vanish(slugs[0].clone())));
        load.running.push(beside(load.actor(replicas, 1).lease_for_a_moment(slugs[0].clone())));
        load.running.push(beside(load.actor(replicas, 2).measure()));
        load
    }

    fn actor(&self, replicas: &[Api], first: usize) -> Actor {
        Actor { replicas: replicas.to_vec(), turn: first, silent: None, shared: Arc::clone(&self.shared) }
    }

    /// Waits until this many more completions are acknowledged.
    pub async fn goes_on(&self, more: usize) {
        let done = || self.shared.completions.load(Ordering::Relaxed);
        let wanted = done() + more;
        super::eventually("more completions are acknowledged", || async { (done() >= wanted).then_some(()) }).await;
    }

    /// From here until [`faults_end`](Self::faults_end), delays are not compared.
    pub fn faults_begin(&self) {
        self.shared.told.lock().expect("the log").fault_times.push((now_ms(), i64::MAX));
    }

    pub fn faults_end(&self) {
        self.shared.told.lock().expect("the log").fault_times.last_mut().expect("a fault").1 = now_ms();
    }

    /// Waits until there are enough delays without faults to compare.
    pub async fn has_enough_delays(&self, url: &str) {
        super::eventually("there are enough delays to compare", || async {
            let told = self.shared.told.lock().expect("the log").clone();
            delays::read(url, &told).await.are_enough().then_some(())
        })
        .await;
    }

    /// Starts nothing new, and waits until all tasks are finished. It fails if a task is forgotten that can run, or could in time.
    pub async fn drains(&self, url: &str) {
        self.shared.drain.store(true, Ordering::Relaxed);
        let mut link = Link::open(url).await;
        let mut fewest = i64::MAX;
        let mut until = tokio::time::Instant::now();
        loop {
            let open = link.count(OPEN).await;
            if open == 0 {
                return;
            }
            if open < fewest {
                fewest = open;
                until = tokio::time::Instant::now() + PROGRESS_WITHIN;
            }
            if tokio::time::Instant::now() > until {
                let what = "SELECT {hex:id}, agent_slug, context_id, exclusive_key, status, parked, CAST(wake_at AS TEXT), worker_id, \
                    CAST(check_at AS TEXT), CAST(expires_at AS TEXT), CAST(updated_at AS TEXT)";
                let first = link.rows(&format!("{what} FROM {OPEN} ORDER BY id LIMIT 12")).await;
                let wakeups = link.rows("SELECT kind, subject, {hex:task_id}, {hex:cursor} FROM wakeups").await;
                panic!("{open} tasks are not done at {}; the first: {first:#?}; wake-ups: {wakeups:?}", now_ms());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends the load; returns what clients were told.
    pub async fn end(self) -> ClientLog {
        self.shared.stop.store(true, Ordering::Relaxed);
        for actor in self.running {
            actor.await.expect("a client");
        }
        std::mem::take(&mut *self.shared.told.lock().expect("the log"))
    }
}

struct Actor {
    replicas: Vec<Api>,
    turn: usize,
    /// A replica that did not answer, and the turn from which it is used again.
    silent: Option<(usize, usize)>,
    shared: Arc<Shared>,
}

impl Actor {
    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn begins_nothing(&self) -> bool {
        self.is_over() || self.shared.drain.load(Ordering::Relaxed)
    }

    /// The next replica; another one for each call.
    fn next(&mut self) -> Api {
        self.turn += 1;
        let is_silent = |turn: usize| self.silent.is_some_and(|(silent, until)| turn < until && turn % self.replicas.len() == silent);
        if is_silent(self.turn) {
            self.turn += 1;
        }
        self.replicas[self.turn % self.replicas.len()].clone()
    }

    /// Sends once; `None` if there was no answer, or a 503.
    async fn post(&mut self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let api = self.next();
        match tokio::time::timeout(LIMIT, api.try_post(path, body.clone())).await {
            Ok(Ok(answer)) if answer.status < 500 => return Some((answer.status, answer.json())),
            Ok(Ok(answer)) => {
                assert_eq!(answer.status, 503, "{}", answer.text);
                assert!(answer.header("retry-after").is_some(), "{}", answer.text);
            }
            Err(_) => self.silent = Some((self.turn % self.replicas.len(), self.turn + PASSED_OVER)),
            Ok(Err(_)) => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        None
    }

    async fn create_tasks(mut self, slugs: [String; 2]) {
        let mut before: Vec<String> = Vec::new();
        let mut number = 0;
        while !self.begins_nothing() {
            let tasks = (0..5).map(|_| {
                number += 1;
                self.task(number, &slugs, &before)
            });
            let batch = json!({ "tasks": tasks.collect::<Vec<_>>() });
            // A batch without an answer is sent again; its idempotency keys prevent duplicates.
            while !self.is_over() {
                if let Some((status, made)) = self.post("llm-tasks:batch", &batch).await {
                    assert!(matches!(status, 200 | 201), "{status}: {made}");
                    let ids = made["tasks"].as_array().expect("tasks").iter().map(|task| task["id"].as_str().expect("an id").to_owned());
                    before = ids.collect();
                    self.shared.told.lock().expect("the log").created.extend(before.iter().cloned());
                    let created = self.shared.created.fetch_add(before.len(), Ordering::Relaxed) + before.len();
                    if created > self.shared.completions.load(Ordering::Relaxed) + AHEAD {
                        let _ = tokio::time::timeout(Duration::from_millis(300), self.shared.slot_freed.notified()).await;
                    }
                    break;
                }
            }
        }
    }

    /// A task; the kinds take turns.
    fn task(&self, number: usize, slugs: &[String; 2], before: &[String]) -> Value {
        let mut task = json!({ "context_id": unique("load"), "agent_slug": slugs[0], "prompt": "p", "idempotency_key": unique("load") });
        match number % 9 {
            1 => task["priority"] = json!(number % 10),
            2 => task["agent_slug"] = json!(slugs[1]),
            3 => task["context_id"] = json!(format!("{SHARED_CONTEXT}-{}-{}", slugs[0], number / 9 % 12)),
            5 => task["exclusive_key"] = json!(format!("{}-key-{}", slugs[0], number / 9 % 3)),
            6 if !before.is_empty() => task["depends_on"] = json!(before[before.len() / 2..]),
            7 => task["not_before"] = json!(now_ms() + 200 + i64::try_from(number % 5).expect("few") * 150),
            8 => task["session"] = json!("none"),
            _ => {}
        }
        task
    }

    /// Registers a worker with a new name; `None` if the load has ended.
    async fn hire(&mut self, slots: i64, agents: &[String]) -> Option<String> {
        let name = unique("load-worker");
        let me = json!({ "name": name, "capabilities": { "max_concurrency": slots, "agents": agents } });
        while !self.is_over() {
            if let Some((status, answer)) = self.post("workers", &me).await {
                assert!(matches!(status, 200 | 201), "{status}: {answer}");
                return Some(name);
            }
        }
        None
    }

    async fn work(mut self, agents: Vec<String>) {
        let Some(name) = self.hire(8, &agents).await else { return };
        let mut held: Vec<(String, String)> = Vec::new();
        while !self.is_over() {
            let known = held.iter().map(|(_, lease)| lease).collect::<Vec<_>>();
            let wait = if self.shared.drain.load(Ordering::Relaxed) { 1 } else { CLAIM_WAIT_SEC };
            let claim = json!({ "max": 8, "wait_sec": wait, "held": known });
            let sent = now_ms();
            let Some((status, answer)) = self.post(&format!("workers/{name}/claim"), &claim).await else { continue };
            assert_eq!(status, 200, "{answer}");
            if held.is_empty() {
                let claim = ClaimTime { agents: agents.clone(), sent, answered: now_ms() };
                self.shared.told.lock().expect("the log").claims.push(claim);
            }
            held.extend(delivered(&answer));
            self.complete(&name, &mut held).await;
        }
    }

    /// Workers that claim tasks and then disappear. Every other one sends one heartbeat before.
    async fn vanish(mut self, slug: String) {
        for round in 0.. {
            if self.begins_nothing() {
                return;
            }
            let Some(name) = self.hire(2, std::slice::from_ref(&slug)).await else { return };
            let Some((_, answer)) = self.post(&format!("workers/{name}/claim"), &json!({ "max": 2, "wait_sec": 1 })).await else {
                continue;
            };
            if round % 2 == 0 {
                let leases = delivered(&answer).into_iter().map(|(_, lease)| lease).collect::<Vec<_>>();
                self.post(&format!("workers/{name}/heartbeat"), &json!({ "leases": leases })).await;
            }
            let _ = tokio::time::timeout(Duration::from_millis(700), std::future::pending::<()>()).await;
        }
    }

    /// Registers one worker again and again. This commit waits for nothing else, so its time shows how fast the machine is at that moment.
    async fn measure(mut self) {
        let me = json!({ "name": unique("load-measure"), "capabilities": { "agents": [] } });
        while !self.is_over() {
            let sent = now_ms();
            if self.post("workers", &me).await.is_some() {
                self.shared.told.lock().expect("the log").commits.push((sent, now_ms()));
            }
            let _ = tokio::time::timeout(Duration::from_millis(25), std::future::pending::<()>()).await;
        }
    }

    /// Leases tasks by lease calls for a second. Every other lease is completed; the others expire.
    async fn lease_for_a_moment(mut self, slug: String) {
        let Some(name) = self.hire(32, std::slice::from_ref(&slug)).await else { return };
        while !self.begins_nothing() {
            let list = format!("llm-tasks?status=queued&agent_slug={slug}&limit=4");
            let api = self.next();
            let Ok(Ok(answer)) = tokio::time::timeout(LIMIT, api.try_get(&list)).await else { continue };
            let queued = if answer.status == 200 { answer.json() } else { json!([]) };
            for (i, task) in queued.as_array().expect("a list").iter().enumerate() {
                let id = task["id"].as_str().expect("an id");
                let body = json!({ "worker_id": name, "ttl_seconds": 1 });
                let Some((201, leased)) = self.post(&format!("llm-tasks/{id}/lease"), &body).await else { continue };
                let lease = leased["lease"]["id"].as_str().expect("an id").to_owned();
                if i % 2 == 0 {
                    self.complete(&name, &mut vec![(id.to_owned(), lease)]).await;
                }
            }
            let _ = tokio::time::timeout(Duration::from_millis(400), std::future::pending::<()>()).await;
        }
    }

    /// Completes the held tasks: two of them in a call each, the others in one call. Those without an answer stay in `held`.
    async fn complete(&mut self, name: &str, held: &mut Vec<(String, String)>) {
        let together = held.split_off(held.len().min(2));
        let mut unanswered = Vec::new();
        for (task, lease) in held.drain(..) {
            let body = json!({ "status": "success", "output": lease, "lease_id": lease, "metrics": { "duration_ms": 1 } });
            match self.post(&format!("llm-tasks/{task}/complete"), &body).await {
                Some((200, _)) => self.record(task, lease),
                // The lease expired while no server answered, and the task has been leased again.
                Some((404 | 409, _)) => {}
                Some((status, body)) => panic!("{status}: {body}"),
                None => unanswered.push((task, lease)),
            }
        }
        let completions = together.iter().map(|(task, lease)| {
            json!({ "task_id": task, "lease_id": lease, "status": "success", "output": lease, "metrics": { "duration_ms": 1 } })
        });
        let body = json!({ "completions": completions.collect::<Vec<_>>() });
        if together.is_empty() {
            *held = unanswered;
            return;
        }
        match self.post(&format!("workers/{name}/complete"), &body).await {
            Some((200, answer)) => {
                for ((task, lease), result) in together.into_iter().zip(answer["results"].as_array().expect("results")) {
                    if result["status"] == 200 {
                        self.record(task, lease);
                    }
                }
            }
            Some((status, body)) => panic!("{status}: {body}"),
            None => unanswered.extend(together),
        }
        *held = unanswered;
    }

    fn record(&self, task: String, lease: String) {
        self.shared.completions.fetch_add(1, Ordering::Relaxed);
        self.shared.slot_freed.notify_one();
        self.shared.told.lock().expect("the log").completed.push((task, lease.clone(), lease));
    }
}

/// The task and the lease of each entry that a claim delivered.
fn delivered(answer: &Value) -> Vec<(String, String)> {
    let entries = answer["leases"].as_array().into_iter().flatten();
    entries.map(|entry| [&entry["task"]["id"], &entry["lease"]["id"]].map(|id| id.as_str().expect("an id").to_owned()).into()).collect()
}
