//! Who reaches the thread that probes: VTEPs by the underlay, each within its limit, and no host.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabric::Namespace;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use root_test::root_test;
use vtepd_tests::daemon::Metrics;
use vtepd_tests::frames::{Tunnelled, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, mac_of};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Stop, Vtepd, meanwhile, wait_for};
use wire::MacAddr;

use crate::qp_pin::{QUEUE_PAIRS, RATE, placed, start, two_paths};

/// The VNI and the inner EtherType of probes, and where the token is in one.
const PROBES: u32 = 0xff_ffff;
const ETHERTYPE: u16 = 0x88b5;
const TOKEN: usize = 24;
/// Packets without a token that one sender may send at once, and in a second.
const UNCONFIRMED: u64 = 256;
/// `SCHED_FIFO` (sched(7)).
const FIFO: &str = "1";

/// A probe from one VTEP to the leaf, with this token and the tag of no key.
fn probe(to: MacAddr, source: std::net::Ipv4Addr, token: u32) -> Vec<u8> {
    let mut message = vec![0x56, 0x50, 4, 1];
    message.resize(TOKEN, 1);
    message.extend_from_slice(&token.to_be_bytes());
    message.resize(TOKEN + 4 + 16, 0xee);
    let inner = test_frames::ethernet([2; 6], [4; 6], ETHERTYPE, &message);
    let (destination, port) = (LEAF, 4789);
    Tunnelled { to, source, destination, port, vni: PROBES, tos: 0, flip: 0 }.frame(&inner)
}

fn messages(metrics: &Metrics, what: &str) -> u64 {
    metrics.get(&format!("vtepd_probe_messages_total{{what=\"{what}\"}}"))
}

/// The metrics once this many packets were refused for this reason.
fn wait_for_refused(vtepd: &Vtepd, reason: &str, number: u64) -> Metrics {
    vtepd.wait_for(reason, |metrics| messages(metrics, reason) >= number)
}

/// Tenants' frames that look like probes of a VTEP, in whatever way they reach the leaf itself.
#[root_test]
fn p15_a_host_reaches_nothing_of_probing() {
    let lab = Lab::new("qphosts");
    // The other leaves are kernel VXLAN, which floods what their hosts send.
    let leaf = start(&lab.leaf);
    wait_for("the leaf to probe", || {
        leaf.ask(&["path"]).as_array().is_some_and(|paths| !paths.is_empty())
    });
    let broadcast = MacAddr([0xff; 6]);
    let multicast = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let bridge = mac_of(&lab.leaf, "br10");
    let mut sent = 0;
    for (host, to) in [
        (&lab.host, broadcast),
        (&lab.host, multicast),
        (&lab.host, bridge),
        (&lab.far, broadcast),
        (&lab.far, multicast),
        (&lab.far, bridge),
    ] {
        inject(&host.ns, ETH, &vec![probe(to, PEER, 0); 100]);
        sent += 100;
        wait_for_refused(&leaf, "not_from_uplink", sent);
    }
    // At an uplink, but for all, or for another station.
    for to in [broadcast, MacAddr([2, 0, 0, 0, 0, 0x77])] {
        inject(&lab.routers[0], "leaf", &vec![probe(to, PEER, 0); 100]);
        sent += 100;
        wait_for_refused(&leaf, "not_from_uplink", sent);
    }
    let uplink = mac_of(&lab.leaf, "up1");
    let stranger = std::net::Ipv4Addr::new(10, 0, 0, 99);
    inject(&lab.routers[0], "leaf", &vec![probe(uplink, stranger, 0); 100]);
    let metrics = wait_for_refused(&leaf, "not_from_vtep", 100);
    let reached = ["opened", "refused", "over_limit"].map(|what| messages(&metrics, what));
    assert_eq!(reached, [0; 3]);
    // What the underlay sends in the name of a VTEP reaches the thread, which finds no tag.
    inject(&lab.routers[0], "leaf", &vec![probe(uplink, PEER, 0); 100]);
    let metrics = wait_for_refused(&leaf, "refused", 100);
    assert_eq!(["opened", "over_limit"].map(|what| messages(&metrics, what)), [0; 2]);
}

/// How late ordinary threads are while something is done: one on each CPU, which sleeps again and
/// again. Returns the longest delay.
fn longest_delay<T>(act: impl FnOnce() -> T) -> (Duration, T) {
    const SLEEP: Duration = Duration::from_millis(1);
    let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let stop = AtomicBool::new(false);
    let watch = |cpu| {
        let mut only = CpuSet::new();
        only.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
        let mut longest = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(SLEEP);
            longest = longest.max(began.elapsed().saturating_sub(SLEEP));
        }
        longest
    };
    std::thread::scope(|scope| {
        let all = (0..CpuSet::count()).filter(|cpu| cpus.is_set(*cpu).unwrap());
        let watching: Vec<_> = all.map(|cpu| scope.spawn(move || watch(cpu))).collect();
        let stopping = Stop(&stop);
        let result = act();
        drop(stopping);
        let delays = watching.into_iter().map(|watching| watching.join().unwrap());
        (delays.max().unwrap(), result)
    })
}

/// Sends a packet from the first router again and again while something is done. Returns how many
/// were sent, and the result.
fn under_flood<T>(
    router: &Namespace,
    packet: &[u8],
    act: impl FnOnce(&AtomicU64) -> T,
) -> (u64, T) {
    let (sent, packets) = (AtomicU64::new(0), vec![packet.to_vec(); 20_000]);
    let again = || {
        inject(router, "leaf", &packets);
        sent.fetch_add(packets.len() as u64, Ordering::Relaxed);
    };
    let result = meanwhile(again, || act(&sent));
    (sent.load(Ordering::Relaxed), result)
}

