//! The programs of the `offload` datapath do what the worker's pipeline does, byte for byte.
//!
//! `VTEPD_FRAMES` sets how many random frames are compared (1,000,000 if unset).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

mod both;
mod dropped;
mod leaf;
mod learning;
mod order;
mod own_tunnels;
mod pinned;
mod super_frames;

pub(crate) use both::kernel;
use both::{Both, LONGEST, Outcome};
use bpf::OffloadCounts;
use leaf::{
    HOST, LOCAL_IPV6, NETDEV_MAC, SLOT, VTEPS, VTEPS_IPV6, hop, local_of, tables, tables_ipv6,
};
use path::{Bins, Entropy, Policy, Settings};
use root_test::root_test;
use tables::{NextHop, Paths, SnapshotBuilder, Tunnel, VniTable, Vtep, VtepIndex};
use test_frames::{
    IPV4, IPV6, Ipv4, Ipv6, ROCE, UDP, bth, ethernet, ipv4, ipv6, tagged, udp, udp_over_ipv4,
    udp_over_ipv6, vxlan,
};

use wire::{MacAddr, Vni};

use crate::random::Random;

fn frames() -> u64 {
    std::env::var("VTEPD_FRAMES").map_or(1_000_000, |frames| frames.parse().unwrap())
}

/// Encapsulates random frames. Returns how many were offloaded, and how many the worker got.
fn encapsulate_random(tables: &[VniTable], frames: u64) -> (u64, u64) {
    let (mut both, mut random) = (Both::new(), Random(0x5eed));
    let (mut offloaded, mut left) = (0, 0);
    for table in tables {
        both.set(table.clone());
        for _ in 0..frames / tables.len() as u64 {
            let mut frame = random.frame();
            if random.below(8) == 0 {
                let more = random.below((LONGEST - frame.len()) as u64) as usize;
                frame.extend(random.bytes(more));
            }
            let vtep = random.one_of(&[0, 0, 1, 1, 1, 1, 2, 3, 4, 4]);
            match both.encapsulate(&mut frame, vtep).0 {
                Outcome::Offloaded => offloaded += 1,
                Outcome::Worker => left += 1,
                Outcome::Refused | Outcome::Kernel => {}
            }
        }
        both.assert_counters();
    }
    (offloaded, left)
}

#[root_test]
fn random_frames_are_encapsulated_as_by_the_pipeline() {
    let all = frames();
    let (offloaded, left) = encapsulate_random(&tables(), all);
    assert!(offloaded > all / 6 && left > all / 4, "{offloaded} offloaded, {left} left, of {all}");
}

#[root_test]
fn random_frames_are_encapsulated_over_ipv6_as_by_the_pipeline() {
    let all = frames() / 4;
    let (offloaded, left) = encapsulate_random(&tables_ipv6(), all);
    assert!(offloaded > all / 10 && left > all / 4, "{offloaded} offloaded, {left} left, of {all}");
}

/// The frame and the ports of `crates/path/tests/golden.rs`.
#[root_test]
fn golden_frames_get_their_ports() {
    let mut both = Both::new();
    let of = |policy, bins: u16| {
        let bins = Bins::try_from(bins).unwrap();
        Entropy::new(Settings { policy, seed: 7, bins, ..Settings::default() }).unwrap()
    };
    let datagram = udp((0xc000, ROCE), &bth(4, 0x1234, 0, &[]));
    let packet = ipv4(([10, 0, 0, 1], [10, 0, 0, 2]), UDP, &datagram, Ipv4::default());
    let frame = ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], IPV4, &packet);
    for (entropy, port) in [
        (of(Policy::QpHash, 4), 49152 + 7567),
        (of(Policy::QpBins, 4), 49152 + 5461),
        (of(Policy::QpBins, 1), 49152),
        (of(Policy::FiveTuple, 4), 32768 + 15312u16),
    ] {
        both.set(VniTable { entropy, ..tables().remove(0) });
        let (outcome, sent) = both.encapsulate(&mut frame.clone(), 0);
        assert_eq!(outcome, Outcome::Offloaded);
        assert_eq!(sent[34..36], port.to_be_bytes(), "{entropy:?}");
    }
}

