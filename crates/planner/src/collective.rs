//! Collective operations: how many bytes they move, and how long they take alone.

use crate::machine::Machine;
use crate::network::Wire;

/// Seconds of a step of a ring, inside a node and between nodes, with NCCL's protocol for large
/// messages (nccl, `src/graph/tuning.cc`).
const NODE_STEP: f64 = 3.4e-6;
const NETWORK_STEP: f64 = 14e-6;

/// Bytes that each of `members` sends in a ring AllGather or ReduceScatter of `bytes`
/// (nccl-tests, `doc/PERFORMANCE.md`). Twice that for an AllReduce.
#[must_use]
pub fn ring(members: f64, bytes: f64) -> f64 {
    if members > 1.0 { (members - 1.0) / members * bytes } else { 0.0 }
}

/// Bytes that a GPU sends in an iteration to synchronise parameters and gradients of so many bytes
/// each, without accumulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Volume {
    /// Inside a site.
    pub inside: f64,
    /// To other sites. 0 if that is not told apart.
    pub across: f64,
}

/// DDP: a ring AllReduce of the gradients over all replicas.
#[must_use]
pub fn ddp(replicas: f64, bytes: f64) -> Volume {
    Volume { inside: 2.0 * ring(replicas, bytes), across: 0.0 }
}

/// FSDP: parameters are gathered for the forward and for the backward pass, gradients scattered.
#[must_use]
pub fn fsdp(replicas: f64, bytes: f64) -> Volume {
    Volume { inside: 3.0 * ring(replicas, bytes), across: 0.0 }
}

/// HSDP: FSDP inside each site, then an AllReduce of each shard over the sites.
#[must_use]
pub fn hsdp(replicas: f64, sites: f64, bytes: f64) -> Volume {
    let inside = replicas / sites;
    Volume { inside: 3.0 * ring(inside, bytes), across: 2.0 * ring(sites, bytes / inside) }
}

/// GPUs that take part in a collective operation, and what they share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Group {
    /// Members at one site.
    pub members: f64,
    /// Those of them in one node.
    pub in_node: f64,
    /// Sites with members.
    pub sites: f64,
    /// Groups that use the link between sites at the same time.
    pub groups: f64,
}

/// Seconds inside a site, and those for the link between sites. Each only grows if the link gets
/// worse.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Seconds {
    /// Before or behind the exchange with other sites.
    pub inside: f64,
    /// How long the link is occupied.
    pub link: f64,
    /// How long the exchange with other sites takes: at least as long as the link is occupied.
    pub exchange: f64,
    /// Latency of the link.
    pub latency: f64,
}

impl Seconds {
    /// One after another.
    pub(crate) fn total(self) -> f64 {
        self.inside + self.exchange + self.latency
    }
}

impl std::ops::Add for Seconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            inside: self.inside + other.inside,
            link: self.link + other.link,
            exchange: self.exchange + other.exchange,
            latency: self.latency.max(other.latency),
        }
    }
}

impl Group {
    /// Members of a dimension whose neighbours are `stride` GPUs apart.
    pub(crate) fn new(
        machine: &Machine,
        members: u32,
        stride: u32,
        sites: u32,
        groups: u32,
    ) -> Self {
        let at_site = f64::from(members) / f64::from(sites);
        let fit = (machine.gpus / stride.max(1)).max(1);
        Self {
            members: at_site,
            in_node: f64::from(fit).min(at_site),
            sites: f64::from(sites),
            groups: f64::from(groups),
        }
    }

    fn rate(&self, machine: &Machine) -> f64 {
        machine.ring_rate(self.in_node.max(1.0), self.members <= self.in_node)
    }

    /// Seconds that the steps of a ring of so many members take in addition.
    fn steps(&self, members: f64) -> f64 {
        let between = (members / self.in_node.max(1.0)).ceil() - 1.0;
        between * NETWORK_STEP + (members - 1.0 - between).max(0.0) * NODE_STEP
    }

