//! What a run produced: its result and its artifacts.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::words::AnyOutcome;
use bloom_core::Ms;
use bloom_core::file::File;
use bloom_core::run_result::RunResult;
use bloom_core::task::Outcome;

/// The stored output of a run, or a file.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Artifact<'a> {
    /// The id of the artifact.
    pub id: Uuid,
    /// The task; null for an upload, which any task may use.
    pub task_id: Option<Uuid>,
    /// Always null.
    pub job_id: Option<Uuid>,
    /// `INPUT`: a client uploaded it. `OUTPUT`, `GIT_DIFF`: the agent uploaded a file of a run, or what the run changed in its repository. For the
    /// output of a run, the type that the completion gave it.
    pub r#type: Cow<'a, str>,
    /// When it was stored.
    pub created_at: Ms,
    /// Always true.
    pub finalized: bool,
    /// Where the content is stored, if it is in an object store: `minio://bucket/key` or `s3://bucket/key`. `content` also has it in this
    /// case.
    pub url: Option<Cow<'a, str>>,
    /// Always empty.
    pub entity_refs: Cow<'a, [String]>,
    /// The tags that the completion gave it.
    pub tags: Cow<'a, [String]>,
    /// The output, if the run succeeded; null for files.
    pub content: Option<Cow<'a, str>>,
    /// The name of the file; null for the output of a run.
    pub name: Option<Cow<'a, str>>,
    /// The type of the file's content; null for the output of a run.
    pub content_type: Option<Cow<'a, str>>,
    /// The size of the file; null for the output of a run.
    pub bytes: Option<i64>,
    /// The SHA-256 digest of the file, in hexadecimal; null for the output of a run.
    pub sha256: Option<Cow<'a, str>>,
}

impl<'a> From<&'a File> for Artifact<'a> {
    fn from(file: &'a File) -> Self {
        Self {
            id: file.id,
            task_id: file.task_id,
            job_id: None,
            r#type: file.kind.as_str().into(),
            created_at: file.created_at,
            finalized: true,
            url: file.object_url.as_deref().map(Cow::from),
            entity_refs: Cow::Borrowed(&[]),
            tags: Cow::Borrowed(&[]),
            content: None,
            name: Some((&file.name).into()),
            content_type: Some((&file.content_type).into()),
            bytes: Some(file.bytes),
            sha256: Some((&file.sha256).into()),
        }
    }
}

impl<'a> From<&'a RunResult> for Artifact<'a> {
    fn from(result: &'a RunResult) -> Self {
        Self {
            id: result.artifact_id,
            task_id: Some(result.task_id),
            job_id: None,
            r#type: (&result.artifact_type).into(),
            created_at: result.completed_at,
            finalized: true,
            url: result.object.as_ref().filter(|_| result.status == Outcome::Success).map(|object| Cow::from(&object.url)),
            entity_refs: Cow::Borrowed(&[]),
            tags: (&result.artifact_tags).into(),
            content: result.output.as_deref().filter(|_| result.status == Outcome::Success).map(Cow::from),
            name: None,
            content_type: None,
            bytes: None,
            sha256: None,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct TaskResult<'a> {
    /// The id of the result.
    pub id: Uuid,
    /// The task.
    pub task_id: Uuid,
    /// The worker that ran the task.
    pub worker_id: Cow<'a, str>,
    /// The artifact that was stored with it.
    pub artifact_id: Uuid,
    /// Whether the run succeeded.
    pub status: AnyOutcome,
    /// What the run answered.
    pub output: Option<Cow<'a, str>>,
    /// What went wrong, for people.
    pub error_message: Option<Cow<'a, str>>,
    /// What went wrong without making the run fail, for people.
    pub warnings: Cow<'a, [String]>,
    /// Measurements of the run.
    pub metrics: Metrics,
    /// When it was stored.
    pub completed_at: Ms,
    /// The branch of the task's project that has the commits of the run; null = there is none.
    pub branch: Option<Cow<'a, str>>,
    /// The last commit on this branch; null = there is none.
    pub commit: Option<Cow<'a, str>>,
}

/// Measurements of a run.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ResultMetrics)]
pub struct Metrics {
    /// How long the run took, in milliseconds.
    pub duration_ms: i64,
    /// Number of tokens that the run used in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tokens_used: Option<i64>,
}

impl<'a> From<&'a RunResult> for TaskResult<'a> {
    fn from(result: &'a RunResult) -> Self {
        Self {
            id: result.id,
            task_id: result.task_id,
            worker_id: (&result.worker_id).into(),
            artifact_id: result.artifact_id,
            status: result.status.into(),
            output: result.output.as_deref().map(Cow::from),
            error_message: result.error_message.as_deref().map(Cow::from),
            warnings: (&result.warnings).into(),
            metrics: Metrics { duration_ms: result.duration_ms, tokens_used: result.tokens_used },
            completed_at: result.completed_at,
            branch: result.branch.as_deref().map(Cow::from),
            commit: result.commit_id.as_deref().map(Cow::from),
        }
    }
}
