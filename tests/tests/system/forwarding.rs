//! Frames between hosts behind a leaf with vtepd and hosts behind kernel VXLAN.

use std::time::Duration;

use experiment::random::{Random, SEED};
use pipeline::Frame;
use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::daemon::USERSPACE;
use vtepd_tests::experiments::{EXPERIMENT, experiments, is_experiment};
use vtepd_tests::frames::{self, Pair, Roce, Tunnelled, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, PEER2, VNI, bridge, ip, mac_of, run};
use vtepd_tests::{Capture, Lab, Setup, Vtepd, quiet, sockets, wait_for};
use wire::MacAddr;

const UNKNOWN: MacAddr = MacAddr([2, 0xff, 0, 0, 0, 9]);

/// Captures of experimental frames at the three other hosts.
fn watch(lab: &Lab) -> [Capture<Vec<Captured>>; 3] {
    [&lab.next, &lab.far, &lab.farther].map(|host| Capture::start(&host.ns, ETH, is_experiment))
}

fn basic(case: &str, arguments: &[&str], setup: Setup) {
    let lab = Lab::with(case, setup);
    let vtepd = Vtepd::start(&lab.leaf, arguments);
    for size in [56, 1600, 3200] {
        sockets::ping(&lab.host, lab.far.ip(), 5, size, &[]);
        sockets::ping(&lab.farther, lab.host.ip(), 5, size, &[]);
    }
    sockets::tcp_both_ways(&lab.host, &lab.far, 60_000);
    sockets::tcp_both_ways(&lab.far, &lab.host, 60_000);
    sockets::udp(&lab.host, &lab.far, 1, 600, false);
    sockets::udp(&lab.far, &lab.host, 1, 600, false);
    let metrics = vtepd.metrics();
    assert!(metrics.vni_frames(VNI, "encapsulated") > 30, "{}", metrics.0);
    assert!(metrics.vni_frames(VNI, "decapsulated") > 30, "{}", metrics.0);
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
}

#[root_test]
fn o1_ping_tcp_and_udp_against_a_kernel_peer_on_tcx() {
    basic("o1t", &["--hook", "tcx"], Setup::default());
}

#[root_test]
fn o1_ping_tcp_and_udp_against_a_kernel_peer_on_clsact() {
    basic("o1c", &["--hook", "clsact"], Setup::default());
}

/// The port of `vxlan_bridge_1d_port_8472`, and VPP's custom port.
#[root_test]
fn l11_v6_the_same_on_other_ports() {
    for port in [8472, 1111] {
        basic("l11", &[], Setup { port, ..Setup::default() });
    }
}

#[root_test]
fn o1_vtepd_on_both_ends() {
    let lab = Lab::new("o1b");
    let leaf = Vtepd::start(&lab.leaf, &[]);
    let peer = Vtepd::start(&lab.peer, &["--hook", "clsact"]);
    sockets::ping(&lab.host, lab.far.ip(), 5, 3200, &[]);
    sockets::tcp_both_ways(&lab.host, &lab.far, 3_000_000);
    sockets::udp(&lab.far, &lab.host, 50, 600, false);
    for vtepd in [&leaf, &peer] {
        let metrics = vtepd.metrics();
        assert!(metrics.vni_frames(VNI, "decapsulated") > 50, "{}", metrics.0);
        assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
    }
}

#[root_test]
fn l1_unknown_unicast_comes_once_to_everybody() {
    let lab = Lab::new("l1");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    for (to, sent) in
        [(UNKNOWN, 10), (MacAddr::BROADCAST, 10), (MacAddr([1, 0, 0x5e, 0, 0, 9]), 10)]
    {
        let seen = watch(&lab);
        inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.far).to_mac(to), sent));
        seen.iter().for_each(|capture| capture.wait(sent.into()));
        quiet();
        for (capture, name) in
            seen.into_iter().zip(["the local port", "the first VTEP", "the second VTEP"])
        {
            assert_eq!(capture.stop().len(), usize::from(sent), "frames to {to} at {name}");
        }
    }
    let metrics = vtepd.metrics();
    assert_eq!(metrics.get("vtepd_vni_flooded_frames_total{vni=\"10\"}"), 30);
    assert_eq!(metrics.vni_frames(VNI, "encapsulated"), 60);
}

