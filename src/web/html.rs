//! HTML that code makes, where a template could not: what is pushed as text is escaped, so only the tags are code.

use std::fmt;

use askama::filters::{Escaper, HtmlSafe};
use bloom_api::visible::escaped;

/// How templates escape texts (`askama.toml`): for HTML, and so that no character hides others or changes their order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Visible;

impl Escaper for Visible {
    fn write_escaped_str<W: fmt::Write>(&self, dest: W, text: &str) -> fmt::Result {
        askama::filters::Html.write_escaped_str(dest, &escaped(text))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

// Texts are escaped as they are pushed, and tags are literals.
impl HtmlSafe for Html {}

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Html {
    pub(crate) fn tag(&mut self, tag: &'static str) {
        self.0.push_str(tag);
    }

    /// As a template shows it, between tags or as the value of an attribute.
    pub(crate) fn text(&mut self, text: &str) {
        // Writing into a text does not fail.
        let _ = Visible.write_escaped_str(&mut self.0, text);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
