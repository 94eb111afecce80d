//! Checks the rules of the state model at every commit, and the promises of liveness in the quiet phase.

use std::collections::{BTreeMap, BTreeSet};

use bloom_core::Ms;
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue};
use bloom_core::audit::AuditEntry;
use bloom_core::cache::{ReadyRow, rank};
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::origin::Origin;
use bloom_core::task::{ActiveLease, LeaseStatus, Status, TaskState};
use bloom_core::worker::Worker;
use bloom_core::working_set::WorkingSet;
use tokio::time::Instant;

use crate::shared::State;
use bloom_test_database::tables::Tables;
use bloom_test_world::memory::Memory;

/// The most time that a ready task and an open claim that could take it may both wait.
const TOGETHER_MS: u128 = 900;
/// The most time after which something that is due must be done.
const DUE_MS: Ms = 3_000;
/// Claims must take tasks that have been ready for this long in the order of the queue.
const ORDER_MS: u128 = 1_200;
const PASSES: u32 = 2;
/// The most time between the decision of a renewal and its commit.
const COMMIT_MS: u128 = 300;
/// The longest grace after a gap in service or a step of the clock.
const GRACE_MS: Ms = 10_000;

#[derive(Default)]
pub struct InvariantChecker {
    /// Since when tasks can be claimed, and the worker for which they are reserved.
    ready_since: BTreeMap<TaskId, (Option<WorkerId>, Instant)>,
    /// Open claims by worker, and when they began.
    pub claims: BTreeMap<WorkerId, Instant>,
    /// Since when workers have free slots and take tasks.
    free_since: BTreeMap<WorkerId, Instant>,
    /// Since when leases of the agent's tasks may be made.
    open_since: BTreeMap<String, Instant>,
    /// Since when something is overdue.
    late_since: BTreeMap<String, Instant>,
    passed_over: BTreeMap<TaskId, u32>,
    commits: u64,
    /// The numbers of the commits since which tasks are ready, and since which they are unfinished.
    ready_from: BTreeMap<TaskId, u64>,
    known_from: BTreeMap<TaskId, u64>,
    /// Active leases by task: the last renewal in the row, and when that was committed, by a clock that never steps.
    renewed: BTreeMap<TaskId, (LeaseId, Ms, Instant)>,
    /// The tasks that are queued and suspended since the commit before.
    suspended: BTreeSet<TaskId>,
    /// What was set for the queues by the commit before.
    queues: BTreeMap<String, AgentQueue>,
    last_audit: BTreeMap<String, uuid::Uuid>,
    /// How long tasks are kept for workers that name their agent.
    pub named_agent_wait_ms: Ms,
    /// The clock has stepped, so its times can't be compared.
    pub has_clock_steps: bool,
    /// The clock has stepped forward for a moment, which replicas may not notice.
    pub has_clock_blips: bool,
    pub violations: Vec<String>,
}

impl InvariantChecker {
    /// Checks a commit.
    pub fn check_commit(&mut self, memory: &Memory, set: &WorkingSet, audit: &[AuditEntry], is_quiet_phase: bool, resumed_at: Ms) {
        self.check_rules(memory, set);
        self.check_audit(audit);
        self.check_turns(memory, set);
        self.check_suspended(memory, set);
        if is_quiet_phase {
            self.check_order(memory, set);
            if !self.has_clock_blips {
                self.check_expired(set);
            }
        }
        if !self.has_clock_steps {
            self.check_grace(set, resumed_at);
        }
        self.record_renewals(memory, set);
        for worker in memory.workers.values() {
            let is_free = worker.takes_tasks() && i64::from(memory.used(&worker.id).count_ones()) < worker.capabilities.max_concurrency;
            if is_free {
                self.free_since.entry(worker.id.clone()).or_insert_with(Instant::now);
            } else {
                self.free_since.remove(&worker.id);
            }
        }
        for id in &set.dirty.tasks {
            let Some(ready) = memory.tasks.get(id).and_then(ReadyRow::of) else {
                self.ready_since.remove(id);
                continue;
            };
            if self.ready_since.get(id).is_none_or(|(reserved_for, _)| *reserved_for != ready.reserved_for) {
                self.ready_since.insert(*id, (ready.reserved_for, Instant::now()));
            }
        }
    }

