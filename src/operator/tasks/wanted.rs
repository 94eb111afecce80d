//! Creates the task that an object wants.

use std::time::{Duration, Instant};

use bloom_api::invalid::Invalid;
use bloom_api::new_tasks::NewTask;
use bloom_api::time_limit;
use bloom_api::wire::Wire;
use bloom_core::namespace::{KubernetesObject, qualified};
use bloom_core::op;
use bloom_core::task::TaskSpec;
use bloom_store::TaskRow;
use kube::Api;
use kube::runtime::reflector::ObjectRef;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::status::Problem;
use super::{Error, Identity, Tasks};
use crate::api::within_limit;
use crate::crds::LLMTask;
use crate::crds::schema::snake;
use crate::crds::task::LLMTaskSpec;

/// Fields that only the object has, or that differ from the fields of the API.
const OWN_FIELDS: [&str; 6] = ["promptFrom", "prompt", "dependsOn", "notBefore", "cancel", "ttlSecondsAfterFinished"];

/// An answer of the API server that is older than this is checked again, because another replica may have become the leader meanwhile. The
/// leader's Lease lasts 15 s.
const LONG_AGO: Duration = Duration::from_secs(2);

impl Tasks {
    /// Creates the task unless it exists. The object must already have its finalizer, because the run must end before the object is
    /// removed.
    ///
    /// No task may be created for an object that is gone, and the watch may not show that yet. If this process was stopped for a while,
    /// another replica leads, and may have removed the object together with its task. So the API server is asked.
    pub(super) async fn create(&self, task: &LLMTask, identity: &Identity) -> Result<Result<TaskRow, Problem>, Error> {
        let prompt = match self.prompt(&task.spec, identity).await? {
            Ok(prompt) => prompt,
            Err(problem) => return Ok(Err(problem)),
        };
        let depends_on = match self.dependencies(&task.spec, identity).await? {
            Ok(depends_on) => depends_on,
            Err(problem) => return Ok(Err(problem)),
        };
        let most = self.context.options.max_timeout_sec;
        let spec = match task_spec(&task.spec, identity, prompt, &depends_on, most) {
            Ok(spec) => spec,
            Err(wrong) => return Ok(Err(Problem::invalid(wrong))),
        };
        let asked = Instant::now();
        if !self.is_there(identity).await? {
            return Ok(Err(gone()));
        }
        let created = match self.submit(identity, op::Create { tasks: vec![spec] }).await? {
            Ok(mut created) => created.pop(),
            Err(rejection) => return Ok(Err(Problem::refused(rejection.to_string()))),
        };
        let Some(created) = created else { return Ok(Err(Problem::invalid(String::new()))) };
        // This process may have been stopped since the API server was asked.
        if asked.elapsed() > LONG_AGO && !self.is_there(identity).await? {
            self.submit(identity, op::Cancel { task: created.spec.id }).await?.ok();
            return Ok(Err(gone()));
        }
        Ok(Ok(TaskRow { spec: created.spec, state: created.state }))
    }

    /// Whether the object exists, and is not being deleted.
    async fn is_there(&self, identity: &Identity) -> Result<bool, Error> {
        let api: Api<LLMTask> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        let found = within_limit(api.get_metadata_opt(&identity.name)).await?;
        Ok(found.is_some_and(|found| found.metadata.uid == Some(identity.uid.to_string()) && found.metadata.deletion_timestamp.is_none()))
    }

    /// The tasks of the objects that this one depends on.
    async fn dependencies(&self, spec: &LLMTaskSpec, identity: &Identity) -> Result<Result<Vec<Uuid>, Problem>, Error> {
        let mut tasks = Vec::new();
        for name in spec.depends_on.iter().flatten() {
            let object = self.objects.get(&ObjectRef::new(name).within(&identity.namespace));
            let row = match object.as_ref().map(|object| &object.0) {
                Some(Ok(other)) => self.task_of(other, &Identity::of(&other.metadata)?).await?,
                Some(Err(_)) | None => None,
            };
            match row {
                Some(row) => tasks.push(row.spec.id),
                None => {
                    return Ok(Err(Problem::missing("DependencyNotFound", format!("LLMTask '{name}' does not exist or has no task yet"))));
                }
            }
        }
        Ok(Ok(tasks))
    }
}

fn gone() -> Problem {
    Problem::missing("Deleted", "The object was deleted before its task was created".into())
}

