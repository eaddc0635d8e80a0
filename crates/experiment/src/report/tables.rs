//! The tables of the page.

use std::collections::BTreeSet;

use maud::{Markup, html};

use crate::file::{Experiment, Published};
use crate::record::Arrival;
use crate::role::Role;
use crate::statistics::Statistics;
use crate::summary::{Row, Summary};
use crate::verdict::{self, title};

/// What the columns mean.
pub(super) fn explanation(experiment: &Experiment) -> Markup {
    html! {
        dl {
            @if experiment.is_program() {
                dt { "time" } dd { "the time of an iteration as the program says it: the mean over "
                    "the iterations of a run, and its longest" }
                dt { "bus bandwidth" } dd { "as the program says it" }
            } @else if experiment.workload.is_some() {
                dt { "time" } dd { "the communication time of an iteration: the mean over the "
                    "iterations of a run, and its longest" }
                dt { "bus bandwidth" } dd { "as nccl-tests define it: the rate of each host's link "
                    "that the operation needs" }
                dt { "of roofline" } dd { "the time that the operation needs at the rate that "
                    "“roofline” in the workload states, divided by its time: 1 is the best" }
                dt { "straggler" } dd { "how long the last host ends after the median host" }
                dt { "message p99" } dd { "the 99th percentile of the completion times of the "
                    "messages of an iteration, in the worst iteration of a run; with less than 100 "
                    "messages, that is the slowest one" }
                dt { "resent" } dd { "packets that were sent again, in a run" }
                dt { "timeouts" } dd { "of the local ACK timer, in an iteration of all hosts" }
                dt { "NAK" } dd { "negative acknowledgements, in an iteration of all hosts" }
                dt { "busy" } dd { "the largest busy share of a host's thread: near 1, the machine "
                    "is the limit, not the fabric" }
            }
            dt { "MMR" } dd { "the load of the most loaded link over its tier's mean: 1 is even, "
                "the number of links is the worst; loads count all frames, those of routing "
                "protocols and qp-pin's probes, too, so that little traffic looks more even" }
            dt { "expected" } dd { "the mean MMR of the placement that the policy aims at, "
                "computed: a random hash, or a random hash into a few ports; the mean over the seeds "
                "of the routers' hashes, too, of which this fabric has one set" }
            dt { "floor" } dd { "the smallest possible MMR, because queue pairs are whole; what was "
                "measured may be below it, because acknowledgements and routing packets use all "
                "links; – where queue pairs are not whole, or not known" }
            dt { "Jain" } dd { "Jain's fairness index: 1 is even" }
            dt { "entropy" } dd { "−Σ p log p / log n of the shares p of n links: 1 is even" }
            dt { "range" } dd { "(max − min) / mean of the loads: 0 is even" }
            dt { "gain" } dd { "how much lower the peak load is than with the baseline" }
        }
    }
}

/// Whether the number of queue pairs says something: a program chooses itself what it sends, unless
/// the number is varied for it.
fn has_queue_pairs(rows: &[&Row], program: bool) -> bool {
    let numbers: BTreeSet<_> = rows.iter().map(|row| row.point.queue_pairs).collect();
    !program || numbers.len() > 1
}

