//! One HTML page with everything: verdicts, charts, tables, what was published, the limits, and how
//! to repeat the experiment. It needs no other file.

mod charts;
mod conditions;
mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::file::Experiment;
use crate::plot::{self, Kind};
use crate::record::Manifest;
use crate::summary::Summary;
use crate::verdict::{Grade, Verdict, headline, verdicts};

use charts::Group;
pub use charts::NamedChart;
pub(crate) use charts::distribution;

/// The style of a page.
pub const STYLE: &str = include_str!("report/style.css");

const STREAM: &str = "Each run sends frames of several queue pairs from one host to another. The \
    counters of the links give the load of each link.";
const WORKLOAD: &str = "Each run is several iterations of a collective operation between hosts, \
    over reliable RoCE connections with several queue pairs each. The counters of the links give \
    the load of each link, of all hosts together, in the direction from the first site to the \
    second.";
const PROGRAM: &str = "Each run starts a program on hosts, which says how long each of its \
    iterations took. It gets the number of queue pairs, and may use it. The counters of the links \
    give the load of each link, of all hosts together, in the direction from the first site to the \
    second.";
const FAILURE: &str = "Each run sends numbered frames of several queue pairs from one host to \
    another. Something fails meanwhile. The numbers that are missing in a row give the time \
    without traffic of each queue pair.";
const FAILURE_AND_WORKLOAD: &str = "Each run sends numbered frames of several queue pairs from one \
    host to another. Something fails meanwhile. The numbers that are missing in a row give the \
    time without traffic of each queue pair. At the same time, hosts run a collective operation \
    again and again over reliable RoCE connections. The iteration during which something fails \
    takes longer than those before.";

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

impl Report<'_> {
    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        let Self { experiment, manifest, .. } = self;
        let charts = self.charts();
        let body = html! {
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
            @if let Some(headline) = headline(experiment, self.summary) {
                p class="headline" { b { (headline) } }
            }
            h2 { "What follows" }
            p class="soft" { "✓ as expected, or better; ✗ not as expected, or worse; ○ neither. "
                (self.noise()) }
            (verdict_list(&verdicts(experiment, self.summary)))
            @if !experiment.published.is_empty() {
                h2 { "What was published" }
                (tables::published(&experiment.published, self.summary))
            }
            h2 { "Measured" }
            p { (self.method()) }
            (self.variants())
            @for chart in self.by_paths() { (figure(&chart)) }
            @for group in Group::all(self.summary) {
                h3 { (group.title()) }
                @for chart in charts.iter().filter(|chart| chart.is_of(&group)) {
                    (figure(chart))
                }
                @if experiment.has_failures() {
                    (tables::outage(&group.rows))
                } @else {
                    @if experiment.workload.is_some() {
                        (tables::workload(&group.rows, experiment.is_program()))
                    }
                    @let program = experiment.is_program();
                    (tables::balance(&group.rows, &experiment.baseline(), program))
                }
                (tables::dropped(&group.rows))
            }
            @if !experiment.has_failures() {
                h3 { "Columns" }
                (tables::explanation(experiment))
            }
            @if !experiment.limits.is_empty() {
                h2 { "Limits" }
                ul { @for limit in &experiment.limits { li { (limit) } } }
            }
            h2 { "How it was measured" }
            (self.conditions())
        };
        document(&experiment.title, &[STYLE, plot::STYLE], &body)
    }

    /// What the names of the variants stand for.
    fn variants(&self) -> Markup {
        let titled = self.experiment.variants.iter().filter(|variant| !variant.title.is_empty());
        let titled: Vec<_> = titled.collect();
        html! {
            @if !titled.is_empty() {
                dl { @for variant in titled { dt { (variant.name) } dd { (variant.title) } } }
            }
        }
    }

    /// What a run does.
    fn method(&self) -> &'static str {
        match (self.experiment.has_failures(), self.experiment.workload.is_some()) {
            (true, false) => FAILURE,
            (true, true) => FAILURE_AND_WORKLOAD,
            (false, true) if self.experiment.is_program() => PROGRAM,
            (false, true) => WORKLOAD,
            (false, false) => STREAM,
        }
    }
}

fn figure(NamedChart { chart, .. }: &NamedChart) -> Markup {
    html! {
        figure {
            (chart.element())
            figcaption {
                (chart.title) "."
                @if chart.kind != Kind::Curves {
                    " Thin lines: confidence interval of the mean."
                }
            }
        }
    }
}

fn short(commit: &str) -> String {
    let (hash, rest) = commit.split_once('-').unwrap_or((commit, ""));
    let hash: String = hash.chars().take(12).collect();
    if rest.is_empty() { hash } else { format!("{hash}-{rest}") }
}

