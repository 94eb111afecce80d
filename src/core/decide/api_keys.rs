//! Named keys: creation, revocation, and the enrollment of a worker by a join token.

use super::change_worker::other_agent;
use crate::Ms;
use crate::api_key::{ApiKey, FormerKey, MAX_KEYS, MAX_POOL_KEYS, MAX_POOL_KEYS_OF_NAMESPACE, Quota, Scope, enrolled_name};
use crate::audit::{Action, Actor, EntityType};
use crate::ids::{InstanceId, WorkerId};
use crate::operation::Operation;
use crate::rejection::Rejection;
use crate::row_keys::RowKeys;
use crate::wakeup::Subject;
use crate::worker::{Capabilities, DispatchMode, Worker, WorkerStatus};
use crate::working_set::{Halt, WorkingSet};

/// Adds a key. The caller must have checked that its name is valid ([`is_key_name`](crate::api_key::is_key_name)).
#[derive(Clone, Debug)]
pub struct CreateKey {
    /// The name of the key, which must be unique.
    pub name: String,
    /// The SHA-256 digest of the key, in hexadecimal.
    pub digest: String,
    /// What the key may do.
    pub scope: Scope,
    /// The worker that the key speaks for, or the only worker that the join token enrolls; `None` for other keys, and for tokens that
    /// enroll any worker.
    pub worker: Option<WorkerId>,
    /// Whether that worker may set the URL that the server calls.
    pub push: bool,
    /// The namespaces that its worker may serve; `None` = no limit.
    pub namespaces: Option<Vec<String>>,
    /// Milliseconds until it expires; `None` = never.
    pub lasts_ms: Option<i64>,
    /// The limits of its tasks and uploads.
    pub quota: Quota,
    /// The team whose member keys see its tasks; `None` = no team.
    pub team: Option<String>,
}

impl Operation for CreateKey {
    type Reply = ApiKey;

    /// It may change a worker.
    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.add_api_key(&self.name);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ApiKey, Halt> {
        if set.find_api_key(&self.name)?.is_some() {
            return Err(Rejection::KeyExists(self.name.clone()).into());
        }
        // Expired join tokens can't be used again. They are removed to make room, so that unused tokens do not accumulate.
        let is_over = |key: &&ApiKey| key.scope == Scope::Join && key.has_expired(set.now());
        let over: Vec<String> = set.api_keys_beside_pools()?.filter(is_over).map(name_of).collect();
        has_room(set, over.len())?;
        if let (Scope::Worker, Some(worker), Some(allowed)) = (self.scope, &self.worker, &self.namespaces) {
            narrow(set, worker, allowed)?;
        }
        over.iter().for_each(|name| set.remove_api_key(name));
        let key = ApiKey {
            name: self.name.clone(),
            digest: self.digest.clone(),
            former: None,
            scope: self.scope,
            worker: self.worker.clone(),
            push: self.push,
            namespaces: self.namespaces.clone(),
            created_at: set.stamp(),
            expires_at: self.lasts_ms.map(|ms| set.now().saturating_add(ms)),
            created_by: set.actor(&Actor::Admin),
            quota: self.quota,
            team: self.team.clone(),
        };
        let worker = key.worker.as_ref().map_or_else(String::new, |worker| format!(", worker {worker}"));
        let push = if key.push { ", may be pushed to" } else { "" };
        let namespaces = key.namespaces.as_ref().map_or_else(String::new, |names| format!(", namespaces {}", names.join(", ")));
        let team = key.team.as_ref().map_or_else(String::new, |team| format!(", team {team}"));
        let quota = if key.quota.is_unlimited() { String::new() } else { format!(", quota {}", key.quota) };
        let detail = format!("scope {}{worker}{team}{push}{namespaces}{quota}", key.scope);
        set.audit(Action::KeyCreated, EntityType::Key, &key.name, &Actor::Admin, detail);
        set.add_api_key(key.clone());
        Ok(key)
    }
}

