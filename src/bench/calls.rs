//! The API calls of the scenarios, each timed under its name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::client::{Client, Response};
use super::latency::Latency;
use super::{Bench, BenchError};
use bloom_api::answers::{Claimed, Leased, RenewedLeases, RunResult, RunResults};
use bloom_api::capabilities::{GivenCapabilities, NewCapabilities};
use bloom_api::complete::{Completion, NewCompletions, WorkerCompletion};
use bloom_api::new_tasks::{NewTask, NewTasks};
use bloom_api::requests::{Accounts, Claim, Heartbeat, NewLease, NewWorker, WorkerHeartbeat};
use bloom_api::tasks::Task;
use bloom_api::values::{Id, Int};
use bloom_core::task::Outcome;
use bloom_core::worker::MAX_CONCURRENCY;

/// Every scenario has an agent slug of its own, so that its workers get only its tasks.
pub(crate) const LIFECYCLE_AGENT: &str = "bench-lifecycle";
pub(crate) const BATCHED_AGENT: &str = "bench-batched";
pub(crate) const WAKE_AGENT: &str = "bench-wake";
/// The agent slug of the tasks in the long queue.
pub(crate) const QUEUE_AGENT: &str = "bench-queue";
pub(crate) const AGENTS: [&str; 4] = [LIFECYCLE_AGENT, BATCHED_AGENT, WAKE_AGENT, QUEUE_AGENT];

/// The slots of a worker of the benchmark: the maximum.
pub(crate) const SLOTS: usize = MAX_CONCURRENCY as usize;
/// The length of a prompt and of an output: short, so that the figures measure the control plane and not the network.
const TEXT: usize = 200;

/// A leased task, and the lease id that later calls send; `None` to leave it out, as the API allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub task: Uuid,
    pub lease: Option<Uuid>,
}

/// One client: a connection, and the latencies of its calls.
pub(crate) struct Session {
    bench: Arc<Bench>,
    client: Client,
    /// The name of its worker; empty if it has none.
    worker: String,
    agent: &'static str,
    index: usize,
    made: u64,
    /// Calls that began before this time are warm-up and not measured.
    pub measure_from: Instant,
    pub calls: Vec<(&'static str, Latency)>,
}

impl Session {
    /// Connects a client that only creates and reads tasks of this agent slug.
    pub(crate) async fn connect(bench: &Arc<Bench>, agent: &'static str, index: usize) -> Result<Self, BenchError> {
        Ok(Self {
            bench: bench.clone(),
            client: Client::connect(&bench.target).await?,
            worker: String::new(),
            agent,
            index,
            made: 0,
            measure_from: Instant::now(),
            calls: Vec::new(),
        })
    }

    /// Connects, and registers a worker that serves only this agent slug, so that it can't take other tasks.
    pub(crate) async fn connect_worker(bench: &Arc<Bench>, agent: &'static str, index: usize) -> Result<Self, BenchError> {
        let mut session = Self::connect(bench, agent, index).await?;
        session.worker = format!("{agent}-{}-{index}", bench.label);
        let agents = Some([agent].into_iter().collect());
        let known = NewCapabilities { max_concurrency: Some(Int(MAX_CONCURRENCY)), agents, ..NewCapabilities::default() };
        let worker = NewWorker {
            name: session.worker.as_str().into(),
            capabilities: Some(GivenCapabilities { known, ..GivenCapabilities::default() }),
            ..NewWorker::default()
        };
        session.client.expect(&Method::POST, "/api/runtime/workers", encode(&worker)?, &[200, 201]).await?;
        Ok(session)
    }

    /// Removes its worker from the server.
    pub(crate) async fn leave(mut self) -> Result<(), BenchError> {
        if !self.worker.is_empty() {
            let path = format!("/api/runtime/workers/{}", self.worker);
            self.client.expect(&Method::DELETE, &path, Bytes::new(), &[200, 404]).await?;
        }
        Ok(())
    }

    pub(crate) fn busy(&self) -> u64 {
        self.client.busy
    }

    /// Records a call that began at `began` and has just ended.
    pub(crate) fn record(&mut self, name: &'static str, began: Instant) {
        if began >= self.measure_from {
            self.record_span(name, began.elapsed());
        }
    }

    pub(crate) fn record_span(&mut self, name: &'static str, took: Duration) {
        match self.calls.iter_mut().find(|(known, _)| *known == name) {
            Some((_, latency)) => latency.record(took),
            None => {
                let mut latency = Latency::default();
                latency.record(took);
                self.calls.push((name, latency));
            }
        }
    }

    async fn timed(&mut self, name: &'static str, method: Method, path: &str, body: Bytes, expected: u16) -> Result<Response, BenchError> {
        let began = Instant::now();
        let answer = self.client.expect(&method, path, body, &[expected]).await?;
        self.record(name, began);
        Ok(answer)
    }

    pub(crate) async fn get(&mut self, name: &'static str, path: &str) -> Result<Response, BenchError> {
        self.timed(name, Method::GET, path, Bytes::new(), 200).await
    }

    async fn post(&mut self, name: &'static str, path: &str, body: &impl Serialize, expected: u16) -> Result<Response, BenchError> {
        self.timed(name, Method::POST, path, encode(body)?, expected).await
    }