/// A page that needs no other file.
#[must_use]
pub fn document(title: &str, styles: &[&str], body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { @for style in styles { (PreEscaped(style)) } }
            }
            body { (body) }
        }
    };
    page.into_string()
}

/// Verdicts as a list with signs.
#[must_use]
pub fn verdict_list(verdicts: &[Verdict]) -> Markup {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Axis;
    use crate::record::tests::{experiment, manifest, run};

    /// A complete report, without the date and the command that made it.
    fn report_on<'a>(
        experiment: &'a Experiment,
        summary: &'a Summary,
        manifest: &'a Manifest,
    ) -> Report<'a> {
        let (date, command) = (String::new(), String::new());
        Report { experiment, summary, manifest, date, command, complete: true }
    }

    #[test]
    fn a_workload_is_shown_with_its_roofline_and_straggler() {
        use crate::record::Completion;
        let rest = "workload = { roofline = 1 }
            [traffic]\nsites = [['a'], ['b']]\n[sweep]\nqueue-pairs = [8]
            [[variant]]\nname = 'v'\ntitle = 'what it is'";
        let experiment = experiment(&["kernel"], rest);
        let page = |roofline_ratio| {
            let workload = Some(Completion {
                iterations: 2,
                milliseconds: 10.0,
                worst: 11.0,
                bus_bandwidth: 5.0,
                message_p99: 3.0,
                retransmitted: 1,
                busy: 0.1,
                roofline_ratio,
                straggler: 7.125,
                ..Completion::default()
            });
            let mut run = crate::record::Run {
                workload: workload.clone(),
                arrival: None,
                ..run("kernel", 8, 0, &[1, 1, 1, 1])
            };
            let beside = workload.map(|own| Completion { milliseconds: 43.0, ..own });
            run.jobs = beside.map(|of| ("neighbour".to_owned(), of)).into_iter().collect();
            assert!(crate::table::jobs(&[run.clone()]).contains(",neighbour,2,43.000,"));
            run.key.point.variant = Some((0, "v".to_owned().try_into().unwrap()));
            let summary = Summary::new(&experiment, &[run]);
            let manifest = manifest();
            let report = report_on(&experiment, &summary, &manifest);
            report.page()
        };
        let with = page(Some(0.625));
        let time = "v: an iteration takes 10.0 ms with 8 queue pairs.";
        let job = ["neighbour</td><td>43.0", "Time of an iteration of the job 'neighbour'"];
        for part in ["<td>0.62</td>", "<td>7.1</td>", "what it is", time].into_iter().chain(job) {
            assert!(with.contains(part), "{part}");
        }
        assert!(!page(None).contains("<th>of roofline</th>"));
        assert!(!with.contains("<th>lost</th>"), "no losses were counted");
    }

    #[test]
    fn drops_are_shown_where_they_were_counted() {
        use crate::record::{CircuitDrops, Dropped, Run};
        let experiment = experiment(&["kernel"], "[sweep]\nqueue-pairs = [8]");
        let page = |dropped| {
            let run = Run { dropped, ..run("kernel", 8, 0, &[8, 0, 0, 0]) };
            let (summary, manifest) = (Summary::new(&experiment, &[run]), manifest());
            report_on(&experiment, &summary, &manifest).page()
        };
        let circuits = |lost| Some(CircuitDrops { lost, queue_full: 0 });
        let with = page(Some(Dropped { circuits: circuits(3), links: 0 }));
        assert!(with.contains("<td>3.0</td><td>0.0</td><td>0.0</td>"), "{with}");
        let links = page(Some(Dropped { circuits: None, links: 2 }));
        assert!(links.contains("<td>2.0</td>") && !links.contains("circuits, queue"), "{links}");
        let none = page(Some(Dropped { circuits: circuits(0), links: 0 }));
        assert!(none.contains("circuits and links say that no frame was dropped"), "{none}");
        let unknown = page(None);
        assert!(!unknown.contains("was dropped") && !unknown.contains("were dropped"), "{unknown}");
    }

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

    #[test]
    fn a_swept_property_is_the_axis_also_with_several_numbers_of_queue_pairs() {
        let rest = "[sweep]\nqueue-pairs = [8, 16]\ndelay = ['1ms', '5ms', '10ms']";
        let swept = experiment(&["qp-hash"], rest).form(false);
        let runs: Vec<_> = crate::plan::points(&swept)
            .into_iter()
            .map(|point| {
                let mut run = run("qp-hash", point.queue_pairs.get() as u64, 0, &[3, 1, 2, 2]);
                run.key.point = point;
                run
            })
            .collect();
        let (summary, manifest) = (Summary::new(&swept, &runs), manifest());
        let charts = report_on(&swept, &summary, &manifest).charts();
        let files: Vec<&str> = charts.iter().map(|chart| chart.file.as_str()).collect();
        assert_eq!(
            files,
            [
                "scaleacross-8-queue-pairs-constant-leaf.svg",
                "scaleacross-8-queue-pairs-constant-spine.svg",
                "scaleacross-16-queue-pairs-constant-leaf.svg",
                "scaleacross-16-queue-pairs-constant-spine.svg",
            ]
        );
        for NamedChart { chart, .. } in &charts {
            assert_eq!((&chart.x, chart.x_title.as_str()), (&Axis::Numbers, "delay (ms)"));
            let places: Vec<f64> = chart.series[0].points.iter().map(|mark| mark.x).collect();
            assert_eq!(places, [1.0, 5.0, 10.0], "to scale");
        }
        let one = rest.replace("[8, 16]", "[8]").replace("'1ms', '5ms', '10ms'", "'5ms'");
        let experiment = experiment(&["qp-hash"], &one).form(false);
        let summary = Summary::new(&experiment, &[run("qp-hash", 8, 0, &[3, 1, 2, 2])]);
        let charts = report_on(&experiment, &summary, &manifest).charts();
        assert!(charts.iter().all(|named| named.chart.kind == Kind::Bars), "one value");
    }

    #[test]
    fn of_a_program_only_times_are_shown() {
        let rest = "workload = { command = ['a'] }
            [traffic]\nsites = [['a'], ['b']]\n[sweep]\nqueue-pairs = [1]";
        let experiment = experiment(&["kernel"], rest);
        let page = |bus_bandwidth| {
            let mut run = run("kernel", 1, 0, &[1, 2, 1, 1]);
            run.workload = Some(crate::record::Completion {
                milliseconds: 12.5,
                bus_bandwidth,
                ..Default::default()
            });
            let summary = Summary::new(&experiment, &[run]);
            let manifest = manifest();
            let report = report_on(&experiment, &summary, &manifest);
            let files: Vec<String> = report.charts().into_iter().map(|chart| chart.file).collect();
            (report.page(), files.join(" "))
        };
        let (text, files) = page(0.0);
        assert!(text.contains("starts a program on hosts") && text.contains("12.50"), "{text}");
        for unknown in ["<th>busy</th>", "message p99", "<th>queue pairs</th>"] {
            assert!(!text.contains(unknown), "{unknown}: {text}");
        }
        assert!(!files.contains("bus-bandwidth") && !files.contains("tail"), "{files}");
        assert!(page(5.0).1.contains("bus-bandwidth"));
        assert!(!text.contains("at the floor"), "its flows are not known: {text}");
    }

    #[test]
    fn several_fabrics_are_compared_by_their_number_of_paths() {
        let text = "name = 'x'\ntitle = 't'\nquestion = 'Why?'\nlimits = ['One pair.']
            topologies = ['scaleacross.clab.yml', 'wide.clab.yml']
            dataplane = [{policy = 'kernel'}, {policy = 'qp-hash'}]\n[sweep]\nqueue-pairs = [4, 8]";
        let experiment = Experiment::parse("x.toml".as_ref(), text).unwrap();
        let wide = |queue_pairs| {
            let mut run = run("qp-hash", queue_pairs, 0, &[3, 1, 2, 2, 1, 1, 1, 1]);
            run.key.fabric = "wide".into();
            run
        };
        let runs = [wide(8), run("qp-hash", 8, 0, &[8, 0, 0, 0]), wide(4)];
        let charts = |runs: &[crate::record::Run]| {
            let summary = Summary::new(&experiment, runs);
            let manifest = manifest();
            let report = report_on(&experiment, &summary, &manifest);
            assert_eq!(report.page().contains("by number of paths"), runs.len() > 1);
            report.by_paths()
        };
        assert_eq!(charts(&runs[..1]), [], "one number of paths");
        let [chart] = charts(&runs).try_into().unwrap();
        assert_eq!(
            (chart.file.as_str(), chart.chart.x),
            ("paths-constant-mmr.svg", Axis::Names(vec!["4".into(), "8".into()]))
        );
        // Of 8 queue pairs; there are no runs of kernel VXLAN.
        let points: Vec<Vec<(f64, f64)>> = chart
            .chart
            .series
            .iter()
            .map(|series| series.points.iter().map(|mark| (mark.x, mark.y)).collect())
            .collect();
        assert_eq!(points, [vec![], vec![(0.0, 4.0), (1.0, 2.0)]]);
    }
}
