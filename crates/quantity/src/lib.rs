//! Quantities with units: one grammar for files and for command lines. A number, and one of the units
//! of its kind: `10ms`, `25Mbit`, `1GB`. `docs/reference/units.md` is its page.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// A whole number that a float holds exactly.
const MOST: f64 = 1e15;

/// A kind of quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kind {
    /// What is expected, such as `a time`.
    what: &'static str,
    /// The units with their values in the base unit. The empty name is that of a plain number.
    units: &'static [(&'static str, f64)],
    /// The largest value in the base unit.
    most: f64,
    example: &'static str,
    /// Whether capitals do not matter.
    any_case: bool,
}

impl Kind {
    /// A time in seconds, 0 to 3600.
    pub const TIME: Self = Self {
        what: "0 s to 3600 s",
        units: &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)],
        most: 3600.0,
        example: "5ms",
        any_case: false,
    };
    /// A size in bytes, up to 10^15. A plain number is one of bytes.
    pub const SIZE: Self = Self {
        what: "a number",
        units: &[
            ("", 1.0),
            ("B", 1.0),
            ("kB", 1e3),
            ("MB", 1e6),
            ("GB", 1e9),
            ("KiB", 1024.0),
            ("MiB", 1_048_576.0),
            ("GiB", 1_073_741_824.0),
        ],
        most: MOST,
        example: "16MiB",
        any_case: false,
    };
    /// A rate in bits per second, up to 10^15. A plain number is one of bits per second.
    pub const RATE: Self = Self {
        what: "a number",
        units: &[
            ("", 1.0),
            ("bit", 1.0),
            ("kbit", 1e3),
            ("mbit", 1e6),
            ("gbit", 1e9),
            ("tbit", 1e12),
        ],
        most: MOST,
        example: "1gbit",
        any_case: true,
    };

    /// A share in percent, 0 to 100. A plain number is one of percent.
    pub const SHARE: Self = Self {
        what: "0 to 100 percent",
        units: &[("", 1.0), ("%", 1.0)],
        most: 100.0,
        example: "0.1%",
        any_case: false,
    };

    /// The names of the units.
    pub fn units(self) -> impl Iterator<Item = &'static str> {
        self.units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty())
    }

    /// The value of a text in the base unit.
    ///
    /// # Errors
    /// A message that names the units.
    pub fn parse(self, text: &str) -> Result<f64, String> {
        let starts_unit = |c: char| c.is_ascii_alphabetic() || c == '%';
        let (number, unit) = text.split_at(text.find(starts_unit).unwrap_or(text.len()));
        let is_named = |name: &str| match self.any_case {
            // Rates: `25Mbit` and `25Mbit/s` are the same.
            true => name.eq_ignore_ascii_case(unit.strip_suffix("/s").unwrap_or(unit)),
            false => name == unit,
        };
        let scale = self.units.iter().find(|(name, _)| is_named(name)).map(|(_, scale)| scale);
        let number = number.trim_end().parse::<f64>().ok();
        let value = scale.zip(number).map(|(scale, number)| number * scale);
        value.filter(|value| (0.0..=self.most).contains(value)).ok_or_else(|| self.to_string())
    }
}

impl fmt::Display for Kind {
    /// What is expected.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = Vec::from_iter(self.units()).join(", ");
        write!(f, "expected {} with {units}, such as {}", self.what, self.example)
    }
}

/// Parses a time from 0 s to 3600 s, such as `5ms`.
///
/// # Errors
/// A message that names the units.
pub fn time(text: &str) -> Result<Duration, String> {
    Kind::TIME.parse(text).map(Duration::from_secs_f64)
}

/// Parses a number of bytes, such as `16MiB`.
///
/// # Errors
/// A message that names the units.
pub fn size(text: &str) -> Result<u64, String> {
    Kind::SIZE.parse(text).map(|bytes| bytes as u64)
}

/// Parses a rate in bits per second, such as `25Mbit`. Units may be written in capitals.
///
/// # Errors
/// A message that names the units.
pub fn rate(text: &str) -> Result<u64, String> {
    Kind::RATE.parse(text).map(|rate| rate as u64)
}

/// The schema of a quantity in a file: a plain number, or a text with a unit.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum NumberOrText {
    /// In the unit that the setting documents.
    Number(f64),
    /// With its unit.
    Text(String),
}

