//! The time limit of runs: what is usual, what a server allows, and its change in a task that exists.

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema};

use super::invalid::Invalid;
use super::problem_texts::too_large;
use super::values::Int;
use super::wire::{Members, Problems, Wire, named_schema, problem, within};
use bloom_core::limits::TIMEOUT_SEC;
use bloom_core::task::TaskSpec;

/// Seconds. The server's setting `MAX_TIMEOUT_SECONDS` allows less; see [`must_be_allowed`].
pub type TimeLimit = Int<1, TIMEOUT_SEC>;
/// Of a task whose request to the API names none.
pub const DEFAULT: TimeLimit = Int(120);
/// Of a task that a person submits without naming one, on the command line, on the page or as an object of Kubernetes, unless the profile of
/// its agent has one; see [`add_usual`].
pub const USUAL: TimeLimit = Int(1800);

const FIELD: &str = "timeout_sec";
const IS_DEFAULT: &str = "timeout_is_default";

/// # Errors
/// The server allows no time limit as long as this.
pub fn must_be_allowed(seconds: i64, most: i64) -> Result<(), Invalid> {
    if seconds <= most {
        return Ok(());
    }
    let wrong = format!("{FIELD}: {}: that is MAX_TIMEOUT_SECONDS of this server", too_large(most));
    Err(Invalid::field("policy", wrong))
}

/// Checks the time limit of a new task, and keeps profiles within what the server allows, too.
///
/// # Errors
/// The server allows no time limit as long as this.
pub fn keep_within(task: &mut TaskSpec, most: i64) -> Result<(), Invalid> {
    must_be_allowed(task.timeout_sec, most)?;
    task.profile_timeout_max = task.profile_timeout_max.map(|longest| longest.min(most));
    Ok(())
}

/// Adds [`USUAL`] to the policy of a new task that a person submits, if it names no time limit.
pub fn add_usual(policy: &mut Map<String, Value>) {
    if policy.get(FIELD).is_none_or(Value::is_null) {
        policy.insert(FIELD.into(), USUAL.0.into());
        policy.insert(IS_DEFAULT.into(), true.into());
    }
}

/// The changes of a task's policy: only its time limit can be changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyChange {
    /// The time limit of each run, in seconds.
    pub timeout_sec: TimeLimit,
}

impl PolicyChange {
    /// A change to this time limit, in seconds.
    pub fn to(seconds: i64) -> Self {
        Self { timeout_sec: Int(seconds) }
    }
}

impl serde::Serialize for PolicyChange {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(FIELD, self.timeout_sec)])
    }
}

impl Wire for PolicyChange {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let members = Members::of(raw)?;
        if let Some((other, _)) = members.iter().find(|(name, _)| *name != FIELD) {
            return problem(format!("This field can't be changed; only {FIELD} can")).map_err(|found| within(other.to_owned(), found));
        }
        match members.get(FIELD) {
            Some(seconds) => TimeLimit::read(seconds).map(|timeout_sec| Self { timeout_sec }).map_err(|found| within(FIELD, found)),
            None => problem("Required").map_err(|found| within(FIELD, found)),
        }
    }

    fn describe() -> Schema {
        let mut seconds = TimeLimit::describe();
        if let Schema::Object(seconds) = &mut seconds {
            let text =
                "Seconds after the start of the process at which the agent ends the run; at most `MAX_TIMEOUT_SECONDS` of the server.";
            seconds.description = Some(text.into());
        }
        let object = ObjectBuilder::new().description(Some("A new time limit. Other limits can't be changed."));
        let object = object.property(FIELD, seconds).required(FIELD).additional_properties(Some(AdditionalProperties::FreeForm(false)));
        Schema::Object(object.build())
    }

    fn refer() -> utoipa::openapi::RefOr<Schema> {
        utoipa::openapi::schema::Ref::from_schema_name("PolicyChange").into()
    }

    fn components(found: &mut Vec<(String, utoipa::openapi::RefOr<Schema>)>) {
        found.push(("PolicyChange".to_owned(), Self::describe().into()));
    }
}

named_schema!(PolicyChange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_limit_of_a_policy_changes() {
        let read = |body: &str| PolicyChange::read(serde_json::from_str(body).unwrap()).map_err(|problems| Invalid::from(problems).line());
        assert_eq!(read(r#"{"timeout_sec": 7200}"#), Ok(PolicyChange::to(7200)));
        assert_eq!(read(&serde_json::to_string(&PolicyChange::to(7200)).unwrap()), Ok(PolicyChange::to(7200)));
        let check = |body, expected: &str| assert_eq!(read(body).unwrap_err(), expected);
        check("{}", "timeout_sec: Required");
        check(r#"{"timeout_sec": 5, "budget": 1}"#, "budget: This field can't be changed; only timeout_sec can");
        check(r#"{"timeout_sec": 604801}"#, "timeout_sec: Number must be less than or equal to 604800");
        check(r#"{"timeout_sec": null}"#, "timeout_sec: Expected number, received null");
    }

    #[test]
    fn a_server_allows_less_than_could_be_stored() {
        assert_eq!(must_be_allowed(3600, 3600), Ok(()));
        let told = must_be_allowed(3601, 3600).unwrap_err().line();
        assert_eq!(told, "policy: timeout_sec: Number must be less than or equal to 3600: that is MAX_TIMEOUT_SECONDS of this server");
    }
}
