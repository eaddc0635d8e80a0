//! Whether what was published comes out here, too.

use super::words::{Grade, ROUTING, Verdict};
use super::{figure, is_wanted, measured};
use crate::file::{Measured, Published, Quantity};
use crate::summary::{Row, Summary};

/// How much "about" a published value may mean, as a share of it.
const ABOUT: f64 = 0.2;

/// Half of an interval, as a share of its value, up to which agreement with a published value says
/// something.
const PRECISE: f64 = 0.5;

/// A sentence for each published figure that has one beside it here.
pub(super) fn published(all: &[Published], summary: &Summary) -> Vec<Verdict> {
    let verdict = |published: &Published| {
        let Published { what, value, difference, measured: wanted, .. } = published;
        let wanted = wanted.as_ref()?;
        let (low, high) = range(value, wanted.quantity)?;
        let (least, most, precise) = interval(wanted, summary)?;
        let agrees = least <= high && low <= most;
        let here = measured(wanted, summary);
        let (grade, text) = match (agrees, difference.as_str()) {
            (true, _) if precise => (Grade::Good, format!("as published: {value}; here {here}.")),
            (true, _) => (
                Grade::Note,
                format!(
                    "within noise of what was published: {value}; here {here}. The intervals are \
                     too wide to tell."
                ),
            ),
            (false, "") => (Grade::Bad, format!("NOT as published: {value}; here {here}.")),
            (false, why) => (
                Grade::Note,
                format!("not as published: {value}; here {here}. What differs: {why}."),
            ),
        };
        Some(grade.says(format!("{what}: {text}")))
    };
    all.iter().filter_map(verdict).collect()
}

/// The smallest and the largest value that the confidence intervals allow, and whether all of these
/// are precise.
fn interval(wanted: &Measured, summary: &Summary) -> Option<(f64, f64, bool)> {
    if wanted.quantity.is_time() && summary.machine_is_the_limit() {
        return None;
    }
    let rows = summary.rows.iter().filter(|row| is_wanted(wanted, row));
    let ends = rows.filter_map(|row| {
        let (value, half) = value(row, wanted)?;
        let precise = half <= PRECISE * value.abs();
        half.is_finite().then_some((value - half, value + half, precise))
    });
    ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1), a.2 && b.2))
}

/// A value of a row, and by how much another may differ that is not told from it.
fn value(row: &Row, wanted: &Measured) -> Option<(f64, f64)> {
    let (value, half) = figure(row, wanted)?;
    let least = match wanted.quantity {
        // Published values are rounded, too.
        Quantity::Mmr => ROUTING * value,
        Quantity::PeakGain => ROUTING,
        Quantity::Outage => row.shortest_outage(),
        _ => 0.0,
    };
    Some((value, half.max(least)))
}

/// The values that a text allows, such as `13.7 % lower`, `5 to 11 s`, `about 110 ms` or
/// `above 1.2`; `None` if it says something else.
fn range(text: &str, quantity: Quantity) -> Option<(f64, f64)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (bound, words) = match words.as_slice() {
        [first @ ("about" | "above" | "below"), rest @ ..] => (*first, rest),
        all => ("", all),
    };
    let (ends, unit) = match words {
        [low, "to", high, unit @ ..] => ([low.parse().ok()?, high.parse().ok()?], unit),
        [value, unit @ ..] => ([value.parse().ok()?; 2], unit),
        [] => return None,
    };
    let scale = match (quantity, unit) {
        (Quantity::PeakGain, ["%", "lower"]) => 0.01,
        (Quantity::PeakGain, ["%", "higher"]) => -0.01,
        (Quantity::Mmr, []) | (Quantity::BusBandwidth, ["Mbit/s"]) => 1.0,
        (Quantity::Mmr | Quantity::PeakGain | Quantity::BusBandwidth, _) => return None,
        (_, ["ms"]) => 1.0,
        (_, ["s"]) => 1000.0,
        _ => return None,
    };
    let [a, b]: [f64; 2] = ends.map(|end: f64| end * scale);
    let (low, high) = (a.min(b), a.max(b));
    Some(match bound {
        "about" => (low - ABOUT * low.abs(), high + ABOUT * high.abs()),
        "above" => (low, f64::INFINITY),
        "below" => (f64::NEG_INFINITY, high),
        _ => (low, high),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Experiment;
    use crate::record::tests::run;

    #[test]
    fn published_values_are_ranges() {
        for (text, quantity, expected) in [
            ("13.7 % lower", Quantity::PeakGain, Some((0.137, 0.137))),
            ("5 % higher", Quantity::PeakGain, Some((-0.05, -0.05))),
            ("5 to 11 s", Quantity::Completion, Some((5000.0, 11_000.0))),
            ("about 110 ms", Quantity::Outage, Some((88.0, 132.0))),
            ("above 1.2", Quantity::Mmr, Some((1.2, f64::INFINITY))),
            ("1.37", Quantity::Mmr, Some((1.37, 1.37))),
            ("up to 40 % better", Quantity::PeakGain, None),
            ("5 s", Quantity::Mmr, None),
            ("much", Quantity::Outage, None),
            ("", Quantity::Outage, None),
        ] {
            let found = range(text, quantity);
            let near = |(a, b): ((f64, f64), (f64, f64))| {
                let same = |a: f64, b: f64| a == b || (a - b).abs() < 1e-9;
                same(a.0, b.0) && same(a.1, b.1)
            };
            let same = found.zip(expected).map_or(found == expected, near);
            assert!(same, "{text}: {found:?}");
        }
    }

    #[test]
    fn what_does_not_come_out_is_told() {
        let with = |swing: u64, value: &str, difference: &str| {
            let text = format!(
                "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['scaleacross.clab.yml']
                 dataplane = [{{policy = 'kernel'}}, {{policy = 'qp-hash'}}]
                 [[published]]\nwhat = 'peak'\nvalue = '{value}'\nsource = ''
                 difference = '{difference}'
                 measured = {{ dataplane = 'qp-hash', tier = 'spine', quantity = 'peak-gain' }}"
            );
            let experiment = Experiment::parse("x.toml".as_ref(), &text).unwrap();
            let loads = |at: u32| [300 + swing * u64::from(at % 2), 100, 200, 200];
            let both =
                |at| [run("kernel", 8, at, &[8, 0, 0, 0]), run("qp-hash", 8, at, &loads(at))];
            let runs: Vec<_> = (0..6).flat_map(both).collect();
            let summary = Summary::new(&experiment, &runs);
            let mut found = published(&experiment.published, &summary);
            found.pop().map(|of| (of.grade, of.text))
        };
        let verdict = |value: &str, difference: &str| with(10, value, difference);
        // From 4 to about 1.5.
        let (grade, text) = verdict("62 % lower", "").unwrap();
        assert!(grade == Grade::Good && text.starts_with("peak: as published: 62 %"), "{text}");
        let (grade, text) = verdict("9.9 % lower", "").unwrap();
        assert!(grade == Grade::Bad && text.contains("NOT as published: 9.9 % lower; here 62"));
        let (grade, text) = verdict("9.9 % lower", "the hash").unwrap();
        assert!(grade == Grade::Note && text.ends_with("What differs: the hash."), "{text}");
        assert_eq!(verdict("a lot", ""), None);
        let (grade, text) = with(3000, "15 % lower", "").unwrap();
        assert!(grade == Grade::Note && text.contains("peak: within noise of what"), "{text}");
    }
}
