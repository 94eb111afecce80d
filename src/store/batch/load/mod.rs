//! Loads the rows that a batch needs: finds them, locks them in one global order, then reads them.

mod api_keys;
mod control_plane;
mod files;
mod projects;
mod queues;
mod quotas;

pub(crate) use quotas::OPEN_TASKS;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::all;
use crate::error::Error;
use crate::reads::lookups;
use crate::sql::args::{Args, Bulk};
use crate::sql::cells::{Cells, Read, Row, Type};
use crate::sql::conn::Conn;
use crate::sql::dialect::{Kind, Statement, statement};
use crate::sql::table::{ReadRow, WriteRow as _, row};
use crate::sql::{record_rows, task_rows};
use bloom_core::Ms;
use bloom_core::command::RowKeys;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::task::{PastLease, TaskSpec, TaskState};
use bloom_core::worker::Worker;
use bloom_core::working_set::{ContextView, Loaded, Slots};

fn specs_by(d: Kind, column: &str, ty: Type) -> String {
    format!("SELECT {} FROM tasks WHERE {column} IS NOT NULL AND {column} {}", task_rows::SPEC.names(""), d.any(ty, 1))
}
statement!(OF_IDEMPOTENCY_KEYS, |d| "{}", specs_by(d, "idempotency_key", Type::Text));
statement!(OF_OBJECTS, |d| "{}", specs_by(d, "object_uid", Type::Uuid));
statement!(OF_LEASES, |d| "SELECT lease_id, id FROM task_state WHERE slot IS NOT NULL AND lease_id {}", d.any(Type::Uuid, 1));
statement!(OF_WORKERS, |d| "SELECT worker_id, id FROM task_state WHERE slot IS NOT NULL AND worker_id {}", d.any(Type::Text, 1));
statement!(
    OF_EXCLUSIVE_KEYS,
    |d| "SELECT exclusive_key, id FROM task_state \
    WHERE slot IS NOT NULL AND exclusive_key IS NOT NULL AND exclusive_key {}",
    d.any(Type::Text, 1)
);
statement!(DEPENDENCIES, |d| "SELECT task_id, dep_id FROM task_deps WHERE task_id {}", d.any(Type::Uuid, 1));

row! { pub(crate) struct ContextTask<'a>: context_task as context_task_row { context_id: &'a str, id: TaskId } }
statement!(
    CONTEXTS,
    |d| "SELECT v.context_id, v.id, \
        (SELECT t.id FROM task_state t \
            WHERE t.context_id = v.context_id AND t.id < v.id AND t.session = 'context' AND t.status IN ('queued', 'leased', 'running') \
            ORDER BY t.id DESC LIMIT 1), \
        (SELECT h.id FROM task_state h WHERE h.context_id = v.context_id AND h.holds_context = true AND h.slot IS NOT NULL), \
        (SELECT a.worker_id FROM task_state a WHERE a.context_id = v.context_id AND a.slot IS NOT NULL LIMIT 1), \
        l.worker_id, l.ended_at, s.session_id, \
        (SELECT c.session_id FROM (SELECT p.id, p.task_id, p.started_at FROM leases p \
                WHERE p.context_id = v.context_id AND p.completed ORDER BY p.id DESC LIMIT 100) n \
            JOIN task_state c ON c.id = n.task_id AND c.session = 'context' AND c.status = 'completed' AND c.session_id IS NOT NULL \
            WHERE NOT EXISTS (SELECT 1 FROM context_resets r WHERE r.context_id = v.context_id AND r.reset_at >= n.started_at) \
            ORDER BY n.id DESC LIMIT 1) \
    FROM {} \
    LEFT JOIN leases l ON l.id = (SELECT p.id FROM leases p WHERE p.context_id = v.context_id AND p.completed ORDER BY p.id DESC LIMIT 1) \
    LEFT JOIN task_state s ON s.id = l.task_id",
    d.rows(ContextTask::ROW, 1)
);

statement!(RESETS, |d| "SELECT context_id, reset_at FROM context_resets WHERE context_id {}", d.any(Type::Text, 1));

