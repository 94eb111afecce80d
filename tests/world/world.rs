//! A small control plane: it runs commands as the engine does, on a database in memory and with a clock that the test sets.

use std::collections::HashMap;
use std::fmt::Write as _;

use bloom_core::Ms;
use bloom_core::command::{Choice, Claim, Command, Grace, Holder, Op, Operation, Rejection, Reply, RowKeys};
use bloom_core::decide::decide;
use bloom_core::ids::{LeaseId, TaskId, WorkerId, created_at};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::task::{Outcome, Parked, Status, TaskSpec, TaskState};
use bloom_core::wakeup::{Progress, Waiters, Wakeup};
use bloom_core::working_set::{Halt, Loaded, Slots, WorkingSet};

use super::memory::Memory;
pub use super::samples::{completion, in_project, registration, spec};

pub const START: Ms = 1_700_000_000_000;
pub const TTL_MS: i64 = 300_000;
/// How often a command may ask for more rows, as in the engine.
const TRIES: usize = 8;
const CONFLICTS: usize = 3;
/// How long the next task of a session is reserved for the worker that has the session.
pub const SESSION_WAIT_MS: i64 = 30_000;
/// Small, so that wake-ups have more than one page.
pub const PAGE: usize = 2;

#[derive(Clone, Debug)]
pub struct World {
    pub db: Memory,
    pub now: Ms,
    seed: u64,
    /// The used slots as this replica's cache knows them; not updated while `stale` is set.
    view: HashMap<WorkerId, u32>,
    pub stale: bool,
    /// The process dies right after the next commit, so its wake-ups stay in the database until the leader finds them.
    pub crashing: bool,
    /// Checks that each halt leaves the working set unchanged.
    pub strict: bool,
    /// Records the requests to the database, if set.
    pub log: Option<Vec<Asked>>,
}

/// A request to the database, recorded so that it can be repeated on another one.
#[derive(Clone, Debug)]
pub enum Asked {
    Batch(Box<Batch>),
    /// The first [`PAGE`] tasks that wait for this wake-up.
    Waiters(Wakeup, Waiters),
}

/// One batch, with everything that its outcome depends on.
#[derive(Clone, Debug)]
pub struct Batch {
    pub commands: Vec<Command>,
    pub keys: RowKeys,
    pub loaded: Loaded,
    pub now: Ms,
    pub seed: u64,
    pub exact: bool,
    pub view: HashMap<WorkerId, u32>,
    pub committed: bool,
}

pub fn world() -> World {
    World { db: Memory::default(), now: START, seed: 1, view: HashMap::new(), stale: false, crashing: false, strict: false, log: None }
}

fn typed<O: Operation>(reply: Reply) -> O::Reply {
    reply.try_into().unwrap_or_else(|_| unreachable!("an operation's reply is of its own type"))
}

impl World {
    /// Runs one command, and processes the wake-ups that it causes.
    pub fn run<O: Operation + Into<Op>>(&mut self, op: O) -> Result<O::Reply, Rejection> {
        self.run_batch(vec![op.into()]).remove(0).map(typed::<O>)
    }

    /// As [`run`](Self::run), for a command that must not be rejected.
    pub fn ok<O: Operation + Into<Op>>(&mut self, op: O) -> O::Reply {
        let op: Op = op.into();
        let name = op.name();
        let reply = self.run(op).unwrap_or_else(|rejection| panic!("{name}: {rejection}"));
        typed::<O>(reply)
    }

    /// Runs commands in one batch; those that need more rows continue in the next one.
    pub fn run_batch(&mut self, ops: Vec<Op>) -> Vec<Result<Reply, Rejection>> {
        self.run_commands(ops.into_iter().map(Command::from).collect())
    }

    /// As [`run_batch`](Self::run_batch), for commands that may name who asks.
    pub fn run_commands(&mut self, commands: Vec<Command>) -> Vec<Result<Reply, Rejection>> {
        let (outcomes, caused) = self.commit(commands);
        if !std::mem::take(&mut self.crashing) {
            self.wake(caused);
        }
        if !self.stale {
            self.refresh();
        }
        outcomes
    }

