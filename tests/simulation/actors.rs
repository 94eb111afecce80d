//! The users of the control plane: clients that create tasks, workers that run them, operators that interfere. Each call goes to a random
//! replica, and may be lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bloom_core::agent_queue::ALL_QUEUES;
use bloom_core::audit::Actor;
use bloom_core::command::{Choice, Completion, CordonChange, Op, Operation, QueueChange, Rejection, Requester, WorkerChange};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::namespace::{KubernetesObject, qualified};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::task::{Format, Outcome, Session, TaskSpec, TaskState};
use bloom_core::task_limits::LimitChange;
use bloom_engine::{ClaimRequest, Engine, Error};
use bloom_test_world::history::NAMESPACES;
use bloom_test_world::world::in_project;
use tokio::time::Instant;
use uuid::Uuid;

use crate::database::Condition;
use crate::shared::{Dice, Shared};
use crate::watcher::Told;

/// The process of a replica.
#[derive(Clone)]
pub struct Replica {
    pub engine: Engine,
    pub condition: Arc<Condition>,
    /// What its watcher keeps.
    pub told: Arc<Mutex<Told>>,
}

/// What all actors share.
#[derive(Clone)]
pub struct Cluster {
    pub shared: Shared,
    pub replicas: Arc<Mutex<Vec<Replica>>>,
    pub is_quiet_phase: Arc<AtomicBool>,
    /// Some runs vanish without an end, also in the quiet phase.
    pub has_losses: Arc<AtomicBool>,
    pub is_over: Arc<AtomicBool>,
    pub created: Arc<Mutex<Vec<TaskId>>>,
    pub runs: Arc<AtomicUsize>,
    dice: Arc<Mutex<Dice>>,
}

/// How long a caller waits for an answer, in addition to the wait that it requested.
const PATIENCE: Duration = Duration::from_secs(8);

impl Cluster {
    pub fn new(shared: Shared, seed: u64) -> Self {
        Self {
            shared,
            replicas: Arc::default(),
            is_quiet_phase: Arc::default(),
            has_losses: Arc::default(),
            is_over: Arc::default(),
            created: Arc::default(),
            runs: Arc::default(),
            dice: Arc::new(Mutex::new(Dice::new(seed ^ 0x1405_7b7e_f767_814f))),
        }
    }

    pub fn below(&self, n: u64) -> u64 {
        self.dice.lock().expect("dice").below(n)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.dice.lock().expect("dice").chance(percent)
    }

