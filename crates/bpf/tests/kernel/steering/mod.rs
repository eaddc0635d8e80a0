//! The steering programs in a network namespace. Redirected frames reach only the punt pair's
//! socket. All other frames, and every frame after the kill switch is emptied, go to the kernel.
//! Needs root.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::{Hook, PuntSide, Steering, Wakeups};
use fabric::netns::{Namespace, veth};
use frame::{Batch, TxBatch};
use netlink::Direction;
use netlink::PrivateNamespace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ports::{PacketSocket, Port as _, RingSize};
use root_test::root_test;
use tables::{SteeringPlan, TakenVni, Uplink, VniIndex, VniSource};
use test_frames::{Ipv4, ethernet, tunnelled};
use wire::Vni;
use worker::{Features, PuntPairs};

mod backlog;
mod bypass;
mod many;
mod workers;

const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

struct Leaf {
    leaf: Namespace,
    spine: Namespace,
    host: Namespace,
}

/// A namespace whose IP stack sends nothing by itself. Such frames would be counted as the test's.
fn silent(name: String) -> Namespace {
    let namespace = Namespace::create(name).unwrap();
    namespace.run(&["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]).unwrap();
    namespace
}

fn leaf(tag: &str) -> Leaf {
    let name = |node: &str| format!("vtp-{tag}-{node}-{}", std::process::id());
    let [leaf, spine, host] = ["leaf", "spine", "host"].map(|node| silent(name(node)));
    veth((&leaf, "up1"), (&spine, "leaf"), 9000).unwrap();
    veth((&leaf, "hp1"), (&host, "eth0"), 1500).unwrap();
    for command in [
        "ip addr add 10.0.0.1/32 dev lo",
        "ip addr add 10.1.0.1/31 dev up1",
        "ip route add 10.0.0.2/32 via 10.1.0.0",
        "ip neigh add 10.1.0.0 lladdr 02:00:00:00:01:00 dev up1",
        "ip link add br5 type bridge",
        "ip link add vx5 type vxlan id 5 local 10.0.0.1 dstport 4789 nolearning",
        "ip link set vx5 master br5 up",
        "ip link set hp1 master br5",
        "ip link set br5 up",
        "bridge fdb append 00:00:00:00:00:00 dev vx5 dst 10.0.0.2",
        "ip link set up1 address 02:00:00:00:00:01",
    ] {
        leaf.run(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    Leaf { leaf, spine, host }
}

fn ifindex(namespace: &Namespace, name: &str) -> u32 {
    namespace.enter(|| nix::net::if_::if_nametoindex(name).unwrap()).unwrap()
}

fn plan(leaf: &Namespace) -> SteeringPlan {
    let vx5 = ifindex(leaf, "vx5");
    let vni = TakenVni {
        vni: Vni::try_from(5).unwrap(),
        source: VniSource::Netdev(vx5),
        name: "vx5".to_owned(),
        index: VniIndex::new(9).unwrap(),
        local: LOCAL.into(),
        destination_port: 4789,
        frame_limit: 9000 - 36,
    };
    let uplink = Uplink { ifindex: ifindex(leaf, "up1"), name: "up1".to_owned() };
    SteeringPlan {
        uplinks: BTreeSet::from([uplink]),
        vnis: BTreeMap::from([(vni.source, vni)]),
        ..SteeringPlan::default()
    }
}

/// A VXLAN packet from the spine to the leaf's VTEP.
fn vxlan_packet(source_port: u16, vni: u32, inner: &[u8]) -> Vec<u8> {
    let macs = ([2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 1]);
    let vteps = ([10, 0, 0, 2], [10, 0, 0, 1]);
    let fields = Ipv4 { identification: 1, ..Ipv4::default() };
    tunnelled(macs, vteps, source_port, vni, inner, fields)
}

/// A VXLAN packet with a broadcast, with this VNI and this first byte of the VXLAN header.
fn vxlan_frame(vni: u32, flags: u8) -> Vec<u8> {
    let inner = ethernet([2, 0, 0, 0, 9, 9], [0xff; 6], 0x88b5, &[0xab; 46]);
    let mut frame = vxlan_packet(0xc000, vni, &inner);
    frame[42] = flags;
    frame
}

fn send(namespace: &Namespace, interface: &str, frame: &[u8]) {
    let index = ifindex(namespace, interface);
    let mut socket =
        namespace.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap();
    let to = frame::Destination::Bridge;
    let body = frame::Payload::Owned(frame.into());
    let transmit = frame::TxFrame::new(to, 0, body, frame::Offload::default());
    let mut out = TxBatch::of([transmit]);
    socket.transmit(&Batch::none(), &mut out, 0..1);
    out.outcome().unwrap();
}

/// The number of matching frames that arrive within the time.
fn receive(
    socket: &mut PacketSocket,
    wait: Duration,
    wanted: impl Fn(&frame::Frame<'_>) -> bool,
) -> usize {
    let (start, mut found) = (Instant::now(), 0);
    while start.elapsed() < wait {
        let batch = socket.receive();
        found += batch.frames().filter(|frame| wanted(frame)).count();
        if found > 0 && batch.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    found
}

/// A stall limit that no test reaches.
const LONG_STALL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(500);
const NEVER: Duration = Duration::from_millis(150);

/// Loads steering for this many workers and applies the plan. The kill switch is not filled.
fn steer_for<const WORKERS: usize>(
    leaf: &Namespace,
    hook: Hook,
    plan: &SteeringPlan,
    stall_limit: Duration,
) -> (Steering, [PuntPairs; WORKERS], PrivateNamespace) {
    leaf.enter(|| {
        let private = PrivateNamespace::create().unwrap();
        let punts = std::array::from_fn(|worker| {
            PuntPairs::create(worker, &private, Features::ALL, RingSize::LONGEST).unwrap()
        });
        let ends: Vec<_> = punts.iter().map(PuntPairs::near_ends).collect();
        let mut steering = Steering::load(hook, &ends, 0, stall_limit, true, 0).unwrap();
        for punts in &punts {
            steering.close(&punts.near_ends(), &private).unwrap();
            punts.up(&private).unwrap();
        }
        remove(&mut steering, plan);
        add(&mut steering, plan);
        (steering, punts, private)
    })
    .unwrap()
}

/// As [`steer_for`], for one worker.
/// Stops redirecting what this plan lacks or changes.
fn remove(steering: &mut Steering, plan: &SteeringPlan) {
    let diff = steering.difference(plan, Arc::default());
    steering.remove(&diff).unwrap();
}

/// Redirects what is new in this plan.
fn add(steering: &mut Steering, plan: &SteeringPlan) {
    let diff = steering.difference(plan, Arc::default());
    steering.add(&diff).unwrap();
}

fn steer(
    leaf: &Namespace,
    hook: Hook,
    plan: &SteeringPlan,
    stall_limit: Duration,
) -> (Steering, PuntPairs, PrivateNamespace) {
    let (steering, [punts], private) = steer_for(leaf, hook, plan, stall_limit);
    (steering, punts, private)
}

fn redirects_what_is_taken(hook: Hook) {
    let Leaf { leaf, spine, host } = leaf(&hook.to_string());
    let plan = plan(&leaf);
    let (mut steering, mut punts, private) = steer(&leaf, hook, &plan, LONG_STALL);
    let mut underlay = punts.underlay.take_socket().unwrap();
    let mut bridge = punts.bridge.take_socket().unwrap();
    let index = ifindex(&host, "eth0");
    let mut eth0 = host.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap();
    let marker = |frame: &frame::Frame<'_>| frame.data.ends_with(&[0xab; 46]);
    let vxlan = vxlan_frame(5, 8);

    // Attached, but the kill switch is empty: the kernel forwards.
    send(&spine, "leaf", &vxlan);
    assert_eq!(
        receive(&mut eth0, SOON, marker),
        1,
        "kernel VXLAN forwards before the kill switch is filled"
    );
    assert_eq!(receive(&mut underlay, NEVER, marker), 0);

    leaf.enter(|| steering.engage().unwrap()).unwrap();
    send(&spine, "leaf", &vxlan);
    assert_eq!(
        receive(&mut underlay, SOON, |frame| frame.data == vxlan),
        1,
        "the whole frame reaches the punt"
    );
    assert_eq!(receive(&mut eth0, NEVER, marker), 0, "and the kernel does not see it");
    // Another VNI and other flags are not redirected.
    for other in [vxlan_frame(6, 8), vxlan_frame(5, 0x0c)] {
        send(&spine, "leaf", &other);
        assert_eq!(receive(&mut underlay, NEVER, marker), 0);
    }

    // Frames that the bridge sends to the overlay carry the slot as their tag.
    let mut broadcast = vec![0xff; 6];
    broadcast.extend([2, 0, 0, 0, 7, 7, 0x88, 0xb5]);
    broadcast.extend([0xcd; 60]);
    send(&host, "eth0", &broadcast);
    let tagged = |frame: &frame::Frame<'_>| {
        frame.data == broadcast && frame.vlan == Some(frame::VlanTag { tpid: 0x88a8, tci: 9 })
    };
    assert_eq!(receive(&mut bridge, SOON, tagged), 1);

    // Frames from the worker to the bridge arrive at the host.
    let mut inner =
        vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 9, 8, 0x88, 0xa8, 0, 9, 0x88, 0xb5];
    inner.extend([0xab; 46]);
    let body = frame::Payload::Owned(inner.clone().into());
    let to = frame::Destination::Bridge;
    let transmit = frame::TxFrame::new(to, 9, body, frame::Offload::default());
    let mut out = TxBatch::of([transmit]);
    bridge.transmit(&Batch::none(), &mut out, 0..1);
    out.outcome().unwrap();
    assert_eq!(
        receive(&mut eth0, SOON, |frame| marker(frame) && frame.data.len() == inner.len() - 4),
        1
    );

    assert_eq!(
        leaf.enter(|| bpf::foreign_programs::find(
            plan.uplinks.first().unwrap().ifindex,
            Direction::Ingress
        ))
        .unwrap(),
        []
    );
    let counts = steering.counts().unwrap();
    assert_eq!((counts.uplink_redirected, counts.punt_returned), (1, 1), "{counts:?}");
    // The host's IP stack may have sent frames as well.
    assert!(counts.vxlan_redirected >= 1, "{counts:?}");

    // After the release the kernel forwards again, immediately.
    leaf.enter(|| steering.release().unwrap()).unwrap();
    send(&spine, "leaf", &vxlan);
    assert_eq!(
        receive(&mut eth0, SOON, marker),
        1,
        "kernel VXLAN forwards once the kill switch is empty"
    );
    leaf.enter(|| drop(steering)).unwrap();
    leaf.enter(|| drop(punts)).unwrap();
    drop(private);
    let links = leaf.run(&["ip", "-o", "link"]).unwrap();
    assert!(!links.contains("vtepd"), "{links}");
    let filters = leaf.run(&["tc", "filter", "show", "dev", "up1", "ingress"]).unwrap();
    assert!(!filters.contains("vtepd"), "{filters}");
}

/// A VXLAN packet with a broadcast of this many bytes as inner frame.
fn vxlan_packet_with(inner_length: usize) -> Vec<u8> {
    let inner = vxlan_frame(5, 8)[50..50 + inner_length].to_vec();
    vxlan_packet(0xc000, 5, &inner)
}

/// The bridge punt pair cannot carry inner frames of 14 or 15 bytes, and the kernel drops frames
/// that end within a tag. Inner frames of less than 20 bytes therefore stay with the kernel. Found
/// by the fuzz target `encapsulate` and by differential runs.
#[root_test]
fn inner_frames_shorter_than_a_tagged_header_stay_with_the_kernel() {
    let Leaf { leaf, spine, host } = leaf("short");
    let (mut steering, mut punts, private) = steer(&leaf, Hook::Tcx, &plan(&leaf), LONG_STALL);
    let mut underlay = punts.underlay.take_socket().unwrap();
    let index = ifindex(&host, "eth0");
    let mut eth0 = host.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap();
    leaf.enter(|| steering.engage().unwrap()).unwrap();
    for length in [14, 15, 16, 19] {
        let packet = vxlan_packet_with(length);
        send(&spine, "leaf", &packet);
        assert_eq!(
            receive(&mut eth0, SOON, |frame| frame.data == &packet[50..]),
            1,
            "{length} bytes"
        );
    }
    let packet = vxlan_packet_with(20);
    send(&spine, "leaf", &packet);
    assert_eq!(receive(&mut underlay, SOON, |frame| frame.data == packet), 1);
    assert_eq!(steering.counts().unwrap().uplink_redirected, 1);
    leaf.enter(|| drop((steering, punts))).unwrap();
    drop(private);
}

#[root_test]
fn redirects_what_is_taken_with_tcx_links() {
    redirects_what_is_taken(Hook::Tcx);
}

#[root_test]
fn redirects_what_is_taken_with_clsact_filters() {
    redirects_what_is_taken(Hook::Clsact);
}

/// When frames have waited too long, the programs pass further frames to the kernel. After the
/// worker has read them, the programs redirect again.
#[root_test]
fn a_punt_that_nobody_looks_into_is_given_up() {
    const LIMIT: Duration = Duration::from_secs(1);
    let Leaf { leaf, spine, host } = leaf("wait");
    let (mut steering, mut punts, private) = steer(&leaf, Hook::Tcx, &plan(&leaf), LIMIT);
    let (watchdogs, mut calls) = steering.take_watch().unwrap();
    let [watchdog] = watchdogs.as_slice() else { panic!("{watchdogs:?}") };
    let mut underlay = punts.underlay.take_socket().unwrap();
    let index = ifindex(&host, "eth0");
    let mut eth0 = host.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap();
    let marker = |frame: &frame::Frame<'_>| frame.data.ends_with(&[0xab; 46]);
    let vxlan = vxlan_frame(5, 8);
    let called = |calls: &Wakeups| {
        let mut fds = [PollFd::new(calls.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    };
    leaf.enter(|| steering.engage().unwrap()).unwrap();

    // A worker that reads periodically is not reported, although the test takes longer than the
    // limit. Reading an empty punt pair is allowed, too.
    assert_eq!(watchdog.look(PuntSide::Underlay), None);
    for _ in 0..8 {
        send(&spine, "leaf", &vxlan);
        std::thread::sleep(LIMIT / 4);
        assert_eq!(watchdog.look(PuntSide::Underlay), None);
    }
    assert_eq!(receive(&mut underlay, SOON, marker), 8);
    // Nothing arrived for longer than the limit, so nothing has waited.
    std::thread::sleep(2 * LIMIT);
    send(&spine, "leaf", &vxlan);
    assert_eq!(receive(&mut underlay, SOON, marker), 1);
    assert_eq!(receive(&mut eth0, NEVER, marker), 0);

    // The entry of the last frame is still set.
    std::thread::sleep(2 * LIMIT);
    // The host's IP stack may have sent frames to the other punt pair.
    watchdog.forgive(PuntSide::Bridge);
    calls.by_ref().for_each(drop);
    assert!(!called(&calls));
    for _ in 0..3 {
        send(&spine, "leaf", &vxlan);
        assert_eq!(receive(&mut eth0, SOON, marker), 1, "the kernel forwards");
    }
    assert!(called(&calls));
    // Possibly also because of frames that the host's IP stack sent.
    assert!(calls.by_ref().all(|call| call == bpf::Call::Worker(0)));
    assert!(watchdog.look(PuntSide::Underlay).is_some_and(|waited| waited > 2 * LIMIT));
    assert_eq!(receive(&mut underlay, NEVER, marker), 0);
    assert_eq!(steering.counts().unwrap().uplink_stalled, 3);

    watchdog.forgive(PuntSide::Underlay);
    send(&spine, "leaf", &vxlan);
    assert_eq!(receive(&mut underlay, SOON, marker), 1, "redirected again");
    assert_eq!(receive(&mut eth0, NEVER, marker), 0);
    leaf.enter(|| drop((steering, punts))).unwrap();
    drop(private);
}
