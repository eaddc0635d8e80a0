//! One queue pair over four circuits: the policy `spray`, between hosts that know nothing of it.
//!
//! ```text
//!         ┌─ r1 ─┬─ 1 ms ─── s1 ─┐
//!         │      └─ 2 ms ─┐  │   │
//!   leaf ─┤               s2 │   ├─ peer
//!         │      ┌─ 3 ms ─│──┘   │
//!         └─ r2 ─┴─ 5 ms ─┴──────┘
//! ```

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric::Namespace;
use fabric::netns::NetnsError;
use fabric::super_frames::cut_super_frames;
use fabric::topology::Circuit;
use pipeline::Frame;
use ports::thread_policy::ThreadPolicy;
use roce::{SourcePort, timeout};
use root_test::root_test;
use traffic::endpoint::{Kind, Requests, Session, Side, connect, serve};
use vtepd_tests::lab::{ETH, Host, Lab, VNI, ip, namespace_name};
use vtepd_tests::{Capture, Vtepd, wait_for};
use wan::{Change, Impairment, Settings, Wan, change};

use crate::both_directions::{LINKS, Routed};

/// Bits per second of each circuit, and its delay in milliseconds.
const RATE: u64 = 25_000_000;
const DELAYS: [u64; 4] = [1, 2, 3, 5];

/// A stall would have the kernel forward, in no order. A busy machine causes stalls of 200 ms.
const CONFIGURATION: &str = "\
[takeover]
stall-limit-ms = 5000

[entropy]
policy = \"qp-pin\"

[probing]
key = \"key-of-this-story\"
interval-ms = 10

[spraying]
marks = \"most\"
";

/// The window of the queue pair: more than is on its way over all circuits, and less than what their
/// queues hold beside that.
const WINDOW: u32 = 192 << 10;
/// Payload of a packet, and the bytes around it on a circuit: those of the inner frame (Ethernet, IPv4,
/// UDP, base transport header, ICRC), and the outer headers.
const MTU: u32 = 1024;
const INNER: u32 = 14 + 20 + 8 + 12 + 4;
const OUTER: u32 = 50;

/// Payload of all circuits, in bits per second.
fn goodput_of(rate: u64) -> f64 {
    rate as f64 * f64::from(MTU) / f64::from(MTU + INNER + OUTER)
}

/// Four routers, and a circuit on each of the four links between them.
struct Circuits {
    routed: Routed,
    site: Namespace,
    stop: Arc<AtomicBool>,
    changes: Sender<Vec<Change>>,
    changed: Mutex<Receiver<Instant>>,
    wan: Option<JoinHandle<Result<(), NetnsError>>>,
}

impl Circuits {
    fn new(case: &str) -> Self {
        let routed = Routed::new(case);
        let site = Namespace::create(namespace_name(case, "wan")).unwrap();
        for ((r, s), number) in LINKS.into_iter().zip(0..) {
            let ends = [
                (&routed.lab.routers[r], format!("s{s}"), format!("a{number}"), number * 2),
                (&routed.spines[s], format!("r{r}"), format!("b{number}"), number * 2 + 1),
            ];
            ip(&routed.lab.routers[r], &format!("link del s{s}\n"));
            for (namespace, name, circuit, address) in ends {
                ip(
                    namespace,
                    &format!(
                        "link add {name} mtu 9000 type veth peer name {circuit} mtu 9000 netns {}\n\
                         addr add 10.9.0.{address}/31 dev {name}\nlink set {name} up\n",
                        site.name()
                    ),
                );
                ip(&site, &format!("link set {circuit} up\n"));
            }
        }
        routed.add_routes();
        let circuit = |number| Circuit([format!("a{number}"), format!("b{number}")]);
        let settings = Settings {
            circuits: (0..4).map(circuit).collect(),
            impairment: Impairment {
                delay: Duration::from_millis(1),
                jitter: Duration::ZERO,
                loss: 0.0,
                rate: Some(RATE),
                queue: 128 << 10,
                ecn: Some(8 << 10),
            },
            seed: 1,
            carrier: false,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (changes, wanted) = channel::<Vec<Change>>();
        let (answer, changed) = channel();
        let run = move || {
            // Circuits of hardware do not wait for other work, either.
            ThreadPolicy::Fifo.set().expect("real-time priority");
            let mut wan = Wan::new(&settings).expect("the circuits");
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(changes) = wanted.try_recv() {
                    wan.change(&changes).expect("the circuits are there");
                    answer.send(Instant::now()).expect("somebody waits");
                }
                wan.poll().expect("the circuits run");
            }
        };
        let wan = Some(site.thread(run).unwrap());
        let changed = Mutex::new(changed);
        let circuits = Self { routed, site, stop, changes, changed, wan };
        wait_for("the circuits", || change(&circuits.site, &[]).is_ok());
        for (number, delay) in DELAYS.into_iter().enumerate() {
            circuits.set(number, |change| change.delay = Some(delay * 1_000_000));
        }
        circuits
    }

