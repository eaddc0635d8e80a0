//! CSV files (RFC 4180).

use std::collections::BTreeMap;

use crate::record::{Arrival, CircuitDrops, Completion, Iteration, Moved, QueuePair, Run};
use crate::role::Role;
use crate::summary::{Row, Summary, TierRow, WorkloadRow};

/// A column: its name, and its field in a row. The field is also given the name.
type Column<T> = (&'static str, fn(&T, &str) -> String);
/// What belongs to a run: a link, an iteration or a job, for example.
type Of<'a, T> = (&'a Run, T);
/// The tier, the name and the frames of a link.
type Link<'a> = (Role, (&'a String, &'a u64));

/// A field, in quotes if it needs them.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A table with a line for each row.
fn table<T>(columns: &[Column<T>], rows: impl Iterator<Item = T>) -> String {
    let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let fields = |row: T| columns.iter().map(|(name, read)| read(&row, name)).collect();
    let line = |fields: Vec<String>| {
        fields.iter().map(|text| field(text)).collect::<Vec<_>>().join(",") + "\n"
    };
    std::iter::once(header).chain(rows.map(fields)).map(line).collect()
}

/// A table whose first columns identify the run.
fn keyed<'a, T>(columns: &[Column<Of<'a, T>>], rows: impl Iterator<Item = Of<'a, T>>) -> String {
    let key: [Column<Of<'a, T>>; 7] = [
        ("fabric", |(run, _), _| run.key.fabric.clone()),
        ("dataplane", |(run, _), _| run.key.dataplane.clone()),
        ("queue_pairs", |(run, _), _| run.key.point.queue_pairs.get().to_string()),
        ("inner_port", |(run, _), _| run.key.point.inner_port.to_string()),
        ("variant", |(run, _), _| run.key.point.variant().to_owned()),
        ("repetition", |(run, _), _| run.key.repetition.to_string()),
        ("seed", |(run, _), _| run.key.seed.to_string()),
    ];
    table(&[key.as_slice(), columns].concat(), rows)
}

/// The columns of the counters of a workload.
fn counters<T>(read: fn(&T, &str) -> String) -> [Column<T>; 5] {
    [
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "np_ecn_marked_roce_packets",
        "rp_cnp_handled",
    ]
    .map(|name| (name, read))
}

/// A counter; empty if nothing was counted.
fn counter(of: &BTreeMap<String, u64>, name: &str) -> String {
    match of.is_empty() {
        true => String::new(),
        false => of.get(name).copied().unwrap_or_default().to_string(),
    }
}

/// Milliseconds or a ratio; empty if it was not measured.
fn thousandths(value: impl Into<Option<f64>>) -> String {
    value.into().map(|value| format!("{value:.3}")).unwrap_or_default()
}

/// As [`thousandths`], for the summary.
fn mean(value: impl Into<Option<f64>>) -> String {
    value.into().map(|value| format!("{value:.4}")).unwrap_or_default()
}

/// A mean of the row's workload.
fn workload(row: &Row, read: fn(&WorkloadRow) -> Option<f64>) -> String {
    mean(row.workload.as_ref().and_then(read))
}

/// A time or rate of a workload that a program of the user did not tell.
fn told(of: Option<&Completion>, read: fn(&Completion) -> f64) -> String {
    let is_told = |value: &f64| *value != 0.0 || of.is_some_and(|of| !of.counters.is_empty());
    thousandths(of.map(read).filter(is_told))
}

/// As [`told`], of an iteration.
fn told_of(of: &Iteration, read: fn(&Iteration) -> f64) -> String {
    thousandths(Some(read(of)).filter(|_| !of.counters.is_empty()))
}

/// How many frames arrived like this; empty if they were not counted.
fn arrived(of: Option<Arrival>, read: fn(Arrival) -> u64) -> String {
    of.map(|of| read(of).to_string()).unwrap_or_default()
}

