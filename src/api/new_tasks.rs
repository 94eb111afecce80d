//! Tasks that a client wants to create.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::files::{NewInput, OutputGlob};
use super::git_names::GitRef;
use super::problem_texts::NEEDS_PROJECT;
use super::projects::NamedProject;
use super::time_limit::{self, TimeLimit};
use super::values::{Id, Int, Labels, List, MAX_SAFE, Moment, Name, NonEmpty, ShortName, Text, Usd};
use super::wire::{Problems, body, problem, within};
use bloom_core::file::{MAX_INPUTS, MAX_OUTPUTS};
use bloom_core::limits::TIMEOUT_SEC;
use bloom_core::project::{ProjectId, PushMode, TaskProject};
use bloom_core::task::{Format, Session, TaskSpec};

/// The most tasks that one task may depend on.
pub const MAX_DEPENDENCIES: usize = 100;
/// The most tasks that one call may create or change.
pub const MAX_BATCH: usize = 1000;
const MAX_ATTEMPTS: Int<1, 10> = Int(3);
/// 9 is the most urgent.
pub type Priority = Int<0, 9>;
const PRIORITY: Priority = Int(5);

body! {
    /// Limits of a run, which the agent enforces.
    pub struct NewPolicy: Default {
        /// Seconds after the start of the process at which the agent ends the run; at most `MAX_TIMEOUT_SECONDS` of the server.
        timeout_sec: Option<TimeLimit>,
        /// Whether the time limit of the agent's profile, if it has one, replaces `timeout_sec`. Default: true if `timeout_sec` is left
        /// out, else false.
        timeout_is_default: Option<bool>,
        /// US dollars that all attempts together may cost; 0 = the task sets no limit. A requeued task begins with its whole budget.
        budget: Usd = Usd(0.0),
    }

    /// A task to run.
    pub struct NewTask: Default {
        /// The conversation: tasks with the same context continue it one after the other.
        context_id: Name,
        /// The kind of agent (slug) that runs it.
        agent_slug: ShortName,
        /// What the agent is asked to do.
        prompt: NonEmpty,
        /// Paths or globs of files in the directory of the context; the agent inserts their content into the prompt. Other texts are passed
        /// to the agent as references. Default: none.
        context_hints: List<Text> = List(Vec::new()),
        /// Limits of the run. Default: the time limit of the agent's profile, or 120 seconds if it has none; no budget.
        policy: Option<NewPolicy>,
        /// The form of the output. With `json`, the task fails if the output is not JSON.
        desired_format: Format = Format::Text,
        /// How many attempts the task has before it is `dead`.
        max_attempts: Int<1, 10> = MAX_ATTEMPTS,
        /// 0 to 9; 9 is the most urgent.
        priority: Priority = PRIORITY,
        /// The task does not run before this time, in milliseconds since the epoch. Default: it may run at once.
        not_before: Option<Moment>,
        /// Tasks that must be completed first. If one of them ends otherwise, this task is cancelled.
        depends_on: List<Id, 0, MAX_DEPENDENCIES> = List(Vec::new()),
        /// At most one task with this key is leased or running at a time; others wait. Default: no key.
        exclusive_key: Option<Name>,
        /// A repeated call with this key returns the first task. The header Idempotency-Key has the same meaning. Default: each call
        /// creates a task.
        idempotency_key: Option<Name>,
        /// Names with values, by which lists can be filtered: at most 32. Default: none.
        labels: Labels = Labels::default(),
        /// `context`: continue the conversation of its context. `none`: run on its own.
        session: Session = Session::Context,
        /// The model that the agent uses. Default: that of the agent's profile.
        model: Option<ShortName>,
        /// Seconds after its end at which the task is removed. Default: as the server's TASK_RETENTION_DAYS says.
        ttl_after_finished_sec: Option<Int<0, MAX_SAFE>>,
        /// Create it suspended: no worker gets it until it is resumed.
        suspend: bool = false,
        /// The name or the id of a project: the task runs in a checkout of its repository, on a branch of its context. The task keeps what
        /// it needs of the project, so it can run even after the project is deleted.
        project: Option<NamedProject>,
        /// The branch, tag or commit to begin with. Default: the default branch of the repository. Only with `project`.
        r#ref: Option<GitRef>,
        /// `branch`: the agent pushes the branch with the commits of a run. `never`: they stay at the worker. Only with `project`.
        push: PushMode = PushMode::Never,
        /// Files that the run gets, by the ids of their uploads: at most 100. Default: none.
        inputs: List<NewInput, 0, MAX_INPUTS> = List(Vec::new()),
        /// Globs of files below the directory of the run that are kept as artifacts when it ends: at most 32. `*` does not cross `/`, `**` does.
        /// Default: none.
        outputs: List<OutputGlob, 0, MAX_OUTPUTS> = List(Vec::new()),
    } checked by of_a_project

    /// Tasks to create, all of them or none.
    pub struct NewTasks {
        /// The tasks, in the order of their creation: 1 to 1000.
        tasks: List<NewTask, 1, MAX_BATCH>,
    }
}

