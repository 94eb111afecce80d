//! Query parameters: pages and filters of lists.

use std::fmt;

use url::form_urlencoded;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, Required};
use uuid::Uuid;

use super::error::Invalid;
use super::values::{LABEL_PATTERN, LabelText, MAX_LABELS, MAX_MS, TEXT_PATTERN, URL_PATTERN, parse_id, text_problem};
use bloom_core::Ms;
use bloom_core::audit::Action;

pub const DEFAULT_LIMIT: i64 = 100;
pub const MAX_LIMIT: i64 = 1000;
/// How much of an invalid value an error text repeats.
const SHOWN_CHARS: usize = 40;

/// The parameters of a request's query, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub struct Params(Vec<(String, String)>);

impl Params {
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// The first value that is not empty: an empty value counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// `limit`: an invalid value means the default, a larger one than [`MAX_LIMIT`] means that limit.
    pub fn limit(&self) -> i64 {
        let digits = self.get("limit").filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.map(|text| text.parse().unwrap_or(MAX_LIMIT)) {
            None | Some(0) => DEFAULT_LIMIT,
            Some(limit) => limit.min(MAX_LIMIT),
        }
    }

    /// An integer. A value that is invalid or below the range means the default; one above it means the end of the range.
    pub fn lenient(&self, name: &str, default: i64, range: std::ops::RangeInclusive<i64>) -> i64 {
        let asked = self.get(name).and_then(|text| text.parse::<i64>().ok()).filter(|number| number >= range.start());
        asked.unwrap_or(default).min(*range.end())
    }

    /// # Errors
    /// `cursor` is not an id, so no list returned it.
    pub fn cursor(&self) -> Result<Option<Uuid>, Invalid> {
        let bad = || Invalid::field("cursor", "Invalid cursor: use the one from the Link header of the previous page");
        self.get("cursor").map(|text| parse_id(text).ok_or_else(bad)).transpose()
    }

    pub fn moment(&self, name: &'static str) -> Result<Option<Ms>, Invalid> {
        let bad = || Invalid::field(name, "Expected integer milliseconds since the epoch");
        let read = |text: &str| text.parse::<Ms>().ok().filter(|at| (0..=MAX_MS).contains(at)).ok_or_else(bad);
        self.get(name).map(read).transpose()
    }

    /// # Errors
    /// The value is not an id.
    pub fn id(&self, name: &'static str) -> Result<Option<Uuid>, Invalid> {
        self.get(name).map(|text| parse_id(text).ok_or_else(|| Invalid::field(name, "Invalid uuid"))).transpose()
    }

    /// One of these words.
    ///
    /// # Errors
    /// The value is another one; the error lists the words.
    pub fn word<T: Copy + fmt::Display>(&self, name: &'static str, words: &[T]) -> Result<Option<T>, Invalid> {
        let read = |text: &str| {
            words.iter().find(|word| word.to_string() == text).copied().ok_or_else(|| {
                let known = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" | ");
                let given: String = text.chars().take(SHOWN_CHARS).collect();
                Invalid::field(name, format!("Invalid enum value. Expected {known}, received '{given}'"))
            })
        };
        self.get(name).map(read).transpose()
    }

    pub fn text(&self, name: &'static str) -> Result<Option<String>, Invalid> {
        let check = |text: &str| match text_problem(text, 0, usize::MAX) {
            None => Ok(text.to_owned()),
            Some(wrong) => Err(Invalid::field(name, wrong)),
        };
        self.get(name).map(check).transpose()
    }

    /// `label=name=value`, which may be repeated.
    pub fn labels(&self) -> Result<Vec<LabelText>, Invalid> {
        let given = self.0.iter().filter(|(name, value)| name == "label" && !value.is_empty());
        let labels: Result<Vec<_>, _> = given.map(|(_, text)| LabelText::parse(text)).collect();
        match labels {
            Ok(labels) if labels.len() <= MAX_LABELS => Ok(labels),
            Ok(_) => Err(Invalid::field("label", format!("At most {MAX_LABELS} labels"))),
            Err(wrong) => Err(Invalid::field("label", wrong)),
        }
    }

    /// The value of the header `Link` for the next page of this list.
    pub fn next_link(&self, path: &str, cursor: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.0.iter().filter(|(name, _)| name != "cursor"));
        query.append_pair("cursor", cursor);
        format!("<{path}?{}>; rel=\"next\"", query.finish())
    }
}

/// A parameter of the query, for OpenAPI.
fn parameter(name: &str, description: &str, schema: Schema) -> Parameter {
    let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).required(Required::False);
    parameter.description(Some(description)).schema(Some(schema)).build()
}

fn plain() -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).build())
}

fn text() -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).pattern(Some(TEXT_PATTERN)).build())
}

/// An id, or nothing.
const ID_PATTERN: &str = r"^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})?$";

fn id() -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).pattern(Some(ID_PATTERN)).build())
}

fn moment() -> Schema {
    // A string, because an empty value is valid and means no filter.
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).pattern(Some("^([0-9]{1,14})?$")).build())
}

/// `limit` and `cursor` of lists in the order of ids.
pub struct PageParams;

impl IntoParams for PageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        page_params(ID_PATTERN)
    }
}

/// `limit` and `cursor` of the list of workers.
pub struct WorkerPageParams;

impl IntoParams for WorkerPageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        page_params(r"^([0-9]{1,14}\..+)?$")
    }
}

fn page_params(cursor: &str) -> Vec<Parameter> {
    let cursor = ObjectBuilder::new().schema_type(Type::String).pattern(Some(cursor)).build();
    vec![
        limit_param(),
        parameter("cursor", "The cursor of the next page, from the Link header of the previous page.", Schema::Object(cursor)),
    ]
}

