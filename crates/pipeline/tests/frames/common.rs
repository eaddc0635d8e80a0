//! Leaves and frames for tests. etherparse builds the frames, so that the tests do not depend on
//! the code under test.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use etherparse::PacketBuilder;
use path::{Entropy, Policy, Settings};
use pipeline::{
    Batch, Checksum, Counters, Frame, Gso, GsoKind, Offload, Pipeline, TxBatch, VlanTag,
};
use tables::{
    Learning, NextHop, Paths, Snapshot, SnapshotBuilder, Tos, Tunnel, VniIndex, VniTable, Vtep,
    VtepIndex,
};
use test_frames::{IPV4, IPV6, Ipv4, Ipv6, ROCE, UDP, ethernet};
use wire::{MacAddr, Vni};

pub(crate) const SLOT: u16 = 7;
pub(crate) const VNI: u32 = 10_010;
pub(crate) const LEAF_1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const LEAF_2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Destination MAC address of this module's frames. It is known behind [`LEAF_2`].
pub(crate) const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
pub(crate) const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
/// The vxlan netdev's own MAC address.
pub(crate) const NETDEV: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// IP addresses of a sender and a receiver.
pub(crate) const HOSTS_4: ([u8; 4], [u8; 4]) = ([10, 1, 0, 1], [10, 1, 0, 2]);
const HOSTS_6: ([u8; 16], [u8; 16]) = ([1; 16], [2; 16]);
pub(crate) const UDP_AT: usize = 34;
pub(crate) const OUTER: usize = 50;

/// A leaf whose settings can be changed before its snapshot is taken.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub tunnel: Tunnel,
    pub settings: Settings,
    pub vteps: Vec<(IpAddr, Vec<NextHop>)>,
    pub fdb: Vec<([u8; 6], u32)>,
    pub hosts: Vec<([u8; 6], u32)>,
    pub flood: Vec<u32>,
    pub strict: bool,
    pub learning: Option<Learning>,
    pub generation: u64,
}

pub(crate) fn hop(ifindex: u32) -> NextHop {
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

impl Leaf {
    /// Leaf 1: one VNI, one known host behind leaf 2, two uplinks. Leaves 2 and 3 are in the flood
    /// list.
    pub(crate) fn one() -> Self {
        Self {
            tunnel: Tunnel {
                tos: Tos::Inherit,
                udp_checksum: false,
                ..Tunnel::new(Vni::try_from(VNI).unwrap(), LEAF_1.into())
            },
            settings: Settings { policy: Policy::QpHash, seed: 1, ..Settings::default() },
            vteps: vec![
                (LEAF_2.into(), vec![hop(3), hop(4)]),
                ([10, 0, 0, 3].into(), vec![hop(3), hop(4)]),
            ],
            fdb: vec![(HOST, 0)],
            hosts: Vec::new(),
            flood: vec![0, 1],
            strict: false,
            learning: None,
            generation: 1,
        }
    }

    /// Leaf 2: the remote end.
    pub(crate) fn two() -> Self {
        let mut leaf = Self::one();
        leaf.tunnel.local = LEAF_2.into();
        leaf.vteps[0].0 = LEAF_1.into();
        leaf
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut builder = SnapshotBuilder::new(self.generation);
        let entropy = Entropy::new(self.settings).unwrap();
        let table = VniTable::new(VniIndex::new(SLOT).unwrap(), self.tunnel.clone(), entropy);
        builder.vni(Arc::new(VniTable {
            netdev: "vx10010".to_owned(),
            mac: Some(MacAddr(NETDEV)),
            fdb: self.fdb.iter().map(|(mac, index)| (MacAddr(*mac), VtepIndex(*index))).collect(),
            hosts: self.hosts.iter().map(|(mac, port)| (MacAddr(*mac), *port)).collect(),
            flood: self.flood.iter().copied().map(VtepIndex).collect(),
            strict_vtep: self.strict,
            learning: self.learning.clone(),
            ..table
        }));
        for ((address, hops), index) in self.vteps.iter().zip(0..) {
            let paths = Arc::new(Paths::new(hops.clone()));
            builder.vtep(VtepIndex(index), Vtep { address: *address, paths });
        }
        builder.build()
    }
}

/// A received frame that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owned {
    pub data: Vec<u8>,
    pub vlan: Option<VlanTag>,
    pub offload: Offload,
}

