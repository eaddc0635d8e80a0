//! One queue pair over four circuits, in simulated time: the paths that workers choose, the reports of
//! the far end, and the order of packets there, between hosts with go-back-N.

#![cfg(test)]

use std::array;
use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use path::{
    Agreed, Arrivals, Arrived, Entropy, Flow, Key, NextHop, PathId, PathPolicy as _, Paths, Pins,
    Policy, Pool, Reason, Remote, Settings, SprayOptions, Spraying,
};
use pathmap::spraying::{Due, LOOK, Ledger, Reporter};
use spray::Random;
use spray::order::Tiers;
use spray::resequence::{Delivery, Limits, Packet, Resequencer};
use wire::{MacAddr, Vni};

/// Takes the first one if it is due.
fn pop_due<T>(queue: &mut VecDeque<T>, is_due: impl FnOnce(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(is_due) { queue.pop_front() } else { None }
}

/// Bytes of a packet on a circuit: the payload, the inner frame around it, and the outer headers.
const PACKET: u64 = 1024 + 58 + 50;
/// Packets that the host has on its way.
const WINDOW: u32 = 192;
const RATE: u64 = 25_000_000;
const DELAYS: [u64; 4] = [1, 2, 3, 5];
const QUEUE: usize = (128 << 10) / PACKET as usize;
const MARKS: usize = (8 << 10) / PACKET as usize;
/// The time of a step of the simulation, in microseconds.
const STEP: u64 = 20;
/// How long acknowledgements take, in microseconds.
const BACK: u64 = 2000;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn group() -> Paths {
    let hop = |number: u8| NextHop {
        ifindex: number.into(),
        gateway: IpAddr::V4(Ipv4Addr::new(192, 168, number, 1)),
        identity: number.into(),
        source_mac: MacAddr::default(),
        destination_mac: Some(MacAddr::default()),
        mtu: 9000,
        weight: 1,
        path: number.into(),
        by_default: false,
        impaired: false,
    };
    Paths::new(vec![hop(0), hop(1)])
}

/// A circuit: packets by PSN, whether they have a mark, and those on their way with their arrival.
struct Circuit {
    rate: u64,
    queue: VecDeque<(u32, bool)>,
    /// Bits that the circuit could have sent since its queue began.
    credit: u64,
    way: VecDeque<(u64, u32, bool)>,
    delay: u64,
    sent: u64,
}

impl Circuit {
    fn send(&mut self, psn: u32) {
        self.sent += 1;
        if self.queue.len() < QUEUE {
            self.queue.push_back((psn, self.queue.len() >= MARKS));
        }
    }

    /// Goes on to a time in microseconds.
    fn step(&mut self, now: u64) {
        self.credit += self.rate * STEP / 1_000_000;
        while self.credit >= PACKET * 8
            && let Some((psn, mark)) = self.queue.pop_front()
        {
            self.credit -= PACKET * 8;
            self.way.push_back((now + self.delay, psn, mark));
        }
        if self.queue.is_empty() {
            self.credit = 0;
        }
    }

    fn arrived(&mut self, now: u64) -> Option<(u32, bool)> {
        pop_due(&mut self.way, |(at, ..)| *at <= now).map(|(_, psn, mark)| (psn, mark))
    }
}

/// All ends.
struct Circuits {
    now: u64,
    start: Instant,
    group: Paths,
    entropy: Entropy,
    pins: Pins,
    circuits: [Circuit; 4],
    pool: Arc<Pool>,
    ledger: Ledger,
    arrivals: Arrivals,
    reporter: Reporter,
    reports: VecDeque<(u64, Vec<Arrived>)>,
    order: Resequencer<u8, u32, BuildHasherDefault<DefaultHasher>>,
    /// What the host acknowledged, and whether it is a NAK, with the time of arrival.
    answers: VecDeque<(u64, u32, bool)>,
    next: u32,
    acknowledged: u32,
    expected: u32,
    is_waiting: bool,
    naks: u32,
    count: u32,
    /// The delays that probes have measured, in microseconds.
    known: [u64; 4],
    window: u32,
    /// Of the sender and of the far worker.
    stalls: [Stalls; 2],
}

/// When something else has the processor.
#[derive(Default)]
struct Stalls {
    random: Option<Random>,
    /// The beginning and the end of one, in microseconds.
    one: [u64; 2],
}

impl Stalls {
    /// Every 20 ms on average, and as long at most.
    fn is_stalled(&mut self, now: u64) -> bool {
        if let Some(random) = self.random.as_mut().filter(|_| now >= self.one[1]) {
            let start = now + random.below(40_000);
            self.one = [start, start + random.below(40_000)];
        }
        (self.one[0]..self.one[1]).contains(&now)
    }
}

impl Circuits {
    fn new() -> Self {
        let spraying = Arc::new(Spraying::new(SprayOptions::default(), 7));
        let start = Instant::now();
        let path =
            |number: u16| PathId { hop: u64::from(number % 2), source_port: 50_000 + number };
        let tiers = Tiers::new(&[2, 2]).unwrap();
        let round_trip = (5000 + BACK) * 1000 + 4_000_000;
        let pool = Arc::new(Pool::new((0..4).map(path).collect(), tiers, round_trip).unwrap());
        let vnis = [Vni::try_from(10).unwrap()].into();
        let agreed = Agreed { pool: Arc::clone(&pool), vnis };
        spraying.set_pools([((LOCAL, FAR, 4789), agreed)].into());
        let pins = Pins::only_spraying(spraying, start);
        let settings = Settings { policy: Policy::Spray, ..Settings::default() };
        let circuit = |delay| Circuit {
            rate: RATE,
            queue: VecDeque::new(),
            credit: 0,
            way: VecDeque::new(),
            delay: delay * 1000,
            sent: 0,
        };
        Self {
            now: 0,
            start,
            group: group(),
            entropy: Entropy::new(settings).unwrap(),
            pins,
            circuits: DELAYS.map(circuit),
            ledger: Ledger::new(&pool, Some(&[])),
            pool,
            arrivals: Arrivals::new(8_000_000),
            reporter: Reporter::default(),
            reports: VecDeque::new(),
            order: Resequencer::new(Limits::default(), 8_000_000, BuildHasherDefault::default()),
            answers: VecDeque::new(),
            next: 0,
            acknowledged: 0,
            expected: 0,
            is_waiting: false,
            naks: 0,
            count: 0,
            known: DELAYS.map(|delay| delay * 1000 + BACK),
            window: WINDOW,
            stalls: Default::default(),
        }
    }

    /// Paths that are all alike and quick, between machines that often do something else.
    fn alike(seed: u64) -> Self {
        let mut own = Self::new();
        for (number, circuit) in own.circuits.iter_mut().enumerate() {
            (circuit.rate, circuit.delay) = (RATE * 40, 100);
            own.known[number] = 100 + BACK;
        }
        own.window = 32;
        own.stalls = [0, 1]
            .map(|of| Stalls { random: Some(Random::new(seed * 2 + of)), ..Stalls::default() });
        own
    }

    fn send(&mut self) {
        self.pins.begin(self.start + Duration::from_micros(self.now));
        let to = Remote {
            vni: Vni::try_from(10).unwrap(),
            local: LOCAL,
            address: FAR,
            destination_port: 4789,
            group: &self.group,
        };
        let queue_pair = wire::QueuePair::try_from(17).unwrap();
        let key = Key::QueuePair { source: LOCAL, destination: FAR, queue_pair };
        let flow = Flow { key, reason: Reason::Roce, hash: 5, roce_port: 0, is_sprayed: true };
        while self.next < self.acknowledged + self.window {
            let choice = self.entropy.choose(&flow, &to, &mut self.pins).unwrap();
            let number = usize::from(choice.source_port - 50_000);
            self.circuits[number].send(self.next);
            self.next += 1;
        }
    }

    /// The host gets a packet.
    fn deliver(
        psn: u32,
        now: u64,
        (expected, is_waiting, naks): (&mut u32, &mut bool, &mut u32),
        answers: &mut VecDeque<(u64, u32, bool)>,
    ) {
        if psn == *expected {
            *expected += 1;
            *is_waiting = false;
            if *expected % 16 == 0 {
                answers.push_back((now + BACK, *expected, false));
            }
        } else if psn > *expected && !*is_waiting {
            *is_waiting = true;
            *naks += 1;
            answers.push_back((now + BACK, *expected, true));
        }
    }

    fn receive(&mut self) {
        let Self { order, expected, is_waiting, naks, answers, now, .. } = self;
        let now = *now;
        let host = (expected, is_waiting, naks);
        let (expected, is_waiting, naks) = host;
        order.set_times(self.arrivals.timer(), self.arrivals.timer() / 2);
        order.expire(now * 1000, |_, psn| {
            Self::deliver(psn, now, (expected, is_waiting, naks), answers);
        });
        for (circuit, port) in self.circuits.iter_mut().zip(50_000..) {
            while let Some((psn, mark)) = circuit.arrived(now) {
                self.arrivals.count(Arrived::one(port, mark), 1082);
                let packet = Packet { psn, uses: Some(1) };
                order.receive(
                    now * 1000,
                    1,
                    packet,
                    || psn,
                    |delivery| {
                        let psn = if let Delivery::Waited(psn) = delivery { psn } else { psn };
                        Self::deliver(
                            psn,
                            now,
                            (&mut *expected, &mut *is_waiting, &mut *naks),
                            answers,
                        );
                    },
                );
            }
        }
    }

    fn feedback(&mut self) {
        let now = self.now;
        let time = Duration::from_micros(now);
        let arrived: Vec<Arrived> = self.arrivals.read().collect();
        if now.is_multiple_of(LOOK.as_micros() as u64)
            && let Some(due) = self.reporter.due(time, self.arrivals.bytes(), &arrived, 60)
        {
            // Every eighth one by any path.
            let any = due == Due::Regular && self.count.is_multiple_of(8);
            let number = if any { (now / 2000 % 4) as usize } else { 0 };
            self.count += 1;
            self.reports.push_back((now + self.circuits[number].delay, arrived));
        }
        if now.is_multiple_of(10_000) {
            for (known, circuit) in self.known.iter_mut().zip(&self.circuits) {
                let queue = circuit.queue.len() as u64 * PACKET * 8 * 1_000_000 / circuit.rate;
                let delay = queue + circuit.delay + BACK;
                *known = if delay > *known { *known + (delay - *known) / 16 } else { delay };
            }
        }
        if now.is_multiple_of(100_000) {
            let known = self.known.map(|micros| Some(Duration::from_micros(micros)));
            self.ledger.follow_delays(known);
            let spread = self.known.iter().max().unwrap() - self.known.iter().min().unwrap();
            self.arrivals.set_timer((spread * 2).clamp(8000, 50_000) * 1000);
        }
        // One that was overtaken says nothing.
        if let Some(newest) = self.reports.iter().rposition(|(at, _)| *at <= now)
            && let Some((_, report)) = self.reports.drain(..=newest).next_back()
        {
            let slowest = Duration::from_micros(*self.known.iter().max().unwrap());
            self.ledger.report(time, &self.pool, &report, slowest);
        }
        while let Some((_, psn, is_nak)) = pop_due(&mut self.answers, |(at, ..)| *at <= now) {
            self.acknowledged = self.acknowledged.max(psn);
            if is_nak {
                self.next = psn;
            }
            self.next = self.next.max(self.acknowledged);
        }
    }

    /// Runs for so many milliseconds. Returns the share of the circuits' rate that hosts used.
    fn run(&mut self, ms: u64) -> f64 {
        let (end, before) = (self.now + ms * 1000, self.expected);
        while self.now < end {
            let [near, far] = self.stalls.each_mut().map(|of| of.is_stalled(self.now));
            if !near {
                self.send();
            }
            self.circuits.iter_mut().for_each(|circuit| circuit.step(self.now));
            if !far {
                self.receive();
            }
            self.feedback();
            self.now += STEP;
        }
        let rate: u64 = self.circuits.iter().map(|circuit| circuit.rate).sum();
        let bits = u64::from(self.expected - before) * PACKET * 8;
        bits as f64 * 1000.0 / (rate * ms) as f64
    }
}

/// Hosts send more than the circuits carry. Then one of these has a quarter of its rate for three
/// seconds.
#[test]
fn a_circuit_that_becomes_slow_gets_what_it_carries_and_the_host_sees_no_gap() {
    const TURNS: u64 = 10;
    for (number, delay) in DELAYS.into_iter().enumerate() {
        let mut all = 0;
        for turn in 0..TURNS {
            let mut circuits = Circuits::new();
            let healthy = circuits.run(1000 + turn * 7);
            circuits.circuits[number].rate /= 4;
            let mut millisecond = || {
                let before = circuits.circuits[number].sent;
                let share = circuits.run(1);
                (share, circuits.circuits[number].sent - before)
            };
            let (shares, sent): (Vec<f64>, Vec<u64>) = (0..40).map(|_| millisecond()).unzip();
            // Its reports are on their way for its delay and that of the quickest circuit.
            let known = &sent[5 + delay as usize..25 + delay as usize];
            let carries = 20 * RATE / 4 / (PACKET * 8 * 1000);
            assert!(known.iter().sum::<u64>() <= carries, "after it was known: {sent:?}");
            let moves = 1 + sent[..20].iter().rposition(|sent| *sent > 0).unwrap() as u64;
            assert!(moves <= delay + 7, "until its queue is shorter: {sent:?}");
            all += moves;
            let first = (shares.iter().sum::<f64>() + circuits.run(960) * 960.0) / 1000.0;
            let second = circuits.run(2000);
            circuits.circuits[number].rate *= 4;
            let [returns, after] = [100, 400].map(|ms| circuits.run(ms));
            let shares = [healthy, first, second, returns, after];
            println!("circuit {number}: {shares:.3?}, after {moves} ms, {} NAKs", circuits.naks);
            assert!(shares.iter().all(|share| *share > 0.9) && second > 0.98 && after > 0.98);
            assert_eq!(circuits.naks, 0);
        }
        let mean = all as f64 / TURNS as f64;
        println!("circuit {number}: after {mean:.1} ms");
        assert!(mean <= delay as f64 + 3.0, "{mean}");
    }
}

/// Paths that are alike have the same number of packets, also where machines stop now and then, so that
/// nobody answers for a while.
#[test]
fn machines_that_stall_do_not_tell_paths_apart() {
    for seed in 0..16 {
        let mut circuits = Circuits::alike(seed);
        circuits.run(1000);
        let before = circuits.circuits.each_ref().map(|circuit| circuit.sent);
        circuits.run(3000);
        let sent: [u64; 4] = array::from_fn(|at| circuits.circuits[at].sent - before[at]);
        let mmr = *sent.iter().max().unwrap() as f64 * 4.0 / sent.iter().sum::<u64>() as f64;
        println!("{sent:?}, MMR {mmr:.3}, {} NAKs", circuits.naks);
        assert!(mmr <= 1.02 && circuits.naks == 0, "{sent:?}");
    }
}

/// A packet is lost on each circuit while all have queues. The host sends all from it on again, once.
#[test]
fn a_lost_packet_costs_one_nak() {
    for number in 0..4 {
        for turn in 0..4 {
            let mut circuits = Circuits::new();
            circuits.run(500 + turn * 7);
            circuits.circuits[number].queue.pop_front();
            let shares = [100, 100, 800].map(|ms| circuits.run(ms));
            println!("circuit {number}: {shares:.3?}, {} NAKs", circuits.naks);
            assert_eq!(circuits.naks, 1);
            assert!(shares[0] > 0.6 && shares[1..].iter().all(|share| *share > 0.98));
        }
    }
}
