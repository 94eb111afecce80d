//! What keeps a queued task from running, in this order: its dependencies, its suspension, its time, the session order of its context, its
//! exclusive key, and a reservation for the worker that has its session.
//!
//! The first reason that applies parks the task. The dependencies of a suspended task are checked before its suspension, because only the
//! parking records whether they were met. Clients are shown that the task is suspended.
//!
//! Parking a task sets a flag on the task that blocks it, under the lock of that row. The command that ends the blocker therefore knows
//! that tasks wait for it, and commits a [wake-up](crate::wakeup), which causes their [re-evaluation](super::reevaluate).
//!
//! Among the tasks that wait for an exclusive key, only the first one of each agent and project becomes ready. It gets the same flag if
//! more tasks wait behind it. If a flagged task leaves the ready set without taking the key, it wakes the next ones.

use super::finish::{finish, wake_successors};
use crate::Ms;
use crate::audit::{Action, Actor, EntityType};
use crate::ids::TaskId;
use crate::placement::STICKY_FOR_MS;
use crate::row_keys::AFTER_ALL;
use crate::task::{Failure, Parked, Reason, Session, Status, TaskState};
use crate::wakeup::Subject;
use crate::worker::Worker;
use crate::working_set::{Halt, WorkingSet, need};

#[derive(Debug, PartialEq)]
pub(super) enum Readiness {
    Ready,
    Park(Park),
    /// This dependency did not complete, or was removed.
    DependencyFailed(TaskId),
}

#[derive(Debug, PartialEq)]
pub(super) struct Park {
    pub parked: Parked,
    pub blockers: Vec<TaskId>,
    pub wake_at: Option<Ms>,
}

impl Park {
    pub(crate) fn behind(parked: Parked, blocker: TaskId) -> Self {
        Self { parked, blockers: vec![blocker], wake_at: None }
    }

    pub(crate) fn until(parked: Parked, at: Ms) -> Self {
        Self { parked, blockers: Vec::new(), wake_at: Some(at) }
    }

    /// Parks the task until a client resumes it.
    pub(crate) fn suspended() -> Self {
        Self { parked: Parked::Suspended, blockers: Vec::new(), wake_at: None }
    }
}

/// The verdict on a queued task. Also updates its session and its worker. `id_bound` is its place in the context: its id, or [`AFTER_ALL`]
/// for a task that is being created.
pub(super) fn evaluate(set: &WorkingSet, task: &mut TaskState, dependencies: &[TaskId], id_bound: TaskId) -> Result<Readiness, Halt> {
    if let Some(readiness) = blocked(set, task, dependencies, id_bound)? {
        return Ok(readiness);
    }
    if task.session == Session::Context {
        task.conversation.clone_from(&set.context(&task.context_id)?.conversation);
    }
    // A task that waited for a key or was reserved already has its session recorded, and is not reserved again.
    if !matches!(task.parked, Some(Parked::ExclusiveKey | Parked::Reserved)) {
        remember_session(set, task)?;
    }
    reserve(set, task)
}

/// What blocks the task on any worker; `None` if nothing does.
pub(super) fn blocked(set: &WorkingSet, task: &TaskState, dependencies: &[TaskId], id_bound: TaskId) -> Result<Option<Readiness>, Halt> {
    let mut waits_for = Vec::new();
    for id in dependencies {
        match set.find_task(*id)?.map(|dependency| dependency.status) {
            Some(Status::Completed) => {}
            Some(status) if !status.is_final() => waits_for.push(*id),
            _ => return Ok(Some(Readiness::DependencyFailed(*id))),
        }
    }
    if !waits_for.is_empty() {
        return Ok(Some(Readiness::Park(Park { parked: Parked::DependsOn, blockers: waits_for, wake_at: None })));
    }
    if task.suspend {
        return Ok(Some(Readiness::Park(Park::suspended())));
    }
    if let Some(at) = task.not_before.filter(|at| *at > set.now()) {
        return Ok(Some(Readiness::Park(Park::until(Parked::NotBefore, at))));
    }
    if let Some(readiness) = behind_session(set, task, id_bound)? {
        return Ok(Some(readiness));
    }
    Ok(key_blocker(set, task)?.map(|blocker| Readiness::Park(Park::behind(Parked::ExclusiveKey, blocker))))
}

