//! Results as rows, and a table of them.

use std::fmt::Write as _;

use serde::Serialize;

/// Whether lower or higher figures are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Lower is better.
    #[default]
    Lower,
    /// Higher is better.
    Higher,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Row {
    /// The name of the benchmark.
    pub bench: String,
    /// The parameters that were varied.
    pub case: String,
    /// The unit of `vtepd` and `kernel`.
    pub unit: String,
    /// vtepd's figure, a median.
    pub vtepd: f64,
    /// The minimum and maximum of vtepd's figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// The figure of kernel VXLAN in the same run, or of another simulator, if there is one.
    pub kernel: Option<f64>,
    /// The minimum and maximum of the kernel's figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_range: Option<[f64; 2]>,
    /// vtepd's figure divided by the kernel's, or by that of the datapath that `case` names.
    pub ratio: Option<f64>,
    /// The target of the ratio if there is one, otherwise of vtepd's figure.
    pub target: Option<f64>,
    /// Whether lower or higher figures are better.
    pub better: Better,
}

/// All results of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// A description of the machine.
    pub machine: String,
    /// The commit that was measured, with the suffix `-dirty` if files were changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The results.
    pub rows: Vec<Row>,
}

/// The median, minimum and maximum of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The minimum and maximum.
    pub range: [f64; 2],
}

impl Figure {
    /// Computes the median and range of these figures; NaN if there are none.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
        // With an even number of figures, the median is the mean of the two in the middle.
        let last = figures.len().saturating_sub(1);
        let median = f64::midpoint(at(last / 2), at(figures.len() / 2));
        Self { median, range: [at(0), at(last)] }
    }
}

impl Row {
    /// A row with vtepd's figure, the kernel's figure if there is one, and the ratio. It has no
    /// target.
    #[must_use]
    pub fn beside(
        bench: &str,
        case: String,
        unit: &str,
        vtepd: Figure,
        kernel: Option<Figure>,
        better: Better,
    ) -> Self {
        Self {
            bench: bench.to_owned(),
            case,
            unit: unit.to_owned(),
            vtepd: vtepd.median,
            range: Some(vtepd.range),
            kernel: kernel.map(|kernel| kernel.median),
            kernel_range: kernel.map(|kernel| kernel.range),
            ratio: kernel.map(|kernel| vtepd.median / kernel.median),
            target: None,
            better,
        }
    }

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
    /// Formats the results as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = format!("{}\n\n", self.machine);
        let case = self.rows.iter().map(|row| row.case.chars().count()).max().unwrap_or(0).max(12);
        let ranges = self.rows.iter().any(|row| row.range.is_some());
        let range = |range: Option<[f64; 2]>| match range {
            Some([least, most]) => format!(" {:21}", format!("{least:.2}–{most:.2}")),
            None if ranges => format!(" {:21}", ""),
            None => String::new(),
        };
        let heading = if ranges { format!(" {:21}", "min–max") } else { String::new() };
        let _ = writeln!(
            table,
            "{:14} {:case$} {:>10}{heading} {:>10}{heading} {:10} {:>6} {:>8}",
            "benchmark", "case", "vtepd", "kernel", "unit", "ratio", "target"
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
            let ratio = row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let line = format!(
                "{:14} {:case$} {:>10.2}{} {kernel:>10}{} {:10} {ratio:>6} {target:>8}{verdict}",
                row.bench,
                row.case,
                row.vtepd,
                range(row.range),
                range(row.kernel_range),
                row.unit
            );
            let _ = writeln!(table, "{}", line.trim_end());
        }
        table
    }
}

/// A description of the machine: processor, number of CPUs and kernel.
#[must_use]
pub fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, name)| name);
    // The CPUs of the machine, not only those in this thread's affinity.
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = nix::sys::utsname::uname();
    let release = kernel.as_ref().map_or("?".into(), |kernel| kernel.release().to_string_lossy());
    format!("{}, {count} CPUs, Linux {release}", model.unwrap_or("unknown processor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_median_and_what_it_is_of() {
        let figure = Figure::of([3.0, 9.0, 1.0]);
        assert_eq!(Figure::of([4.0, 1.0]), Figure { median: 2.5, range: [1.0, 4.0] });
        assert!(Figure::of([]).median.is_nan());
        let row = Row::beside("b", "c".into(), "u", figure, Some(Figure::of([6.0])), Better::Lower);
        assert_eq!((row.vtepd, row.range), (3.0, Some([1.0, 9.0])));
        assert_eq!(
            (row.kernel, row.kernel_range, row.ratio),
            (Some(6.0), Some([6.0, 6.0]), Some(0.5))
        );
    }

    fn row(vtepd: f64, ratio: Option<f64>, better: Better) -> Row {
        let (bench, case, unit) = ("encapsulate".into(), "64 B".into(), "ns/frame".into());
        Row { bench, case, unit, vtepd, ratio, target: Some(8.0), better, ..Row::default() }
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
        let report =
            Report { machine: "m".into(), commit: None, rows: vec![row(7.5, None, Better::Lower)] };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"machine":"m","rows":[{"bench":"encapsulate","case":"64 B","unit":"ns/frame","vtepd":7.5,"kernel":null,"ratio":null,"target":8.0,"better":"lower"}]}"#
        );
        let table = report.table();
        let words: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words.join(" "), "encapsulate 64 B 7.50 ns/frame <= 8 reached");
    }
}
