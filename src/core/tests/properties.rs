//! Properties of arbitrary histories of commands, with processes that die right after a commit, replicas with an outdated cache, repeated
//! messages and passing time. `PROPTEST_CASES` sets the number of histories; the default is 256.

use std::collections::HashMap;

use proptest::prelude::*;

use bloom_core::agent_queue::ALL_QUEUES;
use bloom_core::command::{Completion, Op, QueueChange, Rejection, Reply, WorkerChange};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::reply;
use bloom_core::reply::StoredResult;
use bloom_core::task::{Outcome, Status};
use bloom_test_world::history::History;
use bloom_test_world::random::steps;
use bloom_test_world::step::Step;
use bloom_test_world::world::{World, completion, registration, world};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn over_any_history(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.drive_to_the_end();
    }
}

struct Run {
    world: World,
    history: History,
    /// Acknowledged completions, by lease, with their tasks and the results that were stored for them.
    acknowledged: HashMap<LeaseId, (TaskId, uuid::Uuid)>,
}

impl Run {
    fn new() -> Self {
        let mut world = world().worker("w0", 2).worker("w1", 1);
        world.strict = true;
        Self { world, history: History::default(), acknowledged: HashMap::new() }
    }

    fn step(&mut self, step: &Step) {
        let ops = self.history.begin(&mut self.world, step);
        if !ops.is_empty() {
            self.carry_out(ops);
        }
        self.history.learn(&self.world.db);
        self.world.check();
        self.check_results();
    }

    fn carry_out(&mut self, ops: Vec<Op>) {
        let before = self.world.clone();
        let answers = self.world.run_batch(ops.clone());
        for (op, answer) in ops.iter().zip(&answers) {
            if let (Op::Complete(completion), Ok(Reply::Completed(reply::Completed { result, .. }))) = (op, answer) {
                self.acknowledge(completion, result);
            }
            if let (Op::Delete(op::Delete { task }), Ok(_)) = (op, answer) {
                self.acknowledged.retain(|_, (of, _)| of != task);
            }
        }
        self.check_slots(&before);
        if !ops.iter().any(|op| matches!(op, Op::ChangeQueue(_))) {
            self.check_queue(&before);
        }
        if !ops.iter().any(|op| matches!(op, Op::Suspend(_))) {
            self.check_suspended(&before);
        }
        if let ([op], [answer]) = (ops.as_slice(), answers.as_slice()) {
            self.check_attempts(&before, op);
            if answer.is_err() {
                assert_eq!(before.db, self.world.db, "a rejection changes nothing");
            }
            self.check_repeat(op, answer);
        }
    }

    fn acknowledge(&mut self, completion: &Completion, result: &StoredResult) {
        match result {
            StoredResult::Now(result) => {
                assert!(completion.holder.lease.is_none_or(|named| named == result.lease_id), "the result is of another lease");
                assert_eq!(self.acknowledged.insert(result.lease_id, (completion.task, result.id)), None, "a lease was completed twice");
            }
            StoredResult::Before(lease) => assert!(self.acknowledged.contains_key(lease), "the lease was not completed before"),
            StoredResult::UsageOnly(_) => {
                let lease = completion.holder.lease.expect("a lease");
                assert!(!self.acknowledged.contains_key(&lease), "the lease was completed before");
                assert_eq!(self.world.db.past_leases[&lease].usage, completion.usage);
            }
        }
    }

    /// No worker gets a lease beyond its capacity.
    fn check_slots(&self, before: &World) {
        for worker in self.world.db.workers.values() {
            let held = self.world.db.used(&worker.id).count_ones();
            let grew = held > before.db.used(&worker.id).count_ones();
            assert!(!grew || i64::from(held) <= worker.capabilities.max_concurrency, "{} has {held} leases", worker.id);
        }
    }

    /// No lease is made for a paused queue, and none beyond a limit.
    fn check_queue(&self, before: &World) {
        let (before, db) = (&before.db, &self.world.db);
        if db.leases_granted > before.leases_granted {
            let paused = [ALL_QUEUES, "coder"].map(|slug| before.queues.get(slug).is_some_and(|queue| queue.paused_at.is_some()));
            assert_eq!(paused, [false; 2], "a lease was made of a paused queue");
            assert!(before.limit("coder").is_none_or(|limit| db.active_of("coder") <= limit), "{} leases", db.active_of("coder"));
        }
    }

    /// No lease is made for a suspended task.
    fn check_suspended(&self, before: &World) {
        for was in before.db.tasks.values().filter(|was| was.suspend && was.status == Status::Queued) {
            let leases = self.world.db.tasks.get(&was.id).map_or(was.lease_count, |task| task.lease_count);
            assert_eq!(leases, was.lease_count, "a lease was made of a suspended task");
        }
    }

