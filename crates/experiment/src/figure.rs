//! A chart of columns of the tables of results: for a figure that the report does not have.

mod csv;

use std::collections::BTreeMap;

use crate::file::KERNEL;
use crate::plot::{Axis, Chart, Kind, Mark, Series};
use crate::report::distribution;
use crate::statistics::Statistics;
use crate::swept;
use crate::verdict::title;

pub use csv::Csv;

/// The vertical axis that is no column: the share of the lines with at most the value of the
/// horizontal axis.
pub const CDF: &str = "cdf";
/// More values of the horizontal axis are a curve.
const CURVE: usize = 40;
/// The confidence of the intervals.
const CONFIDENCE: f64 = 0.95;

/// What a chart shows. Columns are those of one table. The keys of `[sweep]`, such as `delay`, are
/// columns, too: their numbers are in the names of variants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figure {
    /// The column of the horizontal axis.
    pub x: String,
    /// The column of the vertical axis, of which each mark is the mean; or [`CDF`].
    pub y: String,
    /// The column whose values are the series; none for one series.
    pub series: Option<String>,
    /// Lines with these values only, by column.
    pub only: Vec<(String, String)>,
    /// Whether the horizontal and the vertical axis are logarithmic.
    pub logarithmic: (bool, bool),
    /// The titles of the axes; without one, that of the column.
    pub titles: (Option<String>, Option<String>),
}

/// There is nothing to draw.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FigureError {
    /// No table has all columns.
    #[error("no table has the columns {wanted}; the tables have:\n{known}")]
    NoTable {
        /// The columns.
        wanted: String,
        /// The tables with their columns.
        known: String,
    },
    /// No line remains.
    #[error("no line of {0} has a number in the column of the vertical axis and these values")]
    NoLine(String),
    /// A column of numbers has other text.
    #[error("'{text}' in the column {column} of {table} is no number")]
    NoNumber {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The text.
        text: String,
    },
}

impl Figure {
    /// The chart of the first of these tables that has all columns.
    ///
    /// # Errors
    /// [`FigureError`].
    pub fn chart(&self, tables: &[Csv]) -> Result<Chart, FigureError> {
        let table = tables.iter().find(|table| self.columns().all(|name| table.has(name)));
        let table = table.ok_or_else(|| FigureError::NoTable {
            wanted: self.columns().collect::<Vec<_>>().join(", "),
            known: tables.iter().map(Csv::to_string).collect::<Vec<_>>().join("\n"),
        })?;
        let (names, groups) = self.groups(table)?;
        if groups.is_empty() {
            return Err(FigureError::NoLine(table.name().to_owned()));
        }
        let numbers = names.iter().all(|name| name.parse::<f64>().is_ok());
        let is_distribution = self.y == CDF;
        let to_scale = is_distribution || numbers && names.len() > 1;
        let logarithmic = self.logarithmic.0;
        let x = match (to_scale, logarithmic) {
            (true, true) => Axis::Logarithmic,
            (true, false) => Axis::Numbers,
            (false, _) => Axis::Names(names.clone()),
        };
        let kind = match to_scale {
            true if is_distribution || names.len() > CURVE => Kind::Curves,
            true => Kind::Lines,
            false => Kind::Bars,
        };
        let series = |(name, values): (String, Vec<Vec<f64>>)| {
            let points = match is_distribution {
                true => {
                    let mut all: Vec<f64> = values.into_iter().flatten().collect();
                    all.sort_by(f64::total_cmp);
                    distribution(&all)
                }
                false => marks(&names, &values, to_scale),
            };
            Series { name: title(&name).to_owned(), points, reference: false }
        };
        let series: Vec<Series> = groups.into_iter().map(series).collect();
        let least = series.iter().flat_map(|series| &series.points).map(|mark| mark.y);
        let least = least.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let bottom = if self.logarithmic.1 { 10_f64.powf(least.log10().floor()) } else { 0.0 };
        let y_title = if is_distribution { "share" } else { &self.y };
        let titled = |own: &Option<String>, name: &str| own.clone().unwrap_or_else(|| axis(name));
        Ok(Chart {
            title: format!("{} by {}", self.y, self.x),
            x_title: titled(&self.titles.0, &self.x),
            y_title: titled(&self.titles.1, y_title),
            x,
            bottom: if bottom.is_finite() { bottom } else { 1.0 },
            logarithmic: self.logarithmic.1,
            kind,
            series,
        })
    }

    fn columns(&self) -> impl Iterator<Item = &str> {
        let y = (self.y != CDF).then_some(self.y.as_str());
        let only = self.only.iter().map(|(name, _)| name.as_str());
        [Some(self.x.as_str()), y, self.series.as_deref()].into_iter().flatten().chain(only)
    }

    /// The values of the horizontal axis in their order, and the values of each series at each of
    /// them.
    #[expect(clippy::type_complexity, reason = "two local results")]
    fn groups(
        &self,
        table: &Csv,
    ) -> Result<(Vec<String>, Vec<(String, Vec<Vec<f64>>)>), FigureError> {
        let of = if self.y == CDF { &self.x } else { &self.y };
        let mut lines = Vec::new();
        for line in table.lines() {
            let field = |name: &str| table.field(line, name).unwrap_or_default();
            let value = field(of);
            let wanted = self.only.iter().all(|(name, text)| field(name) == *text);
            // What was not measured is empty.
            if value.is_empty() || !wanted {
                continue;
            }
            let value: f64 = value.parse().map_err(|_| FigureError::NoNumber {
                table: table.name().to_owned(),
                column: of.clone(),
                text: value.clone(),
            })?;
            let series = self.series.as_deref().map(field).unwrap_or_default();
            lines.push((field(&self.x), series, value));
        }
        let mut names: Vec<String> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (x, ..) in &lines {
            places.entry(x.clone()).or_insert_with(|| {
                names.push(x.clone());
                names.len() - 1
            });
        }
        let mut groups: Vec<(String, Vec<Vec<f64>>)> = Vec::new();
        for (x, series, value) in lines {
            let at = match groups.iter().position(|(name, _)| *name == series) {
                Some(at) => at,
                None => {
                    groups.push((series, vec![Vec::new(); names.len()]));
                    groups.len() - 1
                }
            };
            let place = places.get(&x).and_then(|x| groups.get_mut(at)?.1.get_mut(*x));
            if let Some(place) = place {
                place.push(value);
            }
        }
        // The order of the turns says nothing.
        groups.sort_by(|(a, _), (b, _)| (a != KERNEL, a).cmp(&(b != KERNEL, b)));
        Ok((names, groups))
    }
}

