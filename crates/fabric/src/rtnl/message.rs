//! Interfaces, forwarding database entries and routes, from the kernel's messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
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

pub(super) fn link_of(message: LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        mtu: 0,
        master: None,
        bridge: false,
        vxlan: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::LinkInfo(infos) if infos.contains(&LinkInfo::Kind(InfoKind::Vxlan)) => {
                link.vxlan = infos.iter().find_map(vxlan_of);
            }
            LinkAttribute::LinkInfo(infos) => {
                link.bridge = infos.contains(&LinkInfo::Kind(InfoKind::Bridge));
            }
            _ => {}
        }
    }
    link
}

fn vxlan_of(info: &LinkInfo) -> Option<Vxlan> {
    let LinkInfo::Data(InfoData::Vxlan(settings)) = info else { return None };
    let vni = settings.iter().find_map(|setting| match setting {
        InfoVxlan::Id(vni) => Some(*vni),
        _ => None,
    });
    let local = settings.iter().find_map(|setting| match setting {
        InfoVxlan::Local(local) => Some(IpAddr::V4(*local)),
        InfoVxlan::Local6(local) => Some(IpAddr::V6(*local)),
        _ => None,
    });
    let port = settings.iter().find_map(|setting| match setting {
        InfoVxlan::Port(port) => Some(*port),
        _ => None,
    });
    Some(Vxlan { vni: vni?, local: local?, port: port? })
}

/// An address by its bytes.
fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into());
    let v6 = || <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).into());
    v4().or_else(v6)
}

pub(super) fn fdb_entry_of(message: &NeighbourMessage) -> Option<FdbEntry> {
    let (mut mac, mut remote) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddr);
            }
            // The library decodes the address by the family of the message, here AF_BRIDGE.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
                remote = address_of(bytes);
            }
            _ => {}
        }
    }
    Some(FdbEntry { index: message.header.ifindex, mac: mac?, remote })
}
