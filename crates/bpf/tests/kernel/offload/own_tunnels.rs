//! Hosts with tunnels of their own. The programs cannot encapsulate what the device has to complete
//! deep inside, so the kernel gets it, unchanged.

use aya::programs::TcAttachType;
use fabric::netns::veth;
use frame::{Checksum, Frame, Offload, VlanTag};
use ports::PacketSocket;
use root_test::root_test;
use std::time::{Duration, Instant};
use test_frames::{IPV4, Ipv4, TCP, UDP, ethernet, ipv4, udp, vxlan};
use worker::Features;

use super::SOURCE;
use super::both::program;
use super::leaf::{HOST, VTEPS, tables};
use super::super_frames::{Side, open, partial, send, sides};

/// Addresses of the host and of the other end of its own tunnel.
const ENDS: ([u8; 4], [u8; 4]) = ([10, 9, 0, 1], [10, 9, 0, 2]);
/// Length of the headers that the host's tunnel adds.
const OWN: usize = 50;
const SCTP: u8 = 132;

/// The first leaf, and what its programs leave to the kernel.
struct Leaf {
    side: Side,
    _far: Side,
    kernel: PacketSocket,
}

impl Leaf {
    /// `number`: of the settings of the VNI.
    fn new(number: usize) -> Self {
        let [mut side, far] = sides(false);
        // What the program does not redirect passes a bridge.
        veth((&side.leaf, "out"), (&side.host, "kernel"), 1500).unwrap();
        let (leaf, host) = (&side.leaf, &side.host);
        leaf.run(&["ip", "link", "add", "name", "br0", "type", "bridge"]).unwrap();
        for port in ["hp1", "out"] {
            leaf.run(&["ip", "link", "set", port, "master", "br0"]).unwrap();
        }
        leaf.run(&["ip", "link", "set", "br0", "up"]).unwrap();
        let kernel = open(host, "kernel");
        side.attach("test_port", "hp1");
        side.set(tables().remove(number), VTEPS[0]);
        Self { side, _far: far, kernel }
    }

    /// The packets that the kernel gets: TCP in the host's own tunnel, and SCTP.
    fn left(&mut self, count: usize) -> Vec<(Vec<u8>, Option<VlanTag>, Offload)> {
        let (start, mut seen) = (Instant::now(), Vec::new());
        let is_own = |frame: &Frame<'_>| {
            let is = |at: usize, protocol| frame.data.get(at) == Some(&protocol);
            frame.data.starts_with(&HOST) && (is(OWN + 23, TCP) || is(23, SCTP))
        };
        while seen.len() < count && start.elapsed() < Duration::from_millis(500) {
            let batch = self.kernel.receive();
            let frames = batch.frames().filter(|frame| is_own(frame));
            seen.extend(frames.map(|frame| (frame.data.to_vec(), frame.vlan, frame.offload)));
        }
        seen
    }

    /// `COUNT_OFFLOAD_ENCAPSULATED` and `COUNT_OFFLOAD_FAILED`.
    fn counts(&self) -> [u64; 2] {
        let counts: aya::maps::PerCpuArray<_, u64> =
            self.side.both.ebpf.map("counts").unwrap().try_into().unwrap();
        [10, 12].map(|index| counts.get(&index, 0).unwrap().iter().sum())
    }
}

fn needs_tcx() {
    if !Features::probe().unwrap().tcx {
        root_test::ignore("no tcx links");
    }
}