/// How many frames circuits dropped like this; empty if they were not counted.
fn circuits(run: &Run, read: fn(CircuitDrops) -> u64) -> String {
    let counted = run.dropped.and_then(|of| of.circuits);
    counted.map(|of| read(of).to_string()).unwrap_or_default()
}

/// Packets that were sent again; empty if they were not counted.
fn resent(of: &Completion) -> String {
    match of.counters.is_empty() {
        true => String::new(),
        false => of.retransmitted.to_string(),
    }
}

/// One line for each link of each run: `links.csv`.
#[must_use]
pub fn links(runs: &[Run]) -> String {
    let rows = runs.iter().flat_map(|run| {
        let tiers = run.tiers.iter();
        tiers.flat_map(move |tier| tier.links.iter().map(move |link| (run, (tier.role, link))))
    });
    let columns: [Column<Of<'_, Link<'_>>>; 3] = [
        ("tier", |(_, (role, _)), _| role.name().to_owned()),
        ("link", |(_, (_, (link, _))), _| (*link).clone()),
        ("frames", |(_, (_, (_, frames))), _| frames.to_string()),
    ];
    keyed(&columns, rows)
}

/// One line for each queue pair of the numbered frames of each run: `queue-pairs.csv`. What was not
/// counted is empty.
#[must_use]
pub fn queue_pairs(runs: &[Run]) -> String {
    let columns: [Column<Of<'_, &QueuePair>>; 9] = [
        ("queue_pair", |(_, pair), _| format!("{:#x}", pair.number)),
        ("path", |(_, pair), _| pair.path.clone().unwrap_or_default()),
        ("sent", |(_, pair), _| pair.sent.to_string()),
        ("lost", |(_, pair), _| pair.lost.to_string()),
        ("reordered", |(_, pair), _| pair.reordered.to_string()),
        ("outage_ms", |(_, pair), _| thousandths(pair.outage)),
        ("outage_resolution_ms", |(run, pair), _| {
            thousandths((pair.sent > 0).then_some(run.seconds * 1e3 / pair.sent as f64))
        }),
        ("bytes", |(_, pair), _| pair.bytes.to_string()),
        ("moves", |(_, pair), _| pair.moves.map(|moves| moves.to_string()).unwrap_or_default()),
    ];
    keyed(&columns, runs.iter().flat_map(|run| run.pairs.iter().map(move |pair| (run, pair))))
}

/// One line for each move of a queue pair to another link: `moves.csv`. Times are those since
/// the failure, or since the first frame.
#[must_use]
pub fn moves(runs: &[Run]) -> String {
    let columns: [Column<Of<'_, &Moved>>; 4] = [
        ("queue_pair", |(_, of), _| format!("{:#x}", of.queue_pair)),
        ("ms", |(run, of), _| {
            let failure = run.timeline.as_ref().and_then(|of| of.failure);
            thousandths(of.at - failure.unwrap_or_default())
        }),
        ("from", |(_, of), _| of.from.clone()),
        ("to", |(_, of), _| of.to.clone()),
    ];
    keyed(&columns, runs.iter().flat_map(|run| run.moved.iter().map(move |of| (run, of))))
}

/// One line for each 10 ms of each run: `timeline.csv`. A failure begins in the bin at 0; without
/// one, that is the first.
#[must_use]
pub fn timeline(runs: &[Run]) -> String {
    let columns: [Column<Of<'_, (i64, u64, u64)>>; 3] = [
        ("ms", |(_, (time, ..)), _| time.to_string()),
        ("sent", |(_, (_, sent, _)), _| sent.to_string()),
        ("arrived", |(_, (.., arrived)), _| arrived.to_string()),
    ];
    let bins = |run: &'_ Run| run.timeline.iter().flat_map(|of| of.bins()).collect::<Vec<_>>();
    keyed(&columns, runs.iter().flat_map(|run| bins(run).into_iter().map(move |bin| (run, bin))))
}