/// The mean at each value of the axis.
fn marks(names: &[String], values: &[Vec<f64>], to_scale: bool) -> Vec<Mark> {
    let mark = |(at, (name, values)): (usize, (&String, &Vec<f64>))| {
        let of = Statistics::of(values, CONFIDENCE)?;
        let x = if to_scale { name.parse().ok()? } else { at as f64 };
        Some(Mark { x, y: of.mean, half: of.half_width })
    };
    let mut marks: Vec<Mark> = names.iter().zip(values).enumerate().filter_map(mark).collect();
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    marks
}

/// The title of an axis from the name of a column.
fn axis(column: &str) -> String {
    if let Some((key, unit)) = swept::KEYS.iter().find(|(key, _)| *key == column) {
        return format!("{key} ({unit})");
    }
    let unit = [("_ms", "ms"), ("_mbps", "Mbit/s")].iter().find_map(|(end, unit)| {
        Some(format!("{} ({unit})", column.strip_suffix(end)?.replace('_', " ")))
    });
    unit.unwrap_or_else(|| match column {
        "ms" => "milliseconds".to_owned(),
        "mmr" => "MMR".to_owned(),
        _ => column.replace('_', " "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: &str = "dataplane,variant,queue_pairs,completion_ms,lost
kernel,delay-1ms,8,100,
kernel,delay-1ms,8,120,
qp-hash,delay-1ms,8,50,
kernel,delay-10ms,8,210,
qp-hash,delay-10ms,8,90,
qp-hash,delay-10ms,16,1000,
";
    const PAIRS: &str = "dataplane,outage_ms\nkernel,4\nkernel,0\nkernel,4\nqp-pin,2\n";

    fn tables() -> [Csv; 2] {
        [Csv::parse("runs.csv", RUNS).unwrap(), Csv::parse("queue-pairs.csv", PAIRS).unwrap()]
    }

    fn figure(x: &str, y: &str) -> Figure {
        let series = Some("dataplane".to_owned());
        Figure { x: x.into(), y: y.into(), series, ..Figure::default() }
    }

    #[test]
    fn a_swept_delay_is_an_axis_to_scale() {
        let only = vec![("queue_pairs".to_owned(), "8".to_owned())];
        let chart = Figure { only, ..figure("delay", "completion_ms") }.chart(&tables()).unwrap();
        assert_eq!((chart.x, chart.kind), (Axis::Numbers, Kind::Lines));
        assert_eq!([chart.x_title, chart.y_title], ["delay (ms)", "completion (ms)"]);
        let [kernel, hash] = chart.series.as_slice() else { panic!("{:?}", chart.series) };
        assert_eq!([&kernel.name, &hash.name], ["kernel VXLAN", "qp-hash"]);
        let values =
            |series: &Series| series.points.iter().map(|mark| (mark.x, mark.y)).collect::<Vec<_>>();
        assert_eq!(values(kernel), [(1.0, 110.0), (10.0, 210.0)]);
        assert_eq!(values(hash), [(1.0, 50.0), (10.0, 90.0)], "those of 16 queue pairs are others");
        assert!(kernel.points[0].half > 100.0 && kernel.points[1].half.is_infinite());
    }

    #[test]
    fn one_value_and_names_are_bars() {
        let chart = figure("variant", "completion_ms").chart(&tables()).unwrap();
        let names = ["delay-1ms", "delay-10ms"].map(str::to_owned).to_vec();
        assert_eq!((chart.x, chart.kind), (Axis::Names(names), Kind::Bars));
        let only = vec![("delay".to_owned(), "1".to_owned())];
        let one = Figure { only, ..figure("delay", "completion_ms") }.chart(&tables()).unwrap();
        assert_eq!(one.kind, Kind::Bars);
    }

    #[test]
    fn a_distribution_is_over_all_lines() {
        let chart = figure("outage_ms", CDF).chart(&tables()).unwrap();
        assert_eq!((chart.kind, chart.y_title.as_str()), (Kind::Curves, "share"));
        let last: Vec<(f64, f64)> = chart.series[0].points.iter().map(|of| (of.x, of.y)).collect();
        assert_eq!(last, [(0.0, 0.0), (0.0, 1.0 / 3.0), (4.0, 1.0 / 3.0), (4.0, 1.0)]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let of = |x: &str, y: &str| figure(x, y).chart(&tables()).unwrap_err().to_string();
        let text = of("delay", "outage");
        assert!(text.contains("delay, outage, dataplane") && text.contains("queue-pairs.csv: "));
        assert!(text.contains("queue_pairs, completion_ms"), "{text}");
        assert!(of("delay", "lost").contains("no line of runs.csv"), "it was not counted");
        assert!(of("delay", "variant").contains("'delay-1ms' in the column variant of runs.csv"));
    }
}
