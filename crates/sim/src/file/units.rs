//! Values with a unit.

use std::str::FromStr;

use quantity::Kind;
use schemars::JsonSchema;
use serde::Deserialize;
use spray::Scheme;

use crate::time::{Picos, Rate, SECOND};

/// A time, such as `1us`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Time(pub Picos);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let seconds = Kind::TIME.parse(&text).map_err(|error| format!("'{text}': {error}"))?;
        Ok(Self((seconds * SECOND as f64).round() as Picos))
    }
}

/// A number of bytes, or a size with its unit, such as `"10kB"`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct Bytes(
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "quantity::NumberOrText")]
    pub u64,
);

/// A rate, such as `100Gbit/s`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct BitRate(f64);

impl BitRate {
    /// The rate.
    #[must_use]
    pub fn rate(self) -> Rate {
        Rate::new(self.0)
    }

    /// Bits per second.
    pub(super) const fn bits(self) -> f64 {
        self.0
    }
}

impl TryFrom<String> for BitRate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bits = Kind::RATE.parse(&text).map_err(|error| format!("'{text}': {error}"))?;
        match (1e5..=1e14).contains(&bits) {
            true => Ok(Self(bits)),
            false => Err(format!("'{text}': use 100kbit/s to 100Tbit/s")),
        }
    }
}

/// A scheme, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct SchemeName(pub Scheme);

impl TryFrom<String> for SchemeName {
    type Error = spray::UnknownScheme;

    fn try_from(text: String) -> Result<Self, spray::UnknownScheme> {
        Scheme::from_str(&text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let time = |text: &str| Time::try_from(text.to_owned());
        assert_eq!(time("1us"), Ok(Time(1_000_000)));
        assert_eq!(time("0.5 ns"), Ok(Time(500)));
        assert_eq!(time("60ms"), Ok(Time(60_000_000_000)));
        for wrong in ["1", "us", "-1us", "1h", "3601s", "nanus"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates() {
        let rate = |text: &str| BitRate::try_from(text.to_owned()).map(BitRate::rate);
        assert_eq!(rate("100Gbit/s"), Ok(Rate::new(100e9)));
        assert_eq!(rate("25 Mbit/s"), Ok(Rate::new(25e6)));
        assert_eq!(rate("100gbit"), rate("0.1Tbit/s"));
        for wrong in ["100", "100Gbps", "1kbit/s", "-5Gbit/s", "1000Tbit/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
