//! Completions: how a run ended, as reported by its worker.

use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Ref, Schema};

use super::git_names::{CommitId, GitRef};
use super::values::{Id, Int, List, MAX_SAFE, MAX_USD, Moment, Name, ShortName, Text, Usd, WorkerName};
use super::wire::{Members, Problems, Wire, body};
use bloom_core::command::{self, Holder};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::limits;
use bloom_core::task::{Outcome, Reason};
use bloom_core::usage;

/// The most completions in one call.
pub const MAX_COMPLETIONS: usize = 500;
const ARTIFACT_TYPE: &str = "LLM_RESULT";

type Duration = Int<0, { limits::DURATION_MS }>;
type Tokens = Int<0, { limits::TOKENS }>;

body! {
    /// Measurements of a run.
    pub struct NewMetrics {
        /// How long the run took, in milliseconds.
        duration_ms: Duration,
        /// Number of tokens that the run used in all.
        tokens_used: Option<Int<0, { limits::TOKENS_USED }>>,
    }

    /// Tokens and US dollars that a run used.
    pub struct NewUsage {
        /// Number of tokens that the model read.
        input_tokens: Tokens = Int(0),
        /// Number of tokens that the model wrote.
        output_tokens: Tokens = Int(0),
        /// US dollars.
        cost_usd: Usd = Usd(0.0),
        /// Whether the US dollars are estimated, because the run ended without a total.
        cost_estimated: bool = false,
    }

    /// How a run ended.
    pub struct Completion {
        /// Whether the run succeeded.
        status: Outcome,
        /// What the run answered: up to 16 MiB (`MAX_OUTPUT_BYTES`).
        output: Option<Text>,
        /// What went wrong, for people.
        error_message: Option<Text<0, { limits::ERROR_MESSAGE_CHARS }>>,
        /// Measurements of the run.
        metrics: NewMetrics,
        /// The type of the stored artifact.
        artifact_type: ShortName = Text(ARTIFACT_TYPE.into()),
        /// Tags of the stored artifact. Default: none.
        artifact_tags: List<Text<0, { limits::ARTIFACT_TAG_CHARS }>, 0, { limits::ARTIFACT_TAGS }> = List(Vec::new()),
        /// What went wrong without making the run fail, for people: a tool server that did not start, for example. Default: none.
        warnings: List<Text<1, { limits::WARNING_CHARS }>, 0, { limits::WARNINGS }> = List(Vec::new()),
        /// The fencing token: the call is refused if another lease holds the task. A repeated call returns what was stored first.
        lease_id: Option<Id>,
        /// The worker that ran the task; an alternative to `lease_id`.
        worker_id: Option<WorkerName>,
        /// Why the run failed.
        reason: Option<Reason>,
        /// Whether the task goes back to the queue after an error, as long as attempts remain and its budget is not spent.
        retryable: bool = false,
        /// The task is not retried before this time, in milliseconds since the epoch. Only with `retryable`. Default: after a delay that
        /// the server chooses.
        retry_at: Option<Moment>,
        /// Whether the attempt is given back: it then does not count towards `max_attempts`.
        keep_attempt: bool = false,
        /// Tokens and US dollars that the run used. Default: unknown.
        usage: Option<NewUsage>,
        /// The conversation of the agent, which later tasks of the context continue.
        session_id: Option<Name>,
        /// The model that the run used.
        model: Option<ShortName>,
        /// The `seq` of the run's last event. Streams of the task's events wait up to half a minute for it before they end. Default: they
        /// do not wait.
        last_event_seq: Option<Int<0, MAX_SAFE>>,
        /// The branch of the task's project that has the commits of the run. Default: none.
        branch: Option<GitRef>,
        /// The last commit on this branch: its id, of 40 or 64 lower-case hex digits. Default: none.
        commit: Option<CommitId>,
    }

    /// Completions of many runs.
    pub struct NewCompletions {
        /// Each is the body of a single completion, plus `task_id` and `lease_id`. Its errors are reported in its own result.
        completions: List<WorkerCompletion, 0, MAX_COMPLETIONS>,
    }
}

/// One of many completions.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerCompletion {
    /// As it was sent; the result repeats it.
    pub task_id: Option<String>,
    /// The task, its lease and how the run ended, or what is wrong with them. The other completions of the call count in either case.
    pub completion: Result<(TaskId, LeaseId, Completion), Problems>,
}

impl WorkerCompletion {
    /// A completion to send. It names this lease, whichever one `completion` names.
    pub fn new(task: TaskId, lease: LeaseId, completion: Completion) -> Self {
        Self { task_id: None, completion: Ok((task, lease, Completion { lease_id: Some(Id(lease)), ..completion })) }
    }
}

impl Serialize for WorkerCompletion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Sent<'a> {
            task_id: TaskId,
            #[serde(flatten)]
            completion: &'a Completion,
        }
        let Ok((task, _, completion)) = &self.completion else { return Err(S::Error::custom("it could not be read")) };
        Sent { task_id: *task, completion }.serialize(serializer)
    }
}

