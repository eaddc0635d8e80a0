//! Results beside reference results, of which only `summary.csv` is kept.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::figure::Csv;

/// The columns that tell which line of a summary is meant.
const KEY: [&str; 6] = ["fabric", "queue_pairs", "inner_port", "variant", "dataplane", "tier"];
/// What is compared: the column of a mean, that of half the width of its interval, and the tolerance
/// as a share of the reference. Loads do not depend on the machine; times do.
const FIGURES: [(&str, &str, f64); 4] = [
    ("mmr_mean", "mmr_half_width", 0.1),
    ("outage_ms_mean", "outage_ms_half_width", 0.5),
    ("hit_ms_mean", "hit_ms_half_width", 0.5),
    ("completion_ms_mean", "completion_ms_half_width", 0.5),
];

/// A figure beside its reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The fields of the key, and the column.
    pub what: String,
    /// The reference.
    pub reference: f64,
    /// The figure.
    pub here: f64,
    /// The largest difference that is within the tolerance and both intervals.
    pub allowed: f64,
}

/// Results beside reference results.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The number of figures that both have. Times are in the lines of all tiers, and are one figure.
    pub compared: usize,
    /// Those of which an interval is wider than the tolerance, so that they can hardly differ, or not
    /// known, because there is one run.
    pub vague: usize,
    /// Those that differ by more than is allowed.
    pub differences: Vec<Difference>,
    /// The lines and figures of the reference that the results lack.
    pub missing: Vec<String>,
}

/// Compares two summaries.
#[must_use]
pub fn compare(reference: &Csv, here: &Csv) -> Comparison {
    let mut found = Comparison::default();
    let mut seen = BTreeSet::new();
    for line in reference.lines() {
        let key = |table: &Csv, line: &[String]| {
            KEY.map(|name| table.field(line, name).unwrap_or_default())
        };
        let wanted = key(reference, line);
        let name = wanted.iter().filter(|field| !field.is_empty()).cloned().collect::<Vec<_>>();
        let Some(own) = here.lines().iter().find(|line| key(here, line) == wanted) else {
            found.missing.push(name.join(" "));
            continue;
        };
        for (mean, half, share) in FIGURES {
            let number = |table: &Csv, line: &[String], column: &str| {
                table.field(line, column)?.parse::<f64>().ok()
            };
            let tier = wanted.last().filter(|_| mean == "mmr_mean").cloned();
            let point: Vec<String> =
                wanted.iter().take(KEY.len() - 1).cloned().chain(tier).collect();
            let Some(reference_mean) = number(reference, line, mean) else { continue };
            if !seen.insert((point, mean)) {
                continue;
            }
            let Some(here_mean) = number(here, own, mean) else {
                found.missing.push(format!("{} {mean}", name.join(" ")));
                continue;
            };
            let halves = [number(reference, line, half), number(here, own, half)];
            // Of one run, no interval is known.
            let halves = halves.map(|half| half.filter(|half| half.is_finite()));
            let both = halves[0].unwrap_or(0.0).hypot(halves[1].unwrap_or(0.0));
            let tolerance = share * reference_mean.abs();
            let allowed = tolerance + both;
            found.compared += 1;
            found.vague += usize::from(both > tolerance || halves.contains(&None));
            if (here_mean - reference_mean).abs() > allowed {
                found.differences.push(Difference {
                    what: format!("{} {mean}", name.join(" ")),
                    reference: reference_mean,
                    here: here_mean,
                    allowed,
                });
            }
        }
    }
    found
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Difference { what, reference, here, allowed } in &self.differences {
            writeln!(f, "{what}: {here:.2} instead of {reference:.2} (allowed ±{allowed:.2})")?;
        }
        for line in &self.missing {
            writeln!(f, "{line}: not measured")?;
        }
        let (beyond, all) = (self.differences.len(), self.compared);
        write!(f, "{beyond} of {all} figures are beyond the tolerance")?;
        if self.vague > 0 {
            let wide = self.vague;
            write!(f, "; {wide} have wider intervals than that, and can hardly differ")?;
        }
        match self.missing.len() {
            0 => Ok(()),
            missing => write!(f, "; {missing} of the reference were not measured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "fabric,queue_pairs,inner_port,variant,dataplane,tier,mmr_mean,\
        mmr_half_width,completion_ms_mean,completion_ms_half_width\n";

    fn table(lines: &str) -> Csv {
        Csv::parse("summary.csv", &format!("{HEAD}{lines}")).unwrap()
    }

    #[test]
    fn what_is_beyond_tolerance_and_intervals_is_named() {
        let reference =
            table("a,8,constant,,kernel,leaf,4,0,,\na,8,constant,v,qp-hash,leaf,2,0.3,100,inf\n");
        let of = |lines: &str| compare(&reference, &table(lines));
        let same =
            of("a,8,constant,v,qp-hash,leaf,2.5,0.4,149,inf\na,8,constant,,kernel,leaf,4.3,0,,\n");
        assert_eq!(
            (same.compared, same.vague, same.differences.len(), same.missing.len()),
            (3, 2, 0, 0),
            "{same}"
        );
        let other = of("a,8,constant,v,qp-hash,leaf,3,0.3,151,inf\n");
        assert_eq!(
            other.to_string(),
            "a 8 constant v qp-hash leaf mmr_mean: 3.00 instead of 2.00 (allowed ±0.62)\n\
             a 8 constant v qp-hash leaf completion_ms_mean: 151.00 instead of 100.00 (allowed \
             ±50.00)\na 8 constant kernel leaf: not measured\n2 of 2 figures are beyond the \
             tolerance; 2 have wider intervals than that, and can hardly differ; 1 of the \
             reference were not measured"
        );
    }

    #[test]
    fn times_count_once_and_what_is_not_measured_is_missing() {
        let lines = "a,8,constant,v,x,leaf,2,0,100,1\na,8,constant,v,x,spine,2,0,100,1\n";
        let same = compare(&table(lines), &table(lines));
        assert_eq!((same.compared, same.missing.len()), (3, 0), "{same}");
        let other = compare(&table(lines), &table(&lines.replace(",100,1", ",,")));
        assert_eq!(other.missing, ["a 8 constant v x leaf completion_ms_mean"]);
    }
}
