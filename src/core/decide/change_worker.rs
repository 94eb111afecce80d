//! Registers a worker, or changes what it reports about itself.

use super::presence::{audit_return, see};
use crate::Ms;
use crate::arguments::WorkerChange;
use crate::audit::{Action, EntityType};
use crate::limits::{TOLD_PAUSE_MS, WORKER_AGENTS};
use crate::operation::Operation;
use crate::pause::Pause;
use crate::rejection::Rejection;
use crate::reply::ChangedWorker;
use crate::row_keys::RowKeys;
use crate::wakeup::Subject;
use crate::worker::{Instance, Worker, WorkerStatus};
use crate::working_set::{Halt, WorkingSet};

impl Operation for WorkerChange {
    type Reply = ChangedWorker;

    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        // The reply contains the number of the worker's active leases.
        keys.workers.insert(self.id.clone());
        keys.exact_slots.insert(self.id.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ChangedWorker, Halt> {
        let change = self;
        let now = set.now();
        let known = set.find_worker(&change.id)?.cloned();
        let created = known.is_none();
        let before = known.unwrap_or_else(|| Worker::new(change.id.clone(), now));
        if change.instance.is_some_and(|instance| !before.may_become(instance)) {
            return Err(other_agent(&before, now).into());
        }
        let mut worker = with_change(before.clone(), change);
        for pause in &mut worker.pauses {
            pause.until = bounded_end(pause, &before.pauses, now);
            pause.is_resumed = before.pauses.iter().any(|known| known.is_resumed && known.is_same(pause));
        }
        let combinations = worker.capabilities.combinations();
        if combinations > WORKER_AGENTS {
            return Err(Rejection::TooManyCombinations(combinations).into());
        }
        if let Some(id) = change.instance.filter(|id| before.instance.is_none_or(|known| known.id != *id)) {
            worker.instance = Some(Instance { id, since: now });
        }
        worker.last_seen = now;
        worker.lost = false;
        // The agent that had the name has stopped. If the worker kept that agent's instance, no other agent that this caller registers
        // could ever work.
        if change.instance.is_none() && before.shown_status() == WorkerStatus::Offline && worker.status != WorkerStatus::Offline {
            worker.instance = None;
        }
        let used = set.slots(&worker.id).used;
        worker.recount_slots =
            used.checked_shr(u32::try_from(worker.capabilities.max_concurrency).unwrap_or(0)).is_some_and(|above| above != 0);
        if created {
            set.audit(Action::WorkerRegistered, EntityType::Worker, &worker.id, &change.actor, "");
            worker = set.put_worker(worker);
        } else if (Worker { last_seen: before.last_seen, lost: before.lost, ..worker.clone() }) != before {
            let is_taken_over = before.is_of_other(change.instance);
            let detail = if is_taken_over { "another agent took over the name".to_owned() } else { changes(&before, &worker) };
            set.audit(Action::WorkerUpdated, EntityType::Worker, &worker.id, &change.actor, detail);
            if before.lost {
                audit_return(set, &worker);
            }
            worker = set.put_worker(worker);
            if worker.capabilities.serves_others_than(&before.capabilities) || !worker.takes_tasks() {
                set.wake(Subject::Reservations(worker.id.clone()));
            }
        } else {
            worker = see(set, before);
        }
        Ok(reply(set, worker, created))
    }
}

/// What has changed, for the audit trail: the status and the pauses.
fn changes(before: &Worker, worker: &Worker) -> String {
    let mut told = Vec::new();
    if before.status != worker.status {
        told.push(format!("status {} to {}", before.status, worker.status));
    }
    let is_in = |pauses: &[Pause], pause: &Pause| pauses.iter().any(|other| other.is_same(pause));
    let name = |pause: &Pause| format!("{} {}", pause.kind, pause.name);
    let begun = worker.pauses.iter().filter(|pause| !is_in(&before.pauses, pause));
    told.extend(begun.take(TOLD_CHANGES).map(|pause| format!("{} is paused: {}", name(pause), pause.cause)));
    let ended = before.pauses.iter().filter(|pause| !is_in(&worker.pauses, pause));
    told.extend(ended.take(TOLD_CHANGES).map(|pause| format!("{} is no longer paused", name(pause))));
    told.join(", ")
}

/// The maximum number of pauses of each kind that an audit entry lists.
const TOLD_CHANGES: usize = 5;

/// When the pause ends, which is at most an hour from now, whatever the worker reports. If it reports the same pause again, the end stays
/// for half of that time, so that not every repetition is a change.
fn bounded_end(pause: &Pause, before: &[Pause], now: Ms) -> Ms {
    if pause.until <= now + TOLD_PAUSE_MS {
        return pause.until;
    }
    let ends = before.iter().filter(|known| known.is_same(pause)).map(|known| known.until);
    let is_long = |end: &Ms| (now + TOLD_PAUSE_MS / 2..=now + TOLD_PAUSE_MS).contains(end);
    ends.filter(is_long).max().unwrap_or(now + TOLD_PAUSE_MS)
}

/// The rejection of an agent whose name another agent has.
pub(super) fn other_agent(worker: &Worker, now: Ms) -> Rejection {
    Rejection::OtherAgent { worker: worker.id.clone(), seen_ago: (now - worker.last_seen).max(0) }
}

pub(super) fn reply(set: &WorkingSet, worker: Worker, created: bool) -> ChangedWorker {
    let active_leases = i64::from(set.slots(&worker.id).used.count_ones());
    ChangedWorker { worker, created, active_leases }
}

fn with_change(mut worker: Worker, change: &WorkerChange) -> Worker {
    fn keep<T: Clone>(field: &mut T, wanted: &Option<T>) {
        if let Some(wanted) = wanted {
            field.clone_from(wanted);
        }
    }
    keep(&mut worker.url, &change.url);
    keep(&mut worker.status, &change.status);
    keep(&mut worker.capabilities.claude_cli, &change.claude_cli);
    keep(&mut worker.capabilities.max_concurrency, &change.max_concurrency);
    keep(&mut worker.capabilities.labels, &change.labels);
    keep(&mut worker.ip_addrs, &change.ip_addrs);
    keep(&mut worker.agent_version, &change.agent_version);
    keep(&mut worker.os_info, &change.os_info);
    keep(&mut worker.install_method, &change.install_method);
    keep(&mut worker.dispatch, &change.dispatch);
    keep(&mut worker.obs_count, &change.obs_count);
    keep(&mut worker.db_sha, &change.db_sha);
    keep(&mut worker.pauses, &change.pauses);
    keep(&mut worker.capabilities.agents, &change.agents);
    keep(&mut worker.capabilities.profiles, &change.profiles);
    keep(&mut worker.capabilities.git, &change.git);
    keep(&mut worker.capabilities.projects, &change.projects);
    keep(&mut worker.capabilities.other, &change.other_capabilities);
    if change.namespaces.is_some() {
        worker.capabilities.namespaces.clone_from(&change.namespaces);
    }
    worker
}
