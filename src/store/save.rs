//! What a batch changed, in few statements whatever its size.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::args::{Args, Bulk, RowType, Type, int, row_type, text, uuid};
use super::dialect::{Sql, statement, upsert};
use super::script::Script;
use super::{records, rows};
use bloom_core::Ms;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{TaskEvent, TaskState};
use bloom_core::wakeup::WakeupId;
use bloom_core::worker::Worker;
use bloom_core::working_set::{Dirty, Loaded, WorkingSet};

/// How many events of a task are kept.
const EVENTS_KEPT: i64 = 10_000;
/// Older events go when the count passes a multiple of this.
const EVENTS_STEP: i64 = 500;

static LABEL: RowType = row_type!(task_labels: text key, text value, uuid task_id);
static DEPENDENCY: RowType = row_type!(task_deps: uuid task_id, uuid dep_id);
static SEEN: RowType = row_type!(worker_seen: text worker_id, int last_seen);
static REMOVAL: RowType = row_type!(workers as worker_removal_row: text id, int revision, int removed_at);
static CURSOR: RowType = row_type!(wakeup_cursor: uuid id, uuid cursor);
static SETTING: RowType = row_type!(settings: text key, text value);

statement!(INSERT_SPECS, |d| "{}", d.insert(&rows::SPEC, ""));
statement!(INSERT_LABELS, |d| "{}", d.insert(&LABEL, ""));
statement!(INSERT_DEPENDENCIES, |d| "{}", d.insert(&DEPENDENCY, "ON CONFLICT DO NOTHING"));
statement!(INSERT_STATES, |d| "{}", d.insert(&rows::STATE, ""));
statement!(UPDATE_STATES, |d| "{}", d.update(&rows::STATE, rows::STATE_MOVING, ""));
statement!(UPDATE_STATES_QUIETLY, |d| "{}", d.update(&rows::STATE, rows::STATE_QUIET, ""));
statement!(LET_GO, |d| "UPDATE task_state SET slot = NULL WHERE id {}", d.any(Type::Uuid, 1));
statement!(UPSERT_LEASES, |d| "{}", d.insert(&records::LEASE, &upsert(&records::LEASE)));
statement!(INSERT_RESULTS, |d| "{}", d.insert(&records::RESULT, ""));
statement!(INSERT_EVENTS, |d| "{}", d.insert(&records::EVENT, ""));
statement!(PRUNE_EVENTS, "DELETE FROM task_events WHERE task_id = $1 AND number <= $2");
// Not an upsert: of two replicas that both register a new name, the second is to look again.
statement!(INSERT_WORKERS, |d| "{}", d.insert(&records::WORKER, ""));
// A worker that was removed is there again.
statement!(UPDATE_WORKERS, |d| "{}", d.update(&records::WORKER, &records::WORKER.columns[1..], ", removed_at = NULL"));
statement!(UPSERT_SEEN, |d| "{}", d.insert(&SEEN, &upsert(&SEEN)));
statement!(REMOVE_WORKERS, |d| "{}", d.update(&REMOVAL, &REMOVAL.columns[1..], ""));
statement!(UPSERT_SETTINGS, |d| "{}", d.insert(&SETTING, &upsert(&SETTING)));
statement!(INSERT_WAKEUPS, |d| "{}", d.insert(&records::WAKEUP, ""));
statement!(END_WAKEUPS, |d| "DELETE FROM wakeups WHERE id {}", d.any(Type::Uuid, 1));
// Two that work off the same one may overtake each other.
statement!(
    MOVE_WAKEUPS,
    |d| "UPDATE wakeups SET cursor = v.cursor FROM {} WHERE wakeups.id = v.id AND (wakeups.cursor IS NULL OR wakeups.cursor < v.cursor)",
    d.rows(&CURSOR, 1)
);
statement!(INSERT_AUDIT, |d| "{}", d.insert(&records::AUDIT, ""));

/// What the batch was loaded with, as far as its writing depends on it.
#[derive(Default)]
pub(super) struct Before {
    /// The active leases of the loaded tasks, and when those were to be looked at.
    pub leases: HashMap<TaskId, (LeaseId, Ms)>,
    /// Workers that have a row, be it that of a removed one.
    pub workers: HashSet<WorkerId>,
}

impl Before {
    pub fn of(loaded: &Loaded) -> Self {
        let leases = loaded.tasks.values().flatten().filter_map(|task| {
            let lease = task.lease.as_ref()?;
            Some((task.id, (lease.id, lease.check_at)))
        });
        Self { leases: leases.collect(), workers: loaded.worker_revisions.keys().cloned().collect() }
    }
}

