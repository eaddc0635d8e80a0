//! An IPv6 underlay: the leaf under test forwards what its peer, kernel VXLAN, sends and expects.

use crate::offload::steered;
use lab::Namespace;
use root_test::root_test;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, VNI, bridge, ip, sysctl};
use vtepd_tests::{Capture, Lab, Vtepd, sockets, wait_for};

/// Whether a frame is VXLAN over IPv6.
fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xdd])
        && frame.get(20) == Some(&17)
        && frame.get(56..58) == Some(&4789u16.to_be_bytes())
}

/// Gives the leaf and its peer IPv6 addresses, routes over both routers, and a vxlan netdev between
/// these addresses in place of the one that the lab has. `options` are those of both netdevs.
fn over_ipv6(case: &str, options: &str) -> Lab {
    let lab = Lab::new(case);
    let on = |namespace: &Namespace, interface: &str| {
        for (name, value) in [("disable_ipv6", "0"), ("keep_addr_on_down", "1")] {
            sysctl(namespace, &format!("ipv6/conf/{interface}/{name}"), value);
        }
    };
    let leaves = [(&lab.leaf, 1, "leaf"), (&lab.peer, 2, "peer")];
    for (router, r) in lab.routers.iter().zip(1..) {
        sysctl(router, "ipv6/conf/all/forwarding", "1");
        for (_, number, name) in leaves {
            on(router, name);
            ip(
                router,
                &format!(
                    "addr add fd01:{number}:{r}::2/64 dev {name} nodad\n\
                     route add fd00::{number}/128 via fd01:{number}:{r}::1"
                ),
            );
        }
    }
    for (leaf, number, _) in leaves {
        ["lo", "up1", "up2"].iter().for_each(|interface| on(leaf, interface));
        sysctl(leaf, "ipv6/fib_multipath_hash_policy", "1");
        let (other, n) = (3 - number, number);
        ip(
            leaf,
            &format!(
                "addr add fd00::{n}/128 dev lo nodad\n\
                 addr add fd01:{n}:1::1/64 dev up1 nodad\n\
                 addr add fd01:{n}:2::1/64 dev up2 nodad\n\
                 route add fd00::{other}/128 nexthop via fd01:{n}:1::2 nexthop via fd01:{n}:2::2\n\
                 link del vx{VNI}\n\
                 link add vx{VNI} mtu 8930 type vxlan id {VNI} local fd00::{n} dstport 4789 nolearning {options}\n\
                 link set vx{VNI} master br{VNI} up\n\
                 link set vx{VNI} type bridge_slave learning off"
            ),
        );
        let hosts = if number == 1 { vec![&lab.far] } else { vec![&lab.host, &lab.next] };
        let mut entries = format!("fdb append 00:00:00:00:00:00 dev vx{VNI} dst fd00::{other}\n");
        for host in hosts {
            let mac = host.mac();
            entries += &format!(
                "fdb add {mac} dev vx{VNI} master static\n\
                 fdb append {mac} dev vx{VNI} dst fd00::{other} self\n"
            );
        }
        bridge(leaf, &entries);
    }
    lab.wait_for_ports(VNI);
    // Link-local addresses of the routers are checked for duplicates first.
    wait_for("kernel VXLAN over IPv6", || {
        sockets::try_ping(&lab.host, lab.far.ip(), 3, 1000, &[]).contains("3 packets transmitted")
    });
    lab
}

/// The packets that the routers get for one frame of each of these flows, and one with a tag.
fn sent(lab: &Lab, flows: u16, inner: &[u8]) -> [Vec<Vec<u8>>; 2] {
    let watching = lab.routers.each_ref().map(|router| Capture::start(router, "leaf", is_ours));
    let pair = Pair::of(&lab.host, &lab.far);
    let plain = (0..flows).map(|flow| frames::udp(pair, (flow + 1, 9), inner));
    let frames: Vec<_> =
        plain.flat_map(|frame| [frames::tagged(&frame, 0x8100, 7), frame]).collect();
    inject(&lab.host.ns, ETH, &frames);
    let arrived = || watching.iter().map(Capture::count).sum::<usize>();
    lab::process::wait_until(vtepd_tests::QUIET * 2, || arrived() >= frames.len());
    watching.map(|capture| capture.stop().into_iter().map(|frame| frame.bytes).collect())
}

/// A daemon that has taken the VNI over. The IPv6 settings of the uplinks are read once a second.
fn started(lab: &Lab, arguments: &[&str]) -> Vtepd {
    let vtepd = Vtepd::start(&lab.leaf, arguments);
    vtepd.wait_for("the VNI to be taken over", |metrics| metrics.left("vx10").is_none());
    vtepd
}

