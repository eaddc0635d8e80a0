//! Real verbs over sprayed packets: Soft-RoCE behind one leaf, an endpoint of `lab` behind the
//! other, and four paths between them.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fabric::netns::run;
use fabric::process::wait_until;
use fabric::super_frames::cut_super_frames;
use root_test::root_test;
use traffic::endpoint::{Kind, PORT, Requests, Session, Side, connect, serve};
use vtepd_tests::Vtepd;
use vtepd_tests::lab::{ETH, VNI};

use super::{ALL, COUNT, MESSAGE, Perftest, gid_of, listens, perftest, start_perftest, succeeded};
use crate::both_directions::Routed;
use crate::spraying;

/// Counters of Soft-RoCE for what is sent again, or comes in another order than it was sent.
const REPEATS: [&str; 6] = [
    "completer_retry_err",
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
];

/// Options of perftest for so many queue pairs: it sends again after 275 s. Soft-RoCE's timer ends
/// while answers come, too: an acknowledgement of all that is on its way does not begin it anew. So it
/// must be longer than a run. Few messages are on their way, so that the queues of the kernel do not
/// overflow.
fn options(pairs: u32) -> [String; 4] {
    ["-u", "26", "-t", &depth(pairs).to_string()].map(str::to_owned)
}

/// Messages of a queue pair that are on their way.
fn depth(pairs: u32) -> u32 {
    (32 / pairs).max(2)
}

/// Numbers of queue pairs.
const PAIRS: [u32; 3] = [1, 4, 16];

const VTEPS: [&str; 2] = ["10.0.0.2", "10.0.0.1"];

/// Soft-RoCE as the first host behind a leaf that sprays.
struct Verbs {
    routed: Routed,
    leaves: [Vtepd; 2],
    gid: String,
}

impl Verbs {
    fn new() -> Self {
        let routed = Routed::new("sprayverbs");
        let leaves = spraying::start_on_slow_machine(&routed.lab, VTEPS);
        let host = &routed.lab.host;
        let address = host.ip();
        // Soft-RoCE receives in the first network namespace only.
        host.ns.run(&["ip", "link", "set", ETH, "netns", "1"]).unwrap();
        run(&["ip", "address", "add", &format!("{address}/24"), "dev", ETH]).unwrap();
        run(&["ip", "link", "set", ETH, "up"]).unwrap();
        run(&["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", ETH]).unwrap();
        routed.lab.far.ns.enter(|| cut_super_frames(ETH).unwrap()).unwrap();
        let [a, b, c, d] = address.octets();
        let gid = gid_of(&format!("{a:02x}{b:02x}:{c:02x}{d:02x}"));
        let far = routed.lab.far.ip().to_string();
        let reaches = || run(&["ping", "-c", "1", "-W", "1", &far]).is_ok();
        assert!(wait_until(Duration::from_secs(30), reaches), "{far} does not answer");
        Self { routed, leaves, gid }
    }

    /// An endpoint. Those that run at the same time have queue pairs of other numbers, by the seed.
    fn side(seed: u64) -> Side {
        let timeout = roce::timeout(25);
        Side {
            interface: ETH.into(),
            settings: roce::Settings { mtu: 1024, timeout, ..super::side().settings },
            seed,
            ..super::side()
        }
    }

    /// Sets the policy of both leaves.
    fn set_policy(&self, policy: &str) {
        for leaf in &self.leaves {
            let set = leaf.ctl(&["policy", "set", &VNI.to_string(), policy]);
            assert!(set.status.success(), "{set:?}");
        }
        if policy == "spray" {
            spraying::wait_until_agreed(&self.leaves, VTEPS);
        }
    }

    /// perftest sends to the endpoint, or reads from it.
    fn requests_of_soft_roce(&self, kind: Kind, pairs: u32) -> Session {
        let far = &self.routed.lab.far;
        let listener = far.ns.enter(|| TcpListener::bind((far.ip(), PORT)).unwrap()).unwrap();
        let client =
            start_perftest(kind, (&self.gid, &options(pairs)), pairs, Some(&far.ip().to_string()));
        let stop = AtomicBool::new(false);
        let session = far.ns.enter(|| serve(&listener, &Self::side(1), &stop).unwrap()).unwrap();
        succeeded(client);
        session.unwrap()
    }

    /// The endpoint sends to perftest, or reads from it.
    fn to_soft_roce(&self, kind: Kind, pairs: u32) -> Session {
        let server = self.listening(kind, pairs);
        let to = (self.routed.lab.host.ip(), PORT);
        let session = self.request(to, kind, pairs);
        succeeded(server);
        session
    }

    fn listening(&self, kind: Kind, pairs: u32) -> Perftest {
        let mut server = start_perftest(kind, (&self.gid, &options(pairs)), pairs, None);
        let mut is_up = || listens() || !server.is_running();
        assert!(wait_until(Duration::from_secs(30), &mut is_up), "perftest does not listen");
        server
    }

    fn request(&self, to: (Ipv4Addr, u16), kind: Kind, pairs: u32) -> Session {
        let depth = depth(pairs).min(16).into();
        let requests = Requests { kind, message: MESSAGE, count: COUNT, depth, queue_pairs: pairs };
        let stop = AtomicBool::new(false);
        let far = &self.routed.lab.far.ns;
        far.enter(|| connect(to, &Self::side(2), requests, &stop)).unwrap().unwrap()
    }

