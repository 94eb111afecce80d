//! What a batch changed, in few statements whatever its size.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::args::{Args, Bulk, RowType, Type, int, row_type, text, uuid};
use super::dialect::{Sql, statement, upsert};
use super::script::Script;
use super::{records, rows};
use crate::core::ids::{LeaseId, TaskId};
use crate::core::task::{TaskEvent, TaskState};
use crate::core::worker::Worker;
use crate::core::working_set::{Dirty, WorkingSet};

/// How many events of a task are kept.
const EVENTS_KEPT: i64 = 10_000;
/// Older events go when the count passes a multiple of this.
const EVENTS_STEP: i64 = 500;

static LABEL: RowType = row_type!(task_labels: text key, text value, uuid task_id);
static DEPENDENCY: RowType = row_type!(task_deps: uuid task_id, uuid dep_id);
static SEEN: RowType = row_type!(worker_seen: text worker_id, int last_seen);
static SETTING: RowType = row_type!(settings: text key, text value);

statement!(INSERT_SPECS, |d| "{}", d.insert(&rows::SPEC, ""));
statement!(INSERT_LABELS, |d| "{}", d.insert(&LABEL, ""));
statement!(INSERT_DEPENDENCIES, |d| "{}", d.insert(&DEPENDENCY, "ON CONFLICT DO NOTHING"));
statement!(INSERT_STATES, |d| "{}", d.insert(&rows::STATE, ""));
statement!(UPDATE_STATES, |d| "{}", d.update(&rows::STATE, rows::STATE_MOVING));
statement!(UPDATE_STATES_QUIETLY, |d| "{}", d.update(&rows::STATE, rows::STATE_QUIET));
statement!(LET_GO, |d| "UPDATE task_state SET slot = NULL WHERE id {}", d.any(Type::Uuid, 1));
statement!(UPSERT_LEASES, |d| "{}", d.insert(&records::LEASE, &upsert(&records::LEASE)));
statement!(INSERT_RESULTS, |d| "{}", d.insert(&records::RESULT, ""));
statement!(INSERT_EVENTS, |d| "{}", d.insert(&records::EVENT, ""));
statement!(PRUNE_EVENTS, "DELETE FROM task_events WHERE task_id = $1 AND number <= $2");
statement!(UPSERT_WORKERS, |d| "{}", d.insert(&records::WORKER, &upsert(&records::WORKER)));
statement!(UPSERT_SEEN, |d| "{}", d.insert(&SEEN, &upsert(&SEEN)));
statement!(REMOVE_WORKERS, |d| "DELETE FROM workers WHERE id {}", d.any(Type::Text, 1));
statement!(REMOVE_SEEN, |d| "DELETE FROM worker_seen WHERE worker_id {}", d.any(Type::Text, 1));
statement!(UPSERT_SETTINGS, |d| "{}", d.insert(&SETTING, &upsert(&SETTING)));
statement!(INSERT_AUDIT, |d| "{}", d.insert(&records::AUDIT, ""));

/// Puts [`Dirty`] into statements. `held` are the leases that the loaded tasks came with.
pub(super) fn save<'a>(script: &mut Script<'a>, set: &'a WorkingSet, held: &HashMap<TaskId, LeaseId>) {
    let dirty = &set.dirty;
    save_specs(script, dirty);
    save_states(script, set, held);
    insert(script, &UPSERT_LEASES, &records::LEASE, &dirty.past_leases, records::push_lease);
    insert(script, &INSERT_RESULTS, &records::RESULT, &dirty.results, |bulk, result| records::push_result(bulk, result));
    insert(script, &INSERT_EVENTS, &records::EVENT, &dirty.events, records::push_event);
    prune_events(script, &dirty.events);
    save_workers(script, set);
    insert(script, &UPSERT_SETTINGS, &SETTING, &dirty.settings, |bulk, (key, value)| {
        bulk.text(*key).text(value);
    });
    insert(script, &INSERT_AUDIT, &records::AUDIT, &dirty.audit, records::push_audit);
}