    /// No lease may be made of a suspended task. A lease call in the batch that resumes it may come right after.
    fn check_suspended(&mut self, memory: &Memory, set: &WorkingSet) {
        for id in set.dirty.tasks.iter().chain(&set.dirty.removed_tasks) {
            let task = memory.tasks.get(id).filter(|task| task.suspend);
            let was_suspended = self.suspended.remove(id);
            match task {
                Some(task) if task.lease.is_some() && was_suspended => {
                    self.violations.push(format!("a lease was made of a suspended task: {task:?}"));
                }
                Some(task) if task.status == Status::Queued => drop(self.suspended.insert(*id)),
                _ => {}
            }
        }
    }

    /// No lease may be made after a pause was acknowledged, and none beyond a limit. What the same commit has changed does not count.
    pub fn heed_queues(&mut self, memory: &Memory, set: &WorkingSet) {
        let is_unchanged = |slug: &str| self.queues.get(slug) == memory.queues.get(slug);
        let is_paused = |slug: &str| is_unchanged(slug) && memory.queues.get(slug).is_some_and(|queue| queue.paused_at.is_some());
        for task in set.dirty.tasks.iter().filter_map(|id| memory.tasks.get(id)) {
            if !task.lease.as_ref().is_some_and(|lease| self.is_placed_now(lease)) {
                continue;
            }
            let agent = &task.agent_slug;
            // A change of another queue changes the revision of the row of all queues.
            let were_all_paused = self.queues.get(ALL_QUEUES).is_some_and(|all| all.paused_at.is_some());
            if is_paused(agent) || (were_all_paused && memory.all_queues().paused_at.is_some()) {
                self.violations.push(format!("the queue of {agent} is paused, and a lease was made: {task:?}"));
            }
            if is_unchanged(agent) && memory.limit(agent).is_some_and(|limit| memory.active_of(agent) > limit) {
                let (active, queue) = (memory.active_of(agent), memory.queues.get(agent));
                self.violations.push(format!("a lease was made, and the queue {queue:?} has {active}: {task:?}"));
            }
        }
        self.queues.clone_from(&memory.queues);
        let agents: BTreeSet<&String> = memory.tasks.values().map(|task| &task.agent_slug).collect();
        for agent in agents {
            if memory.closed(agent).is_some() {
                self.open_since.remove(agent);
            } else {
                self.open_since.entry(agent.clone()).or_insert_with(Instant::now);
            }
        }
    }

    fn check_rules(&mut self, memory: &Memory, set: &WorkingSet) {
        for task in set.dirty.tasks.iter().filter_map(|id| memory.tasks.get(id)) {
            let mut expect = |holds: bool, what: &str| {
                if !holds {
                    self.violations.push(format!("{what}: {task:?}"));
                }
            };
            expect(task.status.is_active() == task.lease.is_some(), "leased or running means that a lease holds it");
            expect((0..=task.max_attempts).contains(&task.attempts), "attempts stay within bounds");
            expect(task.parked.is_none() || task.status == Status::Queued, "only queued tasks are parked");
            expect(task.wake_at.is_none() || task.parked.is_some(), "only parked tasks are woken by the clock");
            expect(!task.suspend || !task.is_ready(), "a suspended task is not ready");
            expect(task.status.is_final() == task.finished_at.is_some(), "exactly the finished tasks have a finish time");
            if let Some(lease) = &task.lease {
                let slots = memory.workers.get(&lease.worker_id).map_or(0, |worker| worker.capabilities.max_concurrency);
                expect(slots > 0, "a lease has a worker");
            }
        }
    }

