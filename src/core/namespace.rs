//! Tasks that were created for Kubernetes objects, and how their names are kept separate.
//!
//! Each Kubernetes namespace is a tenant: a task there shares contexts, exclusive keys and idempotency keys only with tasks of its own
//! namespace. These names are therefore stored with the namespace as a prefix, in a form that `Create` refuses for all other tasks. Every
//! look-up, index and directory that uses such a name is thereby scoped without a separate rule.

use uuid::Uuid;

/// The Kubernetes object that a task was created for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesObject {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object in its namespace.
    pub name: String,
    /// The uid of the object, which is never reused: an object that is deleted and created again with the same name gets another one.
    pub uid: Uuid,
}

/// Whether this can be the name of a namespace, which is a label as defined in RFC 1123.
pub fn is_namespace(text: &str) -> bool {
    (1..=MAX_NAMESPACE).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The maximum length of the name of a namespace, in bytes.
pub const MAX_NAMESPACE: usize = 63;
/// The pattern of names that [`is_namespace`] accepts, apart from their length.
pub const NAMESPACE_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// The prefix of the names of tasks in Kubernetes namespaces.
pub const RESERVED: &str = "namespace:";

/// The stored form of a name of a task in this namespace. It can be split again, because the names of namespaces contain no `/`.
pub fn qualified(namespace: &str, name: &str) -> String {
    format!("{RESERVED}{namespace}/{name}")
}

/// The name without its namespace, as in its Kubernetes object; `None` if it does not belong to this namespace.
pub fn unqualified<'a>(namespace: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(RESERVED)?.strip_prefix(namespace)?.strip_prefix('/')
}

/// The namespace of a name that [`qualified`] made.
pub fn namespace_of(name: &str) -> Option<&str> {
    name.strip_prefix(RESERVED)?.split_once('/').map(|(namespace, _)| namespace)
}
