//! Queues of agents: what is set for them, and how full they are.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::values::Int;
use super::wire::{FieldSchema, Members, Problems, Wire, object_schema, problem, within};
use bloom_core::Ms;
use bloom_core::agent_queue::{ALL_QUEUES, AgentQueue, MAX_QUEUE_LIMIT};

/// The queue of one agent and its settings, or all queues together.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Queue<'a> {
    /// The agent that its tasks are for; `null`: all queues together.
    pub agent_slug: Option<Cow<'a, str>>,
    /// Whether it is paused: no leases of its tasks are created. While all queues are paused, no other queue gives leases either, even if
    /// it is not paused itself.
    pub paused: bool,
    /// Since when it is paused.
    pub paused_at: Option<Ms>,
    /// Maximum number of active leases; `null` = no limit.
    pub max_concurrency: Option<i64>,
    /// Number of queued tasks, including those that are not ready.
    pub queued: i64,
    /// Number of tasks that workers have now.
    pub active_leases: i64,
    /// Number of workers that serve the agent, online or not; for all queues together, of all workers. If it is 0, the tasks wait.
    pub workers: i64,
}

impl<'a> Queue<'a> {
    /// A queue with what is set for it. `queued` and `active_leases` are the numbers of its tasks, `workers` of those that serve it.
    pub fn new(queue: &'a AgentQueue, queued: i64, active_leases: i64, workers: i64) -> Self {
        Self {
            agent_slug: Some(Cow::from(&queue.agent_slug)).filter(|agent_slug| agent_slug != ALL_QUEUES),
            paused: queue.paused_at.is_some(),
            paused_at: queue.paused_at,
            max_concurrency: queue.max_concurrency,
            queued,
            active_leases,
            workers,
        }
    }
}

/// Limits how many leases of a queue are active at a time. The field must be there: without it, a misspelled name would remove a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewQueueLimit {
    /// `None` removes the limit.
    pub max_concurrency: Option<Int<1, MAX_QUEUE_LIMIT>>,
}

const FIELD: &str = "max_concurrency";

impl Serialize for NewQueueLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(Some(1))?;
        members.serialize_entry(FIELD, &self.max_concurrency)?;
        members.end()
    }
}

impl Wire for NewQueueLimit {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let read = match Members::of(raw)?.get(FIELD) {
            None => problem(format!("Required: 1 to {MAX_QUEUE_LIMIT}, or null to remove the limit")),
            Some(given) if given.get() == "null" => Ok(None),
            Some(given) => Int::read(given).map(Some),
        };
        read.map(|max_concurrency| Self { max_concurrency }).map_err(|found| within(FIELD, found))
    }

    fn describe() -> Schema {
        let mut limit = Int::<1, MAX_QUEUE_LIMIT>::describe();
        if let Schema::Object(limit) = &mut limit {
            limit.schema_type = SchemaType::Array(vec![Type::Integer, Type::Null]);
        }
        let doc = "Maximum number of active leases; null removes the limit. Active leases above a new limit go on.";
        object_schema(
            "The limit of a queue.",
            vec![FieldSchema { name: FIELD, doc, schema: RefOr::T(limit), required: true, default: None }],
        )
    }
}

impl PartialSchema for NewQueueLimit {
    fn schema() -> RefOr<Schema> {
        RefOr::T(Self::describe())
    }
}

impl ToSchema for NewQueueLimit {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invalid::Invalid;

    #[test]
    fn a_limit_is_a_number_or_null_but_never_missing() {
        let read = |body: &str| NewQueueLimit::read(serde_json::from_str(body).unwrap()).map_err(|problems| Invalid::from(problems).line());
        assert_eq!(read(r#"{"max_concurrency": 3}"#), Ok(NewQueueLimit { max_concurrency: Some(Int(3)) }));
        assert_eq!(read(r#"{"max_concurrency": null}"#), Ok(NewQueueLimit { max_concurrency: None }));
        let wrong = |body, expected: &str| assert_eq!(read(body).unwrap_err(), format!("max_concurrency: {expected}"), "{body}");
        wrong("{}", "Required: 1 to 10000, or null to remove the limit");
        wrong(r#"{"max_concurency": 3}"#, "Required: 1 to 10000, or null to remove the limit");
        wrong(r#"{"max_concurrency": 0}"#, "Number must be greater than or equal to 1");
        wrong(r#"{"max_concurrency": 10001}"#, "Number must be less than or equal to 10000");
        wrong(r#"{"max_concurrency": 1.5}"#, "Expected integer, received float");
        wrong(r#"{"max_concurrency": "3"}"#, "Expected number, received string");
        assert_eq!(serde_json::to_string(&read(r#"{"max_concurrency": null}"#).unwrap()).unwrap(), r#"{"max_concurrency":null}"#);
    }
}
