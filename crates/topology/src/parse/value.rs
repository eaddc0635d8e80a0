//! Conversions of YAML values to the expected types.

use std::collections::BTreeMap;

use serde_norway::{Mapping, Value};

use super::texts::Texts;
use crate::error::TopologyError;

pub(super) type Result<T> = core::result::Result<T, TopologyError>;

pub(super) fn unsupported(place: &str, why: &'static str) -> TopologyError {
    TopologyError::Unsupported { place: place.to_owned(), why }
}

pub(super) fn expected(place: &str, expected: &'static str) -> TopologyError {
    TopologyError::Expected { place: place.to_owned(), expected }
}

pub(super) fn mapping<'a>(place: &str, value: &'a Value) -> Result<&'a Mapping> {
    value.as_mapping().ok_or_else(|| expected(place, "a mapping"))
}

pub(super) fn sequence<'a>(place: &str, value: &'a Value) -> Result<&'a [Value]> {
    value.as_sequence().map(Vec::as_slice).ok_or_else(|| expected(place, "a list"))
}

pub(super) fn entries<'a>(
    place: &str,
    mapping: &'a Mapping,
) -> Result<impl Iterator<Item = (&'a str, &'a Value)> + use<'a>> {
    if mapping.keys().any(|key| !key.is_string()) {
        return Err(expected(place, "keys that are text"));
    }
    Ok(mapping.iter().filter_map(|(key, value)| Some((key.as_str()?, value))))
}

/// Text. Numbers and Booleans are converted to text.
pub(super) fn string(place: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        _ => Err(expected(place, "text")),
    }
}

/// Texts by their names, as the file has them; nothing is the empty text.
pub(super) fn strings(
    place: &str,
    value: &Value,
    texts: &Texts,
) -> Result<BTreeMap<String, String>> {
    if value.is_null() {
        return Ok(BTreeMap::new());
    }
    let text = |(key, value): (&str, &Value)| {
        let place = format!("{place}.{key}");
        let text = match texts.at(&place) {
            Some(text) => text.to_owned(),
            None if value.is_null() => String::new(),
            None => string(&place, value)?,
        };
        Ok((key.to_owned(), text))
    };
    entries(place, mapping(place, value)?)?.map(text).collect()
}

/// A non-negative integer.
pub(super) fn number(place: &str, value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| expected(place, "a number, 0 or more"))
}

/// A command, split into words as a shell does.
pub(super) fn words(place: &str, text: &str) -> Result<Vec<String>> {
    shlex::split(text)
        .filter(|words| !words.is_empty())
        .ok_or_else(|| expected(place, "a command with closed quotes"))
}
