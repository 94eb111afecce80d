//! The prices of models, for runs that end without the CLI's total.

use std::collections::BTreeMap;

use serde::Deserialize;

const MILLION: f64 = 1e6;
/// The price of a write to the prompt cache in relation to other input, by how long the cache keeps it. Reads are cheaper, unless a price
/// says otherwise.
const CACHE_WRITE_5M: f64 = 1.25;
const CACHE_WRITE_1H: f64 = 2.0;
const CACHE_READ: f64 = 0.1;

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Price {
    pub input: f64,
    pub output: f64,
    /// The price of reads from the prompt cache; by default a tenth of `input`.
    pub cache_read: Option<f64>,
}

/// Token counts, separated by how they are priced.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tokens {
    /// Input that was neither read from the prompt cache nor written to it.
    pub input: i64,
    pub cache_write_5m: i64,
    pub cache_write_1h: i64,
    pub cache_read: i64,
    pub output: i64,
}

impl Tokens {
    pub fn all_input(&self) -> i64 {
        [self.cache_write_5m, self.cache_write_1h, self.cache_read].into_iter().fold(self.input, i64::saturating_add)
    }
}

const fn price(input: f64, output: f64) -> Price {
    Price { input, output, cache_read: None }
}

const fn price_with_reads(input: f64, output: f64, cache_read: f64) -> Price {
    Price { input, output, cache_read: Some(cache_read) }
}

