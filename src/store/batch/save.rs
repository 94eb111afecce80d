//! Writes what a batch changed, in a few statements regardless of its size.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::batch::script::Script;
use crate::control_plane;
use crate::maintenance::task_removal;
use crate::sql::args::{Args, Bulk};
use crate::sql::cells::Type;
use crate::sql::dialect::{Sql, statement, upsert};
use crate::sql::table::{WriteRow, row};
use crate::sql::{record_rows, task_rows};
use bloom_core::Ms;
use bloom_core::api_key::{ApiKey, Quota};
use bloom_core::event::TaskEvent;
use bloom_core::file::FileId;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{TaskSpec, TaskState};
use bloom_core::wakeup::WakeupId;
use bloom_core::worker::Worker;
use bloom_core::working_set::{Dirty, Loaded, WorkingSet};

/// How many events of a task are kept.
const EVENTS_KEPT: i64 = 10_000;
/// Older events are removed each time the count passes a multiple of this.
const EVENTS_STEP: i64 = 500;

row! { pub(crate) struct Label<'a>: task_labels as task_labels_row { key: &'a str, value: &'a str, task_id: TaskId } }
row! { pub(crate) struct Dependency: task_deps as task_deps_row { task_id: TaskId, dep_id: TaskId } }
row! { pub(crate) struct InputOf: task_inputs as task_inputs_row { file_id: FileId, task_id: TaskId } }
row! { pub(crate) struct Seen<'a>: worker_seen as worker_seen_row { worker_id: &'a str, last_seen: Ms } }
row! { pub(crate) struct Removal<'a>: workers as worker_removal_row { id: &'a str, revision: i64, removed_at: Ms } }
row! { pub(crate) struct Reached: wakeup_cursor as wakeup_cursor_row { id: WakeupId, cursor: TaskId } }
row! { pub(crate) struct Reset<'a>: context_resets as context_resets_row { context_id: &'a str, reset_at: Ms } }
row! { pub(crate) struct Setting<'a>: settings as settings_row { key: &'a str, value: &'a str } }

statement!(INSERT_SPECS, |d| "{}", d.insert(&task_rows::SPEC, ""));
statement!(INSERT_LABELS, |d| "{}", d.insert(Label::ROW, ""));
statement!(FORGET_LABELS, |d| "DELETE FROM task_labels WHERE task_id {}", d.any(Type::Uuid, 1));
statement!(INSERT_DEPENDENCIES, |d| "{}", d.insert(Dependency::ROW, "ON CONFLICT DO NOTHING"));
statement!(INSERT_STATES, |d| "{}", d.insert(&task_rows::STATE, ""));
statement!(UPDATE_STATES, |d| "{}", d.update(&task_rows::STATE, &task_rows::STATE.all_but(task_rows::STATE_FIXED), ""));
statement!(UPDATE_STATES_QUIETLY, |d| "{}", d.update(&task_rows::STATE, task_rows::STATE_QUIET, ""));
statement!(LET_GO, |d| "UPDATE task_state SET slot = NULL WHERE id {}", d.any(Type::Uuid, 1));
statement!(UPSERT_LEASES, |d| "{}", d.insert(&record_rows::LEASE, &upsert(&record_rows::LEASE, "id")));
statement!(INSERT_RESULTS, |d| "{}", d.insert(&record_rows::RESULT, ""));
statement!(INSERT_EVENTS, |d| "{}", d.insert(&record_rows::EVENT, ""));
statement!(PRUNE_EVENTS, "DELETE FROM task_events WHERE task_id = $1 AND number <= $2");
// Not an upsert: if two replicas register the same new name, the second one must get a conflict and decide again. Taking the lock here
// costs no round trip, and it is held until the commit, as if it were taken first.
statement!(INSERT_WORKERS, |d| "{}", d.insert(&record_rows::WORKER, &format!("RETURNING {}", d.lock_names(true))));
// The worker may have been removed before, so it is marked as present again.
statement!(UPDATE_WORKERS, |d| "{}", d.update(&record_rows::WORKER, &record_rows::WORKER.all_but(&["id"]), ", removed_at = NULL"));
statement!(UPSERT_SEEN, |d| "{}", d.insert(Seen::ROW, &upsert(Seen::ROW, "worker_id")));
statement!(REMOVE_WORKERS, |d| "{}", d.update(Removal::ROW, &Removal::ROW.all_but(&["id"]), ""));
statement!(UPSERT_QUEUES, |d| "{}", d.insert(&record_rows::QUEUE, &upsert(&record_rows::QUEUE, "agent_slug")));
statement!(REMOVE_QUEUES, |d| "DELETE FROM queues WHERE agent_slug {}", d.any(Type::Text, 1));
statement!(UPSERT_RESETS, |d| "{}", d.insert(Reset::ROW, &upsert(Reset::ROW, "context_id")));
statement!(UPSERT_SETTINGS, |d| "{}", d.insert(Setting::ROW, &upsert(Setting::ROW, "key")));
statement!(INSERT_WAKEUPS, |d| "{}", d.insert(&record_rows::WAKEUP, ""));
statement!(END_WAKEUPS, |d| "DELETE FROM wakeups WHERE id {}", d.any(Type::Uuid, 1));
// Two replicas that process the same wake-up may overtake each other, so the cursor never moves back.
statement!(
    MOVE_WAKEUPS,
    |d| "UPDATE wakeups SET cursor = v.cursor FROM {} WHERE wakeups.id = v.id AND (wakeups.cursor IS NULL OR wakeups.cursor < v.cursor)",
    d.rows(Reached::ROW, 1)
);
statement!(REMOVE_API_KEYS, |d| "DELETE FROM api_keys WHERE name {}", d.any(Type::Text, 1));
statement!(REMOVE_KEY_USES, |d| "DELETE FROM api_key_uses WHERE name {}", d.any(Type::Text, 1));
statement!(INSERT_API_KEYS, |d| "{}", d.insert(&record_rows::API_KEY, ""));
row! {
    pub(crate) struct Rotated<'a>: api_keys as rotated_keys_row {
        name: &'a str,
        digest: &'a str,
        former_digest: Option<&'a str>,
        former_until: Option<Ms>,
        expires_at: Option<Ms>,
    }
}
statement!(
    ROTATE_API_KEYS,
    |d| "UPDATE api_keys SET digest = v.digest, former_digest = v.former_digest, former_until = v.former_until, expires_at = v.expires_at \
        FROM {} WHERE api_keys.name = v.name",
    d.rows(Rotated::ROW, 1)
);
row! {
    pub(crate) struct QuotaRow<'a>: api_keys as quotas_row {
        name: &'a str,
        max_open_tasks: Option<i64>,
        max_tasks_per_minute: Option<i64>,
        max_stored_bytes: Option<i64>,
        refilled_at: Ms,
        stored_bytes: i64,
    }
}
statement!(
    UPDATE_QUOTAS,
    |d| "UPDATE api_keys SET max_open_tasks = v.max_open_tasks, max_tasks_per_minute = v.max_tasks_per_minute, \
        max_stored_bytes = v.max_stored_bytes, refilled_at = v.refilled_at, stored_bytes = v.stored_bytes \
        FROM {} WHERE api_keys.name = v.name",
    d.rows(QuotaRow::ROW, 1)
);
statement!(REMOVE_PROJECTS, |d| "DELETE FROM projects WHERE id {}", d.any(Type::Uuid, 1));
statement!(REMOVE_PROJECT_NODES, |d| "DELETE FROM project_nodes WHERE project_id {}", d.any(Type::Uuid, 1));
statement!(UPSERT_PROJECTS, |d| "{}", d.insert(&record_rows::PROJECT, &upsert(&record_rows::PROJECT, "id")));
statement!(
    UPSERT_PROJECT_NODES,
    |d| "{}",
    d.insert(&record_rows::PROJECT_NODE, &upsert(&record_rows::PROJECT_NODE, "project_id, node_id"))
);
statement!(INSERT_INPUTS, |d| "{}", d.insert(InputOf::ROW, "ON CONFLICT DO NOTHING"));
statement!(INSERT_FILES, |d| "{}", d.insert(&record_rows::FILE, ""));
statement!(KEEP_CHUNKS, |d| "DELETE FROM chunk_removals WHERE file_id {}", d.any(Type::Uuid, 1));
statement!(KEEP_UPLOADS, |d| "UPDATE files SET remove_at = NULL WHERE id {}", d.any(Type::Uuid, 1));
statement!(INSERT_AUDIT, |d| "{}", d.insert(&record_rows::AUDIT, ""));

