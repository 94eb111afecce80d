//! Executes the run of one seed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bloom_core::agent_queue::ALL_QUEUES;
use bloom_core::command::{CordonChange, QueueChange};
use bloom_core::op;
use bloom_core::task::Status;
use tokio::time::Instant;

use crate::actors::{self, Cluster};
use crate::chaos;
use crate::database::is_quiet;
use crate::invariants::InvariantChecker;
use crate::mirror::{Beside, Mirror};
use crate::plan::Plan;
use crate::shared::{NO_FAULTS, Shared};

/// The time after the phase of faults in which graces end and all replicas catch up.
const SETTLING: Duration = Duration::from_secs(16);
/// The time limit in which all tasks must finish.
const QUIET_PHASE_AT_MOST: Duration = Duration::from_secs(240);
const POLL_EVERY: Duration = Duration::from_millis(50);
/// The time in which all caches learn of the last commit.
const QUIESCE: Duration = Duration::from_millis(800);

#[derive(Debug)]
pub struct Outcome {
    pub trace: u64,
    pub commits: u64,
    pub runs: usize,
    pub tasks: usize,
    pub violations: Vec<String>,
}

pub fn run(plan: &Plan) -> Outcome {
    start(plan, None)
}

/// Runs the plan with a mirror, a second database that executes every call of the simulated one.
pub fn run_beside(plan: &Plan, mirror: Arc<dyn Mirror>) -> Outcome {
    start(plan, Some(mirror))
}

fn start(plan: &Plan, mirror: Option<Arc<dyn Mirror>>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let outcome = runtime.block_on(live(plan, mirror));
    runtime.shutdown_background();
    outcome
}

async fn live(plan: &Plan, mirror: Option<Arc<dyn Mirror>>) -> Outcome {
    let shared = Shared::new(plan.seed, mirror);
    let cluster = Cluster::new(shared.clone(), plan.seed);
    for _ in 0..plan.replicas {
        let replica = chaos::start(&cluster, plan).await;
        cluster.replicas.lock().expect("replicas").push(replica);
    }
    shared.lock().checker.named_agent_wait_ms = plan.named_agent_wait_ms;
    shared.lock().fault_rates = plan.fault_rates;
    for number in 0..plan.workers {
        tokio::spawn(actors::worker(cluster.clone(), number));
    }
    for _ in 0..plan.creators {
        tokio::spawn(actors::creator(cluster.clone()));
    }
    let mut faults = Vec::new();
    // All of these are awaited, so that an operator's last cordon does not come after the uncordons below.
    faults.extend(plan.operators.map(|every| tokio::spawn(actors::operator(cluster.clone(), every, plan.workers))));
    faults.extend(plan.freezes.map(|every| tokio::spawn(chaos::freezes(cluster.clone(), every))));
    faults.extend(plan.kills.map(|every| tokio::spawn(chaos::kills(cluster.clone(), plan.clone(), every))));
    faults.extend(plan.outages.map(|every| tokio::spawn(chaos::outages(cluster.clone(), every))));
    faults.extend(plan.row_locks.map(|every| tokio::spawn(chaos::row_locks(cluster.clone(), every))));
    faults.extend(plan.clock_steps.map(|every| tokio::spawn(chaos::clock_steps(cluster.clone(), every))));
    tokio::time::sleep(Duration::from_secs(plan.fault_phase_sec)).await;

    cluster.is_quiet_phase.store(true, Ordering::Relaxed);
    for task in faults {
        task.await.expect("the faults end");
    }
    shared.lock().fault_rates = NO_FAULTS;
    shared.lock().put_clock_right();
    for number in 0..plan.workers {
        cluster.insist(actors::registration(number)).await;
        cluster.insist(op::Cordon { worker: actors::registration(number).id, change: CordonChange::Uncordon }).await;
    }
    for agent_slug in ["a", "b", ALL_QUEUES] {
        // A limit stays, so that work also goes on with one.
        cluster.insist(op::ChangeQueue { agent_slug: agent_slug.into(), change: QueueChange::Resume }).await;
    }
    resume_all(&cluster).await;
    tokio::time::sleep(SETTLING).await;
    // Calls that were under way may have suspended some since.
    resume_all(&cluster).await;
    shared.lock().is_quiet_phase = true;
    // New tasks in the quiet phase. If the plan has clock steps, one step follows here, with leases that expire before and after it.
    cluster.has_losses.store(plan.clock_steps.is_some(), Ordering::Relaxed);
    for round in 0..12 {
        if round == 6 && plan.clock_steps.is_some() {
            chaos::step_clock(&cluster).await;
        }
        let tasks = (0..2).map(|_| actors::spec(&cluster)).collect();
        cluster.insist(op::Create { tasks }).await;
        check_for(&shared, Duration::from_millis(cluster.below(700))).await;
    }
    if cluster.has_losses.swap(false, Ordering::Relaxed) {
        check_for(&shared, SETTLING).await;
        shared.lock().put_clock_right();
    }
    let started = Instant::now();
    while !is_quiet(&shared.lock()) && started.elapsed() < QUIET_PHASE_AT_MOST && shared.lock().checker.violations.is_empty() {
        check_for(&shared, POLL_EVERY).await;
    }
    if shared.lock().checker.violations.is_empty() {
        cluster.is_over.store(true, Ordering::Relaxed);
        quiesce(&shared).await;
        compare(&cluster);
        shared.lock().compare_all();
    }
    cluster.is_over.store(true, Ordering::Relaxed);
    let mut state = shared.lock();
    // Background tasks keep the state alive until the runtime is dropped, so the mirror is released here.
    state.beside = Beside::default();
    let mut violations = std::mem::take(&mut state.checker.violations);
    violations.truncate(5);
    Outcome {
        trace: state.trace,
        commits: state.commits,
        runs: cluster.runs.load(Ordering::Relaxed),
        tasks: state.tables.memory.tasks.len(),
        violations,
    }
}

