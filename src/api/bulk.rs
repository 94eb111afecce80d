//! Bulk requests: one change of many tasks, which are named by their ids or by a filter.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::RawValue;
use utoipa::openapi::schema::{OneOfBuilder, Schema, Type};
use utoipa::openapi::{Object, RefOr};

use super::new_tasks::MAX_BATCH;
use super::time_limit::PolicyChange;
use super::values::{Id, LabelText, Labels, List, MAX_LABELS, Moment, Text};
use super::wire::{FieldSchema, Members, Problems, Wire, body, closed, named_schema, object_schema, problem, within};
use bloom_core::Ms;
use bloom_core::ids::TaskId;
use bloom_core::task::Reason;

type Ids = List<Id, 0, MAX_BATCH>;

body! {
    /// A filter of tasks. A task must match every field that is present.
    #[derive(Default)]
    pub struct Filter {
        /// One status, or several with commas between them. An unknown status matches no task.
        status: FilterText,
        /// Only tasks for this kind of agent.
        agent_slug: FilterText,
        /// Only tasks of this context.
        context_id: FilterText,
        /// Only tasks leased to this worker, and finished tasks whose last lease it had.
        worker_id: FilterText,
        /// Only tasks of this project, by the name that it had when they were created.
        project: FilterText,
        /// Only tasks that the submit or member key with this name created.
        owner: FilterText,
        /// Only tasks that keys of this team created.
        team: FilterText,
        /// Only tasks whose last failure was for this reason.
        reason: Option<Reason>,
        /// Only tasks that depend on this one directly.
        depends_on: Option<Id>,
        /// Only tasks with all these labels.
        labels: Option<Labels>,
        /// The same filter as `labels`, with each label as `name=value`.
        label: Option<List<LabelText, 0, MAX_LABELS>>,
        /// Only tasks created after this time, in milliseconds since the epoch.
        created_after: Option<Moment>,
        /// Only tasks created before this time, in milliseconds since the epoch.
        created_before: Option<Moment>,
        /// Only tasks that ended after this time, in milliseconds since the epoch.
        finished_after: Option<Moment>,
        /// Only tasks whose run waits for the answer of a person.
        asks: bool = false,
    } with no unknown fields
}

impl Filter {
    /// Whether no field is given. Such a filter is refused, because it would match every task, perhaps by mistake.
    fn is_empty(&self) -> bool {
        self.pairs().next().is_none() && Self { labels: None, label: None, ..self.clone() } == Self::default()
    }

    /// The labels of both fields, `labels` and `label`.
    pub fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        let map = self.labels.iter().flat_map(|labels| &labels.0).map(|(name, value)| (name.clone(), value.clone()));
        map.chain(self.label.iter().flat_map(|labels| &labels.0).map(|label| (label.name.clone(), label.value.clone())))
    }

    /// `created_after`, `created_before` and `finished_after`.
    pub fn times(&self) -> [Option<Ms>; 3] {
        [self.created_after, self.created_before, self.finished_after].map(|at| at.map(|at| at.0))
    }
}

/// A text to filter by. An empty one is refused: whoever fills it from a variable that is not set must not change the tasks of everybody.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FilterText(pub Option<String>);

impl From<&str> for FilterText {
    fn from(text: &str) -> Self {
        Self(Some(text).filter(|text| !text.is_empty()).map(str::to_owned))
    }
}

impl Wire for FilterText {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        match raw.get() {
            "null" => Ok(Self::default()),
            _ => Ok(Self(Some(Text::<1>::read(raw)?.0))),
        }
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    fn is_absent(&self) -> bool {
        *self == Self::default()
    }

    fn describe() -> Schema {
        Text::<1>::describe()
    }
}

/// The tasks that a bulk action is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Named {
    /// Exactly these tasks.
    Ids(Vec<TaskId>),
    /// All tasks that match the filter.
    Filter(Box<Filter>),
}

/// The tasks of a bulk action, and whether it only counts them.
#[derive(Clone, Debug, PartialEq)]
pub struct Bulk {
    /// The tasks to change.
    pub named: Named,
    /// Only counts the tasks that the action would change, and changes none.
    pub dry_run: bool,
    /// What a dry run told: only tasks that it can have counted are changed.
    pub as_of: Option<Ms>,
}

