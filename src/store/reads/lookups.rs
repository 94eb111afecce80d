//! Reads of single rows and short lists, outside of any batch.

use std::sync::Arc;

use crate::error::Error;
use crate::reads::lists::{LeaseRow, TaskRow};
use crate::reads::page::fitting;
use crate::replicas::queue::QUEUES;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::statement;
use crate::sql::table::ReadRow;
use crate::sql::{record_rows, task_rows};
use crate::{Store, all, first};
use bloom_core::Ms;
use bloom_core::agent_queue::AgentQueue;
use bloom_core::api_key::{ApiKey, Owner};
use bloom_core::event::TaskEvent;
use bloom_core::ids::{LeaseId, TaskId, WorkerId};
use bloom_core::project::{Project, ProjectId, ProjectNode};
use bloom_core::run_result::RunResult;
use bloom_core::task::{LeaseStatus, TaskSpec, TaskState};
use bloom_core::usage::Usage;
use bloom_core::worker::{Worker, WorkerStatus};
use uuid::Uuid;

statement!(
    TASK,
    |_d| "SELECT {}, {} FROM tasks t JOIN task_state s ON s.id = t.id WHERE t.id = $1",
    task_rows::SPEC.names("t."),
    task_rows::STATE.names("s.")
);
statement!(pub(crate) STATES, |d| "SELECT {} FROM task_state WHERE id {}", task_rows::STATE.names(""), d.any(Type::Uuid, 1));
statement!(pub(crate) SPECS, |d| "SELECT {} FROM tasks WHERE id {}", task_rows::SPEC.names(""), d.any(Type::Uuid, 1));
// Reads only the part of a large output that is shown, not the whole row.
statement!(
    RESULT_PREVIEW,
    "SELECT substr(coalesce(output, preview), 1, CAST($2 AS INTEGER)), coalesce(octet_length(output), CAST(object_bytes AS INTEGER)) \
    FROM results WHERE task_id = $1 AND (output IS NOT NULL OR object_url IS NOT NULL) ORDER BY artifact_id DESC LIMIT 1"
);
statement!(
    UNFINISHED_OF_OBJECTS,
    |d| "SELECT id FROM task_state {} WHERE namespace IS NOT NULL AND status IN ('queued', 'leased', 'running') AND id > $1 \
    ORDER BY id LIMIT $2",
    d.by_index("task_state_unfinished_of_objects")
);
statement!(
    TASK_OF_OBJECT,
    |_d| "SELECT {}, {} FROM tasks t JOIN task_state s ON s.id = t.id WHERE t.object_uid = $1",
    task_rows::SPEC.names("t."),
    task_rows::STATE.names("s.")
);
statement!(ID_OF_OBJECT, "SELECT id FROM tasks WHERE object_uid = $1");
statement!(
    WORKER_KEYS,
    "SELECT id, registered_at, CASE WHEN lost THEN 'offline' ELSE status END, \
        octet_length(url) + octet_length(capabilities) + octet_length(ip_addrs) + octet_length(os_info) FROM workers WHERE removed_at IS NULL"
);
statement!(
    pub(crate) WORKERS_BY_ID,
    |d| "SELECT {}, s.last_seen FROM workers w JOIN worker_seen s ON s.worker_id = w.id WHERE w.id {} AND w.removed_at IS NULL",
    record_rows::WORKER.names("w."),
    d.any(Type::Text, 1)
);
statement!(
    pub(crate) WORKERS_PAGE,
    |_d| "SELECT {}, s.last_seen FROM workers w JOIN worker_seen s ON s.worker_id = w.id \
    WHERE w.id > $1 AND w.removed_at IS NULL ORDER BY w.id LIMIT $2",
    record_rows::WORKER.names("w.")
);
statement!(
    WORKER,
    |_d| "SELECT {}, s.last_seen FROM workers w JOIN worker_seen s ON s.worker_id = w.id WHERE w.id = $1 AND w.removed_at IS NULL",
    record_rows::WORKER.names("w.")
);
statement!(HELD_BY, |_d| "SELECT {} FROM task_state WHERE slot IS NOT NULL AND worker_id = $1", task_rows::STATE.names(""));
statement!(
    NEWEST_RESULT,
    |_d| "SELECT {} FROM results WHERE task_id = $1 ORDER BY artifact_id DESC LIMIT 1",
    record_rows::RESULT.names("")
);
statement!(pub(crate) RESULT_OF_LEASE, |_d| "SELECT {} FROM results WHERE lease_id = $1 ORDER BY id LIMIT 1", record_rows::RESULT.names(""));
statement!(EVENT_SIZES, "SELECT number, octet_length(data) FROM task_events WHERE task_id = $1 AND number > $2 ORDER BY number LIMIT $3");
statement!(
    EVENTS,
    |_d| "SELECT {} FROM task_events WHERE task_id = $1 AND number > $2 AND number <= $3 ORDER BY number",
    record_rows::EVENT.names("")
);
statement!(pub(crate) API_KEYS, |_d| "SELECT {} FROM api_keys ORDER BY name", record_rows::API_KEY.names(""));
statement!(pub(crate) PROJECTS, |_d| "SELECT {} FROM projects ORDER BY id DESC", record_rows::PROJECT.names(""));
statement!(PROJECT, |_d| "SELECT {} FROM projects WHERE id = $1", record_rows::PROJECT.names(""));
statement!(
    PROJECT_WITH_NODES,
    |_d| "SELECT {}, CASE WHEN n.node_id IS NULL THEN 0 ELSE 1 END, {} FROM projects p LEFT JOIN project_nodes n ON n.project_id = p.id \
    WHERE p.id = $1 ORDER BY n.node_id",
    record_rows::PROJECT.names("p."),
    record_rows::PROJECT_NODE.names("n.")
);
statement!(OF_KEY, |d| "SELECT id FROM tasks WHERE id {} AND owner = $2", d.any(Type::Uuid, 1));
statement!(OF_TEAM, |d| "SELECT id FROM tasks WHERE id {} AND team = $2", d.any(Type::Uuid, 1));
statement!(pub(crate) SETTINGS, "SELECT key, value FROM settings ORDER BY key");

