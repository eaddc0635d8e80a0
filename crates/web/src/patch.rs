//! Changes between two JSON values as a merge patch (RFC 7396).

use serde_json::{Map, Value};

/// The merge patch that makes `after` of `before`; `None` if they are equal. A member that `after`
/// lacks is null, so values must not contain null themselves.
pub(crate) fn between(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut changes = Map::new();
    for (name, value) in new {
        let change = match old.get(name) {
            Some(before) => between(before, value),
            None => Some(value.clone()),
        };
        changes.extend(change.map(|change| (name.clone(), change)));
    }
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    changes.extend(gone.map(|name| (name.clone(), Value::Null)));
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Changes a value by a merge patch.
pub(crate) fn apply(value: &mut Value, patch: Value) {
    let Value::Object(changes) = patch else {
        *value = patch;
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Some(members) = value.as_object_mut() else { return };
    for (name, change) in changes {
        if change.is_null() {
            members.remove(&name);
        } else {
            apply(members.entry(name).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_has_only_what_changed() {
        let before = json!({"links": {"a": {"up": true, "rate": 5}, "b": {"up": true}}, "n": [1]});
        assert_eq!(between(&before, &before), None);
        let after = json!({"links": {"a": {"up": true, "rate": 6}, "c": {}}, "n": [1, 2]});
        let patch = json!({"links": {"a": {"rate": 6}, "b": null, "c": {}}, "n": [1, 2]});
        assert_eq!(between(&before, &after), Some(patch.clone()));
        let mut changed = before;
        apply(&mut changed, patch);
        assert_eq!(changed, after);
    }
}