/// The part of the loaded rows that the save depends on.
#[derive(Default)]
pub(crate) struct Before {
    /// The active leases of the loaded tasks, with their `check_at`.
    pub leases: HashMap<TaskId, (LeaseId, Ms)>,
    /// Workers that have a row, including removed ones.
    pub workers: HashSet<WorkerId>,
}

impl Before {
    pub(crate) fn of(loaded: &Loaded) -> Self {
        let leases = loaded.tasks.values().flatten().filter_map(|task| {
            let lease = task.lease.as_ref()?;
            Some((task.id, (lease.id, lease.check_at)))
        });
        Self { leases: leases.collect(), workers: loaded.worker_revisions.keys().cloned().collect() }
    }
}

/// Adds the statements that write [`Dirty`].
pub(crate) fn save<'a>(script: &mut Script<'a>, set: &'a WorkingSet, before: &Before) {
    let dirty = &set.dirty;
    save_specs(script, dirty);
    save_labels(script, set);
    save_states(script, set, before);
    write(script, &UPSERT_LEASES, &dirty.past_leases);
    write(script, &INSERT_RESULTS, dirty.results.iter().map(AsRef::as_ref));
    write(script, &INSERT_EVENTS, &dirty.events);
    prune_events(script, &dirty.events);
    save_workers(script, set, before);
    save_queues(script, set);
    let resets = dirty.context_resets.iter().filter_map(|id| set.loaded.context_resets.get_key_value(id));
    write(script, &UPSERT_RESETS, resets.map(|(context_id, reset_at)| Reset { context_id, reset_at: *reset_at }));
    save_wakeups(script, dirty);
    save_api_keys(script, set);
    save_quotas(script, set);
    save_projects(script, set);
    save_files(script, dirty);
    control_plane::save(script, set);
    write(script, &UPSERT_SETTINGS, dirty.settings.iter().map(|(key, value)| Setting { key, value }));
    write(script, &INSERT_AUDIT, &dirty.audit);
    if !dirty.removed_tasks.is_empty() {
        for statement in task_removal::STATEMENTS {
            script.unordered(statement, Args::new().uuids(&dirty.removed_tasks));
        }
    }
}

