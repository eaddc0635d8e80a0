//! Quantities on the command line: times, shares, sizes and rates, each with its unit.

use std::time::Duration;

use experiment::units::{Percent, Time};

/// Parses a time from 0 s to 3600 s, such as `5ms`, as experiment files do.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    Time::try_from(text.to_owned()).map(|time| time.duration())
}

/// Parses a number of percent, 0 to 100, with or without `%`, as a fraction of 1.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse::<f64>();
    let number = number.map_err(|_| "expected a number of percent, such as 0.1%".to_owned())?;
    Percent::try_from(number).map(|percent| percent.get() / 100.0)
}

/// Parses a number with one of these units.
pub(crate) fn number(text: &str, units: &[(&str, f64)], example: &str) -> Result<f64, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let found = units.iter().find(|(name, _)| *name == unit).map(|(_, scale)| scale);
    let value = found.zip(number.parse::<f64>().ok()).map(|(scale, number)| number * scale);
    value.filter(|value| (0.0..1e15).contains(value)).ok_or_else(|| {
        let names: Vec<&str> =
            units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        format!("expected a number with {}, such as {example}", names.join(", "))
    })
}

/// Parses a number of bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 8] = [
        ("", 1.0),
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
    ];
    number(text, &UNITS, "16MiB").map(|bytes| bytes as u64)
}

/// Parses a rate in bits per second. Units may be written in capitals: `1Gbit`.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 5] =
        [("", 1.0), ("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    number(&text.to_ascii_lowercase(), &UNITS, "1gbit").map(|rate| rate as u64)
}

/// Parses the rate of a circuit in bits per second. A number without a unit is one of kilobits, as
/// in experiment files and for `containerlab tools netem set`; 0 is no limit.
pub(crate) fn circuit_rate(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(kilobits) => Ok(kilobits.saturating_mul(1000)),
        Err(_) => rate(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_have_units() {
        let sizes = ["312MB", "16MiB", "7", "1.5KiB"].map(|text| size(text).unwrap());
        assert_eq!(sizes, [312_000_000, 16 << 20, 7, 1536]);
        assert_eq!(
            ["1Gbit", "2.5Mbit", "0"].map(|text| rate(text).unwrap()),
            [1_000_000_000, 2_500_000, 0]
        );
        for text in ["", "MB", "12XB", "-1MB", "1e99"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn properties_of_circuits_are_written_in_one_way() {
        assert_eq!(
            ["98", "0", "98kbit", "1gbit", "2.5Mbit"].map(|text| circuit_rate(text).unwrap()),
            [98_000, 0, 98_000, 1_000_000_000, 2_500_000]
        );
        assert!(circuit_rate("1Gb").unwrap_err().contains("such as 1gbit"));
        assert_eq!(
            ["1", "1%", "1 %", "100%"].map(|text| percent(text).unwrap()),
            [0.01, 0.01, 0.01, 1.0]
        );
        for text in ["%", "", "101", "-1%", "one"] {
            percent(text).unwrap_err();
        }
        assert_eq!(duration("5ms"), Ok(Duration::from_millis(5)));
        assert!(duration("5").unwrap_err().contains("such as 5ms"));
        duration("3601s").unwrap_err();
    }
}
