//! Changes of the underlay: routes, next hops and their MAC addresses. At the start no address is
//! resolved.

use std::time::{Duration, Instant};

use fabric::Namespace;
use fabric::netns::veth;
use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, VNI, ip, mac_of, run, sysctl};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Setup, Vtepd, quiet, sockets, wait_for};
use wire::{Arp, Ethernet, MacAddr, number};

/// Whether the numbers of frames at the routers are as expected.
type Wanted<'a> = &'a dyn Fn([usize; 2]) -> bool;

/// Sends one frame of each flow from the leaf's host to the peer's. Returns how many each router
/// gets.
fn ways(lab: &Lab, flows: u16) -> [usize; 2] {
    let watching = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    let pair = Pair::of(&lab.host, &lab.far);
    let sent: Vec<_> =
        (0..flows).map(|flow| frames::udp(pair, (flow + 1, 9), b"which way")).collect();
    inject(&lab.host.ns, ETH, &sent);
    // Dropped frames never arrive, so the wait is limited.
    let arrived = || watching.iter().map(Capture::count).sum::<usize>();
    fabric::process::wait_until(vtepd_tests::QUIET * 2, || arrived() >= usize::from(flows));
    watching.map(|capture| capture.stop().len())
}

/// No address is resolved, neither between hosts nor between leaves and routers. The peer's host
/// sends first.
#[root_test]
fn g1_the_linux_peer_speaks_first_and_vtepd_answers() {
    let lab = Lab::with("g1", Setup { learning: true, ..Setup::default() });
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    for host in [&lab.host, &lab.far, &lab.farther] {
        run(&host.ns, &format!("ip neigh flush dev {ETH} nud permanent"));
        assert_eq!(run(&host.ns, &format!("ip neigh show dev {ETH}")), "");
    }
    for leaf in [&lab.leaf, &lab.peer] {
        ["up1", "up2"].iter().for_each(|up| drop(run(leaf, &format!("ip neigh flush dev {up}"))));
    }
    sockets::ping(&lab.far, lab.host.ip(), 5, 1000, &[]);
    sockets::tcp_both_ways(&lab.far, &lab.host, 300_000);
    // In the other direction, to a host that has not sent yet.
    sockets::ping(&lab.host, lab.farther.ip(), 5, 1000, &[]);
    let metrics = vtepd.metrics();
    for way in ["encapsulated", "decapsulated"] {
        assert!(metrics.vni_frames(VNI, way) > 20, "{}", metrics.0);
    }
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
}

/// The same over IPv6, to an address of the bridge itself, with learning. No address is resolved.
#[root_test]
fn g1_v6_the_linux_peer_speaks_first_and_vtepd_answers() {
    let lab = Lab::new("g1v6");
    veth((&lab.leaf, "six"), (&lab.peer, "six"), 9000).unwrap();
    let overlay = |leaf: &Namespace, own: u8, other: u8| {
        sysctl(leaf, "ipv6/conf/six/disable_ipv6", "0");
        ip(
            leaf,
            &format!(
                "addr add fd00:6::{own}/64 dev six nodad\n\
                 link set six up\n\
                 link add br66 type bridge mcast_snooping 0\n\
                 link add vx66 type vxlan id 66 local fd00:6::{own} remote fd00:6::{other} dstport 4789\n\
                 link set vx66 master br66 up\n\
                 addr add 192.168.66.{own}/24 dev br66\n\
                 link set br66 up"
            ),
        );
    };
    overlay(&lab.leaf, 1, 2);
    overlay(&lab.peer, 2, 1);
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    vtepd.wait_for("the VNI to be taken over", |metrics| metrics.left("vx66").is_none());
    let ping = |leaf: &Namespace, to: &str| {
        let said = leaf
            .output(&["ping", "-n", "-c", "5", "-i", "0.05", "-w", "10", "-s", "1000", to])
            .unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("5 packets transmitted, 5 received"), "{said}");
    };
    ping(&lab.peer, "192.168.66.1");
    ping(&lab.leaf, "192.168.66.2");
    let metrics = vtepd.metrics();
    for way in ["encapsulated", "decapsulated"] {
        assert!(metrics.vni_frames(66, way) >= 10, "{}", metrics.0);
    }
    sockets::ping(&lab.far, lab.host.ip(), 5, 1000, &[]);
    assert!(vtepd.metrics().vni_frames(VNI, "decapsulated") >= 5);
}

