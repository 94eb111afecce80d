//! What the controllers need to know of any object: which one it is, and its finalizers.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use uuid::Uuid;

use crate::Context;
use crate::api::is_status;

/// Errors after which an object is reconciled again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] kube::Error),
    #[error("database: {0}")]
    Store(#[from] bloom_store::Error),
    #[error("engine: {0:?}")]
    Engine(bloom_engine::Error),
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    #[error("no random bytes for a key: {0}")]
    Random(#[from] getrandom::Error),
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    pub namespace: String,
    pub name: String,
    pub uid: Uuid,
}

impl Identity {
    pub fn of(metadata: &ObjectMeta) -> Result<Self, Error> {
        let missing = Error::Incomplete;
        Ok(Self {
            namespace: metadata.namespace.clone().ok_or(missing("namespace"))?,
            name: metadata.name.clone().ok_or(missing("name"))?,
            uid: metadata.uid.as_deref().and_then(|uid| uid.parse().ok()).ok_or(missing("uid"))?,
        })
    }
}

/// One finalizer of an object of this kind.
pub struct Finalizer {
    pub kind: &'static str,
    pub name: &'static str,
}

impl Finalizer {
    pub fn is_on(&self, metadata: &ObjectMeta) -> bool {
        metadata.finalizers.iter().flatten().any(|name| name == self.name)
    }

    /// Adds it. Returns whether the object has it: not if the object was deleted or changed meanwhile.
    pub async fn add<K>(&self, context: &Context, metadata: &ObjectMeta) -> Result<bool, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if self.is_on(metadata) {
            return Ok(true);
        }
        let names = metadata.finalizers.iter().flatten().cloned().chain([self.name.to_owned()]).collect();
        self.set::<K>(context, metadata, names, "add_finalizer").await
    }

    /// Removes it. Returns whether the object exists without it: not if it was changed meanwhile.
    pub async fn remove<K>(&self, context: &Context, metadata: &ObjectMeta) -> Result<bool, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let others = metadata.finalizers.iter().flatten().filter(|name| *name != self.name).cloned().collect();
        self.set::<K>(context, metadata, others, "remove_finalizer").await
    }

    /// The version of the object is checked, because others may have finalizers too.
    async fn set<K>(&self, context: &Context, metadata: &ObjectMeta, names: Vec<String>, verb: &'static str) -> Result<bool, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let identity = Identity::of(metadata)?;
        let api: Api<K> = Api::namespaced(context.client.clone(), &identity.namespace);
        let metadata = json!({ "uid": identity.uid, "resourceVersion": metadata.resource_version, "finalizers": names });
        let body = Patch::Merge(json!({ "metadata": metadata }));
        // The rest of the object may be unreadable.
        match context.writes.make(self.kind, verb, api.patch_metadata(&identity.name, &PatchParams::default(), &body)).await {
            Ok(_) => Ok(true),
            // The next version of the object is reconciled as well.
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
