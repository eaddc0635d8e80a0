//! Outer source addresses that no other host can have. The kernel drops such packets. vtepd drops
//! and counts them.

use std::net::Ipv4Addr;

use root_test::root_test;
use vtepd_tests::experiments::{experiments, is_experiment};
use vtepd_tests::frames::{Pair, Tunnelled, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, mac_of, run};
use vtepd_tests::{Capture, Lab, Setup, Vtepd, quiet};
use wire::MacAddr;

/// Addresses that the kernel treats as martians, among them the leaf's own VTEP and uplink address.
const MARTIANS: [Ipv4Addr; 7] = [
    Ipv4Addr::UNSPECIFIED,
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::new(127, 9, 9, 9),
    Ipv4Addr::new(224, 0, 0, 5),
    Ipv4Addr::BROADCAST,
    LEAF,
    Ipv4Addr::new(10, 1, 1, 1),
];
/// The kernel accepts class E, although it is not unicast (RFC 1112 section 4).
const CLASS_E: Ipv4Addr = Ipv4Addr::new(240, 0, 0, 1);
const FRAMES: u8 = 20;

/// The number of frames from this outer source that reach the leaf's host. Each source has its own
/// inner MAC address.
fn arrive(lab: &Lab, source: Ipv4Addr) -> usize {
    let at_host = Capture::start(&lab.host.ns, ETH, is_experiment);
    let tunnel = |source| Tunnelled {
        to: mac_of(&lab.leaf, "up1"),
        source,
        destination: LEAF,
        port: 4789,
        vni: 10,
        tos: 0,
        flip: 0,
    };
    let [a, b, c, d] = source.octets();
    let stranger = (MacAddr([2, 0x5a, a, b, c, d]), lab.far.ip());
    let inner = Pair { from: stranger, ..Pair::of(&lab.far, &lab.host) };
    let frames = |source, inner| -> Vec<Vec<u8>> {
        experiments(inner, FRAMES).iter().map(|frame| tunnel(source).frame(frame)).collect()
    };
    inject(&lab.routers[0], "leaf", &frames(source, inner));
    // When these frames have arrived, so have all frames before them.
    inject(&lab.routers[0], "leaf", &frames(PEER, Pair::of(&lab.far, &lab.host)));
    at_host.wait(usize::from(FRAMES));
    quiet();
    at_host.stop().iter().filter(|captured| captured.bytes[6..12] == stranger.0.0).count()
}

/// Entries that the leaf's kernel has learned from martians.
fn learned(lab: &Lab) -> Vec<String> {
    let shown = run(&lab.leaf, "bridge fdb show dev vx10");
    let of_vteps = |line: &&str| line.starts_with("02:5a:") && line.contains(" dst ");
    shown.lines().filter(of_vteps).map(str::to_owned).collect()
}

#[root_test]
fn martian_sources_are_dropped_and_not_learned() {
    for learning in [false, true] {
        let lab = Lab::with("martian", Setup { learning, ..Setup::default() });
        for source in MARTIANS {
            assert_eq!(arrive(&lab, source), 0, "{source}: the kernel alone");
        }
        println!("{CLASS_E}: {} frames by the kernel alone", arrive(&lab, CLASS_E));
        run(&lab.leaf, "bridge fdb flush dev vx10 nopermanent nostatic self");
        let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
        let mut dropped = 0;
        for source in MARTIANS.into_iter().chain([CLASS_E]) {
            assert_eq!(arrive(&lab, source), 0, "{source}: with vtepd, learning: {learning}");
            dropped += u64::from(FRAMES);
            let metrics = vtepd.metrics();
            assert_eq!(metrics.dropped("martian_source"), dropped, "{source}: {}", metrics.0);
            assert!(metrics.has_vni(10), "{source} takes the VNI away from vtepd: {}", metrics.0);
        }
        assert_eq!(learned(&lab), Vec::<String>::new());
        if learning {
            // If an entry's VTEP becomes an address of the leaf, the VNI stays with the kernel.
            continue;
        }
        // An address that becomes the leaf's own is a martian from then on.
        let other = Ipv4Addr::new(10, 77, 0, 1);
        assert_eq!(arrive(&lab, other), usize::from(FRAMES));
        run(&lab.leaf, "ip address add 10.77.0.1/32 dev lo");
        let until = vtepd.metrics().dropped("martian_source");
        vtepd_tests::wait_for("the address to be the leaf's own", || {
            arrive(&lab, other) == 0 && vtepd.metrics().dropped("martian_source") > until
        });
    }
}

/// The broadcast address of a subnet of the leaf is a martian as soon as there were other routing rules
/// than the default ones, and for ever: the kernel looks up the route to it then.
#[root_test]
fn broadcast_sources_are_martians_where_there_were_rules() {
    const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 255);
    for rules in [false, true] {
        let lab = Lab::with("martianrules", Setup::default());
        run(&lab.leaf, "ip address add 10.88.0.1/24 dev up1");
        if rules {
            run(&lab.leaf, "ip rule add to 203.0.113.0/24 lookup main pref 100");
        }
        let expected = if rules { 0 } else { usize::from(FRAMES) };
        assert_eq!(arrive(&lab, SOURCE), expected, "the kernel alone, rules: {rules}");
        let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
        assert_eq!(arrive(&lab, SOURCE), expected, "with vtepd, rules: {rules}");
        if rules {
            assert_eq!(vtepd.metrics().dropped("martian_source"), u64::from(FRAMES));
            run(&lab.leaf, "ip rule del pref 100");
            assert_eq!(arrive(&lab, SOURCE), 0, "without the rule again");
            drop(vtepd);
            assert_eq!(arrive(&lab, SOURCE), 0, "without the rule, the kernel alone");
        }
    }
}