/// A frame that a peer floods reaches both local ports once, and is not sent back.
#[root_test]
fn l1_a_peers_flood_comes_once_and_does_not_return() {
    let lab = Lab::new("l1p");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let at = [&lab.host, &lab.next, &lab.farther]
        .map(|host| Capture::start(&host.ns, ETH, is_experiment));
    inject(&lab.far.ns, ETH, &experiments(Pair::of(&lab.far, &lab.host).to_mac(UNKNOWN), 10));
    at.iter().for_each(|capture| capture.wait(10));
    quiet();
    for capture in at {
        assert_eq!(capture.stop().len(), 10);
    }
    assert_eq!(vtepd.metrics().vni_frames(VNI, "encapsulated"), 0);
}

#[root_test]
fn l2_an_unreachable_vtep_neither_stops_nor_doubles_the_others() {
    let lab = Lab::new("l2");
    // One VTEP without a route, and one whose next hop does not exist.
    ip(&lab.leaf, "route add 10.0.0.9/32 via 10.1.1.77 dev up1 onlink");
    bridge(
        &lab.leaf,
        "fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.8\nfdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.9",
    );
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let seen = watch(&lab);
    inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.far).to_mac(UNKNOWN), 10));
    seen.iter().for_each(|capture| capture.wait(10));
    quiet();
    for capture in seen {
        assert_eq!(capture.stop().len(), 10);
    }
    let metrics =
        vtepd.wait_for("the unresolved copies to be given up", |m| m.sum("vtepd_held_frames") == 0);
    assert_eq!(
        (metrics.dropped("no_route"), metrics.dropped("next_hop_unresolved")),
        (10, 10),
        "{}",
        metrics.0
    );
}

#[root_test]
fn l3_a_known_mac_goes_to_its_one_place() {
    let lab = Lab::new("l3");
    let _vtepd = Vtepd::start(&lab.leaf, &[]);
    // The bridge learns a local MAC address from its first frame.
    inject(
        &lab.next.ns,
        ETH,
        &experiments(Pair::of(&lab.next, &lab.host).to_mac(MacAddr::BROADCAST), 1),
    );
    wait_for("the bridge to learn", || {
        run(&lab.leaf, "bridge fdb show dev hq10").contains("02:00:00:00:0a:02")
    });
    for (place, host) in [&lab.next, &lab.far, &lab.farther].into_iter().enumerate() {
        let seen = watch(&lab);
        inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, host), 10));
        seen[place].wait(10);
        quiet();
        let counts = seen.map(|capture| capture.stop().len());
        let mut expected = [0; 3];
        expected[place] = 10;
        assert_eq!(counts, expected, "frames to host {}", host.number);
    }
}

/// Frames of many sizes and kinds.
fn samples(pair: Pair, ceiling: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    // The kernel removes a tag only if two more bytes follow (`skb_vlan_untag`), so shorter frames
    // do not pass a punt pair.
    for size in [2, 3, 5, 46, 60, 128, 255, 1000, 1486, ceiling - 14] {
        all.push(frames::ethernet(pair, EXPERIMENT, &sockets::bytes(size as u64, size)));
    }
    for payload in [0, 1, 8, 100, 1458, ceiling - 42] {
        all.push(frames::udp(pair, (1000, 2000), &sockets::bytes(payload as u64, payload)));
    }
    for (sequence, payload) in [(0, 0), (1, 16), (0xff_ffff, 1024), (77, 4096)] {
        all.push(Roce { sequence, payload, ..Roce::to(0x1234) }.frame(pair));
        all.push(Roce { sequence, payload, ..Roce::to(0x1234) }.frame_v6(pair, &[]));
    }
    // MPLS (RFC 3032), and a frame with the EtherType of IPv4 that is not IP.
    all.push(frames::ethernet(pair, 0x8847, &[0, 1, 0x11, 0x40, 0x45, 0, 0, 20]));
    all.push(frames::ethernet(pair, 0x0800, &[0xff; 33]));
    // A peer's kernel drops frames that are shorter than the IP header of their EtherType
    // (`pskb_inet_may_pull`).
    all.push(frames::ethernet(pair, 0x86dd, &[0; 41]));
    all
}

