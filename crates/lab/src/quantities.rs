//! Quantities on the command line: times, shares, sizes and rates, each with its unit.

use experiment::units::Percent;

pub(crate) use experiment::quantity::{rate, size, time as duration};

/// Parses a number of percent, 0 to 100, with or without `%`, as a fraction of 1.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse::<f64>();
    let number = number.map_err(|_| "expected a number of percent, such as 0.1%".to_owned())?;
    Percent::try_from(number).map(|percent| percent.get() / 100.0)
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
    }
}
