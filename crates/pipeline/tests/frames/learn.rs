//! Which source addresses are reported to control.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::common::{HOST, LEAF_1, LEAF_2, Leaf, NETDEV, Owned, VNI, Worker, hop};
use pipeline::DropReason;
use pipeline::learn::{AGAIN, BURST, PER_MILLISECOND};
use proptest::prelude::*;
use tables::{Learned, Learning};
use test_frames::{Ipv4, tunnelled};
use wire::MacAddr;

const IFINDEX: u32 = 11;
const AGEING: Duration = Duration::from_secs(4);
const LEAF_3: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 99);

fn mac(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 7, a, b, c, d]
}

/// A frame with source address `source` from `vtep` to leaf 2.
fn from(vtep: Ipv4Addr, source: [u8; 6]) -> Owned {
    let inner = [&HOST[..], &source, &[0x88, 0xb5], &[7; 46]].concat();
    let vteps = (vtep.octets(), LEAF_2.octets());
    let frame = tunnelled(([1; 6], [2; 6]), vteps, 50_000, VNI, &inner, Ipv4::default());
    Owned::plain(frame)
}

/// Leaf 2 with learning. It knows leaves 1 and 3.
fn learner() -> Leaf {
    let learning = Learning { ifindex: IFINDEX, ageing: Some(AGEING), fixed: Default::default() };
    Leaf { learning: Some(learning), fdb: Vec::new(), ..Leaf::two() }
}

fn learned(vtep: Ipv4Addr, source: [u8; 6]) -> Learned {
    Learned { ifindex: IFINDEX, mac: MacAddr(source), vtep: vtep.into() }
}

/// A worker, its tables and the current time.
struct LearningWorker {
    worker: Worker,
    leaf: Leaf,
    now: Instant,
}

impl LearningWorker {
    fn new(leaf: Leaf) -> Self {
        Self { worker: Worker::new(), leaf, now: Instant::now() }
    }

    fn learn(&mut self, frames: &[Owned]) -> Vec<Learned> {
        let sent = self.worker.decapsulate_at(frames, &self.leaf.snapshot(), self.now);
        self.worker.assert_balance(sent.len());
        for transmit in &self.worker.out {
            self.worker.pipeline.account_frame(transmit, Ok(()));
        }
        self.worker.pipeline.learned().collect()
    }

    /// Publishes tables with these addresses behind the VTEPs of these indices.
    fn publish(&mut self, fdb: &[([u8; 6], u32)]) {
        self.leaf.fdb = fdb.to_vec();
        self.leaf.generation += 1;
    }

    fn limited(&self) -> u64 {
        self.worker.pipeline.counters().learn_limited.get()
    }
}

#[test]
fn a_new_address_is_reported_once_and_again_if_that_was_lost() {
    let mut worker = LearningWorker::new(learner());
    let (one, two) = (from(LEAF_1, mac(1)), from(LEAF_3, mac(2)));
    let frames = [one.clone(), one.clone(), two.clone(), one.clone()];
    assert_eq!(worker.learn(&frames), [learned(LEAF_1, mac(1)), learned(LEAF_3, mac(2))]);
    worker.now += AGAIN - Duration::from_millis(1);
    assert_eq!(worker.learn(&frames), []);
    worker.publish(&[(mac(1), 0)]);
    worker.now += Duration::from_millis(1);
    assert_eq!(worker.learn(&frames), [learned(LEAF_3, mac(2))], "the first one arrived");
    // Also from a VTEP that is in no table.
    assert_eq!(worker.learn(&[from(STRANGER, mac(3))]), [learned(STRANGER, mac(3))]);
    // An address that was removed from the tables is reported as new immediately.
    worker.publish(&[]);
    assert_eq!(worker.learn(&[one]), [learned(LEAF_1, mac(1))]);
}

#[test]
fn who_sends_is_reported_a_few_times_in_an_ageing_time() {
    let mut worker = LearningWorker::new(learner());
    worker.publish(&[(mac(1), 0)]);
    let frame = [from(LEAF_1, mac(1))];
    // The age of the kernel's entry is unknown.
    assert_eq!(worker.learn(&frame), [learned(LEAF_1, mac(1))]);
    let mut reports = 0;
    for _ in 0..AGEING.as_millis() {
        worker.now += Duration::from_millis(1);
        // Other changes of the tables have no influence.
        worker.leaf.generation += 1;
        reports += worker.learn(&frame).len();
    }
    assert_eq!(reports, Learning::REFRESHES as usize);
    // A shorter time: the kernel's entry may be older.
    worker.now += AGEING / 5;
    assert_eq!(worker.learn(&frame), []);
    worker.leaf.learning.as_mut().unwrap().ageing = Some(AGEING / 100);
    worker.leaf.generation += 1;
    assert_eq!(worker.learn(&frame), [learned(LEAF_1, mac(1))]);
    worker.leaf.learning.as_mut().unwrap().ageing = None;
    worker.leaf.generation += 1;
    for _ in 0..10 {
        worker.now += AGEING;
        assert_eq!(worker.learn(&frame), [], "nothing ages");
    }
}

