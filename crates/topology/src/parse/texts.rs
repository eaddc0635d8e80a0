//! A file whose single values and keys are text as it has them. ContainerLab reads text into most
//! keys: `1.10`, `0x1F` and `yes` stay what they are, and a node may be called `1`.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_norway::{Error, Mapping, Value};

use super::size;

/// The value of a file: only mappings, lists, text and nothing.
///
/// # Errors
/// [`Error`] if the file is no YAML, has too many values ([`size`]), or a key is no single value.
pub(crate) fn read(text: &str) -> Result<Value, Error> {
    size::check(text)?;
    let form = serde_norway::from_str(text)?;
    Form(&form).deserialize(serde_norway::Deserializer::from_str(text))
}

/// Reads a value that has this form.
struct Form<'a>(&'a Value);

impl<'de> DeserializeSeed<'de> for Form<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, of: D) -> Result<Value, D::Error> {
        match self.0 {
            Value::Mapping(_) => of.deserialize_map(self),
            Value::Sequence(_) => of.deserialize_seq(self),
            Value::Tagged(tagged) => Form(&tagged.value).deserialize(of),
            Value::Null => of.deserialize_ignored_any(IgnoredAny).map(|_| Value::Null),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => of.deserialize_str(self),
        }
    }
}

impl<'de> Visitor<'de> for Form<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the same value as before")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        for form in self.0.as_sequence().into_iter().flatten() {
            all.extend(list.next_element_seed(Form(form))?);
        }
        // The end.
        list.next_element::<IgnoredAny>()?;
        Ok(Value::Sequence(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Mapping::new();
        for form in self.0.as_mapping().into_iter().flat_map(Mapping::values) {
            let Some(key) = map.next_key::<String>()? else { break };
            all.insert(Value::String(key), map.next_value_seed(Form(form))?);
        }
        map.next_key::<IgnoredAny>()?;
        Ok(Value::Mapping(all))
    }
}
