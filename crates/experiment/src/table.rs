//! CSV files (RFC 4180).

use std::collections::BTreeMap;

use crate::record::{Arrival, Run};
use crate::summary::Summary;

/// A field, in quotes if it needs them.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A table with [`KEY`] and these columns.
fn keyed(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    lines(&[&KEY, columns].concat(), rows)
}

fn lines(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let header = header.iter().map(|name| (*name).to_owned()).collect();
    let line = |fields: Vec<String>| {
        fields.iter().map(|text| field(text)).collect::<Vec<_>>().join(",") + "\n"
    };
    std::iter::once(header).chain(rows).map(line).collect()
}

/// One line for each link of each run: `links.csv`.
#[must_use]
pub fn links(runs: &[Run]) -> String {
    let header = ["tier", "link", "frames"];
    let rows = runs.iter().flat_map(|run| {
        let tiers = run.tiers.iter();
        let links = tiers.flat_map(|tier| tier.links.iter().map(move |link| (tier.role, link)));
        links.map(|(role, (link, frames))| {
            let mut line = key(run);
            line.extend([role.name().to_owned(), link.clone(), frames.to_string()]);
            line
        })
    });
    keyed(&header, rows)
}

/// The columns of [`key`].
const KEY: [&str; 7] =
    ["fabric", "dataplane", "queue_pairs", "inner_port", "variant", "repetition", "seed"];

/// What identifies a run.
fn key(run: &Run) -> Vec<String> {
    let key = &run.key;
    vec![
        key.fabric.clone(),
        key.dataplane.clone(),
        key.point.queue_pairs.get().to_string(),
        key.point.inner_port.to_string(),
        key.point.variant().to_owned(),
        key.repetition.to_string(),
        key.seed.to_string(),
    ]
}

/// One line for each run: `runs.csv`.
#[must_use]
pub fn runs(runs: &[Run]) -> String {
    let header = [
        "unix_time",
        "mmr",
        "sent",
        "lost",
        "reordered",
        "duplicated",
        "seconds",
        "busy",
        "attempts",
        "repeated_because",
        "outage_ms",
        "outage_longest_ms",
        "outage_resolution_ms",
        "hit_ms",
        "usual_ms",
        "completion_ms",
        "worst_ms",
        "bus_mbps",
        "message_p99_ms",
        "straggler_ms",
        "roofline_ratio",
        "fullest_circuit",
        "retransmitted",
    ];
    let header = [header.as_slice(), &COUNTERS].concat();
    let rows = runs.iter().map(|run| {
        let mut line = key(run);
        line.extend([run.unix_time.to_string(), format!("{:.4}", run.mmr())]);
        line.push(run.sent.to_string());
        line.extend(arrival(run.arrival, [|of| of.lost, |of| of.reordered, |of| of.duplicated]));
        line.extend([format!("{:.4}", run.seconds), format!("{:.3}", run.busy)]);
        let reasons: Vec<&str> = run.discarded.iter().map(|of| of.reason.as_str()).collect();
        line.extend([(reasons.len() + 1).to_string(), reasons.join("; ")]);
        let result = run.workload.as_ref();
        let times = [
            run.outage,
            run.outage_longest,
            run.outage_resolution,
            run.hit.map(|hit| hit.milliseconds),
            run.hit.map(|hit| hit.usual),
            result.map(|result| result.milliseconds),
            result.map(|result| result.worst),
            result.map(|result| result.bus_bandwidth),
            result.map(|result| result.message_p99),
            result.map(|result| result.straggler),
            result.and_then(|result| result.roofline_ratio),
            run.full,
        ];
        line.extend(times.map(|time| time.map(|time| format!("{time:.3}")).unwrap_or_default()));
        line.push(result.map(|result| result.retransmitted.to_string()).unwrap_or_default());
        line.extend(counters(result.map(|result| &result.counters)));
        line
    });
    keyed(&header, rows)
}

/// Numbers of how frames arrived; empty if they were not counted.
fn arrival<const N: usize>(of: Option<Arrival>, read: [fn(&Arrival) -> u64; N]) -> [String; N] {
    read.map(|read| of.map(|of| read(&of).to_string()).unwrap_or_default())
}

/// The counters in [`runs`] and [`iterations`].
const COUNTERS: [&str; 5] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
];