/// Adds one statement for all `rows`, if there are any.
fn write<'a, R: WriteRow<'a>>(script: &mut Script<'a>, sql: &'static Sql, rows: impl IntoIterator<Item = R>) {
    let rows = Bulk::of(rows);
    if !rows.is_empty() {
        script.unordered(sql, Args::new().bulk(rows));
    }
}

fn save_specs<'a>(script: &mut Script<'a>, dirty: &'a Dirty) {
    let specs = || dirty.specs.iter().map(AsRef::as_ref);
    write(script, &INSERT_SPECS, specs());
    let dependencies = |spec: &'a TaskSpec| spec.depends_on.iter().map(|on| Dependency { task_id: spec.id, dep_id: *on });
    write(script, &INSERT_DEPENDENCIES, specs().flat_map(dependencies));
    let inputs = |spec: &'a TaskSpec| spec.inputs.iter().map(|input| InputOf { file_id: input.artifact_id, task_id: spec.id });
    write(script, &INSERT_INPUTS, specs().flat_map(inputs));
}

/// The labels by which lists are filtered: those of new tasks, and those that were edited.
fn save_labels<'a>(script: &mut Script<'a>, set: &'a WorkingSet) {
    let dirty = &set.dirty;
    let edited = || dirty.relabeled.iter().filter_map(|id| set.loaded.tasks.get(id)?.as_ref());
    let specs = || dirty.specs.iter().filter(|spec| !dirty.relabeled.contains(&spec.id));
    if !dirty.relabeled.is_empty() {
        // Ordered, so that the new labels do not conflict with the old ones. A statement that writes the states follows.
        script.ordered(&FORGET_LABELS, Args::new().uuids(&dirty.relabeled));
    }
    let of_specs = specs().flat_map(|spec| spec.labels.iter().map(|(key, value)| Label { key, value, task_id: spec.id }));
    let of_edited = edited().flat_map(|task| task.labels.iter().flatten().map(|(key, value)| Label { key, value, task_id: task.id }));
    write(script, &INSERT_LABELS, of_specs.chain(of_edited));
}