/// What a list of workers is sorted and filtered by.
#[derive(Clone, Debug)]
pub struct WorkerKey {
    /// The name of the worker.
    pub id: WorkerId,
    /// When it was registered.
    pub registered_at: Ms,
    /// The status as the API shows it.
    pub shown_status: WorkerStatus,
    /// The size of its texts.
    pub bytes: i64,
}

/// The beginning of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultPreview {
    /// The first characters of the output.
    pub text: String,
    /// The size of the whole result.
    pub bytes: i64,
}

impl Store {
    /// The task with this id; `None` if it does not exist.
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskRow>, Error> {
        let found = self.pool().fetch(&TASK, Args::new().uuid(id)).await?;
        first(&found, |row| Ok(TaskRow { spec: ReadRow::read(row)?, state: ReadRow::read(row)? }))
    }

    /// The beginning of the task's newest result that has an output.
    pub async fn result_preview(&self, task: TaskId, chars: usize) -> Result<Option<ResultPreview>, Error> {
        let args = Args::new().uuid(task).int(i64::try_from(chars).unwrap_or(i64::MAX));
        first(&self.pool().fetch(&RESULT_PREVIEW, args).await?, |row| {
            Ok(ResultPreview { text: row.take()?, bytes: i64::from(row.take::<i32>()?) })
        })
    }

    /// The unfinished tasks of Kubernetes objects after this id, by id.
    pub async fn unfinished_of_objects(&self, after: TaskId, limit: i64) -> Result<Vec<TaskId>, Error> {
        all(&self.pool().fetch(&UNFINISHED_OF_OBJECTS, Args::new().uuid(after).int(limit)).await?, |row| row.take())
    }

