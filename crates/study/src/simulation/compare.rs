//! What changed between two directories of simulations.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::SimulationError;
use super::directory::{RESULTS, results};
use super::summary::{Row, rows};

/// The end of a case and a scheme in two directories.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The case.
    pub case: String,
    /// The scheme.
    pub scheme: String,
    /// The mean end of the last flow in microseconds in both directories. `None`: no such runs, or
    /// flows that did not finish.
    pub completion_us: [Option<f64>; 2],
    /// The difference of the means that different seeds explain. Infinite with one seed.
    pub noise: f64,
    /// Whether the difference is larger, or flows did not finish in one of the two only.
    pub changed: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let [before, after] = self.completion_us.map(number);
        let sign = if self.changed { "≠" } else { "=" };
        write!(f, "{sign} {:<40} {:<20} {before:>10} {after:>10}", self.case, self.scheme)
    }
}

/// Whether a directory has a simulation's results.
pub(super) fn is_simulation(path: &Path) -> bool {
    path.join(RESULTS).exists()
}

/// Compares two directories, if both have a simulation's results.
///
/// # Errors
/// [`SimulationError`] if the results cannot be read.
pub fn compare(before: &Path, after: &Path) -> Result<Option<Vec<Change>>, SimulationError> {
    if !is_simulation(before) || !is_simulation(after) {
        return Ok(None);
    }
    let before = rows(&results(before)?);
    let after = rows(&results(after)?);
    Ok(Some(changes(&before, &after)))
}

fn changes(before: &[Row], after: &[Row]) -> Vec<Change> {
    let change = |row: &Row| {
        let same = |other: &&Row| (&other.case, &other.scheme) == (&row.case, &row.scheme);
        let both = [before, after].map(|rows| rows.iter().find(same)?.completion_us);
        let (changed, noise) = match both {
            [Some(before), Some(after)] => {
                // The same seeds give the same runs: then there is no noise.
                let noise = before.half_width.hypot(after.half_width);
                let equal = before.mean == after.mean;
                (!equal && (after.mean - before.mean).abs() > noise, noise)
            }
            [None, None] => (false, 0.0),
            _ => (true, 0.0),
        };
        Change {
            case: row.case.clone(),
            scheme: row.scheme.clone(),
            completion_us: both.map(|of| of.map(|of| of.mean)),
            noise,
            changed,
        }
    };
    let new = |row: &&Row| {
        !before.iter().any(|other| (&other.case, &other.scheme) == (&row.case, &row.scheme))
    };
    before.iter().chain(after.iter().filter(new)).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::summary::tests::line;

    #[test]
    fn more_than_noise_is_a_change() {
        let rows = |scheme: &str, ends: [f64; 3]| {
            let lines: Vec<_> =
                ends.into_iter().zip(1..).map(|(end, n)| line(scheme, n, end)).collect();
            rows(&lines)
        };
        let before = [rows("a", [100.0, 101.0, 102.0]), rows("b", [9.0, 9.1, 9.2])].concat();
        let after = [rows("a", [101.0, 101.5, 102.0]), rows("b", [19.0, 19.1, 19.2])].concat();
        let changed: Vec<bool> =
            changes(&before, &after).iter().map(|change| change.changed).collect();
        assert_eq!(changed, [false, true]);
        let both = changes(&before[..1], &after);
        assert_eq!((both.len(), both[1].changed), (2, true));
        assert_eq!(both[1].to_string().split_whitespace().last(), Some("19.1"));
    }
}
