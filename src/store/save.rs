//! What a batch changed, in few statements whatever its size.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::args::{Args, Bulk, Column, Type, columns, int, text, uuid};
use super::conn::Conn;
use super::dialect::{Sql, statement, upsert};
use super::error::Error;
use super::{records, rows};
use crate::core::ids::{LeaseId, TaskId};
use crate::core::task::{TaskEvent, TaskState};
use crate::core::worker::Worker;
use crate::core::working_set::{Dirty, WorkingSet};

/// How many events of a task are kept.
const EVENTS_KEPT: i64 = 10_000;
/// Older events go when the count passes a multiple of this.
const EVENTS_STEP: i64 = 500;

const LABEL: &[Column] = columns!(text key, text value, uuid task_id);
const DEPENDENCY: &[Column] = columns!(uuid task_id, uuid dep_id);
const SEEN: &[Column] = columns!(text worker_id, int last_seen);
const SETTING: &[Column] = columns!(text key, text value);
const STATE_KEY: Column = rows::STATE_FIXED[0];

statement!(INSERT_SPECS, |d| "{}", d.insert("tasks", &[rows::SPEC], ""));
statement!(INSERT_LABELS, |d| "{}", d.insert("task_labels", &[LABEL], ""));
statement!(INSERT_DEPENDENCIES, |d| "{}", d.insert("task_deps", &[DEPENDENCY], "ON CONFLICT DO NOTHING"));
statement!(INSERT_STATES, |d| "{}", d.insert("task_state", rows::STATE, ""));
statement!(UPDATE_STATES, |d| "{}", d.update("task_state", &STATE_KEY, rows::STATE_MOVING));
statement!(UPDATE_STATES_QUIETLY, |d| "{}", d.update("task_state", &STATE_KEY, rows::STATE_QUIET));
statement!(LET_GO, |d| "UPDATE task_state SET slot = NULL WHERE id {}", d.any(Type::Uuid, 1));
statement!(UPSERT_LEASES, |d| "{}", d.insert("leases", &[records::LEASE], &upsert("id", records::LEASE)));
statement!(INSERT_RESULTS, |d| "{}", d.insert("results", &[records::RESULT], ""));
statement!(INSERT_EVENTS, |d| "{}", d.insert("task_events", &[records::EVENT], ""));
statement!(PRUNE_EVENTS, "DELETE FROM task_events WHERE task_id = $1 AND number <= $2");
statement!(UPSERT_WORKERS, |d| "{}", d.insert("workers", &[records::WORKER], &upsert("id", records::WORKER)));
statement!(UPSERT_SEEN, |d| "{}", d.insert("worker_seen", &[SEEN], &upsert("worker_id", SEEN)));
statement!(REMOVE_WORKERS, |d| "DELETE FROM workers WHERE id {}", d.any(Type::Text, 1));
statement!(REMOVE_SEEN, |d| "DELETE FROM worker_seen WHERE worker_id {}", d.any(Type::Text, 1));
statement!(UPSERT_SETTINGS, |d| "{}", d.insert("settings", &[SETTING], &upsert("key", SETTING)));
statement!(INSERT_AUDIT, |d| "{}", d.insert("audit", &[records::AUDIT], ""));

/// Writes [`Dirty`]. `held` are the leases that the loaded tasks came with.
pub(super) async fn save(conn: &mut Conn, set: &WorkingSet, held: &HashMap<TaskId, LeaseId>) -> Result<(), Error> {
    let dirty = &set.dirty;
    save_specs(conn, dirty).await?;
    save_states(conn, set, held).await?;
    insert(conn, &UPSERT_LEASES, &[records::LEASE], &dirty.past_leases, records::push_lease).await?;
    insert(conn, &INSERT_RESULTS, &[records::RESULT], &dirty.results, |bulk, result| records::push_result(bulk, result)).await?;
    insert(conn, &INSERT_EVENTS, &[records::EVENT], &dirty.events, records::push_event).await?;
    prune_events(conn, &dirty.events).await?;
    save_workers(conn, set).await?;
    insert(conn, &UPSERT_SETTINGS, &[SETTING], &dirty.settings, |bulk, (key, value)| {
        bulk.text(*key).text(value);
    })
    .await?;
    insert(conn, &INSERT_AUDIT, &[records::AUDIT], &dirty.audit, records::push_audit).await
}

/// One statement for all of `items`, or none when there are none.
async fn insert<'a, T: 'a>(
    conn: &mut Conn,
    sql: &Sql,
    columns: &[&[Column]],
    items: impl IntoIterator<Item = &'a T>,
    push: impl Fn(&mut Bulk<'a>, &'a T),
) -> Result<(), Error> {
    let mut bulk = Bulk::new(columns);
    for item in items {
        push(&mut bulk, item);
    }
    if !bulk.is_empty() {
        conn.execute(sql, Args::new().bulk(bulk)).await?;
    }
    Ok(())
}

