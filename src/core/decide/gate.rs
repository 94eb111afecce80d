//! What keeps a queued task from running, in this order: its dependencies, its time, its context, its exclusive key.
//!
//! The first that holds parks the task. Whoever lets go of a blocker has its waiters looked at again ([`reconsider`]), and marking the
//! blocker under its lock makes sure that it knows: a waiter is never parked behind something that has ended already.

use super::super::audit::{Action, EntityType};
use super::super::command::{AFTER_ALL, Reply};
use super::super::ids::TaskId;
use super::super::task::{Failure, Parked, Reason, Session, Status, TaskState};
use super::super::working_set::{Halt, WorkingSet, need};
use super::lease_end::{finish, free};

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Ready,
    Park {
        parked: Parked,
        blockers: Vec<TaskId>,
    },
    /// This dependency will not complete.
    DependencyFailed(TaskId),
}

/// What holds for a queued task now. `id_bound` is where it stands in its context: its id, or [`AFTER_ALL`] for one that is being made.
pub(super) fn judge(set: &WorkingSet, task: &TaskState, dependencies: &[TaskId], id_bound: TaskId) -> Result<Verdict, Halt> {
    let mut waits_for = Vec::new();
    for id in dependencies {
        match set.find_task(*id)?.map(|dependency| dependency.status) {
            Some(Status::Completed) => {}
            Some(status) if !status.is_final() => waits_for.push(*id),
            _ => return Ok(Verdict::DependencyFailed(*id)),
        }
    }
    if !waits_for.is_empty() {
        return Ok(Verdict::Park { parked: Parked::DependsOn, blockers: waits_for });
    }
    if task.not_before.is_some_and(|at| at > set.now()) {
        return Ok(Verdict::Park { parked: Parked::NotBefore, blockers: Vec::new() });
    }
    if task.session == Session::Context
        && let Some(blocker) = session_blocker(set, task, id_bound)?
    {
        return Ok(Verdict::Park { parked: Parked::Session, blockers: vec![blocker] });
    }
    if let Some(blocker) = key_blocker(set, task)? {
        return Ok(Verdict::Park { parked: Parked::ExclusiveKey, blockers: vec![blocker] });
    }
    Ok(Verdict::Ready)
}

/// The task that goes before this one in its context: the nearest unfinished earlier one, or whichever runs there now.
fn session_blocker(set: &WorkingSet, task: &TaskState, id_bound: TaskId) -> Result<Option<TaskId>, Halt> {
    let predecessor =
        if id_bound == AFTER_ALL { newest_in_context(set, &task.context_id)? } else { predecessor(set, &task.context_id, id_bound)? };
    if let Some(id) = predecessor {
        // Found before it was locked: when it has ended since, another may stand behind it.
        return match set.find_task(id)? {
            Some(state) if !state.status.is_final() => Ok(Some(id)),
            _ => Err(need_predecessor(&task.context_id, id_bound)),
        };
    }
    context_blocker(set, task)
}

/// The last session task of a context that is not over.
pub(super) fn newest_in_context(set: &WorkingSet, context: &str) -> Result<Option<TaskId>, Halt> {
    match set.newest_in_context.get(context) {
        Some(newest) => Ok(Some(*newest)),
        None => predecessor(set, context, AFTER_ALL),
    }
}

fn predecessor(set: &WorkingSet, context: &str, before: TaskId) -> Result<Option<TaskId>, Halt> {
    set.loaded.predecessors.get(&(context.to_owned(), before)).copied().ok_or_else(|| need_predecessor(context, before))
}

fn need_predecessor(context: &str, before: TaskId) -> Halt {
    need(|keys| keys.predecessors.insert((context.to_owned(), before)))
}

/// The other task that runs in this one's context.
pub(super) fn context_blocker(set: &WorkingSet, task: &TaskState) -> Result<Option<TaskId>, Halt> {
    let holder = match set.context_holders.get(&task.context_id) {
        Some(holder) => *holder,
        None => set.context(&task.context_id)?.holder,
    };
    let Some(holder) = holder.filter(|id| *id != task.id) else { return Ok(None) };
    let holds = set.find_task(holder)?.is_some_and(|state| state.lease.as_ref().is_some_and(|lease| lease.holds_context));
    Ok(holds.then_some(holder))
}

/// The other task that holds this one's exclusive key.
pub(super) fn key_blocker(set: &WorkingSet, task: &TaskState) -> Result<Option<TaskId>, Halt> {
    let Some(key) = &task.exclusive_key else { return Ok(None) };
    let holder = *set.loaded.exclusive.get(key).ok_or_else(|| need(|keys| keys.exclusive.insert(key.clone())))?;
    let Some(holder) = holder.filter(|id| *id != task.id) else { return Ok(None) };
    let holds = set.find_task(holder)?.is_some_and(|state| state.lease.is_some());
    Ok(holds.then_some(holder))
}

