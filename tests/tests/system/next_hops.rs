//! Several next hops: the flows that move when one is lost, and IPv6 next hops of IPv4 routes.
use std::collections::BTreeMap;
use std::time::Duration;

use fabric::Namespace;
use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Pair, Roce};
use vtepd_tests::lab::{ETH, VNI, ip, run, sysctl};
use vtepd_tests::{Capture, Lab, Vtepd, sockets, wait_for};
use wire::MacAddr;

const FLOWS: u32 = 128;
/// Offset of the queue pair in an inner frame: after Ethernet, IPv4 and UDP headers and five bytes
/// of BTH.
const QUEUE_PAIR: std::ops::Range<usize> = 47..50;

/// The links between the leaf and the routers: the leaf's name, the router's number, and the
/// router's name.
const UPLINKS: [(&str, usize, &str); 4] =
    [("up1", 0, "leaf"), ("up2", 1, "leaf"), ("up3", 0, "third"), ("up4", 1, "fourth")];

/// Adds two uplinks to the leaf, and routes over all four.
fn four_uplinks(lab: &Lab) {
    for (up, router, name) in &UPLINKS[2..] {
        let (mtu, router) = (lab.setup.underlay_mtu, &lab.routers[*router]);
        let third = up.trim_start_matches("up");
        ip(
            &lab.leaf,
            &format!(
                "link add {up} mtu {mtu} type veth peer name {name} mtu {mtu} netns {}\n\
                 addr add 10.1.{third}.1/31 dev {up}\n\
                 link set {up} up",
                router.name()
            ),
        );
        ip(router, &format!("addr add 10.1.{third}.0/31 dev {name}\nlink set {name} up"));
    }
    let hops: String = (1..=4).map(|n| format!(" nexthop via 10.1.{n}.0")).collect();
    ip(&lab.leaf, &format!("route replace 10.0.0.2/32 src 10.0.0.1{hops}"));
}

/// A lab whose leaf has these uplinks.
struct Fabric<'a> {
    lab: &'a Lab,
    uplinks: &'static [(&'static str, usize, &'static str)],
}

impl Fabric<'_> {
    /// Sends one frame of each flow and returns each flow's uplink. Flows with a lost frame are
    /// absent.
    fn taken(&self) -> BTreeMap<u32, &'static str> {
        let Self { lab, uplinks } = self;
        let watch = |(up, router, name): &(_, usize, &str)| {
            (*up, Capture::vxlan(&lab.routers[*router], name, 4789))
        };
        let watching: Vec<_> = uplinks.iter().map(watch).collect();
        let flows: Vec<_> =
            (0..FLOWS).map(|flow| Roce::to(flow).frame(Pair::of(&lab.host, &lab.far))).collect();
        frames::inject(&lab.host.ns, ETH, &flows);
        let arrived = || watching.iter().map(|(_, capture)| capture.count()).sum::<usize>();
        ::fabric::process::wait_until(Duration::from_secs(1), || arrived() >= FLOWS as usize);
        let flows = |(up, capture): (_, Capture<Vec<_>>)| {
            capture.stop().into_iter().filter_map(move |frame: Captured| {
                let inner = frame.outer(4789)?.inner;
                let [a, b, c] = inner.get(QUEUE_PAIR)?.try_into().ok()?;
                Some((u32::from_be_bytes([0, a, b, c]), up))
            })
        };
        watching.into_iter().flat_map(flows).collect()
    }

    /// Waits until every flow has an uplink other than `lost`. Returns the uplinks.
    fn settled_without(&self, lost: &str) -> BTreeMap<u32, &'static str> {
        let mut taken = BTreeMap::new();
        wait_for(&format!("all flows to leave {lost}"), || {
            taken = self.taken();
            taken.len() == FLOWS as usize && taken.values().all(|up| *up != lost)
        });
        taken
    }
}

fn only_those_of(lost: &str, before: &BTreeMap<u32, &str>, after: &BTreeMap<u32, &str>) {
    for (flow, up) in before.iter().filter(|(_, up)| **up != lost) {
        assert_eq!(after[flow], *up, "flow {flow} moved although it did not use {lost}");
    }
}

