//! The page with the results of a simulation. It needs no other file.

use std::collections::BTreeSet;

use experiment::plot::{self, Axis, Chart, Kind, Mark, Series};
use experiment::report::{STYLE, document, verdict_list};
use experiment::verdict::Verdict;
use maud::{Markup, html};
use sim::file::File;

use super::{Plan, Row};

/// What the page is made of.
pub(super) struct Report<'a> {
    pub(super) plan: &'a Plan,
    pub(super) summary: &'a [Row],
    pub(super) verdicts: &'a [Verdict],
    pub(super) command: &'a str,
}

const METHOD: &str = "A simulator of packets, in integer picoseconds: queues with ECN and trimming, \
    store and forward, a transport with NSCC, selective acknowledgements and answers to trimmed \
    packets. A seed makes the traffic and all random choices, and has the same traffic with every \
    scheme. All times are in microseconds of simulated time.";

impl Report<'_> {
    pub(super) fn page(&self) -> String {
        let Some(file) = self.plan.cases.first().map(|case| &case.file) else {
            return String::new();
        };
        document(&file.title, &[STYLE, plot::STYLE], &self.body(file))
    }

    fn body(&self, file: &File) -> Markup {
        let runs: usize = self.summary.iter().map(|row| row.seeds).sum();
        let chart = self.chart();
        html! {
            h1 { (file.title) }
            p { (file.question) }
            p class="soft" { (runs) " runs, " (file.seeds) " seeds for each case and scheme" }
            h2 { "What follows" }
            (verdict_list(self.verdicts))
            h2 { "Simulated" }
            p { (METHOD) }
            figure {
                (chart.element())
                figcaption { (chart.title) ". Bars: confidence interval of the mean." }
            }
            @for case in self.cases() { h3 { (case) } (self.table(case)) }
            h3 { "Columns" }
            dl {
                dt { "end" } dd { "when the last flow ends: mean, least and most over the seeds" }
                dt { "flow" } dd { "the time of a flow: mean, and the 99th percentile" }
                dt { "resent" } dd { "packets that were sent again, in a run" }
                dt { "ACKs, NACKs" } dd { "acknowledgements, and answers to trimmed packets" }
                dt { "probes" } dd { "questions after a timeout while the window was full" }
                dt { "MMR" } dd { "the load of the most loaded link over its tier's mean: 1 is even" }
            }
            @if !file.limits.is_empty() {
                h2 { "Limits" }
                ul { @for limit in &file.limits { li { (limit) } } }
            }
            h2 { "How it was simulated" }
            pre { (self.plan.text) }
            p { "Repeat it:" }
            pre { (self.command) }
            p class="soft" { "Files beside this page: results.jsonl (a line for each run), "
                "summary.json, and simulation.toml with its traffic matrices." }
        }
    }

    fn cases(&self) -> BTreeSet<&str> {
        self.summary.iter().map(|row| row.case.as_str()).collect()
    }

    fn chart(&self) -> Chart {
        let cases: Vec<&str> = self.cases().into_iter().collect();
        let mut schemes: Vec<&str> = Vec::new();
        for row in self.summary {
            if !schemes.contains(&row.scheme.as_str()) {
                schemes.push(&row.scheme);
            }
        }
        let point = |scheme: &str, case: &str| {
            let own = |row: &&Row| row.case == case && row.scheme == scheme;
            let end = self.summary.iter().find(own)?.completion_us?;
            Some((end.mean, end.half_width))
        };
        let series = |scheme: &&str| Series {
            name: (*scheme).to_owned(),
            points: Mark::at_names(cases.iter().map(|case| point(scheme, case))),
            reference: false,
        };
        // What all cases have in common says nothing.
        let shown =
            |case: &&str| case.split_once('/').map_or(*case, |(_, varied)| varied).to_owned();
        Chart {
            title: "End of the last flow, by scheme".to_owned(),
            x_title: "case".to_owned(),
            y_title: "µs".to_owned(),
            x: Axis::Names(cases.iter().map(shown).collect()),
            bottom: 0.0,
            logarithmic: false,
            kind: Kind::Bars,
            series: schemes.iter().map(series).collect(),
        }
    }

    fn table(&self, case: &str) -> Markup {
        let rows: Vec<&Row> = self.summary.iter().filter(|row| row.case == case).collect();
        let groups: BTreeSet<&String> =
            rows.iter().flat_map(|row| row.times_us.keys()).filter(|name| *name != "fct").collect();
        let tiers: BTreeSet<&String> = rows.iter().flat_map(|row| row.mmr.keys()).collect();
        html! {
            div class="wide" {
                table {
                    thead { tr {
                        th class="name" { "scheme" } th { "end" } th { "least–most" } th { "flow" }
                        th { "p99" }
                        @for group in &groups { th { "last " (group.trim_start_matches("fct-")) } }
                        th { "resent" } th { "ACKs" } th { "NACKs" } th { "probes" }
                        @for tier in &tiers { th { "MMR " (tier) } }
                    } }
                    tbody { @for row in rows { tr {
                        td class="name" { (row.scheme) }
                        @if let Some(end) = &row.completion_us {
                            td { (format!("{:.1}", end.mean)) }
                            td { (format!("{:.1}–{:.1}", end.min, end.max)) }
                        } @else {
                            td { "not finished" } td { "" }
                        }
                        @let all = row.times_us.get("fct").copied().unwrap_or_default();
                        td { (format!("{:.1}", all[0])) } td { (format!("{:.1}", all[1])) }
                        @for group in &groups {
                            @let last = row.times_us.get(*group).map(|of| format!("{:.1}", of[2]));
                            td { (last.unwrap_or_default()) }
                        }
                        td { (format!("{:.0}", row.retransmitted)) }
                        td { (format!("{:.0}", row.acks)) } td { (format!("{:.0}", row.nacks)) }
                        td { (format!("{:.0}", row.timeouts_rts)) }
                        @for tier in &tiers {
                            td { (row.mmr.get(*tier).map_or(String::new(), |of| format!("{of:.3}"))) }
                        }
                    } } }
                }
            }
        }
    }
}
