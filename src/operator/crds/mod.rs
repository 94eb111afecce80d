//! The custom resources, as Rust types and as the manifests that are made from them.
// Columns of different resources, or of one, may have the same type.
#![allow(clippy::duplicated_attributes)]

pub mod lease;
pub mod pool;
pub mod schema;
pub mod task;
pub mod worker;

use bloom_api::new_tasks::NewTask;
use bloom_api::time_limit::USUAL;
use bloom_api::values::{Int, MAX_SAFE};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

pub use lease::TaskLease;
pub use pool::WorkerPool;
pub use task::LLMTask;
pub use worker::Worker;

use schema::ApiFields;

/// The most characters of a prompt within an object. Objects live in etcd, which takes 1.5 MiB for each at most.
const MAX_INLINE_PROMPT: usize = 131_072;
/// What names of objects of the core API and of LLMTasks look like.
const OBJECT_NAME: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// The fields of a task that may change.
const MUTABLE: [&str; 4] = ["cancel", "priority", "suspend", "ttlSecondsAfterFinished"];

/// All custom resource definitions.
///
/// # Errors
/// A schema can't be made, which is a mistake in its types.
pub fn all() -> serde_json::Result<Vec<CustomResourceDefinition>> {
    let definitions = [llm_task()?, task_lease()?, serde_json::to_value(Worker::crd())?, worker_pool()?];
    let finished = definitions.into_iter().map(|mut crd| {
        null_is_absent(&mut crd);
        serde_json::from_value(crd)
    });
    finished.collect()
}

/// The API server drops `null` where it is not allowed, as the API takes it for an absent field. Otherwise rules would see it.
fn null_is_absent(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.remove("nullable");
            members.values_mut().for_each(null_is_absent);
        }
        Value::Array(items) => items.iter_mut().for_each(null_is_absent),
        _ => {}
    }
}

/// A manifest of each definition, with the name of its file.
///
/// # Errors
/// As [`all`].
pub fn manifests() -> Result<Vec<(String, String)>, Box<dyn std::error::Error>> {
    let manifest = |crd: CustomResourceDefinition| {
        let yaml = serde_norway::to_string(&crd)?;
        Ok((format!("{}.yaml", crd.spec.names.plural), yaml))
    };
    all()?.into_iter().map(manifest).collect()
}

fn llm_task() -> serde_json::Result<Value> {
    let mut crd = serde_json::to_value(LLMTask::crd())?;
    let api = ApiFields::of::<NewTask>()?;
    let Some(spec) = spec_of(&mut crd) else { return Ok(crd) };
    if let Some(fields) = fields_of(spec) {
        for (name, field) in fields.iter_mut() {
            // These have a form or a meaning of their own in Kubernetes: times and names in place of numbers and ids, and changes later.
            if !matches!(name.as_str(), "notBefore" | "dependsOn" | "suspend") {
                *field = api.schema(name).unwrap_or_else(|| field.take());
            }
        }
        if let Some(policy) = fields.get_mut("policy") {
            let default = format!("Default: the time limit of the agent's profile, or {} seconds if it has none", USUAL.0);
            policy["description"] = format!("Limits of the run. {default}; no budget.").into();
            // An object that leaves `timeoutSec` out says so already.
            policy["properties"].as_object_mut().map(|fields| fields.remove("timeoutIsDefault"));
        }
        if let Some(depends_on) = fields.get_mut("dependsOn").and_then(Value::as_object_mut) {
            let most = bloom_api::new_tasks::MAX_DEPENDENCIES;
            depends_on.extend([
                ("items".into(), json!({ "type": "string", "minLength": 1, "maxLength": 253, "pattern": OBJECT_NAME })),
                ("maxItems".into(), (4 * most).into()),
                ("x-kubernetes-list-type".into(), "set".into()),
                (RULES.into(), json!([{ "rule": format!("size(self) <= {most}"), "message": bloom_api::problem_texts::too_many(most) }])),
            ]);
        }
        let ttl = fields.get("ttlSecondsAfterFinished").and_then(|field| field.get("description")).and_then(Value::as_str);
        let ttl = ApiFields::schema_of::<Int<0, MAX_SAFE>>(ttl.unwrap_or_default())?;
        fields.insert("ttlSecondsAfterFinished".into(), ttl);
        if let Some(rules) = fields.get_mut("prompt").and_then(|prompt| prompt.get_mut(RULES)).and_then(Value::as_array_mut) {
            rules.push(json!({
                "rule": format!("size(self) <= {MAX_INLINE_PROMPT}"),
                "message": format!(
                    "{}: put a longer prompt into a ConfigMap, and name it in promptFrom",
                    bloom_api::problem_texts::too_long(MAX_INLINE_PROMPT)
                ),
            }));
        }
        if let Some(source) = fields.get_mut("promptFrom") {
            add_rules(source, [exactly_one("configMapKeyRef", "secretKeyRef")]);
        }
    }
    let names: Vec<String> = fields_of(spec).map(|fields| fields.keys().cloned().collect()).unwrap_or_default();
    let immutable = names.iter().filter(|name| !MUTABLE.contains(&name.as_str())).map(|name| unchanged(name));
    let needs_project =
        |rule: &str, field: &str| json!({ "rule": rule, "fieldPath": field, "message": bloom_api::problem_texts::NEEDS_PROJECT });
    let of_projects = [
        needs_project("!has(self.ref) || has(self.project)", ".ref"),
        needs_project("!has(self.push) || self.push == 'never' || has(self.project)", ".push"),
    ];
    add_rules(spec, immutable.chain([exactly_one("prompt", "promptFrom")]).chain(of_projects));
    Ok(crd)
}