/// A lost next hop moves its own flows and no others, whether its link or its gateway is lost. The
/// flows return with it.
#[root_test]
fn a_lost_next_hop_moves_only_its_flows() {
    let lab = Lab::new("resil");
    four_uplinks(&lab);
    let fabric = Fabric { lab: &lab, uplinks: &UPLINKS };
    let _vtepd = Vtepd::start(&lab.leaf, &[]);
    let before = fabric.settled_without("none");
    for (up, ..) in UPLINKS {
        assert!(before.values().filter(|taken| **taken == up).count() > 10, "{before:?}");
    }
    ip(&lab.routers[0], "link set third down");
    only_those_of("up3", &before, &fabric.settled_without("up3"));
    ip(&lab.routers[0], "link set third up");
    wait_for("the flows of up3 to come back", || fabric.taken() == before);

    // A gateway that does not answer, behind a link that is up.
    ip(&lab.routers[1], "link set fourth arp off");
    ip(&lab.leaf, "neigh flush dev up4");
    only_those_of("up4", &before, &fabric.settled_without("up4"));
    ip(&lab.routers[1], "link set fourth arp on");
    wait_for("the flows of up4 to come back", || fabric.taken() == before);
}

/// IPv4 routes with IPv6 next hops (RFC 8950), as in BGP unnumbered: both routers are `fe80::1` on
/// their links. vtepd follows a gateway that changes its MAC address, and stops using one that does
/// not answer.
#[root_test]
fn rfc8950_ipv4_routes_have_ipv6_next_hops() {
    let lab = Lab::new("rfc8950");
    let ipv6 = |namespace: &Namespace, interface: &str| {
        for (name, value) in [("accept_dad", "0"), ("ndisc_notify", "1"), ("disable_ipv6", "0")] {
            sysctl(namespace, &format!("ipv6/conf/{interface}/{name}"), value);
        }
    };
    for (router, up) in lab.routers.iter().zip(["up1", "up2"]) {
        ipv6(&lab.leaf, up);
        ipv6(router, "leaf");
        ip(router, "addr add fe80::1/64 dev leaf nodad");
    }
    // Without IPv4 addresses on the uplinks, only ND resolves the routers. The kernel flushes the
    // routes of an interface with its last address.
    for (up, number) in [("up1", 1), ("up2", 2)] {
        ip(&lab.leaf, &format!("addr del 10.1.{number}.1/31 dev {up}"));
    }
    let hops = "nexthop via inet6 fe80::1 dev up1 nexthop via inet6 fe80::1 dev up2";
    for peer in [2, 3] {
        ip(&lab.leaf, &format!("route replace 10.0.0.{peer}/32 src 10.0.0.1 {hops}"));
    }
    for (router, number) in lab.routers.iter().zip(1..) {
        ip(
            router,
            &format!("route replace 10.0.0.1/32 dev leaf via inet6 {}", link_local(&lab, number)),
        );
    }

    let fabric = Fabric { lab: &lab, uplinks: &UPLINKS[..2] };
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") >= 3);
    let before = fabric.settled_without("none");
    assert!(
        before.values().any(|up| *up == "up1") && before.values().any(|up| *up == "up2"),
        "{before:?}"
    );

    let new = MacAddr([2, 0xee, 0, 0, 0, 9]);
    let lost_before = vtepd.metrics().dropped("next_hop_unresolved");
    ip(&lab.routers[0], &format!("link set leaf address {new}"));
    ip(&lab.routers[0], "addr replace fe80::1/64 dev leaf nodad");
    let towards_new = |frame: &[u8]| {
        vtepd_tests::Outer::is_vxlan(frame, 4789) && frame.starts_with(&[2, 0xee, 0, 0, 0, 9])
    };
    let watching = Capture::start(&lab.routers[0], "leaf", towards_new);
    wait_for("frames to the router's new MAC address", || {
        sockets::ping(&lab.host, lab.far.ip(), 1, 56, &[]);
        let _ = fabric.taken();
        watching.count() > 0
    });
    let _ = watching.stop();
    assert_eq!(fabric.settled_without("none"), before, "the same flows go there");
    assert_eq!(vtepd.metrics().dropped("next_hop_unresolved"), lost_before);

    ip(&lab.routers[1], "addr del fe80::1/64 dev leaf");
    ip(&lab.leaf, "neigh flush dev up2");
    only_those_of("up2", &before, &fabric.settled_without("up2"));
    ip(&lab.routers[1], "addr add fe80::1/64 dev leaf nodad");
    wait_for("the flows of up2 to come back", || fabric.taken() == before);
}

/// The leaf's link-local address on an uplink.
fn link_local(lab: &Lab, uplink: u8) -> String {
    let text = run(&lab.leaf, &format!("ip -6 -o addr show dev up{uplink} scope link"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "inet6").expect("a link-local address");
    words[place + 1].trim_end_matches("/64").to_owned()
}