    /// Audit entries of one task must sort in the order in which they were made.
    fn check_audit(&mut self, audit: &[AuditEntry]) {
        for entry in audit.iter().filter(|entry| entry.entity_type == bloom_core::audit::EntityType::Task) {
            let last = self.last_audit.insert(entry.entity_id.clone(), entry.id);
            if last.is_some_and(|last| last >= entry.id) {
                self.violations.push(format!("audit entries sort the wrong way: {entry:?} behind {last:?}"));
            }
        }
    }

    fn record_renewals(&mut self, memory: &Memory, set: &WorkingSet) {
        for id in &set.dirty.tasks {
            match memory.tasks.get(id).and_then(|task| task.lease.as_ref()) {
                Some(lease) => {
                    let shown = (lease.id, lease.last_heartbeat);
                    if self.renewed.get(id).is_none_or(|(lease, renewed_at, _)| (*lease, *renewed_at) != shown) {
                        self.renewed.insert(*id, (shown.0, shown.1, Instant::now()));
                    }
                }
                None => {
                    self.renewed.remove(id);
                }
            }
        }
    }

    /// No lease may expire before its TTL has passed, whatever the database's clock says.
    fn check_expired(&mut self, set: &WorkingSet) {
        for past in set.dirty.past_leases.iter().filter(|past| past.status == LeaseStatus::Expired) {
            let Some((_, _, since)) = self.renewed.get(&past.task_id).filter(|(lease, ..)| *lease == past.id) else { continue };
            let lasted = since.elapsed().as_millis();
            if lasted + COMMIT_MS < u128::from(past.ttl_ms.unsigned_abs()) {
                self.violations
                    .push(format!("lease {} with a TTL of {} ms expired {lasted} ms after its renewal: {past:?}", past.id, past.ttl_ms));
            }
        }
    }

    /// After a time in which nobody could renew leases, none may expire before a grace has passed.
    fn check_grace(&mut self, set: &WorkingSet, resumed_at: Ms) {
        for past in set.dirty.past_leases.iter().filter(|past| past.status == LeaseStatus::Expired) {
            let until = resumed_at + GRACE_MS.min(past.ttl_ms);
            if past.started_at < resumed_at && past.ended_at < until {
                self.violations.push(format!("service resumed at {resumed_at}, and a lease expired in its grace until {until}: {past:?}"));
            }
        }
    }

    /// How long the task may be kept from the worker for those that name its agent.
    fn kept_ms(&self, worker: &Worker, task: &TaskState) -> u128 {
        if worker.capabilities.names_agent(&task.agent_slug) { 0 } else { self.named_agent_wait_ms.unsigned_abs().into() }
    }

    fn check_order(&mut self, memory: &Memory, set: &WorkingSet) {
        for task in set.dirty.tasks.iter().filter_map(|id| memory.tasks.get(id)) {
            let Some(lease) = task.lease.as_ref().filter(|lease| lease.origin == Origin::Claim && task.status == Status::Leased) else {
                continue;
            };
            if !self.is_placed_now(lease) {
                continue;
            }
            let Some(worker) = memory.workers.get(&lease.worker_id) else { continue };
            for (id, (_, since)) in &self.ready_since {
                let Some(other) = memory.tasks.get(id).filter(|other| other.is_open_to(&worker.id)) else { continue };
                if memory.closed(&other.agent_slug).is_some() || memory.limit(&other.agent_slug).is_some() {
                    continue;
                }
                let is_before = rank(other.priority) < rank(task.priority) && worker.capabilities.serves(other.requirement());
                if !is_before || since.elapsed().as_millis() <= ORDER_MS + self.kept_ms(worker, other) {
                    continue;
                }
                // This may happen a few times, because another claim may have held the task and given it back.
                let passes = self.passed_over.entry(*id).or_default();
                *passes += 1;
                if *passes > PASSES {
                    self.violations.push(format!(
                        "worker {} got {} of priority {} though {} of priority {} was ready for {} ms",
                        worker.id,
                        task.id,
                        task.priority,
                        other.id,
                        other.priority,
                        since.elapsed().as_millis()
                    ));
                }
            }
        }
    }

    /// Whether this commit made the lease; later commits may write its task again before it runs.
    fn is_placed_now(&self, lease: &ActiveLease) -> bool {
        !self.renewed.values().any(|(known, ..)| *known == lease.id)
    }

