//! Leases for the workers that are pushed to. They are made on the leader; the caller sends each of them once.

use std::sync::Arc;

use bloom_core::Ms;
use bloom_core::command::{Command, Rejection, Requester};
use bloom_core::ids::WorkerId;
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::placement::is_open;
use bloom_core::reply::{Leased, Pushed};
use bloom_core::task::TaskState;
use bloom_core::worker::Worker;

use super::Error;
use super::candidates::{Candidates, Taken, Tries};
use super::clock::Clock;
use super::replica::Replica;
use super::writers::Writers;

/// The delay after the cache turned out to be outdated about a worker. The feed will have updated it by then.
const CACHE_MS: Ms = 1_000;

/// The result of one round of pushes.
#[derive(Debug, Default)]
pub struct PushRound {
    /// The new leases. They are valid even if `error` is set.
    pub leased: Vec<(TaskState, Worker)>,
    /// When to try again because there may be more to push; `None` if only a change can bring more.
    pub next_at: Option<Ms>,
    /// Why tasks could not be leased; `None` if no command failed.
    pub error: Option<Error>,
}

impl PushRound {
    fn again_at(&mut self, at: Ms) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }
}

/// A worker with its free slots.
struct OpenWorker {
    worker: WorkerId,
    free: i64,
    last_seen: Ms,
}

/// Leases ready tasks to workers that are pushed to.
pub struct Pushes {
    pub(super) clock: Arc<Clock>,
    pub(super) replica: Arc<Replica>,
    pub(super) candidates: Arc<Candidates>,
    pub(super) writers: Arc<Writers>,
}

impl Pushes {
    /// Leases up to `max` ready tasks, in queue order, to the workers that are pushed to and for which `is_reachable` returns true. Each
    /// task goes to the worker with the most free slots. The commands are valid only in this epoch.
    pub async fn push(&self, epoch: i64, max: usize, ttl_ms: i64, is_reachable: impl Fn(&str) -> bool) -> PushRound {
        let mut round = PushRound::default();
        let mut taken = Taken { candidates: &self.candidates, tasks: Vec::new() };
        let mut pushes = Vec::new();
        let mut open_workers = self.open_workers(is_reachable);
        while pushes.len() < max {
            let best = (0..open_workers.len()).max_by_key(|at| (open_workers[*at].free, open_workers[*at].last_seen));
            let Some(at) = best.filter(|at| open_workers[*at].free > 0) else { break };
            let tasks = match self.candidates.offer(&open_workers[at].worker, 1, &Tries::default()).await {
                Ok(offer) => {
                    offer.kept_until.into_iter().for_each(|at| round.again_at(at));
                    offer.tasks
                }
                Err(error) => {
                    round.error = Some(error);
                    break;
                }
            };
            let Some(task) = tasks.first().copied() else {
                open_workers.swap_remove(at);
                continue;
            };
            taken.tasks.extend(tasks);
            open_workers[at].free -= 1;
            pushes.push(op::Push { task, worker: open_workers[at].worker.clone(), ttl_ms });
        }
        if pushes.len() == max {
            round.again_at(self.clock.now());
        }
        let commands = pushes.iter().cloned().map(|op| Command { op, by: Requester::default(), epoch: Some(epoch) }).collect();
        let replies = self.writers.submit_all(commands).await;
        self.sort(pushes.into_iter().zip(replies), &mut round);
        drop(taken);
        round
    }

    /// Adds the outcome of each command to the round.
    fn sort(&self, outcomes: impl Iterator<Item = (op::Push, Result<Pushed, Error>)>, round: &mut PushRound) {
        for (push, reply) in outcomes {
            match reply {
                Ok(Pushed::Leased(Leased { task, worker, .. })) => round.leased.push((task, worker)),
                // The task is blocked and was parked, so the next one can be tried.
                Ok(Pushed::Parked(_)) => round.again_at(self.clock.now()),
                Err(Error::Rejected(Rejection::QueueClosed(closed))) => {
                    // The next round leaves this queue out.
                    self.candidates.refuse(&[closed.agent_slug().to_owned()]);
                    round.again_at(self.clock.now());
                }
                Err(Error::Rejected(Rejection::NoWorker | Rejection::WorkerNotFound)) => round.again_at(self.clock.now() + CACHE_MS),
                Err(Error::Rejected(rejection)) if rejection != Rejection::NotLeader => round.again_at(self.clock.now()),
                Err(error) => {
                    // Another program may keep the row of the task or of the worker locked. Other pushes must not wait for that lock.
                    if matches!(error, Error::Locked(_)) {
                        self.candidates.withhold(&[push.task]);
                        self.replica.lock().pass_over(push.worker);
                    }
                    round.error = Some(error);
                }
            }
        }
    }

    /// The workers that can get a push. Workers that claim are left out, because they fetch their tasks themselves.
    fn open_workers(&self, is_reachable: impl Fn(&str) -> bool) -> Vec<OpenWorker> {
        let remembered = self.replica.lock();
        let fleet = &remembered.cache.fleet;
        let claims = |id: &str| remembered.has_open_claim(id) || fleet.held(id).any(|held| held.origin == Origin::Claim);
        let open = fleet
            .pushed_to()
            .filter(|worker| is_open(worker) && !remembered.is_passed_over(&worker.id) && !claims(&worker.id) && is_reachable(&worker.id));
        open.map(|worker| OpenWorker { worker: worker.id.clone(), free: fleet.free(&worker.id), last_seen: worker.last_seen }).collect()
    }
}