impl Serialize for Bulk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        match &self.named {
            Named::Ids(ids) => members.serialize_entry("ids", ids)?,
            Named::Filter(filter) => members.serialize_entry("filter", filter)?,
        }
        members.serialize_entry("dry_run", &self.dry_run)?;
        if let Some(as_of) = self.as_of {
            members.serialize_entry("as_of", &as_of)?;
        }
        members.end()
    }
}

impl Wire for Bulk {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        Self::read_from(&Members::of(raw)?, &["ids", "filter", "dry_run", "as_of"])
    }

    fn describe() -> Schema {
        Self::described([Self::BY_IDS, Self::BY_FILTER], "Tasks, named either by their ids or by a filter.", Vec::new)
    }

    fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
        Filter::components(found);
    }
}

impl Bulk {
    const BY_IDS: &'static str = "BulkByIds";
    const BY_FILTER: &'static str = "BulkByFilter";

    /// A misspelt field would make the call change other tasks, or really change them, so a body may have these fields only.
    fn read_from(members: &Members<'_>, fields: &[&'static str]) -> Result<Self, Problems> {
        let mut problems = members.unknown(fields);
        let ids = members.field::<Option<Ids>>("ids", None, &mut problems);
        let filter = members.field::<Option<Filter>>("filter", None, &mut problems);
        let dry_run = members.field("dry_run", Some(|| false), &mut problems);
        let as_of = members.field::<Option<Moment>>("as_of", Some(|| None), &mut problems);
        let (Some(ids), Some(filter), Some(dry_run), Some(as_of), true) = (ids, filter, dry_run, as_of, problems.is_empty()) else {
            return Err(problems);
        };
        let named = match (ids, filter) {
            (Some(ids), None) => Named::Ids(ids.map(|id| id.0)),
            (None, Some(filter)) if filter.is_empty() => {
                let fields = "status, agent_slug, context_id, worker_id, project, owner, team, reason, depends_on, labels, label, created_after, created_before, finished_after, asks";
                return problem(format!("The filter is empty: give at least one of {fields}")).map_err(|found| within("filter", found));
            }
            (None, Some(filter)) => Named::Filter(Box::new(filter)),
            _ => return problem("Give either ids or filter"),
        };
        Ok(Self { named, dry_run, as_of: as_of.map(|at| at.0) })
    }

    /// The schema of a body that has these fields, too. Generators of clients name the type of an alternative by its title.
    fn described([by_ids, by_filter]: [&str; 2], text: &str, more: impl Fn() -> Vec<FieldSchema>) -> Schema {
        let none = |name| FieldSchema {
            name,
            doc: "Absent, because a body has either `ids` or `filter`.",
            schema: Schema::Object(Object::with_type(Type::Null)).into(),
            required: false,
            default: None,
        };
        let dry_run = || FieldSchema::of::<bool>("dry_run", "Only count the tasks; change nothing.", Some(false.into()));
        let as_of = || {
            let text = "The `as_of` of a dry run's answer: tasks that were created or, for requeue, ended after it are skipped, because the dry run did not count them.";
            FieldSchema::of::<Option<Moment>>("as_of", text, None)
        };
        let ids = FieldSchema::of::<Ids>("ids", "Ids of the tasks: at most 1000.", None);
        let filter =
            FieldSchema::of::<Filter>("filter", "Names all tasks that match. At least one field must be present and not empty.", None);
        let with_more = |fields: [FieldSchema; 4]| fields.into_iter().chain(more()).collect();
        let by_ids = titled(by_ids, closed(object_schema("Tasks by their ids.", with_more([ids, none("filter"), dry_run(), as_of()]))));
        let by_filter =
            titled(by_filter, closed(object_schema("Tasks by a filter.", with_more([none("ids"), filter, dry_run(), as_of()]))));
        Schema::OneOf(OneOfBuilder::new().description(Some(text)).item(by_ids).item(by_filter).build())
    }
}

fn titled(title: &str, schema: Schema) -> Schema {
    match schema {
        Schema::Object(mut object) => {
            object.title = Some(title.to_owned());
            Schema::Object(object)
        }
        other => other,
    }
}

