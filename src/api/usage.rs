//! What runs used, in answers, and what is asked of it.

use serde::{Deserialize, Serialize};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use super::invalid::Invalid;
use super::lists::{MAX_LIMIT, Params, SHOWN_CHARS, comma_list, cursor_param, integer, label_param, moment, parameter, text};
use bloom_core::similar::did_you_mean;
use bloom_core::usage;

/// Tokens and US dollars that runs used.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct Usage {
    /// Number of tokens that the model read.
    pub input_tokens: i64,
    /// Number of tokens that the model wrote.
    pub output_tokens: i64,
    /// US dollars.
    pub cost_usd: f64,
    /// Whether a part of the US dollars is estimated, because a run ended without a total; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub cost_estimated: bool,
}

impl From<usage::Usage> for Usage {
    fn from(usage: usage::Usage) -> Self {
        let usage::Usage { input_tokens, output_tokens, cost_usd, cost_estimated } = usage;
        Self { input_tokens, output_tokens, cost_usd, cost_estimated }
    }
}

/// What usage may be grouped by at once.
pub const MAX_USAGE_KEYS: usize = 2;

/// The parameters of the usage.
pub struct UsageParams;

impl UsageParams {
    /// # Errors
    /// There is another parameter than these: a misspelt filter would answer with everybody's money.
    pub fn check_names(given: &Params) -> Result<(), Invalid> {
        let known = Self::into_params(|| None);
        let known: Vec<&str> = known.iter().map(|parameter| parameter.name.as_str()).collect();
        let Some((name, _)) = given.0.iter().find(|(name, _)| !known.contains(&name.as_str())) else { return Ok(()) };
        let name: String = name.chars().take(SHOWN_CHARS).collect();
        let meant = did_you_mean(&name, known.iter().copied());
        Err(Invalid::field("query", format!("There is no parameter '{name}'{meant}; there are {}", known.join(", "))))
    }
}

/// US dollars in ten thousandths, rounded from the nearest billionth: sums of the same amounts in another order differ behind that.
pub fn in_ten_thousandths(usd: f64) -> f64 {
    ((usd * 1e9).round() / 1e5 + 0.5).floor() / 1e4
}

/// What usage is grouped by, besides `label:` and the name of a label: by the words of the command line and of the pages, and by those of the API.
pub const USAGE_WORDS: [(&str, &str); 9] = [
    ("day", "day"),
    ("week", "week"),
    ("agent", "agent_slug"),
    ("model", "model"),
    ("context", "context_id"),
    ("project", "project"),
    ("worker", "worker_id"),
    ("team", "team"),
    ("creator", "created_by"),
];

/// The words of the API. `created_by` is the last: its meaning follows it in the description.
pub fn usage_keys() -> [&'static str; 9] {
    USAGE_WORDS.map(|(_, key)| key)
}

/// What the pages call a creator.
const PERSON: &str = "person";

/// The word of the API for a key.
///
/// # Errors
/// There is no such key; the error says which there are.
pub fn usage_key(text: &str) -> Result<String, String> {
    let word = if text == PERSON { "creator" } else { text };
    let known = USAGE_WORDS.iter().find(|(known, _)| *known == word).map(|(_, key)| *key);
    let label = || Some(text).filter(|text| text.strip_prefix("label:").is_some_and(|name| !name.is_empty()));
    known.or_else(label).map(str::to_owned).ok_or_else(|| {
        let words: Vec<&str> = USAGE_WORDS.iter().map(|(word, _)| *word).chain([PERSON]).collect();
        let meant = did_you_mean(text, words.iter().copied());
        format!("expected {} or label:NAME{meant}", words.join(", "))
    })
}

impl IntoParams for UsageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let key = format!("({}|label:[^,\\x00]+)", usage_keys().join("|"));
        let by = format!(
            "What to group by, one or two of these words, separated by a comma: `{}` (who created the task, like `actor` of the audit trail), or `label:` and the name of a label. Default: `day`.",
            usage_keys().join("`, `")
        );
        let limit = "Maximum number of rows per page. Any value that is not a whole number from 1 to 1000 counts as 1000.";
        vec![
            moment("from", "Only runs that ended at this time or later"),
            moment("to", "Only runs that ended before this time"),
            parameter("by", &by, comma_list(&key, MAX_USAGE_KEYS), "label:team,day"),
            parameter("agent_slug", "Only runs of tasks for this kind of agent.", text(), "writer"),
            parameter("context_id", "Only runs in this context.", text(), "docs-review"),
            parameter("project", "Only runs of tasks in the project with this name.", text(), "docs"),
            parameter("worker_id", "Only runs of this worker.", text(), "worker-01"),
            parameter("team", "Only runs of tasks that keys of this team created.", text(), "docs"),
            parameter("created_by", "Only runs of tasks that were created by this actor of the audit trail.", text(), "key:ci"),
            label_param("Only runs of tasks with this label, `name=value`; may be repeated."),
            parameter("limit", limit, integer(1..=MAX_LIMIT, MAX_LIMIT), 20),
            cursor_param("^([0-9]{1,9})?$", "1000"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_another_name_of_a_creator() {
        assert_eq!(usage_key("person"), Ok("created_by".to_owned()));
        assert!(usage_key("persons").is_err());
    }

    #[test]
    fn sums_in_another_order_are_shown_alike() {
        let amounts = [0.1, 0.2, 0.3, 0.05, 0.066_85];
        let (there, back): (f64, f64) = (amounts.iter().sum(), amounts.iter().rev().sum());
        assert_eq!((in_ten_thousandths(there), in_ten_thousandths(back)), (0.7169, 0.7169));
        assert_eq!((in_ten_thousandths(0.716_849_999_999_9), in_ten_thousandths(0.716_84)), (0.7169, 0.7168));
        assert_eq!((in_ten_thousandths(0.0), in_ten_thousandths(12.5)), (0.0, 12.5));
    }
}
