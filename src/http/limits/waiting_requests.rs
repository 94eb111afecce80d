//! The number of requests that may wait at a time.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::identity::clients::network;
use crate::limits::client_shares::{ClientPermit, Shares};
use crate::messages::error::Error;
use crate::middleware::{Caller, LimitedKey};
use bloom_core::api_key::Scope;

/// Limit of the streams and waiting requests of each kind.
const MAX_STREAMS: usize = 256;
/// The most uploads at a time. Each of them may be storing a chunk, and a writer accepts no more than 64 jobs besides its batches.
const MAX_UPLOADS: usize = 32;
/// How many of them are reserved for workers, because a run that has ended must not wait for the uploads of others.
const UPLOADS_OF_WORKERS: usize = MAX_UPLOADS / 4;
/// The most waiting claims of one named key. Such a key is for one worker. Its agent has one open claim at a time, and a second one while
/// it restarts.
const CLAIMS_OF_KEY: usize = 64;
const FULL: Error = Error::Later("Too many requests are waiting right now, try again");
const SHARE_TAKEN: Error = Error::Later("Too many requests of this client are waiting right now: end some of them, or try again");
const KEY_SHARE_TAKEN: Error = Error::Later("Too many requests with this key are waiting right now: end some of them, or try again");

/// Permits for waiting requests, in a pool for each kind of request.
pub(crate) struct StreamLimits {
    pub claims: PermitPool,
    pub waits: PermitPool,
    pub events: PermitPool,
    pub watches: PermitPool,
    /// For calls that wait for an agent.
    pub agents: PermitPool,
    pub uploads: PermitPool,
}

/// A pool of permits. One address may hold only its share, and so may one key, however many addresses use it.
pub(crate) struct PermitPool {
    free: Arc<Semaphore>,
    /// The permits that only workers get.
    of_workers: usize,
    addresses: Shares<IpAddr>,
    keys: Shares<LimitedKey>,
}

/// A permit, which is held until this is dropped.
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
    _of_address: ClientPermit<IpAddr>,
    _of_key: Option<ClientPermit<LimitedKey>>,
}

impl StreamLimits {
    /// Waiting claims may use three quarters of the connections, because workers need the rest for heartbeats and completions.
    pub(crate) fn new(connections: usize) -> Self {
        let many = || PermitPool::new(MAX_STREAMS);
        Self {
            claims: PermitPool { keys: Shares::new(CLAIMS_OF_KEY), ..PermitPool::new(connections / 4 * 3) },
            waits: many(),
            events: many(),
            watches: many(),
            agents: many(),
            uploads: PermitPool { of_workers: UPLOADS_OF_WORKERS, ..PermitPool::new(MAX_UPLOADS) },
        }
    }
}

impl PermitPool {
    fn new(permits: usize) -> Self {
        // A key gets half of an address's share, so that there is room for other keys behind the address of a proxy.
        Self {
            free: Arc::new(Semaphore::new(permits)),
            of_workers: 0,
            addresses: Shares::by_address(permits),
            keys: Shares::new(permits / 4),
        }
    }

    /// # Errors
    /// No permit is left, or the client's address or key holds its share.
    pub(crate) fn take(&self, caller: &Caller) -> Result<Permit, Error> {
        let of_address = self.addresses.take(network(caller.client)).ok_or(SHARE_TAKEN)?;
        let of_key = caller.limited_key().map(|key| self.keys.take(key).ok_or(KEY_SHARE_TAKEN)).transpose()?;
        if caller.scope != Scope::Worker && self.free.available_permits() <= self.of_workers {
            return Err(FULL);
        }
        let permit = self.free.clone().try_acquire_owned().map_err(|_| FULL)?;
        Ok(Permit { _permit: permit, _of_address: of_address, _of_key: of_key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_core::api_key::{ApiKey, Quota};

    fn caller(scope: Scope, name: Option<&str>, client: usize) -> Caller {
        let key = name.map(|name| {
            Arc::new(ApiKey {
                name: name.to_owned(),
                digest: String::new(),
                former: None,
                scope,
                worker: None,
                push: false,
                namespaces: None,
                created_at: 0,
                expires_at: None,
                created_by: "admin".into(),
                quota: Quota::default(),
                team: None,
            })
        });
        Caller { scope, key, client: format!("192.0.2.{client}").parse().unwrap(), request_id: "r".into(), trace: None }
    }

    /// How many permits these callers get, each from addresses of its own.
    fn taken(pool: &PermitPool, held: &mut Vec<Permit>, scope: Scope, name: Option<&str>) -> usize {
        let before = held.len();
        held.extend((1..=32).filter_map(|client| pool.take(&caller(scope, name, client)).ok()));
        held.len() - before
    }

    #[test]
    fn uploads_leave_room_for_workers() {
        let (limits, mut held) = (StreamLimits::new(16), Vec::new());
        assert_eq!(taken(&limits.uploads, &mut held, Scope::Admin, None), MAX_UPLOADS - UPLOADS_OF_WORKERS);
        assert_eq!(taken(&limits.uploads, &mut held, Scope::Worker, None), UPLOADS_OF_WORKERS);
    }

    #[test]
    fn a_key_has_a_quarter_from_any_number_of_addresses() {
        let (pool, mut held) = (PermitPool::new(16), Vec::new());
        assert_eq!(taken(&pool, &mut held, Scope::Read, None), 4, "the read key of the environment");
        assert_eq!(taken(&pool, &mut held, Scope::Read, Some("board")), 4);
        assert_eq!(taken(&pool, &mut held, Scope::Submit, Some("ci")), 4, "keys do not share with each other");
        assert_eq!(taken(&pool, &mut held, Scope::Admin, None), 4, "the rest is for others");
        for scope in [Scope::Admin, Scope::Worker] {
            held.clear();
            assert_eq!(taken(&pool, &mut held, scope, None), 16, "the admin's and the agents' key of the environment have no share");
        }
    }
}
