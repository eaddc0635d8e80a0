//! Values of an experiment file that have a range or a unit. A value out of range is an error at
//! its line.

use std::borrow::Borrow;
use std::fmt;
use std::num::NonZeroU16;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// A name of a fabric, node, experiment, variant, job, policy or datapath: 1 to 63 letters, digits,
/// `-`, `_` and `.`, with a letter or digit first. It is therefore one component of a path, never
/// `.` or `..`, and never an option of a command. The default is the empty name of a variant that
/// only the values of a sweep make.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String")]
#[schemars(extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"))]
pub struct Name(String);

impl Name {
    /// The most characters. A host name has as many (RFC 1035, section 2.3.4).
    const MOST: usize = 63;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<Path> for Name {
    fn as_ref(&self) -> &Path {
        self.0.as_ref()
    }
}

/// Maps with names as keys are asked with text.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins && text.len() <= Self::MOST && text.chars().all(allowed) {
            return Ok(Self(text));
        }
        let shown: String = text.chars().take(Self::MOST).collect();
        Err(format!(
            "'{}' is no name: use 1 to {} letters, digits, '-', '_' and '.', with a letter or \
             digit first",
            shown.escape_debug(),
            Self::MOST
        ))
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

/// An end of a link, `NODE:INTERFACE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(extend("pattern" = "^[^:]+:[^:]+$"))]
pub struct LinkEnd(String);

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for LinkEnd {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':') {
            Some((node, interface))
                if !node.is_empty() && !interface.is_empty() && !interface.contains(':') =>
            {
                Ok(Self(text))
            }
            _ => Err(format!("'{text}' is no end of a link: use NODE:INTERFACE")),
        }
    }
}

/// A number of percent, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, JsonSchema)]
#[schemars(with = "quantity::NumberOrText", extend("minimum" = 0, "maximum" = 100))]
pub struct Percent(f64);

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        quantity::percent(from)?.try_into().map_err(serde::de::Error::custom)
    }
}

impl Percent {
    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Percent {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        if (0.0..=100.0).contains(&number) {
            Ok(Self(number))
        } else {
            Err(format!("{number}: expected 0 to 100 percent"))
        }
    }
}

/// A number of queue pairs, 1 to 1000.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "u64")]
#[schemars(extend("minimum" = 1, "maximum" = 1000))]
pub struct QueuePairs(NonZeroU16);

impl QueuePairs {
    /// The number.
    #[must_use]
    pub fn get(self) -> usize {
        self.0.get().into()
    }
}

impl Default for QueuePairs {
    fn default() -> Self {
        Self(NonZeroU16::MIN)
    }
}

impl TryFrom<u64> for QueuePairs {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        u16::try_from(number)
            .ok()
            .filter(|number| *number <= 1000)
            .and_then(NonZeroU16::new)
            .map(Self)
            .ok_or_else(|| format!("{number} queue pairs: expected 1 to 1000"))
    }
}

/// A share of 1, above 0 and below 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64")]
#[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
pub struct Share(f64);

impl Share {
    /// 5 %.
    pub const FIVE_PERCENT: Self = Self(0.05);
    /// 95 %.
    pub const NINETY_FIVE_PERCENT: Self = Self(0.95);

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Share {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        if number > 0.0 && number < 1.0 {
            Ok(Self(number))
        } else {
            Err(format!("{number}: expected a number between 0 and 1"))
        }
    }
}

/// A time from 0 s to 3600 s with its unit, such as `5ms`: `ns`, `us`, `ms`, `s` or `min`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("pattern" = "^[0-9.]+ *(ns|us|ms|s|min)$"))]
pub struct Time {
    text: String,
    duration: Duration,
}

impl Time {
    /// The text, as `lab wan` takes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The time.
    #[must_use]
    pub const fn duration(&self) -> Duration {
        self.duration
    }
}

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let duration = quantity::time(&text).map_err(|error| format!("'{text}': {error}"))?;
        // A text without spaces can be a part of a name.
        Ok(Self { text: text.split_whitespace().collect(), duration })
    }
}

impl From<Time> for String {
    fn from(time: Time) -> Self {
        time.text
    }
}

/// How the inner UDP source port is chosen.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    Default,
)]
#[serde(rename_all = "kebab-case")]
pub enum InnerPort {
    /// One port for all queue pairs, as older NICs and many traffic generators do.
    #[default]
    Constant,
    /// A port for each queue pair, by rdma-core's formula.
    PerQueuePair,
    /// A port for each queue pair, by the formula of Linux Soft-RoCE.
    SoftRoce,
}

impl InnerPort {
    /// The name in the report.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Constant => "one inner source port for all queue pairs",
            Self::PerQueuePair => "an inner source port for each queue pair",
            Self::SoftRoce => "Soft-RoCE's inner source port for each queue pair",
        }
    }
}

impl fmt::Display for InnerPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_part_of_a_name() {
        let time = Time::try_from("5 ms".to_owned()).unwrap();
        assert_eq!((time.as_str(), time.duration()), ("5ms", Duration::from_millis(5)));
    }

    #[test]
    fn a_name_is_one_safe_component_of_a_path() {
        for good in ["a", "3", "scaleacross-qp", "leaf_1.b", &"x".repeat(63)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        let long = "x".repeat(64);
        let bad =
            ["", ".", "..", "../x", "../../x", "/tmp/x", "a/b", ".a", "-a", "_a", "a b", "a\nb"];
        for bad in bad.into_iter().chain(["a\x1b[31m", "a\0", "ü", &long, &"../".repeat(100)]) {
            let error = bad.parse::<Name>().unwrap_err();
            assert!(error.contains("is no name") && error.len() < 400, "{bad}: {error}");
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
    }
}