    pub fn is_quiet_phase(&self) -> bool {
        self.is_quiet_phase.load(Ordering::Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub async fn pause(&self, most_ms: u64) {
        tokio::time::sleep(Duration::from_millis(self.below(most_ms) + 1)).await;
    }

    /// A random replica that is not dead.
    async fn anybody(&self) -> Replica {
        loop {
            let up: Vec<Replica> = {
                let replicas = self.replicas.lock().expect("replicas");
                replicas.iter().filter(|replica| !replica.condition.is_dead.load(Ordering::Relaxed)).cloned().collect()
            };
            if !up.is_empty() {
                return up[self.below(up.len() as u64) as usize].clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Calls a random replica. `None` if there is no answer, or if the call should be tried again.
    pub async fn call<O: Operation + Into<Op>>(&self, op: O) -> Option<Result<O::Reply, Rejection>> {
        let replica = self.anybody().await;
        let call = async {
            replica.condition.runs().await;
            replica.engine.writers.submit(op).await
        };
        match tokio::time::timeout(PATIENCE, call).await {
            Ok(Ok(reply)) => Some(Ok(reply)),
            Ok(Err(Error::Rejected(rejection))) => Some(Err(rejection)),
            Ok(Err(Error::Internal)) => panic!("the write path failed"),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Repeats the call until there is an answer, or the run is over.
    pub async fn insist<O: Operation + Into<Op> + Clone>(&self, op: O) -> Option<Result<O::Reply, Rejection>> {
        while !self.is_over() {
            if let Some(answer) = self.call(op.clone()).await {
                return Some(answer);
            }
            self.pause(300).await;
        }
        None
    }
}

pub fn spec(cluster: &Cluster) -> TaskSpec {
    let known = cluster.created.lock().expect("created").clone();
    let depends_on =
        if !known.is_empty() && cluster.chance(20) { vec![known[cluster.below(known.len() as u64) as usize]] } else { Vec::new() };
    let object = cluster.chance(30).then(|| KubernetesObject {
        namespace: NAMESPACES[cluster.below(2) as usize].into(),
        name: "object".into(),
        uid: Uuid::from_u64_pair(cluster.below(u64::MAX), cluster.below(u64::MAX)),
    });
    let named = |name: String| object.as_ref().map_or_else(|| name.clone(), |object| qualified(&object.namespace, &name));
    let not_before = cluster.chance(15).then(|| cluster.shared.lock().now() + cluster.below(9_000) as i64);
    let projects: Vec<String> = cluster.shared.lock().tables.memory.projects.values().map(|project| project.name.clone()).collect();
    let project = cluster.chance(20).then(|| pick(cluster, &projects)).flatten().map(in_project);
    TaskSpec {
        id: TaskId::nil(),
        context_id: named(format!("context{}", cluster.below(6))),
        agent_slug: (*["a", "b"].get(cluster.below(2) as usize).expect("two")).into(),
        prompt: "p".into(),
        context_hints: Vec::new(),
        timeout_sec: 5,
        profile_timeout_max: None,
        budget: 0.0,
        desired_format: Format::Text,
        max_attempts: 3,
        priority: cluster.below(4) as i64 + 3,
        not_before,
        depends_on,
        exclusive_key: cluster.chance(20).then(|| named(format!("key{}", cluster.below(2)))),
        idempotency_key: None,
        labels: Default::default(),
        session: if cluster.chance(50) { Session::Context } else { Session::None },
        model: None,
        ttl_after_finished_sec: cluster.chance(20).then_some(2),
        owner: None,
        team: None,
        suspend: !cluster.is_quiet_phase() && cluster.chance(8),
        object,
        traceparent: None,
        inputs: Vec::new(),
        outputs: Vec::new(),
        project,
    }
}

fn pick<'a>(cluster: &Cluster, names: &'a [String]) -> Option<&'a str> {
    (!names.is_empty()).then(|| &names[cluster.below(names.len() as u64) as usize][..])
}

/// Creates tasks during the phase of faults.
pub async fn creator(cluster: Cluster) {
    while !cluster.is_quiet_phase() {
        cluster.pause(1_500).await;
        let number = if cluster.chance(20) { 8 } else { 1 };
        let tasks: Vec<TaskSpec> = (0..number).map(|_| spec(&cluster)).collect();
        if let Some(Ok(created)) = cluster.call(op::Create { tasks }).await {
            cluster.created.lock().expect("created").extend(created.iter().map(|task| task.state.id));
        }
    }
}

pub fn registration(number: usize) -> WorkerChange {
    let agents = match number % 3 {
        0 => None,
        1 => Some(vec!["a".into(), "b".into()]),
        _ => Some(vec!["b".into()]),
    };
    // The third of each four serves one namespace only.
    let namespaces = (number % 4 == 2).then(|| vec![NAMESPACES[0].to_owned()]);
    // The second of each three serves no projects, the last of each five serves one only.
    let projects = (number % 5 == 4).then(|| vec!["project 0".to_owned()]);
    WorkerChange {
        id: format!("w{number}"),
        git: Some(number % 3 != 1),
        projects: Some(projects),
        namespaces,
        max_concurrency: Some(1 + (number % 3) as i64),
        status: Some(bloom_core::worker::WorkerStatus::Online),
        agents: Some(agents),
        actor: Actor::Api,
        ..WorkerChange::default()
    }
}

/// Claims tasks and runs them.
pub async fn worker(cluster: Cluster, number: usize) {
    let name = registration(number).id;
    let held: Arc<Mutex<Vec<LeaseId>>> = Arc::default();
    cluster.insist(registration(number)).await;
    while !cluster.is_over() {
        if !cluster.is_quiet_phase() && cluster.chance(3) {
            cluster.pause(6_000).await;
        }
        let wait_ms = if cluster.chance(30) { 0 } else { cluster.below(4_000) as i64 };
        let known = held.lock().expect("held").clone();
        let request = ClaimRequest {
            worker: name.clone(),
            max: cluster.below(3) as i64 + 1,
            wait_ms,
            held: cluster.chance(80).then_some(known),
            instance: None,
            ttl_ms: *[1_500, 3_000, 6_000].get(cluster.below(3) as usize).expect("three"),
            by: Requester::default(),
        };
        let replica = cluster.anybody().await;
        // The checker must know exactly the open claims.
        cluster.shared.lock().checker.claims.insert(name.clone(), Instant::now());
        let call = async {
            replica.condition.runs().await;
            replica.engine.claims.claim(request).await
        };
        let answer = tokio::time::timeout(PATIENCE + Duration::from_millis(wait_ms.unsigned_abs()), call).await;
        cluster.shared.lock().checker.claims.remove(&name);
        match answer {
            Ok(Ok(leased)) => {
                for task in leased {
                    let lease = task.lease.as_ref().expect("a lease").id;
                    if !held.lock().expect("held").contains(&lease) {
                        held.lock().expect("held").push(lease);
                        tokio::spawn(run(cluster.clone(), task, held.clone()));
                    }
                }
            }
            Ok(Err(Error::Rejected(Rejection::WorkerNotFound))) => {
                cluster.insist(registration(number)).await;
            }
            _ => cluster.pause(200).await,
        }
        if wait_ms == 0 {
            cluster.pause(400).await;
        }
    }
}

/// One run of a task, from its lease to its end.
async fn run(cluster: Cluster, task: TaskState, held: Arc<Mutex<Vec<LeaseId>>>) {
    let lease = task.lease.clone().expect("a lease");
    let (mut left_ms, worker) = (cluster.below(2_500), lease.worker_id.clone());
    cluster.runs.fetch_add(1, Ordering::Relaxed);
    let vanishes = (!cluster.is_quiet_phase() || cluster.has_losses.load(Ordering::Relaxed)) && cluster.chance(10);
    while left_ms > 0 && !vanishes {
        let step = left_ms.min(lease.ttl_ms.unsigned_abs() / 3);
        tokio::time::sleep(Duration::from_millis(step)).await;
        left_ms -= step;
        let heartbeat = cluster.call(op::RenewLeases { worker: worker.clone(), leases: vec![lease.id] }).await;
        if let Some(Ok(heartbeat)) = heartbeat
            && heartbeat.lost.contains(&lease.id)
        {
            held.lock().expect("held").retain(|id| *id != lease.id);
            return;
        }
    }
    let dice = if cluster.is_quiet_phase() { 0 } else { cluster.below(100) };
    let completion = |status, retryable| Completion {
        retryable,
        session_id: Some("s".into()),
        ..bloom_test_world::world::completion(task.id, Some(lease.id), status)
    };
    let op = match dice {
        _ if vanishes => None,
        0..75 => Some(Op::Complete(Box::new(completion(Outcome::Success, false)))),
        75..82 => Some(Op::Complete(Box::new(completion(Outcome::Error, false)))),
        82..92 => Some(Op::Complete(Box::new(completion(Outcome::Error, true)))),
        _ => Some(Op::Release(op::Release { task: task.id, lease: lease.id, reason: "shutdown".into() })),
    };
    if let Some(op) = op {
        cluster.insist(op).await;
    }
    held.lock().expect("held").retain(|id| *id != lease.id);
}

/// Cancels, requeues, suspends, resumes, edits, deletes and leases tasks, cordons, changes and removes workers, pauses and limits queues, and creates, clones and
/// deletes projects.
pub async fn operator(cluster: Cluster, every_sec: u64, workers: usize) {
    while !cluster.is_quiet_phase() {
        cluster.pause(every_sec * 1_000).await;
        let created = cluster.created.lock().expect("created").clone();
        let worker = format!("w{}", cluster.below(workers as u64));
        let Some(task) = (!created.is_empty()).then(|| created[cluster.below(created.len() as u64) as usize]) else { continue };
        let agent_slug = (*["a", "b", ALL_QUEUES].get(cluster.below(3) as usize).expect("three")).to_owned();
        let limit = QueueChange::Limit(cluster.chance(70).then(|| cluster.below(3) as i64 + 1));
        let op = match cluster.below(28) {
            0 | 1 => Op::Cancel(op::Cancel { task }),
            2..=4 => Op::Requeue(op::Requeue { task, limits: LimitChange::default() }),
            5 | 6 => Op::Lease(op::Lease {
                task,
                choice: Choice::Named(worker),
                ttl_ms: 1_000 + cluster.below(3_000) as i64,
                origin: Origin::Call,
            }),
            7 => Op::Cordon(op::Cordon { worker, change: CordonChange::Cordon }),
            8 => Op::Cordon(op::Cordon { worker, change: CordonChange::Drain }),
            9 => Op::Cordon(op::Cordon { worker, change: CordonChange::Uncordon }),
            10 => Op::Delete(op::Delete { task }),
            11..=13 => {
                let later = cluster.shared.lock().now() + cluster.below(4_000) as i64;
                let not_before = cluster.chance(50).then(|| cluster.chance(60).then_some(later));
                let (labels, first_labels) = Default::default();
                Op::Edit(op::Edit {
                    task,
                    priority: Some(cluster.below(4) as i64 + 3),
                    not_before,
                    labels,
                    first_labels,
                    limits: LimitChange::default(),
                })
            }
            14 => {
                let change = WorkerChange {
                    id: worker,
                    max_concurrency: Some(1 + cluster.below(3) as i64),
                    actor: Actor::Api,
                    ..WorkerChange::default()
                };
                Op::RegisterWorker(Box::new(change))
            }
            15 => Op::ChangeQueue(op::ChangeQueue { agent_slug, change: QueueChange::Pause }),
            16 => Op::ChangeQueue(op::ChangeQueue { agent_slug, change: QueueChange::Resume }),
            17 | 18 if agent_slug != ALL_QUEUES => Op::ChangeQueue(op::ChangeQueue { agent_slug, change: limit }),
            19 | 20 => Op::Suspend(op::Suspend { task, suspend: true }),
            21..=23 => Op::Suspend(op::Suspend { task, suspend: false }),
            25 => Op::CreateProject(op::CreateProject {
                name: format!("project {}", cluster.below(3)),
                repo_url: "https://git.example/p".into(),
                target_path: None,
                primary_node_id: Some(worker),
                branch_prefix: "bloom".into(),
            }),
            26 | 27 => {
                let known: Vec<_> = cluster.shared.lock().tables.memory.projects.keys().copied().collect();
                let Some(project) = (!known.is_empty()).then(|| known[cluster.below(known.len() as u64) as usize]) else { continue };
                let outcome = if cluster.chance(50) { Ok(None) } else { Err("no room".to_owned()) };
                let nodes = vec![op::NodeClone { node_id: worker, outcome }];
                match cluster.chance(30) {
                    true => Op::DeleteProject(op::DeleteProject { project }),
                    false => Op::RecordClones(op::RecordClones {
                        project,
                        nodes,
                        cloned_for: if cluster.chance(50) { op::ClonedFor::Propagation } else { op::ClonedFor::Run },
                    }),
                }
            }
            _ => Op::RemoveWorker(op::RemoveWorker { worker }),
        };
        cluster.call(op).await;
    }
}