named_schema!(Bulk);

/// Queues many tasks again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BulkRequeue {
    /// The tasks to queue again.
    #[serde(flatten)]
    pub bulk: Bulk,
    /// Other limits of their runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyChange>,
    /// Also queues the tasks again that were cancelled because one of these did not complete, and those that depend on them in turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub with_dependents: bool,
}

impl Wire for BulkRequeue {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let (members, mut problems) = (Members::of(raw)?, Problems::new());
        let policy = members.field("policy", Some(|| None), &mut problems);
        let with_dependents = members.field("with_dependents", Some(|| false), &mut problems);
        let fields = ["ids", "filter", "dry_run", "as_of", "policy", "with_dependents"];
        match (Bulk::read_from(&members, &fields), policy, with_dependents) {
            (Ok(bulk), Some(policy), Some(with_dependents)) => Ok(Self { bulk, policy, with_dependents }),
            (bulk, ..) => {
                problems.extend(bulk.err().into_iter().flatten());
                Err(problems)
            }
        }
    }

    fn describe() -> Schema {
        let text = "Tasks, named either by their ids or by a filter, and new limits for their next runs.";
        let policy = || {
            FieldSchema::of::<Option<PolicyChange>>(
                "policy",
                "New limits for the next runs of the tasks. Default: the limits of each task stay.",
                None,
            )
        };
        let with_dependents = || {
            let text = "Also queue the tasks again that were cancelled because one of these did not complete, and those that were cancelled \
                because of them in turn. They count as the others do.";
            FieldSchema::of::<bool>("with_dependents", text, Some(false.into()))
        };
        Bulk::described(["BulkRequeueByIds", "BulkRequeueByFilter"], text, || vec![policy(), with_dependents()])
    }

    fn components(found: &mut Vec<(String, RefOr<Schema>)>) {
        Filter::components(found);
        PolicyChange::components(found);
    }
}

named_schema!(BulkRequeue);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invalid::Invalid;

    #[test]
    fn tasks_are_named_by_ids_or_by_a_filter_that_says_something() {
        let read = |body: &str| Bulk::read(serde_json::from_str(body).unwrap()).map_err(|problems| Invalid::from(problems).line());
        let check = |body, expected: &str| assert!(read(body).unwrap_err().starts_with(expected), "{body}: {:?}", read(body));
        check("{}", "Give either ids or filter");
        check(r#"{"ids": [], "filter": {"status": "dead"}}"#, "Give either ids or filter");
        check(r#"{"filter": {}}"#, "filter: The filter is empty");
        check(r#"{"filter": {"status": null, "labels": {}}}"#, "filter: The filter is empty");
        check(r#"{"filter": {"team": "", "status": "queued"}}"#, "filter: team: String must contain at least 1 character(s)");
        check(
            r#"{"filter": {"status": "dead", "labell": ["a=b"]}}"#,
            "filter: labell: Unknown field, so nothing was done; did you mean label?",
        );
        check(r#"{"filter": {"status": "dead"}, "dryrun": true}"#, "dryrun: Unknown field, so nothing was done; did you mean dry_run?");
        check(r#"{"ids": [], "x": 1}"#, "x: Unknown field, so nothing was done; the fields are ids, filter, dry_run, as_of");
        let requeue = serde_json::from_str(r#"{"ids": [], "polic": {}}"#).unwrap();
        assert!(BulkRequeue::read(requeue).is_err_and(|found| Invalid::from(found).line().contains("did you mean policy?")));
        check(r#"{"filter": {"label": ["a"]}}"#, "filter: label.0: Expected name=value");
        assert_eq!(read(r#"{"ids": [], "filter": null}"#).unwrap(), Bulk { named: Named::Ids(Vec::new()), dry_run: false, as_of: None });
        let Named::Filter(filter) = read(r#"{"filter": {"label": ["a=b"], "labels": {"c": "d"}}}"#).unwrap().named else { panic!() };
        assert_eq!(filter.pairs().collect::<Vec<_>>(), [("c".into(), "d".into()), ("a".into(), "b".into())]);
    }
}