/// The results of a workload. `program`: it is a program, of which less is known.
pub(super) fn workload(rows: &[&Row], program: bool) -> Markup {
    let mut last = None;
    let results = |row: &'_ &Row| {
        let own = row.workload.iter().map(|result| ("", result));
        let jobs = row.jobs.iter().map(|(name, result)| (name.as_str(), result));
        own.chain(jobs).map(|(name, result)| (name.to_owned(), result.clone())).collect::<Vec<_>>()
    };
    let roofline = rows.iter().flat_map(results).any(|(_, of)| of.roofline_ratio.is_some());
    let jobs = rows.iter().any(|row| !row.jobs.is_empty());
    let queue_pairs = has_queue_pairs(rows, program);
    html! {
        div class="wide" {
            table {
                caption { "Mean ± half of the confidence interval." }
                thead { tr {
                    @if queue_pairs { th { "queue pairs" } }
                    th class="name" { "variant" }
                    th class="name" { "dataplane" }
                    @if jobs { th class="name" { "job" } }
                    th { "time (ms)" } th { "longest (ms)" }
                    th { "bus bandwidth (Mbit/s)" } @if roofline { th { "of roofline" } }
                    @if !program {
                        th { "straggler (ms)" } th { "message p99 (ms)" } th { "resent" }
                        th { "timeouts" } th { "NAK" } th { "busy" }
                    }
                    th { "runs" }
                } }
                tbody {
                    @for row in rows {
                        @for (job, result) in results(row) {
                            @let first = last.replace(&row.point) != Some(&row.point);
                            tr class=[first.then_some("first")] {
                                @if queue_pairs { td { (row.point.queue_pairs.get()) } }
                                td class="name" { (row.point.variant()) }
                                td class="name" { (title(&row.dataplane)) }
                                @if jobs { td class="name" { (job) } }
                                td { (plus_minus(&result.completion)) }
                                td { (format!("{:.1}", result.worst.mean)) }
                                td { @if result.bus_bandwidth.mean > 0.0 {
                                    (plus_minus(&result.bus_bandwidth)) } }
                                @if roofline {
                                    td { @if let Some(ratio) = result.roofline_ratio {
                                        (format!("{:.2}", ratio.mean)) } }
                                }
                                @if !program {
                                    td { (format!("{:.1}", result.straggler.mean)) }
                                    td { (format!("{:.1}", result.message_p99.mean)) }
                                    td { (counted(result.retransmitted, 0)) }
                                    td { (counted(result.timeouts, 1)) }
                                    td { (counted(result.naks, 1)) }
                                    td { (format!("{:.2}", result.busy.mean)) }
                                }
                                td { (result.completion.count) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A mean with this number of digits; empty if it was not counted.
fn counted(of: Option<Statistics>, digits: usize) -> String {
    of.map(|of| format!("{:.digits$}", of.mean)).unwrap_or_default()
}

pub(super) fn published(published: &[Published], summary: &Summary) -> Markup {
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

/// What a failure costs.
pub(super) fn outage(rows: &[&Row]) -> Markup {
    let time = verdict::milliseconds;
    let hits = rows.iter().any(|row| row.hit.is_some());
    html! {
        div class="wide" {
            table {
                caption { "Time without traffic after the failure, by run: the mean of all queue "
                    "pairs of the failed link; “longest” is the queue pair that waited longest. "
                    "“Median”, “min” and “max” are over the runs, all other times are means over "
                    "them, with half of the confidence interval after ±. "
                    "“Resolution” is the interval of the frames of a queue pair: a queue pair that "
                    "lost one frame counts with it. Frames are those of a run."
                    @if hits { " “Hit iteration” is the iteration of the collective operation "
                        "during which the failure came; “usual” are those before." } }
                thead { tr {
                    th class="name" { "variant" } th class="name" { "dataplane" }
                    th { "median" } th { "mean" } th { "±" } th { "min" } th { "max" }
                    th { "longest" } th { "resolution" }
                    @if hits { th { "hit iteration" } th { "usual" } }
                    th { "lost" } th { "reordered" } th { "of frames" } th { "runs" }
                } }
                tbody {
                    @for row in rows {
                        @if let Some(outage) = row.outage {
                            @let runs = outage.count.max(1) as u64;
                            tr {
                                td class="name" { (row.point.variant()) }
                                td class="name" { (title(&row.dataplane)) }
                                td { (time(outage.median)) } td { (time(outage.mean)) }
                                td { @if outage.half_width.is_finite() { (time(outage.half_width)) } }
                                td { (time(outage.min)) } td { (time(outage.max)) }
                                td { @if let Some(longest) = row.outage_longest {
                                    (time(longest.mean)) } }
                                td { @if let Some(resolution) = row.outage_resolution {
                                    (time(resolution)) } }
                                @if hits {
                                    td { @if let Some(hit) = row.hit {
                                        (time(hit.mean))
                                        @if hit.half_width.is_finite() { " ± " (time(hit.half_width)) }
                                    } }
                                    td { @if let Some(usual) = row.hit_usual {
                                        (time(usual.mean)) } }
                                }
                                td { (arrived(row, |of| of.lost / runs)) }
                                td { (arrived(row, |of| of.reordered / runs)) }
                                td { (row.sent / runs) } td { (outage.count) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A number of frames; empty if they were not counted.
fn arrived(row: &Row, read: impl Fn(Arrival) -> u64) -> String {
    row.arrival.map(|of| read(of).to_string()).unwrap_or_default()
}

/// Where the fabric dropped frames; nothing if it counted none. Nobody counts what a failed link or
/// circuit swallows: the senders' numbers tell it.
pub(super) fn dropped(rows: &[&Row]) -> Markup {
    let failed = match rows.iter().any(|row| row.outage.is_some()) {
        true => " What the failure itself swallowed is not among them: see “lost”.",
        false => "",
    };
    let counted = || rows.iter().flat_map(|row| row.dropped.counted());
    let circuits = rows.iter().any(|row| row.dropped.circuit_lost.is_some());
    html! {
        @if counted().all(|frames| frames == 0.0) {
            @if counted().next().is_some() {
                p class="soft" { "The counters of " @if circuits { "circuits and " }
                    "links say that no frame was dropped there." (failed) }
            }
        } @else {
            div class="wide" {
                table {
                    caption { "Where frames were dropped: frames in a run, of all kinds, also of "
                        "routing protocols; means of the runs in which they were counted. Empty: "
                        "not counted." (failed) }
                    thead { tr {
                        th { "queue pairs" } th class="name" { "variant" }
                        th class="name" { "dataplane" }
                        @if circuits { th { "circuits, at random" } th { "circuits, queue full" } }
                        th { "links" }
                    } }
                    tbody {
                        @for row in rows {
                            tr {
                                td { (row.point.queue_pairs.get()) }
                                td class="name" { (row.point.variant()) }
                                td class="name" { (title(&row.dataplane)) }
                                @if circuits {
                                    td { (frames(row.dropped.circuit_lost)) }
                                    td { (frames(row.dropped.circuit_queue_full)) }
                                }
                                td { (frames(row.dropped.link_dropped)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A mean number of frames; empty if they were not counted.
fn frames(of: Option<f64>) -> String {
    of.map(|of| format!("{of:.1}")).unwrap_or_default()
}

/// How even the load is. `program`: as for [`workload`].
pub(super) fn balance(rows: &[&Row], baseline: &str, program: bool) -> Markup {
    let queue_pairs = has_queue_pairs(rows, program);
    let others = rows.iter().any(|row| row.paths().is_some_and(|tier| tier.role != Role::Leaf));
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let tier = rows.first().and_then(|row| row.paths());
    let (links, role) = tier.map_or((0, "links"), |tier| (tier.links, tier.role.title()));
    let leaf = |row: &Row| row.tiers.iter().find(|tier| tier.role == Role::Leaf).cloned();
    // A workload has no numbered frames.
    let counted = rows.iter().any(|row| row.arrival.is_some());
    let mut last = None;
    html! {
        div class="wide" {
            table {
                caption { "Balance over the " (links) " " (role) ". Mean ± half of the confidence interval. "
                    "Gains are over " (title(baseline)) "." }
                thead { tr {
                    th { (if queue_pairs { "queue pairs" } else { "variant" }) }
                    th class="name" { "dataplane" } th { "MMR" }
                    th { "median" } th { "expected" } th { "floor" } th { "Jain" } th { "entropy" }
                    th { "range" } th { "gain" }
                    @if others { th { "leaf MMR" } th { "leaf gain" } }
                    @if counted { th { "reordered" } th { "lost" } }
                    th { "runs" }
                } }
                tbody {
                    @for row in rows {
                        @let first = last.replace(&row.point) != Some(&row.point);
                        @let number_of_pairs = row.point.queue_pairs.get().to_string();
                        @if let Some(paths) = row.paths() {
                            tr class=[first.then_some("first")] {
                                td { @if first {
                                    @if queue_pairs { (number_of_pairs) " " } (row.point.variant())
                                } }
                                td class="name" { (title(&row.dataplane)) }
                                td { (plus_minus(&paths.mmr)) }
                                td { (format!("{:.2}", paths.mmr.median)) }
                                td { (number(row.expected)) } td { (number(row.floor)) }
                                td { (format!("{:.2}", paths.jain.mean)) }
                                td { (format!("{:.2}", paths.entropy.mean)) }
                                td { (format!("{:.2}", paths.range.mean)) }
                                td { (gain(paths.gain)) }
                                @if others {
                                    td { (number(leaf(row).map(|tier| tier.mmr.mean))) }
                                    td { (gain(leaf(row).and_then(|tier| tier.gain))) }
                                }
                                @if counted {
                                    td { (arrived(row, |of| of.reordered)) }
                                    td { (arrived(row, |of| of.lost)) }
                                }
                                td { (paths.mmr.count) }
                            }
                        }
                    }
                }
            }
        }
    }
}
