//! Where frames were dropped in a run.

use serde::{Deserialize, Serialize};

/// Frames of a run that the fabric dropped, where it counts them. Frames of routing protocols and
/// acknowledgements are among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// In circuits; absent if the fabric has none, or one of them was started again meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuits: Option<CircuitDrops>,
    /// By the interfaces of links. A veth pair counts a full queue of its far end, and frames to an
    /// end that is down.
    pub links: u64,
}

/// Frames that circuits of `lab wan` dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitDrops {
    /// At random, by the loss that the circuit has.
    pub lost: u64,
    /// Because the queue of the rate limit or a buffer was full.
    pub queue_full: u64,
}

impl Dropped {
    /// The drops since an earlier reading. Circuits whose counters are smaller than before were
    /// started again. `None` if those of links are: a link was made again.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let circuits = self.circuits.zip(before.circuits).and_then(|(now, before)| {
            let lost = now.lost.checked_sub(before.lost)?;
            Some(CircuitDrops { lost, queue_full: now.queue_full.checked_sub(before.queue_full)? })
        });
        Some(Self { circuits, links: self.links.checked_sub(before.links)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_is_absent_and_not_zero() {
        let drops = |lost, queue_full| Some(CircuitDrops { lost, queue_full });
        let of = |circuits, links| Dropped { circuits, links };
        let now = of(drops(7, 2), 9);
        assert_eq!(now.since(&of(drops(5, 2), 4)), Some(of(drops(2, 0), 5)));
        assert_eq!(now.since(&of(None, 4)), Some(of(None, 5)), "no circuit answered before");
        assert_eq!(now.since(&of(drops(8, 0), 4)), Some(of(None, 5)), "it was started again");
        assert_eq!(now.since(&of(drops(5, 2), 10)), None);
    }
}