    /// The packets that a leaf has sprayed over each path.
    fn sent(&self, leaf: usize) -> Vec<u64> {
        let shown = self.leaves[leaf].ask(&["path"]);
        let vteps = shown.as_array().unwrap().iter();
        let paths = vteps.filter_map(|vtep| vtep["sprayed"].as_array()).flatten();
        paths.map(|path| path["sent"].as_u64().unwrap()).collect()
    }

    /// Does something, and returns the highest share of a path of what a leaf has sprayed meanwhile,
    /// as a multiple of the mean (MMR).
    fn mmr(&self, leaf: usize, during: impl FnOnce()) -> f64 {
        spraying::wait_until_agreed(&self.leaves, VTEPS);
        let before = self.sent(leaf);
        during();
        let sent: Vec<u64> = self.sent(leaf).iter().zip(before).map(|(n, b)| n - b).collect();
        println!("sprayed by leaf {leaf}: {sent:?}");
        let all = sent.iter().sum::<u64>();
        assert!(all >= COUNT * u64::from(MESSAGE / 1024), "{sent:?}");
        *sent.iter().max().unwrap() as f64 * sent.len() as f64 / all as f64
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whether a leaf waited for too little time, or a frame was lost or overtaken elsewhere.
            for leaf in &self.leaves {
                println!("{}", spraying::gaps(leaf));
                let metrics = leaf.metrics();
                let tells = |line: &&str| {
                    ["drop", "lost", "overrun", "moves", "beyond", "refused"]
                        .iter()
                        .any(|what| line.contains(what))
                        && !line.starts_with('#')
                        && !line.ends_with(" 0")
                };
                metrics.0.lines().filter(tells).for_each(|line| println!("{line}"));
            }
            println!("{}", std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default());
        }
        let _ = run(&["ip", "link", "delete", ETH]);
    }
}

fn repeats() -> Vec<(&'static str, String)> {
    let read = |name| {
        let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    };
    REPEATS.map(|name| (name, read(name))).to_vec()
}

/// Nothing came in another order, or twice, or was sent again.
fn in_order(session: &Session, of: &str) {
    let counters = session.counters;
    println!("{of}: {:.1} Mbit/s, {:.1} s", session.goodput / 1e6, session.seconds);
    let wrong = [
        counters.out_of_sequence,
        counters.duplicate_request,
        counters.retransmitted_packets,
        counters.packet_seq_err,
        counters.local_ack_timeout_err,
        counters.rx_icrc_errors,
        counters.req_remote_access_errors,
    ];
    let repeats = repeats();
    assert_eq!(wrong, [0; 7], "{of}: {counters:?} {repeats:?}");
    assert!(repeats.iter().all(|(_, count)| count == "0"), "{of}: {repeats:?}");
}

#[root_test(needs = perftest)]
#[ignore = "needs rdma_rxe and perftest: tests/linux-vm 6.1 soft_roce"]
fn verbs_over_sprayed_packets_see_no_gap_and_use_all_paths() {
    let verbs = Verbs::new();
    for pairs in PAIRS {
        for kind in ALL {
            let of = |way: &str| format!("{kind:?} {way} Soft-RoCE, {pairs} queue pairs");
            // Answers to reads are not sprayed.
            let sprays = kind != Kind::Read;
            let from = || in_order(&verbs.requests_of_soft_roce(kind, pairs), &of("from"));
            let to = || in_order(&verbs.to_soft_roce(kind, pairs), &of("to"));
            if sprays {
                let mmr = [verbs.mmr(0, from), verbs.mmr(1, to)];
                println!("MMR: {mmr:.3?}");
                assert!(pairs > 1 || mmr.iter().all(|mmr| *mmr <= 1.02), "{mmr:?}");
            } else {
                from();
                to();
            }
        }
    }
}

#[root_test(needs = perftest)]
#[ignore = "needs rdma_rxe and perftest: tests/linux-vm 6.1 soft_roce"]
fn verbs_in_both_directions_at_once_see_no_gap() {
    let verbs = Verbs::new();
    for pairs in PAIRS {
        let sessions = std::thread::scope(|scope| {
            let from = scope.spawn(|| verbs.requests_of_soft_roce(Kind::Write, pairs));
            let to = verbs.to_soft_roce(Kind::Write, pairs);
            [from.join().unwrap(), to]
        });
        println!("{:?}", sessions.each_ref().map(|session| session.counters));
        for (session, way) in sessions.iter().zip(["from", "to"]) {
            in_order(session, &format!("write {way} Soft-RoCE at once, {pairs} queue pairs"));
        }
    }
}

/// Where queue pairs have one path each, endpoints send as little again as over all paths. So what they
/// send again by themselves, in a slow machine, is not taken for what spraying does. `qp-pin` may move
/// a queue pair after a pause that is shorter than frames wait in this machine.
#[root_test(needs = perftest)]
#[ignore = "needs rdma_rxe and perftest: tests/linux-vm 6.1 soft_roce"]
fn verbs_send_nothing_again_with_one_path_or_with_all() {
    let verbs = Verbs::new();
    let sent = || verbs.sent(0).iter().sum::<u64>();
    for (policy, sprays) in [("qp-hash", false), ("spray", true)] {
        verbs.set_policy(policy);
        let before = if sprays { sent() } else { 0 };
        in_order(
            &verbs.requests_of_soft_roce(Kind::Write, 16),
            &format!("16 queue pairs, {policy}"),
        );
        let sprayed = sent() - before;
        assert_eq!(sprayed > 16 * COUNT * u64::from(MESSAGE / 1024), sprays, "{policy}: {sprayed}");
    }
}