impl Owned {
    /// A frame from the bridge punt pair.
    pub(crate) fn tagged(data: Vec<u8>) -> Self {
        let vlan = Some(VlanTag { tpid: 0x88a8, tci: SLOT });
        Self { data, vlan, offload: Offload::default() }
    }

    /// A frame from the underlay punt pair.
    pub(crate) fn plain(data: Vec<u8>) -> Self {
        Self { data, vlan: None, offload: Offload::default() }
    }

    pub(crate) fn partial(mut self, start: usize, offset: u16) -> Self {
        self.offload.checksum = Checksum::Partial { start: start as u16, offset };
        self
    }

    pub(crate) fn gso(mut self, kind: GsoKind, size: u16) -> Self {
        self.offload.gso = Some(Gso { kind, size, ecn: false });
        self
    }

    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame { data: &self.data, vlan: self.vlan, offload: self.offload }
    }
}

/// A frame whose bytes live until the process ends, because a batch only borrows its frames.
pub(crate) fn leaked(frame: &Owned) -> Frame<'static> {
    let frame = frame.frame();
    Frame { data: frame.data.to_vec().leak(), ..frame }
}

/// A pipeline with its batches.
pub(crate) struct Worker {
    pub pipeline: Pipeline,
    pub batch: Batch<'static>,
    pub out: TxBatch,
}

impl Worker {
    pub(crate) fn new() -> Self {
        let pipeline = Pipeline::new(Arc::new(Counters::new()));
        Self { pipeline, batch: Batch::new(256), out: TxBatch::new() }
    }

    pub(crate) fn fill(&mut self, frames: &[Owned]) {
        self.batch.clear();
        self.out.clear();
        for frame in frames {
            assert!(self.batch.push(leaked(frame)));
        }
    }

    pub(crate) fn encapsulate_at(
        &mut self,
        frames: &[Owned],
        snapshot: &Snapshot,
        now: Instant,
    ) -> Vec<Vec<u8>> {
        self.fill(frames);
        self.pipeline.encapsulate(&self.batch, snapshot, now, &mut self.out);
        self.bytes()
    }

    pub(crate) fn encapsulate(&mut self, frames: &[Owned], snapshot: &Snapshot) -> Vec<Vec<u8>> {
        self.encapsulate_at(frames, snapshot, Instant::now())
    }

    pub(crate) fn decapsulate_at(
        &mut self,
        frames: &[Owned],
        snapshot: &Snapshot,
        now: Instant,
    ) -> Vec<Vec<u8>> {
        self.fill(frames);
        self.pipeline.decapsulate(&self.batch, snapshot, now, &mut self.out);
        self.bytes()
    }

    pub(crate) fn decapsulate(&mut self, frames: &[Owned], snapshot: &Snapshot) -> Vec<Vec<u8>> {
        self.decapsulate_at(frames, snapshot, Instant::now())
    }

    pub(crate) fn bytes(&self) -> Vec<Vec<u8>> {
        self.out.iter().map(|transmit| transmit.to_vec(&self.batch)).collect()
    }

    /// Checks `received + copies = sent + Σ dropped + held`. `pending` is the number of frames in
    /// `out`.
    pub(crate) fn assert_balance(&self, pending: usize) {
        let counters = self.pipeline.counters();
        let received = counters.underlay_received.get() + counters.bridge_received.get();
        assert_eq!(
            received + counters.copies.get(),
            counters.sent.get() + counters.dropped_in_all() + counters.held.get() + pending as u64,
            "{counters:?}"
        );
    }

    pub(crate) fn dropped(&self, reason: pipeline::DropReason) -> u64 {
        self.pipeline.counters().dropped(reason)
    }
}

