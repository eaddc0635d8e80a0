//! Many queue pairs, of a host that scans them, and steps between which others use the placement.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use path::{CounterId, Key, PathId};
use pathmap::Random;
use pathmap::placer::{FlowId, Found, Options, Reading};
use wire::QueuePair;

use super::{Leaf, mesh};

/// A queue pair of a host.
fn of(leaf: &Leaf, host: u8, number: u32) -> FlowId {
    let [source, destination] = [host, 250].map(|low| IpAddr::from([192, 0, 2, low]));
    let queue_pair = QueuePair::try_from(number).unwrap();
    let key = Key::QueuePair { source, destination, queue_pair };
    FlowId { vni: 10, key, target: leaf.target }
}

const HASHED: PathId = PathId { hop: 0, source_port: 1 };

#[test]
fn a_host_that_scans_queue_pairs_leaves_room_for_those_of_others() {
    let mut leaf = Leaf::new(1, 1, Options::default());
    leaf.know(&mesh(1, 4, 4), &BTreeSet::new());
    let (mut scanned, mut others) = (0, 0);
    for millisecond in 0..4000 {
        let now = Duration::from_millis(1000 + millisecond);
        // Each sends one frame.
        let read = |_: CounterId| Reading { last: Some(now), ..Reading::default() };
        for _ in 0..25 {
            scanned += 1;
            let id = of(&leaf, 1, scanned % 65_536);
            leaf.placer.place(id, 0, HASHED, read, now);
        }
        let begins = if millisecond == 3500 { 1024 } else { u32::from(millisecond % 20 == 0) };
        for _ in 0..begins {
            others += 1;
            let id = of(&leaf, 2, others);
            assert_ne!(leaf.placer.place(id, 0, HASHED, read, now).unwrap().path, HASHED);
        }
        if millisecond % 10 == 0 {
            leaf.placer.tick(|_| Reading { last: Some(now), ..Reading::default() }, now);
        }
    }
    let number = |host: u8| {
        let source = IpAddr::from([192, 0, 2, host]);
        let is_of = |id: &FlowId| matches!(id.key, Key::QueuePair { source: s, .. } if s == source);
        leaf.placer.flows().filter(|(id, _)| is_of(id)).count()
    };
    assert!((1024..=4096).contains(&number(1)), "{}", number(1));
    assert_eq!(number(2), others as usize);
}

/// The sums that are shown are those over all queue pairs.
fn check(leaf: &Leaf, what: &str) {
    let views = leaf.placer.paths(leaf.target);
    let mut on = BTreeMap::<PathId, (usize, u64)>::new();
    for (_, flow) in leaf.placer.flows() {
        let of = on.entry(flow.path).or_default();
        *of = (of.0 + 1, of.1 + flow.rate_now);
    }
    for view in views {
        let of = |path| on.get(path).copied().unwrap_or_default();
        let flows: usize = view.paths.iter().map(|path| of(path).0).sum();
        let rate: u64 = view.paths.iter().map(|path| of(path).1).sum();
        assert_eq!((view.flows, view.kilobytes), (flows, rate), "{what}: {:?}", view.paths);
    }
    let all: u64 = leaf.placer.same_links().iter().sum();
    assert_eq!(all, leaf.placer.flows().count() as u64, "{what}");
}

/// Queue pairs begin, pause, end and move in any order, also between the steps of a tick, and paths
/// come and go.
#[test]
fn sums_stay_right_whatever_happens_between_steps() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut leaf = Leaf::new(1, seed, Options::default());
        let paths = mesh(1, 4, 4);
        let mut now = Duration::from_secs(1);
        for round in 0..300 {
            let what = format!("seed {seed}, round {round}");
            let number = 1 + random.index(300) as u32;
            match random.index(8) {
                0 => {
                    let is_known = |_: &Found| random.index(4) > 0;
                    let (found, lost): (Vec<Found>, Vec<Found>) =
                        paths.iter().cloned().partition(is_known);
                    leaf.know(&found, &lost.iter().map(|path| path.path).collect());
                    let on_lost = |flow: &pathmap::placer::Flow| {
                        lost.iter().any(|path| path.path == flow.path)
                    };
                    let left = leaf.placer.flows().filter(|(_, flow)| on_lost(flow)).count();
                    assert!(found.is_empty() || left == 0, "{what}: {left} on dead paths");
                }
                1 if round % 40 == 0 => leaf.placer.remove(leaf.target),
                1 => leaf.placer.drop_flow(&super::id(leaf.target, number)),
                2 => {
                    leaf.rates.remove(&number);
                }
                3 => _ = leaf.send(number, 1 + random.index(2000) as u64, now),
                _ => {
                    now += super::TICK * (1 + random.index(3) as u32);
                    let mut tick = leaf.placer.begin_tick(now);
                    let seen = now.saturating_sub(Duration::from_millis(random.index(1500) as u64));
                    let read = |counter: CounterId| Reading {
                        bytes: now.as_millis() as u64 * u64::from(counter.get()),
                        frames: now.as_millis() as u64,
                        last: Some(seen),
                        ..Reading::default()
                    };
                    loop {
                        tick.compute();
                        if !leaf.placer.step(&mut tick, &read) {
                            break;
                        }
                        let number = 1 + random.index(300) as u32;
                        leaf.send(number, 1000, now);
                        leaf.placer.drop_flow(&super::id(leaf.target, number / 2));
                        check(&leaf, &what);
                    }
                }
            }
            while leaf.placer.clean() {}
            check(&leaf, &what);
        }
        leaf.placer.remove(leaf.target);
        while leaf.placer.clean() {}
        assert!(leaf.placer.is_empty() && !leaf.placer.awaits_gaps());
        let links = paths.iter().flat_map(|path| &path.links);
        assert!(links.into_iter().all(|link| leaf.placer.load(*link).0 == 0), "seed {seed}");
        assert!(leaf.placer.used(leaf.target).is_empty());
    }
}
