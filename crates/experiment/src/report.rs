//! One HTML page with everything: verdicts, charts, tables, what was published, the limits, and how
//! to repeat the experiment. It needs no other file.

use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::file::{Experiment, Published};
use crate::plan::Point;
use crate::plot::{self, Chart, Series};
use crate::record::{Manifest, Role};
use crate::statistics::Statistics;
use crate::summary::{Row, Summary};
use crate::units::InnerPort;
use crate::verdict::{self, Grade, Verdict, title, verdicts};

const STYLE: &str = include_str!("report/style.css");

/// What the report is made of.
#[derive(Debug, Clone)]
pub struct Report<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The runs, summarised.
    pub summary: &'a Summary,
    /// The machine and the programs.
    pub manifest: &'a Manifest,
    /// The date of the first run, UTC, such as `2026-01-31`.
    pub date: String,
    /// The command that repeats the experiment.
    pub command: String,
    /// Whether all runs of the plan are there; otherwise it was interrupted.
    pub complete: bool,
}

/// A chart and the name of its file.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedChart {
    /// The file name, with `.svg`.
    pub file: String,
    /// The chart.
    pub chart: Chart,
    /// Where it was measured.
    fabric: String,
    inner_port: InnerPort,
}

/// The part of the rows that a chart and a table show.
fn groups(summary: &Summary) -> Vec<(String, InnerPort, Vec<&Row>)> {
    let mut groups: Vec<(String, InnerPort, Vec<&Row>)> = Vec::new();
    for row in &summary.rows {
        let found = groups
            .iter_mut()
            .find(|(fabric, port, _)| *fabric == row.fabric && *port == row.point.inner_port);
        match found {
            Some((_, _, rows)) => rows.push(row),
            None => groups.push((row.fabric.clone(), row.point.inner_port, vec![row])),
        }
    }
    groups
}

impl Report<'_> {
    /// The charts: the balance of the paths, and of the uplinks of the leaf if these are others.
    #[must_use]
    pub fn charts(&self) -> Vec<NamedChart> {
        let mut charts = Vec::new();
        for (fabric, inner_port, rows) in groups(self.summary) {
            let mut roles: BTreeSet<(Role, bool)> = BTreeSet::new();
            for row in &rows {
                let widest = row.paths().map(|tier| tier.role);
                roles.extend(widest.map(|role| (role, true)));
                roles.insert((Role::Leaf, widest == Some(Role::Leaf)));
            }
            for (role, widest) in roles {
                let chart = self.chart(&rows, role, widest, &fabric, inner_port);
                let file = format!("{fabric}-{inner_port}-{}.svg", role.name());
                charts.push(NamedChart { file, chart, fabric: fabric.clone(), inner_port });
            }
        }
        charts
    }

    fn chart(
        &self,
        rows: &[&Row],
        role: Role,
        widest: bool,
        fabric: &str,
        port: InnerPort,
    ) -> Chart {
        let points: BTreeSet<Point> = rows.iter().map(|row| row.point).collect();
        let of = |label: &str, point: &Point| {
            rows.iter().find(|row| row.dataplane == label && row.point == *point)
        };
        let labels = self.experiment.dataplanes.iter().map(crate::file::Dataplane::label);
        let mut series: Vec<Series> = labels
            .map(|label| {
                let value = |point| {
                    let row = of(&label, point)?;
                    let tier = row.tiers.iter().find(|tier| tier.role == role)?;
                    Some((tier.mmr.mean, tier.mmr.half_width))
                };
                Series {
                    points: points.iter().map(value).collect(),
                    name: label.clone(),
                    reference: false,
                }
            })
            .collect();
        if widest {
            let random = |point: &Point| {
                let paths = rows.first()?.paths()?.links;
                Some((crate::balance::expected_mmr(point.queue_pairs.get(), paths), 0.0))
            };
            series.push(Series {
                name: "a random hash".to_owned(),
                points: points.iter().map(random).collect(),
                reference: true,
            });
        }
        Chart {
            title: format!("Peak load of the {}, {fabric}, inner port {port}", role.title()),
            x_title: "queue pairs".to_owned(),
            y_title: "fullest link / mean (MMR)".to_owned(),
            x: points.iter().map(|point| point.queue_pairs.get().to_string()).collect(),
            bottom: 1.0,
            series,
        }
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        let Self { experiment, manifest, .. } = self;
        let charts = self.charts();
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (experiment.title) }
                    style { (PreEscaped(STYLE)) (PreEscaped(plot::STYLE)) }
                }
                body {
                    h1 { (experiment.title) }
                    p { (experiment.question) }
                    p class="soft" {
                        (self.date) ", " (self.summary.runs) " runs, vtepd " (manifest.vtepd)
                        ", commit " (short(&manifest.commit))
                        @if manifest.quick { ", short form (--quick)" }
                    }
                    @if !self.complete {
                        p { b { "The experiment is not complete: " } "it was interrupted, or runs "
                            "failed. The same command continues it." }
                    }
                    h2 { "What follows" }
                    (verdict_list(&verdicts(experiment, self.summary)))
                    @if !experiment.published.is_empty() {
                        h2 { "What was published" }
                        (published(&experiment.published, self.summary))
                    }
                    h2 { "Measured" }
                    p { "Each run sends frames of several queue pairs from one host to another. "
                        "The counters of the links give the load of each link." }
                    @for (fabric, port, rows) in groups(self.summary) {
                        h3 { "Fabric " (fabric) ", " (port_title(port)) }
                        @let own = charts.iter().filter(|chart| {
                            chart.fabric == fabric && chart.inner_port == port
                        });
                        @for chart in own {
                            figure {
                                (chart.chart.element())
                                figcaption { (chart.chart.title) ". Bars: confidence interval "
                                    "of the mean. 1 is even." }
                            }
                        }
                        (table(&rows, &experiment.baseline()))
                    }
                    h3 { "Columns" }
                    (explanation())
                    @if !experiment.limits.is_empty() {
                        h2 { "Limits" }
                        ul { @for limit in &experiment.limits { li { (limit) } } }
                    }
                    h2 { "How it was measured" }
                    (self.conditions())
                }
            }
        };
        page.into_string()
    }

    fn conditions(&self) -> Markup {
        let Self { experiment, summary, manifest, .. } = self;
        let machine = &manifest.machine;
        let gib = machine.memory_mib as f64 / 1024.0;
        html! {
            dl {
                dt { "Machine" }
                dd { (machine.cpu_model) ", " (machine.cpus) " CPUs, " (format!("{gib:.0}"))
                    " GiB; Linux " (machine.kernel) "; FRR " (manifest.frr) }
                dt { "Commit" } dd { code { (manifest.commit) } }
                dt { "Programs" }
                dd {
                    @for (name, sum) in &manifest.programs { (name) " " code { (sum) } " " }
                    "(CRC-32)"
                }
                dt { "Seed" }
                dd { (experiment.seed) " for queue pair numbers, the seeds of vtepd's hashes and the "
                    "order of the runs. A repetition has the same with every dataplane." }
                dt { "Traffic" }
                dd { (experiment.traffic.frames) " frames of 1,024 bytes for each queue pair and "
                    "run, " (experiment.traffic.rate) " frames a second in all" }
                dt { "CPU" }
                dd { (format!("{:.0}", summary.busy * 100.0)) " % busy on average; "
                    (format!("{:.0}", summary.slow * 100.0))
                    " % of the runs were slower than required" }
                dt { "Repeated runs" }
                dd { (summary.repeated) " of " (summary.runs)
                    ", because BGP changed a path meanwhile" }
            }
            p { "Dataplanes take turns in an order that the seed decides, so that a change of the "
                "machine meets all of them." }
            p { "Repeat it:" }
            pre { (self.command) }
            p class="soft" { "Files beside this page: runs.jsonl (all that is known about each "
                "run), runs.csv, links.csv, summary.csv, the charts (*.svg), manifest.json and "
                "the experiment file." }
        }
    }
}