/// The values of [`COUNTERS`]; empty without a workload.
fn counters(of: Option<&BTreeMap<String, u64>>) -> impl Iterator<Item = String> {
    let value = move |name| of.map(|of| of.get(name).copied().unwrap_or_default().to_string());
    COUNTERS.into_iter().map(move |name| value(name).unwrap_or_default())
}

/// One line for each iteration of the workload of each run: `iterations.csv`.
#[must_use]
pub fn iterations(runs: &[Run]) -> String {
    let header = [
        "iteration",
        "completion_ms",
        "straggler",
        "straggler_ms",
        "messages",
        "message_p50_ms",
        "message_p99_ms",
        "message_p999_ms",
        "message_max_ms",
        "retransmitted",
    ];
    let header = [header.as_slice(), &COUNTERS].concat();
    let all = runs.iter().flat_map(|run| {
        let each = run.workload.iter().flat_map(|of| &of.each).enumerate();
        each.map(move |each| (run, each))
    });
    let rows = all.map(|(run, (at, of))| {
        let mut line = key(run);
        let time = |time: f64| format!("{time:.3}");
        line.extend([at.to_string(), time(of.milliseconds), of.straggler.clone(), time(of.behind)]);
        line.push(of.messages.to_string());
        line.extend([of.p50, of.p99, of.p999, of.max].map(time));
        let resent = of.counters.get("retransmitted_packets").copied().unwrap_or_default();
        line.push(resent.to_string());
        line.extend(counters(Some(&of.counters)));
        line
    });
    keyed(&header, rows)
}

/// One line for each job beside the workload and each run: `jobs.csv`.
#[must_use]
pub fn jobs(runs: &[Run]) -> String {
    let header = [
        "job",
        "iterations",
        "completion_ms",
        "worst_ms",
        "bus_mbps",
        "message_p99_ms",
        "straggler_ms",
        "roofline_ratio",
        "retransmitted",
    ];
    let jobs = runs.iter().flat_map(|run| run.jobs.iter().map(move |job| (run, job)));
    let rows = jobs.map(|(run, (name, result))| {
        let mut line = key(run);
        line.extend([name.clone(), result.iterations.to_string()]);
        let values = [result.milliseconds, result.worst, result.bus_bandwidth, result.message_p99];
        line.extend(values.map(|value| format!("{value:.3}")));
        line.push(format!("{:.3}", result.straggler));
        line.push(result.roofline_ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default());
        line.push(result.retransmitted.to_string());
        line
    });
    keyed(&header, rows)
}

/// The columns of [`summary`].
const SUMMARY: [&str; 37] = [
    "fabric",
    "queue_pairs",
    "inner_port",
    "variant",
    "dataplane",
    "tier",
    "links",
    "repetitions",
    "mmr_mean",
    "mmr_half_width",
    "mmr_median",
    "mmr_min",
    "mmr_max",
    "mmr_expected",
    "mmr_floor",
    "jain_mean",
    "entropy_mean",
    "range_mean",
    "peak_gain",
    "peak_gain_half_width",
    "lost",
    "reordered",
    "outage_ms_mean",
    "outage_ms_half_width",
    "outage_longest_ms_mean",
    "outage_resolution_ms",
    "hit_ms_mean",
    "hit_ms_half_width",
    "usual_ms_mean",
    "completion_ms_mean",
    "completion_ms_half_width",
    "bus_mbps_mean",
    "bus_mbps_half_width",
    "straggler_ms_mean",
    "roofline_ratio_mean",
    "message_p99_ms_mean",
    "retransmitted_mean",
];