/// The CPU time of a process in clock ticks of 10 ms, without softirqs (proc_pid_stat(5)).
fn ticks(vtepd: &Vtepd) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", vtepd.pid())).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A router sends packets in the name of a VTEP, without the key and without the token, as fast as
/// it can. The VTEP's own messages are read as before.
#[root_test]
fn p16_a_flood_in_the_name_of_a_vtep_ends_at_its_limit() {
    let lab = Lab::new("qpflood");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let vtep = PEER.to_string();
    two_paths(&leaf, &vtep);
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x7116);
    stream.pass(4000);
    let before = (placed(&leaf), leaf.metrics());
    assert_eq!(before.0.len(), QUEUE_PAIRS);
    let packet = probe(mac_of(&lab.leaf, "up1"), PEER, 0);
    let (began, spent) = (Instant::now(), ticks(&leaf));
    let (delay, (sent, ())) = longest_delay(|| {
        under_flood(&lab.routers[0], &packet, |sent| {
            wait_for("a flood", || sent.load(Ordering::Relaxed) >= 300_000);
            stream.pass(RATE.into());
        })
    });
    let took = began.elapsed().as_secs_f64();
    let spent = (ticks(&leaf) - spent) as f64 / 100.0;
    println!(
        "p16: {:.0} packets/s for {took:.1} s cost vtepd {:.1} % of a core; ordinary threads were up to \
         {:.1} ms late",
        sent as f64 / took,
        spent * 100.0 / took,
        delay.as_secs_f64() * 1e3
    );
    let metrics = leaf.wait_for("what was sent to be refused", |metrics| {
        messages(metrics, "refused") + messages(metrics, "over_limit") >= sent
    });
    let refused = messages(&metrics, "refused") - messages(&before.1, "refused");
    let most = UNCONFIRMED * (took as u64 + 2);
    assert!(refused <= most, "{refused} of {sent} packets reached the thread");
    assert_eq!(placed(&leaf), before.0, "queue pairs that left a living path");
    let known = leaf.ask(&["path", "--vtep", &vtep])[0].clone();
    assert_eq!((&known["dead"], &known["known"]), (&0.into(), &128.into()), "{known}");
    let [answered, probes] = ["answered", "sent"].map(|what| messages(&metrics, what));
    assert!(probes - answered <= probes / 10 + 128, "{answered} of {probes} probes answered");
    stream.finish_whole();
}

/// The VTEP starts again meanwhile, and knows no token that it was told, nor is its own known.
#[root_test]
fn p18_a_vtep_that_starts_again_is_heard_in_a_flood_in_its_name() {
    let lab = Lab::new("qpagain");
    let (leaf, peer) = (start(&lab.leaf), start(&lab.peer));
    two_paths(&leaf, &PEER.to_string());
    let packet = probe(mac_of(&lab.leaf, "up1"), PEER, 0);
    under_flood(&lab.routers[0], &packet, |sent| {
        wait_for("a flood", || sent.load(Ordering::Relaxed) >= 300_000);
        peer.kill();
        let peer = start(&lab.peer);
        two_paths(&peer, &LEAF.to_string());
        wait_for("the leaf to hear it", || {
            let known = leaf.ask(&["path", "--vtep", &PEER.to_string()])[0].clone();
            known["age_ms"].as_u64().is_some_and(|age| age < 500)
        });
    });
    let known = leaf.ask(&["path", "--vtep", &PEER.to_string()])[0].clone();
    assert_eq!((&known["dead"], &known["known"]), (&0.into(), &128.into()), "{known}");
}

/// A router that sees the token has a limit, too. The thread does not run before all others while it
/// has that much to read.
#[root_test]
fn p17_under_load_the_thread_waits_its_turn() {
    let lab = Lab::new("qpfair");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    two_paths(&leaf, &PEER.to_string());
    let thread = leaf.thread("probing");
    let policy = || {
        let stat = fs::read_to_string(thread.join("stat")).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.into_iter().nth(38).unwrap().to_owned()
    };
    wait_for("a thread with little to do", || policy() == FIFO);
    let watch = Capture::start(&lab.routers[0], "peer", |frame| token(frame).is_some());
    watch.wait(1);
    let seen = watch.stop().iter().find_map(|frame| token(&frame.bytes)).unwrap();
    let packet = probe(mac_of(&lab.leaf, "up1"), PEER, seen);
    under_flood(&lab.routers[0], &packet, |_| {
        wait_for("a thread with much to do", || policy() != FIFO);
        wait_for_refused(&leaf, "over_limit", 1);
    });
    wait_for("a thread with little to do again", || policy() == FIFO);
}

/// The token of a probe from the peer to the leaf.
fn token(frame: &[u8]) -> Option<u32> {
    let is_to_leaf = frame.get(12..14)? == [8, 0]
        && frame.get(26..34)? == [PEER.octets(), LEAF.octets()].concat();
    let udp = 14 + usize::from(frame.get(14)? & 15) * 4;
    let vni = frame.get(udp + 12..)?.first_chunk()?;
    let message = frame.get(udp + 8 + 8 + 14..)?;
    let is_probe =
        u32::from_be_bytes(*vni) >> 8 == PROBES && message.get(..4)? == [0x56, 0x50, 4, 1];
    let token = message.get(TOKEN..)?.first_chunk()?;
    (is_to_leaf && is_probe).then(|| u32::from_be_bytes(*token))
}
