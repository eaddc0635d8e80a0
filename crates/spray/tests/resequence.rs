//! The order of packets behind paths of different delay: cases by hand, and properties.

#![cfg(test)]

use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use frames::counting::{Counting, allocations};
use proptest::prelude::*;
use spray::resequence::{Delivery, Limits, Outcome, Packet, Place, Resequencer, WINDOW};
use spray::{Nanos, Random};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Hasher = BuildHasherDefault<DefaultHasher>;

const TIMER: Nanos = 1000;
const RECOVERY: Nanos = 50_000;

/// A resequencer of packets that are named by numbers, and what it delivered.
struct Egress {
    order: Resequencer<u32, u32, Hasher>,
    delivered: Vec<u32>,
    /// Where queue pairs were when their last packet came, as workers remember it.
    places: BTreeMap<u32, Place>,
}

impl Egress {
    fn new(queue_pairs: u32, packets: u16) -> Self {
        let limits = Limits { queue_pairs, packets, recovery: RECOVERY };
        let order = Resequencer::new(limits, TIMER, Hasher::default());
        Self { order, delivered: vec![], places: BTreeMap::new() }
    }

    fn packet(&mut self, now: Nanos, key: u32, packet: Packet, name: u32) -> Outcome {
        let at = self.places.get(&key).copied().unwrap_or(Place::NONE);
        if packet.uses == Some(1) && self.order.is_next(now, at, packet.psn) {
            self.delivered.push(name);
            return Outcome::Delivered;
        }
        let outcome = self.receive(now, key, packet, name);
        let at = self.order.find(&key);
        self.places.extend(at.map(|at| (key, at)));
        outcome
    }

    fn receive(&mut self, now: Nanos, key: u32, packet: Packet, name: u32) -> Outcome {
        let delivered = &mut self.delivered;
        self.order.receive(
            now,
            key,
            packet,
            || name,
            |delivery| match delivery {
                Delivery::Arrived => delivered.push(name),
                Delivery::Waited(copy) => delivered.push(copy),
            },
        )
    }

    /// A packet of queue pair 1, with its PSN as its name.
    fn write(&mut self, now: Nanos, psn: u32) -> Outcome {
        self.packet(now, 1, Packet { psn, uses: Some(1) }, psn)
    }

    fn expire(&mut self, now: Nanos) {
        let delivered = &mut self.delivered;
        self.order.expire(now, |_, copy| delivered.push(copy));
    }

    fn taken(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.delivered)
    }
}

fn egress() -> Egress {
    Egress::new(64, 4096)
}

#[test]
fn packets_ahead_wait_for_the_one_before_them() {
    let mut egress = egress();
    for psn in [10, 13, 12] {
        egress.write(0, psn);
    }
    assert_eq!((egress.taken(), egress.order.held()), (vec![10], 2));
    assert_eq!(egress.write(5, 11), Outcome::Delivered);
    assert_eq!((egress.taken(), egress.order.held()), (vec![11, 12, 13], 0));
    assert_eq!(egress.order.deadline(), None);
    let counts = egress.order.counts();
    assert_eq!((counts.waited, counts.longest_wait, counts.flushed_by_timer), (2, 5, 0));
}

#[test]
fn the_order_goes_on_behind_the_largest_number() {
    let mut egress = egress();
    for psn in [0xff_fffe, 1, 0, 0xff_ffff, 2] {
        egress.write(0, psn);
    }
    assert_eq!(egress.taken(), [0xff_fffe, 0xff_ffff, 0, 1, 2]);
}

#[test]
fn a_duplicate_of_a_packet_that_waits_is_dropped_and_one_of_an_earlier_packet_is_delivered() {
    let mut egress = egress();
    egress.write(0, 10);
    assert_eq!(egress.write(0, 12), Outcome::Waits);
    assert_eq!(egress.write(0, 12), Outcome::Duplicate);
    assert_eq!(egress.write(0, 10), Outcome::Delivered);
    egress.write(0, 11);
    assert_eq!(egress.taken(), [10, 10, 11, 12]);
    assert_eq!(egress.order.counts().duplicates, 1);
}

/// A path with a long queue delivers what others wait for, one packet after the other.
#[test]
fn each_gap_has_the_time_of_the_timer() {
    let mut egress = egress();
    for psn in [0, 2, 3, 5, 6, 8] {
        egress.write(0, psn);
    }
    for (now, psn) in [(TIMER - 1, 1), (2 * TIMER - 2, 4), (3 * TIMER - 3, 7)] {
        egress.expire(now);
        egress.write(now, psn);
    }
    assert_eq!((egress.taken(), egress.order.held()), ((0..9).collect(), 0));
    let counts = egress.order.counts();
    assert_eq!((counts.flushed_by_timer, counts.longest_wait), (0, 3 * TIMER - 3));
}

