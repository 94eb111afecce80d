//! The author of the commits with runs' changes.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use bloom_core::limits::NAME_CHARS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitAuthor {
    pub name: String,
    pub email: String,
}

impl Default for CommitAuthor {
    fn default() -> Self {
        Self { name: "bloom-runtime".into(), email: "bloom-runtime@localhost".into() }
    }
}

impl CommitAuthor {
    /// The variables from which git reads the author.
    pub fn env(&self) -> [(&'static str, &str); 4] {
        let (name, email) = (self.name.as_str(), self.email.as_str());
        [("GIT_AUTHOR_NAME", name), ("GIT_AUTHOR_EMAIL", email), ("GIT_COMMITTER_NAME", name), ("GIT_COMMITTER_EMAIL", email)]
    }

    fn parse(text: &str) -> Option<Self> {
        let (name, email) = text.trim().strip_suffix('>')?.split_once('<')?;
        let is_part =
            |part: &str| (1..=NAME_CHARS).contains(&part.chars().count()) && !part.contains(|c: char| c.is_control() || "<>".contains(c));
        let (name, email) = (name.trim(), email.trim());
        (is_part(name) && is_part(email) && email.contains('@')).then(|| Self { name: name.into(), email: email.into() })
    }
}

/// Reads `NAME <EMAIL>`.
pub(crate) fn commit_author<'de, D: Deserializer<'de>>(from: D) -> Result<CommitAuthor, D::Error> {
    let text = String::deserialize(from)?;
    CommitAuthor::parse(&text).ok_or_else(|| D::Error::custom("commit_author must be \"NAME <EMAIL>\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_an_address() {
        let author = CommitAuthor::parse("A. Person <a@example.org>").unwrap();
        assert_eq!((author.name.as_str(), author.email.as_str()), ("A. Person", "a@example.org"));
        for wrong in ["", "A", "<a@b>", "A <>", "A <a>", "A <a@b> c", "A <a@b", "A\nB <a@b>", "A <a@<b>"] {
            assert_eq!(CommitAuthor::parse(wrong), None, "{wrong}");
        }
    }
}
