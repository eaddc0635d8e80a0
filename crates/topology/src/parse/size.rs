//! The size of a file with all that its aliases stand for. `serde_norway` bounds how many aliases it
//! follows, not how much each of them copies: 7 kB can stand for gigabytes.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_norway::{Mapping, Value};

use super::value::{Result, expected};

/// The most values of a file. The keys of mappings count, and a text counts once more for each
/// [`TEXT`] bytes.
pub(super) const MOST_VALUES: usize = 1_000_000;
/// Bytes of text that take as much memory as a value.
const TEXT: usize = 64;

/// Fails at the value with which a file has more than [`MOST_VALUES`]. Keeps none of them.
///
/// # Errors
/// Those of the parser, and one with the place of that value.
pub(super) fn check(text: &str) -> core::result::Result<(), serde_norway::Error> {
    let mut left = MOST_VALUES;
    Counter(&mut left).deserialize(serde_norway::Deserializer::from_str(text))
}

/// Fails if the nodes of `topology` would have more than [`MOST_VALUES`] together, each with those of
/// the defaults, its kind and its group.
///
/// # Errors
/// [`TopologyError::Expected`](crate::TopologyError::Expected).
pub(super) fn check_inherited(body: &Value) -> Result<()> {
    let all = |key| body.get(key).and_then(Value::as_mapping).into_iter().flat_map(Mapping::values);
    let largest = |key| all(key).map(size).max().unwrap_or_default();
    let each = body.get("defaults").map_or(0, size) + largest("kinds") + largest("groups");
    match all("nodes").count().saturating_mul(each) {
        ..=MOST_VALUES => Ok(()),
        _ => Err(expected("topology", "at most 1000000 values, with those that nodes inherit")),
    }
}

/// The values of a value, counted as those of a file.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() / TEXT,
        Value::Sequence(list) => list.iter().map(size).sum(),
        Value::Mapping(all) => all.iter().map(|(key, value)| size(key) + size(value)).sum(),
        Value::Tagged(tagged) => size(&tagged.value),
    }
}

/// Takes the values that it is given from those that are left.
struct Counter<'a>(&'a mut usize);

impl Counter<'_> {
    fn take<E: Error>(&mut self, number: usize) -> core::result::Result<(), E> {
        let left = self.0.checked_sub(number);
        *self.0 = left.ok_or_else(|| {
            let text = format!("more than {MOST_VALUES} values, with those that aliases stand for");
            E::custom(text)
        })?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Counter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(mut self, of: D) -> core::result::Result<(), D::Error> {
        self.take(1)?;
        of.deserialize_any(self)
    }
}

/// Methods of a visitor for what is counted already.
macro_rules! one_value {
    ($($visit:ident($($type:ty)?)),+) => {$(
        fn $visit<E>(self $(, _: $type)?) -> core::result::Result<(), E> {
            Ok(())
        }
    )+};
}

impl<'de> Visitor<'de> for Counter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any value")
    }

    one_value! {
        visit_bool(bool), visit_i64(i64), visit_i128(i128), visit_u64(u64), visit_u128(u128),
        visit_f64(f64), visit_none(), visit_unit()
    }

    fn visit_str<E: Error>(mut self, text: &str) -> core::result::Result<(), E> {
        self.take(text.len() / TEXT)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> core::result::Result<(), A::Error> {
        while list.next_element_seed(Counter(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> core::result::Result<(), A::Error> {
        while map.next_key_seed(Counter(self.0))?.is_some() {
            map.next_value_seed(Counter(self.0))?;
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> core::result::Result<(), A::Error> {
        let (_, value) = tagged.variant::<String>()?;
        value.newtype_variant_seed(self)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Topology;

    fn error(text: &str) -> String {
        let error = Topology::parse(text, Path::new("/labs"), |_| None).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    }

    /// A file with lists of `a`, and more of them in each level of aliases.
    fn bomb(a: &str) -> String {
        let list = |item: &str, number: usize| vec![item; number].join(", ");
        format!(
            "name: x\ntopology: {{nodes: {{n: {{kind: linux}}}}}}\na: &a {a}\nb: &b [{}]\nc: [{}]\n",
            list("*a", 200),
            list("*b", 200)
        )
    }

    #[test]
    fn aliases_do_not_multiply_a_file() {
        let list = format!("[{}]", vec!["1"; 2001].join(", "));
        let pairs: Vec<String> = (0..40).map(|key| format!("k{key}: v")).collect();
        let map = format!("{{{}}}", pairs.join(", "));
        let tagged = format!("!tagged {list}");
        let text = format!("'{}'", "x".repeat(5000));
        for a in [list, map, tagged, text] {
            let error = error(&bomb(&a));
            let what = "more than 1000000 values, with those that aliases stand for";
            assert!(error.contains(what) && error.contains("at line "), "{error}");
        }
        let few = bomb("1").replace("b: &b", "debug: &b").replace("\na: &a 1", "\nprefix: &a x");
        assert!(error(&few).starts_with("c: not supported"), "{}", error(&few));
    }

    #[test]
    fn nodes_do_not_multiply_what_they_inherit() {
        let env: Vec<String> = (0..2000).map(|number| format!("V{number}: x")).collect();
        let nodes: Vec<String> = (0..500).map(|number| format!("n{number}: ")).collect();
        let of = |level: &str| {
            let (env, nodes) = (env.join(", "), nodes.join(", "));
            let level = level.replace("ENV", &format!("{{kind: linux, env: {{{env}}}}}"));
            error(&format!("name: x\ntopology: {{{level}, nodes: {{{nodes}}}}}"))
        };
        for level in ["defaults: ENV", "kinds: {linux: ENV}", "groups: {g: ENV}"] {
            let error = of(level);
            assert!(error.starts_with("topology: expected at most 1000000 values"), "{error}");
        }
    }

    /// The parser would be busy for minutes.
    #[test]
    fn brackets_with_another_name_take_no_time() {
        let brackets = "\\x5b".repeat(500_000);
        let links = format!("links: [{{endpoints: ['a:b', 'c:d'], mtu: \"{brackets}\"}}]");
        let nodes = "nodes: {a: {kind: linux}, c: {kind: linux}}";
        let error = error(&format!("name: x\ntopology: {{{nodes}, {links}}}"));
        assert!(error.contains("mtu: expected"), "{error}");
    }
}
