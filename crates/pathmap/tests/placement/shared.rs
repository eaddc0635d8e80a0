//! Leaves whose paths share links, and that hear of each other as often as probes ask.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pathmap::placer::{Found, Options, Target};
use pathmap::{Random, Report, balance};

use super::{Leaf, mesh, tiers};

const STEP: Duration = Duration::from_millis(10);
/// Steps between two ticks of a leaf.
const TICK: u32 = 5;
/// How often a VTEP is asked with queue pairs in use, or while balance is wanted.
const OFTEN: Duration = Duration::from_millis(50);
/// How often any other VTEP is asked.
const RARELY: Duration = Duration::from_secs(1);

/// What came of leaves that share links.
#[derive(Debug)]
struct Shared {
    /// Maximum over mean of the shared tier, as a multiple of the integer floor: after two seconds,
    /// and at the end.
    ratios: [f64; 2],
    /// Moves within two seconds, within five, and later.
    moves: [u64; 3],
    /// The most reports in a second from one leaf to another, on average.
    reports: f64,
}

/// The leaves, and when each asks which other one again.
struct Fabric {
    leaves: Vec<Leaf>,
    eager: Vec<bool>,
    asks: Vec<Vec<Duration>>,
    /// Which leaves exchange traffic.
    talks: Vec<Vec<bool>>,
    /// Reports on their way: the receiver, the sender and what it tells.
    reports: Vec<(usize, Target, Report)>,
    asked: Vec<Vec<u32>>,
    parts: Vec<usize>,
    /// One of so many reports is lost.
    lose: usize,
    random: Random,
    now: Duration,
}

impl Fabric {
    /// Leaves in paths that share the middle tier. A part of them exchange traffic of their
    /// own, which uses other links.
    fn new(number: u32, seed: u64, lose: usize) -> Self {
        let mut random = Random::new(seed);
        let leaf = |n| Leaf::new(n, seed * 1000 + u64::from(n), Options::default());
        let number = number as usize;
        let mut talks = vec![vec![false; number]; number];
        for (a, b) in (0..number).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let talk = random.index(4) == 0;
            (talks[a][b], talks[b][a]) = (talk, talk);
        }
        let now = Duration::from_secs(1);
        let mut phase = |talks: bool| {
            let period = if talks { OFTEN } else { RARELY };
            now + period * random.index(1000) as u32 / 1000
        };
        let asks = talks.iter().map(|of| of.iter().map(|talks| phase(*talks)).collect()).collect();
        Self {
            leaves: (0..number as u32).map(leaf).collect(),
            eager: vec![false; number],
            asks,
            talks,
            reports: Vec::new(),
            asked: vec![vec![0; number]; number],
            parts: vec![0; number],
            lose,
            random,
            now,
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        for (to, from, report) in std::mem::take(&mut self.reports) {
            let leaf = &mut self.leaves[to];
            let from = Target { local: leaf.target.local, address: from.local, ..from };
            leaf.placer.report(from, &report, now);
        }
        let turn = (now.as_millis() / STEP.as_millis()) as usize % TICK as usize;
        for to in 0..self.leaves.len() {
            // Leaves did not start at the same time.
            if to * 7 % TICK as usize == turn {
                self.leaves[to].tick(now);
            }
            let eager = self.leaves[to].placer.wants_reports(now);
            let begins = eager && !self.eager[to];
            self.eager[to] = eager;
            for from in (0..self.leaves.len()).filter(|from| *from != to) {
                if begins {
                    self.asks[to][from] = now.min(self.asks[to][from]);
                }
                if self.asks[to][from] > now {
                    continue;
                }
                let often = eager || self.talks[to][from];
                self.asks[to][from] = now + if often { OFTEN } else { RARELY };
                self.asked[to][from] += 1;
                if self.random.index(self.lose) == 0 {
                    continue;
                }
                self.parts[from] += 1;
                let leaf = &mut self.leaves[from];
                let report = leaf.placer.to_report(leaf.target, self.parts[from], now);
                self.reports.push((to, leaf.target, report));
            }
        }
    }