/// An ARP reply from a router to the leaf: `sender` is at `mac`.
fn reply(lab: &Lab, sender: [u8; 4], mac: MacAddr) -> Vec<u8> {
    let to = mac_of(&lab.leaf, "up1");
    let mut arp = Arp::new(Arp::REPLY);
    arp.set_sender_mac(mac)
        .set_sender(sender.into())
        .set_target_mac(to)
        .set_target([10, 1, 1, 1].into());
    [&Ethernet::new(to, mac, number::ETHERTYPE_ARP).as_bytes()[..], arp.as_bytes(), &[0; 18]]
        .concat()
}

/// Frames that wait for a next hop.
const HELD: usize = 50;

/// Frames wait for the first router, which does not answer. Replies about others change nothing; one
/// from `router` has them sent. Returns what arrives. `None` if the machine was so busy that vtepd
/// gave the frames up before that, which it does after three seconds.
fn resolved_by_the_right_reply(lab: &Lab, vtepd: &Vtepd, router: MacAddr) -> Option<Vec<Captured>> {
    let forged = MacAddr([2, 0xbb, 0, 0, 0, 0xbb]);
    run(&lab.leaf, "ip neigh flush dev up1");
    vtepd.wait_for("the entry to go", |_| {
        !run(&lab.leaf, "ip neigh show 10.1.1.0 dev up1").contains("lladdr")
    });
    let before = vtepd.metrics().dropped("waited_too_long");
    let gave_up = || vtepd.metrics().dropped("waited_too_long") > before;
    let seen = Capture::vxlan(&lab.routers[0], "leaf", 4789);
    let pair = Pair::of(&lab.host, &lab.far);
    let sent: Vec<_> =
        (0..HELD as u16).map(|flow| frames::udp(pair, (flow + 1, 9), b"wait")).collect();
    let since = Instant::now();
    inject(&lab.host.ns, ETH, &sent);
    vtepd.wait_for("frames to wait", |m| m.sum("vtepd_held_frames") == HELD as u64 || gave_up());
    inject(
        &lab.routers[0],
        "leaf",
        &[reply(lab, [10, 1, 1, 77], forged), reply(lab, [10, 0, 0, 2], forged)],
    );
    quiet();
    let (arrived, held) = (seen.count(), vtepd.metrics().sum("vtepd_held_frames"));
    if gave_up() {
        return None;
    }
    assert_eq!((arrived, held), (0, HELD as u64), "a wrong reply is ignored");
    inject(&lab.routers[0], "leaf", &[reply(lab, [10, 1, 1, 0], router)]);
    // Frames that had time left have to be sent.
    let was_late = since.elapsed() > Duration::from_secs(2);
    wait_for("the frames", || seen.count() == HELD || was_late && gave_up());
    (!was_late || !gave_up()).then(|| seen.stop())
}

