//! Super-frames and checksums that are left to the device, from host to host over two leaves. A test
//! run cannot have those. Super-frames that cannot be forwarded whole are split.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::TcAttachType;
use fabric::counters;
use fabric::netns::{Namespace, veth};
use frame::{
    Batch, Checksum, Destination, Gso, GsoKind, Offload, Payload, TxBatch, TxFrame, VlanTag,
};
use netlink::PrivateNamespace;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use path::Paths;
use pipeline::Frame;
use pipeline::grouping::patch_lengths;
use pipeline::gso::Segmenter;
use ports::{PacketSocket, Port as _, RingSize};
use root_test::root_test;
use tables::{NextHop, OpenPort, SnapshotBuilder, VniTable, Vtep, VtepIndex};
use test_frames::{IPV4, IPV6, Ipv4, Ipv6, TCP, UDP, ethernet, ipv4, ipv6, udp};
use wire::MacAddr;
use wire::checksum::Sum;
use worker::{Features, PrivateLink};

use super::SOURCE;
use super::both::{Both, OUTER, open_host_port, program};
use super::leaf::{HOST, SLOT, VTEPS, hop, local_of, remote, tables};

const SEGMENT: u16 = 1000;

/// A host behind a leaf, the leaf, and sockets at the host and at the leaf's uplink.
pub(super) struct Side {
    pub host: Namespace,
    pub leaf: Namespace,
    pub both: Both,
    pub at_host: PacketSocket,
    at_uplink: PacketSocket,
    kill_switch: ProgramArray<MapData>,
    _splitter: (PrivateLink, PrivateNamespace),
}

pub(super) fn ifindex(namespace: &Namespace, name: &str) -> u32 {
    namespace.enter(|| nix::net::if_::if_nametoindex(name).unwrap()).unwrap()
}

pub(super) fn open(namespace: &Namespace, name: &str) -> PacketSocket {
    let index = ifindex(namespace, name);
    namespace.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap()
}

/// The settings of the second leaf: those of the first one, with the addresses swapped.
pub(super) fn far(table: &VniTable) -> VniTable {
    let mut far = table.clone();
    far.tunnel.local = VTEPS[0].into();
    far
}

fn attach(ebpf: &mut Ebpf, name: &str, interface: &str) {
    program(ebpf, name).attach(interface, TcAttachType::Ingress).unwrap();
}

impl Side {
    fn new((host, leaf): (Namespace, Namespace), splits_all: bool) -> Self {
        let with_splitter = || {
            let private = PrivateNamespace::create().unwrap();
            let link = PrivateLink::splitter(&private).unwrap();
            let (ifindex, name) = link.near();
            let mut both = Both::with_splitter(ifindex, splits_all);
            attach(&mut both.ebpf, "vtepd_split", name);
            let attach_far = || {
                attach(&mut both.ebpf, "vtepd_split_far", name);
                Ok(())
            };
            private.enter(attach_far).unwrap();
            link.up(&private).unwrap();
            let mut kill_switch: ProgramArray<_> =
                both.ebpf.take_map("kill_switch").unwrap().try_into().unwrap();
            let uplink = program(&mut both.ebpf, "steer_uplink");
            kill_switch.set(0, uplink.fd().unwrap(), 0).unwrap(); // HOOK_UPLINK
            (both, kill_switch, (link, private))
        };
        let (both, kill_switch, splitter) = leaf.enter(with_splitter).unwrap();
        let (at_host, at_uplink) = (open(&host, "eth0"), open(&leaf, "up1"));
        Self { host, leaf, both, at_host, at_uplink, kill_switch, _splitter: splitter }
    }

    pub(super) fn attach(&mut self, program: &str, interface: &str) {
        self.leaf.enter(|| attach(&mut self.both.ebpf, program, interface)).unwrap();
    }

    /// Sets the tables. The first VTEP is at this address, behind the uplink.
    pub(super) fn set(&mut self, table: VniTable, address: std::net::Ipv4Addr) {
        let port = ifindex(&self.leaf, "hp1");
        let hosts = [(MacAddr(HOST), port)].into_iter().collect();
        self.both.set(VniTable { hosts, ..table });
        let uplink = ifindex(&self.leaf, "up1");
        let next_hop = NextHop {
            ifindex: uplink,
            path: 3,
            destination_mac: Some(MacAddr([2, 0, 0, 0, 0xaa, 2])),
            ..hop(3)
        };
        let mut builder = SnapshotBuilder::after(&self.both.snapshot);
        builder.vtep(
            VtepIndex(0),
            Vtep { address: address.into(), paths: Arc::new(Paths::new(vec![next_hop])) },
        );
        self.both.set_snapshot(builder.build());
        open_host_port(&mut self.both.ebpf, port);
        self.both.pipeline.open_ports(&[OpenPort { ifindex: port, mtu: 1500 }]);
    }
}