/// Reads a number in a setting's own unit, or a text with a unit. `unit` is that unit in the base
/// unit of the kind.
struct Reader {
    kind: Kind,
    unit: f64,
}

impl Visitor<'_> for Reader {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, .. } = self;
        let units = Vec::from_iter(kind.units()).join(", ");
        write!(f, "a number, or a text with {units}, such as \"{}\"", kind.example)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        let fault = E::invalid_value(Unexpected::Signed(number), &"a number of at least 0");
        u64::try_from(number).map(|number| number as f64).map_err(|_| fault)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        let fault = E::invalid_value(Unexpected::Float(number), &"a number of at least 0");
        if number >= 0.0 { Ok(number) } else { Err(fault) }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        let value =
            self.kind.parse(text).map_err(|error| E::custom(format!("'{text}': {error}")))?;
        Ok(value / self.unit)
    }
}

/// A whole number of the setting's unit.
fn whole<'de, D: Deserializer<'de>>(from: D, kind: Kind, unit: f64) -> Result<u64, D::Error> {
    let value = from.deserialize_any(Reader { kind, unit })?;
    // A quotient of equal units may be a little too small, such as 0.3 s in ms.
    let whole = value.round();
    let is_whole = (value - whole).abs() <= 1e-9 * whole.max(1.0);
    if !is_whole || whole >= u64::MAX as f64 {
        return Err(D::Error::custom(format!("{value}: expected a whole number")));
    }
    Ok(whole as u64)
}

/// A whole number of the setting's unit that fits its type.
fn fitting<'de, D: Deserializer<'de>, T: TryFrom<u64>>(
    from: D,
    kind: Kind,
    unit: f64,
) -> Result<T, D::Error> {
    let number = whole(from, kind, unit)?;
    number.try_into().map_err(|_| D::Error::custom(format!("{number} is too large")))
}

/// Bytes in a file: a number, or a text such as `"2MB"`.
///
/// # Errors
/// If it is neither, or too large for the setting.
pub fn bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    fitting(from, Kind::SIZE, 1.0)
}

/// As [`bytes`], for a list.
///
/// # Errors
/// If one of them is neither, or too large for the setting.
pub fn many_bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(bound = "T: TryFrom<u64>")]
    struct One<T>(#[serde(deserialize_with = "bytes")] T);
    Ok(Vec::<One<T>>::deserialize(from)?.into_iter().map(|One(bytes)| bytes).collect())
}

/// As [`bytes`], for a setting that may be missing.
///
/// # Errors
/// If it is neither, or too large for the setting.
pub fn some_bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    bytes(from).map(Some)
}

/// Bits per second in a file: a number, or a text such as `"25Mbit"`.
///
/// # Errors
/// If it is neither.
pub fn bits<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    fitting(from, Kind::RATE, 1.0)
}

/// As [`bits`], with a fraction.
///
/// # Errors
/// If it is neither.
pub fn bit_rate<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    from.deserialize_any(Reader { kind: Kind::RATE, unit: 1.0 })
}

/// Kilobits per second in a file: a number, or a text such as `"25Mbit"`.
///
/// # Errors
/// If it is neither, or no whole number of kilobits.
pub fn kilobits<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    fitting(from, Kind::RATE, 1e3)
}

/// As [`kilobits`], for a list.
///
/// # Errors
/// If one of them is neither, or no whole number of kilobits.
pub fn many_kilobits<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    #[derive(Deserialize)]
    struct One(#[serde(deserialize_with = "kilobits")] u64);
    Ok(Vec::<One>::deserialize(from)?.into_iter().map(|One(rate)| rate).collect())
}

/// As [`kilobits`], for a setting that may be missing.
///
/// # Errors
/// If it is neither, or no whole number of kilobits.
pub fn some_kilobits<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    kilobits(from).map(Some)
}

/// Nanoseconds in a file: a number, or a text such as `"500us"`.
///
/// # Errors
/// If it is neither, or no whole number of nanoseconds.
pub fn nanoseconds<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    fitting(from, Kind::TIME, 1e-9)
}

/// Seconds in a file: a number, or a text such as `"30s"`.
///
/// # Errors
/// If it is neither.
pub fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    from.deserialize_any(Reader { kind: Kind::TIME, unit: 1.0 })
}

/// Whole seconds in a file: a number, or a text such as `"30s"`.
///
/// # Errors
/// If it is neither, or no whole number of seconds.
pub fn whole_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    fitting(from, Kind::TIME, 1.0)
}

