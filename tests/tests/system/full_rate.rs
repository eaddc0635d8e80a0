//! More frames than the machine can forward, alone and in super-frames. Frames that arrive are
//! unchanged, missing ones are counted, and vtepd keeps answering requests.
//!
//! `VTEPD_FRAMES=10000000 cargo test -p vtepd-tests --test system -- full_rate::` sets the number of
//! frames in each case.

use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use root_test::root_test;
use vtepd_tests::bulk::{Datagrams, Flows, snmp, tcp_streams};
use vtepd_tests::daemon::Metrics;
use vtepd_tests::lab::{PEER, VNI, bridge, remote_mac};
use vtepd_tests::memory::Counted;
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Setup, Vtepd, wait_for};
use wire::MacAddr;

/// A higher rate than any machine's veth links carry, so the sender sends as fast as it can.
const RATE: u32 = 5_000_000;
const QUEUE_PAIRS: usize = 64;

/// The gauge of remote MAC addresses.
const MACS: &str = "vtepd_vni_remote_macs{vni=\"10\"}";

/// Whether zebra is connected.
fn has_zebra(vtepd: &Vtepd) -> bool {
    let status = vtepd.ask(&["status"]);
    let source = status["sources"]
        .as_array()
        .unwrap()
        .iter()
        .find(|source| source["name"] == "fpm")
        .unwrap();
    source["state"] != "disconnected"
}

fn time_until(mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    wait_for("control to follow", &mut condition);
    start.elapsed()
}

/// Does all of this at once, because most of it is waiting.
fn at_once<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    act: impl Fn(I) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || act(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A lab with vtepd on its leaf, and maybe on the peer.
struct Site {
    peer: Option<Vtepd>,
    leaf: Vtepd,
    lab: Lab,
}

impl Site {
    /// The sites of all cases of a test: the parameters of the lab, the arguments of the leaf's
    /// vtepd, and whether the peer has one. Nothing is set up or torn down while frames pass.
    fn of_all<'a>(
        test: &str,
        cases: impl IntoIterator<Item = (Setup, &'a [&'a str], bool)>,
    ) -> Vec<Self> {
        at_once(cases.into_iter().enumerate(), |(number, (setup, arguments, with_peer))| {
            let lab = Lab::with(&format!("{test}{number}"), setup);
            let leaf = Vtepd::start(&lab.leaf, arguments);
            let peer = with_peer.then(|| Vtepd::start(&lab.peer, &[]));
            Self { peer, leaf, lab }
        })
    }
}

fn frames() -> u64 {
    std::env::var("VTEPD_FRAMES")
        .ok()
        .map_or(100_000, |frames| frames.parse().expect("a number of frames"))
}

