//! The charts of the page.

use std::collections::BTreeSet;

use super::Report;
use crate::balance::expected_mmr;
use crate::file::Dataplane;
use crate::plan::Point;
use crate::plot::{Axis, Chart, Kind, Mark, Series};
use crate::role::Role;
use crate::statistics::Statistics;
use crate::summary::{Row, Summary, WorkloadRow};
use crate::swept;
use crate::units::InnerPort;
use crate::verdict;

/// The axis of peak loads.
const MMR: &str = "most loaded link / mean (MMR)";
/// The title and the axis of bus bandwidths.
const BUS_BANDWIDTH: (&str, &str) = ("Bus bandwidth", "Mbit/s");

/// A chart and the name of its file.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedChart {
    /// The file name, with `.svg`.
    pub file: String,
    /// The chart.
    pub chart: Chart,
    /// The group of the rows.
    group: (String, InnerPort, String),
}

impl NamedChart {
    /// Whether the chart shows rows of this group.
    pub(super) fn is_of(&self, group: &Group<'_>) -> bool {
        self.group == group.key
    }
}

/// The rows that a chart and a table show. They differ by dataplane and by one axis: a swept property
/// of the circuits or of the workload, otherwise the number of queue pairs if it is varied, otherwise
/// the variant.
pub(super) struct Group<'a> {
    /// The fabric, the choice of inner ports, and the variant or the number of queue pairs if it is
    /// varied and not the axis.
    key: (String, InnerPort, String),
    /// Whether the number of queue pairs is the axis.
    by_queue_pairs: bool,
    pub(super) rows: Vec<&'a Row>,
}

