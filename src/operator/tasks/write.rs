//! Writes statuses: only what differs, at once if the phase or a condition changes, otherwise at most once a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::status::{Problem, pending};
use super::{Error, Identity, observed};
use crate::Context;
use crate::api::is_status;
use crate::crds::LLMTask;
use crate::crds::task::{LLMTaskSpec, LLMTaskStatus};
use crate::difference::difference;

/// Between two writes of one object, unless its phase or a condition changes.
const PAUSE: Duration = Duration::from_secs(1);
/// For this long after a write, the watch may still show the object as it was before.
const WATCH_LAGS: Duration = Duration::from_secs(2);
/// Records of writes; those that no longer matter are dropped beyond it.
const RECORDS: usize = 1_024;

pub struct StatusWriter {
    context: Arc<Context>,
    written: Mutex<HashMap<Uuid, Written>>,
}

/// The last write of an object's status.
struct Written {
    version: Option<String>,
    status: Value,
    at: Instant,
}

impl StatusWriter {
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, written: Mutex::default() }
    }

    /// Makes the object show this status. Returns when to look again, if that is needed.
    ///
    /// # Errors
    /// Those of the API server. That the object is gone is none.
    pub async fn write(&self, object: &LLMTask, identity: &Identity, status: LLMTaskStatus) -> Result<Option<Duration>, Error> {
        let wanted = json(&status);
        let (shown, written_ago) = self.shown(object, identity);
        let lags = written_ago.map(|ago| WATCH_LAGS.saturating_sub(ago)).filter(|lag| !lag.is_zero());
        let Some(change) = difference(&shown, &wanted) else { return Ok(lags) };
        if let Some(ago) = self.last_write(identity.uid)
            && ago < PAUSE
            && !is_urgent(&shown, &wanted)
        {
            return Ok(Some(PAUSE.saturating_sub(ago)));
        }
        let Some(version) = self.patch(identity, &change).await? else { return Ok(None) };
        let mut written = self.written.lock();
        if written.len() >= RECORDS {
            written.retain(|_, record| record.at.elapsed() < WATCH_LAGS);
        }
        written.insert(identity.uid, Written { version, status: wanted, at: Instant::now() });
        Ok(None)
    }

    /// The status of the object. If the watch does not show the last write yet, what was written counts, and how long ago.
    fn shown(&self, object: &LLMTask, identity: &Identity) -> (Value, Option<Duration>) {
        let written = self.written.lock();
        match written.get(&identity.uid) {
            Some(last) if last.version != object.metadata.resource_version && last.at.elapsed() < WATCH_LAGS => {
                (last.status.clone(), Some(last.at.elapsed()))
            }
            _ => (json(&observed(object)), None),
        }
    }

    /// The TaskLease that the object names.
    pub fn shown_lease(&self, object: &LLMTask, identity: &Identity) -> Option<String> {
        self.shown_text(object, identity, "leaseName")
    }

    pub fn shown_phase(&self, object: &LLMTask, identity: &Identity) -> Option<String> {
        self.shown_text(object, identity, "phase")
    }

    fn shown_text(&self, object: &LLMTask, identity: &Identity, field: &str) -> Option<String> {
        self.shown(object, identity).0.get(field)?.as_str().map(str::to_owned)
    }

    fn last_write(&self, uid: Uuid) -> Option<Duration> {
        self.written.lock().get(&uid).map(|last| last.at.elapsed())
    }

    /// Returns the new version of the object; `None` if there is no such object any more.
    async fn patch(&self, identity: &Identity, change: &Value) -> Result<Option<Option<String>>, Error> {
        let api: Api<LLMTask> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        // An object that was created anew under the name has another uid, which the API server refuses to change.
        let body = Patch::Merge(json!({ "metadata": { "uid": identity.uid }, "status": change }));
        let params = PatchParams::default();
        match self.context.writes.make("LLMTask", "patch_status", api.patch_status(&identity.name, &params, &body)).await {
            Ok(object) => Ok(Some(object.metadata.resource_version)),
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(None),
            // The rest of the object is refused, of a time when the schema was another one. Trying again would not help.
            Err(error) if is_status(&error, 422) => {
                tracing::warn!(%error, ?identity, "the status of an LLMTask can't be written");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The object can't be read, so its status can't be either: it is overwritten.
    pub async fn report_unreadable(&self, identity: &Identity, error: &str) -> Result<Action, Error> {
        let problem = Problem::invalid(format!("The object can't be read by this version of the operator: {error}"));
        let again = problem.look_again;
        let wanted = json(&pending(&LLMTask::new(&identity.name, LLMTaskSpec::default()), problem));
        if self.last_write(identity.uid).is_none_or(|ago| ago >= again) && self.patch(identity, &wanted).await?.is_some() {
            self.written.lock().insert(identity.uid, Written { version: None, status: wanted, at: Instant::now() });
        }
        Ok(Action::requeue(again))
    }
}

fn json(status: &LLMTaskStatus) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// Whether a person or a `kubectl wait` would notice.
fn is_urgent(shown: &Value, wanted: &Value) -> bool {
    let facts = |status: &Value| -> Vec<(Value, Value)> {
        let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
        conditions.map(|condition| (condition["type"].clone(), condition["status"].clone())).collect()
    };
    shown.get("phase") != wanted.get("phase") || facts(shown) != facts(wanted)
}