/// One line for each tier, dataplane and point: `summary.csv`. Half widths are those of the
/// confidence interval of the mean.
#[must_use]
pub fn summary(summary: &Summary) -> String {
    let number = |value: f64| format!("{value:.4}");
    let maybe = |value: Option<f64>| value.map(number).unwrap_or_default();
    let rows = summary.rows.iter().flat_map(|row| {
        row.tiers.iter().enumerate().map(move |(at, tier)| {
            let widest = at == row.widest;
            let [lost, reordered] = arrival(row.arrival, [|of| of.lost, |of| of.reordered]);
            vec![
                row.fabric.clone(),
                row.point.queue_pairs.get().to_string(),
                row.point.inner_port.to_string(),
                row.point.variant().to_owned(),
                row.dataplane.clone(),
                tier.role.name().to_owned(),
                tier.links.to_string(),
                tier.mmr.count.to_string(),
                number(tier.mmr.mean),
                number(tier.mmr.half_width),
                number(tier.mmr.median),
                number(tier.mmr.min),
                number(tier.mmr.max),
                maybe(row.expected.filter(|_| widest)),
                maybe(Some(row.floor).filter(|_| widest)),
                number(tier.jain.mean),
                number(tier.entropy.mean),
                number(tier.range.mean),
                maybe(tier.gain.map(|(gain, _)| gain)),
                maybe(tier.gain.map(|(_, half)| half)),
                lost,
                reordered,
                maybe(row.outage.map(|outage| outage.mean)),
                maybe(row.outage.map(|outage| outage.half_width)),
                maybe(row.outage_longest.map(|longest| longest.mean)),
                maybe(row.outage_resolution),
                maybe(row.hit.map(|hit| hit.mean)),
                maybe(row.hit.map(|hit| hit.half_width)),
                maybe(row.hit_usual.map(|usual| usual.mean)),
                maybe(row.workload.as_ref().map(|row| row.completion.mean)),
                maybe(row.workload.as_ref().map(|row| row.completion.half_width)),
                maybe(row.workload.as_ref().map(|row| row.bus_bandwidth.mean)),
                maybe(row.workload.as_ref().map(|row| row.bus_bandwidth.half_width)),
                maybe(row.workload.as_ref().map(|row| row.straggler.mean)),
                maybe(row.workload.as_ref().and_then(|row| Some(row.roofline_ratio?.mean))),
                maybe(row.workload.as_ref().map(|row| row.message_p99.mean)),
                maybe(row.workload.as_ref().map(|row| row.retransmitted.mean)),
            ]
        })
    });
    lines(&SUMMARY, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use crate::record::tests::run;
    use crate::record::{Completion, Iteration};

    #[test]
    fn every_line_has_the_fields_of_the_header() {
        let mut all = vec![run("kernel", 8, 0, &[8, 0, 0, 0]), run("b", 8, 1, &[2, 2, 2, 2])];
        all[1].tiers[0].links.insert("a,\"b\"".into(), 4);
        let text = "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['scaleacross.clab.yml']
            dataplane = [{policy = 'kernel'}, {policy = 'b'}]\n[sweep]\nqueue-pairs = [8]";
        let experiment = Experiment::parse("x.toml".as_ref(), text).unwrap();
        let counters = BTreeMap::from([
            ("packet_seq_err".to_owned(), 7),
            ("retransmitted_packets".to_owned(), 9),
        ]);
        let iteration = |milliseconds, counters| Iteration {
            milliseconds,
            straggler: "host2".into(),
            p999: 0.25,
            counters,
            ..Iteration::default()
        };
        all[0].workload = Some(Completion {
            roofline_ratio: Some(0.875),
            straggler: 1.5,
            each: vec![iteration(2.0, counters.clone()), iteration(3.0, BTreeMap::new())],
            counters,
            ..Completion::default()
        });
        all[0].arrival = None;
        let each = iterations(&all);
        assert_eq!(each.lines().count(), 3, "{each}");
        let first = ",0,2.000,host2,0.000,0,0.000,0.000,0.250,0.000,9,0,7,0,0,0\n";
        assert!(each.contains(first), "{each}");
        assert!(runs(&all).contains(",1.500,0.875,,0,0,7,0,0,0\n"), "{}", runs(&all));
        // Of the first, no losses were counted; of the second, none was lost.
        let counted = |line: usize| runs(&all).lines().nth(line).unwrap().to_owned();
        assert!(counted(1).contains(",8,,,,0.1000,"), "{}", counted(1));
        assert!(counted(2).contains(",8,0,0,0,0.1000,"), "{}", counted(2));
        let summarised = summary(&Summary::new(&experiment, &all));
        assert!(summarised.contains(",1.5000,0.8750,"), "{summarised}");
        for (table, count) in [(runs(&all), 3), (summarised.clone(), 5), (each, 3)] {
            let fields: Vec<usize> = table.lines().map(|line| line.split(',').count()).collect();
            assert_eq!(fields.len(), count, "{table}");
            assert!(fields.iter().all(|number| *number == fields[0]), "{table}");
        }
        assert!(summarised.contains("kernel,spine,4,1,4.0000,inf,"), "{summarised}");
        let links = links(&all);
        assert_eq!(links.lines().count(), 1 + 6 + 7, "{links}");
        assert!(links.contains("leaf,\"a,\"\"b\"\"\",4"), "{links}");
    }
}
