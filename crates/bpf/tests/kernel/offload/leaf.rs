//! The leaf whose tables programs and pipeline have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use path::{Bins, Entropy, Policy, Settings, SourcePortRange};
use tables::{
    DontFragment, FlowLabel, NextHop, Paths, Snapshot, SnapshotBuilder, Tos, Ttl, Tunnel, VniIndex,
    VniTable, Vtep, VtepIndex,
};
use wire::MacAddr;

/// `TESTED_SLOT` of the programs.
pub(super) const SLOT: u16 = 7;
/// Interface index of the vxlan netdev.
pub(super) const NETDEV: u32 = 70;
/// MAC address of the vxlan netdev.
pub(super) const NETDEV_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// A host port with an MTU of 1,500 bytes, and a host there.
pub(super) const HOST_PORT: u32 = 72;
pub(super) const HOST_MTU: u32 = 1500;
pub(super) const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0x55];
/// The remote VTEPs: one next hop; four of different weights, one of them with an MTU of 600 bytes;
/// one without a MAC address; none; a class E address.
pub(super) const VTEPS: [Ipv4Addr; 5] = [
    Ipv4Addr::new(10, 0, 0, 2),
    Ipv4Addr::new(10, 0, 0, 250),
    Ipv4Addr::new(10, 0, 0, 4),
    Ipv4Addr::new(10, 0, 0, 5),
    Ipv4Addr::new(240, 0, 0, 6),
];

/// The same over IPv6, the last one a multicast address.
pub(super) const VTEPS_IPV6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xfd00, 0, 1, 2, 3, 4, 5, 250),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 4),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 6),
];
/// The VNI's own address there.
pub(super) const LOCAL_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 7, 0, 0x1234, 0, 0, 1);

pub(super) fn hop(ifindex: u32) -> NextHop {
    let last = ifindex as u8;
    NextHop {
        ifindex,
        gateway: IpAddr::V4(Ipv4Addr::new(192, 168, last, 1)),
        identity: ifindex.into(),
        source_mac: MacAddr([2, 1, 0, 0, 0, last]),
        destination_mac: Some(MacAddr([2, 2, 0, 0, 0, last])),
        mtu: 9_500,
        weight: 1,
        path: ifindex as u16,
        by_default: false,
        impaired: false,
    }
}

fn next_hops(vtep: usize) -> Vec<NextHop> {
    match vtep {
        0 => vec![NextHop { by_default: true, ..hop(3) }],
        1 => vec![
            NextHop { weight: 3, ..hop(4) },
            NextHop { mtu: 600, ..hop(5) },
            NextHop { weight: 2, impaired: true, ..hop(6) },
            NextHop { weight: 250, by_default: true, ..hop(7) },
        ],
        2 => vec![NextHop { destination_mac: None, ..hop(8) }],
        3 => Vec::new(),
        _ => vec![hop(9), NextHop { destination_mac: None, ..hop(10) }],
    }
}

/// The policies, with several seeds and ranges.
fn policies() -> Vec<Entropy> {
    let range = |min, max| SourcePortRange::try_from((min, max)).unwrap();
    let new = |policy, seed, (min, max), bins| {
        let (bins, range) = (Bins::try_from(bins).unwrap(), range(min, max));
        let netdev_range = Some(range);
        Entropy::new(Settings { policy, seed, range, bins, netdev_range }).unwrap()
    };
    vec![
        new(Policy::QpHash, 0, (32768, 60998), 4),
        new(Policy::QpHash, u64::MAX, (1, 65535), 4),
        new(Policy::QpHash, 7, (7, 7), 1),
        new(Policy::QpBins, 3, (49152, 65535), 4),
        new(Policy::QpBins, 0x0123_4567_89ab_cdef, (32768, 60998), 1),
        new(Policy::QpBins, 9, (40000, 40999), 1000),
        new(Policy::FiveTuple, 0, (32768, 60999), 4),
        new(Policy::FiveTuple, u64::MAX, (1, 65535), 4),
        new(Policy::FiveTuple, 7, (7, 7), 1),
    ]
}

/// The settings of the VNI that are tested. Together they have every value of every field.
pub(super) fn tables() -> Vec<VniTable> {
    let table = |(entropy, number): (Entropy, usize)| VniTable {
        index: VniIndex::new(SLOT).unwrap(),
        netdev: "vx".to_owned(),
        mac: (number != 1).then_some(MacAddr(NETDEV_MAC)),
        tunnel: Tunnel {
            vni: (10_010 + number as u32 * 0x0001_0101).try_into().unwrap(),
            local: local(number).into(),
            destination_port: [4789, 8472, 65535][number % 3],
            ttl: [Ttl::Fixed(64), Ttl::Inherit { default: 255 }, Ttl::Fixed(1)][number / 2 % 3],
            tos: [Tos::Inherit, Tos::Fixed(0), Tos::Fixed(0xb9)][number / 3 % 3],
            df: [DontFragment::Unset, DontFragment::Set, DontFragment::Inherit][number % 3],
            udp_checksum: number % 2 == 1,
            flow_label: FlowLabel::default(),
            accepts_no_checksum: false,
        },
        entropy,
        fdb: (0..VTEPS.len()).map(|to| (MacAddr(remote(to)), VtepIndex(to as u32))).collect(),
        hosts: [(MacAddr(HOST), HOST_PORT)].into_iter().collect(),
        flood: Vec::new(),
        strict_vtep: number == 3,
        offload: true,
        learning: None,
    };
    let policies = policies();
    let twice = policies.iter().chain(&policies).copied();
    // The second time with another combination.
    twice.zip([0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 9, 10, 11, 12]).map(table).collect()
}

/// The same settings over IPv6.
pub(super) fn tables_ipv6() -> Vec<VniTable> {
    let over_ipv6 = |(table, number): (VniTable, usize)| {
        let tunnel = Tunnel {
            local: LOCAL_IPV6.into(),
            flow_label: [FlowLabel::SourcePort, FlowLabel::Fixed(0xab_cde)][number % 2],
            accepts_no_checksum: number % 3 == 0,
            ..table.tunnel
        };
        VniTable { tunnel, ..table }
    };
    tables().into_iter().zip(0..).map(over_ipv6).collect()
}

const fn local(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + 200 * (number as u8 % 2))
}

/// The VNI's own address.
pub(super) fn local_of(table: &VniTable) -> Ipv4Addr {
    let IpAddr::V4(local) = table.tunnel.local else { panic!("{table:?}") };
    local
}

/// MAC address of the host behind a VTEP.
pub(super) const fn remote(vtep: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, vtep as u8]
}

pub(super) fn snapshot(table: VniTable) -> Snapshot {
    let mut builder = SnapshotBuilder::new(1);
    let is_ipv6 = table.tunnel.local.is_ipv6();
    let own = [table.tunnel.local, [10, 9, 9, 9].into()];
    builder.own(own.into_iter());
    builder.vni(Arc::new(table));
    for index in 0..VTEPS.len() {
        let paths = Arc::new(Paths::new(next_hops(index)));
        let address = if is_ipv6 { VTEPS_IPV6[index].into() } else { IpAddr::from(VTEPS[index]) };
        builder.vtep(VtepIndex(index as u32), Vtep { address, paths });
    }
    builder.build()
}