/// A slot, a context or a key that one task releases may be taken by another in the same batch, and a unique index checks each row as it
/// is written. So the tasks that release something are written first.
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
    write(script, &INSERT_STATES, written().filter(|task| new.contains(&task.id)));
}

fn update<'a>(script: &mut Script<'a>, sql: &'static Sql, tasks: impl Iterator<Item = &'a TaskState>) {
    let rows = Bulk::of(tasks);
    if !rows.is_empty() {
        script.ordered(sql, Args::new().bulk(rows));
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
    let removed = dirty.removed_workers.iter().filter(|id| before.workers.contains(*id)).map(|id| Removal {
        id,
        revision: set.loaded.worker_revisions.get(id).copied().unwrap_or_default(),
        removed_at: set.now(),
    });
    write(script, &REMOVE_WORKERS, removed);
    let present = |id: &'a String| -> Option<&'a Worker> {
        set.loaded.workers.get(id)?.as_ref().filter(|worker| !dirty.removed_workers.contains(&worker.id))
    };
    let written = || dirty.workers.iter().filter_map(present);
    let is_known = |worker: &&Worker| before.workers.contains(&worker.id);
    write(script, &INSERT_WORKERS, written().filter(|worker| !is_known(worker)));
    write(script, &UPDATE_WORKERS, written().filter(is_known));
    let seen = dirty.seen.iter().filter_map(present).map(|worker| Seen { worker_id: &worker.id, last_seen: worker.last_seen });
    write(script, &UPSERT_SEEN, seen);
}

/// A key may get the name of one that the batch removes, so the removal comes first.
fn save_api_keys<'a>(script: &mut Script<'a>, set: &'a WorkingSet) {
    if !set.dirty.removed_api_keys.is_empty() {
        script.ordered(&REMOVE_API_KEYS, Args::new().texts(&set.dirty.removed_api_keys));
        script.ordered(&REMOVE_KEY_USES, Args::new().texts(&set.dirty.removed_api_keys));
    }
    let known = set.loaded.api_keys.as_ref();
    let added = Bulk::of(set.dirty.api_keys.iter().filter_map(|name| known?.rows.get(name)));
    if !added.is_empty() {
        script.ordered(&INSERT_API_KEYS, Args::new().bulk(added));
    }
    let rotated = set.dirty.rotated_api_keys.iter().filter_map(|name| known?.rows.get(name));
    let rotated = rotated.map(|ApiKey { name, digest, former, expires_at, .. }| Rotated {
        name,
        digest,
        former_digest: former.as_ref().map(|former| &*former.digest),
        former_until: former.as_ref().map(|former| former.until),
        expires_at: *expires_at,
    });
    let rotated = Bulk::of(rotated);
    if !rotated.is_empty() {
        script.ordered(&ROTATE_API_KEYS, Args::new().bulk(rotated));
    }
}