/// The verdict on a task that nothing blocks. It is reserved for the worker of its session while that worker takes tasks; otherwise it is
/// ready. A reservation that has ended is extended while the queue of the task is closed.
pub(super) fn reserve(set: &WorkingSet, task: &TaskState) -> Result<Readiness, Halt> {
    let Some(worker) = task.session_worker.as_ref().filter(|_| task.session == Session::Context && set.session_wait_ms > 0) else {
        return Ok(Readiness::Ready);
    };
    let is_worth = |worker: &Worker| worker.is_worth_waiting_for(task.requirement());
    if !set.observed_worker(worker)?.is_some_and(is_worth) {
        return Ok(Readiness::Ready);
    }
    let until = match (task.parked, task.wake_at) {
        (Some(Parked::Reserved), Some(until)) if until > set.now() => until,
        // While its queue is closed, no worker gets the task. If it became ready now, it would go to the first free worker when the queue
        // opens.
        (Some(Parked::Reserved), _) if set.closed(&task.agent_slug)?.is_none() => return Ok(Readiness::Ready),
        _ => set.now() + set.session_wait_ms,
    };
    Ok(Readiness::Park(Park::until(Parked::Reserved, until)))
}

/// The verdict if another task of its context goes before this one.
pub(super) fn behind_session(set: &WorkingSet, task: &TaskState, id_bound: TaskId) -> Result<Option<Readiness>, Halt> {
    if task.session != Session::Context {
        return Ok(None);
    }
    Ok(session_blocker(set, task, id_bound)?.map(|blocker| Readiness::Park(Park::behind(Parked::Session, blocker))))
}

/// The task that goes before this one in its context: the nearest unfinished earlier one, or the one that is running there now.
fn session_blocker(set: &WorkingSet, task: &TaskState, id_bound: TaskId) -> Result<Option<TaskId>, Halt> {
    let predecessor =
        if id_bound == AFTER_ALL { newest_in_context(set, &task.context_id)? } else { predecessor(set, &task.context_id, id_bound)? };
    if let Some(id) = predecessor {
        // The predecessor was found before it was locked. If it has ended since then, there may be an earlier one.
        return match set.find_task(id)? {
            Some(state) if !state.status.is_final() => Ok(Some(id)),
            _ => Err(need_predecessor(&task.context_id, id_bound)),
        };
    }
    context_blocker(set, task)
}

/// The newest unfinished session task of a context.
pub(super) fn newest_in_context(set: &WorkingSet, context: &str) -> Result<Option<TaskId>, Halt> {
    match set.newest_in_context.get(context) {
        Some(newest) => Ok(Some(*newest)),
        None => predecessor(set, context, AFTER_ALL),
    }
}

fn predecessor(set: &WorkingSet, context: &str, before: TaskId) -> Result<Option<TaskId>, Halt> {
    let loaded = set.loaded.predecessors.get(&(context.to_owned(), before)).copied().ok_or_else(|| need_predecessor(context, before))?;
    let requeued = set.requeued.get(context).and_then(|ids| ids.range(..before).next_back().copied());
    Ok(loaded.max(requeued))
}

fn need_predecessor(context: &str, before: TaskId) -> Halt {
    need(|keys| keys.predecessors.insert((context.to_owned(), before)))
}

/// Another task that runs in this task's context.
pub(super) fn context_blocker(set: &WorkingSet, task: &TaskState) -> Result<Option<TaskId>, Halt> {
    let holder = match set.context_holders.get(&task.context_id) {
        Some(holder) => *holder,
        None => set.context(&task.context_id)?.holder,
    };
    let Some(holder) = holder.filter(|id| *id != task.id) else { return Ok(None) };
    let holds = set.find_task(holder)?.is_some_and(|state| state.lease.as_ref().is_some_and(|lease| lease.holds_context));
    Ok(holds.then_some(holder))
}

