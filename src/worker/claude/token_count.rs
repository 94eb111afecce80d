//! Counts what a run uses, including its sub-agents, message by message until the CLI reports a total.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::claude::prices::{Prices, Tokens};
use bloom_core::usage::Usage;

/// How many messages are counted separately. Each counts once, although its parts are printed one by one. The limit is needed because a run
/// can print anything.
const MAX_MESSAGES: usize = 10_000;
/// How many models are counted separately for earlier messages.
const MAX_MODELS: usize = 100;
/// The maximum cost of a run, in US dollars. A larger number is an error of the program that reports it, and counts as this much, which
/// exceeds any budget.
const MAX_RUN_USD: f64 = 10_000.0;
/// The maximum length of a message's id, or of a model's name, in bytes.
const MAX_NAME: usize = 128;

/// The tokens of the messages seen so far.
#[derive(Debug, Default)]
pub(crate) struct TokenCount {
    /// The messages by id.
    messages: BTreeMap<String, Counted>,
    /// The sums of earlier messages, by model.
    earlier: Vec<Counted>,
    /// The message that the model is writing now.
    open: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    model: String,
    tokens: Tokens,
}

/// What the CLI's `result` lines say about the whole run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Total {
    /// The model's main loop: without sub-agents, and 0 after some errors.
    main_loop: Counted,
    /// Everything that the run used, by model.
    by_model: Vec<Counted>,
    cost_usd: Option<f64>,
    /// Whether each result reports what was used since the previous one. The result's other numbers are about the whole session, including
    /// earlier runs.
    adds_up: bool,
}

impl Total {
    /// `model` is the model of the run, `earlier` the total of the process before this result.
    pub(crate) fn of(result: &Value, model: Option<&str>, earlier: Option<&Self>) -> Self {
        let total = Self::of_one(result, model);
        match earlier.filter(|earlier| earlier.adds_up) {
            Some(earlier) if total.adds_up => earlier.plus(total),
            // A result after an internal error of the CLI may lack the field, or have zeros.
            Some(earlier) => earlier.clone(),
            None => earlier.map_or_else(|| total.clone(), |earlier| earlier.or_more(&total)),
        }
    }

    fn of_one(result: &Value, model: Option<&str>) -> Self {
        // `abs` turns -0.0 into 0.0.
        let dollars = |value: &Value| value.as_f64().filter(|usd| usd.is_finite() && *usd >= 0.0).map(f64::abs);
        let main_loop = Counted { model: short(model.unwrap_or_default()), tokens: tokens(&result["usage"]) };
        let since_last = result["model_usage_since_last_result"].as_object();
        let models = since_last.or_else(|| result["modelUsage"].as_object());
        let by_model = models
            .into_iter()
            .flatten()
            .take(MAX_MODELS)
            .map(|(model, used)| Counted { model: short(model), tokens: tokens_of_model(used) });
        let of_models = models.and_then(|models| models.values().map(|used| dollars(&used["costUSD"])).try_fold(0.0, add_dollars));
        let cost_usd = match since_last {
            Some(_) => of_models,
            None => dollars(&result["total_cost_usd"]).into_iter().chain(of_models.filter(|usd| *usd > 0.0)).reduce(f64::max),
        };
        Self { main_loop, by_model: by_model.collect(), cost_usd, adds_up: since_last.is_some() }
    }

    fn plus(&self, later: Self) -> Self {
        let mut sum = self.clone();
        sum.main_loop.tokens = sum_of(sum.main_loop.tokens, later.main_loop.tokens);
        add_to(&mut sum.by_model, later.by_model);
        sum.cost_usd = self.cost_usd.and_then(|earlier| add_dollars(earlier, later.cost_usd));
        sum
    }

    /// The larger of two counts of the same thing.
    fn or_more(&self, later: &Self) -> Self {
        let mut most = later.clone();
        most.main_loop.tokens = larger_of(self.main_loop.tokens, later.main_loop.tokens);
        for counted in &self.by_model {
            match most.by_model.iter_mut().find(|of_model| of_model.model == counted.model) {
                Some(of_model) => of_model.tokens = larger_of(of_model.tokens, counted.tokens),
                None => most.by_model.push(counted.clone()),
            }
        }
        most.cost_usd = self.cost_usd.into_iter().chain(later.cost_usd).reduce(f64::max);
        most
    }
}

impl TokenCount {
    /// Counts the beginning of a message whose parts follow.
    pub(crate) fn begins(&mut self, message: &Value, model: Option<&str>) {
        self.message(message, model);
        self.open = message["id"].as_str().map(short);
    }