#[test]
fn a_move_is_reported_at_once() {
    let mut worker = LearningWorker::new(learner());
    worker.publish(&[(mac(1), 0)]);
    worker.learn(&[from(LEAF_1, mac(1))]);
    assert_eq!(worker.learn(&[from(LEAF_3, mac(1))]), [learned(LEAF_3, mac(1))]);
    // An address that two VTEPs claim is not reported for every frame.
    let both = [from(LEAF_1, mac(1)), from(LEAF_3, mac(1))];
    let mut reports = 0;
    for _ in 0..1000 {
        worker.now += Duration::from_millis(1);
        reports += worker.learn(&both).len();
    }
    assert!((10..=20).contains(&reports), "{reports} in a second");
}

#[test]
fn who_is_no_station_is_dropped_and_not_reported() {
    let mut worker = LearningWorker::new(learner());
    let sources = [[0; 6], [1, 0, 0x5e, 0, 0, 1], [0xff; 6], NETDEV];
    assert_eq!(worker.learn(&sources.map(|source| from(LEAF_1, source))), []);
    assert_eq!(worker.worker.dropped(DropReason::InvalidSource), 4);
    worker.leaf.learning = None;
    worker.learn(&sources.map(|source| from(LEAF_1, source)));
    assert_eq!(
        worker.worker.dropped(DropReason::InvalidSource),
        8,
        "whether the netdev learns or not"
    );
}

#[test]
fn what_is_static_is_heard_from_its_vtep_alone() {
    let mut worker = LearningWorker::new(learner());
    worker.publish(&[(mac(1), 0)]);
    worker.leaf.learning.as_mut().unwrap().fixed.insert(MacAddr(mac(1)), LEAF_1.into());
    for _ in 0..3 {
        assert_eq!(worker.learn(&[from(LEAF_1, mac(1)), from(LEAF_3, mac(1))]), []);
        worker.now += AGEING;
    }
    assert_eq!(worker.worker.dropped(DropReason::StaticSource), 3);
    assert_eq!(worker.worker.dropped(DropReason::InvalidSource), 0);
    // A bridge port has the address, so it is not in the tables. The kernel drops the frame
    // nevertheless.
    worker.publish(&[]);
    assert_eq!(worker.learn(&[from(LEAF_3, mac(1))]), []);
    assert_eq!(worker.worker.dropped(DropReason::StaticSource), 4);
    // The address is no longer static.
    worker.leaf.learning.as_mut().unwrap().fixed.clear();
    worker.publish(&[(mac(1), 0)]);
    assert_eq!(worker.learn(&[from(LEAF_3, mac(1))]), [learned(LEAF_3, mac(1))]);
}

#[test]
fn a_netdev_that_does_not_learn_reports_nothing() {
    let mut worker = LearningWorker::new(Leaf { learning: None, ..learner() });
    assert_eq!(worker.learn(&[from(LEAF_1, mac(1))]), []);
    assert_eq!(worker.worker.out.len(), 1);
}

/// A million made-up addresses in a second. Few are reported, all frames are delivered, and known
/// addresses are still refreshed in time.
#[test]
fn made_up_addresses_are_limited_and_hide_nobody() {
    let mut worker = LearningWorker::new(learner());
    let known: Vec<_> = (0..100).map(|number| (mac(number), 0)).collect();
    worker.publish(&known);
    let (mut reported, mut refreshed) = (0, BTreeMap::new());
    let (rounds, each) = (500, 2000);
    for round in 0..rounds {
        worker.now += Duration::from_millis(2);
        let made_up = (0..each).map(|n| from(LEAF_3, mac(1_000_000 + round * each + n)));
        let speaker = from(LEAF_1, mac(round % 100));
        for frames in made_up.chain([speaker]).collect::<Vec<_>>().chunks(64) {
            for report in worker.learn(frames) {
                match report.vtep {
                    IpAddr::V4(LEAF_1) => *refreshed.entry(report.mac).or_insert(0) += 1,
                    _ => reported += 1,
                }
            }
        }
    }
    let allowed = BURST + PER_MILLISECOND * u64::from(rounds) * 2;
    assert!(
        (allowed - PER_MILLISECOND * 2..=allowed).contains(&reported),
        "{reported} of {allowed}"
    );
    assert_eq!(reported + worker.limited(), u64::from(rounds * each));
    assert_eq!(refreshed.len(), 100, "everybody known");
    assert!(refreshed.values().all(|&n| n == 1), "once in an ageing time's quarter: {refreshed:?}");
    assert_eq!(worker.worker.pipeline.counters().dropped_in_all(), 0);
}

