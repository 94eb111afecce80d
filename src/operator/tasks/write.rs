//! Writes statuses: only what differs, at once if the phase or a condition changes, otherwise at most once a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::runtime::controller::Action;
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::status::{Problem, pending};
use super::{Error, Identity};
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
    status: LLMTaskStatus,
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
        let (shown, written_ago) = self.last(object, identity);
        let (shown, wanted) = (json(&shown), json(&status));
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
        written.insert(identity.uid, Written { version, status, at: Instant::now() });
        Ok(None)
    }

    /// The status that the object has.
    pub fn shown(&self, object: &LLMTask, identity: &Identity) -> LLMTaskStatus {
        self.last(object, identity).0
    }

    /// If the watch does not show the last write yet, what was written counts. Returns how long ago that was.
    fn last(&self, object: &LLMTask, identity: &Identity) -> (LLMTaskStatus, Option<Duration>) {
        match self.written.lock().get(&identity.uid) {
            Some(last) if last.version != object.metadata.resource_version && last.at.elapsed() < WATCH_LAGS => {
                (last.status.clone(), Some(last.at.elapsed()))
            }
            _ => (object.status.clone().unwrap_or_default(), None),
        }
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
    pub async fn report_unreadable(&self, metadata: &ObjectMeta, error: &str) -> Result<Action, Error> {
        let identity = &Identity::of(metadata)?;
        let problem = Problem::invalid(format!("The object can't be read by this version of the operator: {error}"));
        let again = problem.look_again;
        let object = LLMTask { metadata: metadata.clone(), spec: LLMTaskSpec::default(), status: None };
        let status = pending(&object, &LLMTaskStatus::default(), problem);
        if self.last_write(identity.uid).is_none_or(|ago| ago >= again) && self.patch(identity, &json(&status)).await?.is_some() {
            self.written.lock().insert(identity.uid, Written { version: None, status, at: Instant::now() });
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
