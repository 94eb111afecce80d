//! Task specs lately used. They never change, so what is here is right; the rest is read.

use std::sync::Arc;

use bloom_core::ids::TaskId;
use bloom_core::task::TaskSpec;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;

const MAX_BYTES: u64 = 8 << 20;
/// A larger spec would push too many others out.
const MAX_SPEC_BYTES: u64 = MAX_BYTES / 8;
/// What a spec takes besides its texts, about.
const SPEC_BYTES: usize = 640;

#[derive(Clone)]
struct Bytes;

impl Weighter<TaskId, Arc<TaskSpec>> for Bytes {
    fn weight(&self, _: &TaskId, spec: &Arc<TaskSpec>) -> u64 {
        let hints: usize = spec.context_hints.iter().map(|hint| 32 + hint.len()).sum();
        (SPEC_BYTES + spec.prompt.len() + hints) as u64
    }
}

pub(super) struct Specs(Mutex<Cache<TaskId, Arc<TaskSpec>, Bytes>>);

impl Default for Specs {
    fn default() -> Self {
        Self(Mutex::new(Cache::with_weighter(MAX_BYTES as usize / SPEC_BYTES, MAX_BYTES, Bytes)))
    }
}

impl Specs {
    pub fn get(&self, id: TaskId) -> Option<Arc<TaskSpec>> {
        self.0.lock().get(&id).cloned()
    }

    pub fn put(&self, spec: Arc<TaskSpec>) {
        if Bytes.weight(&spec.id, &spec) <= MAX_SPEC_BYTES {
            self.0.lock().insert(spec.id, spec);
        }
    }

    pub fn remove(&self, id: TaskId) {
        self.0.lock().remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(id: u128, prompt: usize) -> Arc<TaskSpec> {
        Arc::new(TaskSpec { id: TaskId::from_u128(id), prompt: "p".repeat(prompt), ..bloom_test_world::world::spec("c") })
    }

    /// Bytes that the cache itself has allocated.
    fn footprint(specs: &Specs) -> usize {
        let used = specs.0.lock().memory_used();
        used.entries + used.map
    }

    #[test]
    fn removed_specs_leave_nothing_behind() {
        let specs = Specs::default();
        let come_and_go = |ids: std::ops::Range<u128>| {
            for id in ids {
                specs.put(spec(id, 10));
                specs.remove(TaskId::from_u128(id));
            }
            footprint(&specs)
        };
        let after_few = come_and_go(0..1_000);
        assert_eq!(come_and_go(1_000..100_000), after_few);
        assert_eq!(specs.0.lock().weight(), 0);
    }

    #[test]
    fn specs_are_kept_up_to_their_bytes() {
        let specs = Specs::default();
        for id in 0..100 {
            specs.put(spec(id, 500_000));
        }
        {
            let kept = specs.0.lock();
            assert!(kept.len() > 10 && kept.weight() <= MAX_BYTES, "{} specs, {} bytes", kept.len(), kept.weight());
        }
        assert!(specs.get(TaskId::from_u128(99)).is_some(), "the newest");
        specs.put(spec(200, 2 << 20));
        assert!(specs.get(TaskId::from_u128(200)).is_none(), "one alone may not push out the others");
    }
}
