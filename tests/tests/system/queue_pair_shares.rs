//! A host that sends frames with ever new queue pairs takes nothing from others: their frames pass,
//! and their queue pairs are placed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::qp_pin::{CONFIGURATION, start, two_paths};
use root_test::root_test;
use test_frames::ROCE;
use vtepd_tests::frames::Roce;
use vtepd_tests::lab::{Host, sysctl};
use vtepd_tests::{Lab, Vtepd, meanwhile, wait_for};

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

/// A frame of a queue pair, whose first one has the sequence number 0. Nobody but the receiver of the
/// other host listens, so that there may be an error of an earlier one.
fn send(socket: &UdpSocket, queue_pair: u32, sequence: u32) {
    let packet = Roce { payload: 16, sequence, ..Roce::to(queue_pair) }.transport();
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

/// One host begins ever new queue pairs while something is done, which is given the number of its
/// frames so far.
fn during_scan<T>(lab: &Lab, act: impl FnOnce(&AtomicU32) -> T) -> T {
    let (scan, scanned, begun) = (sender(&lab.host, &lab.far), AtomicU32::new(0), Instant::now());
    let again = || {
        let due = (begun.elapsed().as_secs_f64() * f64::from(RATE)) as u32;
        for number in scanned.load(Ordering::Relaxed)..due {
            send(&scan, 2 + number % SCANNED, 0);
        }
        scanned.store(due, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
    };
    meanwhile(again, || act(&scanned))
}

fn beyond(leaf: &Vtepd) -> u64 {
    leaf.metrics().sum("vtepd_queue_pairs_beyond_total")
}

#[root_test(alone)]
fn p19_a_host_that_scans_queue_pairs_delays_no_frame_of_others() {
    let lab = Lab::new("qpscan");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    two_paths(&leaf, "10.0.0.2");
    let others = sender(&lab.next, &lab.far);
    // Only the other host's frames.
    let receiver = lab.far.ns.enter(|| UdpSocket::bind((lab.far.ip(), ROCE))).unwrap().unwrap();
    receiver.connect(others.local_addr().unwrap()).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let begin = |scanned: &AtomicU32| {
        wait_for("the share of the host to be used up", || beyond(&leaf) > 0);
        for number in 0..BEGUN {
            send(&others, 0x20_0000 + number, 0);
            std::thread::sleep(EVERY);
        }
        let during = placed(&leaf);
        println!("p19: {} frames scanned, {during:?}", scanned.load(Ordering::Relaxed));
        assert!(during[&lab.host.ip().to_string()].0 <= SHARE, "{during:?}");
        // A job begins.
        for number in 0..JOB {
            send(&others, 0x30_0000 + number, 0);
            if number % 16 == 15 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // All have a place, at the latest when they send again.
        wait_for("the queue pairs of the other host", || {
            let again = (0..BEGUN).map(|number| 0x20_0000 + number);
            again.chain((0..JOB).map(|number| 0x30_0000 + number)).for_each(|queue_pair| {
                send(&others, queue_pair, 1);
            });
            placed(&leaf)[&lab.next.ip().to_string()].0 == (BEGUN + JOB) as usize
        });
        std::thread::sleep(Duration::from_millis(200));
    };
    let (mut arrived, mut packet) = (BTreeSet::new(), [0; 128]);
    let receive = || {
        if receiver.recv(&mut packet).is_ok() && packet[9..12] == [0; 3] {
            arrived.insert([packet[5], packet[6], packet[7]]);
        }
    };
    meanwhile(receive, || during_scan(&lab, begin));
    let of = |first: u8| arrived.iter().filter(|number| number[0] == first).count();
    assert_eq!((of(0x20), of(0x30)), (BEGUN as usize, JOB as usize), "first frames that arrived");
    let metrics = leaf.metrics();
    let busy = metrics.get("vtepd_queue_pairs_beyond_total{limit=\"busy\"}");
    println!("p19: {busy} decisions without the placement, because others had it");
    let hung =
        ["vtepd_worker_stalls_total", "vtepd_control_stalls_total"].map(|of| metrics.sum(of));
    assert_eq!((metrics.dropped("waited_too_long"), hung), (0, [0, 0]), "{}", metrics.0);
}

/// Nobody asks there: programs tell of first frames, and have room for a number of them.
#[root_test(alone)]
fn p20_a_host_that_scans_queue_pairs_leaves_room_for_others_in_kernel_vxlan() {
    let lab = Lab::new("qpscank");
    sysctl(&lab.leaf, "ipv4/fib_multipath_hash_policy", "1");
    let configuration = format!("{CONFIGURATION}\n[vni.10]\ndatapath = \"kernel\"\n");
    let leaf = Vtepd::start_configured(&lab.leaf, &configuration, &[]);
    let _peer = start(&lab.peer);
    wait_for("both paths", || {
        let known = leaf.ask(&["path", "--vtep", "10.0.0.2"]);
        known[0]["paths"].as_array().is_some_and(|paths| paths.len() == 2)
    });
    let others = sender(&lab.next, &lab.far);
    let [host, next] = [&lab.host, &lab.next].map(|host| host.ip().to_string());
    during_scan(&lab, |scanned| {
        // All of them, so that the programs had no room at times.
        wait_for("a scan", || scanned.load(Ordering::Relaxed) > 2 * SCANNED && beyond(&leaf) > 0);
        wait_for("the queue pairs of the other host", || {
            (0..BEGUN).for_each(|number| send(&others, 0x20_0000 + number, 0));
            placed(&leaf).get(&next).is_some_and(|(all, _)| *all == BEGUN as usize)
        });
        let during = placed(&leaf);
        println!("p20: {} frames scanned, {during:?}", scanned.load(Ordering::Relaxed));
        assert!(during[&host].0 <= SHARE, "{during:?}");
    });
}