    /// The task that was created for the Kubernetes object with this uid.
    pub async fn task_of_object(&self, uid: Uuid) -> Result<Option<TaskRow>, Error> {
        let found = self.pool().fetch(&TASK_OF_OBJECT, Args::new().uuid(uid)).await?;
        first(&found, |row| Ok(TaskRow { spec: ReadRow::read(row)?, state: ReadRow::read(row)? }))
    }

    /// The id of the task that was created for the Kubernetes object with this uid.
    pub async fn task_id_of_object(&self, uid: Uuid) -> Result<Option<TaskId>, Error> {
        first(&self.pool().fetch(&ID_OF_OBJECT, Args::new().uuid(uid)).await?, |row| row.take())
    }

    /// The states of the tasks that exist, in any order.
    pub async fn task_states(&self, ids: &[TaskId]) -> Result<Vec<TaskState>, Error> {
        all(&self.pool().fetch(&STATES, Args::new().uuids(ids)).await?, ReadRow::read)
    }

    /// The specs of the tasks that exist, in any order.
    pub async fn specs(&self, ids: &[TaskId]) -> Result<Vec<Arc<TaskSpec>>, Error> {
        all(&self.pool().fetch(&SPECS, Args::new().uuids(ids)).await?, ReadRow::read)
    }

    /// All workers, in any order.
    pub async fn worker_keys(&self) -> Result<Vec<WorkerKey>, Error> {
        all(&self.pool().fetch(&WORKER_KEYS, Args::new()).await?, |row| {
            Ok(WorkerKey { id: row.take()?, registered_at: row.take()?, shown_status: row.take()?, bytes: i64::from(row.take::<i32>()?) })
        })
    }

    /// The workers with these ids that exist, in any order.
    pub async fn workers(&self, ids: &[WorkerId]) -> Result<Vec<Worker>, Error> {
        all(&self.pool().fetch(&WORKERS_BY_ID, Args::new().texts(ids)).await?, ReadRow::read)
    }

    /// The worker of this name; `None` if it is not registered.
    pub async fn worker(&self, id: &str) -> Result<Option<Worker>, Error> {
        first(&self.pool().fetch(&WORKER, Args::new().text(id)).await?, ReadRow::read)
    }

    /// The worker's active leases, newest first.
    pub async fn leases_of(&self, worker: &str) -> Result<Vec<LeaseRow>, Error> {
        let tasks = all(&self.pool().fetch(&HELD_BY, Args::new().text(worker)).await?, TaskState::read)?;
        let mut leases: Vec<_> = tasks.iter().filter_map(LeaseRow::of_active).collect();
        leases.sort_unstable_by_key(|lease| std::cmp::Reverse(lease.id));
        Ok(leases)
    }

    /// The newest result that a run of the task reported.
    pub async fn newest_result(&self, task: TaskId) -> Result<Option<RunResult>, Error> {
        first(&self.pool().fetch(&NEWEST_RESULT, Args::new().uuid(task)).await?, ReadRow::read)
    }

    /// The result that the run of this lease reported.
    pub async fn result_of_lease(&self, lease: LeaseId) -> Result<Option<RunResult>, Error> {
        first(&self.pool().fetch(&RESULT_OF_LEASE, Args::new().uuid(lease)).await?, ReadRow::read)
    }

    /// The task's events after number `after`, oldest first. At most `limit`, and fewer if they would exceed `bytes`, but at least one if
    /// there is any.
    pub async fn events(&self, task: TaskId, after: i64, limit: i64, bytes: i64) -> Result<Vec<TaskEvent>, Error> {
        let sizes = self.event_sizes(task, after, limit, bytes).await?;
        let Some((last, _)) = sizes.last() else { return Ok(Vec::new()) };
        self.events_up_to(task, after, *last).await
    }

    /// Like [`events`](Self::events), but only the numbers, each with the size of its event in bytes.
    pub async fn event_sizes(&self, task: TaskId, after: i64, limit: i64, bytes: i64) -> Result<Vec<(i64, i64)>, Error> {
        let found = self.pool().fetch(&EVENT_SIZES, Args::new().uuid(task).int(after).int(limit)).await?;
        let sizes: Vec<(i64, i32)> = all(&found, |row| Ok((row.take()?, row.take()?)))?;
        let sizes = sizes.into_iter().map(|(number, size)| (number, i64::from(size)));
        Ok(fitting(sizes.map(|sized| (sized, sized.1)), bytes).0)
    }

