//! The usage of runs.

use serde::{Deserialize, Serialize};

/// Tokens and money that a run, or all runs of a task together, have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens that the model read.
    pub input_tokens: i64,
    /// Tokens that the model wrote.
    pub output_tokens: i64,
    /// The cost in US dollars.
    pub cost_usd: f64,
    /// Whether a part of the cost was estimated from tokens and prices.
    #[serde(default)]
    pub cost_estimated: bool,
}

impl Usage {
    /// Adds the usage of another run.
    pub fn add(&mut self, other: Usage) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cost_usd += other.cost_usd;
        self.cost_estimated |= other.cost_estimated;
    }
}