#[root_test(alone)]
fn q1_q11_q12_at_full_rate_what_arrives_is_whole_and_in_order_and_the_rest_is_counted() {
    // All work is on the sender's CPU, except vtepd, the sink and the hosts' stacks.
    let cases = [
        (&[][..], false, 16),
        (&[][..], true, 1024),
        (&["--no-gso"][..], false, 1024),
        (&["--no-bridge-bypass"][..], false, 16),
        (&["--datapath", "userspace", "--workers", "2"][..], true, 16),
    ];
    let sites =
        Site::of_all("rate", cases.map(|(arguments, peer, _)| (Setup::default(), arguments, peer)));
    for (mark, ((arguments, with_peer, payload), site)) in (0..).zip(cases.into_iter().zip(&sites))
    {
        let Site { peer, leaf: vtepd, lab } = site;
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
            // A change from the kernel and one from zebra: an address appears or disappears, and a
            // connection is opened.
            let there = known == before.get(MACS);
            let entry = remote_mac(MacAddr([2, 0, 0, 0, 0, 0x71]), VNI, PEER);
            bridge(
                &lab.leaf,
                &if there {
                    entry
                } else {
                    entry.replace("replace", "del").replace("append", "del")
                },
            );
            known = if there { known + 1 } else { known - 1 };
            heard[0] = heard[0].max(time_until(|| vtepd.metrics().get(MACS) == known));
            let zebra =
                lab.leaf.enter(|| TcpStream::connect(("127.0.0.1", 2620))).unwrap().unwrap();
            heard[1] = heard[1].max(time_until(|| has_zebra(vtepd)));
            drop(zebra);
            wait_for("zebra to be gone", || !has_zebra(vtepd));
        }
        let took = start.elapsed();
        let (sent, report) = stream.finish();
        let metrics = vtepd.wait_until_idle();
        let counted = |series: &str| metrics.get(series) - before.get(series);
        let encapsulated =
            metrics.vni_frames(VNI, "encapsulated") - before.vni_frames(VNI, "encapsulated");
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
        // Each redirected frame is forwarded or counted as dropped in the ring.
        let decisions = ["vxlan_redirected", "vxlan_offloaded", "port_bypassed"];
        let handed_over = decisions.map(|decision| {
            counted(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"))
        });
        assert_eq!(
            handed_over.iter().sum::<u64>(),
            encapsulated + metrics.dropped_in_all(),
            "{}",
            metrics.0
        );
        assert_eq!(metrics.dropped_in_all(), metrics.dropped("receive_overrun"), "{}", metrics.0);
        assert!(answers > 0, "vtepd answered and heard while frames passed at full rate");
        if arguments.contains(&"--workers") {
            for worker in ["0", "1"] {
                let series = format!(
                    "vtepd_worker_received_frames_total{{worker=\"{worker}\",from=\"bridge\"}}"
                );
                assert!(counted(&series) > encapsulated / 8, "{}", metrics.0);
            }
        }
        if let Some(peer) = peer {
            let metrics = peer.wait_until_idle();
            let fate = metrics.vni_frames(VNI, "decapsulated") + metrics.dropped_in_all();
            assert!(fate <= encapsulated && fate >= report.received(), "{}", metrics.0);
        }
    }
    at_once(sites, drop);
}