    /// Counts the end of the open message. Only the end has the number of all tokens that the model wrote.
    pub(crate) fn ends(&mut self, usage: &Value) {
        if let Some(counted) = self.open.as_ref().and_then(|id| self.messages.get_mut(id)) {
            counted.tokens = larger_of(counted.tokens, tokens(usage));
        }
    }

    /// Counts a message, or a part of one; `model` is the model of the run.
    pub(crate) fn message(&mut self, message: &Value, model: Option<&str>) {
        let model = message["model"].as_str().or(model);
        if let (Some(id), usage @ Value::Object(_)) = (message["id"].as_str(), &message["usage"]) {
            self.count(id, model, tokens(usage));
        }
    }

    /// Counts the result of a tool. The CLI does not print the last message of a sub-agent; the result of the sub-agent's tool has the
    /// usage of that message.
    pub(crate) fn tool_result(&mut self, message: &Value, model: Option<&str>) {
        let result = &message["tool_use_result"];
        if let (Some(id), usage @ Value::Object(_)) = (message["message"]["content"][0]["tool_use_id"].as_str(), &result["usage"]) {
            self.count(id, result["resolvedModel"].as_str().or(model), tokens(usage));
        }
    }

    fn count(&mut self, id: &str, model: Option<&str>, tokens: Tokens) {
        let id = short(id);
        if self.messages.len() >= MAX_MESSAGES && !self.messages.contains_key(&id) {
            self.add_up();
        }
        let counted = self.messages.entry(id).or_insert_with(|| Counted { model: short(model.unwrap_or_default()), tokens });
        counted.tokens = larger_of(counted.tokens, tokens);
    }

    /// Adds all messages except the open one to the sums.
    fn add_up(&mut self) {
        let open = self.open.take().and_then(|id| self.messages.remove_entry(&id));
        add_to(&mut self.earlier, std::mem::take(&mut self.messages).into_values());
        self.open = open.as_ref().map(|(id, _)| id.clone());
        self.messages.extend(open);
    }

    /// The usage of the run. Without a total, the cost is estimated; a model without a known price adds nothing.
    pub(crate) fn usage(&self, total: Option<&Total>, prices: &Prices) -> Option<Usage> {
        let sum = |counted: &mut dyn Iterator<Item = &Counted>| {
            counted.fold(Usage::default(), |mut sum, one| {
                sum.add(priced(one, prices));
                sum
            })
        };
        let seen = (!self.messages.is_empty()).then(|| sum(&mut self.messages.values().chain(&self.earlier)));
        let Some(total) = total else { return seen };
        let parts = [seen.unwrap_or_default(), sum(&mut std::iter::once(&total.main_loop)), sum(&mut total.by_model.iter())];
        let usage = parts.into_iter().fold(Usage::default(), |largest, part| Usage {
            input_tokens: largest.input_tokens.max(part.input_tokens),
            output_tokens: largest.output_tokens.max(part.output_tokens),
            cost_usd: largest.cost_usd.max(part.cost_usd),
            cost_estimated: largest.cost_estimated || part.cost_estimated,
        });
        let usage = match total.cost_usd {
            Some(cost_usd) => Usage { cost_usd, cost_estimated: false, ..usage },
            None => usage,
        };
        Some(Usage { cost_usd: usage.cost_usd.min(MAX_RUN_USD), ..usage })
    }
}

/// Limits the sum to a number that JSON can represent, whatever a run prints.
fn add_dollars(sum: f64, more: Option<f64>) -> Option<f64> {
    more.map(|usd| (sum + usd).min(f64::MAX))
}

/// Adds counts to the sums, by model.
fn add_to(sums: &mut Vec<Counted>, more: impl IntoIterator<Item = Counted>) {
    for counted in more {
        match sums.iter().position(|of_model| of_model.model == counted.model) {
            Some(at) => sums[at].tokens = sum_of(sums[at].tokens, counted.tokens),
            None if sums.len() < MAX_MODELS => sums.push(counted),
            None => {}
        }
    }
}

fn priced(counted: &Counted, prices: &Prices) -> Usage {
    let cost_usd = prices.cost(&counted.model, &counted.tokens).unwrap_or(0.0);
    let Tokens { output, .. } = counted.tokens;
    Usage { input_tokens: counted.tokens.all_input(), output_tokens: output, cost_usd, cost_estimated: cost_usd > 0.0 }
}