/// Percent in a file: a number, or a text such as `"0.1%"`.
///
/// # Errors
/// If it is neither.
pub fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    from.deserialize_any(Reader { kind: Kind::SHARE, unit: 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rates_and_times_have_units() {
        let sizes = ["312MB", "16MiB", "7", "1.5KiB"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [312_000_000, 16 << 20, 7, 1536]);
        let rates = ["1Gbit", "2.5Mbit", "0"].map(|text| rate(text).unwrap());
        assert_eq!(rates, [1_000_000_000, 2_500_000, 0]);
        assert_eq!(time("5ms"), Ok(Duration::from_millis(5)));
        for text in ["", "MB", "12XB", "-1MB", "1e99", "1mb"] {
            let error = size(text).unwrap_err();
            assert!(error.contains("kB, MB, GB, KiB, MiB, GiB, such as 16MiB"), "{error}");
        }
        assert!(time("5").unwrap_err().contains("ns, us, ms, s, min, such as 5ms"));
        time("3601s").unwrap_err();
        assert_eq!(size("1000000000000000"), Ok(1_000_000_000_000_000));
        size("1000000000000001").unwrap_err();
        let same = ["25mbit", "25Mbit/s", "25 Mbit/s", "25000kbit"].map(rate);
        assert_eq!(same, [const { Ok(25_000_000) }; 4]);
        time("5ms/s").unwrap_err();
        assert_eq!(["1", "1%", "1 %"].map(|text| Kind::SHARE.parse(text)), [const { Ok(1.0) }; 3]);
        Kind::SHARE.parse("101%").unwrap_err();
        assert!(rate("1GB").unwrap_err().contains("kbit, mbit, gbit"));
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Settings {
        #[serde(deserialize_with = "bytes")]
        bytes: u64,
        #[serde(deserialize_with = "bytes")]
        message: u32,
        #[serde(deserialize_with = "some_bytes")]
        queue: Option<u64>,
        #[serde(deserialize_with = "bits")]
        bits: u64,
        #[serde(deserialize_with = "some_kilobits")]
        rate: Option<u64>,
        #[serde(deserialize_with = "seconds")]
        limit: f64,
        #[serde(deserialize_with = "whole_seconds")]
        whole: u32,
        #[serde(deserialize_with = "many_bytes")]
        many: Vec<u64>,
        #[serde(deserialize_with = "many_kilobits")]
        rates: Vec<u64>,
        #[serde(deserialize_with = "nanoseconds")]
        timer: u64,
        #[serde(deserialize_with = "bit_rate")]
        step: f64,
        #[serde(deserialize_with = "percent")]
        loss: f64,
    }

    #[test]
    fn files_have_plain_numbers_or_texts_with_units() {
        let parse = |text: &str| toml::from_str::<Settings>(text);
        let plain = "bytes = 2000000\nmessage = 1024\nqueue = 9000\nbits = 1000\nrate = 25000\n\
                     limit = 0.5\nwhole = 30\nmany = [1, 2000]\nrates = [25000]\ntimer = 500000\n\
                     step = 5e6\nloss = 0.1";
        let units = "bytes = '2MB'\nmessage = '1KiB'\nqueue = '9kB'\nbits = '1kbit'\n\
                     rate = '25Mbit'\nlimit = '500ms'\nwhole = '30s'\nmany = [1, '2kB']\nrates = ['25Mbit']\n\
                     timer = '0.5ms'\nstep = '5Mbit'\nloss = '0.1%'";
        assert_eq!(parse(plain).unwrap(), parse(units).unwrap());
        assert_eq!(parse("").unwrap(), Settings::default());
        for (text, said) in [
            ("bytes = '2Mbit'", "'2Mbit': expected a number with B, kB, MB"),
            ("bytes = -1", "a number of at least 0"),
            ("limit = -0.5", "a number of at least 0"),
            ("bytes = true", "a number, or a text with B, kB"),
            ("bytes = inf", "inf: expected a whole number"),
            ("bytes = 1e20", "expected a whole number"),
            ("message = '8GB'", "8000000000 is too large"),
            ("timer = '0.5ns'", "expected a whole number"),
            ("loss = '5ms'", "expected 0 to 100 percent with %, such as 0.1%"),
            ("rate = '25'", "expected a whole number"),
            ("limit = '30'", "expected 0 s to 3600 s with ns, us, ms, s, min, such as 5ms"),
            ("whole = '500ms'", "0.5: expected a whole number"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