    /// The task's events after number `after`, up to number `last`, oldest first.
    pub async fn events_up_to(&self, task: TaskId, after: i64, last: i64) -> Result<Vec<TaskEvent>, Error> {
        all(&self.pool().fetch(&EVENTS, Args::new().uuid(task).int(after).int(last)).await?, ReadRow::read)
    }

    /// The named keys of the API, by name.
    pub async fn api_keys(&self) -> Result<Vec<ApiKey>, Error> {
        all(&self.pool().fetch(&API_KEYS, Args::new()).await?, ReadRow::read)
    }

    /// The projects, newest first.
    pub async fn projects(&self) -> Result<Vec<Project>, Error> {
        all(&self.pool().fetch(&PROJECTS, Args::new()).await?, ReadRow::read)
    }

    /// The project with this id; `None` if it does not exist.
    pub async fn project(&self, id: ProjectId) -> Result<Option<Project>, Error> {
        first(&self.pool().fetch(&PROJECT, Args::new().uuid(id)).await?, ReadRow::read)
    }

    /// A project and its clones, sorted by the names of the workers. One statement reads both, so that they match.
    pub async fn project_with_nodes(&self, id: ProjectId) -> Result<Option<(Project, Vec<ProjectNode>)>, Error> {
        let found = self.pool().fetch(&PROJECT_WITH_NODES, Args::new().uuid(id)).await?;
        let rows: Vec<(Project, Option<ProjectNode>)> = all(&found, |row| {
            let project = Project::read(row)?;
            let has_node: i32 = row.take()?;
            Ok((project, if has_node == 1 { Some(ProjectNode::read(row)?) } else { None }))
        })?;
        let (projects, nodes): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        Ok(projects.into_iter().next().map(|project| (project, nodes.into_iter().flatten().collect())))
    }

    /// The ids of these tasks that belong to the owner.
    pub async fn owned(&self, ids: &[TaskId], owner: &Owner) -> Result<Vec<TaskId>, Error> {
        let (statement, name) = match owner {
            Owner::Key(key) => (&OF_KEY, key),
            Owner::Team(team) => (&OF_TEAM, team),
        };
        all(&self.pool().fetch(statement, Args::new().uuids(ids).text(name)).await?, |row| row.take())
    }

    /// The settings of queues, by agent. The row for all queues comes first.
    pub async fn queues(&self) -> Result<Vec<AgentQueue>, Error> {
        all(&self.pool().fetch(&QUEUES, Args::new()).await?, ReadRow::read)
    }

    /// The settings that are stored, by key.
    pub async fn settings(&self) -> Result<Vec<(String, String)>, Error> {
        all(&self.pool().fetch(&SETTINGS, Args::new()).await?, |row| Ok((row.take()?, row.take()?)))
    }
}

impl LeaseRow {
    /// The tokens and the cost of the run; `None` if they were not reported.
    pub fn usage(&self) -> Option<Usage> {
        Some(Usage {
            input_tokens: self.input_tokens?,
            output_tokens: self.output_tokens?,
            cost_usd: self.cost_usd?,
            cost_estimated: self.cost_estimated,
        })
    }

    pub(crate) fn of_active(task: &TaskState) -> Option<Self> {
        let lease = task.lease.as_ref()?;
        Some(Self {
            id: lease.id,
            task_id: task.id,
            worker_id: lease.worker_id.clone(),
            started_at: lease.started_at,
            expires_at: lease.expires_at,
            ttl_ms: lease.ttl_ms,
            status: LeaseStatus::Active,
            last_heartbeat: lease.last_heartbeat,
            context_id: task.context_id.clone(),
            ended_at: None,
            completed: false,
            reason: None,
            message: None,
            model: None,
            input_tokens: None,
            output_tokens: None,
            cost_usd: None,
            cost_estimated: false,
        })
    }
}
