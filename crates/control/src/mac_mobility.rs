//! MAC addresses that move too often: a loop, one address on two hosts, or one host behind two
//! leaves.
//!
//! All moves that the kernel reports are followed. Several moves between two publications are
//! applied as one, and all of them count. An address that moves more often within a [`WINDOW`] than
//! the settings allow is *flapping*, until it moves less often for a whole window. While it flaps,
//! its moves are not reported one by one, and workers' reports beyond the limit are refused.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use tables::VniSource;
use tables::hash::TableHasher;
use wire::MacAddr;

use crate::stores::overlay::{Applied, MacChange};

/// The interval in which moves are counted.
pub const WINDOW: Duration = Duration::from_secs(1);
/// Number of addresses whose moves are counted in a window. If more addresses move, a VTEP or leaf
/// has failed, so moves of further addresses do not count as flapping.
pub const WATCHED: usize = 4096;

/// Counters of the moves of MAC addresses between VTEPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveCounts {
    /// Moves that were applied to the workers' tables.
    pub followed: u64,
    /// Moves that the kernel reported and that another one replaced before they were published.
    pub coalesced: u64,
    /// How often an address began to flap.
    pub flapping: u64,
}

/// A MAC address of a VNI.
pub(crate) type Key = (VniSource, MacAddr);

/// An address began or stopped flapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flap {
    /// The source of the VNI.
    pub source: VniSource,
    /// The address.
    pub mac: MacAddr,
    /// Number of moves while it flapped, if it has stopped.
    pub over: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Moves {
    /// In this window.
    now: u32,
    /// Since it began to flap.
    in_all: u64,
    flapping: bool,
}

impl Moves {
    fn flap(&mut self, (source, mac): Key, news: &mut Vec<Flap>) {
        if !std::mem::replace(&mut self.flapping, true) {
            news.push(Flap { source, mac, over: None });
        }
    }
}

/// Counts moves of MAC addresses and detects flapping.
#[derive(Debug, Default)]
pub(crate) struct Flapping {
    moves: HashMap<Key, Moves, BuildHasherDefault<TableHasher>>,
    /// When the window ends; `None` while no address moves.
    ends: Option<Instant>,
    /// Changes that [`Flapping::take_news`] has not returned yet.
    news: Vec<Flap>,
}

impl Flapping {
    /// Counts moves of an address; `limit` are allowed in a window. Returns whether it was flapping
    /// before them.
    pub(crate) fn moved(&mut self, key: Key, times: u32, limit: u32, now: Instant) -> bool {
        if self.moves.len() >= WATCHED && !self.moves.contains_key(&key) {
            return false;
        }
        self.ends.get_or_insert(now + WINDOW);
        let moves = self.moves.entry(key).or_default();
        moves.now = moves.now.saturating_add(times);
        moves.in_all += u64::from(times);
        let before = moves.flapping;
        if moves.now > limit {
            moves.flap(key, &mut self.news);
        }
        before
    }

    /// Whether an address may move once more in this window. If not, it is flapping from now on.
    pub(crate) fn may_move(&mut self, key: Key, limit: u32) -> bool {
        let Some(moves) = self.moves.get_mut(&key).filter(|moves| moves.now >= limit) else {
            return true;
        };
        moves.flap(key, &mut self.news);
        false
    }

    /// Ends the window if it is over.
    pub(crate) fn tick(&mut self, limit: u32, now: Instant) {
        if self.ends.is_none_or(|ends| now < ends) {
            return;
        }
        let news = &mut self.news;
        self.moves.retain(|&(source, mac), moves| {
            let stays = moves.flapping && moves.now >= limit;
            if moves.flapping && !stays {
                news.push(Flap { source, mac, over: Some(moves.in_all) });
            }
            moves.now = 0;
            stays
        });
        self.ends = (!self.moves.is_empty()).then(|| now + WINDOW);
    }

    /// When [`Flapping::tick`] has something to do.
    pub(crate) const fn ends(&self) -> Option<Instant> {
        self.ends
    }

    /// The addresses that began or stopped flapping since the last call.
    pub(crate) fn take_news(&mut self) -> Vec<Flap> {
        std::mem::take(&mut self.news)
    }
}

/// The moves of MAC addresses: counters, flapping addresses, and the changes of the last
/// publication.
#[derive(Debug, Default)]
pub(crate) struct MacMobility {
    pub(crate) counts: MoveCounts,
    pub(crate) flapping: Flapping,
    /// Each with the source of the VNI.
    changes: Vec<(VniSource, MacChange)>,
    /// Moves that no publication needed since the last [`Self::take_flaps`].
    coalesced: Vec<(Key, u32)>,
}

impl MacMobility {
    /// Drops the changes of the last publication.
    pub(crate) fn clear_changes(&mut self) {
        self.changes.clear();
    }

