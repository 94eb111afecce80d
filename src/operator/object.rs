//! What the controllers need to know about every object: its identity, the server to which it belongs, and its finalizers.

use std::fmt::Debug;

use bloom_api::kubernetes::OPERATOR;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Context;
use crate::api::is_status;

/// Errors after which an object is reconciled again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] kube::Error),
    #[error("database: {0}")]
    Store(#[from] bloom_store::Error),
    #[error("{0}")]
    Engine(bloom_engine::Error),
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    #[error("no random bytes for a key: {0}")]
    Random(#[from] getrandom::Error),
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    pub namespace: String,
    pub name: String,
    pub uid: Uuid,
}

impl Identity {
    pub(crate) fn of(metadata: &ObjectMeta) -> Result<Self, Error> {
        let missing = Error::Incomplete;
        Ok(Self {
            namespace: metadata.namespace.clone().ok_or(missing("namespace"))?,
            name: metadata.name.clone().ok_or(missing("name"))?,
            uid: metadata.uid.as_deref().and_then(|uid| uid.parse().ok()).ok_or(missing("uid"))?,
        })
    }
}

/// The server to which the object belongs; `None` if no server has taken it yet.
pub(crate) fn operator_of(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(OPERATOR).map(String::as_str)
}

/// Whether the object belongs to another server. Two servers that act for one object would undo each other's work.
pub(crate) fn is_of_other(context: &Context, metadata: &ObjectMeta) -> bool {
    operator_of(metadata).is_some_and(|operator| operator != context.namespace)
}

/// What a deletion applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    ThisObject,
    /// The object only if it has not changed since it was read.
    ThisVersion,
}

impl Context {
    /// Deletes an object, but no other object of the same name. It is not an error if the object is gone or has changed.
    pub(crate) async fn delete<K>(&self, kind: &'static str, objects: &Api<K>, metadata: &ObjectMeta, only: Only) -> Result<(), Error>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let resource_version = metadata.resource_version.clone().filter(|_| only == Only::ThisVersion);
        let preconditions = Preconditions { uid: metadata.uid.clone(), resource_version };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = metadata.name.as_deref().ok_or(Error::Incomplete("name"))?;
        match self.writes.make(kind, "delete", objects.delete(name, &params)).await {
            Err(error) if !is_status(&error, 404) && !is_status(&error, 409) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// One finalizer of an object of this kind.
pub(crate) struct Finalizer {
    pub kind: &'static str,
    pub name: &'static str,
}

impl Finalizer {
    pub(crate) fn is_on(&self, metadata: &ObjectMeta) -> bool {
        metadata.finalizers.iter().flatten().any(|name| name == self.name)
    }

    /// Takes the object for this server and adds the finalizer. Returns false if the object was deleted or changed meanwhile, perhaps
    /// because another server took it.
    pub(crate) async fn add<K>(&self, context: &Context, metadata: &ObjectMeta) -> Result<bool, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if self.is_on(metadata) && operator_of(metadata).is_some() {
            return Ok(true);
        }
        let others = metadata.finalizers.iter().flatten().filter(|name| *name != self.name).cloned();
        let names: Vec<String> = others.chain([self.name.to_owned()]).collect();
        let fields = json!({ "finalizers": names, "annotations": { (OPERATOR): context.namespace } });
        self.set::<K>(context, metadata, fields, "add_finalizer").await
    }

    /// Removes the finalizer. Returns false if the object was deleted or changed meanwhile.
    pub(crate) async fn remove<K>(&self, context: &Context, metadata: &ObjectMeta) -> Result<bool, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let others: Vec<&String> = metadata.finalizers.iter().flatten().filter(|name| *name != self.name).collect();
        self.set::<K>(context, metadata, json!({ "finalizers": others }), "remove_finalizer").await
    }

    /// Changes the metadata. The version of the object is checked, because others may have added or removed finalizers.
    async fn set<K>(&self, context: &Context, metadata: &ObjectMeta, mut fields: Value, verb: &'static str) -> Result<bool, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let identity = Identity::of(metadata)?;
        let api: Api<K> = Api::namespaced(context.client.clone(), &identity.namespace);
        fields["uid"] = json!(identity.uid);
        fields["resourceVersion"] = json!(metadata.resource_version);
        let body = Patch::Merge(json!({ "metadata": fields }));
        // Only the metadata is patched, because the rest of the object may be unreadable.
        match context.writes.make(self.kind, verb, api.patch_metadata(&identity.name, &PatchParams::default(), &body)).await {
            Ok(_) => Ok(true),
            // The next version of the object will be reconciled too.
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