fn explanation() -> Markup {
    html! {
        dl {
            dt { "MMR" } dd { "the load of the fullest link over the mean of its tier: 1 is even, "
                "the number of links is the worst" }
            dt { "expected" } dd { "the mean MMR of the placement that the policy aims at, "
                "computed: a random hash, or a random hash into a few ports" }
            dt { "floor" } dd { "the smallest possible MMR, because queue pairs are whole" }
            dt { "Jain" } dd { "Jain's fairness index: 1 is even" }
            dt { "entropy" } dd { "−Σ p log p / log n of the shares p of n links: 1 is even" }
            dt { "range" } dd { "(max − min) / mean of the loads: 0 is even" }
            dt { "gain" } dd { "how much lower the peak load is than with the baseline" }
        }
    }
}

fn port_title(port: InnerPort) -> &'static str {
    match port {
        InnerPort::Constant => "one inner source port for all queue pairs",
        InnerPort::PerQueuePair => "an inner source port for each queue pair",
    }
}

fn short(commit: &str) -> String {
    let (hash, rest) = commit.split_once('-').unwrap_or((commit, ""));
    let hash: String = hash.chars().take(12).collect();
    if rest.is_empty() { hash } else { format!("{hash}-{rest}") }
}

fn verdict_list(verdicts: &[Verdict]) -> Markup {
    html! {
        ul class="verdicts" {
            @for Verdict { grade, text } in verdicts {
                @match grade {
                    Grade::Good => li class="good" { b { "✓" } (text) },
                    Grade::Bad => li class="bad" { b { "✗" } (text) },
                    Grade::Note => li class="note" { b { "○" } (text) },
                }
            }
        }
    }
}

