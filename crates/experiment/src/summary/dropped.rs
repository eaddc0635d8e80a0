//! Where frames were dropped, of all runs of a point.

use serde::Serialize;

use crate::record::{Dropped, Run};

/// Frames that were dropped in a run: means of the runs in which they were counted. `None` if they
/// were counted in no run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct DroppedRow {
    /// By circuits, at random.
    pub circuit_lost: Option<f64>,
    /// By circuits, because a queue was full.
    pub circuit_queue_full: Option<f64>,
    /// By the interfaces of links.
    pub link_dropped: Option<f64>,
}

impl DroppedRow {
    pub(super) fn of(runs: &[&Run]) -> Self {
        let mean = |read: fn(Dropped) -> Option<u64>| {
            let counted = runs.iter().filter_map(|run| read(run.dropped?));
            let (sum, runs) = counted.fold((0.0, 0.0), |(sum, n), of| (sum + of as f64, n + 1.0));
            (runs > 0.0).then(|| sum / runs)
        };
        Self {
            circuit_lost: mean(|of| Some(of.circuits?.lost)),
            circuit_queue_full: mean(|of| Some(of.circuits?.queue_full)),
            link_dropped: mean(|of| Some(of.links)),
        }
    }

    /// What was counted.
    pub fn counted(&self) -> impl Iterator<Item = f64> {
        let Self { circuit_lost, circuit_queue_full, link_dropped } = *self;
        [circuit_lost, circuit_queue_full, link_dropped].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::CircuitDrops;
    use crate::record::tests::run;

    #[test]
    fn runs_that_counted_nothing_are_not_in_the_mean() {
        let of = |dropped| Run { dropped, ..run("kernel", 8, 0, &[1, 1]) };
        let circuits = |lost| Some(CircuitDrops { lost, queue_full: 2 });
        let runs = [
            of(Some(Dropped { circuits: circuits(6), links: 1 })),
            of(Some(Dropped { circuits: None, links: 0 })),
            of(None),
        ];
        let row = DroppedRow::of(&runs.each_ref());
        let expected = [Some(6.0), Some(2.0), Some(0.5)];
        assert_eq!([row.circuit_lost, row.circuit_queue_full, row.link_dropped], expected);
        let [_, no_circuits, nothing] = &runs;
        assert_eq!(Vec::from_iter(DroppedRow::of(&[no_circuits]).counted()), [0.0]);
        assert_eq!(DroppedRow::of(&[nothing]), DroppedRow::default());
    }
}