/// Host 0 sends ahead in many queue pairs. The other one still has room.
#[test]
fn a_host_leaves_as_much_room_as_it_takes() {
    let limits = Limits { queue_pairs: 64, packets: 16, recovery: RECOVERY };
    let order = Resequencer::new(limits, TIMER, Hasher::default());
    let host = |_: &Hasher, key: &u32| u64::from(key / 100) << 56;
    let (order, delivered, places) = (order.with_shares(host), vec![], BTreeMap::new());
    let mut egress = Egress { order, delivered, places };
    let mut ahead = |key: u32, psn: u32| egress.packet(0, key, Packet { psn, uses: Some(1) }, psn);
    let mut held = [0, 0];
    for key in (0..20).chain([100, 101, 102, 103, 104, 105]) {
        ahead(key, 10);
        held[key as usize / 100] += usize::from(ahead(key, 12) == Outcome::Waits);
    }
    // 8 = 16 - 8, then 4 = 8 - 4.
    assert_eq!((held, egress.order.held()), ([8, 4], 12));
    let counts = egress.order.counts();
    assert_eq!((counts.flushed_by_share, counts.flushed_by_bound), (12 + 2, 0));
    // What was held gives its room back.
    egress.expire(TIMER);
    assert_eq!(egress.order.held(), 0);
    for key in 40..44 {
        assert_eq!(
            egress.packet(TIMER, key, Packet { psn: 1, uses: Some(1) }, 1),
            Outcome::Delivered
        );
        assert_eq!(egress.packet(TIMER, key, Packet { psn: 3, uses: Some(1) }, 3), Outcome::Waits);
    }
}

/// The receiver has dropped 12 to 14 and waits for 11, so they may as well wait for it here. What was
/// sent before the NAK and comes late does not end that time.
#[test]
fn what_is_sent_again_after_a_gap_has_the_time_of_a_sender() {
    let mut egress = egress();
    for psn in [10, 12, 13, 14] {
        egress.write(0, psn);
    }
    egress.expire(TIMER);
    assert_eq!(egress.taken(), [10, 12, 13, 14]);
    egress.write(TIMER + 1, 13);
    for now in [2 * TIMER + 1, 20 * TIMER] {
        egress.expire(now);
        assert_eq!((egress.taken(), egress.order.held()), (vec![], 1), "at {now}");
    }
    egress.write(21 * TIMER, 14);
    egress.write(22 * TIMER, 11);
    assert_eq!((egress.taken(), egress.order.held()), (vec![11], 2));
    egress.write(30 * TIMER, 12);
    assert_eq!(egress.taken(), [12, 13, 14]);
    // From here on, gaps are new.
    egress.write(31 * TIMER, 16);
    assert_eq!(egress.order.deadline(), Some(32 * TIMER));
    egress.expire(32 * TIMER);
    // None is sent again.
    egress.write(32 * TIMER, 15 + 3);
    egress.write(32 * TIMER, 15 + 1);
    assert_eq!(
        (egress.taken(), egress.order.deadline()),
        (vec![16, 18], Some(32 * TIMER + RECOVERY))
    );
    egress.expire(32 * TIMER + RECOVERY);
    assert_eq!(egress.taken(), [16]);
}

#[test]
fn a_gap_ends_with_the_timer() {
    let mut egress = egress();
    egress.write(0, 10);
    egress.write(100, 13);
    egress.write(200, 12);
    assert_eq!(egress.order.deadline(), Some(100 + TIMER));
    egress.expire(99 + TIMER);
    assert_eq!(egress.taken(), [10]);
    egress.expire(100 + TIMER);
    assert_eq!(egress.taken(), [12, 13]);
    assert_eq!(egress.order.counts().flushed_by_timer, 1);
    assert_eq!(egress.order.deadline(), None);
}

/// All paths differ by less than this.
const SETTLING: Nanos = TIMER / 2;