/// An inner frame with an ECN field, and with a valid header checksum or a random one.
fn inner_frame(random: &mut Random) -> Vec<u8> {
    let mut frame = random.frame();
    if random.below(2) == 0 && frame.len() >= 34 && frame[12..14] == [0x08, 0x00] {
        frame[24..26].fill(0);
        let sum = wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    if random.below(8) == 0 {
        let more = random.below((LONGEST - frame.len() - 50) as u64) as usize;
        frame.extend(random.bytes(more));
    }
    let destination = random.one_of(&[HOST, HOST, [2, 0, 0, 0, 0, 0x56], [0xff; 6]]);
    frame[..6].copy_from_slice(&destination);
    match random.below(16) {
        0 => frame[6..12].fill(0),
        1 => frame[6..12].copy_from_slice(&NETDEV_MAC),
        2 => {}
        _ => frame[6] &= 0xfe,
    }
    frame
}

/// A packet for the leaf. A few are not quite right.
fn packet(random: &mut Random, table: &VniTable) -> Vec<u8> {
    let inner = inner_frame(random);
    let unknown = Ipv4Addr::new(10, 0, 0, 99);
    let known = random.one_of(&VTEPS);
    let from = match random.below(16) {
        0 => random.one_of(&[unknown, Ipv4Addr::BROADCAST, local_of(table)]),
        _ => known,
    };
    let flip = if random.below(32) == 0 { 1 << random.below(64) } else { 0 };
    let payload = vxlan(table.tunnel.vni.get(), flip, &inner);
    let vteps = (from.octets(), local_of(table).octets());
    let ports = (random.next() as u16, table.tunnel.destination_port);
    let has_checksum = random.below(2) == 0;
    let datagram =
        if has_checksum { udp_over_ipv4(vteps, ports, &payload) } else { udp(ports, &payload) };
    let fields = Ipv4 { tos: random.next() as u8, ..Ipv4::default() };
    let mut packet = ethernet([2; 6], [0; 6], IPV4, &ipv4(vteps, UDP, &datagram, fields));
    match random.below(32) {
        0 => packet.extend(random.bytes(8)),
        1 => packet.truncate(packet.len() - 1 - random.below(20) as usize),
        2..=6 => {
            let changed = 14 + random.below(packet.len() as u64 - 14) as usize;
            packet[changed] = random.next() as u8;
        }
        _ => {}
    }
    packet
}

/// The same over IPv6.
fn packet_ipv6(random: &mut Random, table: &VniTable) -> Vec<u8> {
    let inner = inner_frame(random);
    let from = match random.below(16) {
        0 => random.one_of(&[Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 99), LOCAL_IPV6]),
        _ => random.one_of(&VTEPS_IPV6[..4]),
    };
    let flip = if random.below(32) == 0 { 1 << random.below(64) } else { 0 };
    let payload = vxlan(table.tunnel.vni.get(), flip, &inner);
    let vteps = (from.octets(), LOCAL_IPV6.octets());
    let ports = (random.next() as u16, table.tunnel.destination_port);
    let has_checksum = random.below(4) != 0;
    let datagram =
        if has_checksum { udp_over_ipv6(vteps, ports, &payload) } else { udp(ports, &payload) };
    let fields = Ipv6 { traffic_class: random.next() as u8, ..Ipv6::default() };
    let mut packet = ethernet([2; 6], [0; 6], IPV6, &ipv6(vteps, UDP, &datagram, fields));
    match random.below(32) {
        0 => packet.extend(random.bytes(8)),
        1 => packet.truncate(packet.len() - 1 - random.below(20) as usize),
        2..=6 => {
            let changed = 14 + random.below(packet.len() as u64 - 14) as usize;
            packet[changed] = random.next() as u8;
        }
        _ => {}
    }
    packet
}

/// Decapsulates random packets. Returns how often each outcome was seen.
fn decapsulate_random(
    tables: &[VniTable],
    frames: u64,
    packet: fn(&mut Random, &VniTable) -> Vec<u8>,
) -> [u64; 4] {
    let (mut both, mut random) = (Both::new(), Random(0x5eed));
    let (mut outcomes, mut past_bridge) = ([0; 4], 0);
    for table in tables {
        both.set(table.clone());
        for _ in 0..frames / tables.len() as u64 {
            let (outcome, _) = both.decapsulate(&packet(&mut random, table));
            outcomes[outcome as usize] += 1;
        }
        both.assert_counters();
        past_bridge += both.pipeline.counters().past_bridge.get();
    }
    assert!(past_bridge > frames / 1000, "{past_bridge} past the bridge, of {frames}");
    outcomes
}

