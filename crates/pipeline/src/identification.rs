//! Identifications of outer IPv4 packets. Fragments of two packets that have the same one may be
//! mixed (RFC 6864 section 4.3), so all senders of a leaf take them from one sequence: its workers
//! from this one, its BPF programs from another (`crates/bpf/programs/encapsulate.bpf.h`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Workers have the upper half. BPF programs have the lower one (`IDENTIFICATIONS` there).
const HALF: u16 = 0x8000;
/// How many a worker takes at once.
const BLOCK: u16 = 64;
/// How long a worker uses a block. The others may use up the sequence meanwhile.
const LIFE: Duration = Duration::from_secs(1);

/// The sequence of identifications of all workers of a leaf.
#[derive(Debug, Clone, Default)]
pub struct Identifications(Arc<AtomicU16>);

impl Identifications {
    /// Takes so many consecutive ones, at most 32,768. Returns the first.
    pub(crate) fn take(&self, count: u16) -> u16 {
        let take = || self.0.fetch_add(count, Ordering::Relaxed) | HALF;
        let first =
            Some(take()).filter(|first| first.checked_add(count.saturating_sub(1)).is_some());
        first.unwrap_or_else(take)
    }
}

/// The identifications that a worker has taken from the sequence.
#[derive(Debug, Default)]
pub(crate) struct Block {
    all: Identifications,
    next: u16,
    left: u16,
    /// When what was left was last given up.
    renewed: Option<Instant>,
}

impl Block {
    /// Takes further identifications from this sequence.
    pub(crate) fn set_sequence(&mut self, all: Identifications) {
        *self = Self { all, ..Self::default() };
    }

    /// The sequence.
    pub(crate) const fn sequence(&self) -> &Identifications {
        &self.all
    }

    /// Gives up what is left once in a second.
    pub(crate) fn renew(&mut self, now: Instant) {
        if self.renewed.is_none_or(|renewed| now.saturating_duration_since(renewed) >= LIFE) {
            (self.left, self.renewed) = (0, Some(now));
        }
    }

    /// The identification of the next packet.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> u16 {
        if self.left == 0 {
            self.fill();
        }
        let next = self.next;
        (self.next, self.left) = (next.wrapping_add(1), self.left.wrapping_sub(1));
        next
    }

    #[cold]
    fn fill(&mut self) {
        (self.next, self.left) = (self.all.take(BLOCK), BLOCK);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn workers_and_super_frames_share_no_identification() {
        let all = Identifications::default();
        let now = Instant::now();
        let mut workers = [(); 3].map(|()| Block::default());
        workers.iter_mut().for_each(|worker| worker.set_sequence(all.clone()));
        let (mut seen, mut taken) = (BTreeSet::new(), 0);
        for round in 0..100u16 {
            for (worker, frames) in workers.iter_mut().zip([1, 20, 150]) {
                worker.renew(now);
                seen.extend((0..frames).map(|_| worker.next()));
                let count = 1 + round % 64;
                let first = all.take(count);
                seen.extend(first..=first + (count - 1));
                taken += frames + usize::from(count);
            }
        }
        assert_eq!(seen.len(), taken);
        assert!(seen.iter().all(|identification| *identification >= HALF));
    }

    #[test]
    fn those_of_a_super_frame_are_consecutive_where_the_sequence_begins_anew() {
        let all = Identifications::default();
        for count in (1..=64).cycle().take(5000) {
            let first = all.take(count);
            assert!(first >= HALF && first.checked_add(count - 1).is_some(), "{first} {count}");
        }
        assert_eq!(Identifications::default().take(HALF), HALF);
    }

    #[test]
    fn a_block_is_used_for_a_second() {
        let mut worker = Block::default();
        let start = Instant::now();
        let mut at = |milliseconds| {
            worker.renew(start + Duration::from_millis(milliseconds));
            worker.next()
        };
        assert_eq!([at(0), at(500), at(999)], [HALF, HALF + 1, HALF + 2]);
        assert_eq!([at(1000), at(1999)], [HALF + BLOCK, HALF + BLOCK + 1]);
        assert_eq!(at(5000), HALF + 2 * BLOCK);
    }
}