    /// The number of attempts rises by one with each lease, falls by one when an attempt is given back, and is 0 after a requeue.
    fn check_attempts(&self, before: &World, op: &Op) {
        for (id, task) in &self.world.db.tasks {
            let Some(was) = before.db.tasks.get(id) else { continue };
            let requeued = matches!(op, Op::Requeue(op::Requeue { task, .. }) if task == id) && was.status != task.status;
            let given_back = task.infra_retries - was.infra_retries;
            let expected = if requeued { 0 } else { was.attempts + (task.lease_count - was.lease_count) - given_back };
            assert_eq!(task.attempts, expected, "{op:?}\n{was:?}\n{task:?}");
        }
    }

    /// A repeated command gives the same answer and changes nothing more.
    fn check_repeat(&mut self, op: &Op, answer: &Result<Reply, Rejection>) {
        if answer.is_err() || self.world.crashing {
            return;
        }
        let again = |world: &mut World| {
            let before = world.db.clone();
            let answer = world.run(op.clone());
            assert_eq!(before, world.db, "a repeat changes nothing: {op:?}");
            answer
        };
        match op {
            Op::Complete(completion) if completion.holder.lease.is_some() => {
                let answer = again(&mut self.world);
                let Ok(Reply::Completed(reply::Completed { result, .. })) = answer else { panic!("{answer:?}") };
                assert!(matches!(result, StoredResult::Before(_) | StoredResult::UsageOnly(_)), "{result:?}");
            }
            Op::Cancel(_) | Op::Edit(_) => assert!(again(&mut self.world).is_ok()),
            Op::Create(op::Create { tasks }) if tasks.iter().all(|task| task.idempotency_key.is_some()) => {
                let Ok(Reply::Created(first)) = answer else { panic!("{answer:?}") };
                let Ok(Reply::Created(second)) = again(&mut self.world) else { panic!("the repeat was refused") };
                assert!(first.iter().zip(&second).all(|(a, b)| a.spec.id == b.spec.id && b.existed));
            }
            Op::Suspend(op::Suspend { task, .. }) => {
                // The task may have been cancelled, because a dependency had failed.
                let is_over = self.world.task(*task).status.is_final();
                assert_eq!(again(&mut self.world).is_err(), is_over);
            }
            Op::Requeue(_) | Op::Release(_) => {
                let before = self.world.db.clone();
                if self.world.run(op.clone()).is_err() {
                    assert_eq!(before, self.world.db);
                }
            }
            _ => {}
        }
    }

    /// Every acknowledged completion has its result and is marked in the lease's record.
    fn check_results(&self) {
        for (lease, (_, result)) in &self.acknowledged {
            assert!(self.world.db.results.iter().any(|stored| stored.id == *result && stored.lease_id == *lease), "a result was lost");
            assert!(self.world.db.past_leases[lease].completed);
        }
        assert_eq!(self.world.db.results.len(), self.acknowledged.len(), "a result was stored without an acknowledged completion");
    }

    /// No task is stuck: with a worker, a leader and enough time, every task reaches a final status.
    fn drive_to_the_end(&mut self) {
        let world = &mut self.world;
        (world.crashing, world.stale) = (false, false);
        world.refresh();
        world.process_wakeups();
        for agent_slug in [ALL_QUEUES, "coder"] {
            world.ok(op::ChangeQueue { agent_slug: agent_slug.into(), change: QueueChange::Resume });
        }
        let suspended: Vec<TaskId> =
            world.db.tasks.values().filter(|task| task.suspend && !task.status.is_final()).map(|task| task.id).collect();
        for task in suspended {
            // Resuming one task may have cancelled another, because a dependency had failed.
            drop(world.run(op::Suspend { task, suspend: false }));
        }
        for _ in 0..1_000 {
            world.ok(WorkerChange { git: Some(true), ..registration("helper", 32) });
            let leased = world.claim("helper", 32);
            let active: Vec<(TaskId, LeaseId)> = world.db.active().map(|task| (task.id, world.lease_of(task.id))).collect();
            for (task, lease) in &active {
                world.ok(completion(*task, Some(*lease), Outcome::Success));
            }
            if leased.is_empty() && active.is_empty() && !world.next_deadline() {
                break;
            }
        }
        world.check();
        let left: Vec<_> = world.db.tasks.values().filter(|task| !task.status.is_final()).collect();
        assert!(left.is_empty(), "stuck: {left:#?}");
    }
}
