//! Verdicts, and figures in words.

use std::fmt;

use serde::Serialize;

use crate::file::KERNEL;
use crate::summary::Row;
use crate::units::QueuePairs;

/// Smaller differences, as a share of the peak, do not count. Routing packets use all links.
pub(super) const ROUTING: f64 = 0.015;

/// Noise up to which two values are called the same, as a share of them.
pub(super) const SAME: f64 = 0.05;

/// More iterations with timeouts than this share are told.
pub(super) const TIMED_OUT: f64 = 0.05;

/// Whether a sentence is good news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// As expected, or better than the baseline.
    Good,
    /// Not as expected.
    Bad,
    /// Neither.
    Note,
}

/// A sentence that follows from the figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether it is good news.
    pub grade: Grade,
    /// The sentence.
    pub text: String,
}

impl Grade {
    /// The sign before a sentence.
    #[must_use]
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Bad => "✗",
            Self::Note => "○",
        }
    }

    /// A sentence of this grade.
    #[must_use]
    pub const fn says(self, text: String) -> Verdict {
        Verdict { grade: self, text }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.grade.sign(), self.text)
    }
}

/// The title of a dataplane.
#[must_use]
pub fn title(label: &str) -> &str {
    if label == KERNEL { "kernel VXLAN" } else { label }
}

/// A number of queue pairs.
pub(super) fn queue_pairs(number: QueuePairs) -> String {
    let number = number.get();
    format!("{number} queue pair{}", if number == 1 { "" } else { "s" })
}

/// A time with a suitable number of digits.
#[must_use]
pub fn milliseconds(value: f64) -> String {
    if value >= 10_000.0 {
        format!("{:.1} s", value / 1000.0)
    } else if value >= 100.0 {
        format!("{value:.0} ms")
    } else {
        format!("{value:.1} ms")
    }
}

/// A time without traffic in words. Below two intervals of a queue pair, none is told.
pub(super) fn outage(row: &Row, time: f64) -> String {
    let shortest = row.shortest_outage();
    match time < shortest {
        true => format!("less than {}", milliseconds(shortest)),
        false => milliseconds(time),
    }
}

/// The least and the greatest of some values, of which there may be none.
pub(super) fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().fold(least, f64::max)))
}

/// The range of gains beyond noise, and how many there are. Each comes with half the width of its
/// interval; nothing below `least` is known.
pub(super) fn beyond_noise(gains: &[(f64, f64)], least: f64) -> Option<((f64, f64), usize)> {
    let known = gains.iter().filter(|(gain, half)| gain.abs() > half.max(least));
    let beyond: Vec<f64> = known.map(|(gain, _)| *gain).collect();
    Some((range(&beyond)?, beyond.len()))
}

/// What is said if no gain is beyond noise: that they are the same, if the noise is small, or how
/// large it is.
pub(super) fn within_noise(gains: &[(f64, f64)]) -> String {
    let widest = gains.iter().map(|(_, half)| *half).fold(0.0, f64::max);
    match widest {
        half if half <= SAME => "the same within noise".to_owned(),
        half if half.is_finite() => format!("not told apart (noise ±{:.0} %)", half * 100.0),
        _ => "not told apart (one run each)".to_owned(),
    }
}

/// A range of gains in words.
pub(super) fn change(least: f64, most: f64) -> String {
    let [least, most] = [least, most].map(|gain| (gain * 100.0).round() as i64);
    match (least >= 0, most >= 0) {
        (true, _) if least == most => format!("{most} % lower"),
        (true, _) => format!("{least} % to {most} % lower"),
        (false, true) => format!("{} % higher to {most} % lower", -least),
        (false, false) if least == most => format!("{} % higher", -least),
        (false, false) => format!("{} % to {} % higher", -most, -least),
    }
}
