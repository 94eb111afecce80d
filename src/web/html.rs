//! HTML that is built in code, where a template can't do it. Text is escaped when it is pushed, so only the tags are HTML.

use std::fmt;

use askama::filters::HtmlSafe;

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

    /// Adds text, escaped as in a template: it is safe between tags and in the value of an attribute.
    pub(crate) fn text(&mut self, text: &str) {
        for letter in text.chars() {
            match letter {
                '<' => self.0.push_str("&#60;"),
                '>' => self.0.push_str("&#62;"),
                '&' => self.0.push_str("&#38;"),
                '"' => self.0.push_str("&#34;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
