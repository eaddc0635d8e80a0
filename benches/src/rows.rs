//! Results as rows, and the table made of them.

use std::fmt::Write as _;

use serde::Serialize;

/// Which way a figure gets better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
}

/// One measured figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The benchmark.
    pub bench: String,
    /// What was varied.
    pub case: String,
    /// The unit of `vtepd` and `kernel`.
    pub unit: String,
    /// vtepd's figure.
    pub vtepd: f64,
    /// Kernel VXLAN's figure in the same run, where there is one.
    pub kernel: Option<f64>,
    /// vtepd's figure divided by the kernel's.
    pub ratio: Option<f64>,
    /// What the figure is meant to reach: of the ratio where there is one, else of vtepd's figure.
    pub target: Option<f64>,
    /// Which way is better.
    pub better: Better,
}

/// All figures of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What they were measured on.
    pub machine: String,
    /// The figures.
    pub rows: Vec<Row>,
}

impl Row {
    /// Whether the target is reached; `None` if there is none.
    #[must_use]
    pub fn reached(&self) -> Option<bool> {
        let figure = self.ratio.unwrap_or(self.vtepd);
        self.target.map(|target| match self.better {
            Better::Lower => figure <= target,
            Better::Higher => figure >= target,
        })
    }
}

impl Report {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = format!("{}\n\n", self.machine);
        let case = self.rows.iter().map(|row| row.case.chars().count()).max().unwrap_or(0).max(12);
        let _ = writeln!(
            table,
            "{:14} {:case$} {:>10} {:>10} {:10} {:>8}",
            "benchmark", "case", "vtepd", "kernel", "unit", "target"
        );
        for row in &self.rows {
            let target = row.target.map_or(String::new(), |target| match row.better {
                Better::Lower => format!("<= {target}"),
                Better::Higher => format!(">= {target}"),
            });
            let verdict = match row.reached() {
                Some(true) => " reached",
                Some(false) => " MISSED",
                None => "",
            };
            let kernel = row.kernel.map_or(String::new(), |kernel| format!("{kernel:.2}"));
            let line = format!(
                "{:14} {:case$} {:>10.2} {kernel:>10} {:10} {target:>8}{verdict}",
                row.bench, row.case, row.vtepd, row.unit
            );
            let _ = writeln!(table, "{}", line.trim_end());
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(vtepd: f64, ratio: Option<f64>, better: Better) -> Row {
        let (bench, case, unit) = ("encapsulate".into(), "64 B".into(), "ns/frame".into());
        Row { bench, case, unit, vtepd, kernel: None, ratio, target: Some(8.0), better }
    }

    #[test]
    fn targets_are_of_the_ratio_where_there_is_one() {
        assert_eq!(row(8.0, None, Better::Lower).reached(), Some(true));
        assert_eq!(row(8.1, None, Better::Lower).reached(), Some(false));
        assert_eq!(row(1.0, Some(9.0), Better::Lower).reached(), Some(false));
        assert_eq!(row(1.0, Some(9.0), Better::Higher).reached(), Some(true));
        assert_eq!(Row { target: None, ..row(1.0, None, Better::Lower) }.reached(), None);
    }

    #[test]
    fn the_form_of_a_row() {
        let report = Report { machine: "m".into(), rows: vec![row(7.5, None, Better::Lower)] };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"machine":"m","rows":[{"bench":"encapsulate","case":"64 B","unit":"ns/frame","vtepd":7.5,"kernel":null,"ratio":null,"target":8.0,"better":"lower"}]}"#
        );
        let table = report.table();
        let words: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words.join(" "), "encapsulate 64 B 7.50 ns/frame <= 8 reached");
    }
}
