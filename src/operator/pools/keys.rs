//! The key of each pod: a named key of the server for this one worker and the namespaces of its pool. Only the pod's Secret has it.

use std::collections::BTreeMap;

use bloom_core::api_key::{ApiKey, PREFIX, Quota, Scope};
use bloom_core::op;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::pod::{KEY, Setup, belongs_to, ordinal_of, pod_name, worker_name};
use super::{Pools, Problem};
use crate::api::within_limit;
use crate::object::{Error, Identity, Only};

const KEY_BYTES: usize = 32;

/// The prefix of the names of this pool's keys. They contain the uid of the pool, so that a new pool with the same name has other keys.
fn prefix(pool: Uuid) -> String {
    format!("pool-{pool}-")
}

/// The pool that a key was made for.
pub(crate) fn pool_of(key: &ApiKey) -> Option<Uuid> {
    let rest = key.name.strip_prefix("pool-").filter(|_| key.scope == Scope::Worker)?;
    rest.rsplit_once('-')?.0.parse().ok()
}

/// The numbers of the pods that have keys.
pub(crate) fn ordinals(keys: &[ApiKey], pool: Uuid) -> impl Iterator<Item = u32> {
    let prefix = prefix(pool);
    keys.iter().filter_map(move |key| ordinal_of(&prefix, &key.name))
}

fn digest(key: &[u8]) -> String {
    hex::encode(Sha256::digest(key))
}

impl Pools {
    /// Makes sure that the pod's Secret exists and contains a valid key. If it is missing or damaged, makes a new key and revokes the old
    /// one. Returns whether there is a new key.
    pub(super) async fn ensure_key(&self, setup: &Setup<'_>, ordinal: u32) -> Result<Result<bool, Problem>, Error> {
        let (identity, worker) = (setup.identity, worker_name(setup.identity, ordinal));
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        let name = pod_name(identity, ordinal);
        let secret = match within_limit(secrets.get_opt(&name)).await {
            Ok(secret) => secret,
            Err(error) => return Problem::of(error, &format!("The Secret '{name}' can't be read")).map(Err),
        };
        if secret.as_ref().is_some_and(|secret| !belongs_to(&secret.metadata, identity)) {
            let message = format!("The Secret '{name}' exists and is not the pool's: remove it, or choose another name for the pool");
            return Ok(Err(Problem::new("SecretExists", message)));
        }
        let keys = self.context.store.api_keys().await?;
        let key_name = format!("{}{ordinal}", prefix(identity.uid));
        let known = keys.iter().find(|key| key.name == key_name);
        let held = secret.as_ref().and_then(|secret| secret.data.as_ref()?.get(KEY)).map(|key| digest(&key.0));
        let is_right = |key: &&ApiKey| {
            Some(&key.digest) == held.as_ref() && key.worker.as_ref() == Some(&worker) && key.namespaces.as_ref() == Some(&setup.namespaces)
        };
        if known.filter(is_right).is_some() {
            return Ok(Ok(false));
        }
        // The owner of another key for this worker would get the worker's tasks.
        let speaks_for_it = |key: &&ApiKey| key.scope == Scope::Worker && key.worker.as_ref() == Some(&worker) && key.name != key_name;
        if let Some(other) = keys.iter().find(speaks_for_it) {
            let message = format!("The key '{}' is for the worker '{worker}' too: revoke it (bloom-runtime key revoke)", other.name);
            return Ok(Err(Problem::new("KeyExists", message)));
        }
        if known.is_some() {
            self.submit(identity, op::RevokeKey { name: key_name.clone() }).await?.ok();
        }
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes)?;
        let key = format!("{PREFIX}{}", hex::encode(bytes));
        let wanted = op::CreateKey {
            name: key_name,
            digest: digest(key.as_bytes()),
            scope: Scope::Worker,
            worker: Some(worker),
            push: false,
            namespaces: Some(setup.namespaces.clone()),
            lasts_ms: None,
            quota: Quota::default(),
            team: None,
        };
        if let Err(rejection) = self.submit(identity, wanted).await? {
            return Ok(Err(Problem::new("KeyRefused", format!("No key can be made for the pod '{name}': {rejection}"))));
        }
        if let Some(damaged) = secret {
            self.delete_secret(&secrets, &damaged).await?;
        }
        let secret = Secret {
            metadata: setup.secret_metadata(ordinal),
            immutable: Some(true),
            string_data: Some(BTreeMap::from([(KEY.to_owned(), key)])),
            ..Secret::default()
        };
        match self.context.writes.make("Secret", "create", secrets.create(&PostParams::default(), &secret)).await {
            Ok(_) => Ok(Ok(true)),
            Err(error) => Problem::of(error, &format!("The Secret '{name}' can't be created")).map(Err),
        }
    }

    /// Revokes the key of a pod that is gone for good, and removes its Secret.
    pub(super) async fn drop_key(&self, identity: &Identity, ordinal: u32) -> Result<(), Error> {
        let name = format!("{}{ordinal}", prefix(identity.uid));
        // This is refused if the key was already revoked.
        self.submit(identity, op::RevokeKey { name }).await?.ok();
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        match within_limit(secrets.get_opt(&pod_name(identity, ordinal))).await? {
            Some(secret) if belongs_to(&secret.metadata, identity) => self.delete_secret(&secrets, &secret).await,
            _ => Ok(()),
        }
    }

    async fn delete_secret(&self, secrets: &Api<Secret>, secret: &Secret) -> Result<(), Error> {
        self.context.delete("Secret", secrets, &secret.metadata, Only::ThisObject).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_their_pool() {
        let pool = Uuid::from_u128(7);
        let key = |name: String| ApiKey {
            name,
            digest: String::new(),
            former: None,
            scope: Scope::Worker,
            worker: None,
            push: false,
            namespaces: None,
            created_at: 0,
            expires_at: None,
            created_by: String::new(),
            quota: Quota::default(),
            team: None,
        };
        let keys = [key(format!("pool-{pool}-3")), key(format!("pool-{}-4", Uuid::from_u128(8))), key("pool-a".into())];
        assert_eq!(keys.iter().map(pool_of).collect::<Vec<_>>(), [Some(pool), Some(Uuid::from_u128(8)), None]);
        assert_eq!(ordinals(&keys, pool).collect::<Vec<_>>(), [3]);
        assert!(bloom_core::api_key::is_key_name(&format!("{}9999", prefix(pool))));
    }
}
