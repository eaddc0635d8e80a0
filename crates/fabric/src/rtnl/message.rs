//! Interfaces, forwarding database entries and routes, from the kernel's messages.

use std::net::IpAddr;

use netlink::{LinkKind, Message};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage};
use wire::MacAddr;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The index.
    pub index: u32,
    /// The name.
    pub name: String,
    /// Whether it is set up (`IFF_UP`).
    pub up: bool,
    /// Whether it has a carrier (`IFF_LOWER_UP`).
    pub carrier: bool,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The index of its bridge, bond or VRF.
    pub master: Option<u32>,
    /// Whether it is a bridge.
    pub bridge: bool,
    /// The settings of a VXLAN netdev that has a VNI and a local VTEP address.
    pub vxlan: Option<Vxlan>,
}

/// The settings of a VXLAN netdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// The VNI.
    pub vni: u32,
    /// The local VTEP address.
    pub local: IpAddr,
    /// The UDP destination port of what it sends.
    pub port: u16,
}

/// An entry of a forwarding database of a bridge or a VXLAN netdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FdbEntry {
    /// The index of the bridge port or VXLAN netdev.
    pub index: u32,
    /// The MAC address.
    pub mac: MacAddr,
    /// The remote VTEP, for entries of a VXLAN netdev.
    pub remote: Option<IpAddr>,
}

/// An IPv4 or IPv6 route. Two values are equal if all attributes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route(RouteMessage);

impl Route {
    /// Whether the route is to exactly this address (a prefix of 32 or 128 bits).
    #[must_use]
    pub fn is_to(&self, address: IpAddr) -> bool {
        let (length, destination) = match address {
            IpAddr::V4(address) => (32, RouteAddress::Inet(address)),
            IpAddr::V6(address) => (128, RouteAddress::Inet6(address)),
        };
        let destination = RouteAttribute::Destination(destination);
        self.0.header.destination_prefix_length == length
            && self.0.attributes.contains(&destination)
    }

    /// Whether a daemon of FRR owns the route, so that zebra installs it again if it is deleted
    /// (`is_selfroute` in zebra/rt_netlink.c).
    #[must_use]
    pub fn is_from_frr(&self) -> bool {
        matches!(u8::from(self.0.header.protocol), 11 | 186..=198)
    }

    /// The message that deletes the route. It names no next hops, because the kernel refuses both
    /// a next-hop object and its members, which it reports together.
    pub(super) fn deletion(&self) -> RouteMessage {
        let mut message = self.0.clone();
        message.attributes.retain(|attribute| {
            matches!(attribute, RouteAttribute::Destination(_) | RouteAttribute::Priority(_))
        });
        message
    }

    /// The indices of the interfaces that the route uses.
    #[must_use]
    pub fn interfaces(&self) -> Vec<u32> {
        let mut interfaces = Vec::new();
        for attribute in &self.0.attributes {
            match attribute {
                RouteAttribute::Oif(index) => interfaces.push(*index),
                RouteAttribute::MultiPath(hops) => {
                    interfaces.extend(hops.iter().map(|hop| hop.interface_index));
                }
                _ => {}
            }
        }
        interfaces
    }
}

/// The route of a message, if it is in the main table.
pub(super) fn main_route_of(mut message: RouteMessage) -> Option<Route> {
    // Ages and uses change while the route does not.
    message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::CacheInfo(_)));
    (message.header.table == RouteHeader::RT_TABLE_MAIN).then_some(Route(message))
}

/// `IFF_UP` and `IFF_LOWER_UP`.
const UP: u32 = 1;
const LOWER_UP: u32 = 1 << 16;

pub(super) fn link_of(message: Message) -> Option<Link> {
    let Message::Link(_, link) = message else { return None };
    let vxlan = |of: &netlink::Vxlan| {
        Some(Vxlan { vni: of.id, local: of.local?, port: of.destination_port })
    };
    Some(Link {
        index: link.ifindex,
        name: link.name,
        up: link.flags & UP != 0,
        carrier: link.flags & LOWER_UP != 0,
        mtu: link.mtu,
        master: link.master,
        bridge: matches!(link.kind, LinkKind::Bridge(_)),
        vxlan: if let LinkKind::Vxlan(of) = &link.kind { vxlan(of) } else { None },
    })
}

pub(super) fn fdb_entry_of(message: Message) -> Option<FdbEntry> {
    let Message::Fdb(_, entry) = message else { return None };
    Some(FdbEntry { index: entry.ifindex, mac: entry.mac, remote: entry.destination })
}