/// Another task that holds this task's exclusive key.
pub(super) fn key_blocker(set: &WorkingSet, task: &TaskState) -> Result<Option<TaskId>, Halt> {
    let Some(key) = &task.exclusive_key else { return Ok(None) };
    let holder = *set.loaded.exclusive.get(key).ok_or_else(|| need(|keys| keys.exclusive.insert(key.clone())))?;
    let Some(holder) = holder.filter(|id| *id != task.id) else { return Ok(None) };
    let holds = set.find_task(holder)?.is_some_and(|state| state.lease.is_some());
    Ok(holds.then_some(holder))
}

/// Applies a verdict to a queued task. The caller writes `task` back.
pub(super) fn apply(set: &mut WorkingSet, task: &mut TaskState, readiness: Readiness) {
    let now = set.now();
    match readiness {
        Readiness::Ready => {
            if task.parked == Some(Parked::Reserved) {
                task.session_worker = None;
            }
            task.parked = None;
            task.wake_at = None;
            task.ready_at = Some(now);
        }
        Readiness::Park(Park { parked, blockers, wake_at }) => {
            task.parked = Some(parked);
            task.wake_at = wake_at;
            if parked == Parked::Reserved {
                task.ready_at.get_or_insert(now);
            }
            if parked == Parked::Suspended {
                // The worker of its session is looked up again when the task is resumed, and the time until then does not count as waiting
                // time.
                task.session_worker = None;
                task.ready_at = None;
            }
            if let Some(key) = task.exclusive_key.as_ref().filter(|_| task.has_dependents && parked != Parked::ExclusiveKey) {
                set.wake(Subject::Key(key.clone()));
            }
            for blocker in blockers {
                mark_awaited(set, blocker);
            }
        }
        Readiness::DependencyFailed(dependency) => {
            let fate = match set.find_task(dependency) {
                Ok(Some(_)) => "did not complete",
                _ => "was removed, and whether it completed is not known; submit this task again without it",
            };
            task.failure = Some(Failure { reason: Reason::DependencyFailed, message: format!("task {dependency} {fate}"), at: now });
            set.audit(Action::TaskCancelled, EntityType::Task, task.id, &Actor::Consequence, format!("dependency {dependency} {fate}"));
            finish(set, task, Status::Cancelled);
        }
    }
}

pub(super) fn mark_awaited(set: &mut WorkingSet, blocker: TaskId) {
    let Ok(Some(state)) = set.find_task(blocker) else { return };
    if state.has_dependents && !state.status.is_final() {
        return;
    }
    let state = TaskState { has_dependents: true, ..state.clone() };
    if state.status.is_final() {
        // It ended earlier in this batch without the flag, so its end has not woken anybody.
        wake_successors(set, &state, true);
    } else {
        set.put_task_quietly(state);
    }
}

/// Parks a ready task that is blocked.
pub(super) fn park(set: &mut WorkingSet, id: TaskId, parked: Parked, blocker: TaskId) {
    let Ok(Some(task)) = set.find_task(id) else { return };
    let mut task = task.clone();
    apply(set, &mut task, Readiness::Park(Park::behind(parked, blocker)));
    set.put_task(task);
}

pub(super) fn known_dependencies(set: &WorkingSet, id: TaskId) -> Result<Vec<TaskId>, Halt> {
    set.loaded.dependencies.get(&id).cloned().ok_or_else(|| need(|keys| keys.dependencies.insert(id)))
}

/// Records the worker and the session of the task's context, so that the task can be reserved for that worker.
fn remember_session(set: &WorkingSet, task: &mut TaskState) -> Result<(), Halt> {
    if task.session != Session::Context {
        return Ok(());
    }
    let view = set.context(&task.context_id)?;
    task.session_id = view.session_id.clone().or_else(|| task.session_id.take());
    task.session_worker =
        view.last_worker.as_ref().filter(|(_, ended_at)| set.now() - ended_at <= STICKY_FOR_MS).map(|(worker, _)| worker.clone());
    Ok(())
}