    /// Records what was applied to the FDB of a VNI. `taken`: whether its VNI is taken over.
    pub(crate) fn record(&mut self, source: VniSource, applied: Applied, taken: bool) {
        if taken {
            self.counts.followed += applied.followed;
            for (mac, moves) in applied.coalesced {
                self.counts.coalesced += u64::from(moves);
                self.coalesced.push(((source, mac), moves));
            }
        }
        self.changes.extend(applied.changes.into_iter().map(|change| (source, change)));
    }

    /// The changes of the last publication, each with the source of its VNI. Moves of
    /// flapping addresses are left out. In VNIs for which `takes` returns true, moves are counted:
    /// `limit` are allowed in a window.
    pub(crate) fn take_changes(
        &mut self,
        takes: impl Fn(VniSource) -> bool,
        limit: u32,
        now: Instant,
    ) -> Vec<(VniSource, MacChange)> {
        let mut changes = std::mem::take(&mut self.changes);
        changes.retain(|(source, change)| {
            let moved = change.is_move() && takes(*source);
            !moved || !self.flapping.moved((*source, change.mac), 1, limit, now)
        });
        changes
    }

    /// The addresses that began or stopped flapping since the last call. Counts moves that no
    /// publication needed; `limit` are allowed in a window.
    pub(crate) fn take_flaps(&mut self, limit: u32, now: Instant) -> Vec<Flap> {
        for (key, moves) in self.coalesced.drain(..) {
            self.flapping.moved(key, moves, limit, now);
        }
        let flaps = self.flapping.take_news();
        self.counts.flapping += flaps.iter().filter(|flap| flap.over.is_none()).count() as u64;
        flaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 5;
    const KEY: Key = (VniSource::Netdev(7), MacAddr([2, 0, 0, 0, 0, 1]));

    fn flap(over: Option<u64>) -> Flap {
        Flap { source: KEY.0, mac: KEY.1, over }
    }

    #[test]
    fn an_address_flaps_from_too_many_moves_to_a_window_without() {
        let (mut flapping, start) = (Flapping::default(), Instant::now());
        assert_eq!(flapping.ends(), None);
        for _ in 0..LIMIT {
            assert!(!flapping.moved(KEY, 1, LIMIT, start));
        }
        assert_eq!(flapping.take_news(), []);
        assert!(!flapping.moved(KEY, 1, LIMIT, start), "the first one too many is reported");
        assert!(flapping.moved(KEY, 1, LIMIT, start));
        assert_eq!(flapping.take_news(), [flap(None)]);
        // The next window has too many moves as well, the one after it does not.
        flapping.tick(LIMIT, start + WINDOW);
        (0..LIMIT).for_each(|_| assert!(flapping.moved(KEY, 1, LIMIT, start + WINDOW)));
        flapping.tick(LIMIT, start + 2 * WINDOW);
        assert!(flapping.moved(KEY, 1, LIMIT, start + 2 * WINDOW));
        assert_eq!(flapping.take_news(), []);
        flapping.tick(LIMIT, start + 3 * WINDOW - Duration::from_millis(1));
        assert_eq!(flapping.take_news(), []);
        flapping.tick(LIMIT, start + 3 * WINDOW);
        assert_eq!(flapping.take_news(), [flap(Some(13))]);
        assert_eq!(flapping.ends(), None, "nobody wakes up for nothing");
        assert!(!flapping.moved(KEY, 1, LIMIT, start + 3 * WINDOW));
    }

    #[test]
    fn who_may_move_no_more_flaps() {
        let (mut flapping, mut now) = (Flapping::default(), Instant::now());
        let mut moves = 0;
        for step in 0..40 {
            if flapping.may_move(KEY, LIMIT) {
                flapping.moved(KEY, 1, LIMIT, now);
                moves += 1;
            }
            assert_eq!(flapping.take_news(), if step == LIMIT { vec![flap(None)] } else { vec![] });
            now += WINDOW / 10;
            flapping.tick(LIMIT, now);
        }
        assert_eq!(moves, 4 * LIMIT, "four seconds");
    }

    #[test]
    fn rare_moves_expire_and_mass_moves_are_not_flapping() {
        let (mut flapping, mut now) = (Flapping::default(), Instant::now());
        for _ in 0..100 {
            (0..LIMIT).for_each(|_| assert!(!flapping.moved(KEY, 1, LIMIT, now)));
            now += WINDOW;
            flapping.tick(LIMIT, now);
            assert!(flapping.moves.is_empty());
        }
        for number in 0..100_000_u32 {
            let [a, b, c, d] = number.to_be_bytes();
            flapping.moved((KEY.0, MacAddr([2, 0, a, b, c, d])), 1, LIMIT, now);
        }
        assert_eq!((flapping.moves.len(), flapping.take_news()), (WATCHED, vec![]));
    }
}
