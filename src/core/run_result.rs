//! What a run produced.

use super::Ms;
use super::ids::{LeaseId, TaskId, WorkerId};
use super::task::Outcome;

/// The output of a run that is in the object store. The database keeps only its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// `minio://bucket/key` or `s3://bucket/key`.
    pub url: String,
    /// The size of the output.
    pub bytes: i64,
    /// The beginning of the output.
    pub preview: String,
}

/// What a run produced: the API's result and artifact, which are created together.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    pub id: uuid::Uuid,
    pub artifact_id: uuid::Uuid,
    pub task_id: TaskId,
    pub lease_id: LeaseId,
    pub worker_id: WorkerId,
    pub status: Outcome,
    /// What the run answered, unless it is in the object store.
    pub output: Option<String>,
    pub error_message: Option<String>,
    pub duration_ms: i64,
    pub tokens_used: Option<i64>,
    pub completed_at: Ms,
    pub artifact_type: String,
    pub artifact_tags: Vec<String>,
    /// What went wrong without making the run fail, for people.
    pub warnings: Vec<String>,
    pub object: Option<StoredObject>,
    /// The branch of the task's project that has the run's commits.
    pub branch: Option<String>,
    /// The last commit there after the run.
    pub commit_id: Option<String>,
}

impl RunResult {
    /// The size of the output, wherever it is.
    pub fn output_bytes(&self) -> usize {
        let of_object = || self.object.as_ref().map_or(0, |object| usize::try_from(object.bytes).unwrap_or_default());
        self.output.as_ref().map_or_else(of_object, String::len)
    }
}