/// A quantity of a workload: its name in the name of a file, its title and its unit.
type OfWorkload = (&'static str, &'static str, &'static str, fn(&WorkloadRow) -> Statistics);

/// Reads a value and half the width of its interval from a row.
type Value<'a> = &'a dyn Fn(&Row) -> Option<(f64, f64)>;

impl<'a> Group<'a> {
    /// All groups.
    pub(super) fn all(summary: &'a Summary) -> Vec<Self> {
        let numbers: BTreeSet<_> = summary.rows.iter().map(|row| row.point.queue_pairs).collect();
        let variants: BTreeSet<_> = summary.rows.iter().map(|row| row.point.variant()).collect();
        let swept = swept::axis(&variants.iter().copied().collect::<Vec<_>>()).is_some();
        let by_queue_pairs = !swept && numbers.len() > 1 || variants.len() < 2;
        let mut groups: Vec<Self> = Vec::new();
        for row in &summary.rows {
            let other = match row.point.queue_pairs.get() {
                _ if by_queue_pairs => row.point.variant().to_owned(),
                _ if numbers.len() < 2 => String::new(),
                1 => "1 queue pair".to_owned(),
                number => format!("{number} queue pairs"),
            };
            let key = (row.fabric.clone(), row.point.inner_port, other);
            match groups.iter_mut().find(|group| group.key == key) {
                Some(group) => group.rows.push(row),
                None => groups.push(Self { key, by_queue_pairs, rows: vec![row] }),
            }
        }
        groups
    }

    /// The heading.
    pub(super) fn title(&self) -> String {
        let (fabric, port, other) = &self.key;
        let port = port.title();
        let other = if other.is_empty() { String::new() } else { format!(", {other}") };
        format!("fabric {fabric}{other}, {port}")
    }

    fn points(&self) -> BTreeSet<&Point> {
        self.rows.iter().map(|row| &row.point).collect()
    }

    /// The place and the name of the file of a chart.
    fn named(&self, what: &str, chart: Chart) -> NamedChart {
        let (fabric, port, other) = &self.key;
        let dash = if other.is_empty() { "" } else { "-" };
        let other = other.replace(' ', "-");
        NamedChart {
            file: format!("{fabric}{dash}{other}-{port}-{what}.svg"),
            chart,
            group: self.key.clone(),
        }
    }

    fn chart(&self, labels: &[String], title: &str, y_title: &str, value: Value<'_>) -> Chart {
        let points = self.points();
        let (x_title, x, places) = self.axis();
        let line = |label: &String| {
            let of = |(point, x): (&&Point, &f64)| {
                let same = |row: &&&Row| row.dataplane == *label && row.point == **point;
                let (y, half) = value(self.rows.iter().find(same)?)?;
                Some(Mark { x: *x, y, half })
            };
            let mut points: Vec<Mark> = points.iter().zip(&places).filter_map(of).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            Series { name: verdict::title(label).to_owned(), points, reference: false }
        };
        let ordered = x == Axis::Numbers || self.by_queue_pairs && points.len() > 1;
        Chart {
            title: format!("{title}, {}", self.title()),
            x_title,
            y_title: y_title.to_owned(),
            x,
            bottom: 0.0,
            logarithmic: false,
            kind: if ordered { Kind::Lines } else { Kind::Bars },
            series: labels.iter().map(line).collect(),
        }
    }

    /// The horizontal axis, with the place of each point: to scale if a property of the circuits or
    /// of the workload is varied.
    fn axis(&self) -> (String, Axis, Vec<f64>) {
        let points = self.points();
        let names = |names: Vec<String>| {
            let places = (0..names.len()).map(|at| at as f64).collect();
            (Axis::Names(names), places)
        };
        if self.by_queue_pairs {
            let numbers = points.iter().map(|point| point.queue_pairs.get().to_string());
            let (axis, places) = names(numbers.collect());
            return ("queue pairs".to_owned(), axis, places);
        }
        let variants: Vec<&str> = points.iter().map(|point| point.variant()).collect();
        if let Some((key, unit, values)) = swept::axis(&variants) {
            return (format!("{key} ({unit})"), Axis::Numbers, values);
        }
        let (axis, places) = names(variants.into_iter().map(str::to_owned).collect());
        ("variant".to_owned(), axis, places)
    }

    /// A chart for each point, with a curve for each dataplane.
    fn curves(
        &self,
        file: &str,
        (title, x_title, y_title): (&str, &str, &str),
        x: &Axis,
        of: fn(&Row) -> Vec<Mark>,
    ) -> Vec<NamedChart> {
        let several = self.points().len() > 1;
        let chart = |point: &&Point| {
            let curve = |row: &&Row| Series {
                name: verdict::title(&row.dataplane).to_owned(),
                points: of(row),
                reference: false,
            };
            let own = self.rows.iter().filter(|row| row.point == **point);
            let series: Vec<Series> =
                own.map(curve).filter(|series| !series.points.is_empty()).collect();
            let which = match self.by_queue_pairs {
                true => point.queue_pairs.get().to_string(),
                false => point.variant().to_owned(),
            };
            let which = if several { which } else { String::new() };
            let [comma, dash] = if several { [", ", "-"] } else { [""; 2] };
            let chart = Chart {
                title: format!("{title}{comma}{which}, {}", self.title()),
                x_title: x_title.to_owned(),
                y_title: y_title.to_owned(),
                x: x.clone(),
                bottom: 0.0,
                logarithmic: false,
                kind: Kind::Curves,
                series,
            };
            self.named(&format!("{which}{dash}{file}"), chart)
        };
        let charts = self.points().iter().map(chart).collect::<Vec<_>>();
        charts.into_iter().filter(|named| !named.chart.series.is_empty()).collect()
    }

    /// What a failure did to each queue pair, and to the traffic over time.
    fn of_queue_pairs(&self) -> Vec<NamedChart> {
        let titles = (
            "Time without traffic of each queue pair that lost frames",
            "milliseconds",
            "share of them",
        );
        let of = |row: &Row| distribution(&row.outages);
        let mut charts = self.curves("queue-pairs", titles, &Axis::Logarithmic, of);
        let titles = ("Frames that arrive", "milliseconds after the failure", "frames per second");
        let rates = |row: &Row| {
            let mark = |(at, rate): &(i64, f64)| Mark { x: *at as f64, y: *rate, half: 0.0 };
            row.timeline.iter().map(mark).collect()
        };
        charts.extend(self.curves("timeline", titles, &Axis::Numbers, rates));
        charts
    }

    /// The peak load of a tier.
    fn balance(&self, labels: &[String], role: Role, widest: bool) -> Chart {
        let value = |row: &Row| interval(row.tiers.iter().find(|tier| tier.role == role)?.mmr);
        let title = format!("Peak load of the {}", role.title());
        let mut chart = self.chart(labels, &title, MMR, &value);
        chart.bottom = 1.0;
        let is_stream = self.rows.iter().all(|row| row.workload.is_none());
        if widest && is_stream {
            let paths = self.rows.first().and_then(|row| row.paths()).map(|tier| tier.links);
            let random = |(point, x): (&Point, f64)| {
                Some(Mark { x, y: expected_mmr(point.queue_pairs.get(), paths?), half: 0.0 })
            };
            let (.., places) = self.axis();
            let mut points: Vec<Mark> =
                self.points().into_iter().zip(places).filter_map(random).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            chart.series.push(Series { name: "a random hash".to_owned(), points, reference: true });
        }
        chart
    }

    /// The times of the jobs beside the workload.
    fn jobs(&self, labels: &[String]) -> Vec<NamedChart> {
        let names: BTreeSet<&String> = self.rows.iter().flat_map(|row| row.jobs.keys()).collect();
        let chart = |name: &String| {
            let value = |row: &Row| interval(row.jobs.get(name)?.completion);
            let title = format!("Time of an iteration of the job '{name}'");
            let chart = self.chart(labels, &title, "milliseconds", &value);
            self.named(&format!("job-{name}"), chart)
        };
        names.into_iter().map(chart).collect()
    }

    fn charts(&self, labels: &[String]) -> Vec<NamedChart> {
        if self.rows.iter().any(|row| row.outage.is_some()) {
            let value = |row: &Row| interval(row.outage?);
            let title = "Time without traffic after the failure";
            let chart = self.chart(labels, title, "milliseconds", &value);
            let outage = Chart { bottom: 1.0, logarithmic: true, ..chart };
            let mut charts = vec![self.named("outage", outage)];
            if self.rows.iter().any(|row| row.hit.is_some()) {
                let value = |row: &Row| interval(row.hit?);
                let title = "Time of the iteration that the failure hit";
                let chart = self.chart(labels, title, "milliseconds", &value);
                let hit = Chart { bottom: 1.0, logarithmic: true, ..chart };
                charts.push(self.named("hit", hit));
            }
            charts.extend(self.of_queue_pairs());
            return charts;
        }
        let mut charts = Vec::new();
        if self.rows.iter().any(|row| row.workload.is_some()) {
            let all: [OfWorkload; 3] = [
                ("time", "Time of an iteration", "milliseconds", |row| row.completion),
                ("bus-bandwidth", BUS_BANDWIDTH.0, BUS_BANDWIDTH.1, |row| row.bus_bandwidth),
                (
                    "tail",
                    "p99 of the messages' times in the worst iteration",
                    "milliseconds",
                    |row| row.message_p99,
                ),
            ];
            for (file, title, unit, of) in all {
                // A program may not know everything.
                let value =
                    |row: &Row| interval(of(row.workload.as_ref()?)).filter(|of| of.0 > 0.0);
                if self.rows.iter().any(|row| value(row).is_some()) {
                    charts.push(self.named(file, self.chart(labels, title, unit, &value)));
                }
            }
        }
        charts.extend(self.jobs(labels));
        let mut roles: BTreeSet<(Role, bool)> = BTreeSet::new();
        for row in &self.rows {
            let widest = row.paths().map(|tier| tier.role);
            roles.extend(widest.map(|role| (role, true)));
            roles.insert((Role::Leaf, widest == Some(Role::Leaf)));
        }
        let balance = roles
            .into_iter()
            .map(|(role, widest)| self.named(role.name(), self.balance(labels, role, widest)));
        charts.extend(balance);
        charts
    }
}

impl Report<'_> {
    /// The charts: completion times of a workload, the time after a failure, and the balance of the
    /// links.
    #[must_use]
    pub fn charts(&self) -> Vec<NamedChart> {
        let labels: Vec<String> = self.experiment.dataplanes.iter().map(Dataplane::label).collect();
        let groups = Group::all(self.summary);
        groups.iter().flat_map(|group| group.charts(&labels)).chain(self.by_paths()).collect()
    }

    /// Bus bandwidth, or the peak load without a workload, by the number of paths, with the most
    /// queue pairs; nothing if two fabrics have the same number, or if no run has the figure.
    pub(super) fn by_paths(&self) -> Vec<NamedChart> {
        let rows = &self.summary.rows;
        let paths = |row: &Row| row.paths().map_or(0, |tier| tier.links);
        let x: BTreeSet<usize> = rows.iter().map(paths).collect();
        let fabrics = rows.iter().map(|row| (&row.fabric, paths(row))).collect::<BTreeSet<_>>();
        let most = rows.iter().map(|row| row.point.queue_pairs).max();
        if x.len() < 2 || x.len() < fabrics.len() || self.experiment.has_failures() {
            return Vec::new();
        }
        let is_stream = rows.iter().all(|row| row.workload.is_none());
        let (title, y_title) = if is_stream { ("Peak load", MMR) } else { BUS_BANDWIDTH };
        let value = |row: &Row| match &row.workload {
            Some(workload) => interval(workload.told(workload.bus_bandwidth)?),
            None => interval(row.paths()?.mmr),
        };
        if rows.iter().all(|row| value(row).is_none()) {
            return Vec::new();
        }
        let points: BTreeSet<&Point> = rows.iter().map(|row| &row.point).collect();
        let chart = |point: &Point| {
            let series = self.experiment.dataplanes.iter().map(|dataplane| {
                let label = dataplane.label();
                let of = |links: &usize| {
                    let same = |row: &&Row| {
                        row.dataplane == label && row.point == *point && paths(row) == *links
                    };
                    value(rows.iter().find(same)?)
                };
                let points = Mark::at_names(x.iter().map(of));
                Series { name: verdict::title(&label).to_owned(), points, reference: false }
            });
            let (port, variant) = (point.inner_port, point.variant());
            let what = if is_stream { "mmr" } else { "bus-bandwidth" };
            let of = if variant.is_empty() { String::new() } else { format!("{variant}, ") };
            let dash = if variant.is_empty() { "" } else { "-" };
            let pairs = point.queue_pairs.get();
            let chart = Chart {
                title: format!(
                    "{title} by number of paths, {of}{pairs} queue pairs, {}",
                    port.title()
                ),
                x_title: "paths".to_owned(),
                y_title: y_title.to_owned(),
                x: Axis::Names(x.iter().map(ToString::to_string).collect()),
                bottom: if is_stream { 1.0 } else { 0.0 },
                logarithmic: false,
                kind: Kind::Lines,
                series: series.collect(),
            };
            let group = (String::new(), port, variant.to_owned());
            NamedChart { file: format!("paths{dash}{variant}-{port}-{what}.svg"), chart, group }
        };
        points.into_iter().filter(|point| Some(point.queue_pairs) == most).map(chart).collect()
    }
}

/// The share of the values that are not larger than each of them, as steps. `sorted`: from the
/// smallest.
pub(crate) fn distribution(sorted: &[f64]) -> Vec<Mark> {
    let all = sorted.len() as f64;
    let mut marks = Vec::new();
    let mut below = 0.0;
    for equal in sorted.chunk_by(|a, b| a == b) {
        let share = below + equal.len() as f64 / all;
        for y in [below, share] {
            marks.extend(equal.first().map(|value| Mark { x: *value, y, half: 0.0 }));
        }
        below = share;
    }
    marks
}

/// A mean and half the width of its interval.
fn interval(of: Statistics) -> Option<(f64, f64)> {
    Some((of.mean, of.half_width))
}
