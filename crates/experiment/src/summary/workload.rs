//! The results of a workload, of all runs of a point.

use serde::Serialize;

use crate::record::{Completion, Iteration};
use crate::statistics::Statistics;

/// The results of a workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadRow {
    /// The mean communication time of an iteration in milliseconds.
    pub completion: Statistics,
    /// The longest communication time of a run in milliseconds.
    pub worst: Statistics,
    /// The bus bandwidth in Mbit/s.
    pub bus_bandwidth: Statistics,
    /// The 99th percentile of the completion times of messages in milliseconds.
    pub message_p99: Statistics,
    /// Packets that were sent again, in a run; `None` if it was not counted.
    pub retransmitted: Option<Statistics>,
    /// Timeouts of the local ACK timer in an iteration; `None` as above.
    pub timeouts: Option<Statistics>,
    /// Negative acknowledgements in an iteration; `None` as above.
    pub naks: Option<Statistics>,
    /// The communication time of iterations without a timeout in milliseconds; `None` if there are
    /// none, or as above.
    pub untimed: Option<Statistics>,
    /// The share of the iterations that had a timeout, 0 to 1.
    pub timed_out: f64,
    /// The largest busy share of an endpoint's thread.
    pub busy: Statistics,
    /// The time at the rate of the roofline divided by the communication time.
    pub roofline_ratio: Option<Statistics>,
    /// How long the last host ended after the median one, in milliseconds.
    pub straggler: Statistics,
}

impl WorkloadRow {
    /// A figure; `None` if it is 0 because nothing was counted, as for a program of the user.
    #[must_use]
    pub fn told(&self, of: Statistics) -> Option<Statistics> {
        (of.mean != 0.0 || self.retransmitted.is_some()).then_some(of)
    }

    pub(super) fn of(results: &[&Completion], confidence: f64) -> Option<Self> {
        let of = |read: fn(&Completion) -> f64| {
            let values = results.iter().map(|result| read(result));
            Statistics::of(&values.collect::<Vec<f64>>(), confidence)
        };
        let some = |read: &dyn Fn(&Completion) -> Option<f64>| {
            let values: Vec<f64> = results.iter().filter_map(|result| read(result)).collect();
            Statistics::of(&values, confidence)
        };
        let counted = |name: &'static str| {
            some(&|result| Some(result.counter(name)? as f64 / f64::from(result.iterations.max(1))))
        };
        let each: Vec<&Iteration> = results.iter().flat_map(|result| &result.each).collect();
        let all = each.iter().filter(|of| !of.counters.is_empty()).count();
        let timeouts = |of: &Iteration| of.counters.contains_key(Completion::TIMEOUTS);
        let untimed: Vec<f64> = each
            .iter()
            .filter(|of| !of.counters.is_empty() && !timeouts(of))
            .map(|of| of.milliseconds)
            .collect();
        Some(Self {
            timeouts: counted(Completion::TIMEOUTS),
            naks: counted(Completion::NAKS),
            timed_out: (all - untimed.len()) as f64 / all.max(1) as f64,
            untimed: Statistics::of(&untimed, confidence),
            completion: of(|result| result.milliseconds)?,
            worst: of(|result| result.worst)?,
            bus_bandwidth: of(|result| result.bus_bandwidth)?,
            message_p99: of(|result| result.message_p99)?,
            retransmitted: some(&|result| {
                (!result.counters.is_empty()).then_some(result.retransmitted as f64)
            }),
            busy: of(|result| result.busy)?,
            roofline_ratio: Statistics::of(
                &results.iter().filter_map(|result| result.roofline_ratio).collect::<Vec<f64>>(),
                confidence,
            ),
            straggler: of(|result| result.straggler)?,
        })
    }
}
