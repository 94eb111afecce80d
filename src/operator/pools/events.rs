//! Kubernetes Events about a pool.

use kube::Resource;
use kube::runtime::events::{Event, EventType};

use super::Pools;
use crate::crds::WorkerPool;
use crate::words::cut;

/// Limit of the API server for notes.
const NOTE_BYTES: usize = 1_000;

impl Pools {
    pub(super) async fn tell(&self, pool: &WorkerPool, kind: EventType, reason: &str, note: &str) {
        let note = Some(cut(note, NOTE_BYTES).to_owned());
        let event = Event { type_: kind, reason: reason.to_owned(), note, action: "Scale".to_owned(), secondary: None };
        let told = self.context.writes.make("Event", "publish", self.recorder.publish(&event, &pool.object_ref(&()))).await;
        if let Err(error) = told {
            tracing::debug!(%error, reason, "an event could not be told");
        }
    }
}