fn limit_param() -> Parameter {
    parameter("limit", "Rows per page: default 100, at most 1000. Non-numeric values are ignored.", plain())
}

/// `after`, `last` and `limit` of a task's events.
pub struct EventParams;

impl IntoParams for EventParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![
            parameter("after", "Only events with a higher number. Non-numeric values count as 0.", plain()),
            parameter("last", "Only the newest events, at most this many. Non-numeric values are ignored.", plain()),
            limit_param(),
        ]
    }
}

/// `task_id` of artifacts.
pub struct ArtifactParams;

impl IntoParams for ArtifactParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![parameter("task_id", "Only artifacts of this task. A value that is not an id matches nothing.", plain())]
    }
}

/// The filters of leases, besides `status`.
pub struct LeaseParams;

impl IntoParams for LeaseParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![parameter("task_id", "Only leases of this task.", id()), parameter("worker_id", "Only leases of this worker.", text())]
    }
}

/// The filters of the audit trail.
pub struct AuditParams;

impl IntoParams for AuditParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let actions = std::iter::once("").chain(Action::ALL.iter().map(|action| action.as_str()));
        let action = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(actions));
        vec![
            parameter("task_id", "Only entries of this task and of its leases.", id()),
            parameter("worker_id", "Only entries of this worker, of its leases, and of what it did.", text()),
            parameter("actor", "Only what this actor did: `admin`, `api`, `router`, `reconciler`, or a worker's id.", text()),
            parameter("action", "Only this action; an unknown one is an error.", Schema::Object(action.build())),
            parameter("created_after", "Only entries made after this time, in milliseconds since the epoch.", moment()),
            parameter("created_before", "Only entries made before this time, in milliseconds since the epoch.", moment()),
        ]
    }
}

/// `timeout_sec` of a wait.
pub struct WaitParams;

impl IntoParams for WaitParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![parameter("timeout_sec", "Seconds to wait: default 30, at most 60.", plain())]
    }
}

/// `node_id` and `server_url` of the agent's install script.
pub struct InstallParams;

impl IntoParams for InstallParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let name = ObjectBuilder::new().schema_type(Type::String).max_length(Some(128)).pattern(Some(r"^[^\x00-\x1F\x7F-\x9F]*$"));
        let url = format!("^$|{URL_PATTERN}");
        let url = ObjectBuilder::new().schema_type(Type::String).max_length(Some(2048)).pattern(Some(url));
        vec![
            parameter("node_id", "The worker's name. Default: made from the machine's host name.", Schema::Object(name.build())),
            parameter(
                "server_url",
                "URL at which the agent reaches this server. Default: the address of this request.",
                Schema::Object(url.build()),
            ),
        ]
    }
}

/// `from`, `to` and `by` of the usage.
pub struct UsageParams;

impl IntoParams for UsageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let by = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["", "day", "agent_slug", "model", "context_id"]));
        vec![
            parameter("from", "Only runs that ended at this time or later, in milliseconds since the epoch.", moment()),
            parameter("to", "Only runs that ended before this time, in milliseconds since the epoch.", moment()),
            parameter("by", "What to group by; default `day`.", Schema::Object(by.build())),
        ]
    }
}

/// `status`; an unknown one matches nothing.
pub struct StatusParam;

impl IntoParams for StatusParam {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![parameter("status", "Only rows with this status. An unknown status matches nothing; an empty value is ignored.", plain())]
    }
}

/// The filters of tasks, besides `status`.
pub struct TaskParams;

impl IntoParams for TaskParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let label = ObjectBuilder::new().schema_type(Type::String).pattern(Some(format!("^$|{LABEL_PATTERN}")));
        let labels = ArrayBuilder::new().items(RefOr::T(Schema::Object(label.build()))).max_items(Some(MAX_LABELS));
        let part = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^([0-9a-fA-F]{4,32})?$"));
        let id = "Only tasks whose id begins or ends with these hex digits, at least 4. Can't be combined with other filters.";
        vec![
            parameter("id", id, Schema::Object(part.build())),
            parameter("agent_slug", "Only tasks for this agent (slug).", text()),
            parameter("context_id", "Only tasks of this context.", text()),
            parameter("worker_id", "Only tasks leased to this worker, and finished tasks whose last lease it had.", text()),
            parameter("label", "Only tasks with this label, `name=value`; may be repeated.", Schema::Array(labels.build())),
            parameter("created_after", "Only tasks created after this time, in milliseconds since the epoch.", moment()),
            parameter("created_before", "Only tasks created before this time, in milliseconds since the epoch.", moment()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_lenient() {
        let check = |query, limit| assert_eq!(Params::parse(Some(query)).limit(), limit, "{query}");
        check("", 100);
        check("limit=", 100);
        check("limit=7", 7);
        check("limit=0", 100);
        check("limit=-3", 100);
        check("limit=ten", 100);
        check("limit=1.5", 100);
        check("limit=1001", 1000);
        check("limit=99999999999999999999999", 1000);
    }

    #[test]
    fn a_cursor_is_strict() {
        assert_eq!(Params::parse(Some("cursor=")).cursor(), Ok(None));
        assert!(Params::parse(Some("cursor=0190a000-0000-7000-8000-000000000000")).cursor().is_ok_and(|cursor| cursor.is_some()));
        assert!(Params::parse(Some("cursor=5")).cursor().is_err());
        assert!(Params::parse(Some("cursor=0190a00000007000800000000000000000")).cursor().is_err());
    }

    #[test]
    fn the_next_page_keeps_the_filters() {
        let params = Params::parse(Some("status=queued&label=a%3D1&cursor=old"));
        assert_eq!(params.next_link("/x", "new"), "</x?status=queued&label=a%3D1&cursor=new>; rel=\"next\"");
    }
}
