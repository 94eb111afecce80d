//! Sessions of browsers: a cookie that names the key with which the browser signed in. It is signed with a secret that is derived from this
//! key.
//!
//! Nothing is stored, so every replica accepts a session, and a session ends when its key is changed or revoked. The admin key is a part of
//! each secret, because the database holds digests of the named keys, and someone who reads them must not be able to sign.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::identity::key_ring::{Identity, KeyRing};
use bloom_core::Ms;

/// How long a session lasts.
pub const SESSION_MS: Ms = 7 * 24 * 3_600_000;
const VERSION: &str = "1";

/// Begins a session and returns its cookie. `None` on a server without keys.
pub(crate) fn begin(ring: &KeyRing, identity: &Identity, now: Ms) -> Option<String> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).ok()?;
    let who = match &identity.key {
        Some(key) => format!("key:{}", key.name),
        None => identity.scope.to_string(),
    };
    let claims = format!("{VERSION}.{}.{}.{}", now + SESSION_MS, hex::encode(random), BASE64.encode(who));
    let signature = signer(ring, &identity.clone(), &claims)?.finalize().into_bytes();
    Some(format!("{claims}.{}", BASE64.encode(signature)))
}

pub(crate) fn read(ring: &KeyRing, cookie: &str, now: Ms) -> Option<Identity> {
    let (claims, signature) = cookie.rsplit_once('.')?;
    let mut parts = claims.split('.');
    let (version, until, _, who) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let who = String::from_utf8(BASE64.decode(who).ok()?).ok()?;
    let signature = BASE64.decode(signature).ok()?;
    let has_signed = |identity: &Identity| signer(ring, identity, claims).is_some_and(|signer| signer.verify_slice(&signature).is_ok());
    // The content of the cookie is trusted only after its signature was checked.
    let identity = ring.named_identities(&who, now).into_iter().find(has_signed)?;
    let lasts = version == VERSION && parts.next().is_none() && now < until.parse::<Ms>().ok()?;
    ring.used(&identity, now);
    lasts.then_some(identity)
}

fn signer(ring: &KeyRing, identity: &Identity, claims: &str) -> Option<Hmac<Sha256>> {
    let mut signer = Hmac::<Sha256>::new_from_slice(&ring.secret_of(identity)?).ok()?;
    signer.update(claims.as_bytes());
    Some(signer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::environment_keys::Keys;
    use bloom_core::api_key::Scope;
    use secrecy::SecretString;

    fn ring(admin: &str, read: &str) -> KeyRing {
        KeyRing::new(Keys::new(Some(&SecretString::from(admin)), None, Some(&SecretString::from(read))))
    }

    fn scope(ring: &KeyRing, cookie: &str, now: Ms) -> Option<Scope> {
        read(ring, cookie, now).map(|identity| identity.scope)
    }

    #[tokio::test]
    async fn a_session_lasts_while_its_key_does() {
        let one = ring("admin", "read");
        let reader = Identity { scope: Scope::Read, key: None };
        let session = begin(&one, &reader, 1_000).unwrap();
        assert_eq!(scope(&one, &session, 1_000), Some(Scope::Read));
        assert_eq!(scope(&ring("admin", "read"), &session, 1_000 + SESSION_MS - 1), Some(Scope::Read), "another replica");
        assert_eq!(scope(&one, &session, 1_000 + SESSION_MS), None);
        assert_eq!(scope(&ring("admin", "changed"), &session, 1_000), None);
        assert_eq!(scope(&KeyRing::new(Keys::default()), &session, 1_000), None);
    }

    #[tokio::test]
    async fn a_session_can_not_be_made_up() {
        let ring = ring("admin", "read");
        let session = begin(&ring, &Identity { scope: Scope::Read, key: None }, 1_000).unwrap();
        let as_admin = session.replace(&BASE64.encode("read"), &BASE64.encode("admin"));
        let longer = session.replacen(&(1_000 + SESSION_MS).to_string(), "99999999999999", 1);
        let (claims, _) = session.rsplit_once('.').unwrap();
        for wrong in [&as_admin, &longer, claims, &format!("{claims}."), &format!("{claims}.AAAA"), "", ".", "1.2.3.4.5"] {
            assert_eq!(scope(&ring, wrong, 1_000), None, "{wrong}");
        }
    }
}
