//! The management network, as in ContainerLab: `eth0` of each node leads to one bridge, and the names
//! of nodes are those of its addresses. It leads to no other machine, and no route uses it.

use std::fs;

use crate::netns::{self, Namespace, NetnsError};
use crate::node::{Node, NodeError};
use crate::rtnl::VethEnd;
use crate::topology::{ETH0, Topology};

/// The bridge, in a namespace of its own.
const BRIDGE: &str = "mgmt";
const WITHOUT_IPV6: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";

/// Makes the bridge in a namespace of this name, and connects the nodes that have an address.
pub(crate) fn connect(topology: &Topology, name: &str, nodes: &[Node]) -> Result<(), NodeError> {
    let network = &topology.management;
    let with_length = |address| format!("{address}/{}", network.prefix_length);
    let mut bridge = None;
    for (index, node) in nodes.iter().enumerate() {
        let Some(address) = node.settings.management else { continue };
        let between = match &bridge {
            Some(between) => between,
            None => bridge.insert(create(name, &with_length(network.gateway))?),
        };
        let own = node.namespace()?;
        let port = format!("eth{index}");
        let [inner, outer] =
            [ETH0, &port].map(|name| VethEnd { name, mac: None, mtu: network.mtu });
        // Otherwise each end would look for IPv6 neighbours at all others.
        let before = switch_ipv6_off(&own)?;
        netns::veth_pair((&own, inner), (between, outer))?;
        // As before, for the links of the file.
        let _ = own.enter(|| before.map(|text| fs::write(WITHOUT_IPV6, text)))?;
        between.rtnl(|rtnl| rtnl.set_master(&port, Some(BRIDGE)))?;
        own.rtnl(|rtnl| rtnl.add_address(ETH0, &with_length(address)))?;
    }
    Ok(())
}

fn create(name: &str, gateway: &str) -> Result<Namespace, NetnsError> {
    let between = Namespace::create(name)?.keep();
    switch_ipv6_off(&between)?;
    between.rtnl(|rtnl| {
        rtnl.add_bridge(BRIDGE, false)?;
        rtnl.add_address(BRIDGE, gateway)
    })?;
    Ok(between)
}

/// New interfaces of the namespace have no IPv6. Returns the setting before; `None` on a kernel
/// without IPv6.
fn switch_ipv6_off(namespace: &Namespace) -> Result<Option<String>, NetnsError> {
    namespace.enter(|| {
        let before = fs::read_to_string(WITHOUT_IPV6).ok()?;
        fs::write(WITHOUT_IPV6, "1").ok().map(|()| before)
    })
}

/// The lines of a node's `/etc/hosts` about its own name, and those of the others. `fabric` is the
/// name of the fabric.
pub(crate) fn hosts(topology: &Topology, fabric: &str, node: &Node) -> String {
    // A node in the namespace of another one has its names, too.
    let owner = node.settings.shares.as_deref().unwrap_or(node.name());
    let Some(own) = topology.nodes.get(owner).and_then(|owner| owner.management) else {
        return format!("127.0.1.1 {}\n", node.hostname());
    };
    let line = |address, first: Option<&str>, name: &str| {
        let container = topology.management.container(fabric, name);
        let aliases = topology.nodes.get(name).into_iter().flat_map(|node| &node.aliases);
        let all = [name, &container].into_iter().chain(aliases.map(String::as_str));
        // Only one line has the host name: `hostname -i` prints the address of each that has it.
        let all = first.into_iter().chain(all.filter(|name| Some(*name) != first));
        format!("{address} {}\n", all.collect::<Vec<_>>().join(" "))
    };
    let others = topology.nodes.iter().filter(|(name, _)| *name != owner);
    let others = others.filter_map(|(name, other)| Some(line(other.management?, None, name)));
    [line(own, Some(node.hostname()), owner)].into_iter().chain(others).collect()
}
