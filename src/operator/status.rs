//! Writes statuses. Only differences are written, and what was written is taken as the current status until the watch shows it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::core::{DeserializeGuard, ObjectMeta};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Context;
use crate::api::is_status;
use crate::object::{Error, Identity};

/// How long after a write the watch may still show the object as it was before.
pub(crate) const WATCH_LAGS: Duration = Duration::from_secs(2);

/// The last write of an object's status.
pub(crate) struct Written<S> {
    /// The version of the object after the write.
    version: String,
    pub status: S,
    at: Instant,
}

impl<S: Clone + Default> Written<S> {
    pub(crate) fn now(version: String, status: S) -> Self {
        Self { version, status, at: Instant::now() }
    }

    pub(crate) fn ago(&self) -> Duration {
        self.at.elapsed()
    }

    /// For how much longer the watch may show the object as it was before the write; `None` if it does not.
    pub(crate) fn lag(&self, watched: &ObjectMeta) -> Option<Duration> {
        let left = WATCH_LAGS.saturating_sub(self.ago());
        (!left.is_zero() && watched.resource_version.as_ref() != Some(&self.version)).then_some(left)
    }

    /// The current status of an object, from its last write and from what the watch shows.
    pub(crate) fn shown(last: Option<&Self>, watched: &ObjectMeta, status: Option<&S>) -> S {
        match last {
            Some(last) if last.lag(watched).is_some() => last.status.clone(),
            _ => status.cloned().unwrap_or_default(),
        }
    }
}

pub(crate) fn json(status: &impl Serialize) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

impl Context {
    /// Changes the status of an object. Returns the new version of the object; `None` if the object no longer exists.
    pub(crate) async fn patch_status<K>(&self, kind: &'static str, identity: &Identity, change: &Value) -> Result<Option<String>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        // The rest of the object may be unreadable.
        let api: Api<DeserializeGuard<K>> = Api::namespaced(self.client.clone(), &identity.namespace);
        // A new object with the same name has another uid. The API server refuses to change it, so the patch fails.
        let body = Patch::Merge(json!({ "metadata": { "uid": identity.uid }, "status": change }));
        match self.writes.make(kind, "patch_status", api.patch_status(&identity.name, &PatchParams::default(), &body)).await {
            Ok(object) => Ok(object.resource_version()),
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(None),
            // The rest of the object is not valid, because it was created under an older schema. Trying again would not help.
            Err(error) if is_status(&error, 422) => {
                tracing::warn!(%error, ?identity, kind, "the status of an object can't be written");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
