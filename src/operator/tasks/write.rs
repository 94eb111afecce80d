//! Writes statuses: at once if the phase, the lease or a condition changes, otherwise at most once a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::ObjectMeta;
use kube::runtime::controller::Action;
use parking_lot::Mutex;
use serde_json::Value;
use uuid::Uuid;

use super::status::{Problem, pending};
use super::{Error, Identity};
use crate::Context;
use crate::crds::LLMTask;
use crate::crds::task::{LLMTaskSpec, LLMTaskStatus};
use crate::difference::difference;
use crate::status::{WATCH_LAGS, Written, json};

/// The pause between two writes of one object, unless its phase, its lease or a condition changes.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of records of writes beyond which those that no longer matter are dropped.
const RECORDS: usize = 1_024;

pub(crate) struct StatusWriter {
    context: Arc<Context>,
    written: Mutex<HashMap<Uuid, Written<LLMTaskStatus>>>,
}

impl StatusWriter {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, written: Mutex::default() }
    }

    /// Makes the object show this status. Returns when to look again, if that is needed.
    ///
    /// # Errors
    /// Errors of the API server. It is not an error if the object is gone.
    pub(crate) async fn write(&self, object: &LLMTask, identity: &Identity, status: LLMTaskStatus) -> Result<Option<Duration>, Error> {
        let (shown, wanted) = (json(&self.shown(object, identity)), json(&status));
        let (ago, lag) = self.written.lock().get(&identity.uid).map(|last| (last.ago(), last.lag(&object.metadata))).unzip();
        let Some(change) = difference(&shown, &wanted) else { return Ok(lag.flatten()) };
        if let Some(ago) = ago.filter(|ago| *ago < PAUSE && !is_urgent(&shown, &wanted)) {
            return Ok(Some(PAUSE.saturating_sub(ago)));
        }
        self.patch(identity, &change, status).await?;
        Ok(None)
    }

    /// The current status of the object.
    pub(crate) fn shown(&self, object: &LLMTask, identity: &Identity) -> LLMTaskStatus {
        Written::shown(self.written.lock().get(&identity.uid), &object.metadata, object.status.as_ref())
    }

    async fn patch(&self, identity: &Identity, change: &Value, status: LLMTaskStatus) -> Result<(), Error> {
        let Some(version) = self.context.patch_status::<LLMTask>("LLMTask", identity, change).await? else { return Ok(()) };
        let mut written = self.written.lock();
        if written.len() >= RECORDS {
            written.retain(|_, last| last.ago() < WATCH_LAGS);
        }
        written.insert(identity.uid, Written::now(version, status));
        Ok(())
    }

    /// Reports that the object can't be read. Its status can't be read either, so it is overwritten.
    pub(crate) async fn report_unreadable(&self, metadata: &ObjectMeta, identity: &Identity, error: &str) -> Result<Action, Error> {
        let problem = Problem::invalid(format!("The object can't be read by this version of the operator: {error}"));
        let again = problem.look_again;
        let object = LLMTask { metadata: metadata.clone(), spec: LLMTaskSpec::default(), status: None };
        let status = pending(&object, &LLMTaskStatus::default(), problem);
        let ago = self.written.lock().get(&identity.uid).map(Written::ago);
        if ago.is_none_or(|ago| ago >= again) {
            self.patch(identity, &json(&status), status).await?;
        }
        Ok(Action::requeue(again))
    }
}

/// Whether a person or `kubectl wait` would notice the difference.
fn is_urgent(shown: &Value, wanted: &Value) -> bool {
    let facts = |status: &Value| -> Vec<(Value, Value)> {
        let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
        conditions.map(|condition| (condition["type"].clone(), condition["status"].clone())).collect()
    };
    ["phase", "leaseName"].iter().any(|field| shown.get(field) != wanted.get(field)) || facts(shown) != facts(wanted)
}
