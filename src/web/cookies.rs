//! The cookies of the pages: the session, the language, and for visitors without a session a random text for their forms.

use std::sync::Arc;

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::lang::Lang;

/// Browsers send a cookie with this prefix only to the host that set it, and accept it only over TLS.
const ONLY_THIS_HOST: &str = "__Host-";
/// The prefix for a cookie with a path. Browsers refuse `__Host-` for such a cookie, so other hosts of the domain could set it.
const ONLY_TLS: &str = "__Secure-";
const SESSION: &str = "bloom_session";
const VISITOR: &str = "bloom_visitor";
/// It has no prefix, because it is read before the server knows whether the browser uses TLS, and because it protects nothing.
const LANGUAGE: &str = "bloom_language";
const YEAR_SECONDS: i64 = 365 * 24 * 3_600;
/// The length of the random text of a visitor, in hex digits.
const VISITOR_LENGTH: usize = 32;
/// A longer cookie was not set by this server.
const MAX_LENGTH: usize = 1_024;

/// The cookies of a request.
#[derive(Clone, Debug)]
pub(crate) struct Cookies {
    pub session: Option<String>,
    pub visitor: Option<String>,
    /// The path below which browsers send them, or nothing.
    root: String,
    /// Whether the browser calls the server over TLS.
    is_secure: bool,
}

impl Cookies {
    pub(crate) fn of(headers: &HeaderMap, root: &str, is_secure: bool) -> Self {
        let find = |name: &str| only(headers, &full_name(name, root, is_secure)).map(str::to_owned);
        let is_visitor = |text: &String| text.len() == VISITOR_LENGTH && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        Self { session: find(SESSION), visitor: find(VISITOR).filter(is_visitor), root: root.to_owned(), is_secure }
    }

    pub(crate) fn set_session(&self, value: &str, seconds: i64) -> Option<HeaderValue> {
        self.set(SESSION, value, Some(seconds))
    }

    pub(crate) fn end_session(&self) -> Option<HeaderValue> {
        self.set(SESSION, "", Some(0))
    }

    pub(crate) fn set_visitor(&self, value: &str) -> Option<HeaderValue> {
        self.set(VISITOR, value, None)
    }

    pub(crate) fn set_language(&self, lang: Lang) -> Option<HeaderValue> {
        self.set(LANGUAGE, lang.code(), Some(YEAR_SECONDS))
    }

    fn set(&self, name: &str, value: &str, seconds: Option<i64>) -> Option<HeaderValue> {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let name = full_name(name, &self.root, self.is_secure);
        let path = if self.root.is_empty() { "/" } else { &self.root };
        let age = seconds.map(|seconds| format!("; Max-Age={seconds}")).unwrap_or_default();
        HeaderValue::try_from(format!("{name}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}{age}")).ok()
    }
}

/// The name contains the root: a browser sends the cookies of all parent paths, so servers on the same host need different names.
fn full_name(name: &str, root: &str, is_secure: bool) -> String {
    let prefix = match (is_secure && name != LANGUAGE, root.is_empty()) {
        (false, _) => "",
        (true, true) => ONLY_THIS_HOST,
        (true, false) => ONLY_TLS,
    };
    format!("{prefix}{name}{}", root.replace('/', "."))
}

/// The value of the cookie with this name. `None` if there are two with this name, because then another page of this site has set one of
/// them.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    let mut named = pairs.filter_map(|pair| pair.trim().split_once('=')).filter(|(found, _)| *found == name);
    let (_, value) = named.next()?;
    (named.next().is_none() && value.len() <= MAX_LENGTH).then_some(value)
}

/// The language of the answer to a request: the chosen one, or else the one that the browser prefers.
pub(crate) fn language(headers: &HeaderMap, root: &str) -> Lang {
    only(headers, &full_name(LANGUAGE, root, false)).and_then(Lang::of_tag).or_else(|| Lang::accepted(headers)).unwrap_or_default()
}

/// A new random text for a visitor.
pub(crate) fn new_visitor() -> Option<String> {
    let mut random = [0_u8; VISITOR_LENGTH / 2];
    getrandom::fill(&mut random).ok()?;
    Some(hex::encode(random))
}

/// The placeholder for the token in a page that is shared by several browsers. Nobody can guess it, so no text of a task contains it.
#[derive(Clone)]
pub(crate) struct TokenStandIn(pub Arc<str>);

/// The token that the forms of this visitor contain. Pages of other sites can't know it, because they can't read the cookie.
pub(crate) fn form_token(cookie: &str) -> String {
    hex::encode(Sha256::digest(format!("form of bloom-runtime {cookie}")))
}

pub(crate) fn is_form_token(cookie: &str, token: &str) -> bool {
    form_token(cookie).as_bytes().ct_eq(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(COOKIE, HeaderValue::from_static(text))])
    }

    #[test]
    fn cookies_are_read_by_their_exact_name() {
        let session = |text, is_secure| Cookies::of(&headers(text), "", is_secure).session;
        assert_eq!(session("a=1; bloom_session=x.y", false).as_deref(), Some("x.y"));
        assert_eq!(session("bloom_session=x", true), None);
        assert_eq!(session("__Host-bloom_session=x", true).as_deref(), Some("x"));
        assert_eq!(session("bloom_session=x; bloom_session=y", false), None, "set twice");
        assert_eq!(Cookies::of(&headers("bloom_visitor=<script>"), "", false).visitor, None);
    }

    #[test]
    fn cookies_are_out_of_reach_of_scripts_and_other_sites() {
        let set = |root, is_secure| Cookies::of(&HeaderMap::new(), root, is_secure).set_session("v", 60).unwrap();
        assert_eq!(set("", false), "bloom_session=v; Path=/; HttpOnly; SameSite=Strict; Max-Age=60");
        assert_eq!(set("", true), "__Host-bloom_session=v; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=60");
        assert_eq!(set("/a/b", false), "bloom_session.a.b=v; Path=/a/b; HttpOnly; SameSite=Strict; Max-Age=60");
        assert_eq!(set("/a", true), "__Secure-bloom_session.a=v; Path=/a; HttpOnly; SameSite=Strict; Secure; Max-Age=60");
        assert_eq!(Cookies::of(&headers("bloom_session=x; bloom_session.a=y"), "/a", false).session.as_deref(), Some("y"));
    }

    #[test]
    fn a_chosen_language_counts_more_than_the_preferred_one() {
        let with = |cookie, preferred| {
            let mut headers = headers(cookie);
            headers.insert(axum::http::header::ACCEPT_LANGUAGE, HeaderValue::from_static(preferred));
            language(&headers, "")
        };
        assert_eq!(with("bloom_language=en", "uk"), Lang::English);
        assert_eq!(with("bloom_language=uk", "en"), Lang::Ukrainian);
        assert_eq!(with("bloom_language=<b>", "uk"), Lang::Ukrainian);
        assert_eq!(with("bloom_language=uk; bloom_language=uk", "de"), Lang::English, "set twice");
        let set = Cookies::of(&HeaderMap::new(), "", true).set_language(Lang::Ukrainian).unwrap();
        assert_eq!(set, "bloom_language=uk; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=31536000");
    }

    #[test]
    fn a_token_is_for_one_cookie() {
        assert!(is_form_token("a", &form_token("a")));
        assert!(!is_form_token("b", &form_token("a")));
        assert!(!is_form_token("a", ""));
    }
}
