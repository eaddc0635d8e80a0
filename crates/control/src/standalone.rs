//! Standalone: VNIs that the configuration describes, instead of a vxlan netdev.
//!
//! To everything that follows they are netdevs that the kernel tells of with each dump, only that
//! no interface has such an index: so routes, next hops, policies and publications are what they
//! are for netdevs. What a bridge would know of them, the worker's own does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink::{Dump, FdbEntry, Link, LinkKind, Message, Operation, Vxlan};
use tables::steering::FIRST_VIRTUAL;
use wire::{MacAddr, Vni};

/// `IFF_UP` and `IFF_LOWER_UP` (`include/uapi/linux/if.h`).
const UP: u32 = 0x1_0001;
/// `include/uapi/linux/if_arp.h`.
const ARPHRD_ETHER: u16 = 1;
/// `IF_OPER_UP` (RFC 2863, `include/uapi/linux/if.h`).
const OPERATIONAL: u8 = 6;
/// `NUD_PERMANENT` (`include/uapi/linux/neighbour.h`).
const PERMANENT: u16 = 0x80;

/// One VNI of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandaloneVni {
    /// The VNI.
    pub vni: Vni,
    /// This leaf's VTEP address.
    pub local: Ipv4Addr,
    /// The UDP port, sent to and listened to.
    pub destination_port: u16,
    /// The remote VTEPs: they get what is for everybody and for nobody known, and nobody else is
    /// listened to.
    pub remotes: BTreeSet<Ipv4Addr>,
    /// Stations that are behind a remote VTEP for good.
    pub macs: BTreeMap<MacAddr, Ipv4Addr>,
}

/// What the kernel would have said in a dump.
pub(crate) fn messages(vnis: &[StandaloneVni], what: Dump) -> Vec<Message> {
    let numbered = vnis.iter().zip(FIRST_VIRTUAL..);
    match what {
        Dump::Links => numbered
            .map(|(vni, ifindex)| Message::Link(Operation::New, link(vni, ifindex)))
            .collect(),
        Dump::Fdb => numbered
            .flat_map(|(vni, ifindex)| {
                let flood = vni.remotes.iter().map(|remote| (MacAddr::ZERO, *remote));
                let macs = vni.macs.iter().map(|(mac, remote)| (*mac, *remote));
                flood.chain(macs).map(move |(mac, remote)| {
                    Message::Fdb(Operation::New, entry(ifindex, mac, remote))
                })
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn link(vni: &StandaloneVni, ifindex: u32) -> Link {
    Link {
        ifindex,
        name: format!("vni{}", vni.vni),
        hardware_type: ARPHRD_ETHER,
        flags: UP,
        mtu: 0,
        mac: None,
        master: None,
        link: None,
        link_namespace: None,
        carrier: true,
        operstate: OPERATIONAL,
        kind: LinkKind::Vxlan(Box::new(Vxlan {
            id: vni.vni.get(),
            local: Some(IpAddr::V4(vni.local)),
            destination_port: vni.destination_port,
            udp_checksum: true,
            ..Vxlan::default()
        })),
        bridge_port_only: false,
        bridge_port: None,
        xdp: false,
        qdisc: String::new(),
    }
}

const fn entry(ifindex: u32, mac: MacAddr, remote: Ipv4Addr) -> FdbEntry {
    FdbEntry {
        ifindex,
        mac,
        destination: Some(IpAddr::V4(remote)),
        master: None,
        vlan: None,
        port: None,
        vni: None,
        source_vni: None,
        via: None,
        next_hop_id: None,
        state: PERMANENT,
        flags: 0,
    }
}
