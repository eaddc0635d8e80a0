//! Frames of an EtherType that only the tests use, and captures of them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::capture::Captured;
use crate::frames::{self, Pair};
use crate::lab::LEAF;
use crate::{Capture, Lab, quiet, wait_for};

/// EtherType for local experiments (IEEE 802-2014 section 9.2.3). No other traffic uses it.
pub const EXPERIMENT: u16 = 0x88b5;
/// Offset of the inner EtherType in a frame between leaves.
const INNER_TYPE: usize = 50 + 12;

/// Numbered frames of the experimental EtherType.
#[must_use]
pub fn experiments(pair: Pair, count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|n| frames::ethernet(pair, EXPERIMENT, &[n; 50])).collect()
}

/// Whether a frame has the experimental EtherType.
#[must_use]
pub fn is_experiment(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&EXPERIMENT.to_be_bytes())
}

/// Captures of encapsulated experimental frames from the leaf's uplinks, at the routers.
#[derive(Debug)]
pub struct Uplinks([Capture<Vec<Captured>>; 2]);

impl Uplinks {
    /// Starts the captures.
    #[must_use]
    pub fn watch(lab: &Lab) -> Self {
        let of =
            |frame: &[u8]| frame.get(INNER_TYPE..INNER_TYPE + 2) == Some(&EXPERIMENT.to_be_bytes());
        Self(lab.routers.each_ref().map(|router| Capture::start(router, "leaf", of)))
    }

    /// The number of frames so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(Capture::count).sum()
    }

    /// Waits until at least `count` frames have arrived and no more follow. Returns how many the
    /// leaf sent to each VTEP.
    #[must_use]
    pub fn sent(self, count: usize) -> BTreeMap<Ipv4Addr, usize> {
        wait_for("the leaf's frames", || self.count() >= count);
        quiet();
        self.stop()
    }

    /// Returns how many frames the leaf has sent to each VTEP so far.
    #[must_use]
    pub fn stop(self) -> BTreeMap<Ipv4Addr, usize> {
        let mut sent = BTreeMap::new();
        for captured in self.0.into_iter().flat_map(Capture::stop) {
            let outer = captured.outer(4789).expect("VXLAN");
            if outer.source == LEAF {
                *sent.entry(outer.destination).or_default() += 1;
            }
        }
        sent
    }
}
