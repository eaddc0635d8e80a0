//! An IPv6 underlay: the leaf under test forwards what its peer, kernel VXLAN, sends and expects.

use crate::offload::steered;
use fabric::Namespace;
use root_test::root_test;
use test_frames::{ROCE, UDP, bth, udp};
use vtepd_tests::frames::{self, Ipv4, Pair, inject, ipv4};
use vtepd_tests::lab::{ETH, VNI, bridge, ip, sysctl};
use vtepd_tests::{Capture, Lab, Vtepd, sockets, wait_for};

/// Whether a frame is VXLAN over IPv6.
fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xdd])
        && frame.get(20) == Some(&17)
        && frame.get(56..58) == Some(&4789u16.to_be_bytes())
}

/// The VNI and the inner frame of VXLAN over IPv6.
pub(crate) fn inner_over_ipv6(frame: &[u8]) -> Option<(u32, &[u8])> {
    let vni = u32::from_be_bytes(*frame.get(66..)?.first_chunk()?) >> 8;
    is_ours(frame).then_some((vni, frame.get(70..)?))
}

/// Turns IPv6 on.
pub(crate) fn on(namespace: &Namespace, interface: &str) {
    for (name, value) in [("disable_ipv6", "0"), ("keep_addr_on_down", "1")] {
        sysctl(namespace, &format!("ipv6/conf/{interface}/{name}"), value);
    }
}

/// Gives the leaf and its peer IPv6 addresses, routes over both routers, and a vxlan netdev between
/// these addresses in place of the one that the lab has. `options` are those of both netdevs.
pub(crate) fn over_ipv6(case: &str, options: &str) -> Lab {
    let lab = Lab::new(case);
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
    lab.wait_for_links();
    // Link-local addresses of the routers are checked for duplicates first.
    wait_for("kernel VXLAN over IPv6", || {
        sockets::try_ping(&lab.host, lab.far.ip(), 3, 1000, &[]).contains("3 packets transmitted")
    });
    lab
}

/// As [`over_ipv6`], but the leaf uses the first router only. That one has two links towards the
/// peer, the second by the other router. It hashes addresses and flow label, but no ports.
pub(crate) fn behind_one_router(case: &str) -> Lab {
    let lab = over_ipv6(case, "");
    let [first, second] = &lab.routers;
    let link =
        format!("link add cross mtu 9000 type veth peer name cross netns {}\n", second.name());
    ip(first, &link);
    for (router, number) in [(first, 1), (second, 2)] {
        on(router, "cross");
        ip(router, &format!("addr add fd01:9::{number}/64 dev cross nodad\nlink set cross up\n"));
    }
    sysctl(first, "ipv6/fib_multipath_hash_policy", "0");
    ip(first, "route replace fd00::2/128 nexthop via fd01:2:1::1 nexthop via fd01:9::2\n");
    ip(&lab.leaf, "route replace fd00::2/128 via fd01:1:1::2\n");
    // Link-local addresses are checked for duplicates here, too.
    let neighbours = [(first, "fd01:2:1::1"), (first, "fd01:9::2"), (second, "fd01:2:2::1")];
    wait_for("the routers to know their neighbours", || {
        neighbours.iter().all(|(router, to)| router.run(&["ping", "-c1", "-W1", to]).is_ok())
    });
    lab
}

/// Number of queue pairs on each link to the peer, of 64 that send a frame each.
fn queue_pairs_by_link(lab: &Lab) -> [usize; 2] {
    let links = ["up1", "up2"].map(|link| Capture::start(&lab.peer, link, is_ours));
    let pair = Pair::of(&lab.host, &lab.far);
    let frame = |queue_pair| {
        let transport = bth(4, queue_pair, 1, &[0; 4]);
        ipv4(pair, UDP, &udp((0xc000, ROCE), &transport), Ipv4::default())
    };
    inject(&lab.host.ns, ETH, &(0x100..0x140).map(frame).collect::<Vec<_>>());
    let arrived = || links.iter().map(Capture::count).sum::<usize>();
    fabric::process::wait_until(vtepd_tests::QUIET * 2, || arrived() >= 64);
    links.map(|link| link.stop().len())
}

/// A router with `net.ipv6.fib_multipath_hash_policy` 0, the default, distributes queue pairs by the
/// flow label only. Kernel VXLAN has one label for all of them.
#[root_test]
fn the_flow_label_distributes_queue_pairs_behind_routers_that_hash_no_ports() {
    let lab = behind_one_router("sixlabel");
    let is_on_one = |links: [usize; 2]| links == [64, 0] || links == [0, 64];
    let by_kernel = queue_pairs_by_link(&lab);
    assert!(is_on_one(by_kernel), "{by_kernel:?}");
    for datapath in ["userspace", "offload"] {
        let netdevs = ["--datapath", datapath, "--flow-label", "netdev"];
        for (arguments, spreads) in [(&netdevs[..2], true), (&netdevs, false)] {
            let vtepd = started(&lab, arguments);
            let links = queue_pairs_by_link(&lab);
            println!("{arguments:?}: queue pairs by link {links:?}");
            assert_eq!(links.iter().sum::<usize>(), 64, "{arguments:?} {links:?}");
            // With 64 of even chance, fewer than 12 on a link happen once in ten million runs.
            assert_eq!(links.iter().all(|count| *count >= 12), spreads, "{arguments:?} {links:?}");
            assert_eq!(is_on_one(links), !spreads, "{arguments:?} {links:?}");
            assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") >= 64);
            let shown = vtepd.ask(&["vni"]);
            let label = if spreads { "source-port" } else { "0x00000" };
            assert!(shown.to_string().contains(&format!("\"flow_label\":\"{label}\"")), "{shown}");
        }
    }
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
    fabric::process::wait_until(vtepd_tests::QUIET * 2, || arrived() >= frames.len());
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

/// Flow label and UDP source port.
fn label_and_port(packet: &[u8]) -> (u32, u32) {
    let [_, a, b, c, ..] = packet[14..] else { panic!("{packet:?}") };
    let label = u32::from_be_bytes([0, a & 15, b, c]);
    (label, u16::from_be_bytes([packet[54], packet[55]]).into())
}

/// Checks that the flow label is the source port, and sets it to 0, which kernel VXLAN has.
fn without_label(packet: &mut [u8]) {
    let (label, port) = label_and_port(packet);
    assert_eq!(label, port, "{packet:x?}");
    packet[15] &= 0xf0;
    packet[16..18].fill(0);
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
        let runs = [("userspace", "netdev"), ("offload", "netdev")];
        for (datapath, label) in runs.into_iter().chain(runs.map(|(by, _)| (by, "source-port"))) {
            let vtepd = started(&lab, &["--datapath", datapath, "--flow-label", label]);
            let mut packets = sent(&lab, 8, b"the same");
            // A label of the netdev stays.
            if label == "source-port" && !options.contains("flowlabel") {
                packets.iter_mut().flatten().for_each(|packet| without_label(packet));
            }
            let by_vtepd = whole(packets);
            assert_eq!(by_vtepd, by_kernel, "{options} {datapath} {label}");
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