/// Waits until all have arrived, or for a few seconds. The test then reports what is missing.
fn wait_for_all(capture: &Capture<Vec<Captured>>, count: usize) {
    let _ = fabric::process::wait_until(Duration::from_secs(3), || capture.count() >= count);
    quiet();
}

/// V1 and Q11: frames arrive as they were sent, byte by byte, ICRC included, in both directions,
/// with and without tags.
#[root_test]
fn v1_q11_o3_inner_bytes_are_the_same_at_both_ends() {
    let lab = Lab::new("q11");
    lab.without_bridge_netfilter();
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    for (from, to) in [(&lab.host, &lab.far), (&lab.far, &lab.host)] {
        let pair = Pair::of(from, to);
        let mut sent = samples(pair, 8950 + 14);
        let short = samples(pair, 1500);
        // 802.1Q, 802.1ad and both, with priority and drop eligibility.
        sent.extend(short.iter().map(|frame| frames::tagged(frame, 0x8100, 0xb065)));
        sent.extend(short.iter().map(|frame| frames::tagged(frame, 0x88a8, 7)));
        sent.extend(
            short
                .iter()
                .map(|frame| frames::tagged(&frames::tagged(frame, 0x8100, 9), 0x88a8, 0x7fff)),
        );
        let source = from.mac();
        let capture = Capture::start(&to.ns, ETH, move |frame| frame.get(6..12) == Some(&source.0));
        inject(&from.ns, ETH, &sent);
        wait_for_all(&capture, sent.len());
        let received: Vec<Vec<u8>> = capture.stop().into_iter().map(|frame| frame.bytes).collect();
        // Frames of different flows may be reordered.
        for frame in sent.iter().chain(&received) {
            let times = |all: &[Vec<u8>]| all.iter().filter(|other| *other == frame).count();
            let what = frame.iter().take(64).map(|b| format!("{b:02x}")).collect::<String>();
            assert_eq!(times(&received), times(&sent), "a frame of {} bytes: {what}…", frame.len());
        }
    }
    assert_eq!(vtepd.metrics().dropped_in_all(), 0);
}

