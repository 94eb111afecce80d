//! The named keys of the database in memory, and the use of their quotas.

use std::collections::BTreeMap;

use bloom_core::api_key::ApiKey;
use bloom_core::command::RowKeys;
use bloom_core::task::TaskState;
use bloom_core::working_set::{Loaded, LoadedKeys, QuotaUse, WorkingSet};

use super::memory::{Conflict, Memory};

impl Memory {
    pub(super) fn load_keys(&self, keys: &RowKeys, loaded: &mut Loaded) {
        loaded.api_keys = keys.api_keys.then(|| {
            let wanted = self.api_keys.values().filter(|key| keys.wants_key(key)).cloned();
            let mut of_pools = BTreeMap::new();
            for namespace in self.api_keys.values().filter_map(|key| key.pool_namespace()) {
                *of_pools.entry(namespace.to_owned()).or_default() += 1;
            }
            LoadedKeys::new(keys, wanted, of_pools)
        });
        loaded.quotas.uses = keys.quotas.iter().map(|name| (name.clone(), self.quota_use(name))).collect();
    }

    fn quota_use(&self, name: &str) -> Option<QuotaUse> {
        let quota = self.api_keys.get(name)?.quota;
        let is_open = |task: &&TaskState| task.owner.as_deref() == Some(name) && !task.status.is_final();
        let open_tasks = quota.max_open_tasks.map_or(0, |_| self.tasks.values().filter(is_open).count() as i64);
        let (refilled_at, stored_bytes) = self.quota_uses.get(name).copied().unwrap_or_default();
        Some(QuotaUse { quota, open_tasks, refilled_at, stored_bytes })
    }

    pub(super) fn write_keys(&mut self, set: &WorkingSet) -> Result<(), Conflict> {
        let dirty = &set.dirty;
        for name in &dirty.removed_api_keys {
            self.api_keys.remove(name);
        }
        for name in &dirty.api_keys {
            let key = set.loaded.api_keys.as_ref().expect("keys were loaded").rows[name].clone();
            if self.api_keys.insert(name.clone(), key).is_some() {
                return Err("one key a name");
            }
        }
        for name in &dirty.rotated_api_keys {
            let rotated = set.loaded.api_keys.as_ref().expect("keys were loaded").rows[name].clone();
            self.api_keys.entry(name.clone()).and_modify(|key| *key = ApiKey { quota: key.quota, ..rotated });
        }
        for name in &dirty.quotas.written {
            let used = set.loaded.quotas.uses[name].expect("a quota in use is one of a key");
            self.api_keys.entry(name.clone()).and_modify(|key| key.quota = used.quota);
            self.quota_uses.insert(name.clone(), (used.refilled_at, used.stored_bytes));
        }
        Ok(())
    }
}