async fn resume_all(cluster: &Cluster) {
    let suspended: Vec<_> = cluster.shared.lock().tables.memory.tasks.values().filter(|task| task.suspend).map(|task| task.id).collect();
    for task in suspended {
        cluster.insist(op::Suspend { task, suspend: false }).await;
    }
}

/// Waits until there were no commits for so long that all replicas have learned of the last one.
async fn quiesce(shared: &Shared) {
    for _ in 0..30 {
        let before = shared.lock().commits;
        check_for(shared, QUIESCE).await;
        if shared.lock().commits == before {
            return;
        }
    }
}

async fn check_for(shared: &Shared, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        tokio::time::sleep(POLL_EVERY.min(time)).await;
        InvariantChecker::check_liveness(&mut shared.lock());
    }
}

/// Checks at the end that all tasks have finished, and that the cache of each replica equals the database.
fn compare(cluster: &Cluster) {
    let mut violations = Vec::new();
    {
        let state = cluster.shared.lock();
        for task in state.tables.memory.tasks.values().filter(|task| !task.status.is_final()) {
            violations.push(format!("at the end a task is left: {task:?}"));
        }
        for wakeup in state.tables.memory.wakeups.values() {
            violations.push(format!("at the end a wake-up is left: {wakeup:?}"));
        }
        let right = state.tables.counted();
        for (at, replica) in cluster.replicas.lock().expect("replicas").iter().enumerate() {
            for (id, revision) in replica.engine.replica.shown_tasks() {
                violations.push(match state.tables.memory.tasks.get(&id) {
                    Some(task) => format!("replica {at} shows revision {revision} of {task:?}"),
                    None => format!("replica {at} shows task {id}, which is not there"),
                });
            }
            let told = replica.told.lock().expect("what was told");
            violations.extend(told.compare(&state.tables.memory).map(|wrong| format!("a watcher of replica {at} {wrong}")));
            let mut counts = replica.engine.replica.counts();
            counts.retain(|_, n| *n != 0);
            if counts != right {
                violations.push(format!("replica {at} counts {counts:?}, there are {right:?}"));
            }
            let online = state.tables.memory.workers.values().filter(|worker| worker.is_online()).count() as i64;
            let shown = replica.engine.replica.stats().workers_online;
            if online != shown {
                violations.push(format!("replica {at} shows {shown} workers online, there are {online}"));
            }
        }
        let unfinished = state.tables.memory.tasks.values().filter(|task| task.status == Status::Queued).count();
        debug_assert!(unfinished == 0 || !violations.is_empty());
    }
    cluster.shared.lock().checker.violations.extend(violations);
}
