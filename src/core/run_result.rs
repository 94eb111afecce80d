//! The result of a run.

use super::Ms;
use super::ids::{LeaseId, TaskId, WorkerId};
use super::task::Outcome;

/// The output of a run that is in the object store. The database keeps only its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// `minio://bucket/key` or `s3://bucket/key`.
    pub url: String,
    /// The size of the output in bytes.
    pub bytes: i64,
    /// The beginning of the output.
    pub preview: String,
}

/// The result of a run: the API's result and artifact, which are created together.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// The id of the result.
    pub id: uuid::Uuid,
    /// The id of the artifact.
    pub artifact_id: uuid::Uuid,
    /// The task that was run.
    pub task_id: TaskId,
    /// The lease under which it was run.
    pub lease_id: LeaseId,
    /// The worker that ran it.
    pub worker_id: WorkerId,
    /// Whether the run succeeded.
    pub status: Outcome,
    /// What the run answered, unless it is in the object store.
    pub output: Option<String>,
    /// What went wrong, for people; `None` if the worker reported nothing.
    pub error_message: Option<String>,
    /// How long the run took, in ms, as the worker measured it.
    pub duration_ms: i64,
    /// How many tokens the run used in total; `None` if the worker did not report it.
    pub tokens_used: Option<i64>,
    /// When the completion was stored.
    pub completed_at: Ms,
    /// The artifact type of the output, as the worker named it.
    pub artifact_type: String,
    /// Tags of the artifact, as the worker named them.
    pub artifact_tags: Vec<String>,
    /// What went wrong without making the run fail, for people.
    pub warnings: Vec<String>,
    /// The output in the object store. `None`: the database has all of it, or there is none.
    pub object: Option<StoredObject>,
    /// The branch of the task's project that contains the run's commits.
    pub branch: Option<String>,
    /// The last commit on this branch after the run.
    pub commit_id: Option<String>,
}

impl RunResult {
    /// The size of the output, wherever it is stored.
    pub fn output_bytes(&self) -> usize {
        let of_object = || self.object.as_ref().map_or(0, |object| usize::try_from(object.bytes).unwrap_or_default());
        self.output.as_ref().map_or_else(of_object, String::len)
    }
}
