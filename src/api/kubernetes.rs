//! What the operator and the plugin of kubectl both know of objects of Kubernetes.

/// The annotation of an object that names the server which it belongs to, by the namespace of that server. The server's operator sets it
/// before it does anything for the object.
pub const OPERATOR: &str = "bloom-runtime.dev/operator";

/// The most bytes of the name of an object.
const MAX_NAME: usize = 253;

/// Whether this can be the name of an object: a subdomain of RFC 1123. Other texts must not get into a path or an argument.
pub fn is_object_name(text: &str) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &[u8]| {
        label.first().is_some_and(|byte| is_end(*byte))
            && label.last().is_some_and(|byte| is_end(*byte))
            && label.iter().all(|byte| is_end(*byte) || *byte == b'-')
    };
    text.len() <= MAX_NAME && text.as_bytes().split(|byte| *byte == b'.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects() {
        for right in ["a", "7", "task-1.b", "0190a0a0-0000-7000-8000-000000000000", &"n".repeat(253)] {
            assert!(is_object_name(right), "{right}");
        }
        for wrong in ["", "-a", "a-", "a..b", "a.-b", ".", "..", "a%2f", "A", "team/a", "a_b", "a b", "ü", "a\n", &"n".repeat(254)] {
            assert!(!is_object_name(wrong), "{wrong}");
        }
    }
}