async fn save_specs(conn: &mut Conn, dirty: &Dirty) -> Result<(), Error> {
    insert(conn, &INSERT_SPECS, &[rows::SPEC], &dirty.specs, |bulk, spec| rows::push_spec(bulk, spec)).await?;
    insert(conn, &INSERT_LABELS, &[LABEL], &dirty.specs, |bulk, spec| {
        for (key, value) in &spec.labels {
            bulk.text(key).text(value).uuid(spec.id);
        }
    })
    .await?;
    insert(conn, &INSERT_DEPENDENCIES, &[DEPENDENCY], &dirty.specs, |bulk, spec| {
        for dependency in &spec.depends_on {
            bulk.uuid(spec.id).uuid(*dependency);
        }
    })
    .await
}

/// A place, a context or a key that one task lets go may be taken by another in the same batch, and a unique index looks at each row as
/// it is written: so those that let go come first.
async fn save_states(conn: &mut Conn, set: &WorkingSet, held: &HashMap<TaskId, LeaseId>) -> Result<(), Error> {
    let dirty = &set.dirty;
    let new: HashSet<TaskId> = dirty.specs.iter().map(|spec| spec.id).collect();
    let written = || dirty.tasks.iter().filter_map(|id| set.loaded.tasks.get(id)?.as_ref());
    let known = || written().filter(|task| !new.contains(&task.id));
    let is_loud = |task: &&TaskState| !dirty.quiet_tasks.contains(&task.id);

    let changed_hands: Vec<TaskId> = known()
        .filter(|task| task.lease.as_ref().is_some_and(|lease| held.get(&task.id).is_some_and(|before| *before != lease.id)))
        .map(|task| task.id)
        .collect();
    if !changed_hands.is_empty() {
        conn.execute(&LET_GO, Args::new().uuids(&changed_hands)).await?;
    }
    update_states(conn, known().filter(is_loud).filter(|task| task.lease.is_none())).await?;
    update_states(conn, known().filter(is_loud).filter(|task| task.lease.is_some())).await?;
    let quiet = known().filter(|task| !is_loud(task));
    insert(conn, &UPDATE_STATES_QUIETLY, &[&[STATE_KEY], rows::STATE_QUIET], quiet, |bulk, task| {
        bulk.uuid(task.id);
        rows::push_state_quiet(bulk, task);
    })
    .await?;
    insert(conn, &INSERT_STATES, rows::STATE, written().filter(|task| new.contains(&task.id)), |bulk, task| {
        rows::push_state_fixed(bulk, task);
        rows::push_state_moving(bulk, task);
    })
    .await
}

async fn update_states<'a>(conn: &mut Conn, tasks: impl Iterator<Item = &'a TaskState>) -> Result<(), Error> {
    insert(conn, &UPDATE_STATES, &[&[STATE_KEY], rows::STATE_MOVING], tasks, |bulk, task| {
        bulk.uuid(task.id);
        rows::push_state_moving(bulk, task);
    })
    .await
}

async fn prune_events(conn: &mut Conn, events: &[TaskEvent]) -> Result<(), Error> {
    let mut ranges: BTreeMap<TaskId, (i64, i64)> = BTreeMap::new();
    for event in events {
        let range = ranges.entry(event.task_id).or_insert((event.number, event.number));
        *range = (range.0.min(event.number), range.1.max(event.number));
    }
    for (task, (first, last)) in ranges {
        if last > EVENTS_KEPT && (first - 1) / EVENTS_STEP != last / EVENTS_STEP {
            conn.execute(&PRUNE_EVENTS, Args::new().uuid(task).int(last - EVENTS_KEPT)).await?;
        }
    }
    Ok(())
}

async fn save_workers(conn: &mut Conn, set: &WorkingSet) -> Result<(), Error> {
    let dirty = &set.dirty;
    if !dirty.removed_workers.is_empty() {
        conn.execute(&REMOVE_WORKERS, Args::new().texts(&dirty.removed_workers)).await?;
        conn.execute(&REMOVE_SEEN, Args::new().texts(&dirty.removed_workers)).await?;
    }
    let present = |id: &String| -> Option<&Worker> {
        set.loaded.workers.get(id)?.as_ref().filter(|worker| !dirty.removed_workers.contains(&worker.id))
    };
    insert(conn, &UPSERT_WORKERS, &[records::WORKER], dirty.workers.iter().filter_map(present), records::push_worker).await?;
    insert(conn, &UPSERT_SEEN, &[SEEN], dirty.seen.iter().filter_map(present), |bulk, worker| {
        bulk.text(&worker.id).int(worker.last_seen);
    })
    .await
}