#[root_test]
fn random_packets_are_decapsulated_as_by_the_pipeline() {
    let all = frames();
    let outcomes = decapsulate_random(&tables(), all, packet);
    assert!(outcomes[0] > all / 3 && outcomes[1] > all / 8, "{outcomes:?} of {all}");
}

#[root_test]
fn random_packets_are_decapsulated_over_ipv6_as_by_the_pipeline() {
    let all = frames() / 4;
    let outcomes = decapsulate_random(&tables_ipv6(), all, packet_ipv6);
    // Before Linux 6.3, short frames are left to the worker.
    let least = if kernel() < (6, 3) { all / 4 } else { all / 3 };
    assert!(outcomes[0] > least && outcomes[1] > all / 8, "{outcomes:?} of {all}");
}

/// A packet with these type of service fields, from the first VTEP, with or without a checksum.
fn packet_of(table: &VniTable, tos: u8, inner: &[u8], has_checksum: bool) -> Vec<u8> {
    let vteps = (VTEPS[0].octets(), local_of(table).octets());
    let payload = vxlan(table.tunnel.vni.get(), 0, inner);
    let ports = (0xc000, table.tunnel.destination_port);
    let datagram =
        if has_checksum { udp_over_ipv4(vteps, ports, &payload) } else { udp(ports, &payload) };
    let fields = Ipv4 { tos, ..Ipv4::default() };
    ethernet([2; 6], [0; 6], IPV4, &ipv4(vteps, UDP, &datagram, fields))
}

const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

/// Untagged IPv4, IPv6, and IPv4 behind a VLAN tag.
fn inner_frames(class: u8) -> [Vec<u8>; 3] {
    let datagram = udp((1, 2), b"payload");
    let fields = Ipv4 { tos: class, ..Ipv4::default() };
    let four = ipv4(([10, 1, 0, 1], [10, 1, 0, 2]), UDP, &datagram, fields);
    let fields = Ipv6 { traffic_class: class, ..Ipv6::default() };
    let six = ipv6(([1; 16], [2; 16]), UDP, &datagram, fields);
    let four = ethernet(SOURCE, HOST, IPV4, &four);
    [four.clone(), ethernet(SOURCE, HOST, IPV6, &six), tagged(&four, 0x8100, 5)]
}

/// RFC 6040 figure 4: the resulting inner code point, by inner and outer code point.
const FIGURE_4: [[Option<u8>; 4]; 4] = [
    [Some(0), Some(0), Some(0), None],
    [Some(1), Some(1), Some(1), Some(3)],
    [Some(2), Some(1), Some(2), Some(3)],
    [Some(3), Some(3), Some(3), Some(3)],
];

#[root_test]
fn code_points_follow_the_outer_header() {
    let mut both = Both::new();
    let table = tables().remove(0);
    both.set(table.clone());
    for (inner, row) in (0u8..).zip(FIGURE_4) {
        for (outer, expected) in (0u8..).zip(row) {
            for class in [0, 0xb8, 0xfc] {
                let frames = inner_frames(class | inner);
                let [four, six, _] = inner_frames(class | expected.unwrap_or_default());
                let expected = expected.map(|_| [four, six]);
                for (place, frame) in frames.iter().enumerate() {
                    let packet = packet_of(&table, 0x28 | outer, frame, true);
                    let result = both.decapsulate(&packet);
                    let wanted = match (&expected, place) {
                        // The code point behind a tag stays.
                        (_, 2) => (Outcome::Offloaded, frame.clone()),
                        (Some(expected), _) => (Outcome::Offloaded, expected[place].clone()),
                        // The kernel refuses and counts it.
                        (None, _) => (Outcome::Kernel, packet),
                    };
                    assert_eq!(result, wanted, "inner {inner} outer {outer} frame {place}");
                }
            }
        }
    }
    both.assert_counters();
}