/// Frames of a direction that the steering programs have redirected. A super-frame counts as one.
fn handed_over(metrics: &Metrics, from: &str) -> u64 {
    let decisions = match from {
        "bridge" => &["vxlan_redirected", "vxlan_offloaded", "port_bypassed"][..],
        _ => &["uplink_redirected", "offload_decapsulated"],
    };
    let steered =
        |decision| metrics.get(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"));
    decisions.iter().map(steered).sum()
}

/// Checks that only frames without room in the rings were dropped, and that all other redirected
/// frames were forwarded. Returns the number without room.
fn accounted_for(metrics: &Metrics) -> u64 {
    let [received, copied, sent, dropped, held] = metrics.passed();
    assert_eq!(received + copied, sent + dropped + held, "{}", metrics.0);
    for from in ["bridge", "underlay"] {
        let received = metrics.get(&format!("vtepd_received_frames_total{{from=\"{from}\"}}"));
        assert_eq!(handed_over(metrics, from), received, "from the {from}: {}", metrics.0);
    }
    let no_room = metrics.dropped("receive_overrun");
    assert_eq!(no_room, dropped, "{}", metrics.0);
    no_room
}

/// Frames dropped by the kernel's queues on all links of the lab. A super-frame counts as one.
fn dropped_on_links(lab: &Lab) -> u64 {
    let namespaces =
        [&lab.host.ns, &lab.leaf, &lab.routers[0], &lab.routers[1], &lab.peer, &lab.far.ns];
    let counters = namespaces.map(|namespace| ::fabric::counters::read(namespace).unwrap());
    counters.iter().flatten().map(|(_, link)| link.rx_dropped + link.tx_dropped).sum()
}

/// Checks the number of missing frames against the counters. Each counted frame may have been a
/// super-frame.
fn assert_counted(before: u64, after: u64, counted: RangeInclusive<u64>) {
    /// `UDP_MAX_SEGMENTS`.
    const TOGETHER: u64 = 128;
    let lost = before.checked_sub(after).expect("no more than there were");
    let range = *counted.start()..=counted.end() * TOGETHER;
    assert!(range.contains(&lost), "{lost} of {before} are missing, {counted:?} are counted");
}

/// MTUs of a fabric whose hosts have no jumbo frames.
const SMALL: Setup = Setup {
    overlay_mtu: 1500,
    underlay_mtu: 1550,
    port: 4789,
    vxlan: "",
    learning: false,
    peers: "",
};

#[root_test(alone)]
fn q16_datagrams_at_full_rate_arrive_as_they_were_sent_or_are_counted() {
    let jumbo = Setup::default();
    let cases = [
        (SMALL, &[][..], false, false, Flows::Sockets(16), 1472),
        (SMALL, &["--no-bridge-bypass"], false, true, Flows::Sockets(16), 1472),
        (jumbo, &[], false, true, Flows::QueuePairs(64), 1040),
        (jumbo, &[], true, false, Flows::QueuePairs(64), 1040),
        (jumbo, &[], true, true, Flows::Sockets(16), 256),
        (SMALL, &["--no-gso"], true, false, Flows::QueuePairs(7), 1040),
    ];
    let sites =
        Site::of_all("bulk", cases.map(|(setup, arguments, peer, ..)| (setup, arguments, peer)));
    for ((_, arguments, with_peer, towards_leaf, flows, size), site) in
        cases.into_iter().zip(&sites)
    {
        let Site { peer, leaf, lab } = site;
        let (mut way, mut vtepds) = ((&lab.host, &lab.far), (Some(leaf), peer.as_ref()));
        if towards_leaf {
            (way, vtepds) = ((way.1, way.0), (vtepds.1, vtepds.0));
        }
        let before = dropped_on_links(lab);
        let start = Instant::now();
        let (sent, arrived) = Datagrams::new(flows, size).send(way.0, way.1, frames());
        let took = start.elapsed();
        let on_links = dropped_on_links(lab) - before;
        println!(
            "{flows:?} of {size} bytes, {arguments:?}, towards the leaf: {towards_leaf}, vtepd as the peer: {with_peer}: {} \
             datagrams in {took:.1?}, {} arrived; {on_links} lost on links",
            sent.datagrams(),
            arrived.whole,
        );
        assert_eq!(
            (arrived.damaged, arrived.out_of_turn),
            (0, 0),
            "damaged, and doubled or overtaken"
        );
        assert!(arrived.whole >= frames(), "traffic collapsed");
        // Places where datagrams can be lost: before the first vtepd, in its ring, between the two,
        // in the second one's ring, and at the receiver.
        let mut there = sent.datagrams();
        if let Some(first) = vtepds.0 {
            let metrics = first.wait_until_idle();
            let (in_all, lost) = (handed_over(&metrics, "bridge"), accounted_for(&metrics));
            assert_counted(sent.super_frames, in_all, 0..=on_links);
            there = metrics.vni_frames(VNI, "encapsulated");
            println!(
                "  {lost} of {in_all} super-frames lost in the first ring, {there} datagrams encapsulated"
            );
            assert_eq!(there, (in_all - lost) * sent.segments, "{}", metrics.0);
        }
        if let Some(second) = vtepds.1 {
            let metrics = second.wait_until_idle();
            let (in_all, lost) = (handed_over(&metrics, "underlay"), accounted_for(&metrics));
            let out = metrics.vni_frames(VNI, "decapsulated");
            println!(
                "  {lost} of {in_all} entries lost in the second ring, {out} datagrams decapsulated"
            );
            assert_counted(there, out, lost..=lost + on_links);
            there = out;
        }
        let unread = snmp(&way.1.ns, "Udp", "InErrors");
        println!("  {unread} lost at the receiver's");
        assert_eq!(snmp(&way.1.ns, "Udp", "InCsumErrors"), 0);
        assert_counted(there - unread, arrived.whole, 0..=on_links);
    }
    at_once(sites, drop);
}

#[root_test(alone)]
fn q16_tcp_at_full_rate_brings_every_byte() {
    let cases = [
        (SMALL, &[][..], false),
        (SMALL, &["--no-bridge-bypass"], true),
        (Setup::default(), &[], true),
        (Setup::default(), &["--no-gso"], false),
    ];
    let sites = Site::of_all("tcp", cases);
    for ((setup, arguments, with_peer), site) in cases.into_iter().zip(&sites) {
        let Site { peer, leaf, lab } = site;
        // Bytes of a segment with timestamps.
        let segment = u64::from(setup.overlay_mtu) - 52;
        let ways = [(&lab.host, &lab.far), (&lab.host, &lab.far), (&lab.far, &lab.host)];
        let before = dropped_on_links(lab);
        let start = Instant::now();
        tcp_streams(&ways, frames() * segment / ways.len() as u64);
        let took = start.elapsed();
        let on_links = dropped_on_links(lab) - before;
        println!(
            "MTU {}, {arguments:?}, vtepd as the peer: {with_peer}: {took:.1?}; {on_links} lost on links",
            setup.overlay_mtu
        );
        for vtepd in std::iter::once(leaf).chain(peer) {
            let metrics = vtepd.wait_until_idle();
            let lost = accounted_for(&metrics);
            let [out, back] = ["encapsulated", "decapsulated"]
                .map(|direction| metrics.vni_frames(VNI, direction));
            let from_host = handed_over(&metrics, "bridge");
            println!(
                "  {out} segments of {from_host} frames encapsulated, {back} decapsulated, {lost} entries lost in rings"
            );
            assert!(
                // Acknowledgements of the other direction are no super-frames.
                out > 2 * from_host && out + back > frames(),
                "super-frames went through vtepd: {}",
                metrics.0
            );
        }
        for host in [&lab.host, &lab.far] {
            println!("  {} segments sent again", snmp(&host.ns, "Tcp", "RetransSegs"));
            // TCP would retransmit damaged segments, so the stream alone would not show them.
            assert_eq!(snmp(&host.ns, "Tcp", "InErrs"), 0, "damaged segments");
        }
    }
    at_once(sites, drop);
}

/// All kinds of traffic in both directions: single RoCE frames, then super-frames of datagrams and
/// of TCP.
fn everything(lab: &Lab, frames: u64, mark: u64) {
    for (from, to) in [(&lab.host, &lab.far), (&lab.far, &lab.host)] {
        let rate = Rate { frames: RATE, queue_pairs: 1000, payload: 256 };
        let stream = Stream::start(from, to, rate, mark);
        (0..20).for_each(|_| stream.pass(frames / 40));
        let (_, report) = stream.finish();
        assert_eq!((report.duplicated(), report.corrupted()), (0, 0));
        let _ = Datagrams::new(Flows::QueuePairs(64), 1040).send(from, to, frames / 8);
        tcp_streams(&[(from, to)], frames * 1000);
    }
}

/// Q19: the whole worker, from socket to socket. After some frames of each kind it allocates almost
/// nothing. Pages of preallocated buffers may be touched later, when enough super-frames arrive
/// together to fill them.
#[root_test(alone)]
fn q19_at_full_rate_the_worker_allocates_nothing() {
    const FEW: u64 = 50;
    const MOST_PAGES: u64 = 4096;
    const MOST_BYTES: u64 = 16 << 20;
    let cases = [&[][..], &["--no-gso", "--no-bridge-bypass"]];
    let labs = at_once(0..cases.len(), |number| Lab::new(&format!("alloc{number}")));
    for (arguments, lab) in cases.into_iter().zip(&labs) {
        let leaf = Counted::start(&lab.leaf, arguments);
        let state = || {
            let metrics = leaf.vtepd.wait_until_idle();
            accounted_for(&metrics);
            (metrics.sum("vtepd_sent_frames_total"), leaf.memory())
        };
        let begun = leaf.memory();
        everything(lab, 20_000, 1);
        let (sent_before, before) = state();
        everything(lab, frames(), 2);
        let (sent, after) = state();
        println!(
            "{arguments:?}: {} frames more; {begun:?}, {before:?}, {after:?}",
            sent - sent_before
        );
        assert!(sent - sent_before > frames(), "the frames went through vtepd");
        assert!(begun.by_worker > 0, "the worker's allocations are not seen");
        let allocated = after.by_worker - before.by_worker;
        assert!(allocated <= FEW, "the worker has allocated {allocated} times more");
        assert!(
            after.worker_faults < MOST_PAGES,
            "the worker has touched {} pages",
            after.worker_faults
        );
        let grown = after.resident.saturating_sub(begun.resident);
        assert!(grown < MOST_BYTES, "vtepd has grown by {grown} bytes");
    }
    at_once(labs, drop);
}
