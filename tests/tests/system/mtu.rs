//! L22: an underlay whose MTU equals the overlay's, as many labs have it. Frames that do not fit
//! stay with the kernel, and the result is the same as without vtepd.

use std::net::UdpSocket;

use root_test::root_test;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, VNI, ip, run, sysctl};
use vtepd_tests::{Capture, Lab, Setup, Vtepd, quiet, sockets, wait_for};
use wire::{Ethernet, Ipv4Packet};

/// Captures UDP packets from the leaf at the routers during `act`. Returns how many there were, and
/// how many of them were fragments.
fn on_the_underlay(lab: &Lab, act: impl FnOnce()) -> (usize, usize) {
    let to_leaf = |frame: &[u8]| {
        let Ok((_, packet)) = Ethernet::parse(frame) else { return false };
        Ipv4Packet::parse(packet).is_ok_and(|ip| ip.header.protocol() == 17)
    };
    let up = lab.routers.each_ref().map(|router| Capture::start(router, "leaf", to_leaf));
    act();
    quiet();
    let frames: Vec<_> = up.into_iter().flat_map(Capture::stop).collect();
    let is_part = |frame: &Vec<u8>| {
        let ip = Ipv4Packet::parse(frame.get(Ethernet::LENGTH..).unwrap()).unwrap().header;
        ip.more_fragments() || ip.fragment_offset() > 0
    };
    let parts = frames.iter().filter(|frame| is_part(&frame.bytes)).count();
    (frames.len(), parts)
}

/// Results of pings with large packets, with and without don't-fragment.
fn story(lab: &Lab, df: &str) -> Vec<String> {
    // Path MTUs that hosts have learned before.
    for host in [&lab.host, &lab.far] {
        run(&host.ns, "ip route flush cache");
    }
    let mut seen = Vec::new();
    for (size, prohibit) in
        [(1400, false), (1400, true), (1472, false), (1472, true), (4000, false)]
    {
        let options: &[&str] =
            if prohibit { &["-M", "do", "-W", "1"] } else { &["-M", "dont", "-W", "1"] };
        let mut said = String::new();
        let counts = on_the_underlay(lab, || {
            said = sockets::try_ping(&lab.host, lab.far.ip(), 2, size, options)
        });
        let answered = said.contains("2 received");
        seen.push(format!(
            "{size} bytes, inner df {prohibit}, outer '{df}': answered {answered}, underlay {counts:?}"
        ));
    }
    seen
}

#[root_test]
fn big_packets_fare_as_with_kernel_vxlan_where_both_mtus_are_equal() {
    for df in ["df unset", "df set", "df inherit"] {
        let lab = Lab::with(
            "mtu",
            Setup { underlay_mtu: 1500, overlay_mtu: 1500, vxlan: df, ..Setup::default() },
        );
        let kernel = story(&lab, df);
        for hook in ["tcx", "clsact"] {
            let vtepd = Vtepd::start(&lab.leaf, &["--hook", hook]);
            assert_eq!(story(&lab, df), kernel, "{hook}");
            let metrics = vtepd.metrics();
            assert!(
                metrics.get("vtepd_steering_frames_total{decision=\"vxlan_too_big\"}") > 0,
                "{}",
                metrics.0
            );
            assert!(metrics.vni_frames(VNI, "encapsulated") > 0);
            assert_eq!(metrics.dropped("too_big"), 0, "{}", metrics.0);
            // vtepd forwards a frame that just fits. A frame one byte longer stays with the kernel.
            let pair = Pair::of(&lab.host, &lab.far);
            for (payload, vtepds) in [(1500 - 50 - 28, 1), (1500 - 50 - 27, 0)] {
                let before = vtepd.metrics().vni_frames(VNI, "encapsulated");
                let (all, parts) = on_the_underlay(&lab, || {
                    inject(&lab.host.ns, ETH, &[frames::udp(pair, (1, 2), &vec![7; payload])])
                });
                assert_eq!(
                    vtepd.metrics().vni_frames(VNI, "encapsulated") - before,
                    vtepds,
                    "{payload} bytes"
                );
                if df == "df unset" {
                    assert_eq!(
                        (all, parts),
                        if vtepds == 1 { (1, 0) } else { (2, 2) },
                        "{payload} bytes"
                    );
                }
            }
        }
        // TCP discovers the path MTU, although its super-frames' segments are too long at first.
        let _vtepd = Vtepd::start(&lab.leaf, &[]);
        for host in [&lab.host, &lab.far] {
            run(&host.ns, "ip route flush cache");
        }
        sockets::tcp_both_ways(&lab.host, &lab.far, 300_000);
    }
}

/// A host that routes through the leaf's SVI learns the path MTU from the kernel, with vtepd as
/// without.
#[root_test]
fn l22_icmp_fragmentation_needed_has_the_right_mtu() {
    let lab = Lab::with(
        "l22",
        Setup { underlay_mtu: 1500, overlay_mtu: 1500, vxlan: "df set", ..Setup::default() },
    );
    // Another subnet behind the leaf, routed into the overlay.
    ip(
        &lab.leaf,
        &format!(
            "link add sub type veth peer name eth0 netns {}\n\
             addr add 172.16.9.1/24 dev sub\n\
             link set sub up\n\
             addr add 192.168.10.254/24 dev br10",
            lab.next.ns.name()
        ),
    );
    sysctl(&lab.leaf, "ipv4/ip_forward", "1");
    ip(
        &lab.next.ns,
        "addr add 172.16.9.2/24 dev eth0\nlink set eth0 up\nroute replace 192.168.10.3/32 via 172.16.9.1",
    );
    ip(&lab.far.ns, "route add 172.16.9.0/24 via 192.168.10.254");
    let attempt = || {
        run(&lab.next.ns, "ip route flush cache");
        let socket = lab.next.ns.enter(|| UdpSocket::bind("172.16.9.2:0")).unwrap().unwrap();
        // Linux sets don't-fragment on packets that fit the known path MTU.
        socket.connect((lab.far.ip(), 9)).unwrap();
        // UDP over IPv4.
        let udp = |frame: &[u8]| frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17);
        let arrived = Capture::start(&lab.far.ns, ETH, udp);
        socket.send(&[0; 1472]).unwrap();
        let found = || run(&lab.next.ns, "ip route get 192.168.10.3").contains("mtu 1450");
        wait_for("the path's MTU to be known", found);
        wait_for("the one that fits", || {
            let _ = socket.send(&[0; 1422]);
            arrived.count() > 0
        });
        let lengths: Vec<usize> = arrived.stop().iter().map(|frame| frame.bytes.len()).collect();
        assert!(lengths.iter().all(|length| *length == 1464), "{lengths:?}");
    };
    attempt();
    let _vtepd = Vtepd::start(&lab.leaf, &[]);
    attempt();
}