#[test]
fn the_packet_that_comes_first_need_not_be_the_first_one() {
    let mut egress = egress();
    egress.order.set_times(TIMER, SETTLING);
    for (now, psn) in [(0, 12), (1, 14), (2, 10), (3, 11)] {
        assert_eq!(egress.write(now, psn), Outcome::Waits);
    }
    assert_eq!(egress.order.deadline(), Some(SETTLING));
    egress.expire(SETTLING - 1);
    assert_eq!(egress.taken(), [0; 0]);
    egress.expire(SETTLING);
    assert_eq!(egress.taken(), [10, 11, 12]);
    // From now on there is an order.
    assert_eq!(egress.order.deadline(), Some(SETTLING + TIMER));
    egress.write(SETTLING + 1, 13);
    assert_eq!((egress.taken(), egress.order.held()), (vec![13, 14], 0));
    assert_eq!(egress.order.counts().flushed_by_timer, 0);
}

#[test]
fn what_is_sent_again_from_an_unknown_packet_on_is_ordered_too() {
    let mut egress = egress();
    egress.order.set_times(TIMER, SETTLING);
    (0..20).for_each(|psn| _ = egress.write(0, psn));
    egress.expire(SETTLING);
    assert_eq!(egress.taken(), (0..20).collect::<Vec<_>>());
    // The receiver has lost packet 3 behind this. The sender begins there, on paths that differ.
    let now = 10 * TIMER;
    egress.write(now, 22);
    for psn in [3, 5, 4] {
        egress.write(now, psn);
    }
    assert_eq!(egress.taken(), [3, 5, 4], "they may have come late");
    for (late, psn) in [(0, 9), (1, 8), (2, 10), (3, 7), (4, 11)] {
        egress.write(now + late, psn);
    }
    assert_eq!(egress.taken(), [22], "it does not wait for what went before");
    egress.expire(now + SETTLING);
    assert_eq!(egress.taken(), [7, 8, 9, 10, 11]);
    egress.write(now + SETTLING, 13);
    egress.write(now + SETTLING, 12);
    assert_eq!(egress.taken(), [12, 13]);
}

#[test]
fn what_cannot_belong_to_the_beginning_ends_it() {
    let mut egress = egress();
    egress.order.set_times(TIMER, SETTLING);
    egress.write(0, 1000);
    egress.write(0, 1001);
    egress.write(0, 1000 + u32::from(WINDOW));
    assert_eq!((egress.taken(), egress.order.held()), (vec![1000, 1001], 1));
    egress.write(0, 1000 - u32::from(WINDOW));
    assert_eq!((egress.taken(), egress.order.held()), (vec![1000 + u32::from(WINDOW)], 1));
    // Without room, nothing waits.
    let mut egress = Egress::new(64, 1);
    egress.order.set_times(TIMER, SETTLING);
    egress.write(0, 5);
    egress.packet(0, 2, Packet { psn: 9, uses: Some(1) }, 9);
    assert_eq!((egress.taken(), egress.order.held()), (vec![9], 1));
}

/// After a NAK, the first copy of a packet may come after the second one.
#[test]
fn a_packet_that_was_overtaken_by_its_repetition_changes_no_order() {
    let mut egress = egress();
    egress.order.set_times(TIMER, SETTLING);
    (0..20).for_each(|psn| _ = egress.write(0, psn));
    egress.expire(SETTLING);
    egress.taken();
    for (late, psn) in [5, 20, 9, 13, 22, 17, 21, 18].into_iter().enumerate() {
        egress.write(SETTLING + late as Nanos, psn);
    }
    assert_eq!((egress.taken(), egress.order.held()), (vec![5, 20, 9, 13, 17, 21, 22, 18], 0));
}

/// Go-back-N: the receiver waits for the first missing packet, and the sender sends all from it on.
#[test]
fn packets_that_are_sent_again_are_ordered_from_the_gap_on() {
    let mut egress = egress();
    for psn in [10, 12, 13] {
        egress.write(0, psn);
    }
    egress.expire(TIMER);
    // The receiver drops these: they need not wait.
    egress.write(TIMER, 14);
    egress.write(TIMER, 15);
    assert_eq!(egress.taken(), [10, 12, 13, 14, 15]);
    for psn in [12, 11, 14, 16, 13, 15] {
        egress.write(2 * TIMER, psn);
    }
    assert_eq!(egress.taken(), [11, 12, 13, 14, 15, 16]);
    assert_eq!((egress.order.held(), egress.order.counts().flushed_by_bound), (0, 0));
}

#[test]
fn an_order_whose_gap_never_closes_goes_on_behind_it() {
    let mut egress = egress();
    egress.write(0, 10);
    egress.write(0, 12);
    egress.expire(TIMER);
    egress.write(TIMER + RECOVERY, 14);
    egress.write(TIMER + RECOVERY, 13);
    assert_eq!(egress.taken(), [10, 12, 13, 14]);
}

