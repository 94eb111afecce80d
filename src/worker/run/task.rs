//! The task and the lease as the agent stores them. The agent has its own types, because later versions of it must be able to read the
//! files.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use bloom_api::answers;
use bloom_api::files::Input;
use bloom_api::requests::LeaseSeconds;
use bloom_api::tasks;
use bloom_api::time_limit::TimeLimit;
use bloom_api::time_text::limit_text;
use bloom_api::values::{Int, Usd};
use bloom_api::wire::deserialize;
use bloom_api::words::{AnyFormat, AnyPushMode, AnySession};
use bloom_core::Ms;
use bloom_core::trace_context::TraceContext;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Task {
    pub id: Uuid,
    pub context_id: String,
    pub agent_slug: String,
    pub prompt: String,
    pub context_hints: Vec<String>,
    pub policy: Policy,
    pub desired_format: AnyFormat,
    pub session: AnySession,
    pub model: Option<String>,
    /// The project in whose repository it runs.
    pub project: Option<String>,
    /// The branch, tag or commit from which the run starts.
    #[serde(rename = "ref")]
    pub git_ref: Option<String>,
    pub push: AnyPushMode,
    /// Files that the run gets.
    pub inputs: Vec<Input<'static>>,
    /// Globs of the files that are stored when the run ends.
    pub outputs: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Policy {
    #[serde(deserialize_with = "deserialize")]
    pub timeout_sec: TimeLimit,
    /// Whether `timeout_sec` comes from the profile. Servers do not send this field.
    #[serde(default)]
    pub timeout_of_profile: bool,
    #[serde(deserialize_with = "deserialize")]
    pub budget: Usd,
}

impl Policy {
    /// Uses the profile's time limit, if it has one, in place of a default, but no more than the server allows.
    pub(crate) fn limit_by(&mut self, of_profile: Option<i64>, lease: &Lease) {
        if let (Some(seconds), Some(most)) = (of_profile, lease.profile_timeout_max) {
            (self.timeout_sec, self.timeout_of_profile) = (Int::nearest(seconds.min(most)), true);
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_sec.0.unsigned_abs())
    }
}

impl Task {
    /// The message for a run that took too long. The command line and the page each say in their own way what to do.
    pub(crate) fn timed_out(&self) -> String {
        let whose = if self.policy.timeout_of_profile { "its profile's" } else { "its" };
        format!("did not end within {whose} time limit of {}", limit_text(self.policy.timeout_sec.0))
    }
}

/// The repository of a task's project.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Repository {
    pub project_id: Uuid,
    pub project: String,
    pub url: String,
    /// The prefix of the context's branch. Servers without such a setting send none.
    pub branch_prefix: String,
    /// Previous prefixes of the project, newest first.
    pub former_branch_prefixes: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Lease {
    pub id: Uuid,
    #[serde(deserialize_with = "deserialize")]
    pub ttl_seconds: LeaseSeconds,
    /// The parent of the run's span; servers without traces send none.
    pub traceparent: Option<TraceContext>,
    /// How many US dollars the run may cost. Servers that do not count the cost of earlier attempts send none.
    pub budget_left: Option<f64>,
    /// Servers without tasks in projects send none.
    pub repository: Option<Repository>,
    /// When the context was last reset. Servers that can't reset contexts send none.
    pub context_reset_at: Option<Ms>,
    /// The session with the conversation of the context. Servers send none if there is no conversation; older servers never send one.
    pub conversation: Option<String>,
    /// The longest time limit that the profile may set, in seconds. Servers send none if the task has its own limit; older servers never
    /// send one.
    pub profile_timeout_max: Option<i64>,
}

impl Lease {
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_seconds.0.unsigned_abs())
    }
}

/// Converts the server's task and lease into the agent's own types, which check that numbers are within the agent's limits.
///
/// # Errors
/// A number is out of bounds; the text names it.
pub(crate) fn taken(lease: &answers::Lease<'_>, task: &tasks::Task<'_>) -> Result<(Lease, Task), String> {
    let own_lease = own(lease).map_err(|error| format!("its lease: {error}"))?;
    let own_task = own(task).map_err(|error| format!("its task: {error}"))?;
    Ok((own_lease, own_task))
}

