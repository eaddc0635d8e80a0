//! A host that sends frames with ever new queue pairs takes nothing from others: their frames pass,
//! and their queue pairs are placed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::qp_pin::{start, two_paths};
use root_test::root_test;
use test_frames::ROCE;
use vtepd_tests::frames::Roce;
use vtepd_tests::lab::{Host, VNI};
use vtepd_tests::{Lab, Vtepd, wait_for};

/// Queue pairs of the host that scans, and its frames per second.
const SCANNED: u32 = 65_536;
const RATE: u32 = 25_000;
/// Queue pairs of the other host, and how long after each other they begin.
const BEGUN: u32 = 200;
const EVERY: Duration = Duration::from_millis(20);
/// The most queue pairs of a host ([`pathmap::placer::Options::host_share`]).
const SHARE: usize = 4096;
/// Queue pairs of a job that begin within a second.
const JOB: u32 = 1024;

/// A socket from which a host sends RoCE frames to another one.
fn sender(from: &Host, to: &Host) -> UdpSocket {
    let socket = from.ns.enter(|| UdpSocket::bind((from.ip(), 0))).unwrap().unwrap();
    socket.connect((to.ip(), ROCE)).unwrap();
    socket
}

/// A frame of a queue pair. Nobody but the receiver of the other host listens, so that there may be
/// an error of an earlier one.
fn send(socket: &UdpSocket, queue_pair: u32) {
    let packet = Roce { payload: 16, ..Roce::to(queue_pair) }.transport();
    let _ = socket.send(&packet);
}

/// The number of queue pairs of each host, and those of them that are on a path that was chosen.
fn placed(leaf: &Vtepd) -> BTreeMap<String, (usize, usize)> {
    let mut placed = BTreeMap::<String, (usize, usize)>::new();
    for row in leaf.ask(&["qp"]).as_array().unwrap() {
        let of = placed.entry(row["source"].as_str().unwrap().to_owned()).or_default();
        of.0 += 1;
        of.1 += usize::from(row["state"] == "pinned");
    }
    placed
}

#[root_test(alone)]
fn p15_a_host_that_scans_queue_pairs_delays_no_frame_of_others() {
    let lab = Lab::new("qpscan");
    lab.wait_for_ports(VNI);
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    two_paths(&leaf, "10.0.0.2");
    let beyond = || leaf.metrics().sum("vtepd_queue_pairs_beyond_total");
    let (scan, others) = (sender(&lab.host, &lab.far), sender(&lab.next, &lab.far));
    // Only the other host's frames.
    let receiver = lab.far.ns.enter(|| UdpSocket::bind((lab.far.ip(), ROCE))).unwrap().unwrap();
    receiver.connect(others.local_addr().unwrap()).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (stop, scanned) = (AtomicBool::new(false), AtomicU32::new(0));
    let arrived = std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                let due = (begun.elapsed().as_secs_f64() * f64::from(RATE)) as u32;
                for number in scanned.load(Ordering::Relaxed)..due {
                    send(&scan, 2 + number % SCANNED);
                }
                scanned.store(due, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let receiving = scope.spawn(|| {
            let (mut arrived, mut packet) = (BTreeSet::new(), [0; 128]);
            while !stop.load(Ordering::Relaxed) {
                if receiver.recv(&mut packet).is_ok() {
                    arrived.insert([packet[5], packet[6], packet[7]]);
                }
            }
            arrived
        });
        wait_for("the share of the host to be used up", || beyond() > 0);
        for number in 0..BEGUN {
            send(&others, 0x20_0000 + number);
            std::thread::sleep(EVERY);
        }
        let during = placed(&leaf);
        println!("p15: {} frames scanned, {during:?}", scanned.load(Ordering::Relaxed));
        let (all, pinned) = during[&lab.next.ip().to_string()];
        assert!(during[&lab.host.ip().to_string()].0 <= SHARE, "{during:?}");
        // They are placed with their first frames; idle ones do not move.
        assert!(all == BEGUN as usize && pinned == all, "{during:?}");
        // A job begins.
        for number in 0..JOB {
            send(&others, 0x30_0000 + number);
            if number % 16 == 15 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let all = (BEGUN + JOB) as usize;
        wait_for("the queue pairs of the job", || {
            placed(&leaf)[&lab.next.ip().to_string()] == (all, all)
        });
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        receiving.join().unwrap()
    });
    let of = |first: u8| arrived.iter().filter(|number| number[0] == first).count();
    assert_eq!((of(0x20), of(0x30)), (BEGUN as usize, JOB as usize), "first frames that arrived");
    let metrics = leaf.metrics();
    let hung =
        ["vtepd_worker_stalls_total", "vtepd_control_stalls_total"].map(|of| metrics.sum(of));
    assert_eq!((metrics.dropped("waited_too_long"), hung), (0, [0, 0]), "{}", metrics.0);
}
