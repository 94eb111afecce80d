//! Bulk calls: cancel or requeue many tasks.

use std::collections::{BTreeSet, HashSet};

use axum::extract::State;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, ok};
use crate::messages::error::Error;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use crate::routes::tasks::edit::allowed;
use crate::routes::tasks::read::{filter_of_body, with_asking};
use bloom_api::answers::{BulkResult, NotChanged, NotChangedReason};
use bloom_api::bulk::{Bulk, BulkRequeue, Named};
use bloom_api::new_tasks::MAX_BATCH;
use bloom_core::Ms;
use bloom_core::command::{Op, Rejection};
use bloom_core::ids::TaskId;
use bloom_core::op;
use bloom_core::task::{Reason, Status, TaskState};
use bloom_engine as engine;
use bloom_store::{Page, TaskFilter};

pub(crate) const CANCEL: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Cancels many tasks.
///
/// The body names the tasks by their ids or by a filter. A call cancels at most 1000 tasks; if `more` is true, call again. Finished tasks
/// are skipped. With `dry_run`, the call only counts the tasks. If the next call sends the `as_of` of that answer, it skips tasks that were
/// created later.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks:cancel", operation_id = "cancelTasks", tag = "tasks", request_body = Bulk,
    responses((status = 200, description = "The outcome.", body = BulkResult))
)]
pub(crate) async fn cancel(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    const LIVE: Change<'static> =
        Change { statuses: &[Status::Queued, Status::Leased, Status::Running], goes_on: false, with_dependents: false, as_of: None };
    apply(&app, &caller, body.read()?, LIVE, |task| op::Cancel { task }.into()).await
}

pub(crate) const REQUEUE: RoutePolicy = RoutePolicy::ADMIN.or_submit();

/// Queues many failed, dead or cancelled tasks again.
///
/// The body names the tasks by their ids or by a filter. A call queues at most 1000 tasks again, the oldest first; if `more` is true, call
/// again. A task that depends on others of them is queued after these. Tasks with another status are skipped; with a member key, so are
/// tasks in contexts in which keys outside the team also have tasks. With `dry_run`, the call only counts the tasks. If the next call sends
/// the `as_of` of that answer, it skips tasks that were created or ended later. `policy` sets new limits for the next runs of the tasks.
/// `with_dependents` also queues the tasks again that were cancelled because one of these did not complete, at most 10000 a call.
#[utoipa::path(
    post, path = "/api/runtime/llm-tasks:requeue", operation_id = "requeueTasks", tag = "tasks", request_body = BulkRequeue,
    responses((status = 200, description = "The outcome.", body = BulkResult))
)]
pub(crate) async fn requeue(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    const OVER: &[Status] = &[Status::Failed, Status::Dead, Status::Cancelled];
    let BulkRequeue { bulk, policy, with_dependents } = body.read()?;
    let limits = allowed(&app, policy.as_ref())?;
    let change = Change { statuses: OVER, goes_on: true, with_dependents, as_of: None };
    apply(&app, &caller, bulk, change, |task| op::Requeue { task, limits }.into()).await
}

/// A dry run counts no further than this, so that it ends before the client gives up.
const MAX_COUNTED: usize = 100_000;

/// How many tasks that must wait for others a call tries before it gives up.
const MAX_TRIED: usize = 10 * MAX_BATCH;

/// How many tasks a call changes because they depend on those that it names, and how many it looks at to find them.
const MAX_DEPENDENTS: usize = 10 * MAX_BATCH;
const MAX_WALKED: usize = 100 * MAX_BATCH;

/// The most unchanged tasks that the answer names.
const MAX_NOT_CHANGED: usize = 20;

/// What a call changes.
#[derive(Clone, Copy)]
struct Change<'a> {
    /// Only tasks in these states are changed.
    statuses: &'a [Status],
    /// The tasks run again. So tasks in contexts that are shared with others are left out, and the oldest tasks come first.
    goes_on: bool,
    /// Also changes the tasks that were cancelled because one of the others did not complete.
    with_dependents: bool,
    /// Tasks that were created or ended after this time are left out.
    as_of: Option<Ms>,
}

