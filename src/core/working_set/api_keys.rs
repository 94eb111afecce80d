//! The named keys of a working set.

use std::collections::{BTreeMap, BTreeSet};

use super::{Halt, WorkingSet, need};
use crate::api_key::{ApiKey, Scope};
use crate::ids::WorkerId;
use crate::row_keys::RowKeys;

/// The named keys that were loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadedKeys {
    /// By name. Keys of WorkerPools are included only if they were asked for; all other keys always are.
    pub rows: BTreeMap<String, ApiKey>,
    /// The number of keys that WorkerPools have, by Kubernetes namespace.
    pub of_pools: BTreeMap<String, usize>,
    /// What was asked for. If no row has one of these names, or belongs to one of these workers, then no such key exists.
    names: BTreeSet<String>,
    workers: BTreeSet<WorkerId>,
}

impl LoadedKeys {
    /// Builds the set from the database's answer to the keys in `asked`: the rows, and the number of WorkerPool keys per namespace.
    pub fn new(asked: &RowKeys, rows: impl IntoIterator<Item = ApiKey>, of_pools: BTreeMap<String, usize>) -> Self {
        let rows = rows.into_iter().map(|key| (key.name.clone(), key)).collect();
        Self { rows, of_pools, names: asked.key_names.clone(), workers: asked.key_workers.clone() }
    }
}

impl WorkingSet {
    fn loaded_keys(&self) -> Result<&LoadedKeys, Halt> {
        match &self.loaded.api_keys {
            Some(keys) => Ok(keys),
            None if self.loaded.locked_api_keys => Err(Halt::Locked),
            None => Err(need(|keys| keys.api_keys = true)),
        }
    }

    /// The key, or `None` if it does not exist.
    pub fn find_api_key(&self, name: &str) -> Result<Option<&ApiKey>, Halt> {
        let keys = self.loaded_keys()?;
        match keys.rows.get(name) {
            None if !keys.names.contains(name) => Err(need(|keys| keys.key_names.insert(name.to_owned()))),
            found => Ok(found),
        }
    }

    /// The keys that speak for this worker.
    pub fn api_keys_of(&self, worker: &str) -> Result<impl Iterator<Item = &ApiKey>, Halt> {
        let keys = self.loaded_keys()?;
        if !keys.workers.contains(worker) {
            return Err(need(|keys| keys.key_workers.insert(worker.to_owned())));
        }
        Ok(keys.rows.values().filter(move |key| key.scope == Scope::Worker && key.worker.as_deref() == Some(worker)))
    }

    /// All keys except those of WorkerPools.
    pub fn api_keys_beside_pools(&self) -> Result<impl Iterator<Item = &ApiKey>, Halt> {
        Ok(self.loaded_keys()?.rows.values().filter(|key| key.pool_namespace().is_none()))
    }

    /// The number of keys that WorkerPools have, by Kubernetes namespace.
    pub fn pool_keys(&self) -> Result<&BTreeMap<String, usize>, Halt> {
        Ok(&self.loaded_keys()?.of_pools)
    }

    /// Adds a key. No other key may have its name.
    pub fn add_api_key(&mut self, key: ApiKey) {
        self.dirty.api_keys.insert(key.name.clone());
        let keys = self.loaded.api_keys.get_or_insert_default();
        if let Some(namespace) = key.pool_namespace() {
            *keys.of_pools.entry(namespace.to_owned()).or_default() += 1;
        }
        keys.rows.insert(key.name.clone(), key);
    }

    /// Replaces the secret and the expiry of the key with this name.
    pub fn rotate_api_key(&mut self, key: ApiKey) {
        // A key that this batch adds is inserted whole. An existing row is only updated, never inserted, because the key may have been
        // revoked meanwhile.
        if !self.dirty.api_keys.contains(&key.name) {
            self.dirty.rotated_api_keys.insert(key.name.clone());
        }
        self.loaded.api_keys.get_or_insert_default().rows.insert(key.name.clone(), key);
    }

    /// Removes the key of this name; later commands of the batch do not find it.
    pub fn remove_api_key(&mut self, name: &str) {
        let keys = self.loaded.api_keys.get_or_insert_default();
        let removed = keys.rows.remove(name);
        if let Some(count) = removed.as_ref().and_then(ApiKey::pool_namespace).and_then(|namespace| keys.of_pools.get_mut(namespace)) {
            *count = count.saturating_sub(1);
        }
        self.dirty.rotated_api_keys.remove(name);
        // A key that this batch added has no row yet.
        if !self.dirty.api_keys.remove(name) {
            self.dirty.removed_api_keys.insert(name.to_owned());
        }
    }
}
