//! The answer of a run on the task's page: formatted as Markdown or JSON, or as plain text.

use crate::html::Html;
use crate::times::shortened;
use crate::{json, markdown};
use bloom_api::results::TaskResult;

/// The page shows only the beginning of a longer plain answer. The download has all of it.
const TEXT_CHARS: usize = 6_000;
/// A longer answer is not formatted as JSON.
const JSON_BYTES: usize = 20_000;
/// The value of the page's parameter that asks for the answer as plain text.
pub(crate) const RAW: &str = "raw";

/// The form in which the page shows the answer.
pub(crate) enum Body {
    Markdown(Html),
    Json(Html),
    /// Plain text, which may be only the beginning.
    Raw {
        text: String,
        is_cut: bool,
    },
}

pub(crate) struct Answer {
    pub body: Option<Body>,
    /// Whether it is plain text because the visitor has asked for that.
    pub is_raw: bool,
    pub error: String,
    pub warnings: Vec<String>,
}

impl Answer {
    /// `told`: the text about the failure that the page shows above. An error that it contains is not repeated.
    pub(crate) fn of(result: &TaskResult<'_>, told: &str, is_raw: bool) -> Self {
        let text = result.output.as_deref().unwrap_or_default();
        let laid_out = || {
            let json = if text.len() <= JSON_BYTES { json::folds_of(text) } else { None };
            json.map(Body::Json).or_else(|| markdown::to_html(text).map(Body::Markdown))
        };
        let raw = || {
            let shown = shortened(text, TEXT_CHARS);
            Body::Raw { is_cut: shown.len() != text.len(), text: shown }
        };
        let body = if is_raw { None } else { laid_out() };
        let error = result.error_message.as_deref().filter(|error| !told.contains(error));
        Self {
            body: (!text.is_empty()).then(|| body.unwrap_or_else(raw)),
            is_raw,
            error: error.map(|error| shortened(error, 2_000)).unwrap_or_default(),
            warnings: result.warnings.to_vec(),
        }
    }

    pub(crate) fn has_something(&self) -> bool {
        self.body.is_some() || !self.error.is_empty() || !self.warnings.is_empty()
    }
}
