//! What a failure did to the queue pairs of all runs, and to the traffic over time.

use std::collections::BTreeMap;

use crate::record::{Run, Timeline};

/// How much of a timeline is shown before a failure, and after traffic has returned, in
/// milliseconds.
const AROUND: i64 = 500;

/// The times without traffic of the queue pairs that a failure hit, of all runs.
pub(super) fn outages(runs: &[&Run]) -> Vec<f64> {
    let failed = runs.iter().filter(|run| run.outage.is_some());
    let times = failed.flat_map(|run| &run.pairs).map(|pair| pair.outage);
    let mut all: Vec<f64> = times.filter(|time| *time > 0.0).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// The mean rate of arrival in each bin around the first failure, until some time after the longest
/// time without traffic.
pub(super) fn timeline(runs: &[&Run]) -> Vec<(i64, f64)> {
    let failed = || runs.iter().filter(|run| run.outage.is_some());
    let longest = failed().filter_map(|run| run.outage_longest).fold(0.0, f64::max);
    let until = AROUND + (longest * 1.5) as i64;
    let mut bins: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for timeline in failed().filter_map(|run| run.timeline.as_ref()) {
        let per_second = 1000.0 / f64::from(Timeline::BIN);
        for (at, _, arrived) in timeline.bins().filter(|(at, ..)| (-AROUND..=until).contains(at)) {
            bins.entry(at).or_default().push(arrived as f64 * per_second);
        }
    }
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    bins.into_iter().map(|(at, values)| (at, mean(values))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::QueuePair;
    use crate::record::tests::run;

    #[test]
    fn queue_pairs_and_bins_of_all_runs_come_together() {
        let of = |at, outages: [f64; 2], failure| {
            let pair = |outage| QueuePair {
                number: 1,
                path: None,
                sent: 10,
                lost: 0,
                reordered: 0,
                outage,
                bytes: 0,
                moves: None,
            };
            let longest = outages.iter().copied().fold(0.0, f64::max);
            let arrived = vec![7; 200];
            Run {
                outage: Some(longest),
                outage_longest: Some(longest),
                pairs: outages.map(pair).into(),
                timeline: Some(Timeline { sent: Vec::new(), arrived, failure: Some(failure) }),
                ..run("kernel", 2, at, &[1, 1])
            }
        };
        // The failures begin in bins 70 and 10.
        let (mut one, other) = (of(0, [0.0, 20.0], 705.0), of(1, [40.0, 10.0], 109.0));
        if let Some(timeline) = &mut one.timeline {
            timeline.arrived[70] = 1;
        }
        let (calm, runs) = (run("kernel", 2, 2, &[1, 1]), [&one, &other]);
        assert_eq!(outages(&[&one, &other, &calm]), [10.0, 20.0, 40.0]);
        let found = timeline(&runs);
        let (first, last) = (found.first().unwrap(), found.last().unwrap());
        assert_eq!((first.0, last.0), (-500, 560), "{found:?}");
        let at = |time| found.iter().find(|(at, _)| *at == time).unwrap().1;
        assert_eq!([at(-10), at(0), at(10)], [700.0, 400.0, 700.0]);
    }
}