/// Frames of one queue pair leave in super-frames and arrive one by one, in order, byte by byte, at
/// a kernel peer and at another vtepd. Over uplinks with an impairing queueing discipline each
/// frame leaves alone.
#[root_test]
fn v1_q1_super_frames_leave_together_and_arrive_one_by_one() {
    const QUEUE_PAIRS: u32 = 4;
    let lab = Lab::new("gso");
    lab.without_bridge_netfilter();
    let vtepd = Vtepd::start(&lab.leaf, &USERSPACE);
    let pair = Pair::of(&lab.host, &lab.far);
    // In bursts, with more than one length.
    let frame = |number: u32| {
        let payload = if number % 96 < 64 { 1024 } else { 16 };
        Roce { sequence: number, payload, ..Roce::to(number / 16 % QUEUE_PAIRS) }.frame(pair)
    };
    let sent: Vec<_> = (0..6_400).map(frame).collect();
    let queue_pair = |frame: &[u8]| frame.get(47..50).map(<[u8]>::to_vec);
    let by_queue_pair = |frames: &[Vec<u8>]| -> Vec<Vec<Vec<u8>>> {
        let of = |number: u32| Some(number.to_be_bytes()[1..].to_vec());
        let all =
            |number| frames.iter().filter(move |frame| queue_pair(frame) == of(number)).cloned();
        (0..QUEUE_PAIRS).map(|number| all(number).collect()).collect()
    };
    for (with_peer, impaired) in [(false, false), (true, false), (false, true), (false, false)] {
        let peer = with_peer.then(|| Vtepd::start(&lab.peer, &[]));
        for uplink in ["up1", "up2"] {
            // A pfifo delays nothing, but vtepd treats the uplink as impaired.
            let kind = if impaired { "pfifo limit 10000" } else { "noqueue" };
            run(&lab.leaf, &format!("tc qdisc replace dev {uplink} root {kind}"));
        }
        quiet();
        let status = vtepd.ask(&["status"]);
        let expected: &[&str] = if impaired { &["up1", "up2"] } else { &[] };
        assert!(
            status["super_frames"] == "on"
                && status["impaired_uplinks"] == serde_json::json!(expected),
            "{status}"
        );
        let pieces = lab.routers.each_ref().map(|router| {
            Capture::fold(
                router,
                "leaf",
                Vec::new(),
                |pieces: &mut Vec<bool>, frame: &Frame<'_>| {
                    if frame.data.get(36..38) == Some(&4789u16.to_be_bytes()) {
                        pieces.push(frame.offload.gso.is_some());
                    }
                },
            )
        });
        let source = lab.host.mac();
        let capture =
            Capture::start(&lab.far.ns, ETH, move |frame| frame.get(6..12) == Some(&source.0));
        let before = vtepd.metrics();
        // No burst exceeds a kernel backlog, even on a busy machine.
        let mut so_far = 0;
        for burst in sent.chunks(640) {
            inject(&lab.host.ns, ETH, burst);
            so_far += burst.len();
            capture.wait(so_far);
        }
        quiet();
        let received: Vec<Vec<u8>> = capture.stop().into_iter().map(|frame| frame.bytes).collect();
        assert_eq!(received.len(), sent.len());
        assert_eq!(by_queue_pair(&received), by_queue_pair(&sent), "bytes or order");
        let left: Vec<bool> = pieces.into_iter().flat_map(Capture::stop).collect();
        let together = left.iter().filter(|&&super_frame| super_frame).count();
        println!(
            "{} frames left in {} pieces, {together} of them super-frames",
            sent.len(),
            left.len()
        );
        if impaired {
            assert_eq!((together, left.len()), (0, sent.len()));
        } else {
            assert!(
                together > 10 && left.len() < sent.len() / 2,
                "they left in {} pieces",
                left.len()
            );
        }
        // The counters count frames, not super-frames.
        let metrics = vtepd.metrics();
        let counted = |name: &str| metrics.get(name) - before.get(name);
        assert_eq!(
            metrics.vni_frames(VNI, "encapsulated") - before.vni_frames(VNI, "encapsulated"),
            sent.len() as u64
        );
        let (pieces, in_them) =
            (counted("vtepd_sent_super_frames_total"), counted("vtepd_sent_in_super_frames_total"));
        assert_eq!(pieces as usize, together);
        assert_eq!(in_them as usize - together, sent.len() - left.len());
        assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
        if let Some(peer) = peer {
            let metrics = peer.metrics();
            assert_eq!(metrics.vni_frames(VNI, "decapsulated"), sent.len() as u64, "{}", metrics.0);
        }
    }
    let said = String::from_utf8(vtepd.ctl(&["events"]).stdout).unwrap();
    for kind in ["uplink-impaired", "uplink-restored"] {
        assert_eq!(said.lines().filter(|line| line.contains(kind)).count(), 2, "{said}");
    }
}

#[root_test]
fn v2_outer_headers_are_right_and_ten_flows_use_nine_ports() {
    for (policy, arguments) in
        [("five-tuple", ["--policy", "five-tuple"]), ("qp-hash", ["--policy", "qp-hash"])]
    {
        let lab = Lab::new("v2");
        let _vtepd = Vtepd::start(&lab.leaf, &arguments);
        let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
        let pair = Pair::of(&lab.host, &lab.far);
        let sent: Vec<Vec<u8>> =
            (0..10).map(|n| frames::udp(pair, (1000 + n, 2000), &[1; 40])).collect();
        inject(&lab.host.ns, ETH, &sent);
        wait_for("ten frames", || up[0].count() + up[1].count() >= 10);
        let macs = lab.routers.each_ref().map(|router| mac_of(router, "leaf"));
        let mut ports = std::collections::BTreeSet::new();
        for (capture, mac) in up.into_iter().zip(macs) {
            for outer in capture.stop().iter().map(|frame| frame.outer(4789).unwrap()) {
                assert_eq!(
                    (outer.to, outer.source, outer.destination, outer.vni),
                    (mac, LEAF, PEER, VNI)
                );
                assert_eq!(outer.vxlan, [8, 0, 0, 0, 0, 0, 10, 0]);
                assert!(!outer.dont_fragment && outer.ttl == 64 && outer.tos == 0, "{outer:?}");
                assert_ne!(outer.udp_checksum, 0, "the netdev's default is udpcsum");
                assert!(sent.contains(&outer.inner));
                assert!(outer.source_port >= if policy == "qp-hash" { 49152 } else { 32768 });
                ports.insert(outer.source_port);
            }
        }
        assert!(ports.len() >= 9, "{policy}: {ports:?}");
    }
}

