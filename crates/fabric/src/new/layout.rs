//! Names, addresses and links of a fabric's nodes. All numbers begin at 1.

use std::net::Ipv4Addr;

use super::plan::Plan;
use experiment::random::{Random, SEED};

/// What a router is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Spine,
    Leaf,
}

/// A router.
#[derive(Debug, Clone)]
pub(super) struct Router {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) loopback: Ipv4Addr,
    pub(super) autonomous_system: u32,
    /// The seed of the multipath hash.
    pub(super) hash_seed: u32,
    /// The links to other routers.
    pub(super) ports: Vec<Port>,
}

/// A router's end of a link to another router.
#[derive(Debug, Clone)]
pub(super) struct Port {
    pub(super) interface: String,
    /// The other router.
    pub(super) neighbour: String,
    pub(super) neighbour_system: u32,
    /// The own address and the neighbour's, both in one /31 network.
    pub(super) address: Ipv4Addr,
    pub(super) neighbour_address: Ipv4Addr,
}

/// A host.
#[derive(Debug, Clone)]
pub(super) struct Host {
    pub(super) name: String,
    /// The MAC address as text.
    pub(super) mac: String,
    pub(super) address: Ipv4Addr,
    pub(super) leaf: String,
    /// The interface of the leaf.
    pub(super) port: String,
}

/// Two ends of a link between routers, as `NODE:INTERFACE`.
pub(super) type Cable = [String; 2];

/// The nodes and links of a fabric.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Spines first, in the order of their numbers.
    pub(super) routers: Vec<Router>,
    pub(super) hosts: Vec<Host>,
    /// Leaves to spines.
    pub(super) fabric: Vec<Cable>,
    /// Spines to spines of other sites.
    pub(super) between_sites: Vec<Cable>,
}

/// The first autonomous system of spines and that of leaves (RFC 6996: private use from 64512).
const SPINE_SYSTEM: u32 = 64_600;
const LEAF_SYSTEM: u32 = 65_001;

impl Layout {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut random = Random::new(SEED);
        let mut seed = || u32::try_from(random.next() >> 32).unwrap_or_default();
        let mut router = |role, site: usize, number: usize| {
            let (name, block, system) = match role {
                // The spines of a site are one autonomous system, so that no route passes two.
                Role::Spine => (format!("spine{number}"), 0, SPINE_SYSTEM as usize + site),
                Role::Leaf => (format!("leaf{number}"), 1, LEAF_SYSTEM as usize + number - 1),
            };
            Router {
                name,
                role,
                loopback: Ipv4Addr::new(10, 0, block, byte(number)),
                autonomous_system: u32::try_from(system).unwrap_or_default(),
                hash_seed: seed(),
                ports: Vec::new(),
            }
        };
        let mut spines = Vec::new();
        let mut leaves = Vec::new();
        for site in 0..plan.sites {
            let first = site * plan.spines;
            spines.extend((1..=plan.spines).map(|n| router(Role::Spine, site, first + n)));
        }
        for site in 0..plan.sites {
            let first = site * plan.leaves;
            leaves.extend((1..=plan.leaves).map(|n| router(Role::Leaf, site, first + n)));
        }
        let mut layout = Self {
            routers: Vec::new(),
            hosts: hosts(plan),
            fabric: Vec::new(),
            between_sites: Vec::new(),
        };
        for (leaves, spines) in leaves.chunks_mut(plan.leaves).zip(spines.chunks_mut(plan.spines)) {
            for leaf in leaves {
                for (at, spine) in spines.iter_mut().enumerate() {
                    let network = network(1, layout.fabric.len());
                    let down = format!("dn{}", spine.ports.len() + 1);
                    let up = format!("up{}", at + 1);
                    layout.fabric.push(connect((leaf, up), (spine, down), network));
                }
            }
        }
        layout.connect_sites(plan, &mut spines);
        layout.routers = spines.into_iter().chain(leaves).collect();
        layout
    }

    /// Connects each spine to each spine of the other sites.
    fn connect_sites(&mut self, plan: &Plan, spines: &mut [Router]) {
        let mut numbers = vec![0; spines.len()];
        for near in 0..spines.len() {
            // The first spine of the next site.
            let next = (near / plan.spines + 1) * plan.spines;
            for far in next..spines.len() {
                let mut name = |spine: usize| {
                    let number = numbers.get_mut(spine)?;
                    *number += 1;
                    Some(format!("dci{number}"))
                };
                let (Some(near_name), Some(far_name)) = (name(near), name(far)) else { continue };
                let Ok([a, b]) = spines.get_disjoint_mut([near, far]) else { continue };
                let network = network(2, self.between_sites.len());
                // The near end has the even address.
                self.between_sites.push(connect((b, far_name), (a, near_name), network));
            }
        }
        for ends in &mut self.between_sites {
            ends.reverse();
        }
    }

    /// The number of links; a circuit is one.
    pub(super) fn links(&self) -> usize {
        self.fabric.len() + self.between_sites.len() + self.hosts.len()
    }
}

/// Gives two routers a link. The second has the even address.
fn connect(
    (a, a_name): (&mut Router, String),
    (b, b_name): (&mut Router, String),
    network: Ipv4Addr,
) -> Cable {
    let (odd, even) = (Ipv4Addr::from(u32::from(network) + 1), network);
    let ends = [format!("{}:{a_name}", a.name), format!("{}:{b_name}", b.name)];
    let port = |interface, other: &Router, address, neighbour_address| Port {
        interface,
        neighbour: other.name.clone(),
        neighbour_system: other.autonomous_system,
        address,
        neighbour_address,
    };
    let (to_b, to_a) = (port(a_name, b, odd, even), port(b_name, a, even, odd));
    a.ports.push(to_b);
    b.ports.push(to_a);
    ends
}

/// The /31 network of a link: 10.BLOCK.0.0 and the following.
fn network(block: u32, index: usize) -> Ipv4Addr {
    let index = u32::try_from(index).unwrap_or_default();
    Ipv4Addr::from((10 << 24) + (block << 16) + 2 * index)
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or_default()
}

fn hosts(plan: &Plan) -> Vec<Host> {
    let leaves = 1..=plan.sites * plan.leaves;
    let at = leaves.flat_map(|leaf| (1..=plan.hosts).map(move |port| (leaf, port)));
    let host = |(index, (leaf, port)): (usize, (usize, usize))| {
        let number = index + 1;
        Host {
            name: format!("host{number}"),
            mac: format!("02:00:00:00:{:02x}:{:02x}", byte(leaf), byte(port)),
            address: Ipv4Addr::new(192, 168, 10, byte(number)),
            leaf: format!("leaf{leaf}"),
            port: format!("hp{port}"),
        }
    };
    at.enumerate().map(host).collect()
}