    /// Changes both directions of a circuit. Returns when that was.
    fn set(&self, number: usize, with: impl Fn(&mut Change)) -> Instant {
        let changes = ["a", "b"].map(|side| {
            let mut change = Change { from: Some(format!("{side}{number}")), ..Change::default() };
            with(&mut change);
            change
        });
        self.changes.send(changes.into()).expect("the circuits run");
        // Wakes the circuits, which may have no packets.
        change(&self.site, &[]).expect("the circuits answer");
        self.changed.lock().unwrap().recv().expect("the circuits run")
    }
}

/// Starts vtepd on both leaves, has them spray, and waits until both do over four paths.
fn start(lab: &Lab, vteps: [&str; 2], options: &[&str]) -> [Vtepd; 2] {
    start_configured(lab, vteps, options, CONFIGURATION)
}

/// As [`start`], for an emulated machine: with fewer probes, and a scheme that takes no feedback,
/// because all paths are slow in turns.
pub(crate) fn start_on_slow_machine(lab: &Lab, vteps: [&str; 2]) -> [Vtepd; 2] {
    let configuration = CONFIGURATION.replace("interval-ms = 10\n", "interval-ms = 200\n");
    start_configured(lab, vteps, &[], &(configuration + "scheme = \"oblivious\"\n"))
}

fn start_configured(
    lab: &Lab,
    vteps: [&str; 2],
    options: &[&str],
    configuration: &str,
) -> [Vtepd; 2] {
    let leaves =
        [&lab.leaf, &lab.peer].map(|leaf| Vtepd::start_configured(leaf, configuration, options));
    for leaf in &leaves {
        let set = leaf.ctl(&["policy", "set", &VNI.to_string(), "spray"]);
        assert!(set.status.success(), "{set:?}");
    }
    wait_until_agreed(&leaves, vteps);
    leaves
}

/// Waits until both leaves spray over four paths.
pub(crate) fn wait_until_agreed(leaves: &[Vtepd; 2], vteps: [&str; 2]) {
    for (leaf, vtep) in leaves.iter().zip(vteps) {
        leaf.wait_for("four paths to spray over", |metrics| {
            metrics.find(&format!("vtepd_spray_paths{{vtep=\"{vtep}\"}}")) == Some(4)
        });
    }
}

/// Writes so many bits of payload from `host` to `far` by one queue pair, which should take about so
/// many seconds. Returns what both sides say, or nothing if that takes four times as long.
fn write(lab: &Lab, bits: f64, seconds: f64) -> Option<[Session; 2]> {
    write_by(lab, (1, WINDOW), bits, seconds)
}

/// The same by each of some queue pairs with a window in bytes.
fn write_by(
    lab: &Lab,
    (queue_pairs, window): (u32, u32),
    bits: f64,
    seconds: f64,
) -> Option<[Session; 2]> {
    const MESSAGE: u32 = 64 << 10;
    const PORT: u16 = 18_515;
    let side = Side {
        interface: ETH.into(),
        settings: roce::Settings {
            mtu: MTU,
            window,
            timeout: timeout(16),
            ..roce::Settings::default()
        },
        source_port: SourcePort::PerQueuePair,
        seed: 1,
    };
    let Host { ns: near, .. } = &lab.host;
    let Host { ns: far, .. } = &lab.far;
    for host in [near, far] {
        host.enter(|| cut_super_frames(ETH).unwrap()).unwrap();
    }
    let server = lab.far.ip();
    let listener = far.enter(|| TcpListener::bind((server, PORT)).unwrap()).unwrap();
    let other = side.clone();
    let served = far
        .thread(move || serve(&listener, &other, &AtomicBool::new(false)).ok().flatten())
        .unwrap();
    let count = (bits / 8.0 / f64::from(MESSAGE)) as u64;
    let requests = Requests { kind: Kind::Write, message: MESSAGE, count, depth: 16, queue_pairs };
    let stop = Arc::new(AtomicBool::new(false));
    let late = Arc::clone(&stop);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs_f64(4.0 * seconds));
        late.store(true, Ordering::Relaxed);
    });
    let sent = near.enter(|| connect((server, PORT), &side, requests, &stop).ok()).unwrap();
    let served = served.join().unwrap().unwrap();
    (!stop.load(Ordering::Relaxed)).then_some([sent?, served?])
}