fn short(name: &str) -> String {
    name[..name.floor_char_boundary(MAX_NAME)].to_owned()
}

fn sum_of(one: Tokens, other: Tokens) -> Tokens {
    Tokens {
        input: one.input.saturating_add(other.input),
        cache_write_5m: one.cache_write_5m.saturating_add(other.cache_write_5m),
        cache_write_1h: one.cache_write_1h.saturating_add(other.cache_write_1h),
        cache_read: one.cache_read.saturating_add(other.cache_read),
        output: one.output.saturating_add(other.output),
    }
}

fn larger_of(one: Tokens, other: Tokens) -> Tokens {
    Tokens {
        input: one.input.max(other.input),
        cache_write_5m: one.cache_write_5m.max(other.cache_write_5m),
        cache_write_1h: one.cache_write_1h.max(other.cache_write_1h),
        cache_read: one.cache_read.max(other.cache_read),
        output: one.output.max(other.output),
    }
}

fn count(usage: &Value, name: &str) -> i64 {
    usage[name].as_u64().and_then(|count| i64::try_from(count).ok()).unwrap_or(0)
}

/// The tokens in the API's `usage`.
fn tokens(usage: &Value) -> Tokens {
    let written = count(usage, "cache_creation_input_tokens");
    let cache_write_1h = count(&usage["cache_creation"], "ephemeral_1h_input_tokens").min(written);
    Tokens {
        input: count(usage, "input_tokens"),
        cache_write_5m: written - cache_write_1h,
        cache_write_1h,
        cache_read: count(usage, "cache_read_input_tokens"),
        output: count(usage, "output_tokens"),
    }
}

