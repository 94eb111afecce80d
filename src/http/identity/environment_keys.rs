//! The keys of the environment, and their scopes.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use bloom_core::api_key::Scope;

const KEY_HEADER: &str = "x-runtime-api-key";

/// The configured keys as digests, so that a comparison takes the same time for every key that is sent.
#[derive(Clone, Default)]
pub struct Keys {
    known: Vec<([u8; 32], Scope)>,
}

impl Keys {
    /// The keys of each scope; `None` if there is none.
    pub fn new(admin: Option<&SecretString>, worker: Option<&SecretString>, read: Option<&SecretString>) -> Self {
        // If keys are equal, the last one counts, so the scope with the most rights comes last.
        let given = [(read, Scope::Read), (worker, Scope::Worker), (admin, Scope::Admin)];
        let digested = |(key, scope): (Option<&SecretString>, Scope)| Some((digest(key?.expose_secret().as_bytes()), scope));
        Self { known: given.into_iter().filter_map(digested).collect() }
    }

    /// Whether no keys are configured. Then every request is allowed.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether there is an admin key.
    pub fn has_admin(&self) -> bool {
        self.known.iter().any(|(_, scope)| *scope == Scope::Admin)
    }

    /// The digest of the key with this scope.
    pub fn digest_of(&self, scope: Scope) -> Option<[u8; 32]> {
        self.known.iter().find(|(_, known)| *known == scope).map(|(digest, _)| *digest)
    }

    /// The scope of the request's key; admin if no keys are configured. `None` if the key is missing or wrong.
    pub fn scope(&self, headers: &HeaderMap) -> Option<Scope> {
        if self.is_empty() {
            return Some(Scope::Admin);
        }
        let sent = digest(sent_key(headers)?);
        // All keys are compared, even after a match, so that the time does not reveal which key matched.
        let mut found = 0_u8;
        for (n, (known, _)) in (1_u8..).zip(&self.known) {
            let equal: Choice = known.ct_eq(&sent);
            found.conditional_assign(&n, equal);
        }
        self.known.get(usize::from(found).checked_sub(1)?).map(|(_, scope)| *scope)
    }
}

pub(crate) fn sent_key(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get(KEY_HEADER) {
        return Some(key.as_bytes());
    }
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

pub(crate) fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn keys() -> Keys {
        let [admin, worker, read] = ["admin-key", "worker-key", "read-key"].map(SecretString::from);
        Keys::new(Some(&admin), Some(&worker), Some(&read))
    }

    fn sent(name: &'static str, value: &[u8]) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap())])
    }

    #[test]
    fn a_key_is_taken_from_either_header() {
        let check = |headers: HeaderMap, scope| assert_eq!(keys().scope(&headers), scope, "{headers:?}");
        check(sent(KEY_HEADER, b"admin-key"), Some(Scope::Admin));
        check(sent(KEY_HEADER, b"worker-key"), Some(Scope::Worker));
        check(sent("authorization", b"Bearer read-key"), Some(Scope::Read));
        check(sent("authorization", b"bearer admin-key"), Some(Scope::Admin));
        check(sent("authorization", b"Basic admin-key"), None);
        check(sent("authorization", b"admin-key"), None);
        check(sent(KEY_HEADER, b""), None);
        check(sent(KEY_HEADER, b"\xff\xfe any bytes"), None);
        check(HeaderMap::new(), None);
    }

    #[test]
    fn without_keys_everything_is_allowed() {
        assert_eq!(Keys::default().scope(&HeaderMap::new()), Some(Scope::Admin));
    }

    #[test]
    fn the_strongest_of_equal_keys_counts() {
        let same = SecretString::from("same");
        assert_eq!(Keys::new(Some(&same), None, Some(&same)).scope(&sent(KEY_HEADER, b"same")), Some(Scope::Admin));
    }
}