/// One line for each run: `runs.csv`.
#[must_use]
pub fn runs(runs: &[Run]) -> String {
    let columns: [Column<Of<'_, Option<&Completion>>>; 26] = [
        ("unix_time", |(run, _), _| run.unix_time.to_string()),
        ("mmr", |(run, _), _| mean(run.mmr())),
        // A program does not tell what it sent.
        ("sent", |(run, of), _| {
            match of.is_some_and(|of| of.counters.is_empty()) && run.sent == 0 {
                true => String::new(),
                false => run.sent.to_string(),
            }
        }),
        ("lost", |(run, _), _| arrived(run.arrival, |of| of.lost)),
        ("reordered", |(run, _), _| arrived(run.arrival, |of| of.reordered)),
        ("duplicated", |(run, _), _| arrived(run.arrival, |of| of.duplicated)),
        ("seconds", |(run, _), _| mean(run.seconds)),
        ("busy", |(run, _), _| thousandths(run.busy)),
        ("attempts", |(run, _), _| (run.discarded.len() + 1).to_string()),
        ("repeated_because", |(run, _), _| {
            run.discarded.iter().map(|of| of.reason.as_str()).collect::<Vec<_>>().join("; ")
        }),
        ("outage_ms", |(run, _), _| thousandths(run.outage)),
        ("outage_longest_ms", |(run, _), _| thousandths(run.outage_longest)),
        ("outage_resolution_ms", |(run, _), _| thousandths(run.outage_resolution)),
        ("hit_ms", |(run, _), _| thousandths(run.hit.map(|hit| hit.milliseconds))),
        ("usual_ms", |(run, _), _| thousandths(run.hit.map(|hit| hit.usual))),
        ("completion_ms", |(_, of), _| thousandths(of.map(|of| of.milliseconds))),
        ("worst_ms", |(_, of), _| thousandths(of.map(|of| of.worst))),
        ("bus_mbps", |(_, of), _| told(*of, |of| of.bus_bandwidth)),
        ("message_p99_ms", |(_, of), _| told(*of, |of| of.message_p99)),
        ("straggler_ms", |(_, of), _| told(*of, |of| of.straggler)),
        ("roofline_ratio", |(_, of), _| thousandths(of.and_then(|of| of.roofline_ratio))),
        ("fullest_circuit", |(run, _), _| thousandths(run.full)),
        ("circuit_lost", |(run, _), _| circuits(run, |of| of.lost)),
        ("circuit_queue_full", |(run, _), _| circuits(run, |of| of.queue_full)),
        ("link_dropped", |(run, _), _| {
            run.dropped.map(|of| of.links.to_string()).unwrap_or_default()
        }),
        ("retransmitted", |(_, of), _| of.map(resent).unwrap_or_default()),
    ];
    let counters = counters(|(_, of): &Of<'_, Option<&Completion>>, name| {
        of.map(|of| counter(&of.counters, name)).unwrap_or_default()
    });
    let rows = runs.iter().map(|run| (run, run.workload.as_ref()));
    keyed(&[columns.as_slice(), &counters].concat(), rows)
}

