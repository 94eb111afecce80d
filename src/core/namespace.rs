//! Tasks that were created for Kubernetes objects, and how their names are kept apart.
//!
//! Each namespace of Kubernetes is a tenant: a task there shares contexts, exclusive keys and idempotency keys only with tasks of its own
//! namespace. These names are therefore stored with the namespace in front, in a form that `Create` refuses to all other tasks. So every
//! look-up, index and directory that goes by such a name is scoped, without a rule of its own.

use uuid::Uuid;

/// The object of Kubernetes that a task was created for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesObject {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object in its namespace.
    pub name: String,
    /// Unique in time too: an object that is deleted and created again under its name gets another one.
    pub uid: Uuid,
}

/// Whether this can be the name of a namespace: a label of RFC 1123.
pub fn is_namespace(text: &str) -> bool {
    (1..=MAX_NAMESPACE).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Bytes of the name of a namespace.
pub const MAX_NAMESPACE: usize = 63;
/// The pattern of names for which [`is_namespace`] holds.
pub const NAMESPACE_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Names that begin with this are those of tasks in Kubernetes namespaces.
pub const RESERVED: &str = "namespace:";

/// The name, as a task of this namespace has it. The names of namespaces contain no `/`.
pub fn qualified(namespace: &str, name: &str) -> String {
    format!("{RESERVED}{namespace}/{name}")
}

/// The name without its namespace, as its object has it.
pub fn unqualified<'a>(namespace: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(RESERVED)?.strip_prefix(namespace)?.strip_prefix('/')
}

/// The namespace of a name that [`qualified`] made.
pub fn namespace_of(name: &str) -> Option<&str> {
    name.strip_prefix(RESERVED)?.split_once('/').map(|(namespace, _)| namespace)
}
