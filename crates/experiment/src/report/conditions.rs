//! How it was measured: what was varied, and on what.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::Report;
use crate::record::Discarded;
use crate::summary::Summary;
use crate::verdict;

impl Report<'_> {
    /// What "noise" means in the verdicts.
    pub(super) fn noise(&self) -> String {
        let confidence = self.experiment.repetitions.confidence.get() * 100.0;
        let comparisons = verdict::comparisons(self.experiment, self.summary);
        format!(
            "“Beyond noise” holds for the {comparisons} comparisons that this page may make, with \
             {confidence:.0} % confidence for all of them together (Welch, Bonferroni). The intervals of \
             tables and charts are those of one figure each."
        )
    }

    /// What was varied.
    fn points(&self) -> String {
        let rows = &self.summary.rows;
        let fabrics: BTreeSet<&str> = rows.iter().map(|row| row.fabric.as_str()).collect();
        let numbers: BTreeSet<_> = rows.iter().map(|row| row.point.queue_pairs.get()).collect();
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let form = if self.manifest.quick { "; the full form may have more" } else { "" };
        let fabrics = Vec::from_iter(fabrics).join(", ");
        format!("fabrics {fabrics}; queue pairs {}{form}", numbers.join(", "))
    }

    pub(super) fn conditions(&self) -> Markup {
        let Self { experiment, summary, manifest, .. } = self;
        let machine = &manifest.machine;
        let gib = machine.memory_mib as f64 / 1024.0;
        html! {
            dl {
                dt { "Machine" }
                dd { (machine.cpu_model) ", " (machine.cpus) " CPUs, " (format!("{gib:.0}"))
                    " GiB; Linux " (machine.kernel) "; FRR " (manifest.frr) }
                @if !manifest.others.is_empty() {
                    dt { "Other machines" }
                    dd {
                        @for other in &manifest.others {
                            (other.cpu_model) ", " (other.cpus) " CPUs; Linux " (other.kernel) ". "
                        }
                        "Each ran all dataplanes of its repetitions (--shard)."
                    }
                }
                @if manifest.deployed {
                    dt { "Fabric" } dd { "already up before (--deployed), and left up" }
                }
                dt { "Commit" } dd { code { (manifest.commit) } }
                dt { "Programs" }
                dd {
                    @for (name, sum) in &manifest.programs { (name) " " code { (sum) } " " }
                    "(SHA-256)"
                }
                dt { "Varied" }
                dd { (self.points()) }
                dt { "Seed" }
                dd { (experiment.seed) " for queue pair numbers, the seeds of vtepd's hashes and the "
                    "order of the runs. A repetition has the same with every dataplane." }
                @if let Some(workload) = &experiment.workload {
                    dt { "Workload" } dd { code { (workload.get_ref()) } }
                } @else {
                    dt { "Traffic" }
                    dd {
                        @if experiment.has_failures() {
                            "frames of 1,024 bytes until traffic flows again after the failure"
                        } @else {
                            (experiment.traffic.frames) " frames of 1,024 bytes for each queue "
                            "pair and run"
                        }
                        ", " (experiment.traffic.rate) " frames a second in all"
                    }
                }
                dt { "CPU" }
                dd { (format!("{:.0}", summary.busy * 100.0)) " % busy on average; "
                    (format!("{:.0}", summary.slow * 100.0))
                    " % of the runs were slower than required" }
                dt { "Repeated runs" }
                dd { (summary.repeated) " of " (summary.runs) (reasons(summary)) }
            }
            p { "Dataplanes take turns in an order that the seed decides, so that a change of the "
                "machine meets all of them." }
            p { "Repeat it:" }
            pre { (self.command) }
            p class="soft" { "Files beside this page: runs.jsonl (all that is known about each "
                "run), runs.csv, links.csv, summary.csv, the charts (*.svg), manifest.json, and the "
                "experiment file with its topologies and the files of their routers: "
                code { "lab run experiment.toml --out DIR" } " repeats it from them." }
        }
    }
}

/// Why runs were repeated.
fn reasons(summary: &Summary) -> String {
    let reason = |(of, number): &(Discarded, usize)| match number {
        1 => of.reason.clone(),
        number => format!("{} ({number} times)", of.reason),
    };
    let reasons: Vec<String> = summary.discarded.iter().map(reason).collect();
    if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
}
