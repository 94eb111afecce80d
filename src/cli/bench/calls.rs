//! The API's calls as the scenarios make them, each timed under its name.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;
use serde::Deserialize;

use super::client::{Client, Response};
use super::latency::Latency;
use super::{Bench, BenchError};

/// Every scenario has an agent of its own, so that its workers get its tasks and no others.
pub const LIFECYCLE_AGENT: &str = "bench-lifecycle";
pub const BATCHED_AGENT: &str = "bench-batched";
pub const WAKE_AGENT: &str = "bench-wake";
/// The agent whose tasks make the long queue.
pub const QUEUE_AGENT: &str = "bench-queue";
pub const AGENTS: [&str; 4] = [LIFECYCLE_AGENT, BATCHED_AGENT, WAKE_AGENT, QUEUE_AGENT];

/// Slots of a benchmark's worker: the most that one may have.
pub const SLOTS: usize = 32;
/// Characters of a prompt and of an output: short, so that the figures are the control plane's and not the network's.
const TEXT: usize = 200;

/// A task that is leased, and the lease that later calls name; documented clients name none.
#[derive(Clone, Debug)]
pub struct Held {
    pub task: String,
    pub lease: Option<String>,
}

impl Held {
    /// `"lease_id":"…",`, or nothing.
    fn named(&self) -> String {
        self.lease.as_ref().map(|lease| format!(r#""lease_id":"{lease}","#)).unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Id {
    id: String,
}

#[derive(Deserialize)]
struct Leased {
    lease: Id,
}

#[derive(Deserialize)]
struct Claimed {
    leases: Vec<ClaimedLease>,
}

#[derive(Deserialize)]
struct ClaimedLease {
    lease: Id,
    task: Id,
}

#[derive(Deserialize)]
struct Renewed {
    renewed: Vec<String>,
}

#[derive(Deserialize)]
struct Results {
    results: Vec<OneResult>,
}

#[derive(Deserialize)]
struct OneResult {
    status: u16,
    error: Option<String>,
}

/// One client: a connection, and what its calls took.
pub struct Session {
    bench: Arc<Bench>,
    client: Client,
    /// Its worker's name; empty when it has none.
    worker: String,
    agent: &'static str,
    index: usize,
    made: u64,
    /// Calls that began before are practice.
    pub measure_from: Instant,
    pub calls: Vec<(&'static str, Latency)>,
}

impl Session {
    /// Connects a client that only makes and reads tasks of this agent.
    pub async fn connect(bench: &Arc<Bench>, agent: &'static str, index: usize) -> Result<Self, BenchError> {
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

    /// Connects and registers a worker that serves this agent and no other: it can't take anybody else's tasks.
    pub async fn connect_worker(bench: &Arc<Bench>, agent: &'static str, index: usize) -> Result<Self, BenchError> {
        let mut session = Self::connect(bench, agent, index).await?;
        session.worker = format!("{agent}-{}-{index}", bench.label);
        let body = format!(r#"{{"name":"{}","capabilities":{{"max_concurrency":{SLOTS},"agents":["{agent}"]}}}}"#, session.worker);
        session.client.expect(&Method::POST, "/api/runtime/workers", body.into(), &[200, 201]).await?;
        Ok(session)
    }

    /// Takes its worker off the list.
    pub async fn leave(mut self) -> Result<(), BenchError> {
        if !self.worker.is_empty() {
            let path = format!("/api/runtime/workers/{}", self.worker);
            self.client.expect(&Method::DELETE, &path, Bytes::new(), &[200, 404]).await?;
        }
        Ok(())
    }

    pub fn busy(&self) -> u64 {
        self.client.busy
    }

    /// What began then has just ended.
    pub fn record(&mut self, name: &'static str, began: Instant) {
        if began >= self.measure_from {
            self.record_span(name, began.elapsed());
        }
    }

    pub fn record_span(&mut self, name: &'static str, took: Duration) {
        match self.calls.iter_mut().find(|(known, _)| *known == name) {
            Some((_, latency)) => latency.record(took),
            None => {
                let mut latency = Latency::default();
                latency.record(took);
                self.calls.push((name, latency));
            }
        }
    }

    async fn timed(&mut self, name: &'static str, method: Method, path: &str, body: String, expected: u16) -> Result<Response, BenchError> {
        let body = Bytes::from(body);
        let began = Instant::now();
        let answer = self.client.expect(&method, path, body, &[expected]).await?;
        self.record(name, began);
        Ok(answer)
    }

    pub async fn get(&mut self, name: &'static str, path: &str) -> Result<Response, BenchError> {
        self.timed(name, Method::GET, path, String::new(), 200).await
    }

    /// Gives the new task's id.
    pub async fn create(&mut self) -> Result<String, BenchError> {
        let mut body = String::with_capacity(TEXT + 200);
        self.write_task(&mut body);
        let answer = self.timed("create", Method::POST, "/api/runtime/llm-tasks", body, 201).await?;
        Ok(decode::<Id>(&answer)?.id)
    }

    pub async fn create_many(&mut self, count: usize) -> Result<(), BenchError> {
        let mut body = String::with_capacity(count * (TEXT + 200));
        body.push_str(r#"{"tasks":["#);
        for place in 0..count {
            if place > 0 {
                body.push(',');
            }
            self.write_task(&mut body);
        }
        body.push_str("]}");
        self.timed("create", Method::POST, "/api/runtime/llm-tasks:batch", body, 201).await?;
        Ok(())
    }

    /// The documented fields only, each task in a context of its own.
    fn write_task(&mut self, body: &mut String) {
        self.made += 1;
        let (agent, label, index, made) = (self.agent, &self.bench.label, self.index, self.made);
        // Writing to a String can't fail.
        let _ = write!(
            body,
            r#"{{"context_id":"{agent}-{label}-{index}-{made}","agent_slug":"{agent}","prompt":"{:.<TEXT$}"{}}}"#,
            "Measure", self.bench.task_extra
        );
    }

    /// Leases the task for its own worker, or, with `picked`, for whichever the server chooses: then as documented clients do,
    /// which name nothing later either.
    pub async fn lease(&mut self, task: String, picked: bool) -> Result<Held, BenchError> {
        let path = format!("/api/runtime/llm-tasks/{task}/lease");
        let body = if picked { "{}".to_owned() } else { format!(r#"{{"worker_id":"{}"}}"#, self.worker) };
        let answer = self.timed("lease", Method::POST, &path, body, 201).await?;
        let lease = decode::<Leased>(&answer)?.lease.id;
        Ok(Held { task, lease: (!picked).then_some(lease) })
    }

    pub async fn heartbeat(&mut self, held: &Held) -> Result<(), BenchError> {
        let path = format!("/api/runtime/llm-tasks/{}/heartbeat", held.task);
        let body = format!("{{{}}}", held.named().trim_end_matches(','));
        self.timed("heartbeat", Method::POST, &path, body, 200).await?;
        Ok(())
    }

    pub async fn complete(&mut self, held: &Held) -> Result<(), BenchError> {
        let path = format!("/api/runtime/llm-tasks/{}/complete", held.task);
        let mut body = String::with_capacity(TEXT + 200);
        write_completion(&mut body, held);
        self.timed("complete", Method::POST, &path, body, 200).await?;
        Ok(())
    }

    pub async fn claim(&mut self, max: usize, wait_sec: u32) -> Result<Vec<Held>, BenchError> {
        let path = format!("/api/runtime/workers/{}/claim", self.worker);
        let body = format!(r#"{{"max":{max},"wait_sec":{wait_sec}}}"#);
        let answer = self.timed("claim", Method::POST, &path, body, 200).await?;
        let leases = decode::<Claimed>(&answer)?.leases;
        Ok(leases.into_iter().map(|claimed| Held { task: claimed.task.id, lease: Some(claimed.lease.id) }).collect())
    }

    pub async fn heartbeat_all(&mut self, held: &[Held]) -> Result<(), BenchError> {
        let path = format!("/api/runtime/workers/{}/heartbeat", self.worker);
        let mut body = String::with_capacity(held.len() * 40 + 20);
        body.push_str(r#"{"leases":["#);
        for (place, lease) in held.iter().filter_map(|one| one.lease.as_ref()).enumerate() {
            let _ = write!(body, "{}\"{lease}\"", if place > 0 { "," } else { "" });
        }
        body.push_str("]}");
        let answer = self.timed("heartbeat", Method::POST, &path, body, 200).await?;
        let renewed = decode::<Renewed>(&answer)?.renewed.len();
        if renewed != held.len() {
            return Err(format!("{renewed} of {} leases were renewed by {path}", held.len()).into());
        }
        Ok(())
    }

    pub async fn complete_all(&mut self, held: &[Held]) -> Result<(), BenchError> {
        let path = format!("/api/runtime/workers/{}/complete", self.worker);
        let mut body = String::with_capacity(held.len() * (TEXT + 200));
        body.push_str(r#"{"completions":["#);
        for (place, one) in held.iter().enumerate() {
            if place > 0 {
                body.push(',');
            }
            write_completion(&mut body, one);
        }
        body.push_str("]}");
        let answer = self.timed("complete", Method::POST, &path, body, 200).await?;
        let results = decode::<Results>(&answer)?.results;
        if results.len() != held.len() {
            return Err(format!("{} of {} completions were answered by {path}", results.len(), held.len()).into());
        }
        match results.into_iter().find(|result| result.status != 200) {
            Some(OneResult { status, error }) => {
                Err(format!("a completion sent to {path} was answered {status}: {}", error.unwrap_or_default()).into())
            }
            None => Ok(()),
        }
    }
}

fn write_completion(body: &mut String, held: &Held) {
    let _ = write!(
        body,
        r#"{{"task_id":"{}",{}"status":"success","output":"{:.<TEXT$}","metrics":{{"duration_ms":1200,"tokens_used":345}}}}"#,
        held.task,
        held.named(),
        "Measured"
    );
}

/// Reads what a scenario needs of an answer.
pub fn decode<'a, T: Deserialize<'a>>(answer: &'a Response) -> Result<T, BenchError> {
    serde_json::from_slice(&answer.body).map_err(|error| BenchError::from(format!("an answer is not what the API promises: {error}")))
}