/// Changes the tasks. Only tasks that the call would change count, so a client that repeats the call while `more` is true comes to an end.
async fn apply(app: &AppState, caller: &Caller, bulk: Bulk, change: Change<'_>, op: impl Fn(TaskId) -> Op) -> HandlerResult {
    let limit = if bulk.dry_run { MAX_COUNTED } else { MAX_BATCH };
    let change = Change { as_of: bulk.as_of, ..change };
    // Taken before the tasks are read, so that the count includes everything that existed at this time.
    let as_of = bulk.dry_run.then(|| bulk.as_of.unwrap_or_else(|| app.engine.clock.now()));
    let filter = match &bulk.named {
        Named::Ids(_) => None,
        Named::Filter(filter) => match filter_of_body(filter) {
            Some((filter, statuses)) => {
                let end = bulk.as_of.map(|at| at.saturating_add(1));
                let created_before = [filter.created_before, end].into_iter().flatten().min();
                let filter = ownership::filter(app, caller, TaskFilter { created_before, ..filter }).await?;
                let is_meant = |status: &&Status| statuses.is_empty() || statuses.contains(status);
                with_asking(app, filter)
                    .map(|filter| Wanted { filter, statuses: change.statuses.iter().filter(is_meant).copied().collect() })
            }
            None => None,
        },
    };
    let (tasks, roots, mut next) = match (bulk.named, &filter) {
        (Named::Ids(ids), _) => {
            let named = app.store.task_states(&ownership::tasks(app, caller, ids).await?).await?;
            // A task that is in the queue again, or has run since, may have dependents that were cancelled before.
            let others = named.iter().filter(|task| !change.statuses.contains(&task.status)).map(|task| task.id).collect();
            (ids_of(&changeable(app, caller, named, change).await?), others, None)
        }
        (Named::Filter(_), Some(wanted)) => {
            let (tasks, next) = named_by(app, caller, wanted, change, limit, Position::default()).await?;
            (tasks, Vec::new(), next)
        }
        (Named::Filter(_), None) => (Vec::new(), Vec::new(), None),
    };
    let mut all = with_dependents(app, caller, tasks, roots, change, bulk.dry_run).await?;
    let (mut matched, dependents) = (all.tasks.len(), all.dependents as i64);
    if bulk.dry_run {
        let more = next.is_some() || all.is_cut;
        return ok(&BulkResult { matched: matched as i64, dependents, changed: 0, more, as_of, not_changed: Vec::new() });
    }
    let mut not_changed = Vec::new();
    let mut changed = change_all(app, caller, all.tasks, &op, &mut not_changed).await?;
    // Tasks that must wait for others must not hide the tasks after them.
    while changed == 0
        && change.goes_on
        && matched < MAX_TRIED
        && let (Some(from), Some(wanted)) = (next, &filter)
    {
        let (tasks, behind) = named_by(app, caller, wanted, change, limit, from).await?;
        all = with_dependents(app, caller, tasks, Vec::new(), change, false).await?;
        (matched, next) = (matched + all.tasks.len(), behind);
        changed = change_all(app, caller, all.tasks, &op, &mut not_changed).await?;
    }
    if changed == 0
        && let Some((_, full)) = not_changed.iter().find(|(_, rejection)| rejection.is_of_quota())
    {
        return Err(full.clone().into());
    }
    // If every task that was found must wait for something, another call would find the same tasks.
    let more = (next.is_some() || all.is_cut) && (changed > 0 || not_changed.is_empty());
    let not_changed = not_changed.iter().take(MAX_NOT_CHANGED).map(|(id, why)| {
        let reason = if why.is_of_quota() { NotChangedReason::Quota } else { NotChangedReason::Dependency };
        NotChanged { id: *id, reason: reason.into(), message: why.to_string() }
    });
    ok(&BulkResult { matched: matched as i64, dependents, changed, more, as_of: None, not_changed: not_changed.collect() })
}

/// The tasks that a filter names.
struct Wanted {
    filter: TaskFilter,
    /// Those of the statuses that the call changes of which the tasks are meant.
    statuses: Vec<Status>,
}

