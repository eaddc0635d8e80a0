//! A host's burst of broadcast frames, copied for a large flood list, takes neither frames of other
//! flows nor memory.

use std::fmt::Write as _;

use root_test::root_test;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, bridge, ip};
use vtepd_tests::{Lab, Vtepd, sockets};
use wire::MacAddr;

/// VTEPs in addition to those of the lab. None of them exists.
const VTEPS: u16 = 495;
/// `ETH_P_802_EX1`: local experiments.
const EXPERIMENT: u16 = 0x88b5;
const BURST: usize = 1500;
/// Maximum growth of the daemon's memory in bytes. The copies of one turn of the worker fit many
/// times, those of a whole batch do not.
const GROWTH: u64 = 24 << 20;

/// Resident memory of a process in bytes.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A leaf that floods to [`VTEPS`] more VTEPs. Its routers drop these copies.
fn lab(case: &str) -> Lab {
    let lab = Lab::new(case);
    ip(&lab.leaf, "route add 10.9.0.0/16 src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0");
    lab.routers.iter().for_each(|router| ip(router, "route add blackhole 10.9.0.0/16"));
    let mut flood = String::new();
    for number in 0..VTEPS {
        let [high, low] = number.to_be_bytes();
        writeln!(flood, "fdb append 00:00:00:00:00:00 dev vx10 dst 10.9.{high}.{low} self static")
            .unwrap();
    }
    bridge(&lab.leaf, &flood);
    lab
}

#[root_test(alone)]
fn a_broadcast_burst_takes_nothing_from_others() {
    let lab = lab("burst");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    vtepd.wait_for("the flood list", |metrics| {
        metrics.get("vtepd_vni_flood_vteps{vni=\"10\"}") == u64::from(VTEPS) + 2
    });
    sockets::ping(&lab.host, lab.far.ip(), 3, 100, &[]);
    let before = resident(vtepd.pid());
    let pair = Pair::of(&lab.host, &lab.far).to_mac(MacAddr::BROADCAST);
    let broadcast = vec![frames::ethernet(pair, EXPERIMENT, &[7; 50]); BURST];
    std::thread::scope(|scope| {
        scope.spawn(|| inject(&lab.host.ns, ETH, &broadcast));
        // Pings wait behind the burst for as long as the copies take.
        let said = sockets::try_ping(&lab.next, lab.far.ip(), 20, 100, &["-W", "10"]);
        assert!(said.contains("20 packets transmitted, 20 received"), "{said}");
    });
    let copies = (u64::from(VTEPS) + 2) * BURST as u64;
    let metrics =
        vtepd.wait_for("all copies", |metrics| metrics.vni_frames(10, "encapsulated") >= copies);
    let after = resident(vtepd.pid());
    println!("RSS {before} bytes before the burst, {after} after");
    assert_eq!(metrics.get("vtepd_worker_stalls_total"), 0, "{}", metrics.0);
    assert_eq!(metrics.dropped("waited_too_long"), 0, "{}", metrics.0);
    assert_eq!(metrics.dropped("receive_overrun"), 0, "{}", metrics.0);
    assert!(after < before + GROWTH, "{before} bytes before the burst, {after} after");
}