impl Wire for WorkerCompletion {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let members = Members::of(raw)?;
        let task_id = members.get("task_id").and_then(|id| serde_json::from_str(id.get()).ok());
        let mut problems = Problems::new();
        let task = members.field::<Id>("task_id", None, &mut problems);
        let lease = members.field::<Id>("lease_id", None, &mut problems);
        let completion = match (task, lease, Completion::read(raw)) {
            (Some(task), Some(lease), Ok(completion)) => Ok((task.0, lease.0, completion)),
            (_, _, Ok(_)) => Err(problems),
            (_, _, Err(more)) => Err(problems.into_iter().chain(more).collect()),
        };
        Ok(Self { task_id, completion })
    }

    fn describe() -> Schema {
        let mut wanted = Completion::describe();
        if let Schema::Object(object) = &mut wanted {
            let id = |doc: &str| {
                let Schema::Object(mut id) = Id::describe() else { return Id::refer() };
                id.description = Some(doc.to_owned());
                Schema::Object(id).into()
            };
            object.description = Some("How one of many runs ended.".into());
            object.properties.insert("task_id".into(), id("The task that ended."));
            object.properties.insert("lease_id".into(), id("The lease under which it ran, the fencing token."));
            object.required.extend(["task_id".to_owned(), "lease_id".to_owned()]);
        }
        wanted
    }

    fn refer() -> RefOr<Schema> {
        Ref::from_schema_name("WorkerCompletion").into()
    }

    fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
        found.push(("WorkerCompletion".to_owned(), Self::describe().into()));
        Completion::components(found);
    }
}

/// Clamps the numbers to the limits of the API, so that a completion is not refused because of them.
impl From<usage::Usage> for NewUsage {
    fn from(usage: usage::Usage) -> Self {
        let usage::Usage { input_tokens, output_tokens, cost_usd, cost_estimated } = usage;
        Self {
            input_tokens: Int::nearest(input_tokens),
            output_tokens: Int::nearest(output_tokens),
            cost_usd: Usd(cost_usd.clamp(0.0, MAX_USD)),
            cost_estimated,
        }
    }
}

impl From<&NewUsage> for usage::Usage {
    fn from(usage: &NewUsage) -> Self {
        Self {
            input_tokens: usage.input_tokens.0,
            output_tokens: usage.output_tokens.0,
            cost_usd: usage.cost_usd.0,
            cost_estimated: usage.cost_estimated,
        }
    }
}

impl Completion {
    /// Only the required fields are set. Numbers are clamped to the limits of the API.
    pub fn new(status: Outcome, duration_ms: i64, tokens_used: Option<i64>) -> Self {
        Self {
            status,
            output: None,
            error_message: None,
            metrics: NewMetrics { duration_ms: Int::nearest(duration_ms), tokens_used: tokens_used.map(Int::nearest) },
            artifact_type: ARTIFACT_TYPE.into(),
            artifact_tags: List(Vec::new()),
            warnings: List(Vec::new()),
            lease_id: None,
            worker_id: None,
            reason: None,
            retryable: false,
            retry_at: None,
            keep_attempt: false,
            usage: None,
            session_id: None,
            model: None,
            last_event_seq: None,
            branch: None,
            commit: None,
        }
    }

    /// The command that completes the task. `holder` is who ends the run, see [`holder`](Self::holder).
    pub fn into_command(self, task: TaskId, holder: Holder) -> command::Completion {
        command::Completion {
            task,
            holder,
            status: self.status,
            output: self.output.map(|text| text.0),
            error_message: self.error_message.map(|text| text.0),
            duration_ms: self.metrics.duration_ms.0,
            tokens_used: self.metrics.tokens_used.map(|count| count.0),
            artifact_type: self.artifact_type.0,
            artifact_tags: self.artifact_tags.texts(),
            warnings: self.warnings.texts(),
            object: None,
            reason: self.reason,
            retryable: self.retryable,
            retry_at: self.retry_at.map(|at| at.0),
            keep_attempt: self.keep_attempt,
            usage: self.usage.as_ref().map(usage::Usage::from),
            session_id: self.session_id.map(|id| id.0),
            model: self.model.map(|model| model.0),
            last_event_seq: self.last_event_seq.map(|seq| seq.0),
            branch: self.branch.map(|branch| branch.0),
            commit: self.commit.map(|commit| commit.0),
        }
    }

    /// The lease and the worker that the completion names, each of which may be absent.
    pub fn holder(&self) -> Holder {
        Holder { lease: self.lease_id.map(|id| id.0), worker: self.worker_id.as_ref().map(|id| id.0.clone()) }
    }

    /// The size of the output; 0 if there is none.
    pub fn output_bytes(&self) -> usize {
        self.output.as_ref().map_or(0, |output| output.0.len())
    }
}

/// The size of a completion's body without its output, which has a limit of its own.
pub fn bytes_besides_output(body: &RawValue) -> usize {
    let output = Members::of(body).ok().and_then(|members| members.get("output")).map_or(0, |raw| raw.get().len());
    body.get().len() - output
}
