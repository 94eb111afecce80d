//! The steps of the model: replicas look up, lock and decide; workers get replies and send messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Setting, WORKERS};
use bloom_core::command::{Choice, Claim, Completion, Grace, Holder, Op, PushEnd, Reply, RowKeys};
use bloom_core::decide::decide;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::reply;
use bloom_core::reply::StoredResult;
use bloom_core::task::{Outcome, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_core::wakeup::{Progress, Waiters};
use bloom_core::working_set::{Halt, Loaded, WorkingSet};
use bloom_test_world::memory::Memory;
use bloom_test_world::world::{TTL_MS, completion, hint_slots};

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) db: Arc<Memory>,
    pub(super) tasks: Vec<TaskId>,
    pub(super) leases: Vec<Given>,
    pub(super) replicas: [Option<Begun>; 2],
    pub(super) crashes: u8,
    pub(super) cancelled: bool,
    pub(super) requeued: bool,
    pub(super) edited: bool,
    pub(super) suspended: bool,
    pub(super) session_wait_ms: i64,
    pub(super) now: i64,
    pub(super) commits: u64,
    /// The hash of everything that matters in this state.
    pub(super) print: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) task: TaskId,
    pub(super) id: LeaseId,
    pub(super) worker: &'static str,
    /// Whether the worker knows of the lease.
    pub(super) known: bool,
    /// Whether the replica that made the lease is about to push the task, or waits for the answer.
    pub(super) sending: bool,
    /// Whether the worker knows that its completion was stored.
    pub(super) acknowledged: bool,
}