// The outer SELECT reads the clock for each row after the inner SELECT has locked the row, so the latest of these times is after every
// lock.
fn lock_tasks(d: Kind, lock: &str) -> String {
    format!(
        "WITH l AS MATERIALIZED (SELECT {0} FROM task_state WHERE id {1} ORDER BY id {lock}) \
        SELECT {0}, {2}, EXISTS (SELECT 1 FROM queues WHERE agent_slug <> '' OR paused_at IS NOT NULL), \
        (SELECT r.reset_at FROM context_resets r WHERE r.context_id = l.context_id) FROM l",
        task_rows::STATE.names(""),
        d.any(Type::Uuid, 1),
        d.clock(2)
    )
}
statement!(LOCK_TASKS, |d| "{}", lock_tasks(d, d.lock()));
statement!(LOCK_FREE_TASKS, |d| "{}", lock_tasks(d, d.skip_locked()));
statement!(TASKS_THERE, |d| "SELECT id FROM task_state WHERE id {}", d.any(Type::Uuid, 1));

// `worker_seen` is locked too, because a lock returns the newest version of a row, and the statement's snapshot may be older.
// Removed workers are locked too, because a new worker with the same name continues from their revision.
// The lock of the queues is taken before any row is locked, because the rows are sorted first; it costs no round trip here.
fn lock_workers(d: Kind, which: &str, clock: &str, lock: &str) -> String {
    format!(
        "WITH q AS MATERIALIZED (SELECT {2}), \
        l AS MATERIALIZED (SELECT {0}, s.last_seen, w.removed_at FROM q CROSS JOIN workers w JOIN worker_seen s ON s.worker_id = w.id \
        {which} ORDER BY w.id {lock}) SELECT {1}, last_seen, removed_at, {clock} FROM l",
        record_rows::WORKER.names("w."),
        record_rows::WORKER.names(""),
        d.lock_queues(true)
    )
}
fn named(d: Kind) -> String {
    format!("WHERE w.id {}", d.any(Type::Text, 1))
}
statement!(LOCK_WORKERS, |d| "{}", lock_workers(d, &named(d), &d.clock(2), d.lock()));
statement!(LOCK_FREE_WORKERS, |d| "{}", lock_workers(d, &named(d), &d.clock(2), d.skip_locked()));
statement!(LOCK_ALL_WORKERS, |d| "{}", lock_workers(d, "", &d.clock(1), d.lock()));
statement!(LOCK_ALL_FREE_WORKERS, |d| "{}", lock_workers(d, "", &d.clock(1), d.skip_locked()));
statement!(WORKERS_THERE, |d| "SELECT id FROM workers WHERE id {}", d.any(Type::Text, 1));
statement!(SLOTS, |d| "SELECT worker_id, slot FROM task_state WHERE slot IS NOT NULL AND worker_id {}", d.any(Type::Text, 1));
statement!(HOLD_NAMES, |d| "SELECT {} IS NULL", d.lock_names(false));
statement!(PAST_LEASES, |d| "SELECT {} FROM leases WHERE id {}", record_rows::LEASE.names(""), d.any(Type::Uuid, 1));

/// Loads the rows of all keys; a key without a row is recorded as absent. With `skip_locked`, rows that other transactions have locked
/// are left out.
pub(crate) async fn load(conn: &mut Conn, time: Option<Ms>, keys: &RowKeys, skip_locked: bool) -> Result<Loaded, Error> {
    let mut load = Load { conn, time, skip_locked, loaded: Loaded::default(), tasks: keys.tasks.clone(), has_queues: false };
    load.hold_queues(keys).await?;
    if keys.free_names {
        load.conn.fetch(&HOLD_NAMES, Args::new()).await?;
    }
    load.look_up(keys).await?;
    load.observe_workers(keys).await?;
    load.lock_workers(keys).await?;
    load.lock_tasks().await?;
    load.lock_api_keys(keys).await?;
    load.lock_quotas(keys).await?;
    load.lock_projects(keys).await?;
    load.lock_files(keys).await?;
    load.lock_control_plane(keys).await?;
    load.read_queues(keys).await?;
    load.read_after_locking(keys).await?;
    if load.loaded.now == 0 {
        load.loaded.now = crate::time_of(load.conn, time).await?;
    }
    Ok(load.loaded)
}