    /// Creates a task and returns its id.
    pub(crate) async fn create(&mut self) -> Result<Uuid, BenchError> {
        let task = self.new_task();
        let answer = self.post("create", "/api/runtime/llm-tasks", &task, 201).await?;
        Ok(decode::<Task>(&answer)?.id)
    }

    pub(crate) async fn create_many(&mut self, count: usize) -> Result<(), BenchError> {
        let tasks = NewTasks { tasks: (0..count).map(|_| self.new_task()).collect() };
        self.post("create", "/api/runtime/llm-tasks:batch", &tasks, 201).await?;
        Ok(())
    }

    /// A new task in a context of its own.
    fn new_task(&mut self) -> NewTask {
        self.made += 1;
        let context = format!("{}-{}-{}-{}", self.agent, self.bench.label, self.index, self.made);
        NewTask {
            context_id: context.into(),
            agent_slug: self.agent.into(),
            prompt: format!("{:.<TEXT$}", "Measure").into(),
            ttl_after_finished_sec: self.bench.ttl_after_finished_sec.map(Int),
            ..NewTask::default()
        }
    }

    /// Leases the task for its own worker, or, with `picked`, for a worker that the server picks; then later calls send no lease id either.
    pub(crate) async fn lease(&mut self, task: Uuid, picked: bool) -> Result<Held, BenchError> {
        let path = format!("/api/runtime/llm-tasks/{task}/lease");
        let body = NewLease { worker_id: (!picked).then(|| self.worker.as_str().into()), ttl_seconds: None };
        let answer = self.post("lease", &path, &body, 201).await?;
        let lease = decode::<Leased>(&answer)?.lease.id;
        Ok(Held { task, lease: (!picked).then_some(lease) })
    }

    pub(crate) async fn heartbeat(&mut self, held: &Held) -> Result<(), BenchError> {
        let path = format!("/api/runtime/llm-tasks/{}/heartbeat", held.task);
        self.post("heartbeat", &path, &Heartbeat { lease_id: held.lease.map(Id), worker_id: None, with_task: false }, 200).await?;
        Ok(())
    }

    pub(crate) async fn complete(&mut self, held: &Held) -> Result<(), BenchError> {
        let path = format!("/api/runtime/llm-tasks/{}/complete", held.task);
        self.post("complete", &path, &completion(held), 200).await?;
        Ok(())
    }

    pub(crate) async fn claim(&mut self, max: usize, wait_sec: i64) -> Result<Vec<Held>, BenchError> {
        let path = format!("/api/runtime/workers/{}/claim", self.worker);
        let claim = Claim { max: Int(max as i64), wait_sec: Int(wait_sec), held: None, instance: None, accounts: Accounts::default() };
        let answer = self.post("claim", &path, &claim, 200).await?;
        let leases = decode::<Claimed>(&answer)?.leases;
        Ok(leases.into_iter().map(|claimed| Held { task: claimed.task.id, lease: Some(claimed.lease.id) }).collect())
    }

    pub(crate) async fn heartbeat_all(&mut self, held: &[Held]) -> Result<(), BenchError> {
        let path = format!("/api/runtime/workers/{}/heartbeat", self.worker);
        let leases = held.iter().filter_map(|one| one.lease).collect();
        let answer = self.post("heartbeat", &path, &WorkerHeartbeat { leases, instance: None, accounts: Accounts::default() }, 200).await?;
        let renewed = decode::<RenewedLeases>(&answer)?.renewed.len();
        if renewed != held.len() {
            return Err(format!("{renewed} of {} leases were renewed by {path}", held.len()).into());
        }
        Ok(())
    }

    pub(crate) async fn complete_all(&mut self, held: &[Held]) -> Result<(), BenchError> {
        let path = format!("/api/runtime/workers/{}/complete", self.worker);
        let completions = held.iter().filter_map(|one| Some(WorkerCompletion::new(one.task, one.lease?, completion(one))));
        let completions = NewCompletions { completions: completions.collect() };
        let answer = self.post("complete", &path, &completions, 200).await?;
        let results = decode::<RunResults>(&answer)?.results;
        if results.len() != held.len() {
            return Err(format!("{} of {} completions were answered by {path}", results.len(), held.len()).into());
        }
        match results.into_iter().find(|result| result.status != 200) {
            Some(RunResult { status, error, .. }) => {
                Err(format!("a completion sent to {path} was answered {status}: {}", error.unwrap_or_default()).into())
            }
            None => Ok(()),
        }
    }
}

fn completion(held: &Held) -> Completion {
    Completion {
        lease_id: held.lease.map(Id),
        output: Some(format!("{:.<TEXT$}", "Measured").into()),
        ..Completion::new(Outcome::Success, 1200, Some(345))
    }
}

/// Encodes the body of a request.
pub(crate) fn encode(body: &impl Serialize) -> Result<Bytes, BenchError> {
    Ok(serde_json::to_vec(body).map_err(|error| error.to_string())?.into())
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(answer: &'a Response) -> Result<T, BenchError> {
    serde_json::from_slice(&answer.body).map_err(|error| BenchError::from(format!("an answer is not what the API promises: {error}")))
}