/// A host that sends at intervals and moves between VTEPs.
#[derive(Debug, Clone)]
struct Station {
    every: u64,
    /// Time in milliseconds and index of the VTEP of each move.
    moves: Vec<(u64, u32)>,
}

fn station() -> impl Strategy<Value = Station> {
    let moves = prop::collection::btree_map(0..20_000u64, 0..2u32, 0..4);
    (1..6_000u64, moves)
        .prop_map(|(every, moves)| Station { every, moves: moves.into_iter().collect() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Workers report to a simulated kernel with ageing. It must know what it would have learned
    /// from the frames themselves.
    #[test]
    fn the_kernel_knows_what_it_would_have_learned(
        stations in prop::collection::vec(station(), 1..12),
        delay in 1..30u64,
        lost in prop::collection::vec(prop::bool::weighted(0.2), 64),
    ) {
        const TICK: u64 = 10;
        let vteps = [LEAF_1, LEAF_3];
        let mut worker = LearningWorker::new(learner());
        prop_assert_eq!(worker.leaf.vteps[1].0, LEAF_3);
        prop_assert_eq!(hop(3), worker.leaf.vteps[1].1[0].clone());
        let start = worker.now;
        // The kernel's entries (VTEP and time of the last refresh), and the reports that are under
        // way.
        let mut kernel: BTreeMap<MacAddr, (u32, u64)> = BTreeMap::new();
        let mut waiting: Vec<(u64, Learned)> = Vec::new();
        let mut last: BTreeMap<MacAddr, (u32, u64)> = BTreeMap::new();
        let mut reports = BTreeMap::<MacAddr, u64>::new();
        let (mut count, mut losses) = (0, 0);
        let ageing = u64::try_from(AGEING.as_millis()).unwrap();
        for now in (0..20_000).step_by(TICK as usize) {
            worker.now = start + Duration::from_millis(now);
            let before = kernel.clone();
            for (_, report) in waiting.extract_if(.., |(at, _)| *at <= now) {
                count += 1;
                if lost[count % lost.len()] {
                    losses += 1;
                    continue;
                }
                let vtep = vteps.iter().position(|vtep| *vtep == report.vtep).unwrap();
                kernel.insert(report.mac, (vtep as u32, now));
            }
            kernel.retain(|_, (_, refreshed)| *refreshed + ageing > now);
            let entries = |of: &BTreeMap<MacAddr, (u32, u64)>| -> Vec<([u8; 6], u32)> {
                of.iter().map(|(mac, (vtep, _))| (mac.0, *vtep)).collect()
            };
            if entries(&before) != entries(&kernel) {
                worker.publish(&entries(&kernel));
            }
            let mut frames = Vec::new();
            for (station, number) in stations.iter().zip(0..) {
                if now % (station.every.div_ceil(TICK) * TICK) == 0 {
                    let at = station.moves.iter().rev().find(|(at, _)| *at <= now).map_or(0, |(_, vtep)| *vtep);
                    frames.push(from(vteps[at as usize], mac(number)));
                    last.insert(MacAddr(mac(number)), (at, now));
                }
            }
            for report in worker.learn(&frames) {
                *reports.entry(report.mac).or_default() += 1;
                waiting.push((now + delay, report));
            }
            // An address that sent recently is known at its last VTEP. If a report was lost, a
            // later frame causes another one.
            for (mac, (vtep, said)) in &last {
                let number = u32::from_be_bytes(mac.0[2..].try_into().unwrap());
                let station = &stations[number as usize];
                let settled = now >= said + delay + TICK;
                let known = kernel.get(mac);
                if losses == 0 && settled && now < said + ageing * 3 / 4 && station.every >= 60 {
                    prop_assert_eq!(known.map(|(vtep, _)| *vtep), Some(*vtep), "{} at {}", mac, now);
                }
                if now > said + ageing + delay {
                    prop_assert_eq!(known, None, "{} was silent for long", mac);
                }
            }
        }
        // The number of reports is bounded.
        for (station, number) in stations.iter().zip(0..) {
            let mac = MacAddr(mac(number));
            let frames = 20_000 / station.every + 1;
            let moves = station.moves.len() as u64 + 1;
            let refreshes = 20_000 * u64::from(Learning::REFRESHES) / ageing + 1;
            let again = losses as u64 + moves * (delay / 50 + 1);
            let bound = frames.min(moves + refreshes + again + 5);
            prop_assert!(reports.get(&mac).copied().unwrap_or(0) <= bound, "{reports:?} {bound}");
        }
    }
}