/// Removes the tag from a frame for the bridge punt pair.
pub(crate) fn untagged(frame: &[u8]) -> Vec<u8> {
    assert_eq!(&frame[12..16], &[0x88, 0xa8, 0, SLOT as u8]);
    [&frame[..12], &frame[16..]].concat()
}

/// An encapsulated frame, split into outer headers and inner frame.
pub(crate) struct Encapsulated {
    pub ip: etherparse::Ipv4Header,
    pub udp: etherparse::UdpHeader,
    pub vxlan: [u8; 8],
    pub inner: Vec<u8>,
}

/// Parses an encapsulated frame and checks what must hold for every one.
pub(crate) fn open(frame: &[u8]) -> Encapsulated {
    let packet = etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap();
    let Some(etherparse::NetHeaders::Ipv4(ip, _)) = packet.net else { panic!("{:?}", packet.net) };
    let Some(etherparse::TransportHeader::Udp(udp)) = packet.transport else {
        panic!("{:?}", packet.transport)
    };
    assert_eq!(usize::from(ip.total_len), frame.len() - 14);
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    assert_eq!(usize::from(udp.length), frame.len() - 34);
    assert_eq!(ip.fragment_offset.value(), 0);
    assert!(!ip.more_fragments);
    Encapsulated { ip, udp, vxlan: frame[42..50].try_into().unwrap(), inner: frame[50..].to_vec() }
}

/// Base transport header and payload of a RoCE packet, with a dummy ICRC.
pub(crate) fn bth(queue_pair: u32, sequence: u32, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|at| at as u8).collect();
    let mut bytes = test_frames::bth(0x04, queue_pair, sequence, &payload);
    *bytes.last_chunk_mut().unwrap() = [0xde, 0xad, 0xbe, 0xef];
    bytes
}

pub(crate) fn udp4(tos: u8, source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let datagram = test_frames::udp_over_ipv4(HOSTS_4, (source_port, destination_port), payload);
    let fields = Ipv4 { tos, identification: 0x1234, ..Ipv4::default() };
    ethernet(SOURCE, HOST, IPV4, &test_frames::ipv4(HOSTS_4, UDP, &datagram, fields))
}

pub(crate) fn udp6(traffic_class: u8, payload: &[u8]) -> Vec<u8> {
    let datagram = test_frames::udp_over_ipv6(HOSTS_6, (49_152, ROCE), payload);
    let fields = Ipv6 { traffic_class, ..Ipv6::default() };
    ethernet(SOURCE, HOST, IPV6, &test_frames::ipv6(HOSTS_6, UDP, &datagram, fields))
}

pub(crate) fn roce(queue_pair: u32, sequence: u32) -> Vec<u8> {
    let mut frame = udp4(0, 49_152, 4791, &bth(queue_pair, sequence, 64));
    wire::icrc::fill(&mut frame[14..]).unwrap();
    frame
}

/// A TCP segment with timestamps. `flags` may be PSH, FIN and CWR.
pub(crate) fn tcp(ipv6: bool, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(SOURCE, HOST);
    let step = if ipv6 {
        ethernet.ipv6([1; 16], [2; 16], 64)
    } else {
        ethernet.ipv4([10, 1, 0, 1], [10, 1, 0, 2], 64)
    };
    let builder = step
        .tcp(40_000, 5_001, 0xffff_f000, 1_000)
        .ack(77)
        .options(&[etherparse::TcpOptionElement::Timestamp(1, 2)])
        .unwrap();
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    let l4 = 14 + if ipv6 { 40 } else { 20 };
    frame[l4 + 13] |= flags;
    checksum_tcp(&mut frame, l4);
    frame
}

/// Writes the right TCP checksum.
pub(crate) fn checksum_tcp(frame: &mut [u8], l4: usize) {
    let value = transport_checksum(frame, l4);
    frame[l4 + 16..l4 + 18].copy_from_slice(&value.to_be_bytes());
}

