//! More frames than the machine can carry: what arrives is as it was sent, what does not is counted, and vtepd goes on answering.
//!
//! `VTEPD_FRAMES=10000000 cargo test -p vtepd-tests --test full_rate` sends so many frames in each case.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::net::TcpStream;
use std::time::{Duration, Instant};

use vtepd_tests::guard::can_run;
use vtepd_tests::lab::{PEER, VNI, bridge, remote_mac};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd, wait_for};
use wire::MacAddr;

/// More than any machine's veth links carry, so the sender sends what it can.
const RATE: u32 = 5_000_000;
const QUEUE_PAIRS: usize = 64;
/// How long an answer may take, on a machine that does other things as well. (`println!` says how long it took.)
const ANSWER: Duration = Duration::from_secs(2);

/// Gauges of what the kernel and zebra have said.
const MACS: &str = "vtepd_vni_remote_macs{vni=\"10\"}";

/// Whether zebra is connected.
fn has_zebra(vtepd: &Vtepd) -> bool {
    let status = vtepd.ask(&["status"]);
    let source = status["sources"].as_array().unwrap().iter().find(|source| source["name"] == "fpm").unwrap();
    source["state"] != "disconnected"
}

fn time_until(mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    wait_for("control to follow", &mut condition);
    start.elapsed()
}

fn frames() -> u64 {
    std::env::var("VTEPD_FRAMES").ok().map_or(100_000, |frames| frames.parse().expect("a number of frames"))
}

#[test]
fn q1_q11_q12_at_full_rate_what_arrives_is_whole_and_in_order_and_the_rest_is_counted() {
    if !can_run("q1_q11_q12_at_full_rate_what_arrives_is_whole_and_in_order_and_the_rest_is_counted") {
        return;
    }
    // Everything is on the sender's CPU but vtepd, the sink and the hosts' stack, which find theirs.
    for (mark, (arguments, with_peer, payload)) in (0..).zip([
        (&[][..], false, 16),
        (&[][..], true, 1024),
        (&["--no-gso"][..], false, 1024),
        (&["--no-shortcut"][..], false, 16),
        (&["--workers", "2"][..], true, 16),
    ]) {
        let lab = Lab::new("rate");
        let vtepd = Vtepd::start(&lab.leaf, arguments);
        let peer = with_peer.then(|| Vtepd::start(&lab.peer, &[]));
        let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload };
        let before = vtepd.metrics();
        let start = Instant::now();
        let stream = Stream::start(&lab.host, &lab.far, rate, 0x7261_7465 + mark);
        let (mut answers, mut slowest) = (0, Duration::ZERO);
        let (mut known, mut heard) = (before.get(MACS), [Duration::ZERO; 2]);
        while stream.sent() < frames() {
            let asked = Instant::now();
            let _ = vtepd.metrics();
            assert_eq!(vtepd.ask(&["status"])["pid"], vtepd.pid());
            slowest = slowest.max(asked.elapsed());
            answers += 1;
            // What the kernel says, and zebra: an address comes or goes, a connection is made.
            let there = known == before.get(MACS);
            let entry = remote_mac(MacAddr([2, 0, 0, 0, 0, 0x71]), VNI, PEER);
            bridge(
                &lab.leaf,
                &if there { entry } else { entry.replace("replace", "del").replace("append", "del") },
            );
            known = if there { known + 1 } else { known - 1 };
            heard[0] = heard[0].max(time_until(|| vtepd.metrics().get(MACS) == known));
            let zebra = lab.leaf.enter(|| TcpStream::connect(("127.0.0.1", 2620))).unwrap().unwrap();
            heard[1] = heard[1].max(time_until(|| has_zebra(&vtepd)));
            drop(zebra);
            wait_for("zebra to be gone", || !has_zebra(&vtepd));
        }
        let took = start.elapsed();
        let (sent, report) = stream.finish();
        let metrics = vtepd.wait_until_idle();
        let counted = |series: &str| metrics.get(series) - before.get(series);
        let encapsulated = metrics.vni_frames(VNI, "encapsulated") - before.vni_frames(VNI, "encapsulated");
        println!(
            "{arguments:?}, vtepd as the peer: {with_peer}: {} frames in {took:.1?}, {} received; {encapsulated} encapsulated, {} in \
             {} super-frames, {} lost in the ring; {answers} answers, the slowest in {slowest:.0?}, the kernel \
             and zebra heard in {heard:.0?}",
            sent.frames,
            report.received(),
            counted("vtepd_sent_in_super_frames_total"),
            counted("vtepd_sent_super_frames_total"),
            metrics.dropped("receive_overrun"),
        );
        let fate = (report.duplicated(), report.reordered(), report.corrupted());
        assert_eq!(fate, (0, 0, 0), "doubled, reordered and damaged");
        assert!(report.received() > sent.frames / 10, "traffic collapsed");
        assert!(report.received() <= encapsulated, "some did not go through vtepd");
        // Of what the programs hand over, each frame is forwarded or counted as dropped, in the ring and nowhere else.
        let handed_over = ["vxlan_redirected", "port_shortcut"]
            .map(|decision| counted(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}")));
        assert_eq!(handed_over.iter().sum::<u64>(), encapsulated + metrics.dropped_in_all(), "{}", metrics.0);
        assert_eq!(metrics.dropped_in_all(), metrics.dropped("receive_overrun"), "{}", metrics.0);
        assert!(
            answers > 0 && slowest < ANSWER && heard.into_iter().all(|time| time < ANSWER),
            "{slowest:?} {heard:?}"
        );
        if arguments.contains(&"--workers") {
            for worker in ["0", "1"] {
                let series =
                    format!("vtepd_worker_received_frames_total{{worker=\"{worker}\",from=\"bridge\"}}");
                assert!(counted(&series) > encapsulated / 8, "{}", metrics.0);
            }
        }
        if let Some(peer) = peer {
            let metrics = peer.wait_until_idle();
            let fate = metrics.vni_frames(VNI, "decapsulated") + metrics.dropped_in_all();
            assert!(fate <= encapsulated && fate >= report.received(), "{}", metrics.0);
        }
    }
}