#[root_test]
fn wrong_packets_and_those_of_others_are_left_to_the_worker() {
    let mut both = Both::new();
    let table = tables().remove(0);
    both.set(table.clone());
    let [frame, six, _] = inner_frames(2);
    let good = packet_of(&table, 0, &frame, true);
    let mut outcome = |packet: &[u8]| both.decapsulate(packet).0;
    let changed = |at: usize, bytes: &[u8]| {
        let mut packet = packet_of(&table, 0, &frame, false);
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        packet[24..26].fill(0);
        let sum = wire::checksum::checksum(&packet[14..34]).to_be_bytes();
        packet[24..26].copy_from_slice(&sum);
        packet
    };
    assert_eq!(outcome(&good), Outcome::Offloaded);
    assert_eq!(outcome(&changed(0, &[])), Outcome::Offloaded);
    for at in [24, 25, 40, 41, 60, good.len() - 1] {
        let mut wrong = good.clone();
        wrong[at] ^= 1;
        assert_eq!(outcome(&wrong), Outcome::Worker, "a wrong checksum at {at}");
    }
    let senders = [[10, 0, 0, 99], [224, 0, 0, 1], [0; 4], [255; 4], local_of(&table).octets()];
    for sender in senders {
        assert_eq!(outcome(&changed(26, &sender)), Outcome::Worker, "{sender:?}");
    }
    assert_eq!(outcome(&changed(26, &VTEPS[4].octets())), Outcome::Offloaded, "class E");
    for source in [[0; 6], NETDEV_MAC, [3, 0, 0, 0, 0, 1], [0xff; 6]] {
        assert_eq!(outcome(&changed(56, &source)), Outcome::Worker, "{source:02x?}");
    }
    // The kernel refuses and counts an inner frame that ends within its IP header.
    for length in 20..34 {
        let short = packet_of(&table, 0, &frame[..length], true);
        assert_eq!(outcome(&short), Outcome::Kernel, "{length} bytes of IPv4");
    }
    for length in 20..54 {
        let short = packet_of(&table, 0, &six[..length], true);
        assert_eq!(outcome(&short), Outcome::Kernel, "{length} bytes of IPv6");
    }
    // A frame padded behind the packet.
    assert_eq!(outcome(&[&good[..], &[0; 4]].concat()), Outcome::Worker);
    // What is no packet of this VNI stays with the kernel.
    for at in [0, 12, 14, 20, 23, 33, 37, 42, 46, 48] {
        let mut other = changed(0, &[]);
        other[at] ^= 1;
        assert_eq!(outcome(&other), Outcome::Kernel, "byte {at}");
    }
}

/// The tables follow each snapshot, also in what is no VTEP's own.
#[root_test]
fn senders_follow_the_snapshot() {
    let mut both = Both::new();
    let table = tables().remove(0);
    both.set(table.clone());
    let [frame, ..] = inner_frames(0);
    let packet = packet_of(&table, 0, &frame, true);
    assert_eq!(both.decapsulate(&packet).0, Outcome::Offloaded);
    let own = |both: &Both, addresses: &[Ipv4Addr]| {
        let mut builder = SnapshotBuilder::after(&both.snapshot);
        builder.own(addresses.iter().copied().map(IpAddr::V4));
        builder.build()
    };
    both.set_snapshot(own(&both, &[VTEPS[0]]));
    assert_eq!(both.decapsulate(&packet).0, Outcome::Worker, "the leaf's own address");
    both.set_snapshot(own(&both, &[]));
    assert_eq!(both.decapsulate(&packet).0, Outcome::Offloaded);
    // Two VTEPs change their places.
    let mut builder = SnapshotBuilder::after(&both.snapshot);
    let [one, other] = [0, 1].map(|index| both.snapshot.vtep(VtepIndex(index)).unwrap().clone());
    builder.vtep(VtepIndex(0), other);
    builder.vtep(VtepIndex(1), one);
    both.set_snapshot(builder.build());
    assert_eq!(both.decapsulate(&packet).0, Outcome::Offloaded);
    let mut builder = SnapshotBuilder::after(&both.snapshot);
    builder.remove_vtep(VtepIndex(1));
    both.set_snapshot(builder.build());
    assert_eq!(both.decapsulate(&packet).0, Outcome::Worker, "no VTEP any more");
}

