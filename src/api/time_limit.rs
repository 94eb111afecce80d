//! The time limit of runs: what is usual, and what a server allows; and the change of the limits of a task that exists.

use serde_json::{Map, Value};

use super::invalid::Invalid;
use super::problem_texts::too_large;
use super::values::{Int, Usd};
use super::wire::{Problems, body, problem};
use bloom_core::limits::TIMEOUT_SEC;
use bloom_core::task::TaskSpec;
use bloom_core::task_limits::LimitChange;

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

body! {
    /// New limits of a task: at least one. An absent field stays as it is.
    #[derive(Default)]
    pub struct PolicyChange {
        /// Seconds after the start of the process at which the agent ends the run; at most `MAX_TIMEOUT_SECONDS` of the server.
        timeout_sec: Option<TimeLimit>,
        /// US dollars that all attempts together may cost; 0 = the task sets no limit. For a task that is requeued, only its attempts from
        /// then on count.
        budget: Option<Usd>,
    } with no unknown fields checked by changes_something
}

fn changes_something(change: &PolicyChange) -> Result<(), Problems> {
    if *change == PolicyChange::default() {
        return problem(format!("Give at least one of {}", PolicyChange::FIELDS.join(", ")));
    }
    Ok(())
}

impl From<&PolicyChange> for LimitChange {
    fn from(change: &PolicyChange) -> Self {
        Self { timeout_sec: change.timeout_sec.map(|seconds| seconds.0), budget: change.budget.map(|usd| usd.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire as _;

    #[test]
    fn the_time_limit_and_the_budget_of_a_policy_change() {
        let read = |body: &str| {
            let change = PolicyChange::read(serde_json::from_str(body).unwrap());
            change.map(|change| LimitChange::from(&change)).map_err(|problems| Invalid::from(problems).line())
        };
        let both = LimitChange { timeout_sec: Some(7200), budget: Some(0.5) };
        assert_eq!(read(r#"{"timeout_sec": 7200, "budget": 0.5}"#), Ok(both));
        assert_eq!(read(r#"{"budget": 0}"#), Ok(LimitChange { budget: Some(0.0), ..LimitChange::default() }));
        let sent = PolicyChange { timeout_sec: Some(Int(5)), budget: None };
        assert_eq!(serde_json::to_string(&sent).unwrap(), r#"{"timeout_sec":5}"#);
        let check = |body, expected: &str| assert_eq!(read(body).unwrap_err(), expected);
        check("{}", "Give at least one of timeout_sec, budget");
        check(r#"{"timeout_sec": null}"#, "Give at least one of timeout_sec, budget");
        check(r#"{"timeout_sec": 604801}"#, "timeout_sec: Number must be less than or equal to 604800");
        check(r#"{"budget": -1}"#, "budget: Number must be greater than or equal to 0");
        assert!(read(r#"{"timeout_sec": 5, "timeout_is_default": true}"#).unwrap_err().starts_with("timeout_is_default: "));
    }

    #[test]
    fn a_server_allows_less_than_could_be_stored() {
        assert_eq!(must_be_allowed(3600, 3600), Ok(()));
        let told = must_be_allowed(3601, 3600).unwrap_err().line();
        assert_eq!(told, "policy: timeout_sec: Number must be less than or equal to 3600: that is MAX_TIMEOUT_SECONDS of this server");
    }
}