    fn moved(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.moved).sum()
    }
}

/// Leaves with so many queue pairs each start at about the same time. It ends after ten seconds.
fn share(leaves: u32, each: u32, seed: u64, lose: usize) -> Shared {
    run(Fabric::new(leaves, seed, lose), each)
}

fn run(mut fabric: Fabric, each: u32) -> Shared {
    let leaves = fabric.leaves.len() as u32;
    let all: Vec<Vec<Found>> = (0..leaves).map(|leaf| mesh(leaf, 4, 4)).collect();
    let now = fabric.now;
    for (leaf, paths) in fabric.leaves.iter_mut().zip(&all) {
        leaf.know(paths, &BTreeSet::new());
        (1..=each).for_each(|n| _ = leaf.send(n, 1000, now));
    }
    let flows = (leaves * each) as usize;
    let ratio = |fabric: &Fabric| {
        let mut loads = BTreeMap::new();
        fabric.leaves.iter().for_each(|leaf| leaf.add_loads(&mut loads));
        let middle = &tiers(&all[0], &loads)[1];
        balance::mmr(middle) / balance::floor(flows, middle.len())
    };
    let (mut ratios, mut moves) = ([0.0; 2], [0; 3]);
    for step in 1..=1000 {
        let before = fabric.moved();
        fabric.step();
        let phase = if step <= 200 { 0 } else { usize::from(step > 500) + 1 };
        moves[phase] += fabric.moved() - before;
        if step == 200 {
            ratios[0] = ratio(&fabric);
        }
    }
    ratios[1] = ratio(&fabric);
    let rarely = |a: usize, b: usize| !fabric.talks[a][b];
    let asked = fabric.asked.iter().enumerate().flat_map(|(a, of)| {
        of.iter().enumerate().filter(move |(b, _)| rarely(a, *b)).map(|(_, asked)| *asked)
    });
    let reports = f64::from(asked.max().unwrap_or(0)) / 10.0;
    Shared { ratios, moves, reports }
}

#[test]
fn four_pairs_that_share_a_tier_are_at_the_floor_within_two_seconds_and_then_rest() {
    for each in [3, 4, 5, 8, 9, 12, 16] {
        for seed in 0..10 {
            let shared = share(4, each, seed, usize::MAX);
            assert_eq!(shared.ratios[0], 1.0, "{each} each, seed {seed}: {shared:?}");
            assert_eq!(shared.moves[1..], [0, 0], "{each} each, seed {seed}: {shared:?}");
            // Each answer with 16 loads has less than 400 bytes.
            assert!(shared.reports <= 3.0, "{each} each, seed {seed}: {shared:?}");
        }
    }
}

/// Measured rates vary, and with them what each leaf would gain by a move.
#[test]
fn measuring_errors_do_not_keep_leaves_from_taking_turns() {
    for each in [4, 8] {
        for seed in 0..10 {
            let mut fabric = Fabric::new(4, seed, usize::MAX);
            for (leaf, number) in fabric.leaves.iter_mut().zip(1..) {
                leaf.noise = Some(Random::new(seed * 1000 + number));
            }
            let shared = run(fabric, each);
            assert_eq!(shared.ratios, [1.0, 1.0], "{each} each, seed {seed}: {shared:?}");
            assert_eq!(shared.moves[1..], [0, 0], "{each} each, seed {seed}: {shared:?}");
        }
    }
}

/// Reports that are lost make leaves move at the same time. Later moves make up for that.
#[test]
fn leaves_come_to_the_floor_although_reports_are_lost() {
    for seed in 0..10 {
        let shared = share(4, 8, seed, 5);
        assert_eq!((shared.ratios[1], shared.moves[2]), (1.0, 0), "seed {seed}: {shared:?}");
    }
}

#[test]
fn sixty_four_leaves_that_share_a_tier_come_to_rest() {
    for (each, seed) in [(4, 1), (4, 2), (9, 3)] {
        let shared = share(64, each, seed, usize::MAX);
        assert_eq!((shared.ratios[1], shared.moves[2]), (1.0, 0), "{each} each: {shared:?}");
    }
}
