//! Real VTEPs at the hosts of a simulation: frames with bytes take the place of the choice of a path.
//!
//! The simulator has no frames. What has them implements [`Vteps`]: the crate `vteps`.

use crate::time::Picos;

/// A packet of data of a sprayed flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Data {
    /// The sending host.
    pub source: u32,
    /// The receiving host.
    pub target: u32,
    /// The flow.
    pub flow: u32,
    /// The number in its flow. A repetition has that of the lost packet.
    pub number: u32,
    /// Bytes on the wire.
    pub size: u16,
}

/// What became of a packet in the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It has arrived.
    Good,
    /// It has arrived with an ECN mark.
    Marked,
    /// A queue has taken its data.
    Trimmed,
}

/// A VTEP for each host.
pub trait Vteps {
    /// A packet leaves its host at this time. Returns the number of its path.
    fn send(&mut self, now: Picos, packet: Data) -> u16;

    /// A packet has arrived at the VTEP of its target by this path.
    fn receive(&mut self, now: Picos, packet: Data, path: u16, fate: Fate);
}
