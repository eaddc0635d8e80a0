//! Tables of measured and predicted values.

use std::fmt::Write as _;
use std::path::PathBuf;

use planner::machine::{Machine, SHIPPED};

/// A measured value and the predicted one.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub name: String,
    pub measured: f64,
    pub predicted: f64,
    /// Whether efficiencies are fitted on the row, so that its error says nothing.
    pub fitted: bool,
    /// Why the row does not count, if so.
    pub excluded: Option<&'static str>,
}

impl Row {
    pub(crate) fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// The rows of a publication.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub title: &'static str,
    pub unit: &'static str,
    /// What was fitted on these rows.
    pub fitted: &'static str,
    /// Whether a larger value is better.
    pub larger_is_better: bool,
    pub rows: Vec<Row>,
    /// Rows whose error is larger than 10 %, with the reason.
    pub misses: &'static str,
}

impl Table {
    pub(crate) fn counted(&self) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.excluded.is_none()).collect()
    }

    /// The rows that are fitted, or those that are not.
    fn rows_fitted(&self, fitted: bool) -> Vec<&Row> {
        self.counted().into_iter().filter(|row| row.fitted == fitted).collect()
    }

    /// The mean of the absolute errors of the rows that are fitted, or predicted, if there are any.
    pub(crate) fn mean_error(&self, fitted: bool) -> Option<f64> {
        mean_error(&self.rows_fitted(fitted))
    }

    /// The mean errors in words.
    fn errors(&self) -> String {
        let part = |fitted: bool, name: &str| {
            let rows = self.rows_fitted(fitted);
            let error = 100.0 * mean_error(&rows)?;
            Some(format!("{error:.1} % of {} {name} rows", rows.len()))
        };
        let parts = [part(false, "predicted"), part(true, "fitted")];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The row of the table of the guide.
    fn summary(&self) -> String {
        let fitted = self.rows_fitted(true).len();
        let part = |fitted| {
            let error = self.mean_error(fitted);
            error.map_or("-".into(), |error| format!("{:.1} %", 100.0 * error))
        };
        let (of_fitted, error) = (part(true), part(false));
        let (tau, choice) = (self.tau(), self.choice());
        let rows = self.counted().len() - fitted;
        format!(
            "| {} | {fitted} | {of_fitted} | {rows} | {error} | {tau:.2} | {choice:.3} |\n",
            self.title
        )
    }

    /// Kendall's tau of the counted rows.
    pub(crate) fn tau(&self) -> f64 {
        tau(&self.counted().iter().map(|row| (row.measured, row.predicted)).collect::<Vec<_>>())
    }

    /// The measured value of the row that is predicted best, as a multiple of the best one's time.
    pub(crate) fn choice(&self) -> f64 {
        let rows = self.counted();
        let time = |value: f64| if self.larger_is_better { 1.0 / value } else { value };
        let by = |value: fn(&Row) -> f64| {
            let least = |a: &&&Row, b: &&&Row| time(value(a)).total_cmp(&time(value(b)));
            rows.iter().min_by(least).unwrap()
        };
        time(by(|row| row.predicted).measured) / time(by(|row| row.measured).measured)
    }

    fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n{}\n\n", self.title, self.fitted);
        let (errors, tau, choice) = (self.errors(), self.tau(), self.choice());
        let _ =
            writeln!(text, "Mean error: {errors}. Kendall's tau {tau:.2}, choice {choice:.3}.\n");
        if !self.misses.is_empty() {
            let _ = writeln!(text, "{}\n", self.misses);
        }
        let _ = writeln!(text, "| row | measured, {0} | predicted, {0} | error |", self.unit);
        text += "|---|---|---|---|\n";
        for row in &self.rows {
            let fitted = if row.fitted { "; fitted" } else { "" };
            let note = row.excluded.map_or(fitted.into(), |why| format!("; not counted: {why}"));
            let (measured, predicted) = (row.measured, row.predicted);
            let digits = if measured < 1.0 {
                3
            } else if measured < 1000.0 {
                2
            } else {
                0
            };
            let _ = writeln!(
                text,
                "| {} | {measured:.digits$} | {predicted:.digits$} | {:+.1} %{note} |",
                row.name,
                tenth(100.0 * row.error())
            );
        }
        text
    }
}