#[test]
fn a_packet_beyond_the_window_delivers_all() {
    let mut egress = egress();
    egress.write(0, 0);
    egress.write(0, 3);
    egress.write(0, 2);
    assert_eq!(egress.write(0, u32::from(WINDOW)), Outcome::Waits);
    assert_eq!(egress.write(0, u32::from(WINDOW) + 1), Outcome::Delivered);
    assert_eq!(egress.taken(), [0, 2, 3, 256, 257]);
    assert_eq!(egress.order.counts().flushed_by_bound, 1);
}

#[test]
fn a_full_pool_delivers_what_the_queue_pair_has() {
    let mut egress = Egress::new(64, 2);
    egress.write(0, 0);
    egress.write(0, 2);
    egress.write(0, 4);
    assert_eq!(egress.write(0, 3), Outcome::Delivered);
    assert_eq!(egress.taken(), [0, 2, 3, 4]);
    assert_eq!((egress.order.held(), egress.order.counts().flushed_by_bound), (0, 1));
}

/// A new connection has the same queue pair and another first PSN.
#[test]
fn a_sequence_that_begins_far_behind_is_ordered() {
    let mut egress = egress();
    egress.write(0, 5000);
    for psn in [100, 102, 101] {
        egress.write(1, psn);
    }
    assert_eq!(egress.taken(), [5000, 100, 101, 102]);
}

#[test]
fn a_read_request_uses_the_numbers_of_its_answer() {
    let mut egress = egress();
    egress.write(0, 10);
    egress.write(0, 15);
    // 11 to 14 are those of the answer.
    egress.packet(0, 1, Packet { psn: 11, uses: Some(4) }, 11);
    egress.write(0, 16);
    assert_eq!(egress.taken(), [10, 11, 15, 16]);
    // Numbers that it uses belong to nothing else, and are not kept.
    egress.write(0, 19);
    egress.packet(0, 1, Packet { psn: 17, uses: Some(4) }, 17);
    egress.write(0, 21);
    assert_eq!((egress.taken(), egress.order.held()), (vec![17, 19, 21], 0));
}

#[test]
fn behind_a_read_request_of_unknown_length_the_next_packet_is_delivered_as_it_comes() {
    let mut egress = egress();
    egress.write(0, 10);
    egress.write(0, 20);
    egress.packet(0, 1, Packet { psn: 11, uses: None }, 11);
    assert_eq!(egress.taken(), [10, 11, 20]);
    egress.packet(0, 1, Packet { psn: 21, uses: None }, 21);
    for psn in [40, 42, 41] {
        egress.write(0, psn);
    }
    assert_eq!(egress.taken(), [21, 40, 41, 42]);
}

/// Queue pairs that hold something keep their place; the one that was silent longest loses it.
#[test]
fn more_queue_pairs_than_there_is_room_for() {
    let mut egress = Egress::new(8, 4096);
    let write = |egress: &mut Egress, now, key, psn| {
        egress.packet(now, key, Packet { psn, uses: Some(1) }, key * 100 + psn)
    };
    for key in 1..=8 {
        write(&mut egress, Nanos::from(key), key, 1);
        write(&mut egress, Nanos::from(key), key, 3);
    }
    write(&mut egress, 9, 9, 1);
    assert_eq!(egress.order.counts().crowded, 1);
    write(&mut egress, 10, 4, 2);
    egress.taken();
    for psn in [1, 3, 2] {
        write(&mut egress, 11, 9, psn);
    }
    assert_eq!(egress.taken(), [901, 902, 903]);
    assert_eq!(egress.order.counts().crowded, 1);
    egress.expire(8 + TIMER);
    assert_eq!(egress.taken(), [103, 203, 303, 503, 603, 703, 803]);
}

/// A set has eight queue pairs. The ninth one takes the place of the first one.
#[test]
fn a_place_is_that_of_one_queue_pair() {
    let mut egress = Egress::new(8, 16);
    let one = |psn| Packet { psn, uses: Some(1) };
    egress.receive(0, 1, one(5), 5);
    let place = egress.order.find(&1).unwrap();
    assert!(egress.order.is_next(1, place, 6) && !egress.order.is_next(1, place, 8));
    assert!(!egress.order.is_next(1, Place::NONE, 7));
    (2..=9).for_each(|key| _ = egress.receive(u64::from(key), key, one(6), 6));
    assert_eq!(egress.order.find(&1), None);
    let another = egress.order.find(&9).unwrap();
    assert!(!egress.order.is_next(10, place, 7) && egress.order.is_next(10, another, 7));
}