#[root_test]
fn v4_a_flood_is_one_well_formed_copy_for_each_vtep() {
    let lab = Lab::new("v4");
    let _vtepd = Vtepd::start(&lab.leaf, &[]);
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    let frame = frames::udp(
        Pair::of(&lab.host, &lab.far).to_mac(MacAddr::BROADCAST),
        (5, 6),
        b"to everybody",
    );
    inject(&lab.host.ns, ETH, std::slice::from_ref(&frame));
    wait_for("both copies", || up[0].count() + up[1].count() >= 2);
    quiet();
    let mut copies: Vec<_> =
        up.into_iter().flat_map(Capture::stop).map(|seen| seen.outer(4789).unwrap()).collect();
    copies.sort_by_key(|outer| outer.destination);
    assert_eq!(copies.iter().map(|outer| outer.destination).collect::<Vec<_>>(), [PEER, PEER2]);
    assert!(
        copies.iter().all(|outer| outer.inner == frame && outer.vni == VNI && outer.source == LEAF)
    );
}

/// Packets with any other flag or reserved bit stay with the kernel, whose rules differ for each
/// bit.
#[root_test]
fn l12_reserved_bits_are_left_to_the_kernel() {
    let lab = Lab::new("l12");
    let attempt = |lab: &Lab| {
        let arrived = Capture::start(&lab.host.ns, ETH, is_experiment);
        let to = mac_of(&lab.leaf, "up1");
        let bits: Vec<u32> = (0..64).filter(|bit| !(8..32).contains(bit)).collect();
        let tunnelled = |flip| Tunnelled {
            to,
            source: PEER,
            destination: LEAF,
            port: 4789,
            vni: VNI,
            tos: 0,
            flip,
        };
        let pair = Pair::of(&lab.far, &lab.host);
        let frames: Vec<Vec<u8>> = bits
            .iter()
            .map(|bit| {
                tunnelled(1 << bit).frame(&frames::ethernet(pair, EXPERIMENT, &[*bit as u8; 50]))
            })
            .collect();
        assert_eq!(frames.len(), 40, "39 reserved bits, and the I flag");
        inject(&lab.routers[0], "leaf", &frames);
        inject(
            &lab.routers[0],
            "leaf",
            &[tunnelled(0).frame(&frames::ethernet(pair, EXPERIMENT, &[99; 50]))],
        );
        arrived.wait_until("the one without", |seen: &Vec<Captured>| {
            seen.iter().any(|f| f.bytes[20] == 99)
        });
        quiet();
        let mut bits: Vec<u8> = arrived.stop().iter().map(|frame| frame.bytes[20]).collect();
        bits.sort_unstable();
        bits
    };
    let kernel = attempt(&lab);
    let vtepd = Vtepd::start(&lab.leaf, &USERSPACE);
    assert_eq!(attempt(&lab), kernel);
    let metrics = vtepd.metrics();
    assert_eq!(
        metrics.vni_frames(VNI, "decapsulated"),
        1,
        "only the one without a reserved bit is vtepd's"
    );
    assert_eq!(metrics.get("vtepd_steering_frames_total{decision=\"uplink_redirected\"}"), 1);
}

