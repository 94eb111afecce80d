//! What most tests create: a task, a worker, a completion.

use bloom_core::audit::Actor;
use bloom_core::command::{Completion, Holder, WorkerChange};
use bloom_core::file::FileKind;
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::op;
use bloom_core::project::{ProjectId, PushMode, TaskProject};
use bloom_core::task::{Format, Outcome, Session, TaskSpec};
use bloom_core::worker::DispatchMode;

pub fn spec(context: &str) -> TaskSpec {
    TaskSpec {
        id: TaskId::nil(),
        context_id: context.into(),
        agent_slug: "coder".into(),
        prompt: "do it".into(),
        context_hints: Vec::new(),
        timeout_sec: 120,
        profile_timeout_max: None,
        budget: 0.0,
        desired_format: Format::Text,
        max_attempts: 3,
        priority: 5,
        not_before: None,
        depends_on: Vec::new(),
        exclusive_key: None,
        idempotency_key: None,
        labels: std::collections::BTreeMap::new(),
        session: Session::Context,
        model: None,
        ttl_after_finished_sec: None,
        owner: None,
        team: None,
        suspend: false,
        object: None,
        traceparent: None,
        project: None,
        inputs: Vec::new(),
        outputs: Vec::new(),
    }
}

/// What a client says of the project of a task that it creates.
pub fn in_project(name: &str) -> TaskProject {
    TaskProject { id: ProjectId::nil(), name: name.into(), repo_url: String::new(), git_ref: Some("main".into()), push: PushMode::Branch }
}

pub fn completion(task: TaskId, lease: Option<LeaseId>, status: Outcome) -> Completion {
    Completion {
        task,
        holder: Holder { lease, worker: None },
        status,
        output: (status == Outcome::Success).then(|| "done".into()),
        error_message: (status == Outcome::Error).then(|| "it broke".into()),
        duration_ms: 5,
        tokens_used: None,
        artifact_type: "LLM_RESULT".into(),
        artifact_tags: Vec::new(),
        warnings: Vec::new(),
        object: None,
        reason: None,
        retryable: false,
        retry_at: None,
        keep_attempt: false,
        usage: None,
        session_id: None,
        last_event_seq: None,
        model: None,
        branch: None,
        commit: None,
    }
}

/// A worker with a URL and push dispatch. It can also claim or be named by lease calls.
pub fn registration(name: &str, slots: i64) -> WorkerChange {
    WorkerChange {
        id: name.into(),
        url: Some(format!("http://{name}")),
        dispatch: Some(DispatchMode::Push),
        max_concurrency: Some(slots),
        actor: Actor::Api,
        ..WorkerChange::default()
    }
}

/// A file that has arrived, one of a few; with `run`, from a run.
pub fn file(id: u128, name: usize, now: i64, run: Option<op::FileOfRun>) -> op::AddFile {
    op::AddFile {
        id: TaskId::from_u128(1 << 100 | id),
        owner: if run.is_none() && name.is_multiple_of(2) { "team".into() } else { String::new() },
        team: if run.is_none() && name.is_multiple_of(4) { "web".into() } else { String::new() },
        kind: if run.is_some() { FileKind::Output } else { FileKind::Input },
        run,
        name: format!("file{name}"),
        content_type: "text/plain".into(),
        bytes: 3,
        sha256: "0".repeat(64),
        object_url: None,
        until: now + 60_000,
    }
}