#[test]
fn nothing_is_allocated_for_a_packet() {
    let mut random = Random::new(1);
    let mut order =
        Resequencer::<u32, u32, Hasher>::new(Limits::default(), TIMER, Hasher::default());
    assert!(allocations(|| drop(vec![1_u8])) > 0, "the counter counts");
    let number = allocations(|| {
        for now in 0..200_000_u32 {
            let (key, psn) = (random.below(3000) as u32, now / 3000 + random.below(8) as u32);
            let packet = Packet { psn, uses: Some(1) };
            order.receive(Nanos::from(now), key, packet, || now, |_| {});
            order.expire(Nanos::from(now), |_, _| {});
        }
    });
    assert_eq!(number, 0);
    assert!(order.counts().waited > 1000);
}

/// PSNs near each other, rarely far, and all kinds of packets.
fn arrivals() -> impl Strategy<Value = Vec<(u32, Packet, Nanos)>> {
    let psn = prop_oneof![20 => 0_u32..40, 3 => 0_u32..700, 1 => any::<u32>()];
    let uses = prop_oneof![20 => Just(Some(1)), 1 => Just(None), 1 => any::<u32>().prop_map(Some)];
    let arrival = (0_u32..12, psn, uses, prop_oneof![20 => 0..50_u64, 1 => 0..2 * RECOVERY])
        .prop_map(|(key, psn, uses, pause)| {
            (key, Packet { psn: psn.wrapping_sub(20), uses }, pause)
        });
    prop::collection::vec(arrival, 0..600)
}

proptest! {
    /// Whatever comes: each packet leaves once, or is dropped beside one with the same PSN that
    /// waits. No packet waits for a gap longer than the timer, or than a sender takes to send it again.
    #[test]
    fn what_goes_in_comes_out_once(arrivals in arrivals(), packets in 1_u16..40) {
        let mut egress = Egress::new(8, packets);
        let (mut now, mut dropped) = (0, vec![]);
        for (name, &(key, packet, pause)) in (0..).zip(&arrivals) {
            now += pause;
            egress.expire(now);
            if egress.packet(now, key, packet, name) == Outcome::Duplicate {
                dropped.push(name);
            }
            prop_assert!(egress.order.held() <= usize::from(packets));
            prop_assert_eq!(egress.order.deadline().is_some(), egress.order.held() != 0);
            prop_assert!(egress.order.deadline().is_none_or(|end| end <= now + TIMER.max(RECOVERY)));
            prop_assert_eq!(
                egress.delivered.len() + dropped.len() + egress.order.held(), name as usize + 1
            );
        }
        egress.expire(now + TIMER.max(RECOVERY));
        prop_assert_eq!(egress.order.held(), 0);
        let mut left = [&egress.delivered[..], &dropped[..]].concat();
        left.sort_unstable();
        prop_assert!(left.iter().copied().eq(0..arrivals.len() as u32));
        prop_assert_eq!(egress.order.counts().duplicates, dropped.len() as u64);
    }

    /// Queue pairs over paths with different delays: each is delivered in order, without a flush.
    #[test]
    fn packets_of_paths_with_delays_within_bounds_are_in_order(
        delays in prop::collection::vec(0..TIMER, 1..6),
        first in any::<[u32; 3]>(),
        paths in prop::collection::vec((0_usize..6, 0_usize..3), 1..800),
    ) {
        // A packet leaves every 20 ns, the first ones of all queue pairs before all others.
        let mut sent = [1_u32; 3];
        let mut arrivals = vec![(0, 0, 0), (0, 1, 0), (0, 2, 0)];
        for (time, &(path, key)) in (1_u64..).zip(&paths) {
            arrivals.push((20 * time + delays[path % delays.len()], key, sent[key]));
            sent[key] += 1;
        }
        arrivals.sort_unstable();
        let mut egress = Egress::new(64, 4096);
        let mut names = BTreeMap::new();
        for (name, &(now, key, number)) in (0..).zip(&arrivals) {
            names.insert(name, (key, number));
            egress.expire(now);
            let packet = Packet { psn: first[key].wrapping_add(number), uses: Some(1) };
            egress.packet(now, key as u32, packet, name);
        }
        let counts = egress.order.counts();
        prop_assert_eq!((counts.flushed_by_timer, counts.flushed_by_bound), (0, 0));
        for (key, sent) in sent.into_iter().enumerate() {
            let of_key = egress.delivered.iter().map(|name| names[name]).filter(|of| of.0 == key);
            prop_assert!(of_key.map(|(_, number)| number).eq(0..sent));
        }
    }
}