fn published(published: &[Published], summary: &Summary) -> Markup {
    html! {
        div class="wide" {
            table {
                thead { tr {
                    th class="name" { "what" } th class="name" { "published" }
                    th class="name" { "here" } th class="name" { "difference" }
                } }
                tbody {
                    @for Published { what, value, source, difference, measured } in published {
                        @let here = measured.as_ref().map(|wanted| verdict::measured(wanted, summary));
                        tr {
                            td class="text" { (what) }
                            td class="text" { b { (value) } br; span class="soft" { (source) } }
                            td class="text" { b { (here.unwrap_or_default()) } }
                            td class="text" { (difference) }
                        }
                    }
                }
            }
        }
    }
}

fn plus_minus(statistics: &Statistics) -> String {
    match statistics.half_width.is_finite() {
        true => format!("{:.2} ± {:.2}", statistics.mean, statistics.half_width),
        false => format!("{:.2}", statistics.mean),
    }
}

fn gain(gain: Option<(f64, f64)>) -> String {
    let Some((gain, half)) = gain else { return "–".to_owned() };
    // Adding zero turns a negative zero into zero.
    let percent = (gain * 1000.0).round() / 10.0 + 0.0;
    match half.is_finite() {
        true => format!("{percent:.1} ± {:.1} %", half * 100.0),
        false => format!("{percent:.1} %"),
    }
}

fn table(rows: &[&Row], baseline: &str) -> Markup {
    let others = rows.iter().any(|row| row.paths().is_some_and(|tier| tier.role != Role::Leaf));
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let links = rows.first().and_then(|row| row.paths()).map_or(0, |tier| tier.links);
    let leaf = |row: &Row| row.tiers.iter().find(|tier| tier.role == Role::Leaf).cloned();
    let mut last = None;
    html! {
        div class="wide" {
            table {
                caption { "Balance over " (links) " links. Mean ± half of the confidence interval. "
                    "Gains are over " (title(baseline)) "." }
                thead { tr {
                    th { "queue pairs" } th class="name" { "dataplane" } th { "MMR" }
                    th { "median" } th { "expected" } th { "floor" } th { "Jain" } th { "entropy" }
                    th { "range" } th { "gain" }
                    @if others { th { "leaf MMR" } th { "leaf gain" } }
                    th { "reordered" } th { "lost" } th { "runs" }
                } }
                tbody {
                    @for row in rows {
                        @let first = last.replace(row.point) != Some(row.point);
                        @let queue_pairs = row.point.queue_pairs.get().to_string();
                        @if let Some(paths) = row.paths() {
                            tr class=[first.then_some("first")] {
                                td { @if first { (queue_pairs) } }
                                td class="name" { (title(&row.dataplane)) }
                                td { (plus_minus(&paths.mmr)) }
                                td { (format!("{:.2}", paths.mmr.median)) }
                                td { (number(row.expected)) } td { (format!("{:.2}", row.floor)) }
                                td { (format!("{:.2}", paths.jain.mean)) }
                                td { (format!("{:.2}", paths.entropy.mean)) }
                                td { (format!("{:.2}", paths.range.mean)) }
                                td { (gain(paths.gain)) }
                                @if others {
                                    td { (number(leaf(row).map(|tier| tier.mmr.mean))) }
                                    td { (gain(leaf(row).and_then(|tier| tier.gain))) }
                                }
                                td { (row.reordered) } td { (row.lost) } td { (paths.mmr.count) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{manifest, run};

    #[test]
    fn the_page_is_whole_and_escapes_what_it_shows() {
        let text = "name = 'x'\ntitle = 'A <b> title'\nquestion = 'Why?'\nlimits = ['One pair.']
            topologies = ['scaleacross.clab.yml']
            dataplane = [{policy = 'kernel'}, {policy = 'qp-hash'}]\n[sweep]\nqueue-pairs = [8]
            [[published]]\nwhat = 'peak'\nvalue = '13.7 %'\nsource = 'a paper'";
        let experiment = Experiment::parse("x.toml".as_ref(), text).unwrap();
        let both = |at| [run("kernel", 8, at, &[8, 0, 0, 0]), run("qp-hash", 8, at, &[3, 1, 2, 2])];
        let runs: Vec<_> = (0..5).flat_map(both).collect();
        let summary = Summary::new(&experiment, &runs);
        let report = Report {
            experiment: &experiment,
            summary: &summary,
            manifest: &manifest(),
            date: "2026-01-31".into(),
            command: "lab run x.toml".into(),
            complete: false,
        };
        let page = report.page();
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
        for part in ["A &lt;b&gt; title", "A &lt;CPU&gt;", "13.7 %", "One pair.", "not complete"] {
            assert!(page.contains(part), "{part}");
        }
        // The gain from 4 to 1.5, and at the leaf from 2 to 1.
        assert!(page.contains("62.5 ± 0.0 %") && page.contains("50.0 ± 0.0 %"), "{page}");
        for outside in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "the page needs no other file: {outside}");
        }
        let files: Vec<String> = report.charts().into_iter().map(|chart| chart.file).collect();
        assert_eq!(files, ["scaleacross-constant-leaf.svg", "scaleacross-constant-spine.svg"]);
    }
}