    /// The session tasks of a context must run in the order in which they were created.
    fn check_turns(&mut self, memory: &Memory, set: &WorkingSet) {
        self.commits += 1;
        for task in set.dirty.tasks.iter().filter_map(|id| memory.tasks.get(id)) {
            let lease = task.lease.as_ref().filter(|lease| lease.holds_context && self.is_placed_now(lease));
            if let (Some(_), Some(ready_from)) = (lease, self.ready_from.get(&task.id)) {
                let first = memory.live_in(&task.context_id).next().filter(|first| first.id < task.id);
                // An earlier task that was created or queued again after this one became ready may be passed over.
                if let Some(first) = first.filter(|first| self.known_from.get(&first.id).is_some_and(|from| from < ready_from)) {
                    self.violations.push(format!("it was the turn of {first:?}, and a lease was made for {task:?}"));
                }
            }
            match ReadyRow::of(task) {
                Some(_) => {
                    self.ready_from.entry(task.id).or_insert(self.commits);
                }
                None => {
                    self.ready_from.remove(&task.id);
                }
            }
            if task.status.is_final() {
                self.known_from.remove(&task.id);
            } else {
                self.known_from.entry(task.id).or_insert(self.commits);
            }
        }
    }

    /// Checks the promises of liveness in the quiet phase.
    pub fn check_liveness(state: &mut State) {
        let now = state.now();
        let State { tables: Tables { memory, resumed_at, .. }, checker, .. } = state;
        for (worker, claimed) in &checker.claims {
            let Some(worker) = memory.workers.get(worker).filter(|worker| worker.takes_tasks() && worker.is_online()) else { continue };
            let Some(free) = checker.free_since.get(&worker.id) else { continue };
            for (id, (_, since)) in &checker.ready_since {
                let Some(task) = memory.tasks.get(id) else { continue };
                let Some(open) = checker.open_since.get(&task.agent_slug) else { continue };
                let serves = worker.capabilities.serves(task.requirement());
                let could = task.is_open_to(&worker.id) && serves;
                let together = since.elapsed().min(claimed.elapsed()).min(free.elapsed()).min(open.elapsed()).as_millis();
                if could && together > TOGETHER_MS + checker.kept_ms(worker, task) {
                    checker.violations.push(format!("worker {} waits beside a ready task for {together} ms: {task:?}", worker.id));
                }
            }
        }
        for (task, (lease, _, since)) in &checker.renewed {
            let Some(active) = memory.tasks.get(task).and_then(|task| task.lease.as_ref()) else { continue };
            let most = active.ttl_ms + GRACE_MS.min(active.ttl_ms) + DUE_MS;
            let lasted = since.elapsed().as_millis();
            if lasted > u128::from(most.unsigned_abs()) {
                checker
                    .violations
                    .push(format!("lease {lease} of task {task} with a TTL of {} ms was renewed {lasted} ms ago", active.ttl_ms));
            }
        }
        let mut late: Vec<String> = Vec::new();
        for task in memory.tasks.values() {
            if let Some(lease) = &task.lease {
                let end = lease.expires_at.max(*resumed_at + GRACE_MS.min(lease.ttl_ms));
                if end + DUE_MS < now {
                    late.push(format!("lease {} of task {} is over", lease.id, task.id));
                }
            }
            if task.wake_at.is_some_and(|at| at + DUE_MS < now) {
                late.push(format!("task {} is due", task.id));
            }
        }
        late.extend(memory.wakeups.values().map(|wakeup| format!("wake-up {:?} {}", wakeup.subject, wakeup.id)));
        checker.late_since.retain(|what, _| late.contains(what));
        for what in late {
            let since = checker.late_since.entry(what.clone()).or_insert_with(Instant::now).elapsed().as_millis();
            if since > u128::try_from(DUE_MS).unwrap_or(0) {
                checker.violations.push(format!("{what}, and nothing was done about it for {since} ms"));
            }
        }
    }
}