/// One statement for all of `items`, or none when there are none.
fn insert<'a, T: 'a>(
    script: &mut Script<'a>,
    sql: &'static Sql,
    rows: &'static RowType,
    items: impl IntoIterator<Item = &'a T>,
    push: impl Fn(&mut Bulk<'a>, &'a T),
) {
    if let Some(bulk) = filled(rows, items, push) {
        script.insertion(sql, Args::new().bulk(bulk));
    }
}

fn filled<'a, T: 'a>(
    rows: &'static RowType,
    items: impl IntoIterator<Item = &'a T>,
    push: impl Fn(&mut Bulk<'a>, &'a T),
) -> Option<Bulk<'a>> {
    let mut bulk = Bulk::new(rows);
    for item in items {
        push(&mut bulk, item);
    }
    Some(bulk).filter(|bulk| !bulk.is_empty())
}

fn save_specs<'a>(script: &mut Script<'a>, dirty: &'a Dirty) {
    insert(script, &INSERT_SPECS, &rows::SPEC, &dirty.specs, |bulk, spec| rows::push_spec(bulk, spec));
    insert(script, &INSERT_LABELS, &LABEL, &dirty.specs, |bulk, spec| {
        for (key, value) in &spec.labels {
            bulk.text(key).text(value).uuid(spec.id);
        }
    });
    insert(script, &INSERT_DEPENDENCIES, &DEPENDENCY, &dirty.specs, |bulk, spec| {
        for dependency in &spec.depends_on {
            bulk.uuid(spec.id).uuid(*dependency);
        }
    });
}

/// A place, a context or a key that one task lets go may be taken by another in the same batch, and a unique index looks at each row as
/// it is written: so those that let go come first.
fn save_states<'a>(script: &mut Script<'a>, set: &'a WorkingSet, held: &HashMap<TaskId, LeaseId>) {
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
        script.ordered(&LET_GO, Args::new().uuids(&changed_hands));
    }
    update(script, &UPDATE_STATES, known().filter(is_loud).filter(|task| task.lease.is_none()));
    update(script, &UPDATE_STATES, known().filter(is_loud).filter(|task| task.lease.is_some()));
    update(script, &UPDATE_STATES_QUIETLY, known().filter(|task| !is_loud(task)));
    insert(script, &INSERT_STATES, &rows::STATE, written().filter(|task| new.contains(&task.id)), rows::push_state);
}

fn update<'a>(script: &mut Script<'a>, sql: &'static Sql, tasks: impl Iterator<Item = &'a TaskState>) {
    if let Some(bulk) = filled(&rows::STATE, tasks, rows::push_state) {
        script.ordered(sql, Args::new().bulk(bulk));
    }
}

fn prune_events(script: &mut Script<'_>, events: &[TaskEvent]) {
    let mut ranges: BTreeMap<TaskId, (i64, i64)> = BTreeMap::new();
    for event in events {
        let range = ranges.entry(event.task_id).or_insert((event.number, event.number));
        *range = (range.0.min(event.number), range.1.max(event.number));
    }
    for (task, (first, last)) in ranges {
        if last > EVENTS_KEPT && (first - 1) / EVENTS_STEP != last / EVENTS_STEP {
            script.ordered(&PRUNE_EVENTS, Args::new().uuid(task).int(last - EVENTS_KEPT));
        }
    }
}

fn save_workers<'a>(script: &mut Script<'a>, set: &'a WorkingSet) {
    let dirty = &set.dirty;
    if !dirty.removed_workers.is_empty() {
        script.ordered(&REMOVE_WORKERS, Args::new().texts(&dirty.removed_workers));
        script.ordered(&REMOVE_SEEN, Args::new().texts(&dirty.removed_workers));
    }
    let present = |id: &'a String| -> Option<&'a Worker> {
        set.loaded.workers.get(id)?.as_ref().filter(|worker| !dirty.removed_workers.contains(&worker.id))
    };
    insert(script, &UPSERT_WORKERS, &records::WORKER, dirty.workers.iter().filter_map(present), records::push_worker);
    insert(script, &UPSERT_SEEN, &SEEN, dirty.seen.iter().filter_map(present), |bulk, worker| {
        bulk.text(&worker.id).int(worker.last_seen);
    });
}
