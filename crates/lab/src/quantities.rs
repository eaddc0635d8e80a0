//! Quantities on the command line: times, shares, sizes and rates, each with its unit.

use std::time::Duration;

use quantity::Kind;

pub(crate) use quantity::{rate, size, time as duration};

/// Parses a number of percent, 0 to 100, with or without `%`, as a fraction of 1.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    Kind::SHARE.parse(text).map(|percent| percent / 100.0)
}

/// Parses a number of seconds, or a time with its unit.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    text.parse().or_else(|_| Kind::TIME.parse(text)).and_then(|seconds| match seconds {
        0.0..=1e6 => Ok(seconds),
        _ => Err("expected at least 0 s".to_owned()),
    })
}

/// Parses a number of whole seconds, or a time with its unit; at least 1 s.
pub(crate) fn whole_seconds(text: &str) -> Result<u64, String> {
    match seconds(text)? {
        whole if whole >= 1.0 && whole.fract() == 0.0 => Ok(whole as u64),
        _ => Err("expected whole seconds, such as 90 or 2min".to_owned()),
    }
}

/// Parses an interval of reports: a number of seconds, or a time with its unit; at least 10 ms.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        time if time >= 0.01 => Ok(Duration::from_secs_f64(time)),
        _ => Err("expected at least 10ms".to_owned()),
    }
}

/// Parses a retransmission timer in nanoseconds: a time, or a number N for 4.096 µs × 2ᴺ.
pub(crate) fn retransmission(text: &str) -> Result<u64, String> {
    match text.parse::<u32>() {
        Ok(exponent @ 0..=31) => Ok(roce::timeout(exponent)),
        Ok(_) => Err("expected 0 to 31 for N".to_owned()),
        Err(_) => duration(text).map(|time| time.as_nanos() as u64),
    }
}

/// Parses the rate of a circuit in bits per second. A number without a unit is one of kilobits, as
/// in experiment files and for `containerlab tools netem set`; 0 is no limit.
pub(crate) fn circuit_rate(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(_) => rate(&format!("{text}kbit")),
        Err(_) => rate(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_circuits_are_written_in_one_way() {
        assert_eq!(
            ["98", "0", "98.5", "98kbit", "1gbit", "2.5Mbit"]
                .map(|text| circuit_rate(text).unwrap()),
            [98_000, 0, 98_500, 98_000, 1_000_000_000, 2_500_000]
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

    #[test]
    fn times_of_options_are_plain_numbers_or_have_units() {
        assert_eq!(
            ["2", "0.5", "500ms", "2min"].map(|text| seconds(text).unwrap()),
            [2.0, 0.5, 0.5, 120.0]
        );
        assert_eq!(["90", "2min"].map(|text| whole_seconds(text).unwrap()), [90, 120]);
        for text in ["0", "1.5", "500ms", "-1", "nan", "2h"] {
            whole_seconds(text).unwrap_err();
        }
        let every = ["1", "500ms"].map(|text| interval(text).unwrap().as_millis());
        assert_eq!(every, [1000, 500]);
        interval("0").unwrap_err();
        let timers = ["14", "500us"].map(|text| retransmission(text).unwrap());
        assert_eq!(timers, [67_108_864, 500_000]);
        retransmission("32").unwrap_err();
        assert!(retransmission("5kB").unwrap_err().contains("such as 5ms"));
    }
}
