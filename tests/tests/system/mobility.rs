//! MAC addresses that move, must not move, or flap.

use std::time::{Duration, Instant};

use root_test::root_test;
use serde_json::Value;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{Pair, inject};
use vtepd_tests::lab::{ETH, PEER, PEER2, bridge, remote_mac, run};
use vtepd_tests::{Capture, Host, Lab, Setup, Vtepd, quiet, wait_for};
use wire::MacAddr;

fn learning(case: &str) -> Lab {
    Lab::with(case, Setup { learning: true, ..Setup::default() })
}

fn experiments(from: MacAddr, to: MacAddr, count: u8) -> Vec<Vec<u8>> {
    let anybody = std::net::Ipv4Addr::UNSPECIFIED;
    vtepd_tests::experiments::experiments(Pair { from: (from, anybody), to: (to, anybody) }, count)
}

/// A host sends a broadcast frame from this address.
fn claim(who: &Host, mac: MacAddr) {
    inject(&who.ns, ETH, &experiments(mac, MacAddr::BROADCAST, 1));
}

/// Captures of frames to one address at three hosts: next to the leaf's host, behind the peer, and
/// behind the other peer.
struct Watch([Capture<Vec<Captured>>; 3]);

impl Watch {
    fn start(lab: &Lab, mac: MacAddr) -> Self {
        let of = move |frame: &[u8]| {
            frame.starts_with(&mac.0) && frame.get(12..14) == Some(&[0x88, 0xb5])
        };
        Self([&lab.next, &lab.far, &lab.farther].map(|host| Capture::start(&host.ns, ETH, of)))
    }

    fn counts(&self) -> [usize; 3] {
        self.0.each_ref().map(Capture::count)
    }
}

/// Sends ten frames from the leaf's host to this address. Returns how many each host gets.
fn reached(lab: &Lab, mac: MacAddr) -> [usize; 3] {
    let watch = Watch::start(lab, mac);
    inject(&lab.host.ns, ETH, &experiments(lab.host.mac(), mac, 10));
    wait_for("the frames", || watch.counts().iter().sum::<usize>() >= 10);
    quiet();
    watch.counts()
}

/// Sends frames to this address until the host at this place gets one. Only notifications of the
/// kernel told vtepd of the move: it did not dump the kernel's tables again.
fn follows(lab: &Lab, vtepd: &Vtepd, mac: MacAddr, place: usize) {
    let watch = Watch::start(lab, mac);
    wait_for("the traffic to follow", || {
        inject(&lab.host.ns, ETH, &experiments(lab.host.mac(), mac, 1));
        std::thread::sleep(Duration::from_millis(1));
        watch.counts()[place] > 0
    });
    assert_eq!(vtepd.metrics().get("vtepd_netlink_overruns_total"), 0);
}

fn at(lab: &Lab, mac: MacAddr, port: &str) -> String {
    let shown = run(&lab.leaf, &format!("bridge fdb show dev {port}"));
    shown.lines().filter(|line| line.starts_with(&mac.to_string())).collect::<Vec<_>>().join("\n")
}

/// Sticky addresses, one on a port of the leaf and one behind a VTEP, with the entries that FRR
/// writes. No frame moves them, with vtepd as without.
#[root_test]
fn sticky_macs_are_moved_by_no_frame() {
    let lab = learning("sticky");
    let (local, remote) = (lab.next.mac(), lab.far.mac());
    bridge(
        &lab.leaf,
        &format!(
            "fdb replace {local} dev hq10 master sticky static\n\
             fdb replace {remote} dev vx10 dst {PEER} self sticky static\n\
             fdb replace {remote} dev vx10 master sticky static\n"
        ),
    );
    for takes_over in [false, true] {
        let vtepd = takes_over.then(|| Vtepd::start(&lab.leaf, &[]));
        // Frames from another VTEP and from a port of the leaf do not move them.
        claim(&lab.farther, local);
        claim(&lab.farther, remote);
        claim(&lab.next, remote);
        claim(&lab.far, local);
        // The peers learn from every frame, so the owners send last.
        claim(&lab.next, local);
        claim(&lab.far, remote);
        quiet();
        assert_eq!(reached(&lab, local), [10, 0, 0], "with vtepd: {takes_over}");
        assert_eq!(reached(&lab, remote), [0, 10, 0], "with vtepd: {takes_over}");
        assert!(at(&lab, local, "hq10").contains("sticky"), "{}", at(&lab, local, "hq10"));
        let entries = at(&lab, remote, "vx10");
        assert!(entries.contains(&format!("dst {PEER} self sticky static")), "{entries}");
        if let Some(vtepd) = vtepd {
            assert_eq!(vtepd.metrics().dropped("static_source"), 1, "{}", vtepd.metrics().0);
            let fdb = vtepd.ask(&["fdb"]);
            let known = |mac: MacAddr| {
                fdb.as_array().unwrap().iter().find(|row| row["mac"] == mac.to_string())
            };
            assert_eq!(
                known(remote).map(|row| &row["vtep"]),
                Some(&PEER.to_string().into()),
                "{fdb}"
            );
            assert_eq!(known(local), None, "{fdb}");
        }
    }

    // Without `sticky`, the address is followed immediately.
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    bridge(
        &lab.leaf,
        &format!(
            "fdb replace {remote} dev vx10 dst {PEER} self dynamic\nfdb del {remote} dev vx10 master\n"
        ),
    );
    vtepd.wait_for("the change", |_| !at(&lab, remote, "vx10").contains("static"));
    quiet();
    claim(&lab.farther, remote);
    follows(&lab, &vtepd, remote, 2);
}