    pub fn refresh(&mut self) {
        self.view = self.db.slots();
    }

    /// Makes this replica forget all leases.
    pub fn blind(&mut self) {
        self.view.clear();
    }

    /// Processes wake-ups page by page, including those that they cause.
    fn wake(&mut self, mut open: Vec<Wakeup>) {
        let mut rounds = 0;
        while let Some(mut wakeup) = open.pop() {
            rounds += 1;
            assert!(rounds < 10_000, "wake-ups cause each other without end");
            let waiters = self.db.waiters(&wakeup, PAGE);
            if let Some(log) = &mut self.log {
                log.push(Asked::Waiters(wakeup.clone(), waiters.clone()));
            }
            let Waiters { tasks, next, more_want_key } = waiters;
            let progress = Progress { wakeup: wakeup.id, next, more_want_key };
            let (answers, caused) = self.commit(vec![Op::Reevaluate(op::Reevaluate { tasks, progress: Some(progress) }).into()]);
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            if next.is_some() {
                wakeup.cursor = next;
                open.push(wakeup);
            }
            open.extend(caused);
        }
    }

    /// Processes the wake-ups that dead processes left in the database, as a leader does.
    pub fn process_wakeups(&mut self) {
        self.wake(self.db.wakeups.values().cloned().collect());
    }

    fn commit(&mut self, commands: Vec<Command>) -> (Vec<Result<Reply, Rejection>>, Vec<Wakeup>) {
        let mut caused: Vec<Wakeup> = Vec::new();
        let mut outcomes: Vec<Option<Result<Reply, Rejection>>> = commands.iter().map(|_| None).collect();
        let mut open: Vec<(usize, RowKeys)> = commands.iter().enumerate().map(|(i, command)| (i, command.op.keys())).collect();
        for _ in 0..TRIES {
            let mut set = self.decide_and_save(&commands, &mut open, &mut outcomes);
            caused.append(&mut set.caused);
            if open.is_empty() {
                return (outcomes.into_iter().map(|outcome| outcome.expect("every command has an outcome")).collect(), caused);
            }
        }
        let stuck: Vec<&Command> = open.iter().map(|(i, _)| &commands[*i]).collect();
        panic!("these commands ask for more rows again and again: {stuck:#?}");
    }

    /// Runs one batch. Commands that need more rows stay in `open`, with the keys of those rows.
    fn decide_and_save(
        &mut self,
        commands: &[Command],
        open: &mut Vec<(usize, RowKeys)>,
        outcomes: &mut [Option<Result<Reply, Rejection>>],
    ) -> WorkingSet {
        for conflicts in 0..=CONFLICTS {
            let mut keys = RowKeys::default();
            open.iter().for_each(|(_, more)| keys.merge(more));
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let loaded = self.db.load(self.now, &keys);
            let mut set = WorkingSet::new(loaded.clone(), self.seed);
            set.exact = conflicts > 0;
            set.session_wait_ms = SESSION_WAIT_MS;
            hint_slots(&mut set, &self.view);
            let answers: Vec<_> = open.iter().map(|(i, _)| self.decide_checked(&mut set, &commands[*i])).collect();
            let committed = self.db.save(&set).is_ok();
            if let Some(log) = &mut self.log {
                let commands = open.iter().map(|(i, _)| commands[*i].clone()).collect();
                let (now, seed, exact, view) = (self.now, self.seed, set.exact, self.view.clone());
                log.push(Asked::Batch(Box::new(Batch { commands, keys, loaded, now, seed, exact, view, committed })));
            }
            if !committed {
                continue;
            }
            let before = std::mem::take(open);
            for ((i, mut keys), answer) in before.into_iter().zip(answers) {
                match answer {
                    Ok(reply) => outcomes[i] = Some(Ok(reply)),
                    Err(Halt::Rejected(rejection)) => outcomes[i] = Some(Err(rejection)),
                    Err(Halt::Locked) => panic!("nothing is locked"),
                    Err(Halt::Need(more)) => {
                        keys.merge(&more);
                        open.push((i, keys));
                    }
                }
            }
            return set;
        }
        panic!("the batch meets conflicts again and again");
    }

