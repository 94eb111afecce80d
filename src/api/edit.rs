//! The body of an edit of a task: a JSON merge patch (RFC 7396) of the fields that may be edited.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::RawValue;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::new_tasks::Priority;
use super::time_limit::PolicyChange;
use super::values::{MAX_LABEL_KEY, MAX_LABEL_VALUE, MAX_LABELS, Moment, Text, text_problem};
use super::wire::{Members, Problems, Wire, problem, within};
use bloom_core::Ms;
use bloom_core::ids::TaskId;
use bloom_core::op::Edit;
use bloom_core::task::TaskSpec;
use bloom_core::task_limits::LimitChange;

/// The fields that may be edited.
const FIELDS: [&str; 4] = ["priority", "not_before", "policy", "labels"];
/// A task may get as many new labels as it loses old ones.
const MAX_EDITED_LABELS: usize = 2 * MAX_LABELS;

/// What is changed. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EditTask {
    /// From 0 to 9; 9 is the most urgent.
    pub priority: Option<i64>,
    /// `Some(None)`, sent as null: the task may run at once.
    pub not_before: Option<Option<Ms>>,
    /// New limits for the runs that begin after this call.
    pub policy: Option<PolicyChange>,
    /// New values of labels by name; `None`, sent as null, removes the label. Other labels stay.
    pub labels: BTreeMap<String, Option<String>>,
}

impl EditTask {
    /// The operation on the task. `spec` has the labels that it was created with.
    pub fn into_op(self, task: TaskId, spec: &TaskSpec) -> Edit {
        let Self { priority, not_before, policy, labels } = self;
        let limits = policy.as_ref().map(LimitChange::from).unwrap_or_default();
        Edit { task, priority, not_before, limits, labels, first_labels: spec.labels.clone() }
    }
}

impl Serialize for EditTask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        if let Some(priority) = self.priority {
            members.serialize_entry("priority", &priority)?;
        }
        if let Some(not_before) = self.not_before {
            members.serialize_entry("not_before", &not_before)?;
        }
        if let Some(policy) = &self.policy {
            members.serialize_entry("policy", policy)?;
        }
        if !self.labels.is_empty() {
            members.serialize_entry("labels", &self.labels)?;
        }
        members.end()
    }
}

/// The same schema, which also allows null.
fn or_null(mut schema: Schema) -> Schema {
    if let Schema::Object(object) = &mut schema
        && let SchemaType::Type(only) = &object.schema_type
    {
        object.schema_type = SchemaType::Array(vec![only.clone(), Type::Null]);
    }
    schema
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

impl Wire for EditTask {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let members = Members::of(raw)?;
        let mut problems = Problems::new();
        for (name, _) in members.iter().filter(|(name, _)| !FIELDS.contains(name)) {
            let wrong = problem::<()>(format!("This field can't be edited; only {} can", FIELDS.join(", ")));
            problems.extend(wrong.err().into_iter().flat_map(|found| within(name.to_owned(), found)));
        }
        let mut edit = Self::default();
        let mut note = |name: &'static str, outcome: Result<(), Problems>| {
            problems.extend(outcome.err().into_iter().flat_map(|found| within(name, found)));
        };
        if let Some(raw) = members.get("priority") {
            note("priority", Priority::read(raw).map(|priority| edit.priority = Some(priority.0)));
        }
        if let Some(raw) = members.get("not_before") {
            let at = if is_null(raw) { Ok(None) } else { Moment::read(raw).map(|at| Some(at.0)) };
            note("not_before", at.map(|at| edit.not_before = Some(at)));
        }
        if let Some(raw) = members.get("policy") {
            note("policy", PolicyChange::read(raw).map(|policy| edit.policy = Some(policy)));
        }
        if let Some(raw) = members.get("labels") {
            note("labels", labels(raw).map(|labels| edit.labels = labels));
        }
        if members.iter().next().is_none() {
            return problem(format!("Nothing to edit: give at least one of {}", FIELDS.join(", ")));
        }
        if problems.is_empty() { Ok(edit) } else { Err(problems) }
    }

    fn describe() -> Schema {
        let described = |schema: Schema, text: &str| match schema {
            Schema::Object(mut object) => {
                object.description = Some(text.into());
                Schema::Object(object)
            }
            other => other,
        };
        let not_before = described(or_null(Moment::describe()), "The task does not run before this time; null: it may run at once.");
        let mut policy = PolicyChange::refer();
        if let RefOr::Ref(named) = &mut policy {
            named.description = "New limits for the runs that begin after this call.".into();
        }
        let labels = ObjectBuilder::new()
            .schema_type(Type::Object)
            .max_properties(Some(MAX_EDITED_LABELS))
            .property_names(Some(Text::<1, MAX_LABEL_KEY>::describe()))
            .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(or_null(Text::<0, MAX_LABEL_VALUE>::describe())))))
            .description(Some("New values of labels by name; null removes the label. Other labels stay. A task has at most 32."));
        Schema::Object(
            ObjectBuilder::new()
                .schema_type(Type::Object)
                .description(Some(
                    "Changes of a queued task, as a JSON merge patch. Absent fields stay as they are; unknown fields are refused.",
                ))
                .property("priority", described(Priority::describe(), "0 to 9; 9 is the most urgent."))
                .property("not_before", not_before)
                .property("policy", policy)
                .property("labels", Schema::Object(labels.build()))
                .additional_properties(Some(AdditionalProperties::FreeForm(false)))
                .min_properties(Some(1))
                .build(),
        )
    }
}

