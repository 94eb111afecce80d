//! Query parameters: pages and filters of lists.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use serde_json::{Value, json};
use url::form_urlencoded;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, Required};
use uuid::Uuid;

use super::invalid::Invalid;
use super::problem_texts::{expected_words, unknown_word};
use super::requests::MAX_WAIT_SEC;
use super::values::{Id, LABEL_PATTERN, LabelText, MAX_LABELS, MAX_MS, MAX_SAFE, Moment, TEXT_PATTERN, parse_id, text_problem};
use super::wire::{Wire, one_of};
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::file::ArtifactKind;
use bloom_core::task::{LeaseOutcome, Reason};

/// Rows of a page, unless the request says otherwise.
pub const DEFAULT_LIMIT: i64 = 100;
/// The most rows of a page.
pub const MAX_LIMIT: i64 = 1000;
/// Seconds that a request waits for the end of a task, unless it says otherwise.
pub const DEFAULT_WAIT_SEC: i64 = 30;
/// Tasks that a list may name, as many as one task may depend on.
pub const MAX_IDS: usize = 100;
/// The shortest and the longest text that tasks are searched for, in characters.
const MIN_SEARCH: usize = 2;
const MAX_SEARCH: usize = 200;
/// How much of an invalid value an error text repeats.
pub(super) const SHOWN_CHARS: usize = 40;

/// The parameters of a request's query, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub struct Params(pub(super) Vec<(String, String)>);

/// For a cursor that no list returned.
pub fn invalid_cursor() -> Invalid {
    Invalid::field("cursor", "Invalid cursor: use the one from the Link header of the previous page")
}

impl Params {
    /// The parameters of this query string; none without one. Names and values are decoded.
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
    pub fn lenient(&self, name: &str, default: i64, range: RangeInclusive<i64>) -> i64 {
        let asked = self.get(name).and_then(|text| text.parse::<i64>().ok()).filter(|number| number >= range.start());
        asked.unwrap_or(default).min(*range.end())
    }

    /// # Errors
    /// `cursor` is not an id, so no list returned it.
    pub fn cursor(&self) -> Result<Option<Uuid>, Invalid> {
        self.get("cursor").map(|text| parse_id(text).ok_or_else(invalid_cursor)).transpose()
    }