/// A number in tenths, without a negative zero.
pub(crate) fn tenth(number: f64) -> f64 {
    (10.0 * number).round() / 10.0 + 0.0
}

fn mean_error(rows: &[&Row]) -> Option<f64> {
    let sum = rows.iter().map(|row| row.error().abs()).sum::<f64>();
    (!rows.is_empty()).then(|| sum / rows.len() as f64)
}

/// Kendall's tau of pairs.
pub(crate) fn tau(pairs: &[(f64, f64)]) -> f64 {
    let mut sum = 0.0;
    for (at, a) in pairs.iter().enumerate() {
        for b in &pairs[..at] {
            sum += ((a.0 - b.0) * (a.1 - b.1)).signum();
        }
    }
    sum / (pairs.len() * (pairs.len() - 1)) as f64 * 2.0
}

/// Kendall's tau-b of pairs, and Goodman and Kruskal's gamma: measured values that differ by at most
/// this share are tied. Gamma leaves tied pairs out.
pub(crate) fn tau_with_ties(pairs: &[(f64, f64)], share: f64) -> (f64, f64) {
    let (mut sum, mut untied) = (0.0, 0.0);
    for (at, a) in pairs.iter().enumerate() {
        for b in pairs[..at].iter().filter(|b| a.0.max(b.0) > (1.0 + share) * a.0.min(b.0)) {
            sum += ((a.0 - b.0) * (a.1 - b.1)).signum();
            untied += 1.0;
        }
    }
    let all = (pairs.len() * (pairs.len() - 1)) as f64 / 2.0;
    (sum / (all * untied).sqrt(), sum / untied)
}

/// A kind of machine that is shipped.
pub(crate) fn machine(name: &str) -> Machine {
    let (_, text) = SHIPPED.iter().find(|(known, _)| *known == name).unwrap();
    toml::from_str(text).unwrap()
}

/// The rows of a CSV file, by the names of the columns.
pub(crate) fn csv(text: &str) -> Vec<std::collections::BTreeMap<&str, &str>> {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    lines.map(|line| header.iter().copied().zip(line).collect()).collect()
}

fn page() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/planner-points.md"))
}

const INTRODUCTION: &str = "\
# Points of the planner

What others have measured, beside what `lab plan` predicts. Generated by the tests of the crate
`planner`, which also check it. The [guide](../guide/planner.md) explains the figures, and
`crates/planner/tests/data` names the sources.

- Error: predicted / measured − 1. Rows on which efficiencies are fitted say so. They do not count
  in the mean error of predictions.
- Kendall's tau: 1 if all pairs are in the measured order.
- Choice: the measured time of the row that is predicted fastest, divided by that of the fastest.

";

/// The table of the guide.
fn overview() -> String {
    let rows: String = super::points::tables().iter().map(Table::summary).collect();
    let head =
        "| publication | fitted rows | error | predicted rows | error | Kendall's tau | choice |";
    format!("{head}\n|---|---|---|---|---|---|---|\n{rows}")
}

#[test]
fn page_is_up_to_date() {
    let mut text = String::from(INTRODUCTION);
    let tables: Vec<String> = super::points::tables()
        .iter()
        .map(Table::markdown)
        .chain([super::crosspipe::markdown()])
        .collect();
    text += &overview();
    text += "\n";
    text += &tables.join("\n");
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        std::fs::write(page(), &text).unwrap();
    }
    let found = std::fs::read_to_string(page()).unwrap_or_default();
    assert!(found == text, "run VTEPD_UPDATE_DOCS=1 cargo test -p planner --test reference");
}

/// The guide has the table of all points as it is.
#[test]
fn guide_has_the_table_of_the_points() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/planner.md");
    let found = std::fs::read_to_string(guide).unwrap();
    let (before, rest) = found.split_once("| publication |").unwrap();
    let (_, behind) = rest.split_once("\n- CrossPipe").unwrap();
    let text = format!("{before}{}- CrossPipe{behind}", overview());
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        std::fs::write(guide, &text).unwrap();
    }
    let found = std::fs::read_to_string(guide).unwrap();
    assert!(found == text, "run VTEPD_UPDATE_DOCS=1 cargo test -p planner --test reference");
}