/// Converts between types whose fields of the same name have the same meaning. So a new field is declared in the two types only.
fn own<T: DeserializeOwned>(of_the_server: impl Serialize) -> serde_json::Result<T> {
    serde_json::from_value(serde_json::to_value(of_the_server)?)
}

#[cfg(test)]
impl Task {
    /// A plain task with these fields.
    pub(crate) fn for_test(fields: &serde_json::Value) -> Self {
        let mut task = serde_json::json!({
            "id": Uuid::nil(), "context_id": "c", "agent_slug": "a", "prompt": "p", "context_hints": [], "policy": {"timeout_sec": 60, "budget": 0.0},
            "desired_format": "text", "session": "context", "model": null, "project": null, "ref": null, "push": "never", "inputs": [], "outputs": [],
        });
        task.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        serde_json::from_value(task).expect("a task")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Task;
    use crate::machine::boot_clock::Stamp;
    use crate::run::run_dir::Record;
    use crate::run::verdict::Verdict;
    use bloom_api::requests::EventBody;

    const ID: &str = "0190a0a0-0000-7000-8000-000000000000";

    #[test]
    fn numbers_that_no_agent_can_keep_to_are_refused() {
        let record = |timeout_sec: i64, ttl_seconds: u64| {
            let mut task = serde_json::to_value(Task::for_test(&json!({}))).unwrap();
            task["policy"]["timeout_sec"] = json!(timeout_sec);
            serde_json::from_value::<Record>(json!({
                "lease": {"id": ID, "ttl_seconds": ttl_seconds}, "taken_at": 5, "taken": Stamp::now(), "process": null, "starts": 0, "task": task,
            }))
        };
        assert!(record(604_800, 86_400).is_ok());
        for (timeout_sec, ttl_seconds) in
            [(604_801, 300), (i64::MAX, 300), (i64::MIN, 300), (0, 300), (60, 86_401), (60, u64::MAX), (60, 0)]
        {
            assert!(record(timeout_sec, ttl_seconds).is_err(), "{timeout_sec} {ttl_seconds}");
        }
    }

    /// The files are in the format of version 0.1.0: an update of the agent must not lose runs.
    #[test]
    fn files_of_the_first_version_are_read() {
        let record: Record = serde_json::from_value(json!({
            "lease": {"id": ID, "ttl_seconds": 300}, "taken_at": 5, "taken": {"boot": "b", "at": 5, "wall_clock": 5}, "prepared": null,
            "profile": null, "session": null, "process": null, "starts": 0,
            "task": {
                "id": ID, "context_id": "c", "agent_slug": "a", "prompt": "p", "context_hints": ["h"], "desired_format": "json",
                "policy": {"timeout_sec": 60, "timeout_of_profile": false, "budget": 0.5}, "session": "none", "model": null,
                "project": null, "ref": null, "push": "never", "inputs": [], "outputs": [],
            },
        }))
        .unwrap();
        assert_eq!((record.lease.ttl_seconds.0, record.task.policy.timeout_sec.0, &record.task.model), (300, 60, &None));
        serde_json::from_value::<Record>(serde_json::to_value(&record).unwrap()).expect("what is written is read");
        let told = json!({"Complete": {
            "lease_id": ID, "status": "error", "output": "o", "error_message": "why", "artifact_tags": ["t"], "reason": "timeout",
            "metrics": {"duration_ms": 7, "tokens_used": null}, "retryable": true, "retry_at": 9, "keep_attempt": true,
            "usage": {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.5}, "session_id": null, "model": "m",
        }});
        let Verdict::Complete(completion) = serde_json::from_str(&told.to_string()).unwrap() else { panic!() };
        assert_eq!(
            (completion.output.as_deref(), completion.retry_at.map(|at| at.0), completion.metrics.duration_ms.0),
            (Some("o"), Some(9), 7)
        );
        let verdict = Verdict::Complete(completion);
        assert_eq!(serde_json::from_str::<Verdict>(&serde_json::to_string(&verdict).unwrap()).unwrap(), verdict);
        let event = r#"{"seq":1,"kind":"text","at":5,"data":{"text":"a"}}"#;
        assert_eq!(serde_json::to_string(&serde_json::from_str::<EventBody>(event).unwrap()).unwrap(), event);
    }
}