/// When a circuit gets packets, and how many: those of one super-frame are one frame here.
struct Load(Capture<Vec<(Instant, usize)>>);

impl Load {
    fn of(circuits: &Circuits, number: usize) -> Self {
        // Ethernet, IPv4 and UDP, and behind these the VXLAN header and an inner frame each time.
        const HEADERS: u32 = OUTER - 8;
        const SEGMENT: u32 = 8 + INNER + MTU;
        let add = |seen: &mut Vec<_>, frame: &Frame<'_>| {
            let packets = frame.data.len().saturating_sub(HEADERS as usize) / SEGMENT as usize;
            seen.push((Instant::now(), packets));
        };
        Self(Capture::fold(&circuits.site, &format!("a{number}"), Vec::new(), add))
    }

    /// The packets of each millisecond since then, and when the circuit gets the last one before a
    /// pause of 10 ms, in milliseconds.
    fn since(self, since: Instant) -> (Vec<usize>, f64) {
        // Probes are smaller than a packet.
        let later = |(at, packets): (Instant, usize)| {
            (at > since && packets > 0).then(|| ((at - since).as_secs_f64() * 1e3, packets))
        };
        let seen: Vec<(f64, usize)> = self.0.stop().into_iter().filter_map(later).collect();
        let mut each = vec![0; 20];
        for (at, packets) in &seen {
            if let Some(count) = each.get_mut(*at as usize) {
                *count += packets;
            }
        }
        let pause = seen.windows(2).find(|two| two[1].0 - two[0].0 > 10.0);
        (each, pause.map_or(f64::INFINITY, |two| two[0].0))
    }
}

/// A circuit has a quarter of its rate from the second second on. Within 5 ms, it gets its last packet
/// until its queue has drained. This counts once in three times, as below.
#[root_test(alone)]
fn s2_a_circuit_that_becomes_slow_costs_its_own_share() {
    let circuits = Circuits::new("sprayslow");
    let [near, far] = start(&circuits.routed.lab, ["10.0.0.2", "10.0.0.1"], &[]);
    let sum = goodput_of(4 * RATE);
    let left = goodput_of(3 * RATE + RATE / 4);
    let fills = || {
        circuits.set(0, |change| change.rate = Some(RATE));
        let total = sum + left * 4.0;
        let loads = [0, 1, 2, 3].map(|number| Load::of(&circuits, number));
        let (written, since) = std::thread::scope(|scope| {
            let change = scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(1));
                circuits.set(0, |change| change.rate = Some(RATE / 4))
            });
            (write(&circuits.routed.lab, total, 5.0), change.join().unwrap())
        });
        let [(slow, moved), others @ ..] = loads.map(|load| load.since(since));
        let others = others.map(|(each, _)| each);
        println!("s2: after {moved:.1} ms, packets of each ms {slow:?}, by others {others:?}");
        let Some([sent, served]) = written else { return false };
        // At most what the circuits carry was written before.
        let after = (total - sum) / (total / sent.goodput - 1.0);
        let repeats = repeats(&sent, &served);
        println!("s2: {:.1} of {:.1} Mbit/s, {repeats}", after / 1e6, left / 1e6);
        println!("{}", gaps(&far));
        after > 0.9 * left && moved <= 5.0
    };
    assert!((0..3).any(|_| fills()), "see the output");
    drop(near);
}