    fn decide_checked(&self, set: &mut WorkingSet, command: &Command) -> Result<Reply, Halt> {
        let before = self.strict.then(|| format!("{set:?}"));
        let answer = decide(set, command);
        if let (Some(before), Err(halt)) = (before, &answer) {
            assert!(before == format!("{set:?}"), "{command:?} halted with {halt:?} and changed the working set");
        }
        answer
    }

    // --- shorthands for commands ---

    pub fn worker(mut self, name: &str, slots: i64) -> Self {
        self.ok(registration(name, slots));
        self
    }

    pub fn create(&mut self, spec: TaskSpec) -> TaskId {
        self.ok(op::Create { tasks: vec![spec] })[0].state.id
    }

    pub fn lease(&mut self, task: TaskId, worker: &str) -> LeaseId {
        self.ok(op::Lease { task, choice: Choice::Named(worker.into()), ttl_ms: TTL_MS, origin: Origin::Call });
        self.lease_of(task)
    }

    /// The leader pushes the task to the worker, or to the one that the task's context prefers.
    pub fn push(&mut self, task: TaskId, worker: &str) -> LeaseId {
        self.ok(op::Push { task, worker: worker.into(), ttl_ms: TTL_MS });
        self.lease_of(task)
    }

    /// A claim of the worker for up to `max` tasks.
    pub fn claim_op(&self, worker: &str, max: usize, held: Option<Vec<LeaseId>>) -> Claim {
        let candidates = self.db.workers.get(worker).map(|worker| self.db.ready_for(worker)).unwrap_or_default();
        let candidates = candidates.into_iter().take(max).collect();
        Claim { worker: worker.into(), candidates, max, held, instance: None, ttl_ms: TTL_MS }
    }

    pub fn claim(&mut self, worker: &str, max: usize) -> Vec<TaskState> {
        self.ok(self.claim_op(worker, max, None)).leased
    }

    pub fn heartbeat(&mut self, task: TaskId) {
        self.ok(op::Heartbeat { task, holder: Holder::default() });
    }

    pub fn complete(&mut self, task: TaskId, status: Outcome) {
        let lease = Some(self.lease_of(task));
        self.ok(completion(task, lease, status));
    }

    /// Lets the task's lease expire, and ends it.
    pub fn expire(&mut self, task: TaskId) {
        let (lease, at) = self.task(task).lease.as_ref().map(|lease| (lease.id, lease.expires_at)).expect("it has a lease");
        self.now = self.now.max(at);
        self.ok(op::ExpireLease { task, lease, grace: Grace::default() });
    }

    pub fn task(&self, id: TaskId) -> &TaskState {
        &self.db.tasks[&id]
    }

    pub fn lease_of(&self, task: TaskId) -> LeaseId {
        self.task(task).lease.as_ref().expect("it has a lease").id
    }

    /// Advances the clock to the next deadline and does what is due; `false` if there is no deadline.
    pub fn next_deadline(&mut self) -> bool {
        let leases = self.db.active().filter_map(|task| Some(task.lease.as_ref()?.check_at));
        let waits = self.db.tasks.values().filter_map(|task| task.wake_at);
        let Some(at) = leases.chain(waits).min() else { return false };
        self.now = self.now.max(at);
        self.do_what_is_due();
        true
    }