/// Two leaves, with a host each.
pub(super) fn sides(splits_all: bool) -> [Side; 2] {
    let namespace = |name: &str| {
        let name = format!("vtp-offload-{name}-{}", std::process::id());
        let namespace = Namespace::create(name).unwrap();
        namespace.run(&["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]).unwrap();
        namespace
    };
    let pairs = [1, 2].map(|n| (namespace(&format!("host{n}")), namespace(&format!("leaf{n}"))));
    for (host, leaf) in &pairs {
        veth((leaf, "hp1"), (host, "eth0"), 1500).unwrap();
    }
    let [(_, one), (_, two)] = &pairs;
    veth((one, "up1"), (two, "up1"), 9500).unwrap();
    two.run(&["ip", "link", "set", "up1", "address", "02:00:00:00:aa:02"]).unwrap();
    pairs.map(|pair| Side::new(pair, splits_all))
}

/// A frame with a partial checksum for the host behind the second leaf, and with offloads.
pub(super) fn partial(protocol: u8, is_ipv6: bool, tos: u8, payload: usize) -> (Vec<u8>, Offload) {
    let transport = 14 + if is_ipv6 { 40 } else { 20 };
    let is_tcp = protocol == TCP;
    let mut segment = if is_tcp {
        vec![0xc0, 0, 0x1f, 0x90, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]
    } else {
        vec![0xc0, 0, 0x1f, 0x90, 0, 0, 0, 0]
    };
    segment.extend((0..payload).map(|at| (at * 13) as u8));
    let length = segment.len() as u16;
    if !is_tcp {
        segment[4..6].copy_from_slice(&length.to_be_bytes());
    }
    let (ethertype, packet) = if is_ipv6 {
        let fields = Ipv6 { traffic_class: tos, ..Ipv6::default() };
        (IPV6, ipv6(([1; 16], [2; 16]), protocol, &segment, fields))
    } else {
        let fields = Ipv4 { tos, dont_fragment: true, ..Ipv4::default() };
        (IPV4, ipv4(([10, 9, 0, 1], [10, 9, 0, 2]), protocol, &segment, fields))
    };
    let mut frame = ethernet(SOURCE, HOST, ethertype, &packet);
    let addresses = if is_ipv6 { 22 } else { 26 };
    let pseudo = Sum::new().bytes(&frame[addresses..transport]).word(protocol.into()).word(length);
    let offset = if is_tcp { 16 } else { 6 };
    frame[transport + offset..transport + offset + 2].copy_from_slice(&pseudo.fold().to_be_bytes());
    let kind = match (is_tcp, is_ipv6) {
        (true, false) => GsoKind::TcpV4,
        (true, true) => GsoKind::TcpV6,
        (false, _) => GsoKind::Udp,
    };
    let gso = (payload > usize::from(SEGMENT)).then_some(Gso { kind, size: SEGMENT, ecn: false });
    let checksum = Checksum::Partial { start: transport as u16, offset: offset as u16 };
    (frame, Offload { checksum, gso })
}

pub(super) fn send(socket: &mut PacketSocket, frame: &[u8], offload: Offload) {
    let transmit = TxFrame::new(Destination::Bridge, 0, Payload::Owned(frame.into()), offload);
    let mut out = TxBatch::of([transmit]);
    socket.transmit(&Batch::none(), &mut out, 0..1);
    out.outcome().unwrap();
}

/// The frames that arrive with this source or destination address.
pub(super) fn arrivals(
    socket: &mut PacketSocket,
    count: usize,
    at: usize,
    address: [u8; 6],
) -> Vec<(Vec<u8>, Offload)> {
    if count == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (start, mut seen) = (Instant::now(), Vec::new());
    while seen.len() <= count && start.elapsed() < Duration::from_millis(500) {
        let batch = socket.receive();
        let ours = batch.frames().filter(|frame| frame.data.get(at..at + 6) == Some(&address));
        seen.extend(ours.map(|frame| (frame.data.to_vec(), frame.offload)));
        if seen.len() == count {
            break;
        }
    }
    seen
}

/// Moves the start of a partial checksum.
fn moved(offload: Offload, by: u16) -> Offload {
    let Checksum::Partial { start, offset } = offload.checksum else { panic!("{offload:?}") };
    Offload { checksum: Checksum::Partial { start: start + by, offset }, ..offload }
}

/// The outer headers that the pipeline of the first leaf writes, with the checksum of the frame, and
/// whether it is right. The pipeline counts the frame.
fn encapsulated(both: &mut Both, frame: &[u8], offload: Offload) -> Vec<u8> {
    // The pipeline finds the VTEP by the destination.
    let known = [&remote(0)[..], &frame[6..]].concat();
    let vlan = Some(VlanTag { tpid: 0x88a8, tci: SLOT });
    let mut run = |offload, account| {
        let (mut batch, mut out) = (Batch::new(1), TxBatch::new());
        assert!(batch.push(Frame { data: &known, vlan, offload }));
        both.pipeline.encapsulate(&batch, &both.snapshot, Instant::now(), &mut out);
        if account {
            out.iter().for_each(|sent| both.pipeline.account_frame(sent, Ok(())));
        }
        out.iter().next().unwrap().to_vec(&batch)
    };
    run(offload, true);
    run(Offload::default(), false)[..OUTER].to_vec()
}

fn check(one: &mut Side, two: &mut Side, (frame, offload): (Vec<u8>, Offload)) {
    send(&mut one.at_host, &frame, offload);
    let seen = arrivals(&mut two.at_uplink, 1, 0, [2, 0, 0, 0, 0xaa, 2]);
    let [(packet, on_wire)] = seen.as_slice() else {
        panic!("{} packets, {offload:?}", seen.len())
    };
    assert_eq!(*on_wire, moved(offload, OUTER as u16));
    assert!(packet[OUTER..] == frame, "{:02x?}", &packet[..120]);
    let mut headers = encapsulated(&mut one.both, &frame, offload);
    assert!(Sum::new().bytes(&packet[14..34]).is_intact());
    headers[18..20].copy_from_slice(&packet[18..20]);
    headers[24..26].copy_from_slice(&packet[24..26]);
    let table = one.both.snapshot.vni(SLOT).unwrap();
    if table.tunnel.udp_checksum && offload.gso.is_none() {
        let mut whole = packet.clone();
        let Checksum::Partial { start, offset } = on_wire.checksum else { unreachable!() };
        wire::checksum::complete(&mut whole, start.into(), offset.into()).unwrap();
        let length = (whole.len() - 34) as u16;
        let pseudo = Sum::new().pseudo_ipv4(local_of(table), VTEPS[0], UDP, length);
        assert!(pseudo.bytes(&whole[34..]).is_intact() && whole[40..42] != [0, 0], "{whole:02x?}");
        headers[40..42].copy_from_slice(&packet[40..42]);
    } else {
        headers[40..42].fill(0);
    }
    assert_eq!(packet[..OUTER], headers);

    if offload.gso.is_some_and(|gso| gso.kind == GsoKind::Udp) {
        let segments = segments(packet, *on_wire);
        let mut deliver = |packet| decapsulated(&mut two.both, packet, Offload::default());
        let expected: Vec<_> = segments.iter().flat_map(|packet| deliver(packet)).collect();
        let delivered = arrivals(&mut two.at_host, segments.len(), 0, HOST);
        assert!(delivered.into_iter().map(completed).eq(expected.into_iter().map(completed)));
        return;
    }
    let expected = decapsulated(&mut two.both, packet, *on_wire);
    let delivered = arrivals(&mut two.at_host, 1, 0, HOST);
    let told = |frames: &[(Vec<u8>, Offload)]| {
        format!("{:02x?}", frames.iter().map(|(f, o)| (f.len(), &f[..34], *o)).collect::<Vec<_>>())
    };
    assert!(delivered == expected, "{} {}", told(&delivered), told(&expected));
}

/// The frames that the pipeline of the second leaf delivers. It counts them.
fn decapsulated(both: &mut Both, packet: &[u8], offload: Offload) -> Vec<(Vec<u8>, Offload)> {
    let (mut batch, mut out) = (Batch::new(1), TxBatch::new());
    assert!(batch.push(Frame { data: packet, vlan: None, offload }));
    let later = Instant::now() + Duration::from_millis(20);
    both.pipeline.decapsulate(&batch, &both.snapshot, later, &mut out);
    out.iter().for_each(|sent| both.pipeline.account_frame(sent, Ok(())));
    out.iter().map(|sent| (sent.to_vec(&batch), sent.offload)).collect()
}

/// The packets into which a super-frame is split.
fn segments(packet: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let dissection = wire::dissect(packet).unwrap();
    let gso = offload.gso.unwrap();
    let segmenter = Segmenter::new(packet, &dissection, gso, offload.checksum).unwrap();
    (0..segmenter.count()).map(|index| segmenter.frame(index).unwrap()).collect()
}

/// A frame with the checksum that is left to the device.
fn completed((mut frame, offload): (Vec<u8>, Offload)) -> Vec<u8> {
    if let Checksum::Partial { start, offset } = offload.checksum {
        wire::checksum::complete(&mut frame, start.into(), offset.into()).unwrap();
    }
    frame
}

#[root_test]
fn what_is_left_to_the_device_is_left_to_it() {
    let features = Features::probe().unwrap();
    if !features.tcx || !features.udp_super_frames {
        root_test::ignore("no tcx links, or AF_PACKET cannot send UDP super-frames");
    }
    let [mut one, mut two] = sides(false);
    one.attach("test_port", "hp1");
    two.attach("test_uplink", "up1");
    // Without and with an outer checksum.
    for table in [tables().remove(0), tables().remove(3)] {
        let local = local_of(&table);
        two.set(far(&table), local);
        one.set(table, VTEPS[0]);
        for (protocol, is_ipv6) in [(TCP, false), (TCP, true), (UDP, false), (UDP, true)] {
            for payload in [0, 1, 37, 900, 1001, 3000, 8999] {
                for tos in [0, 2] {
                    let (one, two) = (&mut one, &mut two);
                    check(one, two, partial(protocol, is_ipv6, tos, payload));
                }
            }
        }
        one.both.assert_counters();
        two.both.assert_counters();
    }
    // A port without offloads gets the segments.
    let off = ["ethtool", "-K", "hp1", "tso", "off", "gso", "off", "tx", "off", "sg", "off"];
    two.leaf.run(&off).unwrap();
    for is_ipv6 in [false, true] {
        let (frame, offload) = partial(TCP, is_ipv6, 2, 3500);
        send(&mut one.at_host, &frame, offload);
        let dissection = wire::dissect(&frame).unwrap();
        let gso = offload.gso.unwrap();
        let segmenter = Segmenter::new(&frame, &dissection, gso, offload.checksum).unwrap();
        let expected: Vec<_> = (0..4).map(|index| segmenter.frame(index).unwrap()).collect();
        let delivered = arrivals(&mut two.at_host, 4, 0, HOST);
        assert!(delivered.iter().map(|(frame, _)| frame).eq(&expected), "{}", delivered.len());
    }
}

/// The number of a datagram for the host behind the second leaf.
fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame[42..].first_chunk().unwrap())
}

