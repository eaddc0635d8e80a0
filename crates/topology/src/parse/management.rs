//! The management network: which address each node has at `eth0`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde_norway::Value;

use super::value::{Result, expected, fields, number, string};
use crate::model::{Management, Node};

const SUBNET: &str = "a subnet with room for nodes, such as 172.20.20.0/24";

/// `mgmt:` of a file. The default is ContainerLab's.
pub(super) struct Network {
    pub(super) management: Management,
    /// Where the addresses of nodes come from, if not from the whole subnet.
    range: Option<(u32, u32)>,
    /// A note about keys without effect.
    pub(super) note: Option<String>,
}

impl Default for Network {
    fn default() -> Self {
        let management = Management {
            gateway: Ipv4Addr::new(172, 20, 20, 1),
            prefix_length: 24,
            ..Management::default()
        };
        Self { management, range: None, note: None }
    }
}

/// The first and the last address of a subnet, and its prefix length.
fn subnet(place: &str, text: &str) -> Result<(u32, u32, u8)> {
    let parse = || {
        let (address, length) = text.split_once('/')?;
        let length: u8 = length.parse().ok().filter(|length| (1..=30).contains(length))?;
        let first = u32::from(address.parse::<Ipv4Addr>().ok()?) & (u32::MAX << (32 - length));
        Some((first, first | (u32::MAX >> length), length))
    };
    parse().ok_or_else(|| expected(place, SUBNET))
}

pub(super) fn address(place: &str, value: &Value) -> Result<Ipv4Addr> {
    let text = string(place, value)?;
    text.parse().map_err(|_| expected(place, "an IPv4 address"))
}

impl Network {
    pub(super) fn parse(value: &Value) -> Result<Self> {
        let mut network = Self::default();
        let (mut gateway, mut without) = (None, Vec::new());
        for (key, value) in fields("mgmt", value)? {
            let place = format!("mgmt.{key}");
            match key {
                "ipv4-subnet" if string(&place, value)? == "auto" => {}
                // `ipv4_subnet` is its former name.
                "ipv4-subnet" | "ipv4_subnet" => {
                    let (first, _, length) = subnet(&place, &string(&place, value)?)?;
                    network.management.gateway = Ipv4Addr::from(first + 1);
                    network.management.prefix_length = length;
                }
                "ipv4-gw" => gateway = Some((place.clone(), address(&place, value)?)),
                "ipv4-range" => {
                    let (first, last, _) = subnet(&place, &string(&place, value)?)?;
                    network.range = Some((first, last));
                }
                "mtu" => {
                    let mtu = number(&place, value)?.try_into();
                    let mtu = mtu.map_err(|_| expected(&place, "a number of bytes"))?;
                    network.management.mtu = mtu;
                }
                "network" => {}
                _ => without.push(key),
            }
        }
        if let Some((place, gateway)) = gateway {
            let Management { gateway: default, prefix_length, .. } = network.management;
            let (first, last, _) = subnet(&place, &format!("{default}/{prefix_length}"))?;
            if !(first < gateway.into() && u32::from(gateway) < last) {
                return Err(expected(&place, "an address of the subnet"));
            }
            network.management.gateway = gateway;
        }
        let keys = without.join(", ");
        network.note = (!without.is_empty()).then(|| {
            format!("mgmt: no effect of {keys}: eth0 has IPv4, and leads to nodes of this lab only")
        });
        Ok(network)
    }

    /// Gives each node that has none an address, in the order of the names. If the subnet is too
    /// small, the last nodes have no `eth0`: the note names them.
    pub(super) fn assign(&self, nodes: &mut BTreeMap<String, Node>) -> Result<Option<String>> {
        let Management { gateway, prefix_length, .. } = self.management;
        let (first, last, _) = subnet("mgmt.ipv4-subnet", &format!("{gateway}/{prefix_length}"))?;
        let mut taken = BTreeSet::from([gateway]);
        for (name, node) in &*nodes {
            let Some(fixed) = node.management.filter(|address| !address.is_unspecified()) else {
                continue;
            };
            if !(first < fixed.into() && u32::from(fixed) < last && taken.insert(fixed)) {
                let place = format!("topology.nodes.{name}.mgmt-ipv4");
                return Err(expected(&place, "an address of the subnet that no other node has"));
            }
        }
        let (from, to) = self.range.unwrap_or((first, last));
        let mut free = (from.max(first + 1)..=to.min(last - 1))
            .map(Ipv4Addr::from)
            .filter(|address| !taken.contains(address));
        let mut left = Vec::new();
        for (name, node) in nodes {
            if node.management.is_some_and(|address| address.is_unspecified()) {
                node.management = free.next();
                left.extend(node.management.is_none().then_some(name.as_str()));
            }
        }
        let names = left.join(", ");
        Ok((!left.is_empty()).then(|| format!("mgmt: the subnet has no address for {names}")))
    }
}