/// The kernel's own VXLAN in the host marks its frames (`skb->encapsulation`), which
/// `bpf_skb_adjust_room()` refuses.
fn leaves_tunnels_of_the_kernel(number: usize, has_tag: bool) {
    needs_tcx();
    let mut leaf = Leaf::new(number);
    let run = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        leaf.side.host.run(&words).unwrap();
    };
    let host = HOST.map(|byte| format!("{byte:02x}")).join(":");
    run("ip addr add 10.9.0.1/24 dev eth0");
    run(&format!("ip neigh add 10.9.0.2 lladdr {host} dev eth0"));
    run("ip link add own type vxlan id 99 local 10.9.0.1 remote 10.9.0.2 dstport 4789");
    run("ip link set own up");
    let mut own = open(&leaf.side.host, "own");
    if has_tag {
        let attach = || {
            let program = program(&mut leaf.side.both.ebpf, "test_tag");
            program.attach("eth0", TcAttachType::Egress).unwrap();
        };
        leaf.side.host.enter(attach).unwrap();
    }
    let (frame, offload) = partial(TCP, false, 0, 500);
    for _ in 0..3 {
        send(&mut own, &frame, offload);
        let [(packet, tag, offload)] = &leaf.left(1)[..] else {
            panic!("{:?}", leaf.counts());
        };
        assert_eq!(packet[OWN..], frame, "unchanged");
        assert_eq!(tag.map(|tag| (tag.tpid, tag.tci)), has_tag.then_some((0x8100, 5)));
        let Checksum::Partial { start, .. } = offload.checksum else { panic!("{offload:?}") };
        assert_eq!(usize::from(start), OWN + 34);
    }
    assert_eq!(leaf.counts(), [0, 0]);
}

#[root_test]
fn frames_in_a_tunnel_of_the_hosts_kernel_are_left_to_it() {
    leaves_tunnels_of_the_kernel(0, false);
    leaves_tunnels_of_the_kernel(3, false);
}

#[root_test]
fn tagged_frames_in_a_tunnel_of_the_hosts_kernel_are_left_to_it() {
    leaves_tunnels_of_the_kernel(0, true);
    leaves_tunnels_of_the_kernel(3, true);
}

/// A virtual machine that leaves the checksum inside its own tunnel to the device.
#[root_test]
fn checksums_inside_a_tunnel_of_a_virtual_machine_are_left_to_the_kernel() {
    needs_tcx();
    let (inner, offload) = partial(TCP, false, 0, 500);
    let Checksum::Partial { start, offset } = offload.checksum else { unreachable!() };
    let checksum = Checksum::Partial { start: start + OWN as u16, offset };
    let datagram = udp((0xc000, 4789), &vxlan(99, 0, &inner));
    let packet = ipv4(ENDS, UDP, &datagram, Ipv4::default());
    let mut frame = ethernet(SOURCE, HOST, IPV4, &packet);
    for field in [0, 0xffff, 0x1234_u16] {
        frame[40..42].copy_from_slice(&field.to_be_bytes());
        let mut leaf = Leaf::new(3);
        send(&mut leaf.side.at_host, &frame, Offload { checksum, gso: None });
        let left = leaf.left(1);
        assert_eq!(left, [(frame.clone(), None, Offload { checksum, gso: None })], "{field:#x}");
        assert_eq!(leaf.counts(), [0, 0]);
    }
}

/// The kernel leaves a CRC-32C to the device or computes it. The programs cannot.
#[root_test]
fn checksums_of_sctp_are_left_to_the_kernel() {
    needs_tcx();
    let transport = [&[0xc0, 0, 0x1f, 0x90][..], &[0; 8], &[0x5a; 60]].concat();
    let packet = ipv4(ENDS, SCTP, &transport, Ipv4::default());
    let frame = ethernet(SOURCE, HOST, IPV4, &packet);
    let mut leaf = Leaf::new(3);
    let offload = Offload { checksum: Checksum::Partial { start: 34, offset: 8 }, gso: None };
    send(&mut leaf.side.at_host, &frame, offload);
    assert_eq!(leaf.left(1), [(frame.clone(), None, offload)]);
    assert_eq!(leaf.counts(), [0, 0]);
    // Without an outer checksum, nothing needs to be known of the inner one.
    leaf.side.set(tables().remove(0), VTEPS[0]);
    send(&mut leaf.side.at_host, &frame, offload);
    let start = Instant::now();
    while leaf.counts() != [1, 0] {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", leaf.counts());
    }
}
