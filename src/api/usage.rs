//! What runs used, in answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Only if true: a part of the US dollars is estimated, because a run ended without a total.
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
