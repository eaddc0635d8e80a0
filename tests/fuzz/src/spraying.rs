//! The order of sprayed packets.

use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use spray::resequence::{Delivery, Limits, Outcome, Packet, Resequencer};

/// Most packets that wait, and for how long.
const PACKETS: u16 = 32;
const TIMER: u64 = 100;
/// How long a sender may take to send all from a gap on again.
const RECOVERY: u64 = 1000;

/// What goes in comes out once, unless it is a duplicate of what waits. No gap is
/// waited for longer than a sender may take to close it. Without a gap that stays open, each queue pair's packets come out in order.
pub fn resequence(data: &[u8]) {
    let limits = Limits { queue_pairs: 64, packets: PACKETS, recovery: RECOVERY };
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut order = Resequencer::<u8, usize, _>::new(limits, TIMER, hasher);
    let mut now = 0;
    // The packets that went in, those that came out, and the next PSN of each queue pair.
    let (mut sent, mut out) = (Vec::new(), BTreeMap::<usize, u64>::new());
    let mut next = BTreeMap::<u8, u32>::new();
    let mut duplicates = 0;
    for (number, step) in data.chunks_exact(3).enumerate() {
        let [first, distance, time] = [step[0], step[1], step[2]];
        let key = first & 3;
        now += u64::from(time >> 3);
        let mut came = Vec::new();
        order.expire(now, |key, number| came.push((key, number)));
        let base = next.get(&key).copied().unwrap_or(0xff_ff80);
        let psn = base.wrapping_add_signed(i32::from(distance as i8)) & 0xff_ffff;
        let uses = if first & 0xf0 == 0 { None } else { Some(1) };
        sent.push((key, psn));
        let deliver = |delivery| match delivery {
            Delivery::Arrived => came.push((key, number)),
            Delivery::Waited(waited) => came.push((key, waited)),
        };
        let outcome = order.receive(now, key, Packet { psn, uses }, || number, deliver);
        duplicates += usize::from(outcome == Outcome::Duplicate);
        let counts = order.counts();
        let is_ordered = counts.flushed_by_timer + counts.flushed_by_bound == 0
            && data.chunks_exact(3).take(number + 1).all(|step| step[0] & 0xf0 != 0);
        for (key, number) in came {
            let (of, psn) = sent[number];
            assert_eq!(of, key, "a packet of another queue pair");
            assert!(out.insert(number, now).is_none(), "packet {number} came out twice");
            let next = next.entry(key).or_insert(psn);
            let ahead = psn.wrapping_sub(*next) & 0xff_ffff;
            assert!(!is_ordered || ahead == 0 || ahead >= 1 << 23, "{ahead} too early");
            if ahead < 1 << 23 {
                *next = (psn + 1) & 0xff_ffff;
            }
        }
        let deadline = order.deadline();
        assert!(order.held() <= usize::from(PACKETS) && (order.held() > 0) == deadline.is_some());
        assert!(deadline.is_none_or(|deadline| deadline <= now + RECOVERY));
    }
    order.expire(u64::MAX, |_, number| assert!(out.insert(number, now).is_none()));
    assert_eq!((order.held(), out.len() + duplicates), (0, sent.len()));
}

/// Packets in order, of two queue pairs in turns, swapped, doubled, and with a gap.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let of = |steps: &[(u8, i8)]| {
        steps.iter().flat_map(|(key, distance)| [0x10 | key, *distance as u8, 8]).collect()
    };
    vec![
        of(&[(0, 0); 20]),
        of(&[(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0), (0, 0)]),
        of(&[(0, 0), (0, 3), (0, 2), (0, 2), (0, 1), (0, 0), (0, -1)]),
        of(&[(0, 0), (0, 1), (0, 1), (0, 1), (0, 100)]),
    ]
}