    /// A gather or a scatter of `bytes` inside each site.
    pub(crate) fn inside(&self, machine: &Machine, bytes: f64) -> f64 {
        if bytes > 0.0 && self.members > 1.0 {
            ring(self.members, bytes) / self.rate(machine) + self.steps(self.members)
        } else {
            0.0
        }
    }

    /// A gather or a scatter: inside each site, then of each member's part over the sites.
    pub(crate) fn half(&self, machine: &Machine, wire: Wire, bytes: f64) -> Seconds {
        let hops = self.sites - 1.0;
        let link = ring(self.sites, bytes) * self.groups / wire.bandwidth;
        Seconds {
            inside: self.inside(machine, bytes),
            link,
            exchange: link,
            latency: if hops > 0.0 { hops * wire.latency } else { 0.0 },
        }
    }

    /// An AllReduce: a scatter and a gather.
    pub(crate) fn all_reduce(&self, machine: &Machine, wire: Wire, bytes: f64) -> Seconds {
        let half = self.half(machine, wire, bytes);
        Seconds {
            inside: 2.0 * half.inside,
            link: 2.0 * half.link,
            exchange: 2.0 * half.exchange,
            latency: 2.0 * half.latency,
        }
    }

    /// A gather or a scatter along one ring over all sites, which the slowest link paces.
    pub(crate) fn flat(&self, machine: &Machine, wire: Wire, bytes: f64) -> Seconds {
        if self.sites <= 1.0 || bytes <= 0.0 {
            return Seconds { inside: self.inside(machine, bytes), ..Seconds::default() };
        }
        let members = self.members * self.sites;
        let sent = ring(members, bytes);
        let (inside, link) = (sent / self.rate(machine), sent * self.groups / wire.bandwidth);
        let latency = self.sites * wire.latency;
        Seconds { inside: self.steps(members), link, exchange: inside.max(link), latency }
    }

    /// Each member sends `bytes` to the others, in equal parts.
    pub(crate) fn all_to_all(&self, machine: &Machine, wire: Wire, bytes: f64) -> Seconds {
        let members = self.members * self.sites;
        let to_site = bytes * self.members / members;
        let other_nodes = to_site * (1.0 - self.in_node / self.members);
        let in_node = to_site * (self.in_node - 1.0).max(0.0) / self.members;
        let inside =
            in_node / machine.ring_rate(1.0, true) + other_nodes / machine.ring_rate(1.0, false);
        let all = bytes * self.members * self.groups / self.sites;
        let crosses = self.sites > 1.0;
        let link = if crosses { all / wire.bandwidth } else { 0.0 };
        Seconds { inside, link, exchange: link, latency: if crosses { wire.latency } else { 0.0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let efficiency = crate::machine::Efficiency {
            products: 1.0,
            attention: None,
            memory: 1.0,
            node_link: 1.0,
            network_link: 1.0,
            layer_overhead: 0.0,
            interference: 0.0,
        };
        Machine {
            description: String::new(),
            gpus: 8,
            operations: 1e15,
            operations_fp8: None,
            memory: 80e9,
            reserved: 0.0,
            memory_rate: 1e12,
            node_link: 100e9,
            network_link: 10e9,
            efficiency,
        }
    }

    #[test]
    fn groups_share_what_is_slow() {
        let machine = machine();
        let wire = Wire { bandwidth: 10e9, latency: 0.01 };
        // Eight members in one node; 16 in two; 16 with one in each node.
        let seconds = |members, stride| {
            Group::new(&machine, members, stride, 1, 1).all_reduce(&machine, wire, 16e9).total()
        };
        for (members, stride, expected) in
            [(8, 1, 28e9 / 100e9), (16, 1, 30e9 / 80e9), (16, 8, 30e9 / 10e9)]
        {
            let found = seconds(members, stride);
            assert!((found - expected).abs() < 1e-3, "{members} {stride}: {found}");
        }
        // Two sites, four groups: each sends its 16 GB once, and all share the link.
        let across = Group::new(&machine, 16, 8, 2, 4).all_reduce(&machine, wire, 16e9);
        assert!((across.link - 4.0 * 16e9 / 10e9).abs() < 1e-9, "{across:?}");
        assert!((across.latency - 0.02).abs() < 1e-12);
    }
}