/// The tokens in the CLI's `modelUsage`, which does not say how long the cache keeps what was written.
fn tokens_of_model(used: &Value) -> Tokens {
    Tokens {
        input: count(used, "inputTokens"),
        cache_write_5m: count(used, "cacheCreationInputTokens"),
        cache_write_1h: 0,
        cache_read: count(used, "cacheReadInputTokens"),
        output: count(used, "outputTokens"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MODEL: &str = "claude-sonnet-4-5";

    fn message(id: &str, input: u64, output: u64) -> Value {
        let cache = json!({"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20});
        json!({"id": id, "model": MODEL, "usage": {
            "input_tokens": input, "cache_creation_input_tokens": 30, "cache_creation": cache, "cache_read_input_tokens": 500, "output_tokens": output,
        }})
    }

    fn millionths(usage: Option<Usage>) -> i64 {
        (usage.unwrap().cost_usd * 1e6).round() as i64
    }

    /// A run with a sub-agent, with numbers that version 2.1.197 of the CLI prints.
    fn seen() -> TokenCount {
        let mut seen = TokenCount::default();
        seen.begins(&message("1", 10, 1), None);
        seen.message(&message("1", 10, 1), None);
        seen.ends(&json!({"output_tokens": 9}));
        seen.message(&message("2", 1000, 1), None);
        let content = json!([{"type": "tool_result", "tool_use_id": "toolu_1"}]);
        let result = json!({"resolvedModel": MODEL, "usage": message("", 1000, 900)["usage"]});
        seen.tool_result(&json!({"message": {"content": content}, "tool_use_result": result}), None);
        seen.begins(&message("4", 10, 1), None);
        seen.ends(&json!({"output_tokens": 9}));
        seen
    }

    #[test]
    fn without_a_total_the_messages_count_and_the_cost_is_an_estimate() {
        let usage = seen().usage(None, &Prices::default());
        // 2020 of input, 80 and 40 written for an hour and for five minutes, 2000 read, 919 of output.
        assert_eq!(millionths(usage), 6_060 + 480 + 150 + 600 + 13_785);
        let Usage { input_tokens, output_tokens, cost_estimated, .. } = usage.unwrap();
        assert_eq!((input_tokens, output_tokens, cost_estimated), (4_140, 919, true));
        assert_eq!(TokenCount::default().usage(None, &Prices::default()), None);
    }

    #[test]
    fn a_message_that_has_only_begun_counts() {
        let mut begun = TokenCount::default();
        begun.begins(&message("1", 1000, 0), None);
        assert_eq!(millionths(begun.usage(None, &Prices::default())), 3_000 + 120 + 38 + 150);
    }

    #[test]
    fn a_run_that_prints_messages_without_end_takes_no_memory_without_end() {
        let mut count = TokenCount::default();
        count.begins(&json!({"id": "open", "model": MODEL, "usage": {"input_tokens": 1}}), None);
        for n in 0..3 * MAX_MESSAGES {
            let (id, model) = (format!("{n}{}", "x".repeat(1_000)), format!("{}{}", "m".repeat(10), n % 200));
            count.message(&json!({"id": id, "model": model, "usage": {"input_tokens": 1}}), None);
        }
        assert!(count.messages.len() <= MAX_MESSAGES && count.messages.keys().all(|id| id.len() <= MAX_NAME));
        assert!(count.earlier.len() <= MAX_MODELS);
        count.ends(&json!({"output_tokens": 7}));
        assert_eq!(count.usage(None, &Prices::default()).unwrap().output_tokens, 7);
    }

    #[test]
    fn messages_that_are_added_up_count_as_before() {
        let mut count = seen();
        let usage = count.usage(None, &Prices::default());
        count.add_up();
        count.ends(&json!({"output_tokens": 9}));
        assert_eq!(millionths(count.usage(None, &Prices::default())), millionths(usage));
    }

    #[test]
    fn the_total_has_the_sub_agents_and_the_true_cost() {
        let used = json!({"inputTokens": 2020, "outputTokens": 1818, "cacheReadInputTokens": 2000, "cacheCreationInputTokens": 120, "costUSD": 0.03456});
        let mut result = json!({"total_cost_usd": 0.03456, "usage": message("", 20, 18)["usage"], "modelUsage": {MODEL: used}});
        let expected = Usage { input_tokens: 4_140, output_tokens: 1_818, cost_usd: 0.03456, cost_estimated: false };
        let usage = |result: &Value| seen().usage(Some(&Total::of(result, Some(MODEL), None)), &Prices::default());
        assert_eq!(usage(&result), Some(expected));
        result.as_object_mut().unwrap().remove("total_cost_usd");
        assert_eq!(usage(&result), Some(expected), "the models' costs are the total");
        result["modelUsage"][MODEL].as_object_mut().unwrap().remove("costUSD");
        let estimate = usage(&result);
        // Here the cache writes count as kept for five minutes.
        assert_eq!((millionths(estimate), estimate.unwrap().cost_estimated), (6_060 + 450 + 600 + 27_270, true));
    }

    #[test]
    fn a_model_without_a_price_costs_nothing_and_is_no_estimate() {
        let mut unknown = TokenCount::default();
        unknown.message(&json!({"id": "1", "usage": {"input_tokens": 10, "output_tokens": 2}}), Some("claude-stub"));
        let expected = Usage { input_tokens: 10, output_tokens: 2, cost_usd: 0.0, cost_estimated: false };
        assert_eq!(unknown.usage(None, &Prices::default()), Some(expected));
        let none = Total::of(&json!({"total_cost_usd": 0.0, "usage": {}}), None, None);
        assert_eq!(TokenCount::default().usage(Some(&none), &Prices::default()), Some(Usage::default()));
    }
    #[test]
    fn a_later_result_never_tells_less() {
        let total = |results: &[Value]| {
            let total = results.iter().fold(None, |earlier, result| Some(Total::of(result, Some(MODEL), earlier.as_ref())));
            TokenCount::default().usage(total.as_ref(), &Prices::default()).unwrap()
        };
        let nothing = json!({"model_usage_since_last_result": {}, "total_cost_usd": 0});
        assert!(total(std::slice::from_ref(&nothing)).cost_usd.is_sign_positive(), "an empty sum");
        let first = json!({"total_cost_usd": 2.5, "modelUsage": {MODEL: {"inputTokens": 7, "costUSD": 2.5}, "other": {"outputTokens": 3}}});
        let both = total(&[first.clone(), nothing.clone()]);
        assert_eq!((both.cost_usd, both.input_tokens, both.output_tokens), (2.5, 7, 3));
        let less = json!({"total_cost_usd": 0.5, "modelUsage": {MODEL: {"inputTokens": 9, "costUSD": 0.5}}});
        let both = total(&[first, less]);
        assert_eq!((both.cost_usd, both.input_tokens, both.output_tokens), (2.5, 9, 3));
        let huge = json!({"model_usage_since_last_result": {MODEL: {"costUSD": 1e308}, "other": {"costUSD": 1e308}}});
        assert_eq!(total(&[huge.clone(), huge]).cost_usd, MAX_RUN_USD);
        assert_eq!(total(&[json!({"total_cost_usd": 20_000.0}), nothing]).cost_usd, MAX_RUN_USD);
        assert!(total(&[json!({"total_cost_usd": -0.0})]).cost_usd.is_sign_positive());
    }
}