/// Puts [`Dirty`] into statements.
pub(super) fn save<'a>(script: &mut Script<'a>, set: &'a WorkingSet, before: &Before) {
    let dirty = &set.dirty;
    save_specs(script, dirty);
    save_states(script, set, before);
    insert(script, &UPSERT_LEASES, &records::LEASE, &dirty.past_leases, records::push_lease);
    insert(script, &INSERT_RESULTS, &records::RESULT, &dirty.results, |bulk, result| records::push_result(bulk, result));
    insert(script, &INSERT_EVENTS, &records::EVENT, &dirty.events, records::push_event);
    prune_events(script, &dirty.events);
    save_workers(script, set, before);
    save_wakeups(script, dirty);
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
        script.unordered(sql, Args::new().bulk(bulk));
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
fn save_states<'a>(script: &mut Script<'a>, set: &'a WorkingSet, before: &Before) {
    let dirty = &set.dirty;
    let new: HashSet<TaskId> = dirty.specs.iter().map(|spec| spec.id).collect();
    let written = || dirty.tasks.iter().filter_map(|id| set.loaded.tasks.get(id)?.as_ref());
    let known = || written().filter(|task| !new.contains(&task.id));
    let is_checked_otherwise = |task: &TaskState| {
        let lease = task.lease.as_ref().map(|lease| (lease.id, lease.check_at));
        lease != before.leases.get(&task.id).copied()
    };
    let is_loud = |task: &&TaskState| !dirty.quiet_tasks.contains(&task.id) || is_checked_otherwise(task);

    let changed_hands: Vec<TaskId> = known()
        .filter(|task| task.lease.as_ref().is_some_and(|lease| before.leases.get(&task.id).is_some_and(|(before, _)| *before != lease.id)))
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

fn save_workers<'a>(script: &mut Script<'a>, set: &'a WorkingSet, before: &Before) {
    let dirty = &set.dirty;
    let mut removed = Bulk::new(&REMOVAL);
    for id in dirty.removed_workers.iter().filter(|id| before.workers.contains(*id)) {
        removed.text(id).int(set.loaded.worker_revisions.get(id).copied().unwrap_or_default()).int(set.now());
    }
    if !removed.is_empty() {
        script.unordered(&REMOVE_WORKERS, Args::new().bulk(removed));
    }
    let present = |id: &'a String| -> Option<&'a Worker> {
        set.loaded.workers.get(id)?.as_ref().filter(|worker| !dirty.removed_workers.contains(&worker.id))
    };
    let written = || dirty.workers.iter().filter_map(present);
    let is_known = |worker: &&Worker| before.workers.contains(&worker.id);
    insert(script, &INSERT_WORKERS, &records::WORKER, written().filter(|worker| !is_known(worker)), records::push_worker);
    if let Some(known) = filled(&records::WORKER, written().filter(is_known), records::push_worker) {
        script.unordered(&UPDATE_WORKERS, Args::new().bulk(known));
    }
    insert(script, &UPSERT_SEEN, &SEEN, dirty.seen.iter().filter_map(present), |bulk, worker| {
        bulk.text(&worker.id).int(worker.last_seen);
    });
}

fn save_wakeups<'a>(script: &mut Script<'a>, dirty: &'a Dirty) {
    insert(script, &INSERT_WAKEUPS, &records::WAKEUP, &dirty.wakeups, records::push_wakeup);
    // Of several pages of one wake-up in one batch the last counts; `None` is behind all of them.
    let mut reached: BTreeMap<WakeupId, Option<TaskId>> = BTreeMap::new();
    for progress in &dirty.progress {
        let to = reached.entry(progress.wakeup).or_insert(progress.next);
        *to = to.zip(progress.next).map(|(a, b)| a.max(b));
    }
    let done: Vec<WakeupId> = reached.iter().filter(|(_, to)| to.is_none()).map(|(id, _)| *id).collect();
    let mut moved = Bulk::new(&CURSOR);
    for (id, to) in reached {
        if let Some(to) = to {
            moved.uuid(id).uuid(to);
        }
    }
    if !moved.is_empty() {
        script.unordered(&MOVE_WAKEUPS, Args::new().bulk(moved));
    }
    if !done.is_empty() {
        script.unordered(&END_WAKEUPS, Args::new().uuids(&done));
    }
}
