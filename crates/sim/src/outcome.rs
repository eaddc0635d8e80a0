//! What a run gives.

use crate::port::Counters;
use crate::time::{Picos, microseconds};

/// The most flows of which a run says what they wait for.
pub const MOST_WAITING: usize = 10;

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowOutcome {
    /// Its number in the traffic matrix.
    pub id: u32,
    /// When it started.
    pub start: Option<Picos>,
    /// When its last acknowledgement arrived.
    pub end: Option<Picos>,
    /// Whether all its packets took one path.
    pub ordered: bool,
    /// The job to which it belongs.
    pub job: u32,
}

impl FlowOutcome {
    /// The time from start to end in microseconds.
    #[must_use]
    pub fn time(&self) -> Option<f64> {
        Some(microseconds(self.end? - self.start?))
    }
}

/// A flow that did not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its number in the traffic matrix.
    pub id: u32,
    /// From which host to which.
    pub ends: (u32, u32),
    /// What it waits for.
    pub what: String,
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (source, target) = self.ends;
        write!(f, "flow {} from host {source} to host {target}: {}", self.id, self.what)
    }
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOutcome {
    /// The nodes, by name.
    pub ends: (String, String),
    /// The tiers of the nodes: 0 for hosts, 1 for leaves, and so on.
    pub tiers: (u8, u8),
    /// Whether a shortest way of a flow leads over it.
    pub on_way: bool,
    /// What it did.
    pub counters: Counters,
}

/// A run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The flows, in the order of the traffic matrix.
    pub flows: Vec<FlowOutcome>,
    /// The first flows that did not finish, at most [`MOST_WAITING`].
    pub unfinished: Vec<Waiting>,
    /// The ports.
    pub ports: Vec<PortOutcome>,
    /// Data packets that were sent for the first time.
    pub packets: u64,
    /// Packets that were repeated.
    pub retransmitted: u64,
    /// Probes after a timeout while the window was full.
    pub probes: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Acknowledgements that arrived.
    pub acks: u64,
    /// Negative acknowledgements that arrived.
    pub nacks: u64,
    /// Packets that were lost, trimmed ones not among them.
    pub lost: u64,
    /// With endpoints of `roce`: writes whose bytes were not those that were sent.
    pub mismatches: u64,
    /// Steps of the simulation.
    pub events: u64,
    /// The most packets that were under way at once.
    pub most_packets: u32,
}

impl Outcome {
    /// When the last flow ended, in microseconds. `None` if none did.
    #[must_use]
    pub fn completion(&self) -> Option<f64> {
        self.flows.iter().filter_map(|flow| flow.end).max().map(microseconds)
    }

    /// The most loaded port between two tiers, as a multiple of the mean of those on ways of flows.
    #[must_use]
    pub fn max_mean_ratio(&self, tiers: (u8, u8)) -> Option<f64> {
        let loads: Vec<u64> = self
            .ports
            .iter()
            .filter(|port| port.tiers == tiers && port.on_way)
            .map(|port| port.counters.data_bytes)
            .collect();
        let sum: u64 = loads.iter().sum();
        let max = *loads.iter().max()?;
        (sum > 0).then(|| max as f64 * loads.len() as f64 / sum as f64)
    }

    /// A number that changes if any time or count of the run does (FNV-1a).
    #[must_use]
    pub fn checksum(&self) -> u64 {
        let flows = self.flows.iter().flat_map(|flow| {
            [u64::from(flow.id), flow.start.unwrap_or(u64::MAX), flow.end.unwrap_or(u64::MAX)]
        });
        let ports = self.ports.iter().flat_map(|port| {
            let Counters { data_bytes, marked, trimmed, lost, longest } = port.counters;
            [data_bytes, marked, trimmed, lost, longest.into()]
        });
        let counts = [self.packets, self.retransmitted, self.acks, self.nacks, self.events];
        flows.chain(ports).chain(counts).fold(0xcbf2_9ce4_8422_2325, |hash, word| {
            (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}
