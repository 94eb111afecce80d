//! Computes what to write so that an object shows what it should.

use serde_json::{Map, Value};

/// The merge patch that makes `shown` into `wanted`; `None` if they are equal.
pub(crate) fn difference(shown: &Value, wanted: &Value) -> Option<Value> {
    let (Value::Object(shown), Value::Object(members)) = (shown, wanted) else {
        return (shown != wanted).then(|| wanted.clone());
    };
    let removed = shown.keys().filter(|name| !members.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = members.iter().filter_map(|(name, value)| {
        let change = match shown.get(name) {
            Some(shown) => difference(shown, value)?,
            None => value.clone(),
        };
        Some((name.clone(), change))
    });
    let patch: Map<String, Value> = removed.chain(changed).collect();
    (!patch.is_empty()).then(|| patch.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_contains_what_differs() {
        let shown = json!({ "phase": "Queued", "usage": { "a": 1, "b": 2 }, "by": "hand", "conditions": [1, 2] });
        let wanted = json!({ "phase": "Queued", "usage": { "a": 1, "b": 3 }, "new": true, "conditions": [1] });
        let patch = difference(&shown, &wanted).unwrap();
        assert_eq!(patch, json!({ "usage": { "b": 3 }, "by": null, "new": true, "conditions": [1] }));
        assert_eq!(difference(&wanted, &wanted), None);
    }
}