/// A packet from the first leaf, with a numbered datagram.
fn numbered(one: &mut Side, number: u32) -> Vec<u8> {
    let datagram = udp((0xc000, 5000), &[number.to_be_bytes(); 16].concat());
    let packet = ipv4(([10, 9, 0, 1], [10, 9, 0, 2]), UDP, &datagram, Ipv4::default());
    let frame = ethernet(SOURCE, HOST, IPV4, &packet);
    let mut headers = encapsulated(&mut one.both, &frame, Offload::default());
    headers[40..42].fill(0);
    [headers, frame].concat()
}

/// As a worker sends the packets of several frames.
fn together(packets: &[Vec<u8>]) -> (Vec<u8>, Offload) {
    let (first, size) = (&packets[0], packets[0].len() - 42);
    let mut whole = first[..42].to_vec();
    packets.iter().for_each(|packet| whole.extend(&packet[42..]));
    patch_lengths(whole[14..].first_chunk_mut().unwrap(), (size * packets.len()) as u16);
    let gso = Some(Gso { kind: GsoKind::Udp, size: size as u16, ecn: false });
    (whole, Offload { checksum: Checksum::Partial { start: 34, offset: 6 }, gso })
}

/// Super-frames of several packets arrive frame by frame. No frame overtakes them. Those that come
/// later do not pass the splitter.
fn frames_behind_a_super_frame_keep_their_order(splits_all: bool) {
    const ROUNDS: u32 = 500;
    const TOGETHER: u32 = 40;
    // What is sent right behind the super-frame, and later.
    const BEHIND: u32 = 5;
    const LATER: u32 = 2;
    const ALL: u32 = ROUNDS * (TOGETHER + BEHIND + LATER);
    if !Features::probe().unwrap().udp_super_frames {
        root_test::ignore("AF_PACKET cannot send UDP super-frames");
    }
    let mut cpus = CpuSet::new();
    cpus.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
    let [mut one, mut two] = sides(splits_all);
    // Another CPU receives, so that frames wait behind a super-frame.
    let receive_on = "mount -t sysfs sysfs /sys && echo 2 >/sys/class/net/up1/queues/rx-0/rps_cpus";
    two.leaf.run(&["unshare", "--mount", "sh", "-ec", receive_on]).unwrap();
    two.attach("vtepd_uplink", "up1");
    let table = tables().remove(0);
    two.set(far(&table), local_of(&table));
    one.set(table, VTEPS[0]);
    let (mut seen, mut sent) = (Vec::new(), 0);
    let mut next = |one: &mut Side| {
        sent += 1;
        numbered(one, sent - 1)
    };
    let mut wait = |two: &mut Side, count: u32| {
        let (all, start) = (seen.len() + count as usize, Instant::now());
        while seen.len() < all && start.elapsed() < Duration::from_millis(500) {
            let batch = two.at_host.receive();
            let ours = batch.frames().filter(|frame| frame.data.starts_with(&HOST));
            seen.extend(ours.map(|frame| number_of(frame.data)));
        }
    };
    for _ in 0..ROUNDS {
        let packets: Vec<_> = (0..TOGETHER).map(|_| next(&mut one)).collect();
        let (whole, offload) = together(&packets);
        let behind: Vec<_> = (0..BEHIND).map(|_| next(&mut one)).collect();
        send(&mut one.at_uplink, &whole, offload);
        behind.iter().for_each(|packet| send(&mut one.at_uplink, packet, Offload::default()));
        wait(&mut two, TOGETHER + BEHIND);
        for _ in 0..LATER {
            let packet = next(&mut one);
            send(&mut one.at_uplink, &packet, Offload::default());
            wait(&mut two, 1);
        }
    }
    assert!(seen.iter().copied().eq(0..ALL), "{} frames of {ALL}", seen.len());
    // The first frame after a super-frame still follows it.
    let split = counters::read(&two.leaf).unwrap()["vtepd-split"].tx_packets;
    let most = u64::from(ALL - ROUNDS);
    assert!((u64::from(ROUNDS * TOGETHER)..=most).contains(&split), "{split} of {ALL} were split");

    // A TCP super-frame arrives whole, also if it passes the splitter.
    one.attach("test_port", "hp1");
    let (frame, offload) = partial(TCP, false, 0, 3000);
    send(&mut one.at_host, &frame, offload);
    let whole = arrivals(&mut two.at_host, 1, 0, HOST);
    assert!(whole.iter().map(|(frame, _)| frame).eq([&frame]), "{} frames", whole.len());
    let passed = counters::read(&two.leaf).unwrap()["vtepd-split"].tx_packets - split;
    assert_eq!(passed, u64::from(splits_all));

    // Without a program for uplinks, the segments go back to their uplink, once.
    two.kill_switch.clear_index(&0).unwrap();
    two.attach("test_split", "up1");
    while two.at_uplink.receive().frames().count() > 0 {}
    let packets: Vec<_> = (0..TOGETHER).map(|_| numbered(&mut one, 0)).collect();
    let (whole, offload) = together(&packets);
    send(&mut one.at_uplink, &whole, offload);
    let to = [2, 0, 0, 0, 0xaa, 2];
    let back = arrivals(&mut two.at_uplink, 1 + packets.len(), 0, to);
    assert_eq!(back.iter().filter(|(packet, _)| packet.len() == packets[0].len()).count(), 40);
    assert_eq!(arrivals(&mut two.at_uplink, 0, 0, to), []);
}

#[root_test]
fn frames_behind_a_super_frame_of_many_packets_keep_their_order() {
    frames_behind_a_super_frame_keep_their_order(false);
}

/// As before Linux 6.2.
#[root_test]
fn frames_behind_a_super_frame_keep_their_order_where_all_are_split() {
    frames_behind_a_super_frame_keep_their_order(true);
}
