//! Random bits for ids and jitter, from one seed. It also keeps ids in order across the batches of this process.

use std::hash::{BuildHasher, Hasher, RandomState};

use bloom_core::ids::IdSource;
use parking_lot::Mutex;

/// The source of a process's random bits.
#[derive(Debug)]
pub struct Random {
    seeds: Mutex<IdSource>,
    /// The source of the last batch. The ids of the next batch sort after its ids, even within one millisecond.
    last: Mutex<IdSource>,
}

impl Random {
    /// Creates the source. The same seed gives the same bits.
    pub(super) fn new(seed: Option<u64>) -> Self {
        let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        Self { seeds: Mutex::new(IdSource::new(0, seed)), last: Mutex::new(IdSource::new(0, 0)) }
    }

    /// A random number.
    pub fn draw(&self) -> u64 {
        self.seeds.lock().draw()
    }

    pub(super) fn rise_above_last_id(&self, ids: &mut IdSource) {
        ids.rise_above_source(&self.last.lock());
    }

    pub(super) fn keep_last_id(&self, ids: &IdSource) {
        self.last.lock().rise_above_source(ids);
    }
}