/// What only a task with a project has.
fn of_a_project(task: &NewTask) -> Result<(), Problems> {
    let field = match task {
        NewTask { project: Some(_), .. } => return Ok(()),
        NewTask { r#ref: Some(_), .. } => "ref",
        NewTask { push: PushMode::Branch, .. } => "push",
        NewTask { .. } => return Ok(()),
    };
    problem(NEEDS_PROJECT).map_err(|found| within(field, found))
}

impl NewTask {
    /// Converts it for the core, which assigns the id. `idempotency_key` is the header's; a key in the body takes precedence.
    pub fn into_spec(self, idempotency_key: Option<String>) -> TaskSpec {
        let policy = self.policy.unwrap_or_default();
        let is_default = policy.timeout_is_default.unwrap_or(policy.timeout_sec.is_none());
        let depends_on = self.depends_on.map(|id| id.0).into_iter().collect::<BTreeSet<_>>();
        TaskSpec {
            id: Uuid::nil(),
            context_id: self.context_id.0,
            agent_slug: self.agent_slug.0,
            prompt: self.prompt.0,
            context_hints: self.context_hints.texts(),
            timeout_sec: policy.timeout_sec.unwrap_or(time_limit::DEFAULT).0,
            profile_timeout_max: is_default.then_some(TIMEOUT_SEC),
            budget: policy.budget.0,
            desired_format: self.desired_format,
            max_attempts: self.max_attempts.0,
            priority: self.priority.0,
            not_before: self.not_before.map(|at| at.0),
            depends_on: depends_on.into_iter().collect(),
            exclusive_key: self.exclusive_key.map(|key| key.0),
            idempotency_key: self.idempotency_key.map(|key| key.0).or(idempotency_key),
            labels: self.labels.0,
            session: self.session,
            model: self.model.map(|model| model.0),
            ttl_after_finished_sec: self.ttl_after_finished_sec.map(|seconds| seconds.0),
            owner: None,
            team: None,
            suspend: self.suspend,
            object: None,
            traceparent: None,
            project: self.project.map(|project| TaskProject {
                id: ProjectId::nil(),
                name: project.0,
                repo_url: String::new(),
                git_ref: self.r#ref.map(|git_ref| git_ref.0),
                push: self.push,
            }),
            inputs: self.inputs.map(NewInput::into_input),
            outputs: self.outputs.map(|glob| glob.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::invalid::Invalid;
    use crate::wire::Wire;

    fn read(body: &str) -> Result<NewTask, String> {
        let raw: &RawValue = serde_json::from_str(body).unwrap();
        NewTask::read(raw).map_err(|problems| Invalid::from(problems).line())
    }

    fn with(fields: &str) -> Result<NewTask, String> {
        read(&format!(r#"{{"context_id": "c", "agent_slug": "a", "prompt": "p", {fields}}}"#))
    }

    #[test]
    fn defaults() {
        let spec = with(r#""policy": null, "labels": null, "unknown": 1"#).unwrap().into_spec(Some("key".into()));
        assert_eq!((spec.timeout_sec, spec.budget, spec.max_attempts, spec.priority), (120, 0.0, 3, 5));
        assert_eq!((spec.desired_format, spec.session), (Format::Text, Session::Context));
        assert_eq!(spec.idempotency_key.as_deref(), Some("key"));
        let spec =
            with(r#""policy": {"budget": 1.5}, "max_attempts": 2.0, "idempotency_key": "own""#).unwrap().into_spec(Some("key".into()));
        assert_eq!((spec.timeout_sec, spec.budget, spec.max_attempts), (120, 1.5, 2));
        assert_eq!(spec.idempotency_key.as_deref(), Some("own"));
    }

    #[test]
    fn whoever_names_no_time_limit_leaves_it_to_profiles() {
        let limits = |policy: &str| {
            let spec = with(&format!(r#""policy": {policy}"#)).unwrap().into_spec(None);
            (spec.timeout_sec, spec.profile_timeout_max.is_some())
        };
        assert_eq!([limits("null"), limits("{}"), limits(r#"{"timeout_sec": null}"#)], [(120, true); 3]);
        assert_eq!(limits(r#"{"timeout_sec": 60}"#), (60, false));
        assert_eq!(limits(r#"{"timeout_sec": 60, "timeout_is_default": true}"#), (60, true));
        assert_eq!(limits(r#"{"timeout_is_default": false}"#), (120, false));
        let wrong = with(r#""policy": {"timeout_is_default": "yes"}"#).unwrap_err();
        assert_eq!(wrong, "policy: timeout_is_default: Expected boolean, received string");
    }

    #[test]
    fn what_only_a_task_with_a_project_has() {
        let wrong = |fields: &str| with(fields).unwrap_err();
        assert_eq!(wrong(r#""ref": "main""#), "ref: Needs a project: name one in the field project");
        assert_eq!(wrong(r#""push": "branch""#), "push: Needs a project: name one in the field project");
        assert!(with(r#""push": "never", "ref": null"#).unwrap().into_spec(None).project.is_none());
        let task = with(r#""project": "docs", "ref": "main", "push": "branch""#).unwrap();
        assert_eq!(serde_json::from_str::<NewTask>(&serde_json::to_string(&task).unwrap()).unwrap(), task, "as a client sends it");
        let project = task.into_spec(None).project.unwrap();
        assert_eq!((project.name.as_str(), project.git_ref.as_deref(), project.push), ("docs", Some("main"), PushMode::Branch));
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        assert_eq!(read("[]").unwrap_err(), "Expected object, received array");
        assert_eq!(
            read(r#"{"prompt": "", "max_attempts": 11, "policy": {"timeout_sec": 0}, "desired_format": "xml"}"#).unwrap_err(),
            "agent_slug: Required; context_id: Required; \
             desired_format: Invalid enum value. Expected 'json' | 'text', received 'xml'; \
             max_attempts: Number must be less than or equal to 10; \
             policy: timeout_sec: Number must be greater than or equal to 1; \
             prompt: String must contain at least 1 character(s)"
        );
    }

    #[test]
    fn values_of_a_wrong_kind() {
        let check = |fields: &str, expected: &str| assert_eq!(with(fields).unwrap_err(), expected, "{fields}");
        check(r#""context_hints": "x""#, "context_hints: Expected array, received string");
        check(r#""context_hints": ["x", null]"#, "context_hints: 1: Expected string, received null");
        check(r#""priority": 1.5"#, "priority: Expected integer, received float");
        check(r#""priority": "5""#, "priority: Expected number, received string");
        check(r#""policy": {"budget": -1}"#, "policy: budget: Number must be greater than or equal to 0");
        check(r#""policy": 5"#, "policy: Expected object, received number");
        check(r#""model": "a\u0000b""#, "model: String must not contain NUL characters");
        check(r#""model": "\ud800""#, "model: Not valid text: an escape in it stands for no character");
        check(r#""depends_on": ["x"]"#, "depends_on: 0: Invalid uuid");
        check(r#""labels": {"a": 1}"#, "labels: a: Expected string, received number");
        check(r#""labels": {"": "x"}"#, "labels: The name of a label: String must contain at least 1 character(s)");
        check(r#""not_before": -1"#, "not_before: Number must be greater than or equal to 0");
        check(r#""not_before": 1e30"#, "not_before: Number must be less than or equal to 281474976710655");
    }

    #[test]
    fn the_last_of_repeated_names_counts() {
        assert_eq!(with(r#""model": 5, "model": "m""#).unwrap().model, Some(Text("m".into())));
        assert_eq!(with(r#""model": "m", "mod\u0065l": "n""#).unwrap().model, Some(Text("n".into())));
    }
}