/// Each second, circuits lose all packets for a millisecond while a host fills all queues: one circuit
/// after the other, or all of them. What was on its way is sent again, behind what the host drops, and
/// takes less than four times as long. This counts once in three times, as above.
#[root_test(alone)]
fn s4_losses_with_full_queues_do_not_stop_hosts() {
    let circuits = Circuits::new("sprayloss");
    let leaves = start(&circuits.routed.lab, ["10.0.0.2", "10.0.0.1"], &[]);
    // The time that each of these losses costs, in milliseconds.
    let costs = |policy: &str, window: u32, rate: f64, losses: &[Range<usize>]| {
        let seconds = losses.len() as f64 + 1.0;
        let written = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (loss, time) = (Some(1.0), Some(1_000_000));
                for lossy in losses {
                    std::thread::sleep(Duration::from_secs(1));
                    for number in lossy.clone() {
                        circuits.set(number, |change| (change.loss, change.time) = (loss, time));
                    }
                }
            });
            write_by(&circuits.routed.lab, (1, window), rate * seconds, seconds)
        });
        let [sent, served] = written?;
        let (reached, repeats) = (sent.goodput, repeats(&sent, &served));
        println!("s4, {policy}: {:.1} of {:.1} Mbit/s, {repeats}", reached / 1e6, rate / 1e6);
        (sent.counters.packet_seq_err > 0)
            .then(|| (rate / reached - 1.0) * seconds * 1e3 / losses.len() as f64)
    };
    let sum = goodput_of(4 * RATE);
    let each = [0..1, 1..2, 2..3, 3..4];
    let sprayed = (0..3).find_map(|_| costs("spray", WINDOW, sum, &each));
    println!("{}", gaps(&leaves[1]));
    let sprayed = sprayed.expect("see the output");
    for leaf in &leaves {
        assert!(leaf.ctl(&["policy", "set", &VNI.to_string(), "qp-pin"]).status.success());
    }
    // To compare. The queue of one circuit holds less than the window for four.
    let together = 0..4;
    let losses = std::slice::from_ref(&together);
    let pinned = costs("qp-pin", WINDOW / 2, goodput_of(RATE), losses);
    println!("s4: a loss costs {sprayed:.0} ms, and {pinned:.0?} ms without spraying");
}

/// The programs choose the worker by the inner addresses and the queue pair, in both directions. So
/// each worker sees all packets of its queue pairs, whatever path they took.
#[root_test]
fn s5_two_workers_keep_the_order_of_their_queue_pairs() {
    let routed = Routed::new("spraywork");
    let vteps = ["10.0.0.2", "10.0.0.1"];
    let [near, far] = start(&routed.lab, vteps, &["--workers", "2"]);
    let [sent, served] = write_by(&routed.lab, (8, WINDOW), 16e6, 10.0).expect("it ends");
    println!("s5: {:.1} Mbit/s\n{}", sent.goodput / 1e6, gaps(&far));
    assert_eq!(served.counters.out_of_sequence, 0);
    let received = |worker: u32| {
        let labels = format!("worker=\"{worker}\",from=\"underlay\"");
        far.metrics().find(&format!("vtepd_worker_received_frames_total{{{labels}}}"))
    };
    assert!([0, 1].map(received).into_iter().all(|frames| frames > Some(100)));
    drop(near);
}

/// Over IPv6, routers hash the flow label. A path then has the label of its source port.
#[root_test]
fn s3_spraying_over_ipv6_uses_all_paths_and_keeps_the_order() {
    let routed = Routed::over_ipv6("sprayv6");
    let [near, far] = start(&routed.lab, ["fd00::2", "fd00::1"], &[]);
    const BITS: f64 = 64e6;
    let [sent, served] = write(&routed.lab, BITS, 10.0).expect("it ends");
    let counters = &served.counters;
    println!("s3: {:.1} Mbit/s, {counters:?}\n{}", sent.goodput / 1e6, gaps(&far));
    let shown = near.ctl(&["path", "--json"]);
    println!("{}", String::from_utf8_lossy(&shown.stdout));
    let packets = (BITS / 8.0 / f64::from(MTU)) as u64;
    near.wait_for("all packets to be sprayed", |metrics| {
        let of = |what: &str| {
            let name = format!("vtepd_sprayed_packets_total{{vtep=\"fd00::2\",what=\"{what}\"}}");
            metrics.find(&name).unwrap_or(0)
        };
        of("sent") > packets * 9 / 10 && of("unmarked") > packets * 9 / 10
    });
}

