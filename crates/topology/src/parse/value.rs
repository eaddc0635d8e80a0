//! Conversions of YAML values to the expected types. Single values are text ([`super::texts`]), and
//! nothing is an empty list or mapping.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_norway::Value;

use super::words::split;
use crate::error::TopologyError;

/// Seconds of a day.
const DAY: u64 = 86_400;

pub(super) type Result<T> = core::result::Result<T, TopologyError>;

pub(super) fn unsupported(place: &str, why: &'static str) -> TopologyError {
    TopologyError::Unsupported { place: place.to_owned(), why }
}

pub(super) fn expected(place: &str, expected: &'static str) -> TopologyError {
    TopologyError::Expected { place: place.to_owned(), expected }
}

pub(super) fn sequence<'a>(place: &str, value: &'a Value) -> Result<&'a [Value]> {
    match value {
        Value::Null => Ok(&[]),
        Value::Sequence(all) => Ok(all),
        _ => Err(expected(place, "a list")),
    }
}

/// The entries of a mapping.
pub(super) fn entries<'a>(
    place: &str,
    value: &'a Value,
) -> Result<impl Iterator<Item = (&'a str, &'a Value)> + use<'a>> {
    if !value.is_null() && !value.is_mapping() {
        return Err(expected(place, "a mapping"));
    }
    let all = value.as_mapping().into_iter().flatten();
    Ok(all.filter_map(|(key, value)| Some((key.as_str()?, value))))
}

/// The settings of a mapping. As in ContainerLab, one without a value, or with the empty text, is
/// not set.
pub(super) fn fields<'a>(
    place: &str,
    value: &'a Value,
) -> Result<impl Iterator<Item = (&'a str, &'a Value)> + use<'a>> {
    let is_set = |value: &Value| !value.is_null() && value.as_str() != Some("");
    Ok(entries(place, value)?.filter(move |(_, value)| is_set(value)))
}

pub(super) fn string(place: &str, value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| expected(place, "text"))
}

/// Texts by their names; nothing is the empty text.
pub(super) fn strings(place: &str, value: &Value) -> Result<BTreeMap<String, String>> {
    let text = |(key, value): (&str, &Value)| match value {
        Value::Null => Ok((key.to_owned(), String::new())),
        value => Ok((key.to_owned(), string(&format!("{place}.{key}"), value)?)),
    };
    entries(place, value)?.map(text).collect()
}

/// The most bytes of a number or another single value. The parser's time grows with the square of
/// the levels of brackets, and escaped ones are seen here first.
const MOST_BYTES: usize = 1024;

/// The single value of this type that the text stands for in YAML.
pub(super) fn typed<T: DeserializeOwned>(value: &Value) -> Option<T> {
    let text = value.as_str().filter(|text| text.len() <= MOST_BYTES)?;
    serde_norway::from_str(text).ok()
}

/// A non-negative integer.
pub(super) fn number(place: &str, value: &Value) -> Result<u64> {
    typed(value).ok_or_else(|| expected(place, "a number, 0 or more"))
}

/// A time of at most a day, in whole seconds.
pub(super) fn seconds(place: &str, value: &Value) -> Result<u64> {
    let seconds = typed(value).filter(|seconds| *seconds <= DAY);
    seconds.ok_or_else(|| expected(place, "a number of seconds, 0 to 86400, which is a day"))
}

/// A Boolean, as YAML 1.1 writes it.
pub(super) fn truth(place: &str, value: &Value) -> Result<bool> {
    match string(place, value)?.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => Ok(true),
        "false" | "no" | "off" | "n" => Ok(false),
        _ => Err(expected(place, "true or false")),
    }
}

/// A command, split into words.
pub(super) fn words(place: &str, text: &str) -> Result<Vec<String>> {
    split(text)
        .filter(|words| !words.is_empty())
        .ok_or_else(|| expected(place, "a command with closed quotes"))
}