/// Whether this requester may create one more key after this number of keys was removed. Keys of WorkerPools have separate limits, so that
/// they can't use up the room of the other keys or the reverse, and one namespace can't use up the room of all namespaces.
fn has_room(set: &WorkingSet, removed: usize) -> Result<(), Halt> {
    let Some(namespace) = set.by.namespace() else {
        let count = set.api_keys_beside_pools()?.count() - removed;
        return if count < MAX_KEYS { Ok(()) } else { Err(Rejection::TooManyKeys.into()) };
    };
    let counts = set.pool_keys()?;
    if counts.get(namespace).is_some_and(|count| *count >= MAX_POOL_KEYS_OF_NAMESPACE) {
        return Err(Rejection::TooManyPoolKeysOf(namespace.to_owned()).into());
    }
    if counts.values().sum::<usize>() >= MAX_POOL_KEYS {
        return Err(Rejection::TooManyPoolKeys.into());
    }
    Ok(())
}

fn name_of(key: &ApiKey) -> String {
    key.name.clone()
}

/// Replaces the secret of a key, which keeps its name and everything else. The previous secret stays valid for some time.
#[derive(Clone, Debug)]
pub struct RotateKey {
    /// The name of the key.
    pub name: String,
    /// The SHA-256 digest of the new secret, in hexadecimal.
    pub digest: String,
    /// For how many milliseconds the current secret stays valid as well; 0 invalidates it at once. An even older secret that is still valid
    /// becomes invalid now.
    pub overlap_ms: Ms,
    /// The number of milliseconds until the key expires; `None` keeps its expiry.
    pub lasts_ms: Option<Ms>,
}

impl Operation for RotateKey {
    type Reply = ApiKey;

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.add_api_key(&self.name);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ApiKey, Halt> {
        let now = set.now();
        let key = set.find_api_key(&self.name)?.ok_or(Rejection::KeyNotFound)?.clone();
        if key.scope == Scope::Join {
            return Err(Rejection::NotRotated("A join token is used up by its first use: create a new one").into());
        }
        if key.has_expired(now) {
            return Err(Rejection::NotRotated("The key has expired: revoke it and create it again").into());
        }
        let expires_at = self.lasts_ms.map(|ms| now.saturating_add(ms)).or(key.expires_at);
        let overlap_ms = expires_at.map_or(self.overlap_ms, |at| self.overlap_ms.min(at - now));
        let former = (overlap_ms > 0).then(|| FormerKey { digest: key.digest.clone(), until: now.saturating_add(overlap_ms) });
        let detail = match &former {
            Some(_) => format!("the former key is valid for {} more seconds", overlap_ms / 1000),
            None => "the former key is no longer valid".to_owned(),
        };
        set.audit(Action::KeyRotated, EntityType::Key, &self.name, &Actor::Admin, detail);
        let key = ApiKey { digest: self.digest.clone(), former, expires_at, ..key };
        set.rotate_api_key(key.clone());
        Ok(key)
    }
}

/// Removes a key, which is invalid from then on.
#[derive(Clone, Debug)]
pub struct RevokeKey {
    /// The name of the key.
    pub name: String,
}

impl Operation for RevokeKey {
    type Reply = ();

    /// It may change a worker.
    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.add_api_key(&self.name);
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let key = set.find_api_key(&self.name)?.ok_or(Rejection::KeyNotFound)?;
        let detail = format!("scope {}", key.scope);
        if let Some(worker) = key.worker.clone().filter(|_| key.push && key.scope == Scope::Worker) {
            forget_url(set, &worker)?;
        }
        set.audit(Action::KeyRevoked, EntityType::Key, &self.name, &Actor::Admin, detail);
        set.remove_api_key(&self.name);
        Ok(())
    }
}

/// Removes the URL of this worker, so that the server no longer calls it, because the key that set it is no longer valid.
fn forget_url(set: &mut WorkingSet, worker: &str) -> Result<(), Halt> {
    if let Some(known) = set.find_worker(worker)?.filter(|known| !known.url.is_empty()).cloned() {
        set.put_worker(Worker { url: String::new(), dispatch: DispatchMode::Manual, ..known });
    }
    Ok(())
}