/// The checksum of the transport header at `l4`, as computed by etherparse.
pub(crate) fn transport_checksum(frame: &[u8], l4: usize) -> u16 {
    let ipv6 = is_ipv6(frame, l4);
    let tcp = if ipv6 { frame[l4 - 34] } else { frame[l4 - 11] } == 6;
    let (header, payload) =
        frame[l4..].split_at(if tcp { usize::from(frame[l4 + 12] >> 4) * 4 } else { 8 });
    let v4 = || (frame[l4 - 8..l4 - 4].try_into().unwrap(), frame[l4 - 4..l4].try_into().unwrap());
    let v6 =
        || (frame[l4 - 32..l4 - 16].try_into().unwrap(), frame[l4 - 16..l4].try_into().unwrap());
    if tcp {
        let header = etherparse::TcpHeader::from_slice(header).unwrap().0;
        if ipv6 {
            header.calc_checksum_ipv6_raw(v6().0, v6().1, payload).unwrap()
        } else {
            header.calc_checksum_ipv4_raw(v4().0, v4().1, payload).unwrap()
        }
    } else {
        let header = etherparse::UdpHeader::from_slice(header).unwrap().0;
        if ipv6 {
            header.calc_checksum_ipv6_raw(v6().0, v6().1, payload).unwrap()
        } else {
            header.calc_checksum_ipv4_raw(v4().0, v4().1, payload).unwrap()
        }
    }
}

/// Replaces a transport checksum by the sum of the pseudo header, like a sender that leaves the
/// checksum to its device.
pub(crate) fn leave_to_card(frame: &mut [u8], l4: usize, offset: usize) {
    let at = l4 + offset;
    let length = frame.len() - l4;
    let mut sum = length as u32 + if offset == 16 { 6 } else { 17 };
    let ipv6 = is_ipv6(frame, l4);
    for pair in frame[l4 - if ipv6 { 32 } else { 8 }..l4].chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
}

/// Whether an IPv6 header without extension headers precedes the transport header.
fn is_ipv6(frame: &[u8], l4: usize) -> bool {
    l4 >= 54 && frame[l4 - 42..l4 - 40] == [0x86, 0xdd]
}

/// An SCTP packet without and with its checksum.
pub(crate) fn sctp() -> (Vec<u8>, Vec<u8>) {
    let header = [0x10, 0, 0x20, 0, 0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, 0];
    let packet: Vec<u8> = header.into_iter().chain((0..16).map(|i| i * 11)).collect();
    let before =
        ethernet(SOURCE, HOST, IPV4, &test_frames::ipv4(HOSTS_4, 132, &packet, Ipv4::default()));
    let mut after = before.clone();
    // CRC-32C by definition: the remainder of a bitwise polynomial division.
    let mut register = u32::MAX;
    for byte in &before[34..] {
        for bit in 0..8 {
            let feedback = (register ^ u32::from(byte >> bit)) & 1;
            register = (register >> 1) ^ (feedback * 0x82f6_3b78);
        }
    }
    after[42..46].copy_from_slice(&(!register).to_le_bytes());
    (before, after)
}

/// Encapsulates these inner frames as packets from the underlay, with this ECN field in the outer
/// header.
pub(crate) fn carried(inner: &[Vec<u8>], ecn: u8) -> Vec<Owned> {
    let carry = |inner: &Vec<u8>| {
        let sent =
            Worker::new().encapsulate(&[Owned::tagged(inner.clone())], &Leaf::one().snapshot());
        let mut data = sent.into_iter().next().unwrap();
        data[15] |= ecn;
        data[24..26].fill(0);
        let sum = wire::checksum::checksum(&data[14..34]);
        data[24..26].copy_from_slice(&sum.to_be_bytes());
        Owned::plain(data)
    };
    inner.iter().map(carry).collect()
}

/// A host port without an MTU limit.
pub(crate) const fn open_port(ifindex: u32) -> tables::OpenPort {
    tables::OpenPort { ifindex, mtu: 65_535 }
}
