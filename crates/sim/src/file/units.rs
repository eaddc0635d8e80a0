//! Values with a unit.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use spray::Scheme;

use crate::time::{MICROSECOND, MILLISECOND, Picos, Rate, SECOND};

/// A number and its unit.
fn split<'a>(text: &'a str, example: &str) -> Result<(f64, &'a str), String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let number = number.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    match number {
        Some(number) if number >= 0.0 => Ok((number, unit)),
        _ => Err(format!("'{text}': use a number with a unit, such as '{example}'")),
    }
}

/// A time, such as `1us`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Time(pub Picos);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (number, unit) = split(&text, "1us")?;
        let unit = match unit {
            "ns" => MICROSECOND / 1000,
            "us" => MICROSECOND,
            "ms" => MILLISECOND,
            "s" => SECOND,
            _ => return Err(format!("'{text}': use ns, us, ms or s")),
        };
        let picos = number * unit as f64;
        if picos > 1000.0 * SECOND as f64 {
            return Err(format!("'{text}': use at most 1000s"));
        }
        Ok(Self(picos.round() as Picos))
    }
}

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
        let (number, unit) = split(&text, "100Gbit/s")?;
        let unit = match unit {
            "kbit/s" => 1e3,
            "Mbit/s" => 1e6,
            "Gbit/s" => 1e9,
            "Tbit/s" => 1e12,
            _ => return Err(format!("'{text}': use kbit/s, Mbit/s, Gbit/s or Tbit/s")),
        };
        let bits = number * unit;
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
        for wrong in ["1", "us", "-1us", "1h", "1e9s", "nanus"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates() {
        let rate = |text: &str| BitRate::try_from(text.to_owned()).map(BitRate::rate);
        assert_eq!(rate("100Gbit/s"), Ok(Rate::new(100e9)));
        assert_eq!(rate("25 Mbit/s"), Ok(Rate::new(25e6)));
        for wrong in ["100", "100Gbps", "1kbit/s", "-5Gbit/s", "1000Tbit/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
