//! Remembers artifacts that could not be moved to the object store although it accepts other objects.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::Objects;

/// The wait after the first failure. Each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// The most artifacts that are remembered. Further ones are only tried too often.
const MOST: usize = 10_000;

/// Artifacts that are not tried for a while, so that one that fails repeatedly does not use up the time of the others.
#[derive(Default)]
pub(crate) struct Held(HashMap<Uuid, (Instant, Duration)>);

impl Held {
    pub(crate) fn has(&self, artifact: Uuid) -> bool {
        self.0.get(&artifact).is_some_and(|(until, _)| Instant::now() < *until)
    }

    /// Holds back an artifact that could not be moved, unless the object store accepts nothing at all. Returns whether the object store
    /// accepts writes.
    pub(crate) async fn hold(&mut self, artifact: Uuid, objects: &Objects) -> bool {
        if objects.probe().await.is_err() {
            return false;
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let wait = self.0.get(&artifact).map_or(FIRST_WAIT, |(_, before)| (*before * 2).min(LONGEST_WAIT));
        self.0.insert(artifact, (Instant::now() + wait, wait));
        true
    }

    pub(crate) fn release(&mut self, artifact: Uuid) {
        self.0.remove(&artifact);
    }
}
