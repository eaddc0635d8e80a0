//! The paths between two VTEPs, and what became of packets on them.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ::spray::order::Tiers;

use super::waits::SLACK;
use crate::path_id::PathId;
use crate::version::Version;

/// The paths between two VTEPs, by the numbers that a scheme gives them, and what is known of them.
#[derive(Debug)]
pub struct Pool {
    paths: Box<[PathId]>,
    pub(super) tiers: Tiers,
    /// In nanoseconds.
    round_trip: u64,
    /// How often there was feedback.
    version: AtomicU64,
    counts: Box<[PathCounts]>,
}

/// What became of the packets on one path. The numbers never decrease.
#[derive(Debug, Default)]
struct PathCounts {
    sent: AtomicU64,
    good: AtomicU64,
    marked: AtomicU64,
    lost: AtomicU64,
    answered: AtomicU64,
    service: AtomicU64,
    base: AtomicU64,
    is_down: AtomicBool,
}

/// What is known of the queue of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The packets that have arrived or are lost. Those that were sent after them are on their way.
    pub answered: u64,
    /// The time that the path takes for one packet while others wait, in nanoseconds; 0 if none wait.
    pub service: u64,
    /// The time until feedback while no packet waits, in nanoseconds.
    pub base: u64,
}

impl Backlog {
    /// How long one more packet waits, in nanoseconds, if so many are on their way. One packet can
    /// always be.
    pub(super) const fn wait(&self, packets: u64) -> u64 {
        packets.saturating_mul(self.service).saturating_sub(self.base)
    }
}

/// Packets on a path: without a mark, with one, and lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fate {
    /// They arrived without an ECN mark.
    pub good: u64,
    /// They arrived with an ECN mark.
    pub marked: u64,
    /// They did not arrive.
    pub lost: u64,
}

impl Pool {
    /// A pool of as many paths as the tiers have, each with a source port of its own. `round_trip` is
    /// the time until feedback, in nanoseconds. `None` if the numbers of paths differ.
    #[must_use]
    pub fn new(paths: Vec<PathId>, tiers: Tiers, round_trip: u64) -> Option<Self> {
        let counts = paths.iter().map(|_| PathCounts::default()).collect();
        (paths.len() == usize::from(tiers.paths())).then(|| Self {
            paths: paths.into(),
            tiers,
            round_trip,
            version: AtomicU64::new(Version::<Self>::NONE.number()),
            counts,
        })
    }

    /// The paths.
    #[must_use]
    pub fn paths(&self) -> &[PathId] {
        &self.paths
    }

    /// The packets that were sent on each path.
    pub fn sent(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(|counts| counts.sent.load(Ordering::Relaxed))
    }

    /// Counts packets that are sent on the path with this number.
    pub fn count_sent(&self, number: usize, packets: u64) {
        if let Some(counts) = self.counts.get(number) {
            counts.sent.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// What became of the packets on each path.
    pub fn fates(&self) -> impl Iterator<Item = Fate> {
        self.counts.iter().map(PathCounts::fate)
    }

    /// The shortest time of feedback, and that of a packet on each path, in nanoseconds. Feedback is
    /// older than a round of packets: a path is avoided for as long as it takes to see what that does.
    pub(super) fn times(&self) -> (u64, u64) {
        (self.round_trip, self.round_trip / u64::from(self.tiers.paths()).max(1))
    }

    /// Changes with each feedback.
    pub(super) fn version(&self) -> Version<Self> {
        Version::of(self.version.load(Ordering::Acquire))
    }

    /// What is known of the queue of each path, and the packets on their way; `None` if it is down.
    pub(super) fn backlogs(&self) -> impl Iterator<Item = Option<(Backlog, u64)>> {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        self.counts.iter().map(move |counts| {
            let backlog = Backlog {
                answered: load(&counts.answered),
                service: load(&counts.service),
                base: load(&counts.base),
            };
            let on_their_way = load(&counts.sent).saturating_sub(backlog.answered);
            (!counts.is_down.load(Ordering::Relaxed)).then_some((backlog, on_their_way))
        })
    }

    /// How long one more packet would wait on each path, in nanoseconds, as of now, and whether packets
    /// pass it over; `None` if it is down.
    pub fn waits(&self) -> impl Iterator<Item = Option<(u64, bool)>> {
        let waits: Vec<Option<u64>> = self
            .backlogs()
            .map(|known| known.map(|(backlog, packets)| backlog.wait(packets)))
            .collect();
        let most =
            waits.iter().flatten().min().map_or(u64::MAX, |least| least.saturating_add(SLACK));
        waits.into_iter().map(move |wait| wait.map(|wait| (wait, wait > most)))
    }

    /// Sets what is known of the queue of each path. It counts from the next feedback on.
    pub fn set_backlogs(&self, backlogs: impl IntoIterator<Item = Backlog>) {
        for (counts, backlog) in self.counts.iter().zip(backlogs) {
            counts.answered.store(backlog.answered, Ordering::Relaxed);
            counts.service.store(backlog.service, Ordering::Relaxed);
            counts.base.store(backlog.base, Ordering::Relaxed);
        }
    }

    /// The number of paths that are not down.
    #[must_use]
    pub fn up(&self) -> usize {
        self.counts.iter().filter(|counts| !counts.is_down.load(Ordering::Relaxed)).count()
    }

    /// Sets which paths are down. Nothing is sent on these while another one is not.
    pub fn set_down(&self, is_down: impl Fn(PathId) -> bool) {
        let mut changed = false;
        for (counts, path) in self.counts.iter().zip(&self.paths) {
            let down = is_down(*path);
            changed |= counts.is_down.swap(down, Ordering::Relaxed) != down;
        }
        if changed {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Adds what became of packets on each path. One thread calls this.
    pub fn add_feedback(&self, fates: impl IntoIterator<Item = Fate>) {
        for (counts, fate) in self.counts.iter().zip(fates) {
            counts.good.fetch_add(fate.good, Ordering::Relaxed);
            counts.marked.fetch_add(fate.marked, Ordering::Relaxed);
            counts.lost.fetch_add(fate.lost, Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl PathCounts {
    fn fate(&self) -> Fate {
        let [good, marked, lost] =
            [&self.good, &self.marked, &self.lost].map(|count| count.load(Ordering::Relaxed));
        Fate { good, marked, lost }
    }
}