fn save_quotas<'a>(script: &mut Script<'a>, set: &'a WorkingSet) {
    let used = set.dirty.quotas.written.iter().filter_map(|name| Some((name, set.loaded.quotas.uses.get(name)?.as_ref()?)));
    let rows = used.map(|(name, used)| {
        let Quota { max_open_tasks, max_tasks_per_minute, max_stored_bytes } = used.quota;
        let (refilled_at, stored_bytes) = (used.refilled_at, used.stored_bytes);
        QuotaRow { name, max_open_tasks, max_tasks_per_minute, max_stored_bytes, refilled_at, stored_bytes }
    });
    write(script, &UPDATE_QUOTAS, rows);
}

/// A project may get the name of one that the batch removes, so the removal comes first.
fn save_projects<'a>(script: &mut Script<'a>, set: &'a WorkingSet) {
    let (dirty, known) = (&set.dirty.projects, set.loaded.projects.as_ref());
    if !dirty.removed.is_empty() {
        script.ordered(&REMOVE_PROJECTS, Args::new().uuids(&dirty.removed));
        script.unordered(&REMOVE_PROJECT_NODES, Args::new().uuids(&dirty.removed));
    }
    let projects = Bulk::of(dirty.written.iter().filter_map(|id| known?.rows.get(id)));
    if !projects.is_empty() {
        script.ordered(&UPSERT_PROJECTS, Args::new().bulk(projects));
    }
    write(script, &UPSERT_PROJECT_NODES, dirty.nodes.iter().filter_map(|(project, node)| known?.nodes.get(project)?.get(node)));
}

fn save_files<'a>(script: &mut Script<'a>, dirty: &'a Dirty) {
    let files = &dirty.files;
    write(script, &INSERT_FILES, &files.added);
    let stored: Vec<FileId> = files.added.iter().filter(|file| file.object_url.is_none()).map(|file| file.id).collect();
    if !stored.is_empty() {
        script.unordered(&KEEP_CHUNKS, Args::new().uuids(&stored));
    }
    if !files.used.is_empty() {
        script.unordered(&KEEP_UPLOADS, Args::new().uuids(&files.used));
    }
    if !files.removed.is_empty() {
        for statement in task_removal::OF_FILES {
            script.unordered(statement, Args::new().uuids(&files.removed));
        }
    }
}

fn save_queues<'a>(script: &mut Script<'a>, set: &'a WorkingSet) {
    let row = |slug: &'a String| set.loaded.queues.get(slug)?.as_ref();
    write(script, &UPSERT_QUEUES, set.dirty.queues.iter().filter_map(row));
    let unset: Vec<&str> = set.dirty.queues.iter().filter(|slug| row(slug).is_none()).map(String::as_str).collect();
    if !unset.is_empty() {
        script.unordered(&REMOVE_QUEUES, Args::new().texts(unset));
    }
}

fn save_wakeups<'a>(script: &mut Script<'a>, dirty: &'a Dirty) {
    write(script, &INSERT_WAKEUPS, &dirty.wakeups);
    // If a batch contains several pages of one wake-up, the last one counts; `None` is after all of them.
    let mut reached: BTreeMap<WakeupId, Option<TaskId>> = BTreeMap::new();
    for progress in &dirty.progress {
        let to = reached.entry(progress.wakeup).or_insert(progress.next);
        *to = to.zip(progress.next).map(|(a, b)| a.max(b));
    }
    let done: Vec<WakeupId> = reached.iter().filter(|(_, to)| to.is_none()).map(|(id, _)| *id).collect();
    write(script, &MOVE_WAKEUPS, reached.into_iter().filter_map(|(id, to)| Some(Reached { id, cursor: to? })));
    if !done.is_empty() {
        script.unordered(&END_WAKEUPS, Args::new().uuids(&done));
    }
}