/// Sums never fall: counters stay when a VNI is not offloaded any more, and when a next hop is gone.
/// Another VTEP or VNI with the same index begins at zero.
#[root_test]
fn counters_belong_to_a_vni_and_a_vtep() {
    let mut both = Both::new();
    let table = tables().remove(0);
    both.set(table.clone());
    let [mut frame, ..] = inner_frames(0);
    assert_eq!(both.encapsulate(&mut frame, 0).0, Outcome::Offloaded);
    let snapshot = both.snapshot.clone();
    let sent = |counts: &OffloadCounts| {
        let of_vtep = counts.vteps.get(&0).map(|of| of.sent);
        (
            counts.vnis.get(&SLOT).map(|of| of.sent),
            of_vtep,
            counts.paths.get(&3).map(|of| of.frames),
        )
    };
    let changed = |change: &dyn Fn(&mut SnapshotBuilder)| {
        let mut builder = SnapshotBuilder::after(&snapshot);
        change(&mut builder);
        builder.build()
    };
    let all = (Some(1), Some(1), Some(1));
    assert_eq!(sent(&both.follow(&snapshot)), all);
    let kept = VniTable { offload: false, ..table.clone() };
    let userspace = changed(&|builder| builder.vni(Arc::new(kept.clone())));
    assert_eq!(sent(&both.follow(&userspace)), all, "not offloaded any more");
    assert_eq!(sent(&both.follow(&snapshot)), all, "offloaded again");
    let without = changed(&|builder| builder.remove_vtep(VtepIndex(0)));
    assert_eq!(sent(&both.follow(&without)), (Some(1), None, Some(1)), "no VTEP any more");
    assert_eq!(sent(&both.follow(&snapshot)), all, "the same VTEP");
    let paths = Arc::new(Paths::new(vec![hop(4)]));
    let other = Vtep { address: Ipv4Addr::new(10, 9, 9, 9).into(), paths };
    let another = changed(&|builder| builder.vtep(VtepIndex(0), other.clone()));
    assert_eq!(sent(&both.follow(&another)), (Some(1), Some(0), Some(1)), "another VTEP");
    let tunnel = Tunnel { vni: Vni::try_from(4711).unwrap(), ..table.tunnel };
    let vni = VniTable { tunnel, ..table };
    let another = changed(&|builder| builder.vni(Arc::new(vni.clone())));
    assert_eq!(sent(&both.follow(&another)).0, Some(0), "another VNI");
}

/// Next hops come and go more often than there are indices. Two of them have equal entries.
#[root_test]
fn indices_of_next_hops_are_used_again() {
    let mut both = Both::new();
    both.set(tables().remove(0));
    for round in 0..5_000u32 {
        let [.., high, low] = round.to_be_bytes();
        let changed = |ifindex| {
            let destination_mac = Some(MacAddr([2, 2, 0, 0, high, low]));
            NextHop { destination_mac, ..hop(ifindex) }
        };
        let twice = NextHop { identity: 99, ..changed(4) };
        let paths = Arc::new(Paths::new(vec![changed(4), twice, changed(7)]));
        let mut builder = SnapshotBuilder::after(&both.snapshot);
        builder.vtep(VtepIndex(0), Vtep { address: VTEPS[0].into(), paths });
        both.set_snapshot(builder.build());
    }
    let [mut frame, ..] = inner_frames(0);
    assert_eq!(both.encapsulate(&mut frame, 0).0, Outcome::Offloaded);
}

/// A header of the other IP version: the bridge decides, which may check packets (br_netfilter).
#[root_test]
fn a_contradicting_version_passes_the_bridge() {
    let mut both = Both::new();
    let table = tables().remove(0);
    both.set(table.clone());
    let [mut four, mut six, _] = inner_frames(0);
    // The length is right for the other version.
    four.extend([0; 20]);
    four[14] = 0x60;
    let length = four.len() as u16 - 54;
    four[18..20].copy_from_slice(&length.to_be_bytes());
    six[14] = 0x45;
    let length = six.len() as u16 - 14;
    six[16..18].copy_from_slice(&length.to_be_bytes());
    six[24..26].fill(0);
    let sum = wire::checksum::checksum(&six[14..34]);
    six[24..26].copy_from_slice(&sum.to_be_bytes());
    for frame in [four, six] {
        let packet = packet_of(&table, 0, &frame, true);
        assert_eq!(both.decapsulate(&packet), (Outcome::Offloaded, frame));
    }
    assert_eq!(both.pipeline.counters().past_bridge.get(), 0);
}
