//! A cache of task specs. Specs never change, so recently used ones are kept. Others are read from the database.

use std::sync::Arc;

use bloom_core::ids::TaskId;
use bloom_core::task::TaskSpec;
use bloom_database::{self as database, Database};
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;

const MAX_BYTES: u64 = 8 << 20;
/// Larger specs are not kept, because each would evict too many others.
const MAX_SPEC_BYTES: u64 = MAX_BYTES / 8;
/// The approximate size of a spec without its texts.
const SPEC_BYTES: usize = 640;

#[derive(Clone)]
struct Bytes;

impl Weighter<TaskId, Arc<TaskSpec>> for Bytes {
    fn weight(&self, _: &TaskId, spec: &Arc<TaskSpec>) -> u64 {
        let hints: usize = spec.context_hints.iter().map(|hint| 32 + hint.len()).sum();
        (SPEC_BYTES + spec.prompt.len() + hints) as u64
    }
}

/// The specs of tasks. Recently used ones come from memory, others from the database.
pub struct Specs {
    database: Arc<dyn Database>,
    kept: Mutex<Cache<TaskId, Arc<TaskSpec>, Bytes>>,
}

impl Specs {
    pub(super) fn new(database: Arc<dyn Database>) -> Self {
        Self { database, kept: Mutex::new(Cache::with_weighter(MAX_BYTES as usize / SPEC_BYTES, MAX_BYTES, Bytes)) }
    }

    /// The specs with these ids. Ids without a task are left out.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn by_id(&self, ids: &[TaskId]) -> database::Result<Vec<Arc<TaskSpec>>> {
        let mut specs: Vec<_> = ids.iter().filter_map(|id| self.kept(*id)).collect();
        if specs.len() < ids.len() {
            let missing: Vec<_> = ids.iter().filter(|id| !specs.iter().any(|spec| spec.id == **id)).copied().collect();
            for spec in self.database.specs(&missing).await? {
                self.put(spec.clone());
                specs.push(spec);
            }
        }
        Ok(specs)
    }

    pub(super) fn kept(&self, id: TaskId) -> Option<Arc<TaskSpec>> {
        self.kept.lock().get(&id).cloned()
    }

    pub(super) fn put(&self, spec: Arc<TaskSpec>) {
        if Bytes.weight(&spec.id, &spec) <= MAX_SPEC_BYTES {
            self.kept.lock().insert(spec.id, spec);
        }
    }

    pub(super) fn remove(&self, id: TaskId) {
        self.kept.lock().remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use bloom_test_database::scripted::ScriptedDatabase;

    use super::*;

    fn spec(id: u128, prompt: usize) -> Arc<TaskSpec> {
        Arc::new(TaskSpec { id: TaskId::from_u128(id), prompt: "p".repeat(prompt), ..bloom_test_world::world::spec("c") })
    }

    /// The bytes that the cache itself has allocated.
    fn footprint(specs: &Specs) -> usize {
        let used = specs.kept.lock().memory_used();
        used.entries + used.map
    }

    #[test]
    fn removed_specs_leave_nothing_behind() {
        let specs = Specs::new(Arc::new(ScriptedDatabase::default()));
        let come_and_go = |ids: std::ops::Range<u128>| {
            for id in ids {
                specs.put(spec(id, 10));
                specs.remove(TaskId::from_u128(id));
            }
            footprint(&specs)
        };
        let after_few = come_and_go(0..1_000);
        assert_eq!(come_and_go(1_000..100_000), after_few);
        assert_eq!(specs.kept.lock().weight(), 0);
    }

    #[test]
    fn specs_are_kept_up_to_their_bytes() {
        let specs = Specs::new(Arc::new(ScriptedDatabase::default()));
        for id in 0..100 {
            specs.put(spec(id, 500_000));
        }
        {
            let kept = specs.kept.lock();
            assert!(kept.len() > 10 && kept.weight() <= MAX_BYTES, "{} specs, {} bytes", kept.len(), kept.weight());
        }
        assert!(specs.kept(TaskId::from_u128(99)).is_some(), "the newest spec is kept");
        specs.put(spec(200, 2 << 20));
        assert!(specs.kept(TaskId::from_u128(200)).is_none(), "a single large spec must not evict the others");
    }
}
