//! Two VTEPs watch their paths to each other with BFD, in simulated time.
#![cfg(test)]

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use pathmap::bfd::packet::Arrived;
use pathmap::bfd::watch::{By, MOST_PASSIVE, Transmit};
use pathmap::bfd::{Control, Timers, Watch};
use pathmap::placer::Target;
use pathmap::{Pair, Random};

const INTERVAL: Duration = Duration::from_millis(10);
const STEP: Duration = Duration::from_micros(500);
const ENDS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn target(from: usize) -> Target {
    Target { local: ENDS[from], address: ENDS[1 - from], port: 4789, by_kernel: false }
}

fn pair(number: u16) -> Pair {
    Pair { hop: u64::from(number % 2), port: 50_000 + number }
}

fn pairs(number: u16) -> BTreeSet<Pair> {
    (0..number).map(pair).collect()
}

/// Two VTEPs and the fabric between them.
struct Fabric {
    ends: [Watch; 2],
    now: Duration,
    /// The pairs of each end that lose its packets.
    dead: [BTreeSet<Pair>; 2],
    /// Ends that do nothing for now, while packets wait for them.
    paused: [bool; 2],
    waiting: [VecDeque<Arrived>; 2],
    found: Vec<(usize, Pair, Duration)>,
    sent: u64,
}

impl Fabric {
    fn new(watched: u16, seed: u64) -> Self {
        let timers = Timers { interval: INTERVAL, multiplier: 3 };
        let end = |number| Watch::new(timers, 4000, Random::new(seed * 2 + number));
        let mut ends = [end(0), end(1)];
        for (number, end) in ends.iter_mut().enumerate() {
            end.set_watched(target(number), &pairs(watched), Duration::ZERO);
        }
        Self {
            ends,
            now: Duration::ZERO,
            dead: Default::default(),
            paused: [false; 2],
            waiting: Default::default(),
            found: Vec::new(),
            sent: 0,
        }
    }

    fn send(&mut self, from: usize, transmit: &Transmit) {
        self.sent += 1;
        // An answer takes all paths in turn, also those that are dead.
        let by = match transmit.by {
            By::Pair(pair) => pair,
            By::Turn(number) => pair(number as u16 % 8),
        };
        if self.dead[from].contains(&by) {
            return;
        }
        let control = Control::parse(&transmit.control.bytes()).unwrap();
        let Transmit { source, target, .. } = *transmit;
        let ports = (by.port, target.port);
        let arrived = Arrived { ends: (target.local, target.address), ports, source, control };
        self.waiting[1 - from].push_back(arrived);
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += STEP;
            for end in (0..2).filter(|end| !self.paused[*end]).collect::<Vec<_>>() {
                while let Some(arrived) = self.waiting[end].pop_front() {
                    self.ends[end].receive(&arrived, self.now);
                }
                for transmit in self.ends[end].tick(self.now) {
                    self.send(end, &transmit);
                }
                for (_, pair) in self.ends[end].take_dead() {
                    self.found.push((end, pair, self.now));
                }
            }
        }
    }

    fn up(&self, end: usize) -> BTreeSet<Pair> {
        self.ends[end].up(target(end)).collect()
    }
}

#[test]
fn a_dead_pair_is_found_within_six_intervals_and_no_other() {
    for seed in 0..20 {
        let mut fabric = Fabric::new(8, seed);
        fabric.run(ms(3000));
        assert_eq!([fabric.up(0), fabric.up(1)], [pairs(8), pairs(8)]);
        let died = fabric.now;
        // In both directions.
        fabric.dead = [BTreeSet::from([pair(3)]), BTreeSet::from([pair(5)])];
        fabric.run(ms(200));
        fabric.found.retain(|(end, ..)| *end == 0);
        let [(end, found, at)] = fabric.found[..] else { panic!("{:?}", fabric.found) };
        assert_eq!((end, found), (0, pair(3)));
        assert!(at - died <= INTERVAL * 6, "{:?}", at - died);
        fabric.run(ms(3000));
        assert_eq!((fabric.found.len(), fabric.up(0).len(), fabric.up(1).len()), (1, 7, 7));
        // It returns. Until then, both ends have forgotten the other end's number of the session.
        fabric.dead = Default::default();
        fabric.run(ms(8000));
        assert_eq!((fabric.found.len(), fabric.up(0).len()), (1, 8));
    }
}