/// The events of an address, by kind.
fn told(vtepd: &Vtepd, mac: MacAddr, kind: &str) -> Vec<Value> {
    let said = String::from_utf8(vtepd.ctl(&["events", "-o", "json"]).stdout).unwrap();
    let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["mac"] == mac.to_string() && event["kind"] == kind).collect()
}

/// The kernel moves an address thousands of times as fast as possible. Workers use the last move
/// immediately, moves that they never saw are counted, and the journal has only a few events.
#[root_test]
fn a_mac_that_flaps_in_the_kernel_is_followed_and_not_told_each_time() {
    const MOVES: u64 = 20_000;
    let lab = Lab::new("flapk");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    // The peers do not know the address, so they flood its frames to their hosts.
    let mac = MacAddr([2, 0, 0, 0, 0, 0x66]);
    bridge(&lab.leaf, &remote_mac(mac, 10, PEER));
    vtepd.wait_for("the address", |m| m.get("vtepd_vni_remote_macs{vni=\"10\"}") == 3);
    let counted =
        |of: &str| vtepd.metrics().get(&format!("vtepd_mac_moves_total{{moves=\"{of}\"}}"));
    assert_eq!(reached(&lab, mac), [0, 10, 0]);
    let write = |number: u64| {
        let vtep = if number.is_multiple_of(2) { PEER2 } else { PEER };
        format!("fdb replace {mac} dev vx10 dst {vtep} self extern_learn\n")
    };
    let start = Instant::now();
    // The last one is to PEER2.
    bridge(&lab.leaf, &(0..=MOVES).map(write).collect::<String>());
    println!("flapping: {} moves in {:?}", MOVES + 1, start.elapsed());
    follows(&lab, &vtepd, mac, 2);
    assert_eq!(reached(&lab, mac), [0, 0, 10]);
    let (followed, coalesced) = (counted("followed"), counted("coalesced"));
    println!("flapping: {followed} followed, {coalesced} coalesced");
    assert_eq!(followed + coalesced, MOVES + 1, "every move of the kernel's is one or the other");
    assert!(coalesced > 0 && followed >= 1, "{followed} and {coalesced}");
    let settled = || told(&vtepd, mac, "mac-settled");
    wait_for("it to come to rest", || !settled().is_empty());
    let [settled] = settled().try_into().unwrap();
    assert_eq!(settled["vtep"], PEER2.to_string());
    // All moves count, however few of them a publication needed.
    assert_eq!(settled["moves"], MOVES + 1);
    assert_eq!(told(&vtepd, mac, "mac-flapping").len(), 1);
    // At most five moves are reported before the address counts as flapping, and the one that makes
    // it so.
    let moved = told(&vtepd, mac, "mac-moved").len();
    assert!(moved <= 6, "{moved}");
    assert_eq!(vtepd.metrics().get("vtepd_flapping_addresses_total"), 1);
    for asked in ["counters", "status"] {
        assert_eq!(vtepd.ask(&[asked])["moves"]["flapping"], 1);
    }
    // Afterwards a move is reported as a move again.
    bridge(&lab.leaf, &remote_mac(mac, 10, PEER));
    follows(&lab, &vtepd, mac, 1);
    assert_eq!(told(&vtepd, mac, "mac-moved").len(), moved + 1);
}

/// Two hosts send from the same address. It moves a few times a second, and refused moves are
/// counted. When only one of them sends, the address is found there.
#[root_test(alone)]
fn a_mac_that_flaps_in_received_frames_is_moved_a_few_times_a_second() {
    let lab = learning("flapd");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let mac = MacAddr([2, 0, 0, 0, 0, 0x77]);
    let learned = |change: &str| {
        vtepd.metrics().get(&format!("vtepd_learned_addresses_total{{change=\"{change}\"}}"))
    };
    let refused = || vtepd.metrics().get("vtepd_not_learned_addresses_total{reason=\"flapping\"}");
    let (start, until) = (Instant::now(), Duration::from_secs(4));
    while start.elapsed() < until {
        for who in [&lab.far, &lab.farther] {
            claim(who, mac);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let seconds = start.elapsed().as_secs() + 2;
    let moved = learned("moved");
    println!("flapping: moved {moved} times in {:?}, {} refused", start.elapsed(), refused());
    assert!((5..=5 * seconds).contains(&moved), "{moved}\n{}", vtepd.metrics().0);
    assert!(refused() > 10, "{}", refused());
    assert_eq!(learned("new"), 1);
    assert_eq!(told(&vtepd, mac, "mac-flapping").len(), 1);
    wait_for("it to come to rest", || told(&vtepd, mac, "mac-settled").len() == 1);
    // The address is where it was last learned, and follows when only one host sends.
    for (who, place) in [(&lab.far, 1), (&lab.farther, 2), (&lab.far, 1)] {
        claim(who, mac);
        follows(&lab, &vtepd, mac, place);
        quiet();
        let expected = [0, usize::from(place == 1) * 10, usize::from(place == 2) * 10];
        assert_eq!(reached(&lab, mac), expected);
    }
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
}