/// What gaps have cost: NAKs, and the packets behind a gap that the host drops until it is closed. With
/// go-back-N, these are all that are on their way, so about a window for each NAK.
fn repeats(sent: &Session, served: &Session) -> String {
    let (naks, timeouts) = (sent.counters.packet_seq_err, sent.counters.local_ack_timeout_err);
    let dropped = served.counters.out_of_sequence;
    format!("{naks} NAKs, {timeouts} timeouts, {dropped} packets dropped behind gaps")
}

/// What the far end says about the order of packets.
pub(crate) fn gaps(far: &Vtepd) -> String {
    let metrics = far.metrics();
    let lines =
        metrics.0.lines().filter(|line| line.contains("vtepd_reseq") && !line.starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

impl Drop for Circuits {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(wan) = self.wan.take() {
            let _ = wan.join();
        }
    }
}

/// The circuits and both endpoints are processes: while the machine does something else, packets wait
/// for longer than the far leaf holds those behind them. So this counts once in three times.
#[root_test(alone)]
fn s1_one_queue_pair_fills_four_circuits_of_different_delay() {
    let circuits = Circuits::new("spray");
    let [near, far] = start(&circuits.routed.lab, ["10.0.0.2", "10.0.0.1"], &[]);
    let sum = goodput_of(4 * RATE);
    let fills = || {
        let Some([sent, served]) = write(&circuits.routed.lab, sum * 5.0, 5.0) else {
            return false;
        };
        let repeats = repeats(&sent, &served);
        println!("s1: {:.1} of {:.1} Mbit/s, {repeats}", sent.goodput / 1e6, sum / 1e6);
        println!("{}", gaps(&far));
        served.counters.out_of_sequence == 0 && sent.goodput > 0.95 * sum
    };
    assert!((0..3).any(|_| fills()), "see the output");
    let waited = far.metrics().find("vtepd_resequenced_frames_total{what=\"waited\"}");
    assert!(waited > Some(0), "the paths do differ");
    drop(near);
}

/// The CPU time of both leaves with `spray` beside `qp-pin`: of a minute without traffic, and while one
/// queue pair sends with a small window. The far leaf looks for arrivals every half millisecond.
#[root_test(alone)]
#[ignore = "a measurement"]
fn s6_looking_for_arrivals_costs_little() {
    let routed = Routed::new("spraycpu");
    let vteps = ["10.0.0.2", "10.0.0.1"];
    let leaves = start(&routed.lab, vteps, &[]);
    const THREADS: [&str; 2] = ["probing", "worker"];
    let cost = |time: Duration, during: &dyn Fn()| {
        let read = || leaves.each_ref().map(|leaf| THREADS.map(|thread| leaf.cpu_time(thread)));
        let (before, start) = (read(), Instant::now());
        during();
        std::thread::sleep(time.saturating_sub(start.elapsed()));
        let (after, elapsed) = (read(), start.elapsed().as_secs_f64());
        let percent = |leaf: usize, thread: usize| {
            (after[leaf][thread] - before[leaf][thread]).as_secs_f64() * 100.0 / elapsed
        };
        [0, 1].map(|leaf| [0, 1].map(|thread| percent(leaf, thread)))
    };
    for policy in ["qp-pin", "spray", "qp-pin", "spray"] {
        for leaf in &leaves {
            let set = leaf.ctl(&["policy", "set", &VNI.to_string(), policy]);
            assert!(set.status.success(), "{set:?}");
        }
        std::thread::sleep(Duration::from_secs(3));
        let idle = cost(Duration::from_secs(60), &|| ());
        let busy = cost(Duration::from_secs(1), &|| {
            let written = write_by(&routed.lab, (1, 4 << 10), 2e8, 20.0);
            let [sent, _] = written.expect("it ends");
            println!("{policy}: {:.1} Mbit/s", sent.goodput / 1e6);
        });
        println!("s6: {policy}: idle {idle:.3?}, busy {busy:.3?}: % of {THREADS:?} of both leaves");
    }
}
