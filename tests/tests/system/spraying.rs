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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fabric::Namespace;
use fabric::netns::NetnsError;
use fabric::super_frames::cut_super_frames;
use fabric::topology::Circuit;
use roce::{SourcePort, timeout};
use root_test::root_test;
use traffic::endpoint::{Kind, Requests, Session, Side, connect, serve};
use vtepd_tests::lab::{ETH, Host, VNI, ip, namespace_name};
use vtepd_tests::{Vtepd, wait_for};
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
        let run = move || {
            let mut wan = Wan::new(&settings).expect("the circuits");
            while !stopped.load(Ordering::Relaxed) {
                wan.poll().expect("the circuits run");
            }
        };
        let wan = Some(site.thread(run).unwrap());
        let circuits = Self { routed, site, stop, wan };
        wait_for("the circuits", || change(&circuits.site, &[]).is_ok());
        for (number, delay) in DELAYS.into_iter().enumerate() {
            circuits.set(number, |change| change.delay = Some(delay * 1_000_000));
        }
        circuits
    }

    /// Changes both directions of a circuit.
    fn set(&self, number: usize, with: impl Fn(&mut Change)) {
        let changes = ["a", "b"].map(|side| {
            let mut change = Change { from: Some(format!("{side}{number}")), ..Change::default() };
            with(&mut change);
            change
        });
        change(&self.site, &changes).unwrap();
    }

    /// Starts vtepd on both leaves, has them spray, and waits until both do over four paths.
    fn start(&self) -> [Vtepd; 2] {
        let lab = &self.routed.lab;
        let leaves =
            [&lab.leaf, &lab.peer].map(|leaf| Vtepd::start_configured(leaf, CONFIGURATION, &[]));
        for leaf in &leaves {
            let set = leaf.ctl(&["policy", "set", &VNI.to_string(), "spray"]);
            assert!(set.status.success(), "{set:?}");
        }
        for (leaf, vtep) in leaves.iter().zip(["10.0.0.2", "10.0.0.1"]) {
            leaf.wait_for("four paths to spray over", |metrics| {
                metrics.find(&format!("vtepd_spray_paths{{vtep=\"{vtep}\"}}")) == Some(4)
            });
        }
        leaves
    }

    /// Writes from `host` to `far` by one queue pair for about so many seconds at this rate of payload
    /// in bits per second. Returns what both sides say, or nothing if that takes four times as long.
    fn write(&self, rate: f64, seconds: f64) -> Option<[Session; 2]> {
        const MESSAGE: u32 = 64 << 10;
        const PORT: u16 = 18_515;
        let side = Side {
            interface: ETH.into(),
            settings: roce::Settings {
                mtu: MTU,
                window: WINDOW,
                timeout: timeout(16),
                ..roce::Settings::default()
            },
            source_port: SourcePort::PerQueuePair,
            seed: 1,
        };
        let Host { ns: near, .. } = &self.routed.lab.host;
        let Host { ns: far, .. } = &self.routed.lab.far;
        for host in [near, far] {
            host.enter(|| cut_super_frames(ETH).unwrap()).unwrap();
        }
        let server = self.routed.lab.far.ip();
        let listener = far.enter(|| TcpListener::bind((server, PORT)).unwrap()).unwrap();
        let other = side.clone();
        let served = far
            .thread(move || serve(&listener, &other, &AtomicBool::new(false)).ok().flatten())
            .unwrap();
        let count = (rate * seconds / 8.0 / f64::from(MESSAGE)) as u64;
        let requests =
            Requests { kind: Kind::Write, message: MESSAGE, count, depth: 16, queue_pairs: 1 };
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
}

/// What the far end says about the order of packets.
fn gaps(far: &Vtepd) -> String {
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
    let [near, far] = circuits.start();
    let sum = goodput_of(4 * RATE);
    let fills = || {
        let Some([sent, served]) = circuits.write(sum, 5.0) else { return false };
        let naks = served.counters.out_of_sequence;
        println!("s1: {:.1} of {:.1} Mbit/s, {naks} NAKs", sent.goodput / 1e6, sum / 1e6);
        println!("{}", gaps(&far));
        naks == 0 && sent.goodput > 0.95 * sum
    };
    assert!((0..3).any(|_| fills()), "see the output");
    let waited = far.metrics().find("vtepd_resequenced_frames_total{what=\"waited\"}");
    assert!(waited > Some(0), "the paths do differ");
    drop(near);
}