/// Limits the worker to the namespaces of its new key, even if it was registered before.
fn narrow(set: &mut WorkingSet, worker: &str, allowed: &[String]) -> Result<(), Halt> {
    let Some(known) = set.find_worker(worker)?.cloned() else { return Ok(()) };
    let served = match &known.capabilities.namespaces {
        None => allowed.to_vec(),
        Some(served) => served.iter().filter(|namespace| allowed.contains(namespace)).cloned().collect(),
    };
    if known.capabilities.namespaces.as_ref() != Some(&served) {
        set.audit(Action::WorkerUpdated, EntityType::Worker, worker, &Actor::Admin, "limited to the namespaces of its key");
        let capabilities = Capabilities { namespaces: Some(served), ..known.capabilities.clone() };
        set.put_worker(Worker { capabilities, ..known });
        set.wake(Subject::Reservations(worker.to_owned()));
    }
    Ok(())
}

/// Exchanges a join token for the key of a worker.
#[derive(Clone, Debug)]
pub struct Enroll {
    /// The name of the join token. It is checked together with the digest, because a token that was created again with the same name is a
    /// different one.
    pub token: String,
    /// The digest of the join token.
    pub token_digest: String,
    /// The worker that enrolls. The new key speaks for it.
    pub worker: WorkerId,
    /// The digest of the worker's new key.
    pub digest: String,
    /// The agent that enrolls; `None` if it did not send its instance.
    pub instance: Option<InstanceId>,
}

impl Operation for Enroll {
    type Reply = ApiKey;

    /// It may change a worker.
    fn is_placement(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut RowKeys) {
        keys.api_keys = true;
        keys.key_names.extend([self.token.clone(), enrolled_name(&self.worker)]);
        keys.key_workers.insert(self.worker.clone());
        // Another replica may be about to register the worker.
        keys.free_names = true;
        keys.observed_workers.insert(self.worker.clone());
    }

    fn decide(&self, set: &mut WorkingSet) -> Result<ApiKey, Halt> {
        let token = set.find_api_key(&self.token)?.filter(|key| key.digest == self.token_digest && key.scope == Scope::Join);
        let token = token.filter(|key| !key.has_expired(set.now())).ok_or(Rejection::JoinTokenGone)?;
        if let Some(worker) = token.worker.as_ref().filter(|worker| **worker != self.worker) {
            return Err(Rejection::JoinTokenFor(worker.clone()).into());
        }
        let earlier: Vec<String> = set.api_keys_of(&self.worker)?.map(name_of).collect();
        // Only a token that names the worker may take over its name, because the tasks of that worker go to whoever has its key.
        let replaces = token.worker.is_some();
        if !replaces && (!earlier.is_empty() || set.observed_worker(&self.worker)?.is_some()) {
            return Err(Rejection::WorkerTaken(self.worker.clone()).into());
        }
        // Otherwise the worker's registration would be refused later, after the agent that works under the name has lost its key.
        let is_of_other = |known: &&Worker| match self.instance {
            Some(instance) => !known.may_become(instance),
            // A caller that does not send its instance can't be the agent that already works under the name.
            None => known.instance.is_some() && known.shown_status() != WorkerStatus::Offline,
        };
        if let Some(known) = set.observed_worker(&self.worker)?.filter(is_of_other) {
            return Err(other_agent(known, set.now()).into());
        }
        let name = enrolled_name(&self.worker);
        if set.find_api_key(&name)?.is_some() && !earlier.contains(&name) {
            return Err(Rejection::KeyExists(name).into());
        }
        let key = ApiKey {
            name,
            digest: self.digest.clone(),
            former: None,
            scope: Scope::Worker,
            worker: Some(self.worker.clone()),
            push: token.push,
            namespaces: token.namespaces.clone(),
            created_at: set.stamp(),
            expires_at: None,
            created_by: set.actor(&Actor::Api),
            quota: Quota::default(),
            team: None,
        };
        if set.api_keys_of(&self.worker)?.any(|key| key.push) {
            forget_url(set, &self.worker)?;
        }
        if let Some(allowed) = &key.namespaces {
            narrow(set, &self.worker, allowed)?;
        }
        earlier.iter().for_each(|name| set.remove_api_key(name));
        set.remove_api_key(&self.token);
        set.audit(Action::WorkerEnrolled, EntityType::Key, &key.name, &Actor::Api, format!("worker {}", self.worker));
        set.add_api_key(key.clone());
        Ok(key)
    }
}
