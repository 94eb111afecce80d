//! Task specs lately used. They never change, so what is here is right; the rest is read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bloom_core::ids::TaskId;
use bloom_core::task::TaskSpec;

const MAX_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(super) struct Specs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_id: HashMap<TaskId, Arc<TaskSpec>>,
    order: VecDeque<TaskId>,
    bytes: usize,
}

fn size(spec: &TaskSpec) -> usize {
    640 + spec.prompt.len() + spec.context_hints.iter().map(|hint| 32 + hint.len()).sum::<usize>()
}

impl Specs {
    pub fn get(&self, id: TaskId) -> Option<Arc<TaskSpec>> {
        super::lock(&self.0).by_id.get(&id).cloned()
    }

    pub fn put(&self, spec: Arc<TaskSpec>) {
        let mut kept = super::lock(&self.0);
        let (id, bytes) = (spec.id, size(&spec));
        if bytes > MAX_BYTES / 8 || kept.by_id.insert(id, spec).is_some() {
            return;
        }
        kept.bytes += bytes;
        kept.order.push_back(id);
        while kept.bytes > MAX_BYTES {
            let Some(oldest) = kept.order.pop_front() else { break };
            if let Some(spec) = kept.by_id.remove(&oldest) {
                kept.bytes -= size(&spec);
            }
        }
    }

    pub fn remove(&self, id: TaskId) {
        let mut kept = super::lock(&self.0);
        if let Some(spec) = kept.by_id.remove(&id) {
            kept.bytes -= size(&spec);
            // Its place in the order stays and is passed over in its turn.
        }
    }
}