/// List prices by model family, each for prompts up to a number of tokens: the first matching row counts. From
/// https://platform.claude.com/docs/en/about-claude/pricing, as of November 2026.
const LISTED: [(&[&str], i64, Price); 13] = [
    (&["claude-fable-5-1", "claude-mythos-5-1"], i64::MAX, price_with_reads(10.0, 50.0, 0.25)),
    (&["claude-fable-5", "claude-mythos-5"], i64::MAX, price(10.0, 50.0)),
    (&["claude-opus-5-5"], i64::MAX, price_with_reads(4.0, 20.0, 0.2)),
    (&["claude-opus-5", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6", "claude-opus-4-5"], i64::MAX, price(5.0, 25.0)),
    (&["claude-opus-4-1", "claude-opus-4-0", "claude-opus-4", "claude-3-opus"], i64::MAX, price(15.0, 75.0)),
    (&["claude-sonnet-5-5"], i64::MAX, price_with_reads(2.0, 10.0, 0.1)),
    (&["claude-sonnet-5"], i64::MAX, price(2.0, 10.0)),
    (&["claude-sonnet-4-6", "claude-sonnet-4-5", "claude-sonnet-4-0", "claude-sonnet-4"], i64::MAX, price(3.0, 15.0)),
    (&["claude-3-7-sonnet", "claude-3-5-sonnet"], i64::MAX, price(3.0, 15.0)),
    (&["claude-haiku-5-5"], 100_000, price(0.1, 0.5)),
    (&["claude-haiku-5-5"], i64::MAX, price(0.5, 2.5)),
    (&["claude-haiku-4-5"], i64::MAX, price(1.0, 5.0)),
    (&["claude-3-5-haiku"], i64::MAX, price(0.8, 4.0)),
];

/// Prices that a profile sets, by model. List prices apply to all other models.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Prices(BTreeMap<String, Price>);

impl Prices {
    /// # Errors
    /// A price is invalid; the text names it.
    pub fn check(&self) -> Result<(), String> {
        for (model, price) in &self.0 {
            let wrong = [("input", Some(price.input)), ("output", Some(price.output)), ("cache_read", price.cache_read)]
                .into_iter()
                .find(|(_, usd)| usd.is_some_and(|usd| !usd.is_finite() || usd < 0.0));
            if let Some((name, _)) = wrong {
                return Err(format!("prices.\"{model}\".{name} must be 0 or more: US dollars per million tokens"));
            }
        }
        Ok(())
    }

    /// The cost of one message with these tokens in US dollars; `None` if the model's price is unknown.
    pub fn cost(&self, model: &str, tokens: &Tokens) -> Option<f64> {
        let family = family(model);
        let listed = || {
            let fits = |(names, prompt, _): &&(&[&str], i64, Price)| names.contains(&family) && tokens.all_input() <= *prompt;
            LISTED.iter().find(fits).map(|(_, _, price)| price)
        };
        let price = self.0.get(model).or_else(|| self.0.get(family)).or_else(listed)?;
        let parts = [
            (tokens.input, price.input),
            (tokens.cache_write_5m, price.input * CACHE_WRITE_5M),
            (tokens.cache_write_1h, price.input * CACHE_WRITE_1H),
            (tokens.cache_read, price.cache_read.unwrap_or(price.input * CACHE_READ)),
            (tokens.output, price.output),
        ];
        Some(parts.into_iter().map(|(count, usd)| count as f64 * usd / MILLION).sum())
    }
}

/// The name of a model without its date and what a provider adds to it: `eu.anthropic.claude-opus-4-5-20251101-v1:0`,
/// `claude-opus-4-5@20251101` and `claude-opus-4-5[1m]` are all `claude-opus-4-5`.
pub(crate) fn family(model: &str) -> &str {
    let name = model.find("claude-").map_or(model, |start| &model[start..]);
    let name = name.split(['@', ':', '[']).next().unwrap_or(name);
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_around = |word: &str| word == "latest" || (word.len() == 8 && is_number(word)) || word.strip_prefix('v').is_some_and(is_number);
    let end = name.match_indices('-').find(|(at, _)| name[at + 1..].split('-').next().is_some_and(is_around));
    end.map_or(name, |(at, _)| &name[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Tokens = Tokens { input: 1_000, cache_write_5m: 2_000, cache_write_1h: 3_000, cache_read: 4_000, output: 5_000 };

    fn cost(model: &str, tokens: Tokens) -> Option<i64> {
        Prices::default().cost(model, &tokens).map(|usd| (usd * 1e9).round() as i64)
    }

    #[test]
    fn each_kind_of_token_has_its_price() {
        let alone = |tokens| cost("claude-sonnet-4-5", tokens).unwrap();
        assert_eq!(alone(Tokens { input: 1_000, ..Tokens::default() }), 3_000_000);
        assert_eq!(alone(Tokens { cache_write_5m: 1_000, ..Tokens::default() }), 3_750_000);
        assert_eq!(alone(Tokens { cache_write_1h: 1_000, ..Tokens::default() }), 6_000_000);
        assert_eq!(alone(Tokens { cache_read: 1_000, ..Tokens::default() }), 300_000);
        assert_eq!(alone(Tokens { output: 1_000, ..Tokens::default() }), 15_000_000);
        assert_eq!(alone(ALL), 3_000_000 + 7_500_000 + 18_000_000 + 1_200_000 + 75_000_000);
        assert_eq!(cost("claude-opus-5-5", Tokens { cache_read: 1_000, ..Tokens::default() }), Some(200_000), "it has a price of its own");
        let prompt = |input| Tokens { input, ..Tokens::default() };
        assert_eq!(cost("claude-haiku-5-5", prompt(100_000)), Some(10_000_000));
        assert_eq!(cost("claude-haiku-5-5", prompt(100_001)), Some(50_000_500), "a long prompt");
    }

    #[test]
    fn a_model_is_known_by_all_its_names() {
        let expected = cost("claude-opus-4-5", ALL);
        for name in [
            "claude-opus-4-5-20251101",
            "claude-opus-4-5[1m]",
            "claude-opus-4-5@20251101",
            "eu.anthropic.claude-opus-4-5-20251101-v1:0",
            "us.anthropic.claude-opus-4-5-v1",
            "claude-opus-4-5-latest",
        ] {
            assert_eq!(cost(name, ALL), expected, "{name}");
        }
        assert_ne!(cost("claude-opus-4-20250514", ALL), expected);
        for unknown in ["claude-stub", "claude-opus-4-99", "gpt", "", "claude-"] {
            assert_eq!(cost(unknown, ALL), None, "{unknown}");
        }
    }

    #[test]
    fn a_wrong_price_is_named() {
        for (price, expected) in [
            ("input = 1, output = nan", "prices.\"m\".output must be 0 or more"),
            ("input = 1, output = 1, cache_read = inf", "prices.\"m\".cache_read must be 0 or more"),
            ("input = 1", "missing field `output`"),
            ("input = 1, output = 1, cached = 1", "unknown field `cached`"),
            ("input = \"1\", output = 1", "expected f64"),
        ] {
            let prices = toml::from_str::<Prices>(&format!("m = {{ {price} }}"));
            let told = prices.map_or_else(|error| error.to_string(), |prices| prices.check().unwrap_err());
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn a_profile_sets_prices_and_adds_models() {
        let prices: Prices =
            toml::from_str("claude-opus-5 = { input = 1, output = 2, cache_read = 3 }\n\"own/model\" = { input = 10, output = 0.5 }")
                .unwrap();
        let usd = |model, tokens| (prices.cost(model, &tokens).unwrap() * 1e9).round() as i64;
        let read = Tokens { cache_read: 1_000, ..Tokens::default() };
        assert_eq!((usd("claude-opus-5", read), usd("own/model", read)), (3_000_000, 1_000_000));
        assert_eq!(usd("claude-opus-5-20260724", Tokens { output: 1_000, ..Tokens::default() }), 2_000_000);
        assert_eq!(usd("claude-sonnet-4-5", read), 300_000, "other models keep their list prices");
    }
}