    /// The cursor of a list that counts its rows.
    ///
    /// # Errors
    /// `cursor` is not a number that such a list returns.
    pub fn row_cursor(&self) -> Result<i64, Invalid> {
        let Some(text) = self.get("cursor") else { return Ok(0) };
        let is_number = text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number).ok_or_else(invalid_cursor)
    }

    /// A time in milliseconds since the epoch; `None` if it is absent.
    ///
    /// # Errors
    /// It is not an integer, or it is out of range.
    pub fn moment(&self, name: &'static str) -> Result<Option<Ms>, Invalid> {
        let bad = || Invalid::field(name, "Expected integer milliseconds since the epoch");
        let read = |text: &str| text.parse::<Ms>().ok().filter(|at| (0..=MAX_MS).contains(at)).ok_or_else(bad);
        self.get(name).map(read).transpose()
    }

    /// `true` or `false`; absent, it is false.
    ///
    /// # Errors
    /// It is another word.
    pub fn flag(&self, name: &'static str) -> Result<bool, Invalid> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Invalid::field(name, "Expected true or false")),
        }
    }

    /// # Errors
    /// The value is not an id.
    pub fn id(&self, name: &'static str) -> Result<Option<Uuid>, Invalid> {
        self.get(name).map(|text| parse_id(text).ok_or_else(|| Invalid::field(name, "Invalid uuid"))).transpose()
    }

    /// Ids with commas between them, at most [`MAX_IDS`].
    ///
    /// # Errors
    /// There are more, or one of them is not an id.
    pub fn ids(&self, name: &'static str) -> Result<Vec<Uuid>, Invalid> {
        self.several(name, MAX_IDS, |text| parse_id(text).ok_or_else(|| "Invalid uuid".to_owned()))
    }

    /// Some of these words, with commas between them.
    ///
    /// # Errors
    /// One is not among the words; the error lists them.
    pub fn words<T: Copy + fmt::Display>(&self, name: &'static str, words: &[T]) -> Result<Vec<T>, Invalid> {
        self.several(name, words.len(), |text| known(text, words))
    }

    /// One of these words; `None` if it is absent.
    ///
    /// # Errors
    /// It is not among the words; the error lists them.
    pub fn word<T: Copy + fmt::Display>(&self, name: &'static str, words: &[T]) -> Result<Option<T>, Invalid> {
        self.get(name).map(|text| known(text, words).map_err(|wrong| Invalid::field(name, wrong))).transpose()
    }

    /// The parts of a value between its commas, at most `most`.
    ///
    /// # Errors
    /// There are more, or one can't be read.
    pub fn several<T>(&self, name: &'static str, most: usize, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, Invalid> {
        let parts: Vec<&str> = self.get(name).map(|text| text.split(',').take(most + 1).collect()).unwrap_or_default();
        if parts.len() > most {
            return Err(Invalid::field(name, format!("At most {most}, with commas between them")));
        }
        parts.into_iter().map(read).collect::<Result<_, _>>().map_err(|wrong| Invalid::field(name, wrong))
    }

    /// The text as it was sent; `None` if it is absent.
    ///
    /// # Errors
    /// It contains NUL.
    pub fn text(&self, name: &'static str) -> Result<Option<String>, Invalid> {
        let check = |text: &str| match text_problem(text, 0, usize::MAX) {
            None => Ok(text.to_owned()),
            Some(wrong) => Err(Invalid::field(name, wrong)),
        };
        self.get(name).map(check).transpose()
    }

    /// A text that tasks are searched for.
    ///
    /// # Errors
    /// It is too short or too long.
    pub fn search(&self) -> Result<Option<&str>, Invalid> {
        let wrong = |text| text_problem(text, MIN_SEARCH, MAX_SEARCH).map(|wrong| Invalid::field("search", wrong));
        self.get("search").map(|text| wrong(text).map_or(Ok(text), Err)).transpose()
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

/// The one of these words that the text is.
fn known<T: Copy + fmt::Display>(text: &str, words: &[T]) -> Result<T, String> {
    words.iter().find(|word| word.to_string() == text).copied().ok_or_else(|| {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let given: String = text.chars().take(SHOWN_CHARS).collect();
        unknown_word(&expected_words(words.iter().map(String::as_str)), &given)
    })
}

/// A parameter of the query, for OpenAPI.
///
/// The schema is what clients should send. More is accepted: an empty value counts as absent, and where the description says so, a value
/// that does not fit is ignored.
pub(super) fn parameter(name: &str, description: &str, schema: Schema, example: impl Into<Value>) -> Parameter {
    let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).required(Required::False);
    parameter.description(Some(description)).schema(Some(schema)).example(Some(example.into())).build()
}

fn flag() -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(Type::Boolean).build())
}

pub(super) fn text() -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).pattern(Some(TEXT_PATTERN)).build())
}

/// Up to so many values of this pattern, with commas between them.
pub(super) fn comma_list(pattern: &str, most: usize) -> Schema {
    let pattern = format!("^({pattern}(,{pattern}){{0,{}}})?$", most.saturating_sub(1));
    Schema::Object(ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).build())
}

pub(super) fn integer(range: RangeInclusive<i64>, default: i64) -> Schema {
    let object = ObjectBuilder::new().schema_type(Type::Integer).default(Some(default.into()));
    Schema::Object(object.minimum(Some(*range.start() as isize)).maximum(Some(*range.end() as isize)).build())
}

/// `label=name=value`, which may be repeated.
pub(super) fn label_param(description: &str) -> Parameter {
    let label = ObjectBuilder::new().schema_type(Type::String).pattern(Some(format!("^$|{LABEL_PATTERN}")));
    let labels = ArrayBuilder::new().items(RefOr::T(Schema::Object(label.build()))).max_items(Some(MAX_LABELS));
    parameter("label", description, Schema::Array(labels.build()), json!(["team=docs"]))
}