/// There is only one next hop to the peer. While it does not answer, frames wait, and unsolicited
/// answers of others change nothing. Its neighbour entry ages under traffic and is confirmed again.
/// A new MAC address is found that way.
#[root_test]
fn o9_a_next_hop_is_resolved_ages_and_is_resolved_again() {
    let lab = Lab::new("o9");
    // Confirmed entries become stale after 0.5 to 1.5 seconds.
    for (name, value) in [
        ("base_reachable_time_ms", "1000"),
        ("delay_first_probe_time", "1"),
        ("retrans_time_ms", "200"),
        // The kernel asks for three seconds, so that frames do not wait in vain on a busy machine.
        ("mcast_solicit", "15"),
    ] {
        sysctl(&lab.leaf, &format!("ipv4/neigh/up1/{name}"), value);
    }
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    ip(&lab.leaf, "route replace 10.0.0.2/32 src 10.0.0.1 via 10.1.1.0");
    wait_for("the one path", || ways(&lab, 8) == [8, 0]);

    let router = mac_of(&lab.routers[0], "leaf");
    let to =
        |frames: &[Captured], mac| frames.iter().all(|frame| frame.outer(4789).unwrap().to == mac);
    ip(&lab.routers[0], "link set leaf arp off");
    let mut given_up = 0;
    let frames = loop {
        if let Some(frames) = resolved_by_the_right_reply(&lab, &vtepd, router) {
            break frames;
        }
        given_up += HELD;
        assert!(given_up < 3 * HELD, "frames were given up, three times");
    };
    ip(&lab.routers[0], "link set leaf arp on");
    assert!(frames.len() == HELD && to(&frames, router), "{} frames", frames.len());

    // The entry ages, because the kernel does not see the traffic, and is resolved again.
    let asked =
        |frame: &[u8]| frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 1]);
    let requests = Capture::start(&lab.routers[0], "leaf", asked);
    let stream = Stream::start(
        &lab.host,
        &lab.far,
        Rate { frames: 500, queue_pairs: 4, payload: 64 },
        0x0900,
    );
    requests.wait(1);
    // The router's MAC address changes without an announcement.
    let new = MacAddr([2, 0xcc, 0, 0, 0, 0xcc]);
    sysctl(&lab.routers[0], "ipv4/conf/leaf/arp_notify", "0");
    let seen = Capture::vxlan(&lab.routers[0], "leaf", 4789);
    ip(&lab.routers[0], &format!("link set leaf address {new}"));
    seen.wait_until("frames to the new MAC address", |frames| {
        frames.last().is_some_and(|frame| to(std::slice::from_ref(frame), new))
    });
    stream.pass(500);
    drop(stream.finish());
    drop(seen);
    let metrics = vtepd.wait_until_idle();
    assert_eq!(
        (metrics.dropped_in_all(), metrics.sum("vtepd_held_frames")),
        (given_up as u64, 0),
        "{}",
        metrics.0
    );
}

/// The tunnel follows every change of the route to the VTEP. Without a route nothing leaves.
#[root_test]
fn v9_the_tunnel_follows_the_underlay_route() {
    let lab = Lab::new("v9");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let one = |router: u8| format!("src 10.0.0.1 via 10.1.{router}.0");
    let both = "src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0";
    let is_one = |at: usize| move |ways: [usize; 2]| ways[at] == 64 && ways[1 - at] == 0;
    let are_both = |[a, b]: [usize; 2]| a > 16 && b > 16 && a + b == 64;
    let is_none = |ways: [usize; 2]| ways == [0, 0];
    let changes: [(&str, String, Wanted<'_>); 11] = [
        ("both", format!("route replace 10.0.0.2/32 {both}"), &are_both),
        ("the first", format!("route replace 10.0.0.2/32 {}", one(1)), &is_one(0)),
        ("the second", format!("route replace 10.0.0.2/32 {}", one(2)), &is_one(1)),
        ("a shorter prefix too", format!("route add 10.0.0.0/24 {}", one(1)), &is_one(1)),
        ("the shorter prefix only", "route del 10.0.0.2/32".to_owned(), &is_one(0)),
        ("a longer one", format!("route add 10.0.0.2/31 metric 10 {both}"), &are_both),
        ("a better metric", format!("route add 10.0.0.2/31 metric 5 {}", one(2)), &is_one(1)),
        ("nothing but a blackhole", "route replace blackhole 10.0.0.2/32".to_owned(), &is_none),
        ("no blackhole", "route del blackhole 10.0.0.2/32".to_owned(), &is_one(1)),
        (
            "a next-hop object",
            "nexthop add id 7 via 10.1.1.0 dev up1\nroute add 10.0.0.2/32 src 10.0.0.1 nhid 7"
                .to_owned(),
            &is_one(0),
        ),
        (
            "another one of its number",
            "nexthop replace id 7 via 10.1.2.0 dev up2".to_owned(),
            &is_one(1),
        ),
    ];
    for (what, change, wanted) in changes {
        ip(&lab.leaf, &change);
        wait_for(what, || wanted(ways(&lab, 64)));
    }
    let before = vtepd.metrics().dropped("no_route");
    ip(&lab.leaf, "route del 10.0.0.2/32\nroute flush 10.0.0.0/24\nroute flush 10.0.0.2/31");
    wait_for("no way", || ways(&lab, 64) == [0, 0]);
    assert!(vtepd.metrics().dropped("no_route") >= before + 64, "{}", vtepd.metrics().0);
    ip(&lab.leaf, &format!("route add default {both}"));
    wait_for("the default route", || are_both(ways(&lab, 64)));
    sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
}