/// A command whose look-ups are done but whose rows are not locked yet.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) op: Op,
    pub(super) keys: RowKeys,
    pub(super) found: Loaded,
    pub(super) found_tasks: BTreeSet<TaskId>,
    pub(super) view: HashMap<String, u32>,
    pub(super) exact: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ask {
    CreateSecond,
    Claim(&'static str),
    /// The worker reports that it has no leases.
    ClaimAnew(&'static str),
    Lease(TaskId, &'static str),
    Push(&'static str),
    Requeue(TaskId),
    Resume(TaskId),
    /// The first wake-up is processed, by the replica that made it or by the leader.
    Wake,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    Beat(usize),
    Succeed(usize),
    FailRetryably(usize),
    /// The push arrives. (The agent's answer changes nothing.)
    Arrive(usize),
    /// The agent refuses the push.
    Refuse(usize),
    /// The push or its answer is lost.
    Lose(usize),
    Expire(TaskId),
    Due(TaskId),
    Cancel(TaskId),
    /// A client postpones the task and makes it more urgent.
    Postpone(TaskId),
    Suspend(TaskId),
}

impl State {
    pub(super) fn is_over(&self) -> bool {
        self.tasks.len() == 2 && self.db.tasks.values().all(|task| task.status.is_final())
    }

    pub(super) fn begin(&mut self, setting: &Setting, replica: usize, ask: &Ask) {
        let claim = |worker: &str, held| {
            let candidates = self.db.ready_for(&self.db.workers[worker]).into_iter().take(1).collect();
            Op::Claim(Claim { worker: worker.to_owned(), candidates, max: 1, held, instance: None, ttl_ms: TTL_MS })
        };
        let op = match ask {
            Ask::CreateSecond => {
                let depends_on = self.tasks.iter().copied().filter(|_| setting.depends).collect();
                Op::Create(op::Create { tasks: vec![TaskSpec { depends_on, ..setting.second.clone() }] })
            }
            Ask::Claim(worker) => claim(worker, None),
            Ask::ClaimAnew(worker) => claim(worker, Some(Vec::new())),
            Ask::Lease(task, worker) => {
                Op::Lease(op::Lease { task: *task, choice: Choice::Named((*worker).to_owned()), ttl_ms: TTL_MS, origin: Origin::Call })
            }
            Ask::Push(worker) => {
                let task = self.db.ready_for(&self.db.workers[*worker])[0];
                Op::Push(op::Push { task, worker: (*worker).to_owned(), ttl_ms: TTL_MS })
            }
            Ask::Requeue(task) => {
                self.requeued = true;
                Op::Requeue(op::Requeue { task: *task, limits: LimitChange::default() })
            }
            Ask::Resume(task) => Op::Suspend(op::Suspend { task: *task, suspend: false }),
            Ask::Wake => {
                let Some(wakeup) = self.db.wakeups.values().next() else { return };
                let Waiters { tasks, next, more_want_key } = self.db.waiters(wakeup, 1);
                Op::Reevaluate(op::Reevaluate { tasks, progress: Some(Progress { wakeup: wakeup.id, next, more_want_key }) })
            }
        };
        let keys = op.keys();
        self.look_up(replica, op, keys, false);
    }

    pub(super) fn look_up(&mut self, replica: usize, op: Op, keys: RowKeys, exact: bool) {
        let (found, found_tasks) = self.db.look_up(&keys);
        self.replicas[replica] = Some(Begun { op, keys, found, found_tasks, view: self.db.slots(), exact });
    }

    pub(super) fn finish(&mut self, replica: usize, heard: bool) -> bool {
        let Some(begun) = self.replicas[replica].take() else { return false };
        let loaded = self.db.lock(self.now, &begun.keys, begun.found, begun.found_tasks);
        let mut set = self.working_set(loaded);
        set.exact = begun.exact;
        hint_slots(&mut set, &begun.view);
        let answer = decide(&mut set, &begun.op.clone().into());
        let mut written = Memory::clone(&self.db);
        if written.write(&set).is_err() {
            // A process that dies here has committed nothing; only the request is lost.
            if heard {
                self.look_up(replica, begun.op, begun.keys, true);
            }
            return true;
        }
        match answer {
            Err(Halt::Need(more)) if heard => {
                let mut keys = begun.keys;
                keys.merge(&more);
                self.look_up(replica, begun.op, keys, false);
            }
            Err(_) => {}
            Ok(reply) => self.committed(written, &set, Some(reply), heard),
        }
        true
    }

    pub(super) fn act(&mut self, act: &Act, heard: bool) -> bool {
        match *act {
            Act::Arrive(i) => self.leases[i].known = true,
            Act::Refuse(i) | Act::Lose(i) => self.leases[i].sending = false,
            _ => {}
        }
        let of = |i: usize| (self.leases[i].task, Some(self.leases[i].id));
        let complete = |i: usize, status, retryable| {
            let (task, lease) = of(i);
            let retry_at = Some(self.now + 60_000);
            Op::Complete(Box::new(Completion { retryable, retry_at, ..completion(task, lease, status) }))
        };
        let ended = |i: usize, end| Op::EndPush(op::EndPush { task: self.leases[i].task, lease: self.leases[i].id, end });
        let message = String::new();
        let op = match *act {
            Act::Arrive(_) => return true,
            Act::Refuse(i) => ended(i, PushEnd::Refused { message }),
            Act::Lose(i) => ended(i, PushEnd::Undelivered { message, unless_running: self.leases[i].known }),
            Act::Beat(i) => Op::Heartbeat(op::Heartbeat { task: of(i).0, holder: Holder { lease: of(i).1, worker: None } }),
            Act::Succeed(i) => complete(i, Outcome::Success, false),
            Act::FailRetryably(i) => complete(i, Outcome::Error, true),
            Act::Expire(task) => {
                let Some(lease) = &self.db.tasks[&task].lease else { return false };
                self.now = self.now.max(lease.expires_at);
                Op::ExpireLease(op::ExpireLease { task, lease: lease.id, grace: Grace::default() })
            }
            Act::Due(task) => {
                self.now = self.now.max(self.db.tasks[&task].wake_at.unwrap_or_default());
                Op::Reevaluate(op::Reevaluate { tasks: vec![task], progress: None })
            }
            Act::Cancel(task) => {
                self.cancelled = true;
                Op::Cancel(op::Cancel { task })
            }
            Act::Suspend(task) => {
                self.suspended = true;
                Op::Suspend(op::Suspend { task, suspend: true })
            }
            Act::Postpone(task) => {
                self.edited = true;
                let (not_before, labels, first_labels) = (Some(Some(self.now + 1_000)), BTreeMap::new(), BTreeMap::new());
                Op::Edit(op::Edit { task, priority: Some(9), not_before, labels, first_labels, limits: LimitChange::default() })
            }
        };
        let mut keys = op.keys();
        for _ in 0..8 {
            let mut set = self.working_set(self.db.load(self.now, &keys));
            match decide(&mut set, &op.clone().into()) {
                Err(Halt::Need(more)) => keys.merge(&more),
                Err(Halt::Rejected(_) | Halt::Locked) => return true,
                Ok(reply) => {
                    let mut written = Memory::clone(&self.db);
                    written.write(&set).unwrap();
                    if let (Op::Complete(done), Reply::Completed(reply::Completed { result, .. }), true) = (&op, &reply, heard) {
                        self.acknowledge(done, result);
                    }
                    self.committed(written, &set, None, heard);
                    return true;
                }
            }
        }
        panic!("{op:?} asks for more rows again and again");
    }

    pub(super) fn acknowledge(&mut self, done: &Completion, result: &StoredResult) {
        let told = match result {
            StoredResult::Now(result) => result.lease_id,
            StoredResult::Before(lease) => *lease,
            StoredResult::UsageOnly(_) => return,
        };
        assert_eq!(Some(told), done.holder.lease);
        self.leases.iter_mut().filter(|given| given.id == told).for_each(|given| given.acknowledged = true);
    }

    pub(super) fn working_set(&mut self, loaded: Loaded) -> WorkingSet {
        self.commits += 1;
        let mut set = WorkingSet::new(loaded, self.commits.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        set.session_wait_ms = self.session_wait_ms;
        set
    }

    /// Applies a commit, and delivers its reply to the worker that sent the request.
    pub(super) fn committed(&mut self, mut written: Memory, set: &WorkingSet, reply: Option<Reply>, heard: bool) {
        written.audit.clear();
        self.db = Arc::new(written);
        self.tasks.extend(set.dirty.specs.iter().map(|spec| spec.id));
        for task in self.db.tasks.values() {
            let Some(lease) = task.lease.as_ref().filter(|lease| !self.leases.iter().any(|given| given.id == lease.id)) else { continue };
            let worker = WORKERS.into_iter().find(|worker| *worker == lease.worker_id).unwrap();
            self.leases.push(Given { task: task.id, id: lease.id, worker, known: false, sending: false, acknowledged: false });
        }
        if !heard {
            return;
        }
        let told: Vec<LeaseId> = match reply {
            Some(Reply::Claimed(reply::Claimed { leased, .. })) => leased.iter().filter_map(|task| Some(task.lease.as_ref()?.id)).collect(),
            Some(Reply::Leased(reply::Leased { task, .. })) => task.lease.iter().map(|lease| lease.id).collect(),
            _ => Vec::new(),
        };
        // A worker that gets a lease starts the run at once and sends a heartbeat; further heartbeats are separate acts.
        for i in (0..self.leases.len()).filter(|i| told.contains(&self.leases[*i].id)).collect::<Vec<_>>() {
            let pushed = self.db.tasks[&self.leases[i].task].lease.as_ref().is_some_and(|lease| lease.origin.is_pushed());
            if pushed {
                self.leases[i].sending = true;
                continue;
            }
            self.leases[i].known = true;
            self.act(&Act::Beat(i), true);
        }
    }
}