/// A parameter that is a time.
pub(super) fn moment(name: &str, description: &str) -> Parameter {
    parameter(name, &format!("{description}, in milliseconds since the epoch."), Moment::describe(), 1_772_000_000_000_i64)
}

/// `limit` and `cursor` of lists in the order of ids.
pub struct PageParams;

impl IntoParams for PageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        page_params(r"^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})?$", "019c936e-3800-7000-8000-000000000002")
    }
}

/// `limit` and `cursor` of the list of workers.
pub struct WorkerPageParams;

impl IntoParams for WorkerPageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        page_params(r"^([0-9]{1,14}\..+)?$", "1772000000000.worker-01")
    }
}

/// `limit` and `cursor` of the list of queues.
pub struct QueuePageParams;

impl IntoParams for QueuePageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        page_params(r"^(=[^\x00]*)?$", "=default")
    }
}

pub(super) fn page_params(pattern: &str, example: &str) -> Vec<Parameter> {
    vec![limit_param(), cursor_param(pattern, example)]
}

pub(super) fn cursor_param(pattern: &str, example: &str) -> Parameter {
    let cursor = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).build();
    parameter("cursor", "The cursor of the next page, from the Link header of the previous page.", Schema::Object(cursor), example)
}

fn limit_param() -> Parameter {
    let description = "Maximum number of rows per page. A number above 1000 counts as 1000; a value that is not a whole number from 1 on counts as the default.";
    parameter("limit", description, integer(1..=MAX_LIMIT, DEFAULT_LIMIT), 20)
}

/// `after`, `last` and `limit` of a task's events.
pub struct EventParams;

impl IntoParams for EventParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let after = "Only events with a higher number than this. A value that is not a whole number counts as 0.";
        let last = "Only the newest events, at most this many. A value that is not a whole number is ignored.";
        let count = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0_isize)).maximum(Some(MAX_SAFE as isize)).build();
        vec![parameter("after", after, integer(0..=MAX_SAFE, 0), 0), parameter("last", last, Schema::Object(count), 10), limit_param()]
    }
}

/// The filters of artifacts.
pub struct ArtifactParams;

impl IntoParams for ArtifactParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description = "Only artifacts of this task. A value that is not an id matches nothing.";
        let kind = one_of(ArtifactKind::ALL.iter().map(|kind| kind.as_str()));
        vec![
            parameter("task_id", description, Id::describe(), "019c936e-3800-7000-8000-000000000001"),
            parameter("kind", "`answer`: only the outputs of runs; `file`: only files. An unknown value is an error.", kind, "file"),
        ]
    }
}

/// The filters of leases, besides `status`.
pub struct LeaseParams;

impl IntoParams for LeaseParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![
            parameter("task_id", "Only leases of this task.", Id::describe(), "019c936e-3800-7000-8000-000000000001"),
            parameter("worker_id", "Only leases of this worker.", text(), "worker-01"),
            parameter("outcome", "Only ended leases with this outcome. An unknown word is an error.", LeaseOutcome::describe(), "error"),
            parameter(
                "reason",
                "Only leases whose run failed or was interrupted for this reason. An unknown word is an error.",
                Reason::describe(),
                "timeout",
            ),
            moment("created_after", "Only leases made after this time"),
            moment("created_before", "Only leases made before this time"),
        ]
    }
}

/// The filters of the audit trail.
pub struct AuditParams;