/// The spec of the task, checked like the body of a request that creates a task.
fn task_spec(
    spec: &LLMTaskSpec,
    identity: &Identity,
    prompt: String,
    depends_on: &[Uuid],
    max_timeout_sec: i64,
) -> Result<TaskSpec, String> {
    let body = request(spec, prompt, depends_on).and_then(|body| to_raw_value(&body)).map_err(|error| error.to_string())?;
    let mut task = NewTask::read(&body).map_err(|problems| Invalid::from(problems).line())?.into_spec(None);
    time_limit::keep_within(&mut task, max_timeout_sec).map_err(|wrong| wrong.line())?;
    let own = |name: String| qualified(&identity.namespace, &name);
    Ok(TaskSpec {
        context_id: own(task.context_id),
        exclusive_key: task.exclusive_key.map(own),
        idempotency_key: task.idempotency_key.map(own),
        // No worker may get a task that is already cancelled.
        suspend: task.suspend || spec.cancel,
        object: Some(KubernetesObject { namespace: identity.namespace.clone(), name: identity.name.clone(), uid: identity.uid }),
        ..task
    })
}

/// The body of the API's request: the fields of the object in snake case.
fn request(spec: &LLMTaskSpec, prompt: String, depends_on: &[Uuid]) -> serde_json::Result<Value> {
    let mut body = Map::new();
    if let Value::Object(fields) = serde_json::to_value(spec)? {
        body.extend(fields.into_iter().filter(|(name, _)| !OWN_FIELDS.contains(&name.as_str())).map(|(name, value)| (snake(&name), value)));
    }
    let mut policy = Map::new();
    if let Some(given) = &spec.policy {
        policy.insert("timeout_sec".into(), given.timeout_sec.into());
        policy.insert("budget".into(), given.budget.into());
    }
    time_limit::add_usual(&mut policy);
    body.insert("policy".into(), policy.into());
    body.insert("prompt".into(), prompt.into());
    body.insert("depends_on".into(), serde_json::to_value(depends_on)?);
    body.insert("not_before".into(), spec.not_before.as_ref().map(|at| at.0.as_millisecond().max(0)).into());
    Ok(body.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(fields: Value) -> Result<TaskSpec, String> {
        let identity = Identity { namespace: "team-a".into(), name: "one".into(), uid: Uuid::from_u128(7) };
        let mut all = json!({ "contextId": "repo", "agentSlug": "coder" });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        task_spec(&serde_json::from_value(all).unwrap(), &identity, "hello".into(), &[Uuid::from_u128(9)], 3600)
    }

    #[test]
    fn an_object_becomes_a_task_of_its_namespace() {
        let spec = wanted(json!({
            "policy": { "timeoutSec": 7, "budget": 1.5 }, "exclusiveKey": "lock", "idempotencyKey": "once", "priority": 8, "maxAttempts": 2,
            "notBefore": "2026-11-22T12:00:00Z", "labels": { "a": "b" }, "session": "none", "desiredFormat": "json", "model": "opus",
        }));
        let spec = spec.unwrap();
        assert_eq!((spec.timeout_sec, spec.profile_timeout_max), (7, None));
        assert_eq!((spec.budget, spec.priority, spec.max_attempts), (1.5, 8, 2));
        assert_eq!(spec.context_id, "namespace:team-a/repo");
        assert_eq!(spec.exclusive_key.as_deref(), Some("namespace:team-a/lock"));
        assert_eq!(spec.idempotency_key.as_deref(), Some("namespace:team-a/once"));
        assert_eq!((spec.prompt.as_str(), spec.not_before, spec.labels.len()), ("hello", Some(1_795_348_800_000), 1));
        assert_eq!((spec.depends_on.as_slice(), spec.object.unwrap().uid), ([Uuid::from_u128(9)].as_slice(), Uuid::from_u128(7)));
    }

    #[test]
    fn a_run_has_half_an_hour_unless_its_object_says_otherwise() {
        for policy in [json!(null), json!({}), json!({ "budget": 2 })] {
            let spec = wanted(json!({ "policy": policy })).unwrap();
            // The limit of the profile, as far as this server allows it.
            assert_eq!((spec.timeout_sec, spec.profile_timeout_max), (1800, Some(3600)), "{policy}");
        }
        let told = wanted(json!({ "policy": { "timeoutSec": 3601 } })).unwrap_err();
        assert!(told.contains("less than or equal to 3600: that is MAX_TIMEOUT_SECONDS of this server"), "{told}");
    }

    #[test]
    fn what_the_api_refuses_is_refused_with_its_words() {
        assert_eq!(wanted(json!({ "priority": 10 })).unwrap_err(), "priority: Number must be less than or equal to 9");
        assert!(wanted(json!({ "contextId": "" })).unwrap_err().starts_with("context_id: String must contain at least 1"));
    }
}
