//! Standalone mode: VNIs that the configuration describes, without a vxlan netdev.
//!
//! Each dump also gets messages for these VNIs, as if they were netdevs, with indices that no
//! interface has. Routes, next hops, policies and publications therefore work as for netdevs. The
//! worker's own bridge replaces the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink::{Dump, FdbEntry, Link, LinkKind, Message, Operation, Vxlan};
use tables::steering::FIRST_VIRTUAL;
use wire::{MacAddr, Vni};

/// `IFF_UP` and `IFF_LOWER_UP` (`include/uapi/linux/if.h`).
const UP: u32 = 0x1_0001;
/// `ARPHRD_ETHER` (`include/uapi/linux/if_arp.h`).
const ARPHRD_ETHER: u16 = 1;
/// `IF_OPER_UP` (RFC 2863, `include/uapi/linux/if.h`).
const OPERATIONAL: u8 = 6;
/// `NUD_PERMANENT` (`include/uapi/linux/neighbour.h`).
const PERMANENT: u16 = 0x80;

/// A VNI that the configuration describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandaloneVni {
    /// The VNI.
    pub vni: Vni,
    /// This leaf's VTEP address.
    pub local: Ipv4Addr,
    /// The UDP port, for sent and received packets.
    pub destination_port: u16,
    /// The remote VTEPs. They receive BUM frames. Packets from VTEPs that no VNI has are dropped.
    pub remotes: BTreeSet<Ipv4Addr>,
    /// MAC addresses that are always behind a remote VTEP.
    pub macs: BTreeMap<MacAddr, Ipv4Addr>,
}

/// The messages of a dump that describe these VNIs.
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