/// One line for each iteration of the workload of each run: `iterations.csv`.
#[must_use]
pub fn iterations(runs: &[Run]) -> String {
    let columns: [Column<Of<'_, (usize, &Iteration)>>; 10] = [
        ("iteration", |(_, (at, _)), _| at.to_string()),
        ("completion_ms", |(_, (_, of)), _| thousandths(of.milliseconds)),
        ("straggler", |(_, (_, of)), _| of.straggler.clone()),
        ("straggler_ms", |(_, (_, of)), _| told_of(of, |of| of.behind)),
        ("messages", |(_, (_, of)), _| match of.counters.is_empty() {
            true => String::new(),
            false => of.messages.to_string(),
        }),
        ("message_p50_ms", |(_, (_, of)), _| told_of(of, |of| of.p50)),
        ("message_p99_ms", |(_, (_, of)), _| told_of(of, |of| of.p99)),
        ("message_p999_ms", |(_, (_, of)), _| told_of(of, |of| of.p999)),
        ("message_max_ms", |(_, (_, of)), _| told_of(of, |of| of.max)),
        ("retransmitted", |(_, (_, of)), _| counter(&of.counters, "retransmitted_packets")),
    ];
    let counters =
        counters(|(_, (_, of)): &Of<'_, (usize, &Iteration)>, name| counter(&of.counters, name));
    let rows = runs.iter().flat_map(|run| {
        let each = run.workload.iter().flat_map(|of| &of.each).enumerate();
        each.map(move |each| (run, each))
    });
    keyed(&[columns.as_slice(), &counters].concat(), rows)
}

/// One line for each job beside the workload and each run: `jobs.csv`.
#[must_use]
pub fn jobs(runs: &[Run]) -> String {
    let columns: [Column<Of<'_, (&String, &Completion)>>; 9] = [
        ("job", |(_, (name, _)), _| (*name).clone()),
        ("iterations", |(_, (_, of)), _| of.iterations.to_string()),
        ("completion_ms", |(_, (_, of)), _| thousandths(of.milliseconds)),
        ("worst_ms", |(_, (_, of)), _| thousandths(of.worst)),
        ("bus_mbps", |(_, (_, of)), _| thousandths(of.bus_bandwidth)),
        ("message_p99_ms", |(_, (_, of)), _| thousandths(of.message_p99)),
        ("straggler_ms", |(_, (_, of)), _| thousandths(of.straggler)),
        ("roofline_ratio", |(_, (_, of)), _| thousandths(of.roofline_ratio)),
        ("retransmitted", |(_, (_, of)), _| resent(of)),
    ];
    keyed(&columns, runs.iter().flat_map(|run| run.jobs.iter().map(move |job| (run, job))))
}

/// One line for each tier, dataplane and point: `summary.csv`. Half widths are those of the
/// confidence interval of the mean.
#[must_use]
pub fn summary(summary: &Summary) -> String {
    let columns: [Column<(&Row, usize, &TierRow)>; 42] = [
        ("fabric", |(row, ..), _| row.fabric.clone()),
        ("queue_pairs", |(row, ..), _| row.point.queue_pairs.get().to_string()),
        ("inner_port", |(row, ..), _| row.point.inner_port.to_string()),
        ("variant", |(row, ..), _| row.point.variant().to_owned()),
        ("dataplane", |(row, ..), _| row.dataplane.clone()),
        ("tier", |(.., tier), _| tier.role.name().to_owned()),
        ("links", |(.., tier), _| tier.links.to_string()),
        ("repetitions", |(.., tier), _| tier.mmr.count.to_string()),
        ("mmr_mean", |(.., tier), _| mean(tier.mmr.mean)),
        ("mmr_half_width", |(.., tier), _| mean(tier.mmr.half_width)),
        ("mmr_median", |(.., tier), _| mean(tier.mmr.median)),
        ("mmr_min", |(.., tier), _| mean(tier.mmr.min)),
        ("mmr_max", |(.., tier), _| mean(tier.mmr.max)),
        ("mmr_expected", |(row, at, _), _| mean(row.expected.filter(|_| *at == row.widest))),
        ("mmr_floor", |(row, at, _), _| mean(row.floor.filter(|_| *at == row.widest))),
        ("jain_mean", |(.., tier), _| mean(tier.jain.mean)),
        ("entropy_mean", |(.., tier), _| mean(tier.entropy.mean)),
        ("range_mean", |(.., tier), _| mean(tier.range.mean)),
        ("peak_gain", |(.., tier), _| mean(tier.gain.map(|(gain, _)| gain))),
        ("peak_gain_half_width", |(.., tier), _| mean(tier.gain.map(|(_, half)| half))),
        ("lost", |(row, ..), _| arrived(row.arrival, |of| of.lost)),
        ("reordered", |(row, ..), _| arrived(row.arrival, |of| of.reordered)),
        ("outage_ms_mean", |(row, ..), _| mean(row.outage.map(|of| of.mean))),
        ("outage_ms_half_width", |(row, ..), _| mean(row.outage.map(|of| of.half_width))),
        ("outage_longest_ms_mean", |(row, ..), _| mean(row.outage_longest.map(|of| of.mean))),
        ("outage_resolution_ms", |(row, ..), _| mean(row.outage_resolution)),
        ("hit_ms_mean", |(row, ..), _| mean(row.hit.map(|of| of.mean))),
        ("hit_ms_half_width", |(row, ..), _| mean(row.hit.map(|of| of.half_width))),
        ("usual_ms_mean", |(row, ..), _| mean(row.hit_usual.map(|of| of.mean))),
        ("completion_ms_mean", |(row, ..), _| workload(row, |of| Some(of.completion.mean))),
        ("completion_ms_half_width", |(row, ..), _| {
            workload(row, |of| Some(of.completion.half_width))
        }),
        ("bus_mbps_mean", |(row, ..), _| workload(row, |of| Some(of.told(of.bus_bandwidth)?.mean))),
        ("bus_mbps_half_width", |(row, ..), _| {
            workload(row, |of| Some(of.told(of.bus_bandwidth)?.half_width))
        }),
        ("straggler_ms_mean", |(row, ..), _| workload(row, |of| Some(of.told(of.straggler)?.mean))),
        ("roofline_ratio_mean", |(row, ..), _| workload(row, |of| Some(of.roofline_ratio?.mean))),
        ("message_p99_ms_mean", |(row, ..), _| {
            workload(row, |of| Some(of.told(of.message_p99)?.mean))
        }),
        ("retransmitted_mean", |(row, ..), _| workload(row, |of| Some(of.retransmitted?.mean))),
        ("timeouts_mean", |(row, ..), _| workload(row, |of| Some(of.timeouts?.mean))),
        ("naks_mean", |(row, ..), _| workload(row, |of| Some(of.naks?.mean))),
        ("circuit_lost_mean", |(row, ..), _| mean(row.dropped.circuit_lost)),
        ("circuit_queue_full_mean", |(row, ..), _| mean(row.dropped.circuit_queue_full)),
        ("link_dropped_mean", |(row, ..), _| mean(row.dropped.link_dropped)),
    ];
    let rows = summary.rows.iter();
    table(
        &columns,
        rows.flat_map(|row| row.tiers.iter().enumerate().map(move |(at, tier)| (row, at, tier))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use crate::record::tests::run;
    use crate::record::{Completion, Dropped, Iteration};

    fn experiment() -> Experiment {
        crate::record::tests::experiment(&["kernel", "b"], "[sweep]\nqueue-pairs = [8]")
    }

    #[test]
    fn what_a_program_does_not_tell_is_empty() {
        let iteration = Iteration { milliseconds: 3.0, ..Iteration::default() };
        let each = vec![iteration];
        let program = Completion { milliseconds: 2.5, each, ..Completion::default() };
        let (beside, workload) = ([("a".to_owned(), program.clone())].into(), Some(program));
        let circuits = Some(CircuitDrops { lost: 3, queue_full: 4 });
        let dropped = Some(Dropped { circuits, links: 5 });
        let run = run("kernel", 8, 0, &[8, 0, 0, 0]);
        let all = [Run { workload, jobs: beside, arrival: None, sent: 0, dropped, ..run }];
        assert!(iterations(&all).ends_with(",0,3.000,,,,,,,,,,,,,\n"), "{}", iterations(&all));
        let line = runs(&all);
        assert!(
            line.contains(",2.500,0.000,,,,,,3,4,5,") && line.contains(",4.0000,,,,,"),
            "{line}"
        );
        assert!(jobs(&all).ends_with(",a,0,2.500,0.000,0.000,0.000,0.000,,\n"), "{}", jobs(&all));
        let row = summary(&Summary::new(&experiment(), &all));
        assert!(row.contains(",2.5000,inf,,,,,,,,,3.0000,4.0000,5.0000\n"), "{row}");
    }

    #[test]
    fn the_page_of_results_has_all_columns() {
        let page = include_str!("../../../docs/reference/results.md");
        let all = [run("kernel", 8, 0, &[8, 0, 0, 0])];
        let of = [links(&[]), queue_pairs(&[]), moves(&[]), timeline(&[]), runs(&[])];
        let more = [iterations(&[]), jobs(&[]), summary(&Summary::new(&experiment(), &all))];
        for header in of.iter().chain(&more).filter_map(|table| table.lines().next()) {
            for column in header.split(',') {
                let ends = ["_mean", "_half_width"];
                let stem = ends.iter().find_map(|end| column.strip_suffix(end)).unwrap_or(column);
                let is_there = [format!("`{column}`"), format!("`{stem}_…`"), format!("`{stem}`")]
                    .iter()
                    .any(|name| page.contains(name));
                assert!(is_there, "docs/reference/results.md lacks {column}");
            }
        }
    }

    #[test]
    fn every_line_has_the_fields_of_the_header() {
        let mut all = vec![run("kernel", 8, 0, &[8, 0, 0, 0]), run("b", 8, 1, &[2, 2, 2, 2])];
        all[1].tiers[0].links.insert("a,\"b\"".into(), 4);
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
        let drops = |circuits| Some(Dropped { circuits, links: 5 });
        all[0].dropped = drops(Some(CircuitDrops { lost: 3, queue_full: 4 }));
        all[1].dropped = drops(None);
        let each = iterations(&all);
        assert_eq!(each.lines().count(), 3, "{each}");
        let first = ",0,2.000,host2,0.000,0,0.000,0.000,0.250,0.000,9,0,7,0,0,0\n";
        assert!(each.contains(first), "{each}");
        assert!(runs(&all).contains(",1.500,0.875,,3,4,5,0,0,7,0,0,0\n"), "{}", runs(&all));
        // Of the first, no losses were counted; of the second, none was lost.
        let counted = |line: usize| runs(&all).lines().nth(line).unwrap().to_owned();
        assert!(counted(1).contains(",8,,,,0.1000,"), "{}", counted(1));
        assert!(counted(2).contains(",8,0,0,0,0.1000,"), "{}", counted(2));
        // There, circuits counted nothing.
        assert!(counted(2).ends_with(",,,,5,,,,,,"), "{}", counted(2));
        all[1].seconds = 0.2;
        let pair = QueuePair {
            number: 0x11,
            path: Some("up1 10.1.0.25".into()),
            sent: 100,
            lost: 3,
            reordered: 1,
            outage: 4.0,
            bytes: 104_954,
            moves: Some(1),
        };
        let unknown = QueuePair { number: 0x12, path: None, moves: None, ..pair.clone() };
        all[1].pairs = vec![pair, unknown];
        all[1].timeline = Some(crate::record::Timeline {
            sent: vec![50, 50],
            arrived: vec![48, 0, 49],
            failure: Some(12.0),
        });
        let pairs = queue_pairs(&all);
        assert_eq!(pairs.lines().count(), 3, "the first run has none: {pairs}");
        assert!(pairs.contains(",0x11,up1 10.1.0.25,100,3,1,4.000,2.000,104954,1\n"), "{pairs}");
        assert!(pairs.contains(",0x12,,100,3,1,4.000,2.000,104954,\n"), "{pairs}");
        let (from, to) = ("leaf1:up1".to_owned(), "leaf1:up2".to_owned());
        all[1].moved = vec![Moved { queue_pair: 0x11, at: 14.5, from, to }];
        let moves = moves(&all);
        assert!(moves.ends_with(",0x11,2.500,leaf1:up1,leaf1:up2\n"), "{moves}");
        let bins = timeline(&all);
        let line = |end: &str| bins.lines().any(|line| line.ends_with(end));
        assert!(bins.lines().count() == 4 && line(",-10,50,48"), "{bins}");
        assert!(line(",0,50,0") && line(",10,0,49"), "{bins}");
        let summarised = summary(&Summary::new(&experiment(), &all));
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