/// Q16: TCP super-frames and partial checksums from veth ports, in both directions, and
/// `UDP_SEGMENT`.
#[root_test]
fn q16_super_frames_and_partial_checksums_from_plain_veth() {
    for (overlay_mtu, underlay_mtu) in [(1500, 1550), (1500, 9000), (9000, 9050)] {
        let lab = Lab::with("q16", Setup { overlay_mtu, underlay_mtu, ..Setup::default() });
        let vtepd = Vtepd::start(&lab.leaf, &USERSPACE);
        let sizes = lab.routers.each_ref().map(|router| {
            Capture::fold(router, "leaf", 0, |largest: &mut usize, frame: &Frame<'_>| {
                let whole = frame.data.len() - 50;
                *largest = (*largest)
                    .max(frame.offload.gso.map_or(whole, |gso| usize::from(gso.size) - 8));
            })
        });
        sockets::tcp_both_ways(&lab.host, &lab.far, 4_000_000);
        sockets::tcp_both_ways(&lab.farther, &lab.host, 4_000_000);
        let datagram = overlay_mtu as usize - 28;
        for size in [datagram, 600, 1] {
            sockets::udp(&lab.host, &lab.far, 100, size, true);
            sockets::udp(&lab.far, &lab.host, 100, size, true);
            sockets::udp(&lab.host, &lab.far, 10, size, false);
            sockets::udp(&lab.far, &lab.host, 10, size, false);
        }
        // Segments have the host's size, however many of them leave in one super-frame.
        for largest in sizes.map(Capture::stop) {
            assert!(largest <= overlay_mtu as usize + 14, "a frame of {largest} bytes");
        }
        let metrics = vtepd.metrics();
        assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
        assert_eq!(metrics.get("vtepd_steering_frames_total{decision=\"vxlan_too_big\"}"), 0);
        assert!(
            metrics.get("vtepd_copied_frames_total") > 500,
            "super-frames were segmented:\n{}",
            metrics.0
        );
    }
}

/// Q12 on the wire: every frame is counted under random traffic.
#[root_test]
fn q12_every_frame_is_accounted_for_under_random_traffic() {
    let lab = Lab::new("q12");
    lab.without_bridge_netfilter();
    // Some flood copies have no route or no next hop.
    ip(&lab.leaf, "route add 10.0.0.9/32 via 10.1.1.77 dev up1 onlink");
    bridge(
        &lab.leaf,
        "fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.8\nfdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.9",
    );
    let vtepd = Vtepd::start(&lab.leaf, &["--strict-vtep"]);
    let mut random = Random::new(SEED);
    let to = mac_of(&lab.leaf, "up2");
    for _ in 0..20 {
        let (mut from_host, mut from_underlay) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let target = [lab.far.mac(), lab.farther.mac(), UNKNOWN, MacAddr::BROADCAST]
                [random.below(4) as usize];
            let length = random.below(1400) as usize;
            let bytes = sockets::bytes(random.next(), length);
            let pair = Pair::of(&lab.host, &lab.far).to_mac(target);
            let ethertype = [0x0800, 0x86dd, 0x8100, EXPERIMENT][random.below(4) as usize];
            from_host.push(frames::ethernet(pair, ethertype, &bytes));
            from_host.push(frames::udp(pair, (random.next() as u16, 4791), &bytes));
            // From known and unknown VTEPs, with every ECN codepoint, some with invalid inner
            // frames.
            let source = [PEER, PEER2, [10, 9, 9, 9].into()][random.below(3) as usize];
            let tos = random.below(4) as u8;
            let tunnelled =
                Tunnelled { to, source, destination: LEAF, port: 4789, vni: VNI, tos, flip: 0 };
            let inner = if random.below(4) == 0 {
                bytes
            } else {
                frames::udp(Pair::of(&lab.far, &lab.host), (1, 2), &bytes)
            };
            from_underlay.push(tunnelled.frame(&inner));
        }
        inject(&lab.host.ns, ETH, &from_host);
        inject(&lab.routers[1], "leaf", &from_underlay);
    }
    sockets::tcp_both_ways(&lab.host, &lab.far, 500_000);
    let metrics = vtepd.wait_until_idle();
    let [received, copied, sent, dropped, held] = metrics.passed();
    assert_eq!(received + copied, sent + dropped + held, "{}", metrics.0);
    // All 4,000 of the host, and those of the underlay that kernel VXLAN would not refuse.
    assert!(received > 5000 && copied > 1000, "{}", metrics.0);
    let [_, _, frame_errors, _] = crate::refused::errors(&lab);
    assert!(frame_errors > 0, "no CE around Not-ECT was counted");
    for reason in ["no_route", "unknown_vtep", "inner_truncated"] {
        assert!(metrics.dropped(reason) > 0, "nothing was dropped for {reason}:\n{}", metrics.0);
    }
    // The steering programs and the worker count the same: every redirected frame has arrived.
    let steered =
        |decision| metrics.get(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"));
    let from_hosts = steered("vxlan_redirected") + steered("port_bypassed");
    assert_eq!(from_hosts, metrics.get("vtepd_received_frames_total{from=\"bridge\"}"));
    assert_eq!(
        steered("uplink_redirected"),
        metrics.get("vtepd_received_frames_total{from=\"underlay\"}")
    );
}

