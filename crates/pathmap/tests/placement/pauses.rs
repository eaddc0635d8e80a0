//! Queue pairs that end, that pause, and that return.

use std::collections::BTreeSet;
use std::time::Duration;

use pathmap::placer::Options;
use pathmap::{Random, balance};

use super::{Leaf, TICK, id, mesh, tiers};

/// Bursts of queue pairs that end, as in an experiment: every burst has other numbers, and the rates
/// of its queue pairs are measured while some of them have already ended.
#[test]
fn every_burst_is_at_the_floor_although_queue_pairs_of_earlier_ones_are_remembered() {
    for number in [16, 32] {
        for seed in 0..3 {
            let paths = mesh(1, 16, 1);
            let mut leaf = Leaf::new(1, seed, Options::default());
            leaf.know(&paths, &BTreeSet::new());
            let (mut now, mut random) = (Duration::from_secs(1), Random::new(seed));
            for burst in 0..15 {
                leaf.rates.clear();
                let ids = burst * 100 + 1..=burst * 100 + number;
                ids.for_each(|n| _ = leaf.send(n, 1000, now));
                let loads = leaf.loads();
                let mmr = balance::mmr(&tiers(&paths, &loads)[0]);
                assert_eq!(mmr, 1.0, "{number}, seed {seed}, burst {burst}: {loads:?}");
                for _ in 0..6 {
                    leaf.rates.values_mut().for_each(|r| *r = 700 + random.index(600) as u64);
                    now += TICK;
                    leaf.tick(now);
                }
                let rates = std::mem::take(&mut leaf.rates);
                for _ in 0..random.index(20) {
                    now += TICK;
                    leaf.tick(now);
                }
                leaf.rates = rates;
            }
        }
    }
}

/// Queue pairs that pause between bursts, as training does while it computes: each pause is longer
/// than the time after which a queue pair hardly counts, but they come back.
#[test]
fn queue_pairs_that_come_back_from_pauses_do_not_move() {
    for seed in 0..10 {
        let mut leaf = Leaf::new(1, seed, Options::default());
        leaf.know(&mesh(1, 16, 1), &BTreeSet::new());
        let (mut now, mut random) = (Duration::from_secs(1), Random::new(seed));
        (1..=32).for_each(|n| _ = leaf.send(n, 1000, now));
        for burst in 0..10 {
            for _ in 0..20 {
                now += TICK;
                leaf.tick(now);
            }
            if burst == 2 {
                leaf.moved = 0;
            }
            // They pause, and come back one after the other.
            let mut rates = std::mem::take(&mut leaf.rates);
            for _ in 0..60 {
                now += TICK;
                leaf.tick(now);
            }
            while !rates.is_empty() {
                let numbers: Vec<u32> = rates.keys().copied().collect();
                let number = numbers[random.index(numbers.len())];
                leaf.rates.extend(rates.remove_entry(&number));
                if rates.len().is_multiple_of(4) {
                    now += TICK;
                    leaf.tick(now);
                }
            }
        }
        assert_eq!(leaf.moved, 0, "seed {seed}");
    }
}

/// Queue pairs that were idle return together with new ones, as in runs with more and more of them.
#[test]
fn queue_pairs_that_were_idle_and_new_ones_are_at_the_floor_together() {
    for (uplinks, arrivals) in [(2, 2), (4, 2), (4, 4)] {
        let paths = mesh(1, uplinks, arrivals);
        for seed in 0..10 {
            let mut leaf = Leaf::new(1, seed, Options::default());
            leaf.know(&paths, &BTreeSet::new());
            let mut now = Duration::from_secs(1);
            for number in [8, 16, 32, 64] {
                leaf.tick(now);
                (1..=number).for_each(|n| _ = leaf.send(n, 1000, now));
                for loads in tiers(&paths, &leaf.loads()) {
                    let floor = balance::floor(number as usize, loads.len());
                    assert_eq!(balance::mmr(&loads), floor, "seed {seed}, {number}: {loads:?}");
                }
                for _ in 0..20 {
                    now += TICK;
                    leaf.tick(now);
                }
                leaf.rates.clear();
                for _ in 0..30 {
                    now += TICK;
                    leaf.tick(now);
                }
            }
        }
    }
}

/// Half of the queue pairs of a job send again for another job. The one before had returned after a
/// long time, which is no pause from which it is expected to come back.
#[test]
fn a_job_that_uses_some_queue_pairs_of_another_one_is_at_the_floor() {
    let paths = mesh(1, 16, 1);
    for seed in 0..5 {
        let mut leaf = Leaf::new(1, seed, Options::default());
        leaf.know(&paths, &BTreeSet::new());
        let mut now = Duration::from_secs(1);
        let mut pass = |leaf: &mut Leaf, ticks| {
            for _ in 0..ticks {
                now += TICK;
                leaf.tick(now);
            }
            now
        };
        for pause in [400, 50] {
            let now = pass(&mut leaf, 1);
            (1..=32).for_each(|n| _ = leaf.send(n, 1000, now));
            pass(&mut leaf, 20);
            leaf.rates.clear();
            pass(&mut leaf, pause);
        }
        let now = pass(&mut leaf, 1);
        let hop = |n: &u32| leaf.placer.peek(&id(leaf.target, *n)).unwrap().path.hop;
        let half: Vec<u32> = (1..=32).filter(|n| hop(n) < 8).collect();
        half.iter().for_each(|n| _ = leaf.send(*n, 1000, now));
        let mmr = balance::mmr(&tiers(&paths, &leaf.loads())[0]);
        assert_eq!(mmr, balance::floor(half.len(), 16), "seed {seed}: {half:?}");
    }
}

/// Programs forward those queue pairs that are not idle. One that wakes on its own path has to be told
/// of, too.
#[test]
fn a_queue_pair_that_wakes_changes_the_revision() {
    let mut leaf = Leaf::new(1, 1, Options::default());
    leaf.know(&mesh(1, 1, 1), &BTreeSet::new());
    let mut now = Duration::from_secs(1);
    let before = leaf.send(1, 1000, now);
    leaf.rates.clear();
    for _ in 0..30 {
        now += TICK;
        leaf.tick(now);
    }
    let is_settled = |leaf: &Leaf| leaf.settled(now) == 1;
    assert!(!is_settled(&leaf));
    let revision = leaf.placer.revision();
    assert_eq!(leaf.send(1, 1000, now), before);
    assert!(is_settled(&leaf));
    assert_ne!(leaf.placer.revision(), revision);
}