impl IntoParams for AuditParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let actions = Action::ALL.iter().map(|action| action.as_str()).collect::<Vec<_>>().join("|");
        let action = comma_list(&format!("({actions})"), Action::ALL.len());
        let of_task = "Only entries about this task and its leases.";
        let actor =
            "Only changes that this actor made: `admin`, `api`, `router`, `reconciler`, a worker's id, or `key:` and the name of a key.";
        vec![
            parameter("task_id", of_task, Id::describe(), "019c936e-3800-7000-8000-000000000001"),
            parameter("worker_id", "Only entries about this worker and its leases, and about changes that it made.", text(), "worker-01"),
            parameter("actor", actor, text(), "admin"),
            parameter(
                "request_id",
                "Only changes that the request with this id made. The id is in the header `X-Request-Id` of its answer, and in the log.",
                text(),
                "5c1f0a9e7d3b2468-2a",
            ),
            parameter(
                "action",
                "Only entries with these actions, separated by commas. An unknown action is an error.",
                action,
                "task_completed,task_dead",
            ),
            parameter(
                "people",
                "`true`: only changes that people, or programs on their behalf, decided on; not what runs, workers and the server do by themselves.",
                flag(),
                true,
            ),
            moment("created_after", "Only entries made after this time"),
            moment("created_before", "Only entries made before this time"),
        ]
    }
}

/// `timeout_sec` of a wait.
pub struct WaitParams;

impl IntoParams for WaitParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description = "Seconds to wait. A number above 60 counts as 60; a value that is not a whole number counts as the default.";
        vec![parameter("timeout_sec", description, integer(0..=MAX_WAIT_SEC, DEFAULT_WAIT_SEC), 30)]
    }
}

/// `status`, one of the words of `T`; an unknown one matches nothing.
pub struct StatusParam<T>(PhantomData<T>);

impl<T: Wire> IntoParams for StatusParam<T> {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let schema = T::describe();
        let example = match &schema {
            Schema::Object(words) => words.enum_values.iter().flatten().next().cloned(),
            _ => None,
        };
        let description = "Only rows with this status. An unknown status matches nothing.";
        vec![parameter("status", description, schema, example.unwrap_or_default())]
    }
}

const SEARCH: &str = "Only tasks that have this text, in upper or lower case, in the id, the context, a label (`name=value`), the \
    message of the failure, or the first 65,536 characters of the prompt or of the newest answer. If the answer is in an object store, \
    only its beginning is searched. One call searches at most 2,000 tasks, so a page may have few or no tasks and still a Link to the \
    next page. Can't be combined with `id`.";

/// The filters of tasks, besides `status`.
pub struct TaskParams;

impl IntoParams for TaskParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let part = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^([0-9a-fA-F]{4,32})?$"));
        let searched = ObjectBuilder::new().schema_type(Type::String).min_length(Some(MIN_SEARCH)).max_length(Some(MAX_SEARCH));
        let ids = comma_list("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", MAX_IDS);
        let one = "019c936e-3800-7000-8000-000000000001";
        let id = "Only tasks whose id begins or ends with these hex digits, at least 4. Can't be combined with other filters.";
        vec![
            parameter("id", id, Schema::Object(part.build()), "7c0d9e21"),
            parameter("ids", &format!("Only the tasks with these ids: at most {MAX_IDS}, separated by commas."), ids, one),
            parameter("agent_slug", "Only tasks for this kind of agent.", text(), "writer"),
            parameter("context_id", "Only tasks of this context.", text(), "docs-review"),
            parameter("worker_id", "Only tasks leased to this worker, and finished tasks whose last lease it had.", text(), "worker-01"),
            parameter("project", "Only tasks of this project, by the name that it had when they were created.", text(), "docs"),
            parameter("owner", "Only tasks that the submit or member key with this name created.", text(), "ann"),
            parameter("team", "Only tasks that keys of this team created.", text(), "docs"),
            parameter(
                "reason",
                "Only tasks whose last failure was for this reason. An unknown word is an error.",
                Reason::describe(),
                "timeout",
            ),
            parameter("depends_on", "Only tasks that depend on this one directly.", Id::describe(), one),
            parameter("search", SEARCH, Schema::Object(searched.pattern(Some(TEXT_PATTERN)).build()), "spelling"),
            label_param("Only tasks with this label, `name=value`; may be repeated."),
            moment("created_after", "Only tasks created after this time"),
            moment("created_before", "Only tasks created before this time"),
            moment("finished_after", "Only tasks that ended after this time, with any status"),
            parameter("asks", "`true`: only tasks whose run waits for the answer of a person.", flag(), true),
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