/// A host moves behind the leaf before its remote entry is deleted. Frames follow it.
#[root_test]
fn q15_a_host_that_becomes_local_gets_its_frames_at_once() {
    let lab = Lab::new("q15");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let mover = MacAddr([2, 0, 0, 0, 0, 0x77]);
    bridge(&lab.leaf, &vtepd_tests::lab::remote_mac(mover, VNI, PEER));
    vtepd.wait_for("the new MAC", |metrics| metrics.get("vtepd_vni_remote_macs{vni=\"10\"}") == 3);
    let pair = Pair::of(&lab.host, &lab.far).to_mac(mover);
    let seen = watch(&lab);
    inject(&lab.host.ns, ETH, &experiments(pair, 1));
    seen[1].wait(1);

    // A frame behind the leaf moves the address in the bridge. The entry in the vxlan netdev's FDB
    // stays until zebra deletes it (`zebra_evpn_mac`).
    let moved = Pair { from: (mover, lab.next.ip()), to: (MacAddr::BROADCAST, lab.host.ip()) };
    inject(&lab.next.ns, ETH, &[frames::ethernet(moved, EXPERIMENT, &[0xee; 50])]);
    wait_for("the first frame at the new place", || {
        inject(&lab.host.ns, ETH, &experiments(pair, 1));
        std::thread::sleep(Duration::from_millis(1));
        seen[0].count() > 0
    });
    // The old entry disappears when the control plane deletes it.
    bridge(&lab.leaf, &format!("fdb del {mover} dev vx10 dst {PEER} self"));
    vtepd
        .wait_for("the MAC to go", |metrics| metrics.get("vtepd_vni_remote_macs{vni=\"10\"}") == 2);

    // The control plane announces the address at another VTEP.
    bridge(&lab.leaf, &vtepd_tests::lab::remote_mac(mover, VNI, PEER2));
    wait_for("the first frame at the third place", || {
        inject(&lab.host.ns, ETH, &experiments(pair, 1));
        std::thread::sleep(Duration::from_millis(1));
        seen[2].count() > 0
    });
    // The frames followed notifications of the kernel, for its tables were not dumped again.
    assert_eq!(vtepd.metrics().get("vtepd_netlink_overruns_total"), 0);
}

/// By default vtepd accepts frames from unknown VTEPs, as the kernel does, and counts them.
#[root_test]
fn unknown_vteps_are_counted_and_dropped_if_told() {
    let lab = Lab::new("uvt");
    let to = mac_of(&lab.leaf, "up1");
    let stranger = Tunnelled {
        to,
        source: [10, 9, 9, 9].into(),
        destination: LEAF,
        port: 4789,
        vni: VNI,
        tos: 0,
        flip: 0,
    };
    let frames: Vec<Vec<u8>> = experiments(Pair::of(&lab.far, &lab.host), 5)
        .iter()
        .map(|frame| stranger.frame(frame))
        .collect();
    let known: Vec<Vec<u8>> = experiments(Pair::of(&lab.far, &lab.host), 1)
        .iter()
        .map(|frame| Tunnelled { source: PEER2, ..stranger }.frame(frame))
        .collect();
    for strict in [false, true] {
        let vtepd = Vtepd::start(&lab.leaf, if strict { &["--strict-vtep"] } else { &[] });
        let seen = Capture::start(&lab.host.ns, ETH, is_experiment);
        inject(&lab.routers[0], "leaf", &frames);
        inject(&lab.routers[0], "leaf", &known);
        seen.wait(if strict { 1 } else { 6 });
        quiet();
        assert_eq!(seen.stop().len(), if strict { 1 } else { 6 });
        let metrics = vtepd.metrics();
        assert_eq!(
            metrics.get("vtepd_vni_unknown_vtep_frames_total{vni=\"10\"}"),
            5,
            "{}",
            metrics.0
        );
        assert_eq!(metrics.dropped("unknown_vtep"), if strict { 5 } else { 0 });
    }
}