fn task_lease() -> serde_json::Result<Value> {
    let mut crd = serde_json::to_value(TaskLease::crd())?;
    if let Some(spec) = spec_of(&mut crd) {
        add_rules(spec, [json!({ "rule": "self == oldSelf", "message": "TaskLease is immutable: delete it to revoke the lease" })]);
    }
    Ok(crd)
}

/// The name of a pool and `-999`, with room for one more digit, is that of a pod, and a label.
const MAX_POOL_NAME: usize = 58;

fn worker_pool() -> serde_json::Result<Value> {
    let mut crd = serde_json::to_value(WorkerPool::crd())?;
    quantities_in_short(&mut crd);
    let rule = |rule: &str, field: &str, message: String| json!({ "rule": rule, "fieldPath": field, "message": message });
    if let Some(spec) = spec_of(&mut crd) {
        if let Some(workspace) = fields_of(spec).and_then(|fields| fields.get_mut("workspace")) {
            let text = "Give either sizeLimit, for an empty directory, or volumeClaim, for a volume".to_owned();
            add_rules(workspace, [json!({ "rule": "!has(self.sizeLimit) || !has(self.volumeClaim)", "message": text })]);
        }
        let of_scaling = "Needs maxReplicas: without it, replicas says how many pods there are".to_owned();
        let of_names = "Names that begin with BLOOM_ are set by the other fields of the pool".to_owned();
        add_rules(
            spec,
            [
                rule("!has(self.minReplicas) || has(self.maxReplicas)", ".minReplicas", of_scaling),
                rule(
                    "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                    ".minReplicas",
                    "Must not be more than maxReplicas".to_owned(),
                ),
                rule("!has(self.env) || self.env.all(one, !one.name.startsWith('BLOOM_'))", ".env", of_names),
            ],
        );
    }
    if let Some(object) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        let names = json!({
            "rule": format!("size(self.metadata.name) <= {MAX_POOL_NAME} && !self.metadata.name.contains('.')"),
            "message": format!(
                "The name of a WorkerPool has at most {MAX_POOL_NAME} characters and no dots, because the names of its pods begin with it"
            ),
        });
        add_rules(object, [names]);
    }
    Ok(crd)
}

/// The description of quantities that comes with their type fills a page.
fn quantities_in_short(schema: &mut Value) {
    match schema {
        Value::Object(members) if members.get("x-kubernetes-int-or-string").is_some() => {
            members.insert("description".into(), "An amount, such as 2, 500m (half of one), 512Mi or 20Gi.".into());
        }
        Value::Object(members) => members.values_mut().for_each(quantities_in_short),
        Value::Array(items) => items.iter_mut().for_each(quantities_in_short),
        _ => {}
    }
}

const RULES: &str = "x-kubernetes-validations";

fn spec_of(crd: &mut Value) -> Option<&mut Value> {
    crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
}

fn fields_of(schema: &mut Value) -> Option<&mut Map<String, Value>> {
    schema.get_mut("properties")?.as_object_mut()
}

fn add_rules(schema: &mut Value, rules: impl IntoIterator<Item = Value>) {
    let Some(schema) = schema.as_object_mut() else { return };
    if let Some(all) = schema.entry(RULES).or_insert_with(|| json!([])).as_array_mut() {
        all.extend(rules);
    }
}

fn exactly_one(one: &str, other: &str) -> Value {
    json!({ "rule": format!("has(self.{one}) != has(self.{other})"), "message": format!("Exactly one of {one} and {other} is required") })
}

fn unchanged(field: &str) -> Value {
    let rule = format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})");
    let message = format!("Field is immutable: only {} can be changed; delete the LLMTask and create another one", MUTABLE.join(", "));
    json!({ "rule": rule, "message": message, "fieldPath": format!(".{field}") })
}
