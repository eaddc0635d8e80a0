//! The results of a workload.

use roce::{Counters, Histogram};
use serde::{Deserialize, Serialize};

use super::job::Job;
use super::schedule::Schedule;

/// Quantiles of the completion times of messages, from posting to the last acknowledgement, in
/// nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// The number of messages.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The maximum.
    pub max: u64,
}

impl From<&Histogram> for Latencies {
    fn from(histogram: &Histogram) -> Self {
        Self {
            count: histogram.len(),
            p50: histogram.quantile(500),
            p99: histogram.quantile(990),
            p999: histogram.quantile(999),
            max: histogram.max(),
        }
    }
}

/// The result of one iteration of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// The name of the job.
    pub job: String,
    /// The number of the iteration, from 0, warm-up included.
    pub iteration: u32,
    /// Whether it is a warm-up, which does not count.
    pub warm_up: bool,
    /// When it began, in nanoseconds since the first job began.
    pub began: u64,
    /// From the common start to the end of the last rank, in nanoseconds.
    pub nanoseconds: u64,
    /// From the first message to the end of the last rank, without computing before it, in
    /// nanoseconds.
    pub communication: u64,
    /// The longest time that a rank computed, in nanoseconds.
    pub compute: u64,
    /// Bytes of a rank's buffer.
    pub bytes: u64,
    /// Algorithm bandwidth as nccl-tests define it, in bits per second: the buffer divided by the
    /// communication time.
    pub algorithm_bandwidth: f64,
    /// Bus bandwidth as nccl-tests define it, in bits per second: the rate of each rank's link that
    /// the algorithm bandwidth needs. For the parameter server: the rate of rank 0's link.
    pub bus_bandwidth: f64,
    /// The communication time at the roofline's rate in nanoseconds; absent without a rate.
    pub ideal: Option<u64>,
    /// `ideal` divided by `communication`; at most about 1.
    pub roofline_ratio: Option<f64>,
    /// The host that ended last.
    pub straggler: String,
    /// How long after the median host it ended, in nanoseconds.
    pub straggler_behind: u64,
    /// Completion times of messages.
    pub messages: Latencies,
    /// Payload bytes that the schedule sends.
    pub scheduled_bytes: u64,
    /// Payload bytes that arrived in messages. Equal to `scheduled_bytes` in a complete iteration.
    pub received_bytes: u64,
    /// Writes whose bytes were wrong.
    pub mismatches: u64,
    /// Frames that hosts dropped because their endpoint was too slow.
    pub overruns: u64,
    /// The largest share of the time that an endpoint's thread did not sleep, 0 to 1. Near 1, the
    /// machine is the limit, not the fabric.
    pub busy: f64,
    /// Counters of all hosts.
    pub counters: Counters,
}

/// What one rank did in an iteration. Times are nanoseconds since the common start.
#[derive(Debug, Clone, Default)]
pub(super) struct RankResult {
    pub(super) rank: usize,
    pub(super) compute: u64,
    pub(super) posted: u64,
    pub(super) ended: u64,
    pub(super) received: u64,
    pub(super) mismatches: u64,
    pub(super) overruns: u64,
    pub(super) slept: u64,
    pub(super) counters: Counters,
    pub(super) latencies: Histogram,
}

impl Iteration {
    pub(super) fn new(
        job: &Job,
        schedule: &Schedule,
        (iteration, began): (u32, u64),
        ranks: &[RankResult],
    ) -> Self {
        let mut ends: Vec<(u64, usize)> = ranks.iter().map(|r| (r.ended, r.rank)).collect();
        ends.sort_unstable();
        let (nanoseconds, last) = ends.last().copied().unwrap_or_default();
        let median = ends.get((ends.len().max(1) - 1) / 2).map_or(0, |(end, _)| *end);
        let first = ranks.iter().map(|rank| rank.posted).min().unwrap_or_default();
        let communication = nanoseconds.saturating_sub(first).max(1);
        let bandwidth = job.workload.bytes as f64 * 8e9 / communication as f64;
        let ideal = job.ideal(schedule);
        let mut latencies = Histogram::default();
        let mut counters = Counters::default();
        for rank in ranks {
            latencies.merge(&rank.latencies);
            counters += rank.counters;
        }
        let sum = |of: fn(&RankResult) -> u64| ranks.iter().map(of).sum();
        let awake = |rank: &RankResult| {
            1.0 - (rank.slept as f64 / rank.ended.max(1) as f64).clamp(0.0, 1.0)
        };
        Self {
            job: job.name.clone(),
            iteration,
            warm_up: iteration < job.workload.warm_up,
            began,
            nanoseconds,
            communication,
            compute: ranks.iter().map(|rank| rank.compute).max().unwrap_or_default(),
            bytes: job.workload.bytes,
            algorithm_bandwidth: bandwidth,
            bus_bandwidth: bandwidth * schedule.bus_factor,
            ideal,
            roofline_ratio: ideal.map(|ideal| ideal as f64 / communication as f64),
            straggler: job.hosts.get(last).map(|host| host.name.clone()).unwrap_or_default(),
            straggler_behind: nanoseconds.saturating_sub(median),
            messages: (&latencies).into(),
            scheduled_bytes: schedule.total_bytes(),
            received_bytes: sum(|rank| rank.received),
            mismatches: sum(|rank| rank.mismatches),
            overruns: sum(|rank| rank.overruns),
            busy: ranks.iter().map(awake).fold(0.0, f64::max),
            counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::job::{Host, Workload};

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let host = |number: u32| Host {
            name: format!("host{number}"),
            namespace: None,
            interface: "eth1".into(),
            site: 0,
        };
        let workload = Workload { bytes: 1 << 20, warm_up: 1, ..Workload::default() };
        let job = Job { name: "job".into(), hosts: (0..4).map(host).collect(), workload };
        let schedule = job.schedule().unwrap();
        let rank = |rank: usize| RankResult {
            rank,
            posted: 1000,
            ended: 1_001_000 + 10_000 * rank as u64,
            slept: 500_000,
            ..RankResult::default()
        };
        let ranks: Vec<_> = [2, 0, 3, 1].map(rank).to_vec();
        let found = Iteration::new(&job, &schedule, (1, 77), &ranks);
        assert_eq!((found.nanoseconds, found.communication), (1_031_000, 1_030_000));
        // nccl-tests: algbw = size / time; busbw = algbw × 2 (n − 1) / n.
        let algorithm = f64::from(1 << 20) * 8.0 / 1.03e-3;
        assert!((found.algorithm_bandwidth - algorithm).abs() < 1.0);
        assert!((found.bus_bandwidth - algorithm * 1.5).abs() < 1.0);
        assert_eq!((found.straggler.as_str(), found.straggler_behind), ("host3", 20_000));
        assert_eq!((found.warm_up, found.ideal, found.roofline_ratio), (false, None, None));
        assert!((found.busy - (1.0 - 500_000.0 / 1_031_000.0)).abs() < 1e-9);
    }
}
