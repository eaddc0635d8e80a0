//! Everything that a run needs.

use std::collections::VecDeque;

use roce::nscc::Network;
use spray::order::Tiers;
use spray::{Scheme, Values};

use crate::packet::HEADER;
use crate::port::Limits;
use crate::routes::Choice;
use crate::sender::Feedback;
use crate::time::Picos;
use crate::topology::Topology;
use crate::traffic::Flow;

/// How packets are sprayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spraying {
    /// The scheme.
    pub scheme: Scheme,
    /// The paths.
    pub tiers: Tiers,
    /// How switches choose.
    pub choice: Choice,
    /// What acknowledgements tell the scheme.
    pub feedback: Feedback,
    /// Whether flows that take one path each take the paths in turns, and not a random one.
    pub placed: bool,
}

impl Spraying {
    /// A scheme over so many numbers that switches hash.
    #[must_use]
    pub const fn hashed(scheme: Scheme, values: Values, feedback: Feedback) -> Self {
        Self {
            scheme,
            tiers: Tiers::unknown(values),
            choice: Choice::Hashed,
            feedback,
            placed: false,
        }
    }

    /// A scheme over known paths.
    #[must_use]
    pub const fn known(scheme: Scheme, tiers: Tiers, feedback: Feedback) -> Self {
        Self { scheme, tiers, choice: Choice::Known, feedback, placed: false }
    }

    /// One known path for all packets of a flow. The flows between two hosts take the paths in turns.
    #[must_use]
    pub const fn placed(tiers: Tiers) -> Self {
        let known = Self::known(Scheme::Ecmp, tiers, Feedback::Acknowledged);
        Self { placed: true, ..known }
    }
}

/// The transport of all flows: NSCC, selective acknowledgements, answers to trimmed packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transport {
    /// The network as the window sees it.
    pub network: Network,
    /// Data is acknowledged after so many bytes.
    pub acknowledge: u32,
    /// A packet that is not acknowledged in this time seems lost.
    pub timeout: Picos,
}

/// What a fault does to a port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Damage {
    /// Rate, queue and marks are this share of the healthy ones.
    Slow(f64),
    /// All packets are lost, and switches do not know.
    Silent,
    /// All packets are lost, and switches use other ways.
    Dead,
}

/// A fault of a port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// The port.
    pub port: u32,
    /// What it does.
    pub damage: Damage,
    /// When it begins.
    pub at: Picos,
    /// When it ends. `None`: never.
    pub until: Option<Picos>,
}

/// A run, but for its seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The fabric.
    pub topology: Topology,
    /// The queues of switches.
    pub limits: Limits,
    /// The transport.
    pub transport: Transport,
    /// The hosts are endpoints of the crate `roce` with these settings, and `transport` is not used.
    pub roce: Option<roce::Settings>,
    /// How packets are sprayed.
    pub spraying: Spraying,
    /// What fails.
    pub faults: Vec<Fault>,
    /// The traffic.
    pub flows: Vec<Flow>,
    /// The run ends then, finished or not.
    pub end: Picos,
}

/// The time of a packet and its answer between the most distant hosts: from the first host to the
/// one with the longest way from it.
fn round_trip(topology: &Topology, packet: u16) -> Picos {
    let mut neighbours = vec![Vec::new(); topology.hosts as usize + topology.switches.len()];
    for link in &topology.links {
        let [a, b] = link.ends;
        let time = 2 * link.delay + link.rate.time(packet.into()) + link.rate.time(HEADER.into());
        for (from, to) in [(a, b), (b, a)] {
            neighbours.get_mut(from as usize).into_iter().for_each(|list| list.push((to, time)));
        }
    }
    // Breadth first, by the number of links. A node's list is taken when it is visited.
    let mut longest = 0;
    let mut queue = VecDeque::from([(0_u32, 0)]);
    while let Some((node, time)) = queue.pop_front() {
        let list = neighbours.get_mut(node as usize).map(std::mem::take).unwrap_or_default();
        if !list.is_empty() && node < topology.hosts {
            longest = longest.max(time);
        }
        queue.extend(list.into_iter().map(|(to, more)| (to, time + more)));
    }
    longest
}

impl Transport {
    /// The transport of the reference runs in a fabric: its figures follow from the round trip time
    /// and the rate of the hosts, with packets of so many bytes.
    #[must_use]
    pub fn new(topology: &Topology, packet: u16) -> Self {
        let round_trip = round_trip(topology, packet);
        let rate = topology.links.first().map_or(0.0, |link| link.rate.bits_per_second());
        let product = round_trip as f64 * rate / 8e12;
        let network = Network {
            round_trip,
            product,
            packet,
            header: HEADER,
            target: (round_trip as f64 * 0.75) as Picos,
        };
        let timeout = Self::default_timeout(topology, Limits::of_product(&network).bytes);
        Self { network, acknowledge: 16_384, timeout }
    }

    /// 15 µs, and the time of six full queues of so many bytes at the rate of the hosts.
    #[must_use]
    pub fn default_timeout(topology: &Topology, queue: u32) -> Picos {
        let rate = topology.links.first().map_or(0.0, |link| link.rate.bits_per_second());
        15_000_000 + (f64::from(queue) * 6.0 * 8e12 / rate.max(1.0)) as Picos
    }
}

impl Limits {
    /// The queues of the reference runs: a bandwidth-delay product, in packets, with marks from a
    /// fifth of it to four fifths.
    #[must_use]
    pub fn of_product(network: &Network) -> Self {
        let packet = f64::from(network.packet);
        let packets = (network.product / packet).ceil();
        let share = |share: f64| ((packets * share).ceil() * packet) as u32;
        Self { bytes: share(1.0), mark_from: share(0.2), mark_all: share(0.8), trim: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Rate;
    use crate::topology::{FatTree, Lines};

    #[test]
    fn the_figures_of_the_reference_runs() {
        let tree = FatTree { pods: 8, leaves: 4, hosts: 4, aggregations: 4, cores: 4 };
        let lines = Lines { rate: Rate::new(100e9), delay: 1_000_000 };
        let transport = Transport::new(&Topology::fat_tree(&tree, lines), 4150);
        let network = transport.network;
        assert_eq!(network.round_trip, 14_022_720);
        assert_eq!((network.target, network.product.round()), (10_517_040, 175_284.0));
        assert_eq!(transport.timeout, 100_656_000);
        let limits = Limits::of_product(&network);
        assert_eq!((limits.bytes, limits.mark_from, limits.mark_all), (178_450, 37_350, 145_250));
    }
}
