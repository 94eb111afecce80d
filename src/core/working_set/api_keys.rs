//! The named keys of a working set.

use std::collections::BTreeMap;

use super::super::api_key::ApiKey;
use super::{Halt, WorkingSet, need};

impl WorkingSet {
    /// All named keys.
    pub fn api_keys(&self) -> Result<&BTreeMap<String, ApiKey>, Halt> {
        match &self.loaded.api_keys {
            Some(keys) => Ok(keys),
            None if self.loaded.locked_api_keys => Err(Halt::Locked),
            None => Err(need(|keys| keys.api_keys = true)),
        }
    }

    /// Adds a key whose name is free.
    pub fn add_api_key(&mut self, key: ApiKey) {
        self.dirty.api_keys.insert(key.name.clone());
        self.loaded.api_keys.get_or_insert_default().insert(key.name.clone(), key);
    }

    pub fn remove_api_key(&mut self, name: &str) {
        // A key that this batch added has no row.
        if !self.dirty.api_keys.remove(name) {
            self.dirty.removed_api_keys.insert(name.to_owned());
        }
        self.loaded.api_keys.get_or_insert_default().remove(name);
    }
}
