//! The access ports of standalone VNIs: one worker's share of them.

use pipeline::{Bridge, Station};
use ports::AccessPort;
use wire::Vni;

/// Stations that bridges of workers have learned.
pub type Stations = Vec<Station>;

/// The access ports of one worker, and its bridge. Empty unless there are standalone VNIs.
#[derive(Debug, Default)]
pub struct WorkerPorts {
    /// Its VNIs. Each VNI belongs to one worker.
    pub vnis: Vec<Vni>,
    /// The ports of these VNIs.
    pub ports: Vec<AccessPort>,
    /// The ports' numbers among all workers' ports.
    pub numbers: Vec<u16>,
    /// Forwards between these ports and the underlay.
    pub bridge: Option<Bridge>,
}
