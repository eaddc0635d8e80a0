//! VNIs without a kernel bridge and without netdevs: access ports, a table of vtepd's own, remote leaves that are the kernel's.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::guard::can_run;
use vtepd_tests::lab::{ETH, LEAF, PEER, PEER2, ip};
use vtepd_tests::{Capture, Host, Lab, Setup, Vtepd, quiet, sockets, wait_for};
use wire::MacAddr;

/// A private EtherType (IEEE 802-2014 section 9.2.3): nobody else sends it.
const EXPERIMENT: u16 = 0x88b5;
/// What comes before the inner EtherType in a frame between leaves.
const INNER_TYPE: usize = 50 + 12;

/// Both hosts of the leaf on one VNI, with both remote leaves.
const TWO_PORTS: &str = r#"
[[standalone]]
vni = 10
local = "10.0.0.1"
remotes = ["10.0.0.2", "10.0.0.3"]
ports = [{ interface = "hp10" }, { interface = "hq10" }]
"#;

/// A leaf with hosts on two interfaces and nothing else: no bridge, no vxlan netdev.
fn lab(case: &str) -> Lab {
    let lab = Lab::with(case, Setup { learning: true, ..Setup::default() });
    ip(&lab.leaf, "link del vx10\nlink del br10\n");
    lab
}

fn experiments(pair: Pair, count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|n| frames::ethernet(pair, EXPERIMENT, &[n; 50])).collect()
}

fn is_experiment(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&EXPERIMENT.to_be_bytes())
}

/// What of the hosts' experiments gets where.
struct Watch {
    uplinks: [Capture<Vec<Captured>>; 2],
    next: Capture<Vec<Captured>>,
}

impl Watch {
    fn start(lab: &Lab) -> Self {
        let of = |frame: &[u8]| frame.get(INNER_TYPE..INNER_TYPE + 2) == Some(&EXPERIMENT.to_be_bytes());
        Self {
            uplinks: [&lab.routers[0], &lab.routers[1]].map(|router| Capture::start(router, "leaf", of)),
            next: Capture::start(&lab.next.ns, ETH, is_experiment),
        }
    }

    /// How many frames got to each VTEP, and to the other host (whose place is LEAF), once there are so many and no more come.
    fn got(self, count: usize) -> BTreeMap<Ipv4Addr, usize> {
        wait_for("the frames", || {
            self.uplinks.iter().map(Capture::count).sum::<usize>() + self.next.count() >= count
        });
        quiet();
        let mut got = BTreeMap::new();
        for captured in self.uplinks.into_iter().flat_map(Capture::stop) {
            let outer = captured.outer(4789).expect("VXLAN");
            if outer.source == LEAF {
                *got.entry(outer.destination).or_default() += 1;
            }
        }
        let next = self.next.stop().len();
        if next > 0 {
            got.insert(LEAF, next);
        }
        got
    }
}

/// Where ten frames from the first host to this address go.
fn ways(lab: &Lab, to: MacAddr, count: usize) -> BTreeMap<Ipv4Addr, usize> {
    let watch = Watch::start(lab);
    inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.far).to_mac(to), 10));
    watch.got(count)
}

/// A host says something to everybody.
fn speak(host: &Host) {
    inject(&host.ns, ETH, &experiments(Pair::of(host, host).to_mac(MacAddr::BROADCAST), 1));
}

/// Where vtepctl says that a host is: a VTEP or a port.
fn place(vtepd: &Vtepd, mac: MacAddr) -> Option<String> {
    let rows = vtepd.ask(&["fdb", "--mac", &mac.to_string()]);
    let row = rows.as_array()?.first()?;
    row["port"].as_str().or(row["vtep"].as_str()).map(str::to_owned)
}

/// Frames for nobody known go everywhere but back, those for a host that has spoken go there, on whichever side it is, and follow it.
#[test]
fn frames_flood_until_their_host_has_spoken() {
    if !can_run("frames_flood_until_their_host_has_spoken") {
        return;
    }
    let lab = lab("alone");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    let everywhere = BTreeMap::from([(LEAF, 10), (PEER, 10), (PEER2, 10)]);
    assert_eq!(ways(&lab, lab.far.mac(), 30), everywhere, "nobody knows the host");

    let at_farther = Capture::start(&lab.farther.ns, ETH, is_experiment);
    speak(&lab.far);
    wait_for("the host to be learned", || place(&vtepd, lab.far.mac()) == Some(PEER.to_string()));
    at_farther.wait(1);
    assert_eq!(at_farther.stop().len(), 1, "from its own leaf alone: never from VTEP to VTEP");
    assert_eq!(ways(&lab, lab.far.mac(), 10), BTreeMap::from([(PEER, 10)]));
    assert_eq!(ways(&lab, MacAddr::BROADCAST, 30), everywhere);

    // Local hosts among themselves: no leaf hears of it.
    speak(&lab.next);
    wait_for("the port to be learned", || place(&vtepd, lab.next.mac()).as_deref() == Some("hq10"));
    assert_eq!(ways(&lab, lab.next.mac(), 10), BTreeMap::from([(LEAF, 10)]));
    assert_eq!(place(&vtepd, lab.host.mac()).as_deref(), Some("hp10"));

    // The remote host turns up behind the other leaf, and then here.
    let moved = Pair { from: (lab.far.mac(), lab.far.ip()), ..Pair::of(&lab.farther, &lab.host) };
    inject(&lab.farther.ns, ETH, &experiments(moved.to_mac(MacAddr::BROADCAST), 1));
    wait_for("the move", || place(&vtepd, lab.far.mac()) == Some(PEER2.to_string()));
    assert_eq!(ways(&lab, lab.far.mac(), 10), BTreeMap::from([(PEER2, 10)]));
    let local = Pair { from: (lab.far.mac(), lab.far.ip()), ..Pair::of(&lab.next, &lab.host) };
    inject(&lab.next.ns, ETH, &experiments(local.to_mac(MacAddr::BROADCAST), 1));
    wait_for("the move", || place(&vtepd, lab.far.mac()).as_deref() == Some("hq10"));
    assert_eq!(ways(&lab, lab.far.mac(), 10), BTreeMap::from([(LEAF, 10)]));

    // What is for the port that it comes from stays there.
    inject(&lab.next.ns, ETH, &experiments(Pair::of(&lab.next, &lab.far), 3));
    let metrics = vtepd.wait_for("the frames to be dropped", |m| m.dropped("same_port") == 3);
    assert_eq!(metrics.dropped_in_all(), 3, "{}", metrics.0);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
}

/// Real stacks among each other: echoes, streams and datagrams, hosts of the leaf and hosts behind kernel VXLAN.
#[test]
fn hosts_talk_to_hosts_here_and_behind_kernel_vxlan() {
    if !can_run("hosts_talk_to_hosts_here_and_behind_kernel_vxlan") {
        return;
    }
    let lab = lab("alonetalk");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    for (from, to) in [(&lab.host, &lab.far), (&lab.farther, &lab.host), (&lab.next, &lab.host)] {
        sockets::ping(from, to.ip(), 5, 1000, &[]);
    }
    sockets::tcp_both_ways(&lab.host, &lab.far, 3_000_000);
    sockets::tcp_both_ways(&lab.host, &lab.next, 3_000_000);
    sockets::udp(&lab.far, &lab.next, 50, 1200, true);
    sockets::udp(&lab.next, &lab.far, 50, 1200, true);
    let metrics = vtepd.wait_until_idle();
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
    let [received, copies, sent, dropped, held] = metrics.passed();
    assert_eq!(received + copies, sent + dropped + held, "{}", metrics.0);
}