struct Load<'c> {
    conn: &'c mut Conn,
    time: Option<Ms>,
    skip_locked: bool,
    loaded: Loaded,
    /// The tasks to lock: those of the keys, and those that the look-ups found.
    tasks: BTreeSet<TaskId>,
    /// Some queue is paused or limited.
    has_queues: bool,
}

impl Load<'_> {
    /// Finds ids without locks. The rows may have changed by the time that they are locked, so `decide` checks the locked rows.
    async fn look_up(&mut self, keys: &RowKeys) -> Result<(), Error> {
        if !keys.idempotency.is_empty() {
            self.loaded.idempotency.extend(keys.idempotency.iter().map(|key| (key.clone(), None)));
            for spec in self.specs(&OF_IDEMPOTENCY_KEYS, Args::new().texts(&keys.idempotency)).await? {
                self.loaded.idempotency.extend(spec.idempotency_key.clone().map(|key| (key, Some(spec))));
            }
        }
        if !keys.objects.is_empty() {
            self.loaded.objects.extend(keys.objects.iter().map(|uid| (*uid, None)));
            for spec in self.specs(&OF_OBJECTS, Args::new().uuids(&keys.objects)).await? {
                self.loaded.objects.extend(spec.object.as_ref().map(|object| object.uid).map(|uid| (uid, Some(spec))));
            }
        }
        if !keys.leases.is_empty() {
            let found = self.conn.fetch(&OF_LEASES, Args::new().uuids(&keys.leases)).await?;
            self.loaded.lease_tasks.extend(keys.leases.iter().map(|lease| (*lease, None)));
            for (lease, task) in self.pairs::<LeaseId>(&found)? {
                self.loaded.lease_tasks.insert(lease, Some(task));
            }
        }
        if !keys.worker_tasks.is_empty() {
            let found = self.conn.fetch(&OF_WORKERS, Args::new().texts(&keys.worker_tasks)).await?;
            self.loaded.worker_tasks.extend(keys.worker_tasks.iter().map(|worker| (worker.clone(), Vec::new())));
            for (worker, task) in self.pairs::<WorkerId>(&found)? {
                self.loaded.worker_tasks.entry(worker).or_default().push(task);
            }
        }
        if !keys.exclusive.is_empty() {
            let found = self.conn.fetch(&OF_EXCLUSIVE_KEYS, Args::new().texts(&keys.exclusive)).await?;
            self.loaded.exclusive.extend(keys.exclusive.iter().map(|key| (key.clone(), None)));
            for (key, task) in self.pairs::<String>(&found)? {
                self.loaded.exclusive.insert(key, Some(task));
            }
        }
        if !keys.dependencies.is_empty() {
            let found = self.conn.fetch(&DEPENDENCIES, Args::new().uuids(&keys.dependencies)).await?;
            self.loaded.dependencies.extend(keys.dependencies.iter().map(|task| (*task, Vec::new())));
            for (task, dependency) in self.pairs::<TaskId>(&found)? {
                self.loaded.dependencies.entry(task).or_default().push(dependency);
            }
        }
        self.look_up_projects(keys).await?;
        if !keys.resets.is_empty() {
            let found = self.conn.fetch(&RESETS, Args::new().texts(&keys.resets)).await?;
            self.loaded.context_resets.extend(all(&found, |row| Ok((row.take()?, row.take()?)))?);
        }
        self.look_up_contexts(keys).await
    }

    /// Reads specs, and marks their tasks so that the states are loaded too.
    async fn specs(&mut self, statement: &Statement, args: Args<'_>) -> Result<Vec<Arc<TaskSpec>>, Error> {
        let specs: Vec<Arc<TaskSpec>> = all(&self.conn.fetch(statement, args).await?, ReadRow::read)?;
        self.tasks.extend(specs.iter().map(|spec| spec.id));
        Ok(specs)
    }

    async fn look_up_contexts(&mut self, keys: &RowKeys) -> Result<(), Error> {
        if keys.contexts.is_empty() && keys.predecessors.is_empty() {
            return Ok(());
        }
        let successors = keys.predecessors.iter().map(|(context, id)| ContextTask { context_id: context, id: *id });
        // No task has an id before the nil id, so these rows only request the context.
        let is_asked =
            |context: &String| keys.predecessors.range((context.clone(), TaskId::nil())..).next().is_some_and(|(c, _)| c == context);
        let alone = keys.contexts.iter().filter(|context| !is_asked(context));
        let alone = alone.map(|context| ContextTask { context_id: context, id: TaskId::nil() });
        for row in self.conn.fetch(&CONTEXTS, Args::new().bulk(Bulk::of(successors.chain(alone)))).await? {
            let mut row = row.cells();
            let (context, id, predecessor): (String, TaskId, Option<TaskId>) = (row.take()?, row.take()?, row.take()?);
            let view = context_view(&mut row)?;
            self.tasks.extend(predecessor.into_iter().chain(view.holder));
            if !id.is_nil() {
                self.loaded.predecessors.insert((context.clone(), id), predecessor);
            }
            self.loaded.contexts.insert(context, view);
        }
        Ok(())
    }

    /// Reads workers without locks, as hints. The workers of the contexts' sessions are always read, because a task of such a context may
    /// be reserved for its worker.
    async fn observe_workers(&mut self, keys: &RowKeys) -> Result<(), Error> {
        let last = self.loaded.contexts.values().filter_map(|view| view.last_worker.as_ref()).map(|(worker, _)| worker);
        let of_sessions = last.filter(|worker| !keys.all_workers && !keys.workers.contains(*worker));
        let wanted: BTreeSet<WorkerId> = of_sessions.chain(&keys.observed_workers).cloned().collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let found = self.conn.fetch(&lookups::WORKERS_BY_ID, Args::new().texts(&wanted)).await?;
        let found = all(&found, Worker::read)?;
        self.loaded.observed_workers.extend(wanted.into_iter().map(|id| (id, None)));
        self.loaded.observed_workers.extend(found.into_iter().map(|worker| (worker.id.clone(), Some(worker))));
        Ok(())
    }

    async fn lock_workers(&mut self, keys: &RowKeys) -> Result<(), Error> {
        let found = if keys.all_workers {
            let lock = if self.skip_locked { &LOCK_ALL_FREE_WORKERS } else { &LOCK_ALL_WORKERS };
            self.conn.fetch(lock, Args::new().int(self.time)).await?
        } else if !keys.workers.is_empty() {
            let lock = if self.skip_locked { &LOCK_FREE_WORKERS } else { &LOCK_WORKERS };
            self.conn.fetch(lock, Args::new().texts(&keys.workers).int(self.time)).await?
        } else {
            return Ok(());
        };
        self.loaded.all_workers = keys.all_workers;
        if self.skip_locked {
            let there = self.conn.fetch(&WORKERS_THERE, Args::new().texts(&keys.workers)).await?;
            self.loaded.locked_workers = all(&there, |row| row.take())?.into_iter().collect();
        }
        for row in &found {
            let mut row = row.cells();
            let (worker, removed_at): (_, Option<Ms>) = (Worker::read(&mut row)?, row.take()?);
            self.saw_clock(&mut row)?;
            self.loaded.worker_revisions.insert(worker.id.clone(), worker.revision);
            self.loaded.locked_workers.remove(&worker.id);
            self.loaded.workers.insert(worker.id.clone(), Some(worker).filter(|_| removed_at.is_none()));
        }
        for id in keys.workers.iter().filter(|id| !self.loaded.locked_workers.contains(*id)) {
            self.loaded.workers.entry(id.clone()).or_insert(None);
        }
        Ok(())
    }

    async fn lock_tasks(&mut self) -> Result<(), Error> {
        if self.tasks.is_empty() {
            return Ok(());
        }
        let lock = if self.skip_locked { &LOCK_FREE_TASKS } else { &LOCK_TASKS };
        let found = self.conn.fetch(lock, Args::new().uuids(&self.tasks).int(self.time)).await?;
        if self.skip_locked {
            let there = self.conn.fetch(&TASKS_THERE, Args::new().uuids(&self.tasks)).await?;
            self.loaded.locked_tasks = all(&there, |row| row.take())?.into_iter().collect();
        }
        for row in &found {
            let mut row = row.cells();
            let task = TaskState::read(&mut row)?;
            self.saw_clock(&mut row)?;
            self.has_queues = row.take()?;
            self.loaded.context_resets.extend(row.take::<Option<Ms>>()?.map(|at| (task.context_id.clone(), at)));
            self.loaded.locked_tasks.remove(&task.id);
            self.loaded.tasks.insert(task.id, Some(task));
        }
        for id in self.tasks.iter().filter(|id| !self.loaded.locked_tasks.contains(*id)) {
            self.loaded.tasks.entry(*id).or_insert(None);
        }
        Ok(())
    }

    /// Reads the rows that the locks protect from changes, in a later snapshot than that of the locks.
    async fn read_after_locking(&mut self, keys: &RowKeys) -> Result<(), Error> {
        let mut exact: BTreeSet<&str> = keys.exact_slots.iter().map(String::as_str).collect();
        let everyone: Vec<WorkerId> = if keys.all_workers { self.loaded.workers.keys().cloned().collect() } else { Vec::new() };
        exact.extend(everyone.iter().map(String::as_str));
        if !exact.is_empty() {
            let found = self.conn.fetch(&SLOTS, Args::new().texts(exact.iter().copied())).await?;
            self.loaded.slots.extend(exact.iter().map(|worker| ((*worker).to_owned(), Slots { used: 0, exact: true })));
            for row in &found {
                let mut row = row.cells();
                let (worker, slot): (WorkerId, i64) = (row.take()?, row.take()?);
                let bit = u32::try_from(slot).ok().and_then(|slot| 1u32.checked_shl(slot));
                let bit = bit.ok_or_else(|| Error::Corrupt(format!("worker {worker} has no slot {slot}")))?;
                self.loaded.slots.entry(worker).and_modify(|slots| slots.used |= bit);
            }
        }
        if !keys.past_leases.is_empty() {
            let found = self.conn.fetch(&PAST_LEASES, Args::new().uuids(&keys.past_leases)).await?;
            self.loaded.past_leases.extend(keys.past_leases.iter().map(|id| (*id, None)));
            for row in &found {
                let lease = PastLease::read(&mut row.cells())?;
                self.loaded.past_leases.insert(lease.id, Some(lease));
            }
        }
        Ok(())
    }

    /// Reads rows of a key and a task; the tasks are locked later.
    fn pairs<K: Read>(&mut self, found: &[Row]) -> Result<Vec<(K, TaskId)>, Error> {
        let pairs: Vec<(K, TaskId)> = all(found, |row| Ok((row.take()?, row.take()?)))?;
        self.tasks.extend(pairs.iter().map(|(_, task)| *task));
        Ok(pairs)
    }

    fn saw_clock(&mut self, row: &mut Cells<'_>) -> Result<(), Error> {
        self.loaded.now = self.loaded.now.max(row.take()?);
        Ok(())
    }
}

fn context_view(row: &mut Cells<'_>) -> Result<ContextView, Error> {
    let (holder, active_worker) = (row.take()?, row.take()?);
    let (worker, ended_at): (Option<WorkerId>, Option<Ms>) = (row.take()?, row.take()?);
    let (session_id, conversation) = (row.take()?, row.take()?);
    Ok(ContextView { holder, active_worker, last_worker: worker.zip(ended_at), session_id, conversation })
}