#[test]
fn an_end_that_is_silent_or_pauses_says_nothing_about_paths() {
    for seed in 0..20 {
        for pause in [25, 35, 60, 100, 1500] {
            let mut fabric = Fabric::new(8, seed);
            fabric.run(ms(3000));
            fabric.paused[1] = true;
            fabric.run(ms(pause));
            fabric.paused[1] = false;
            if seed % 2 == 0 && pause >= 60 {
                // What arrived meanwhile had no room. All sessions have expired.
                fabric.waiting[1].clear();
            }
            fabric.run(ms(4000));
            assert_eq!((fabric.found.len(), fabric.up(0).len()), (0, 8), "{seed}, {pause} ms");
        }
        let mut fabric = Fabric::new(8, seed);
        fabric.run(ms(3000));
        fabric.dead = [pairs(8), pairs(8)];
        fabric.run(ms(4000));
        assert_eq!((fabric.found.len(), fabric.up(0).len()), (0, 0));
    }
}

#[test]
fn a_single_session_is_not_enough_to_call_its_path_dead() {
    let mut fabric = Fabric::new(1, 7);
    fabric.run(ms(3000));
    fabric.dead[0].insert(pair(0));
    fabric.run(ms(1000));
    assert!(fabric.found.is_empty() && fabric.up(0).is_empty());
}

#[test]
fn the_other_end_forgets_sessions_that_are_not_used_any_more() {
    let mut fabric = Fabric::new(8, 3);
    fabric.run(ms(3000));
    assert_eq!(fabric.ends[1].answered(), 8);
    let now = fabric.now;
    fabric.ends[0].set_watched(target(0), &pairs(2), now);
    // They are kept for two detection times of a session that is down.
    fabric.run(ms(7000));
    assert_eq!((fabric.ends[1].answered(), fabric.up(0)), (2, pairs(2)));
    fabric.ends[1].retain(|_| false);
    assert_eq!((fabric.ends[1].answered(), fabric.ends[1].watched(target(1))), (0, 0));
}

#[test]
fn eight_sessions_cost_the_packets_that_were_agreed_on() {
    let mut fabric = Fabric::new(8, 5);
    fabric.run(ms(3000));
    let before = fabric.sent;
    fabric.run(ms(1000));
    // Two ends have eight sessions each, both ends of a session send every 7.5 to 10 ms.
    let sent = fabric.sent - before;
    assert!((3200..=4300).contains(&sent), "{sent}");
}

#[test]
fn a_stranger_changes_no_session_and_a_flood_fills_no_memory() {
    let mut fabric = Fabric::new(4, 9);
    fabric.run(ms(3000));
    let mut example = Fabric::new(1, 10).ends[0].tick(Duration::ZERO)[0].control;
    let refused = fabric.ends[1].counts.refused;
    let arrived = |source: u16, port, address, control| Arrived {
        ends: (address, ENDS[1]),
        ports: (port, 4789),
        source,
        control,
    };
    // Guessed discriminators, and one VTEP's sessions named by another one.
    let mut random = Random::new(1);
    for _ in 0..10_000 {
        example.your = random.next() as u32 | 1;
        fabric.ends[1].receive(&arrived(50_000, 50_000, ENDS[0], example), fabric.now);
    }
    assert_eq!(fabric.ends[1].counts.refused - refused, 10_000);
    example.your = 0;
    for port in 0..2000 {
        let now = fabric.now;
        fabric.ends[1].receive(&arrived(49_152 + port, 1, ENDS[0], example), now);
    }
    assert_eq!(fabric.ends[1].answered(), MOST_PASSIVE);
    // Each is answered, at the rate that was set and not faster.
    let before = fabric.sent;
    fabric.run(ms(1000));
    assert!(fabric.sent - before < 4000 * 2 + 1000, "{}", fabric.sent - before);
    assert_eq!(fabric.up(0).len(), 4);
    for last in 0..3000 {
        let address = Ipv4Addr::from_bits(0x0b00_0000 + last).into();
        fabric.ends[1].receive(&arrived(50_000, 1, address, example), fabric.now);
    }
    assert!(fabric.ends[1].answered() <= MOST_PASSIVE + 1024);
}