    /// Does everything that is due now, as the leader does.
    pub fn do_what_is_due(&mut self) {
        self.process_wakeups();
        let now = self.now;
        let due: Vec<_> =
            self.db.active().filter_map(|task| task.lease.as_ref().map(|lease| (task.id, lease.id, lease.check_at))).collect();
        for (task, lease, _) in due.into_iter().filter(|(.., at)| *at <= now) {
            self.ok(op::ExpireLease { task, lease, grace: Grace::default() });
        }
        let tasks: Vec<TaskId> =
            self.db.tasks.values().filter(|task| task.wake_at.is_some_and(|at| at <= now)).map(|task| task.id).collect();
        if !tasks.is_empty() {
            self.ok(op::Reevaluate { tasks, progress: None });
        }
    }

    /// Checks what must hold at every moment, whatever the history.
    pub fn check(&self) {
        let mut wrong = String::new();
        let mut counts = bloom_core::working_set::Counts::new();
        for task in self.db.tasks.values() {
            *counts.entry((task.agent_slug.clone(), task.priority, task.status)).or_default() += 1;
            let id = created_at(task.id);
            let mut expect = |holds: bool, what: &str| {
                if !holds {
                    let _ = writeln!(wrong, "task created at {id}: {what}\n  {task:?}");
                }
            };
            expect(task.status.is_active() == task.lease.is_some(), "exactly the leased and running tasks have a lease");
            expect((0..=task.max_attempts).contains(&task.attempts), "attempts stay within bounds");
            expect(task.status != Status::Queued || task.attempts < task.max_attempts, "a queued task has an attempt left");
            expect((0..=20).contains(&task.infra_retries), "attempts are given back 20 times at most");
            expect(task.parked.is_none() || task.status == Status::Queued, "only queued tasks are parked");
            let by_clock = matches!(task.parked, Some(Parked::NotBefore | Parked::Reserved));
            expect(task.wake_at.is_some() == by_clock, "wake_at is set for tasks parked by time, and only for them");
            let is_kept = matches!(task.parked, Some(Parked::Suspended | Parked::DependsOn));
            expect(!task.suspend || task.status != Status::Queued || is_kept, "a suspended task is not ready");
            expect(task.suspend || task.parked != Some(Parked::Suspended), "only suspended tasks are parked as such");
            expect(task.created_after.is_none() || !task.status.is_final(), "a finished task has no predecessor");
            expect(task.status.is_final() == task.finished_at.is_some(), "exactly the finished tasks have a time of their end");
            expect(task.status != Status::Queued || !task.cancel_requested, "a task with cancel_requested is not queued");
            expect(task.question.is_none() || task.lease.is_some(), "only runs ask");
            expect(task.attempts <= task.lease_count, "every attempt has a lease");
            let (mut ended, mut finished) = (0, 0);
            for past in self.db.past_leases.values().filter(|past| past.task_id == task.id) {
                ended += 1;
                finished += i64::from(past.completed);
            }
            expect(task.lease_count == ended + i64::from(task.lease.is_some()), "every lease has a record");
            let results = self.db.results.iter().filter(|result| result.task_id == task.id).count();
            expect(i64::try_from(results) == Ok(finished), "each completed lease has one result");
        }
        assert!(wrong.is_empty(), "{wrong}");
        assert_eq!(self.db.counts, counts, "the counts match the tasks");
        let leases: i64 = self.db.tasks.values().map(|task| task.lease_count).sum();
        assert_eq!(self.db.leases_granted - self.db.leases_removed, leases);
        assert!(self.db.active().all(|task| task.lease.as_ref().is_some_and(|lease| self.db.workers.contains_key(&lease.worker_id))));
    }
}

/// Fills in the used slots from this replica's cache where they were not read from the database, as the engine does.
pub fn hint_slots(set: &mut WorkingSet, view: &HashMap<WorkerId, u32>) {
    let ids: Vec<_> = set.loaded.workers.keys().filter(|id| !set.loaded.slots.contains_key(*id)).cloned().collect();
    for id in ids {
        let used = view.get(&id).copied().unwrap_or_default();
        set.loaded.slots.insert(id, Slots { used, exact: false });
    }
}
