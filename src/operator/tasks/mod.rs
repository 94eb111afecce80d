//! The controller of LLMTasks. The spec of an object becomes commands, and the state in the database becomes its status.

mod deletion;
mod events;
mod leases;
mod orphans;
mod prompt;
mod status;
mod wakeups;
mod wanted;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bloom_core::command::{Operation, Rejection};
use bloom_core::namespace::qualified;
use bloom_core::op;
use bloom_core::task::{Status, TaskSpec, TaskState};
use bloom_core::task_limits::LimitChange;
use bloom_engine::Reconciler;
use bloom_store::TaskRow;
use futures_util::StreamExt;
use kube::core::{DeserializeGuard, ObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::{Api, Resource};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::crds::{LLMTask, TaskLease};
use crate::object::{Error, Identity, Only, is_of_other, operator_of};
use crate::watch::watch;
use crate::{Context, command};
use deletion::FINALIZER;
use status::{Problem, Shown};
use write::StatusWriter;

/// An object that the API server accepted and this program can't read must not stop the others.
type Readable = DeserializeGuard<LLMTask>;

/// How many objects are reconciled at a time.
const CONCURRENCY: u16 = 16;
/// How many objects with changed tasks can wait to be reconciled.
const WAKEUPS: usize = 1_024;
/// When a queued task is checked again, because the reason why it waits may have changed without a change of the task.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// When an object that shows the task of another object is checked again. A change of the task wakes only the task's own object, not others
/// with the same idempotency key.
const LOOK_AT_OTHERS: Duration = Duration::from_secs(10);
/// How long a free worker needs to take a task.
const MOMENT: Duration = Duration::from_secs(1);
/// How long after the creation of its task the watch has shown everything that was written to an object before.
const WATCH_SHOWS_AFTER: Duration = Duration::from_secs(5);
/// The wait after an error of the database or of the API server.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// What the reconciler of one watch needs.
pub(crate) struct Tasks {
    context: Arc<Context>,
    reconciler: Arc<Reconciler>,
    /// The objects, as the watch last showed them.
    objects: Store<Readable>,
    leases: Store<TaskLease>,
    statuses: StatusWriter,
}

/// Runs the controller of one namespace, or of all.
pub(crate) async fn control(context: Arc<Context>, namespace: Option<String>, reconciler: Arc<Reconciler>) {
    let (reader, writer) = reflector::store();
    let objects = context.objects::<Readable>(namespace.as_deref());
    let watched =
        watch(objects, watcher::Config::default(), "LLMTasks", context.health.clone()).modify(forget_what_is_stored).reflect(writer);
    let (leases, leases_writer) = reflector::store();
    let watched_leases =
        watch(context.objects::<TaskLease>(namespace.as_deref()), watcher::Config::default(), "TaskLeases", context.health.clone())
            .modify(|lease| lease.metadata.managed_fields = None)
            .reflect(leases_writer)
            .touched_objects();
    let tasks = Arc::new(Tasks {
        context: context.clone(),
        reconciler,
        objects: reader.clone(),
        leases,
        statuses: StatusWriter::new(context.clone()),
    });
    let (one, ones) = mpsc::channel(WAKEUPS);
    let (all, alls) = mpsc::channel(1);
    let wakeups = wakeups::follow(context.clone(), namespace.clone(), one, all);
    let controller = Controller::for_stream(watched.applied_objects(), reader.clone())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .owns_stream(watched_leases)
        .reconcile_on(ReceiverStream::new(ones))
        .reconcile_all_on(ReceiverStream::new(alls))
        .run(reconcile, |_, error, _| retry(error), tasks.clone())
        .for_each(|_| std::future::ready(()));
    tokio::select! {
        () = wakeups => {}
        () = controller => {}
        () = orphans::sweep(tasks, namespace) => {}
    }
}

/// Saves memory in the watch: drops the prompt if it is in the database, and the record of who wrote which field.
fn forget_what_is_stored(object: &mut Readable) {
    let Ok(task) = &mut object.0 else { return };
    task.metadata.managed_fields = None;
    if task.status.as_ref().is_some_and(|status| status.task_id.is_some()) {
        task.spec.prompt = None;
    }
}

fn retry(error: &Error) -> Action {
    tracing::debug!(%error, "an LLMTask could not be reconciled");
    Action::requeue(RETRY_AFTER)
}

async fn reconcile(object: Arc<Readable>, tasks: Arc<Tasks>) -> Result<Action, Error> {
    tasks.reconciler.progress().add(1);
    tasks.reconciler.observe(tasks.reconcile(&object)).await
}

impl Tasks {
    async fn reconcile(&self, object: &Readable) -> Result<Action, Error> {
        let metadata = object.meta();
        if is_of_other(&self.context, metadata) {
            return Ok(Action::await_change());
        }
        let identity = Identity::of(metadata)?;
        if metadata.deletion_timestamp.is_some() {
            let ttl_sec = object.0.as_ref().ok().and_then(|task| task.spec.ttl_seconds_after_finished);
            return self.finalize(metadata, &identity, ttl_sec).await;
        }
        let task = match &object.0 {
            Ok(task) => task,
            Err(invalid) => {
                return match FINALIZER.add::<LLMTask>(&self.context, metadata).await? {
                    true => self.statuses.report_unreadable(metadata, &identity, &invalid.error).await,
                    false => Ok(Action::await_change()),
                };
            }
        };
        let had_task = task.status.as_ref().is_some_and(|status| status.task_id.is_some());
        let row = match self.task_of(task, &identity).await? {
            Some(row) => row,
            // The object had a task, but has no annotation: somebody removed the annotation of another server.
            None if had_task && operator_of(metadata).is_none() => return Ok(Action::await_change()),
            None if had_task => return self.without_task(task, &identity).await,
            None if !FINALIZER.add::<LLMTask>(&self.context, metadata).await? => return Ok(Action::await_change()),
            None => match self.create(task, &identity).await? {
                Ok(row) => row,
                Err(problem) => return self.wait_for(task, &identity, problem).await,
            },
        };
        let unmarked_for = self.keep_marked(metadata, &identity, &row).await?;
        let row = self.steer(task, &identity, row).await?;
        let row = self.keep_lease_object(task, &identity, row).await?;
        let shown = self.look(&identity, &row).await?;
        let before = self.statuses.shown(task, &identity);
        let status = status::of(task, &before, &row, &shown);
        if before.phase.is_none() && self.is_about_to_run(&row.state, &shown) {
            return Ok(Action::requeue(MOMENT));
        }
        let written = self.statuses.write(task, &identity, status.clone()).await?.or(unmarked_for);
        let news = [
            events::of_change(&before, &status, &row.state),
            events::of_waiting(shown.waiting.as_ref(), &row.state, self.context.engine.clock.now()),
        ];
        for event in news.into_iter().flatten() {
            self.context.tell(&task.object_ref(&()), leases::reference(&identity, &row.state), event).await;
        }
        self.next(task, &identity, &row, written).await
    }

    /// Restores the finalizer and the annotation if somebody removed them, as `kubectl replace` does. For a new task, the watch may not
    /// show them yet; then returns when to look again.
    async fn keep_marked(&self, metadata: &ObjectMeta, identity: &Identity, row: &TaskRow) -> Result<Option<Duration>, Error> {
        if !is_own(&row.spec, identity) || (FINALIZER.is_on(metadata) && operator_of(metadata).is_some()) {
            return Ok(None);
        }
        let age = u64::try_from(self.context.engine.clock.now() - row.state.created_at()).unwrap_or(0);
        let left = WATCH_SHOWS_AFTER.saturating_sub(Duration::from_millis(age));
        if left.is_zero() {
            FINALIZER.add::<LLMTask>(&self.context, metadata).await?;
        }
        Ok(Some(left).filter(|left| !left.is_zero()))
    }

    /// The task of the object: its own, or that of an earlier object with the same idempotency key.
    async fn task_of(&self, task: &LLMTask, identity: &Identity) -> Result<Option<TaskRow>, Error> {
        if let Some(own) = self.context.store.task_of_object(identity.uid).await? {
            return Ok(Some(own));
        }
        let id = task.status.as_ref().and_then(|status| status.task_id.as_ref()?.parse().ok());
        let (Some(id), Some(key)) = (id, &task.spec.idempotency_key) else { return Ok(None) };
        // Somebody may have written any id into the status, so only a task with this key and namespace is shown.
        let key = qualified(&identity.namespace, key);
        Ok(self.context.store.task(id).await?.filter(|row| row.spec.idempotency_key.as_ref() == Some(&key)))
    }

    /// Handles an object whose task was removed from the database.
    async fn without_task(&self, task: &LLMTask, identity: &Identity) -> Result<Action, Error> {
        let before = self.statuses.shown(task, identity);
        if !status::has_ended(&before) {
            self.statuses.write(task, identity, status::removed(task, before)).await?;
        }
        Ok(Action::await_change())
    }

    /// Shows that no task can be created yet, and tries again later.
    async fn wait_for(&self, task: &LLMTask, identity: &Identity, problem: Problem) -> Result<Action, Error> {
        let again = problem.look_again;
        let before = self.statuses.shown(task, identity);
        self.statuses.write(task, identity, status::pending(task, &before, problem)).await?;
        Ok(Action::requeue(again))
    }

    /// Whether a worker is free for a new task. That a task was queued for a moment is not worth a write.
    fn is_about_to_run(&self, state: &TaskState, shown: &Shown) -> bool {
        let age = self.context.engine.clock.now() - state.created_at();
        state.is_ready() && shown.waiting.is_none() && u128::try_from(age).is_ok_and(|age| age < MOMENT.as_millis())
    }

    /// Reads what the status shows besides the rows of the task.
    async fn look(&self, identity: &Identity, row: &TaskRow) -> Result<Shown, Error> {
        let state = &row.state;
        let last = state.last_lease.as_ref().filter(|_| state.lease.is_none());
        let last_lease = match last {
            Some(last) => self.context.store.past_leases(&[last.id]).await?.pop(),
            None => None,
        };
        let result = match state.status {
            Status::Completed => self.context.store.result_preview(state.id, status::PREVIEW_BYTES).await?,
            _ => None,
        };
        let waiting = self.context.engine.replica.waiting(state, self.context.engine.clock.now());
        let own_lease = state.lease.as_ref().filter(|_| is_own(&row.spec, identity));
        let lease_name = own_lease.map(|lease| leases::name(identity, lease.id));
        Ok(Shown { last_lease, result, waiting, lease_name, public_url: self.context.options.public_url.clone() })
    }

    /// Applies changes of the object to the task.
    async fn steer(&self, task: &LLMTask, identity: &Identity, row: TaskRow) -> Result<TaskRow, Error> {
        let TaskRow { spec, mut state } = row;
        // A task that belongs to another object with the same idempotency key is only shown, not changed.
        if !is_own(&spec, identity) {
            return Ok(TaskRow { spec, state });
        }
        if task.spec.cancel && !state.status.is_final() && !state.cancel_requested {
            state = self.submit_or(identity, op::Cancel { task: state.id }, state).await?;
        }
        let suspend = task.spec.suspend;
        if suspend != state.suspend && !state.status.is_final() {
            state = self.submit_or(identity, op::Suspend { task: state.id, suspend }, state).await?;
        }
        let priority = task.spec.priority.filter(|priority| *priority != state.priority && state.status == Status::Queued);
        if priority.is_some() {
            let edit = op::Edit {
                task: state.id,
                priority,
                not_before: None,
                limits: LimitChange::default(),
                labels: std::collections::BTreeMap::new(),
                first_labels: spec.labels.clone(),
            };
            state = self.submit_or(identity, edit, state).await?;
        }
        Ok(TaskRow { spec, state })
    }

    /// Executes a command and returns the new state. If the command is rejected because the task has changed, returns `known`; the change
    /// causes another reconcile of the object.
    async fn submit_or<O>(&self, identity: &Identity, op: O, known: TaskState) -> Result<TaskState, Error>
    where
        O: Operation<Reply = TaskState> + Into<bloom_core::command::Op>,
    {
        match self.submit(identity, op).await? {
            Ok(state) => Ok(state),
            Err(_) => Ok(known),
        }
    }

    /// Executes a command in the name of the object's namespace.
    async fn submit<O>(&self, identity: &Identity, op: O) -> Result<Result<O::Reply, Rejection>, Error>
    where
        O: Operation + Into<bloom_core::command::Op>,
    {
        match self.context.engine.writers.submit(command(&identity.namespace, op)).await {
            Ok(reply) => Ok(Ok(reply)),
            Err(bloom_engine::Error::Rejected(rejection)) => Ok(Err(rejection)),
            Err(error) => Err(Error::Engine(error)),
        }
    }

    /// When to reconcile the object again, unless something changes before. Removes the object when its TTL is over.
    async fn next(&self, task: &LLMTask, identity: &Identity, row: &TaskRow, written: Option<Duration>) -> Result<Action, Error> {
        let state = &row.state;
        if let Some(later) = written {
            return Ok(Action::requeue(later));
        }
        match self.remains(task.spec.ttl_seconds_after_finished, state) {
            Some(Duration::ZERO) => {
                let api: Api<LLMTask> = Api::namespaced(self.context.client.clone(), &identity.namespace);
                self.context.delete("LLMTask", &api, &task.metadata, Only::ThisObject).await?;
                Ok(Action::await_change())
            }
            Some(remains) => Ok(Action::requeue(remains)),
            None if !is_own(&row.spec, identity) && !state.status.is_final() => Ok(Action::requeue(LOOK_AT_OTHERS)),
            None if state.status == Status::Queued => Ok(Action::requeue(LOOK_AGAIN)),
            None => Ok(Action::await_change()),
        }
    }

    /// How much longer the object of a finished task is kept; `None` if the task has not finished, or there is no TTL.
    fn remains(&self, ttl_sec: Option<i64>, state: &TaskState) -> Option<Duration> {
        let end = state.finished_at.filter(|_| state.status.is_final())?.saturating_add(ttl_sec?.saturating_mul(1000));
        Some(Duration::from_millis(u64::try_from(end - self.context.engine.clock.now()).unwrap_or(0)))
    }
}

fn is_own(spec: &TaskSpec, identity: &Identity) -> bool {
    spec.object.as_ref().is_some_and(|object| object.uid == identity.uid)
}
