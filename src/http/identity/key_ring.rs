//! The keys that this server accepts: the keys of the environment, and the named keys, of which it keeps a copy in memory.
//!
//! The named keys are read again after each commit of this replica that changes them (before the answer is sent), when another replica
//! notifies this one of changed settings, and every few seconds in case a notification was missed.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::identity::environment_keys::{Keys, digest, sent_key};
use crate::messages::error::Error as Refused;
use crate::messages::refusal::Refusal;
use bloom_core::Ms;
use bloom_core::api_key::{ApiKey, PREFIX, Scope};
use bloom_database::Maintenance;
use bloom_engine::{Clock, Engine};
use bloom_store::{Error, Store};

const READ_EVERY: Duration = Duration::from_secs(10);
/// The age up to which a copy of the named keys is used. An older copy is read again before a named key is accepted, because another
/// replica may have revoked the key while this process was frozen or cut off from the database.
const MAX_AGE: Duration = Duration::from_secs(20);
/// Requests with unknown keys cause at most one read per this time.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a request waits for the keys to be read.
const READ_LIMIT: Duration = Duration::from_secs(5);

const UNCHECKED: Refused = Refused::Later("The database does not answer, so this key can't be checked: try again");

/// The key of a request.
#[derive(Clone, Debug)]
pub struct Identity {
    /// What the key allows.
    pub scope: Scope,
    /// The named key; `None` for a key of the environment, and on a server without keys.
    pub key: Option<Arc<ApiKey>>,
}

impl Identity {
    /// Everything is allowed, without a named key.
    pub const ADMIN: Self = Self { scope: Scope::Admin, key: None };
}

/// A copy of the named keys.
struct Named {
    /// Each key by its digest. After a rotation, the previous key of the name stays here for a while.
    by_digest: HashMap<String, Arc<ApiKey>>,
    /// A time before the copy was read; `None` if it never was.
    read_at: Option<Instant>,
}

/// When this replica last saw a key.
struct LastUse {
    at: Ms,
    is_stored: bool,
}

/// When each named key was last used; stored every few seconds. Only existing keys are recorded, so the number of entries is limited.
#[derive(Default)]
struct Uses(parking_lot::Mutex<HashMap<String, LastUse>>);

impl Uses {
    fn record(&self, name: &str, at: Ms) {
        let mut uses = self.0.lock();
        match uses.get_mut(name) {
            Some(last) if last.at >= at => {}
            Some(last) => *last = LastUse { at, is_stored: false },
            None => drop(uses.insert(name.to_owned(), LastUse { at, is_stored: false })),
        }
    }

    async fn store(&self, engine: &Engine) {
        let uses: Vec<(String, Ms)> = {
            let uses = self.0.lock();
            uses.iter().filter(|(_, last)| !last.is_stored).map(|(name, last)| (name.clone(), last.at)).collect()
        };
        if uses.is_empty() {
            return;
        }
        // A failure does no harm, because the uses are stored the next time.
        if engine.writers.maintain(Maintenance::RecordKeyUses { uses: uses.clone() }).await.is_ok() {
            let mut known = self.0.lock();
            for (name, at) in uses {
                if let Some(last) = known.get_mut(&name).filter(|last| last.at == at) {
                    last.is_stored = true;
                }
            }
        }
    }
}

#[derive(Clone)]
pub(crate) struct KeyRing {
    environment: Keys,
    named: watch::Sender<Named>,
    uses: Arc<Uses>,
    /// Held during a read, so that an older copy never replaces a newer one.
    reading: Arc<Mutex<()>>,
}

impl KeyRing {
    pub(crate) fn new(environment: Keys) -> Self {
        let none = Named { by_digest: HashMap::new(), read_at: None };
        Self { environment, named: watch::Sender::new(none), uses: Arc::default(), reading: Arc::default() }
    }

    /// Whether named keys are accepted. Without an admin key in the environment, a server may be open to everybody, and then named keys
    /// would protect nothing.
    pub(crate) fn takes_named_keys(&self) -> bool {
        self.environment.has_admin()
    }

