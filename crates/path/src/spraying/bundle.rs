//! Packets that take one path together.
//!
//! With a path for each packet, each has a search for its path and its next hop, and few share a
//! system call. At a high rate, packets in a row therefore take one path: a *bundle*. It has as many
//! as one path gets in [`SPAN`], so a queue grows by no more than that. At a low rate, and at first,
//! a bundle is one packet.

use crate::path_id::PathId;

/// A bundle has as many packets as one path gets in this time, in nanoseconds. It is a small part of
/// the time for which the other end waits for a packet: 1 ms at least.
const SPAN: u64 = 50_000;
/// Most packets of a bundle.
const MOST: u64 = 16;
/// The rate is that of at least this time, in nanoseconds.
const WINDOW: u64 = 1_000_000;

/// The last bundle of a pool, and the rate of its packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bundle {
    /// The path, by its number, too. `None` before the first bundle.
    path: Option<(usize, PathId)>,
    /// The batch in which it began. It ends with this batch.
    begun: u64,
    /// Packets that may still take the path.
    left: u16,
    /// Packets that have taken it and that no pool has counted.
    uncounted: u16,
    rate: Rate,
}

/// How many packets are sent in a time.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    since: u64,
    packets: u64,
    /// Packets of a bundle; 0 until a rate is known.
    size: u16,
}

impl Rate {
    /// The packets of a bundle that begins now, over so many paths.
    fn size(&mut self, now: u64, paths: u64) -> u16 {
        let time = now.saturating_sub(self.since);
        if time >= WINDOW {
            let packets = self.packets.saturating_mul(SPAN) / time.saturating_mul(paths).max(1);
            // At most 16.
            *self = Self { since: now, packets: 0, size: packets.min(MOST) as u16 };
        }
        self.size.max(1)
    }
}

impl Bundle {
    /// Takes one more packet of a batch, if the bundle has room.
    #[inline]
    pub(super) const fn again(&mut self, batch: u64) -> bool {
        let has_room = self.left > 0 && self.begun == batch;
        if has_room {
            self.left -= 1;
            self.uncounted += 1;
        }
        has_room
    }

    /// The path.
    #[inline]
    pub(super) fn path(&self) -> Option<PathId> {
        self.path.map(|(_, path)| path)
    }

    /// The packets that the next bundle of this batch may have, over so many paths.
    pub(super) fn size(&mut self, batch: u64, paths: usize) -> u16 {
        self.rate.size(batch, paths as u64)
    }

    /// Begins with one of `size` packets on a path.
    pub(super) const fn begin(&mut self, batch: u64, size: u16, path: (usize, PathId)) {
        (self.path, self.begun) = (Some(path), batch);
        (self.left, self.uncounted) = (size.saturating_sub(1), 1);
    }

    /// The packets to count now, with the number of their path.
    pub(super) fn take_uncounted(&mut self) -> Option<(usize, u64)> {
        let packets = u64::from(core::mem::take(&mut self.uncounted));
        self.rate.packets += packets;
        self.path.filter(|_| packets > 0).map(|(number, _)| (number, packets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bundles in which so many packets leave, with a batch every 100 µs.
    fn sizes(bundle: &mut Bundle, batches: core::ops::Range<u64>, packets: usize) -> Vec<u64> {
        let (mut sizes, path) = (Vec::new(), PathId { hop: 1, source_port: 2 });
        for batch in batches {
            for _ in 0..packets {
                if !bundle.again(batch * 100_000) {
                    sizes.extend(bundle.take_uncounted().map(|(_, packets)| packets));
                    let size = bundle.size(batch * 100_000, 4);
                    bundle.begin(batch * 100_000, size, (3, path));
                }
                assert_eq!(bundle.path(), Some(path));
            }
        }
        sizes
    }

    #[test]
    fn a_bundle_is_what_a_path_gets_in_50_microseconds() {
        // 40 packets in 100 µs over 4 paths: 5 for a path in 50 µs.
        let bundle = &mut Bundle::default();
        let at_first = sizes(bundle, 0..10, 40);
        assert!(at_first.iter().all(|size| *size == 1), "no rate is known: {at_first:?}");
        sizes(bundle, 10..11, 40);
        let known = sizes(bundle, 11..40, 40);
        assert!(known.iter().all(|size| *size == 5), "{known:?}");
        // The rate falls, and is known to fall after a millisecond.
        sizes(bundle, 40..52, 4);
        let slow = sizes(bundle, 52..90, 4);
        assert!(slow.iter().all(|size| *size == 1), "{slow:?}");
        sizes(bundle, 90..115, 4000);
        let most = sizes(bundle, 115..120, 4000);
        assert!(most.iter().all(|size| *size == 16), "{most:?}");
        // After a pause, it is the rate of the pause.
        let paused = sizes(bundle, 10_000..10_002, 8);
        assert!(paused[1..].iter().all(|size| *size == 1), "{paused:?}");
    }

    #[test]
    fn a_bundle_ends_with_its_batch() {
        let mut bundle = Bundle::default();
        bundle.begin(5, 3, (0, PathId { hop: 1, source_port: 2 }));
        assert!(bundle.again(5) && !bundle.again(6) && bundle.again(5) && !bundle.again(5));
        assert_eq!((bundle.take_uncounted(), bundle.take_uncounted()), (Some((0, 3)), None));
    }
}
