//! Kubernetes Events, which `kubectl describe` shows. An event that can't be published at once is lost.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType};

use crate::Context;
use crate::words::cut;

/// The API server's size limit for notes.
const NOTE_BYTES: usize = 1_000;

pub(crate) fn event(kind: EventType, reason: &str, note: &str) -> Event {
    let note = Some(cut(note, NOTE_BYTES).to_owned());
    Event { type_: kind, reason: reason.to_owned(), note, action: "Reconcile".to_owned(), secondary: None }
}

impl Context {
    /// Publishes an event. Events of one object that differ only in their notes are counted together, under the first note. `related` keeps
    /// events about different attempts or pods apart.
    pub(crate) async fn tell(&self, about: &ObjectReference, related: Option<ObjectReference>, event: Event) {
        let event = Event { secondary: related, ..event };
        let told = self.writes.make("Event", "publish", self.recorder.publish(&event, about)).await;
        if let Err(error) = told {
            tracing::debug!(%error, reason = event.reason, "an event could not be told");
        }
    }
}