    /// Whether the server needs no key, so that everybody may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.environment.is_empty()
    }

    /// The identity of the caller. `None` if the key is missing, wrong, revoked or expired.
    fn identify(&self, headers: &HeaderMap, now: Ms) -> Option<Identity> {
        if let Some(scope) = self.environment.scope(headers) {
            return Some(Identity { scope, key: None });
        }
        if !self.takes_named_keys() {
            return None;
        }
        // The look-up may stop at the first difference of two digests: a key has 256 random bits, so nobody can approach its digest.
        let sent = hex::encode(digest(sent_key(headers)?));
        let key = self.named.borrow().by_digest.get(&sent).filter(|key| !key.has_expired(now)).cloned()?;
        let identity = Identity { scope: key.scope, key: Some(key) };
        self.used(&identity, now);
        Some(identity)
    }

    /// When this replica last saw a request with this named key.
    pub(crate) fn last_use(&self, name: &str) -> Option<Ms> {
        self.uses.0.lock().get(name).map(|last| last.at)
    }

    /// The identities that `who` in a session may stand for: a scope of the environment, or `key:` and the name of a key. A rotated key has
    /// two secrets for a while. A session belongs to the secret with which it began, and ends with that secret.
    pub(crate) fn named_identities(&self, who: &str, now: Ms) -> Vec<Identity> {
        let Some(name) = who.strip_prefix("key:") else {
            let scope = Scope::parse(who).filter(|scope| self.environment.digest_of(*scope).is_some());
            return scope.map(|scope| Identity { scope, key: None }).into_iter().collect();
        };
        if !self.takes_named_keys() {
            return Vec::new();
        }
        let named = self.named.borrow();
        let keys = named.by_digest.values().filter(|key| key.name == name && !key.has_expired(now));
        keys.map(|key| Identity { scope: key.scope, key: Some(Arc::clone(key)) }).collect()
    }

    /// Records that the named key of this caller was used.
    pub(crate) fn used(&self, identity: &Identity, now: Ms) {
        if let Some(key) = &identity.key {
            self.uses.record(&key.name, now);
        }
    }

    /// The secret that signs the sessions of this key. `None` without a key.
    pub(crate) fn secret_of(&self, identity: &Identity) -> Option<[u8; 32]> {
        let own = match &identity.key {
            Some(key) => key.digest.clone(),
            None => hex::encode(self.environment.digest_of(identity.scope)?),
        };
        let admin = self.environment.digest_of(Scope::Admin).map(hex::encode).unwrap_or_default();
        Some(digest(format!("session of bloom-runtime {admin} {own}").as_bytes()))
    }

    /// Whether the key is still valid; true for a key of the environment.
    pub(crate) fn holds(&self, key: Option<&ApiKey>, now: Ms) -> bool {
        key.is_none_or(|key| self.current(key).is_some_and(|key| !key.has_expired(now)))
    }

    /// The current row of this key. A rotation may have given it an earlier expiry.
    fn current(&self, key: &ApiKey) -> Option<Arc<ApiKey>> {
        self.named.borrow().by_digest.get(&key.digest).cloned()
    }

    /// Reads the named keys again if this copy of them is old.
    ///
    /// # Errors
    /// The database does not answer.
    pub(crate) async fn refresh(&self, store: &Store) -> Result<(), Refused> {
        self.read_unless(store, |at| at.elapsed() < MAX_AGE).await
    }

    /// Like [`identify`](Self::identify), but if the key looks like a named key and is unknown, the keys are read again, because another
    /// replica may have just created it.
    pub(crate) async fn identify_again(&self, headers: &HeaderMap, store: &Store, clock: &Clock) -> Option<Identity> {
        let known = self.identify(headers, clock.now());
        if known.is_some() || !self.is_unknown(headers) {
            return known;
        }
        let arrived = Instant::now();
        let read_at = self.named.borrow().read_at;
        if let Some(at) = read_at {
            tokio::time::sleep_until(at + LOOK_EVERY).await;
        }
        // If the read fails, the key is refused as unknown.
        if let Err(error) = self.read_unless(store, |at| at > arrived).await {
            tracing::warn!(error = error.line(), "the named keys could not be read");
        }
        self.identify(headers, clock.now())
    }

    /// Whether the request has a named key that is not in the copy. A key that has expired is in the copy.
    fn is_unknown(&self, headers: &HeaderMap) -> bool {
        let named = sent_key(headers).filter(|sent| self.takes_named_keys() && sent.starts_with(PREFIX.as_bytes()));
        named.is_some_and(|sent| !self.named.borrow().by_digest.contains_key(&hex::encode(digest(sent))))
    }

    fn was_read(&self, is_recent: impl Fn(Instant) -> bool) -> bool {
        self.named.borrow().read_at.is_some_and(is_recent)
    }

    /// Reads the named keys, unless `is_recent` holds for the time of the last read.
    async fn read_unless(&self, store: &Store, is_recent: impl Fn(Instant) -> bool) -> Result<(), Refused> {
        if self.was_read(&is_recent) {
            return Ok(());
        }
        let read = async {
            let _turn = self.reading.lock().await;
            // Another request may have read them meanwhile.
            if self.was_read(&is_recent) { Ok(()) } else { self.replace(store).await }
        };
        Ok(timeout(READ_LIMIT, read).await.map_err(|_| UNCHECKED)??)
    }

    /// Must be called after this key was revoked. If the keys can't be read now, only this one is removed from the copy.
    pub(crate) async fn revoked(&self, name: &str, store: &Store) {
        if let Ok(Ok(())) = timeout(READ_LIMIT, self.read(store)).await {
            return;
        }
        self.named.send_modify(|named| named.by_digest.retain(|_, key| key.name != name));
    }

    /// Waits until the key is no longer valid, or could not be checked for too long, and returns the reason. Never returns for a key of the
    /// environment.
    pub(crate) async fn lapse(&self, key: Option<&ApiKey>, clock: &Clock) -> Refused {
        let Some(key) = key else { return pending().await };
        let mut changes = self.named.subscribe();
        loop {
            let now = clock.now();
            changes.mark_unchanged();
            if !self.holds(Some(key), now) {
                return Refusal::Unauthorized.error();
            }
            if !self.was_read(|at| at.elapsed() < MAX_AGE) {
                return UNCHECKED;
            }
            let expires_at = self.current(key).and_then(|key| key.expires_at);
            let left = expires_at.map_or(READ_EVERY, |at| Duration::from_millis((at - now).max(0).unsigned_abs()));
            tokio::select! {
                // This can't fail: the ring holds the sender.
                _ = changes.changed() => {}
                () = tokio::time::sleep(left.min(READ_EVERY)) => {}
            }
        }
    }

    /// Reads the named keys again.
    ///
    /// # Errors
    /// If the database fails.
    pub(crate) async fn read(&self, store: &Store) -> Result<(), Error> {
        let _turn = self.reading.lock().await;
        self.replace(store).await
    }

    /// Replaces the copy; the caller holds `reading`.
    async fn replace(&self, store: &Store) -> Result<(), Error> {
        let read_at = Some(Instant::now());
        let keys = store.api_keys().await?;
        let names: HashSet<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        self.uses.0.lock().retain(|name, _| names.contains(name.as_str()));
        let with_former = keys.into_iter().flat_map(|key| [key.before_rotation(), Some(key)]).flatten();
        let by_digest = with_former.map(|key| (key.digest.clone(), Arc::new(key))).collect();
        self.named.send_if_modified(|named| {
            let is_new = named.by_digest != by_digest;
            *named = Named { by_digest, read_at };
            is_new
        });
        Ok(())
    }

    /// Stores when the named keys were last used. It is separate from [`follow`](Self::follow), which must not wait for a database that
    /// accepts no writes.
    pub(crate) async fn store_uses(self, engine: Engine, shutdown: CancellationToken) {
        let mut ticks = interval(READ_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let store = async {
            loop {
                ticks.tick().await;
                self.uses.store(&engine).await;
            }
        };
        shutdown.run_until_cancelled(store).await;
    }

    /// Keeps the named keys up to date.
    pub(crate) async fn follow(self, engine: Engine, store: Store, shutdown: CancellationToken) {
        let mut changes = engine.replica.subscribe();
        let mut ticks = interval(READ_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
                changed = changes.recv() => match changed {
                    Ok(changes) if !changes.settings && !changes.reset => continue,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
            }
            if let Err(error) = self.read(&store).await {
                tracing::warn!(%error, "the named keys could not be read");
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.named.borrow().by_digest.values().map(|key| &key.name).collect::<HashSet<_>>().len()
    }
}