/// The headers that the settings of the netdev determine: IPv6, the UDP destination port and
/// length, whether there is a checksum, VXLAN, and the inner frame.
fn fixed(packet: &[u8]) -> (Vec<u8>, Vec<u8>, bool, Vec<u8>) {
    let checksum = packet[60..62] != [0, 0];
    (packet[14..54].to_vec(), packet[56..60].to_vec(), checksum, packet[62..].to_vec())
}

#[root_test]
fn l11_packets_over_ipv6_are_those_of_the_kernel() {
    let cases = [
        "",
        "tos 0x48 ttl 9 flowlabel 0x12345",
        "tos inherit ttl inherit",
        "udp6zerocsumtx udp6zerocsumrx",
    ];
    for (options, number) in cases.into_iter().zip(1..) {
        let lab = over_ipv6(&format!("six{number}"), options);
        let whole = |packets: [Vec<Vec<u8>>; 2]| {
            let mut packets: Vec<_> = packets.into_iter().flatten().collect();
            packets.sort_by(|a, b| a[62..].cmp(&b[62..]));
            packets.iter().map(|packet| fixed(packet)).collect::<Vec<_>>()
        };
        let by_kernel = whole(sent(&lab, 8, b"the same"));
        assert_eq!(by_kernel.len(), 16, "{options}");
        for datapath in ["userspace", "offload"] {
            let vtepd = started(&lab, &["--datapath", datapath]);
            let by_vtepd = whole(sent(&lab, 8, b"the same"));
            assert_eq!(by_vtepd, by_kernel, "{options} {datapath}");
            assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") >= 16);
            sockets::ping(&lab.far, lab.host.ip(), 3, 1000, &[]);
            let metrics = vtepd.metrics();
            assert!(metrics.vni_frames(VNI, "decapsulated") >= 3, "{}", metrics.0);
            let least = if datapath == "offload" { [16, 3] } else { [0, 0] };
            let offloaded = ["offload_encapsulated", "offload_decapsulated"]
                .map(|decision| steered(&metrics, decision));
            assert!(offloaded[0] >= least[0] && offloaded[1] >= least[1], "{}", metrics.0);
            assert_eq!(offloaded == [0, 0], datapath == "userspace", "{}", metrics.0);
        }
    }
}

#[root_test]
fn the_leaf_and_a_linux_peer_talk_over_ipv6() {
    let lab = over_ipv6("sixtalk", "");
    let vtepd = started(&lab, &[]);
    sockets::ping(&lab.far, lab.host.ip(), 5, 1000, &[]);
    sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
    sockets::tcp_both_ways(&lab.host, &lab.far, 3_000_000);
    sockets::tcp_both_ways(&lab.far, &lab.host, 3_000_000);
    let metrics = vtepd.metrics();
    for way in ["encapsulated", "decapsulated"] {
        assert!(metrics.vni_frames(VNI, way) > 100, "{}", metrics.0);
    }
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
    let shown = vtepd.ask(&["route"]).to_string();
    assert!(shown.contains("fd00::2") && shown.contains("fd01:1:2::2"), "{shown}");
    let shown = vtepd.ask(&["peer"]).to_string();
    assert!(shown.contains("fd00::2"), "{shown}");
}

/// Flows are dealt to both uplinks. When one goes down, all use the other, and they return.
#[root_test]
fn flows_over_ipv6_move_when_an_uplink_is_lost_and_return() {
    let lab = over_ipv6("sixecmp", "");
    let vtepd = started(&lab, &[]);
    let ways = || sent(&lab, 64, b"which way").map(|packets| packets.len());
    wait_for("both uplinks", || ways().iter().all(|count| *count > 32));
    ip(&lab.leaf, "link set up2 down");
    wait_for("the one uplink", || ways() == [128, 0]);
    ip(&lab.leaf, "link set up2 up");
    wait_for("both again", || ways().iter().all(|count| *count > 32));
    // A next hop leaves the route, and joins it again.
    ip(&lab.leaf, "route del fd00::2/128 via fd01:1:1::2 dev up1");
    wait_for("the other uplink", || ways() == [0, 128]);
    ip(&lab.leaf, "route append fd00::2/128 nexthop via fd01:1:1::2");
    wait_for("both a third time", || ways().iter().all(|count| *count > 32));
    assert!(vtepd.metrics().left("vx10").is_none());
    // A route that is valid for one source only.
    ip(&lab.leaf, "route add fd00::2/128 from fd00::1/128 via fd01:1:1::2");
    vtepd.wait_for("the kernel to forward", |metrics| {
        metrics.left("vx10").as_deref() == Some("source-route")
    });
    ip(&lab.leaf, "route del fd00::2/128 from fd00::1/128 via fd01:1:1::2");
    vtepd.wait_for("the VNI to return", |metrics| metrics.left("vx10").is_none());
    sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
}