/// Carries a verdict out on a queued task; `task` is not yet written back.
pub(super) fn apply(set: &mut WorkingSet, task: &mut TaskState, verdict: Verdict) {
    let now = set.now();
    match verdict {
        Verdict::Ready => {
            task.parked = None;
            task.ready_at = Some(now);
        }
        Verdict::Park { parked, blockers } => {
            task.parked = Some(parked);
            for blocker in blockers {
                mark_awaited(set, blocker);
            }
        }
        Verdict::DependencyFailed(dependency) => {
            task.failure =
                Some(Failure { reason: Reason::DependencyFailed, message: format!("task {dependency} did not complete"), at: now });
            set.audit(Action::TaskCancelled, EntityType::Task, task.id, "reconciler", format!("dependency {dependency} did not complete"));
            finish(set, task, Status::Cancelled);
        }
    }
}

fn mark_awaited(set: &mut WorkingSet, blocker: TaskId) {
    let Ok(Some(state)) = set.find_task(blocker) else { return };
    if state.has_dependents && !state.status.is_final() {
        return;
    }
    let state = TaskState { has_dependents: true, ..state.clone() };
    if state.status.is_final() {
        // It was over a moment ago, in this very look: then it has told nobody yet.
        free(set, &state, true);
    } else {
        set.put_task_quietly(state);
    }
}

/// Parks a ready task that a claim found blocked.
pub(super) fn park(set: &mut WorkingSet, id: TaskId, parked: Parked, blocker: TaskId) {
    let Ok(Some(task)) = set.find_task(id) else { return };
    let mut task = task.clone();
    apply(set, &mut task, Verdict::Park { parked, blockers: vec![blocker] });
    set.put_task(task);
}

/// Looks again at queued tasks that are parked; those that run, ended or are ready already are left alone.
pub(super) fn reconsider(set: &mut WorkingSet, tasks: &[TaskId]) -> Result<Reply, Halt> {
    let mut verdicts = Vec::new();
    let mut missing = super::super::command::Keys::default();
    for id in tasks {
        let Some(task) = set.find_task(*id)? else { continue };
        if task.status != Status::Queued || task.parked.is_none() {
            continue;
        }
        match dependencies(set, task).and_then(|dependencies| judge(set, task, &dependencies, *id)) {
            Ok(verdict) => verdicts.push((*id, verdict)),
            Err(Halt::Need(keys)) => missing.merge(&keys),
            Err(rejected) => return Err(rejected),
        }
    }
    if !missing_nothing(&missing) {
        return Err(Halt::Need(Box::new(missing)));
    }
    for (id, verdict) in verdicts {
        let Ok(Some(task)) = set.find_task(id) else { continue };
        let mut task = task.clone();
        if let Verdict::Park { parked, .. } = &verdict
            && task.parked == Some(*parked)
        {
            apply(set, &mut task, verdict);
            continue;
        }
        if verdict == Verdict::Ready {
            remember_session(set, &mut task);
        }
        task.updated_at = set.now();
        apply(set, &mut task, verdict);
        set.put_task(task);
    }
    Ok(Reply::Done)
}

/// What the task waits for, while that is why it is parked; dependencies that were met once stay met.
fn dependencies(set: &WorkingSet, task: &TaskState) -> Result<Vec<TaskId>, Halt> {
    if !task.has_dependencies || task.parked != Some(Parked::DependsOn) {
        return Ok(Vec::new());
    }
    known_dependencies(set, task.id)
}

pub(super) fn known_dependencies(set: &WorkingSet, id: TaskId) -> Result<Vec<TaskId>, Halt> {
    set.loaded.dependencies.get(&id).cloned().ok_or_else(|| need(|keys| keys.dependencies.insert(id)))
}

fn missing_nothing(keys: &super::super::command::Keys) -> bool {
    keys.tasks.is_empty()
        && keys.contexts.is_empty()
        && keys.predecessors.is_empty()
        && keys.exclusive.is_empty()
        && keys.dependencies.is_empty()
}

/// A session task that becomes ready is for the worker that has its context's session.
pub(super) fn remember_session(set: &WorkingSet, task: &mut TaskState) {
    if task.session != Session::Context {
        return;
    }
    let Some(view) = set.loaded.contexts.get(&task.context_id) else { return };
    task.session_id = view.session_id.clone().or_else(|| task.session_id.take());
    task.session_worker = view
        .last_worker
        .as_ref()
        .filter(|(_, ended_at)| set.now() - ended_at <= super::super::placement::STICKY_FOR_MS)
        .map(|(worker, _)| worker.clone());
}
