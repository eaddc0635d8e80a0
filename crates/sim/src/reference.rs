//! The cases of the reference runs: what htsim, the simulator of Ultra Ethernet
//! (`ultraethernet/uet-htsim`, commit 40ccb052), gave for our traffic.
//!
//! 128 hosts in a fat tree of 100 Gbit/s and 1 µs links, not oversubscribed. Queues, marks and the
//! transport are those of [`Transport::new`] and [`Limits::of_product`].

use spray::order::Tiers;
use spray::{Scheme, Values};

use crate::port::Limits;
use crate::scenario::{Damage, Fault, Scenario, Spraying, Transport};
use crate::sender::Feedback;
use crate::time::{MICROSECOND, MILLISECOND, Rate};
use crate::topology::{FatTree, Lines, Topology};
use crate::traffic::{self, Flow};

/// The bytes of a packet.
const PACKET: u16 = 4150;
const BYTES: u64 = 2_000_000;
/// AllReduce sends this.
const RING: u64 = 2_097_152;

/// The means of the reference runs of a case and a scheme.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The scheme, with its number of values.
    pub scheme: String,
    /// The end of the last flow in microseconds: mean, least and most.
    pub completion: [f64; 3],
    /// Packets that were repeated.
    pub retransmitted: f64,
    /// Acknowledgements.
    pub acks: f64,
    /// Negative acknowledgements.
    pub nacks: f64,
    /// The number of seeds, from 1.
    pub seeds: u64,
    /// The end of the last sprayed flow, where others are ordered.
    pub sprayed: Option<f64>,
}

/// All cases and schemes.
#[must_use]
pub fn rows() -> Vec<Row> {
    let row = |line: &str| {
        let mut words = line.split('\t');
        let (case, scheme) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut number = || words.next()?.parse::<f64>().ok();
        Some(Row {
            case,
            scheme,
            completion: [number()?, number()?, number()?],
            retransmitted: number()?,
            acks: number()?,
            nacks: number()?,
            seeds: number()? as u64,
            sprayed: number(),
        })
    };
    include_str!("reference.tsv").lines().filter_map(row).collect()
}

/// A scheme by its name in the reference runs, such as `reps-64`. `-log`: the sender remembers the
/// path of each packet. `known-`: it knows the paths.
#[must_use]
pub fn spraying(name: &str) -> Option<Spraying> {
    let (name, known) = name.strip_prefix("known-").map_or((name, false), |name| (name, true));
    let (name, feedback) = match name.strip_suffix("-log") {
        Some(name) => (name, Feedback::EachPacket),
        None => (name, Feedback::Acknowledged),
    };
    if name == "ecmp" {
        return Some(Spraying::hashed(Scheme::Ecmp, Values::new(1).ok()?, feedback));
    }
    let (scheme, number) = name.rsplit_once('-')?;
    let scheme = scheme.parse().ok()?;
    if known {
        return Some(Spraying::known(scheme, Tiers::new(&[4, 4]).ok()?, feedback));
    }
    Some(Spraying::hashed(scheme, Values::new(number.parse().ok()?).ok()?, feedback))
}

/// The flows of a case.
#[must_use]
pub fn flows(case: &str, hosts: u32, seed: u64) -> Vec<Flow> {
    match case {
        "ordered-25%" => traffic::permutation(hosts, seed, BYTES, 0.25),
        "incast-32" => traffic::incast(hosts, seed, BYTES, 32, false),
        _ if case.starts_with("ring") => traffic::ring(hosts, seed, RING, 16),
        _ => traffic::permutation(hosts, seed, BYTES, 0.0),
    }
}

/// The faults of a case: four slow links downwards, or one that is silently dead in both directions.
fn faults(case: &str, topology: &Topology) -> Vec<Fault> {
    let fault = |from: &str, to: &str, damage| {
        let port = topology.find_port(from, to)?;
        Some(Fault { port, damage, at: 0, until: None })
    };
    let all: Vec<Option<Fault>> = match case {
        "dead-link-1" => ["agg0", "core0"]
            .into_iter()
            .zip(["core0", "agg0"])
            .map(|(from, to)| fault(from, to, Damage::Silent))
            .collect(),
        _ if case.ends_with("degraded-4") => {
            (0..4).map(|core| fault(&format!("core{core}"), "agg0", Damage::Slow(0.25))).collect()
        }
        _ => Vec::new(),
    };
    all.into_iter().flatten().collect()
}

/// The fat tree of the reference runs, with 128 hosts, or of 1,024 and 8,192.
#[must_use]
pub fn fat_tree(hosts: u32) -> Topology {
    let width = match hosts {
        ..=128 => 4,
        129..=1024 => 8,
        _ => 16,
    };
    let tree = FatTree {
        pods: hosts.div_ceil(width * width),
        leaves: width,
        hosts: width,
        aggregations: width,
        cores: width,
    };
    Topology::fat_tree(&tree, Lines { rate: Rate::new(100e9), delay: MICROSECOND })
}

/// A case with a scheme, so many hosts and a seed of its traffic.
#[must_use]
pub fn scenario(case: &str, spraying: Spraying, hosts: u32, seed: u64) -> Scenario {
    let topology = fat_tree(hosts);
    let mut transport = Transport::new(&topology, PACKET);
    if case.contains("ack-each") {
        transport.acknowledge = PACKET.into();
    }
    Scenario {
        limits: Limits::of_product(&transport.network),
        transport,
        roce: None,
        spraying,
        faults: faults(case, &topology),
        flows: flows(case, hosts, seed),
        end: 60 * MILLISECOND,
        topology,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_have_a_scheme() {
        let rows = rows();
        assert_eq!(rows.len(), 42);
        for row in rows {
            assert!(spraying(&row.scheme).is_some(), "{row:?}");
            let [mean, least, most] = row.completion;
            assert!(least <= mean && mean <= most && row.acks > 1000.0, "{row:?}");
        }
    }

    #[test]
    fn fat_trees() {
        for hosts in [128, 1024, 8192] {
            assert_eq!(fat_tree(hosts).hosts, hosts);
        }
        assert_eq!(fat_tree(8192).uplinks, [16, 16]);
        let slow = scenario("permutation-2M-degraded-4", spraying("reps-64").unwrap(), 128, 1);
        assert_eq!(slow.faults.len(), 4);
        let dead = scenario("dead-link-1", spraying("reps-64").unwrap(), 128, 1);
        assert_eq!(dead.faults.len(), 2);
    }
}