fn labels(raw: &RawValue) -> Result<BTreeMap<String, Option<String>>, Problems> {
    let members = Members::of(raw)?;
    if members.iter().count() > MAX_EDITED_LABELS {
        return problem(format!("Object must contain at most {MAX_EDITED_LABELS} label(s)"));
    }
    let mut labels = BTreeMap::new();
    let mut problems = Problems::new();
    for (name, value) in members.iter() {
        let read = if is_null(value) { Ok(None) } else { Text::<0, MAX_LABEL_VALUE>::read(value).map(|text| Some(text.0)) };
        match (text_problem(name, 1, MAX_LABEL_KEY), read) {
            (Some(wrong), _) => {
                problems.extend(problem::<()>(format!("The name of a label: {wrong}")).err().into_iter().flatten());
            }
            (None, Ok(value)) => {
                labels.insert(name.to_owned(), value);
            }
            (None, Err(found)) => problems.extend(within(name.to_owned(), found)),
        }
    }
    if problems.is_empty() { Ok(labels) } else { Err(problems) }
}

impl PartialSchema for EditTask {
    fn schema() -> RefOr<Schema> {
        RefOr::T(Self::describe())
    }
}

impl ToSchema for EditTask {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invalid::Invalid;
    use crate::values::Int;

    #[test]
    fn an_edit_names_what_changes() {
        let read = |body: &str| EditTask::read(serde_json::from_str(body).unwrap()).map_err(|problems| Invalid::from(problems).line());
        let edit =
            read(r#"{"priority": 9, "not_before": null, "policy": {"timeout_sec": 7200}, "labels": {"a": "1", "b": null}}"#).unwrap();
        assert_eq!(
            (edit.priority, edit.not_before, edit.policy.clone()),
            (Some(9), Some(None), Some(PolicyChange { timeout_sec: Some(Int(7200)), budget: None }))
        );
        assert_eq!(edit.labels, BTreeMap::from([("a".to_owned(), Some("1".to_owned())), ("b".to_owned(), None)]));
        assert_eq!(read(&serde_json::to_string(&edit).unwrap()), Ok(edit), "a client sends what the server reads");
        assert_eq!(read(r#"{"not_before": 5}"#).unwrap(), EditTask { not_before: Some(Some(5)), ..EditTask::default() });
        let check = |body, expected: &str| assert!(read(body).unwrap_err().contains(expected), "{body}: {:?}", read(body));
        check("{}", "Nothing to edit: give at least one of priority, not_before, policy, labels");
        check("[]", "Expected object, received array");
        check(r#"{"prompt": "x", "priority": 5}"#, "prompt: This field can't be edited; only priority, not_before, policy, labels can");
        check(r#"{"priority": null}"#, "priority: Expected number, received null");
        check(r#"{"priority": 10}"#, "priority: Number must be less than or equal to 9");
        check(r#"{"not_before": "now"}"#, "not_before: Expected number, received string");
        check(r#"{"policy": {"timeout_sec": 0}}"#, "policy: timeout_sec: Number must be greater than or equal to 1");
        check(r#"{"labels": null}"#, "labels: Expected object, received null");
        check(r#"{"labels": {"": "x"}}"#, "labels: The name of a label");
        check(r#"{"labels": {"a": 1}}"#, "labels: a: Expected string, received number");
    }
}