/// Applies the operation to these tasks. Returns how many it changed, and adds those that must wait for something to `not_changed`.
async fn change_all(
    app: &AppState,
    caller: &Caller,
    mut open: Vec<TaskId>,
    op: &impl Fn(TaskId) -> Op,
    not_changed: &mut Vec<(TaskId, Rejection)>,
) -> Result<i64, Error> {
    let mut changed = 0;
    // Some tasks depend on others in the list, which must be changed first. So refused tasks are tried again as long as others are changed.
    loop {
        let (mut waiting, before) = (Vec::new(), changed);
        let commands = open.iter().map(|task| caller.command(op(*task))).collect();
        for (task, outcome) in open.iter().zip(app.engine.writers.submit_all(commands).await) {
            match outcome {
                Ok(_) => changed += 1,
                Err(engine::Error::Rejected(rejection)) if rejection.is_of_quota() => not_changed.push((*task, rejection)),
                Err(engine::Error::Rejected(rejection @ Rejection::CannotRequeueBefore { .. })) => waiting.push((*task, rejection)),
                // The task changed meanwhile, so the operation no longer applies.
                Err(engine::Error::Rejected(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if changed == before || waiting.is_empty() {
            not_changed.append(&mut waiting);
            return Ok(changed);
        }
        open = waiting.into_iter().map(|(task, _)| task).collect();
    }
}

/// Those of the tasks that the call would change, oldest first. A running task with a requested cancel is not changed again.
async fn changeable(app: &AppState, caller: &Caller, mut states: Vec<TaskState>, change: Change<'_>) -> Result<Vec<TaskState>, Error> {
    let is_counted = |task: &TaskState| change.as_of.zip(task.finished_at).is_none_or(|(as_of, ended)| ended <= as_of);
    let fits = |task: &TaskState| {
        change.statuses.contains(&task.status) && !(task.status.is_active() && task.cancel_requested) && is_counted(task)
    };
    states.retain(fits);
    if change.goes_on {
        let shared = ownership::shared(app, caller, states.iter().map(|task| task.context_id.clone()).collect()).await?;
        states.retain(|task| !shared.contains(&task.context_id));
    }
    states.sort_unstable_by_key(|task| task.id);
    states.dedup_by_key(|task| task.id);
    Ok(states)
}

fn ids_of(tasks: &[TaskState]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

/// The tasks that a call changes.
struct All {
    /// Oldest first.
    tasks: Vec<TaskId>,
    /// How many of them only depend on the others.
    dependents: usize,
    /// There are more than one call looks at.
    is_cut: bool,
}

/// Adds the tasks that were cancelled because one of these did not complete, and those that were cancelled because of them in turn. `roots`
/// are further tasks whose dependents are added, although the call does not change them. If there are too many, the call changes only the
/// first of the tasks, so that it can change each together with its dependents.
async fn with_dependents(
    app: &AppState,
    caller: &Caller,
    mut tasks: Vec<TaskId>,
    roots: Vec<TaskId>,
    change: Change<'_>,
    dry_run: bool,
) -> Result<All, Error> {
    if !change.with_dependents {
        return Ok(All { tasks, dependents: 0, is_cut: false });
    }
    let limit = if dry_run { MAX_WALKED } else { MAX_DEPENDENTS };
    let mut is_short = false;
    loop {
        let (found, is_cut) = dependents(app, caller, tasks.iter().chain(&roots).copied().collect(), limit, change).await?;
        if is_cut && !dry_run && tasks.len() > 1 {
            tasks.truncate(tasks.len() / 2);
            is_short = true;
            continue;
        }
        let named = tasks.len();
        let all: BTreeSet<TaskId> = tasks.into_iter().chain(found).collect();
        return Ok(All { dependents: all.len() - named, tasks: all.into_iter().collect(), is_cut: is_cut || is_short });
    }
}

/// The tasks that were cancelled because one of the tasks did not complete, and those that were cancelled because of them in turn, and
/// whether there are more than the limit. A dependent that is queued again, or has run since, leads to those that are still cancelled; one
/// that a person has cancelled does not, because its own dependents can't run.
async fn dependents(
    app: &AppState,
    caller: &Caller,
    mut open: Vec<TaskId>,
    limit: usize,
    change: Change<'_>,
) -> Result<(Vec<TaskId>, bool), Error> {
    let mut seen: HashSet<TaskId> = open.iter().copied().collect();
    let mut found = Vec::new();
    while !open.is_empty() {
        let mut next = Vec::new();
        for tasks in open.chunks(MAX_BATCH) {
            let mut dependents = app.store.dependents(tasks, MAX_WALKED as i64).await?;
            dependents.retain(|task| seen.insert(*task));
            for some in dependents.chunks(MAX_BATCH) {
                let states = app.store.task_states(&ownership::tasks(app, caller, some.to_vec()).await?).await?;
                next.extend(states.iter().filter(|task| !change.statuses.contains(&task.status)).map(|task| task.id));
                let mut cancelled = changeable(app, caller, states, change).await?;
                cancelled.retain(|task| task.failure.as_ref().is_some_and(|failure| failure.reason == Reason::DependencyFailed));
                next.extend(ids_of(&cancelled));
                found.extend(ids_of(&cancelled));
                if found.len() > limit || seen.len() > MAX_WALKED {
                    found.truncate(limit);
                    return Ok((found, true));
                }
            }
        }
        open = next;
    }
    Ok((found, false))
}

/// Where a call continues in the results of its filter: at a status of the change, after a task.
#[derive(Clone, Copy, Default)]
struct Position {
    status: usize,
    last: Option<TaskId>,
}

/// The matching tasks that the call would change, up to the limit, and the position of further ones.
async fn named_by(
    app: &AppState,
    caller: &Caller,
    wanted: &Wanted,
    change: Change<'_>,
    limit: usize,
    mut at: Position,
) -> Result<(Vec<TaskId>, Option<Position>), Error> {
    let mut tasks = Vec::new();
    while let Some(status) = wanted.statuses.get(at.status) {
        let filter = TaskFilter { status: Some(*status), ..wanted.filter.clone() };
        let page = match change.goes_on {
            // A task is older than the tasks that depend on it.
            true => app.store.oldest_task_ids(&filter, at.last, MAX_BATCH as i64).await?,
            false => app.store.task_ids(&filter, &Page { limit: MAX_BATCH as i64, before: at.last }).await?,
        };
        let states = app.store.task_states(&page).await?;
        let found = ids_of(&changeable(app, caller, states, Change { statuses: &[*status], ..change }).await?);
        let room = limit - tasks.len();
        tasks.extend(found.iter().take(room));
        // One task above the limit shows that there are more.
        if found.len() > room {
            at.last = found[..room].last().copied().or(at.last);
            return Ok((tasks, Some(at)));
        }
        at = match page.last() {
            Some(last) if page.len() == MAX_BATCH => Position { last: Some(*last), ..at },
            _ => Position { status: at.status + 1, last: None },
        };
    }
    tasks.sort_unstable();
    Ok((tasks, None))
}
