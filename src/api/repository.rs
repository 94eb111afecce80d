//! Where the repository of a project is.

use serde::Serialize;
use serde_json::value::RawValue;
use url::Url;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::values::Text;
use super::wire::{Problems, Wire, problem};
use bloom_core::limits;

/// The URL of a repository, see [`repository_problem`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepoUrl(pub String);

impl Wire for RepoUrl {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<1, { limits::URL_CHARS }>::read(raw)?;
        match repository_problem(&text) {
            None => Ok(Self(text)),
            Some(why) => problem(format!("Invalid url: {why}")),
        }
    }

    fn describe() -> Schema {
        // No pattern can say what a URL is; this one refuses nothing that is read.
        let url = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(https://|ssh://|file:///|git@)[!-~]+$"));
        Schema::Object(url.min_length(Some(1)).max_length(Some(limits::URL_CHARS)).build())
    }
}

/// Why this is not the URL of a repository: https, git over ssh (`git@HOST:PATH` or `ssh://`), or a directory (`file:///`). It is given to git, so it has
/// no blanks, and no password: agents have credentials of their own.
pub fn repository_problem(text: &str) -> Option<&'static str> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
        return Some("it must be ASCII, without blanks");
    }
    let is_host = |host: &str| {
        host.starts_with(|c: char| c.is_ascii_alphanumeric())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
    };
    if let Some(place) = text.strip_prefix("git@") {
        let (host, path) = place.split_once(':').unwrap_or_default();
        let is_right = is_host(host) && !path.is_empty() && !path.starts_with('-');
        return (!is_right).then_some("git@HOST:PATH is wanted");
    }
    if let Some(place) = text.strip_prefix("ssh://") {
        let (authority, path) = place.split_once('/').unwrap_or_default();
        let (user, address) = authority.split_once('@').unwrap_or(("git", authority));
        let (host, port) = address.split_once(':').unwrap_or((address, "22"));
        let is_right = is_host(user) && is_host(host) && port.parse::<u16>().is_ok() && !path.is_empty();
        return (!is_right).then_some("ssh://USER@HOST/PATH is wanted, without a password");
    }
    if let Some(path) = text.strip_prefix("file://") {
        return (!path.starts_with('/') || path.len() < 2).then_some("file:///PATH is wanted: the path of a repository on the workers");
    }
    match Url::parse(text) {
        Ok(url) if url.scheme() == "https" && text.starts_with("https://") && url.has_host() => {
            if url.password().is_some() || !url.username().is_empty() {
                return Some("it must have no user and no password: the worker's own git credentials are used");
            }
            // Git can't fetch from these, and people put tokens there.
            let has_more = url.query().is_some() || url.fragment().is_some();
            has_more.then_some("it must have nothing after a ? or a #: the worker's own git credentials are used")
        }
        _ => Some("it must begin with https://, ssh://, git@ or file:///"),
    }
}

#[cfg(test)]
mod tests {
    use super::repository_problem;

    #[test]
    fn a_url_has_no_secret_and_leads_to_a_repository() {
        for url in ["https://h/x.git", "https://h:8443/team/x", "ssh://git@h:22/x", "git@h:x.git", "file:///srv/x?y"] {
            assert_eq!(repository_problem(url), None, "{url}");
        }
        for (url, why) in [
            ("https://me:secret@h/x", "no user and no password"),
            ("https://h/x.git?private_token=secret", "nothing after a ?"),
            ("https://h/x.git#main", "nothing after a ?"),
            ("http://h/x", "must begin with"),
            ("ssh://me:secret@h/x", "without a password"),
            ("git@h", "git@HOST:PATH"),
            ("file://srv/x", "file:///PATH"),
            ("https://h/a b", "without blanks"),
        ] {
            assert!(repository_problem(url).is_some_and(|told| told.contains(why)), "{url}");
        }
    }
}
