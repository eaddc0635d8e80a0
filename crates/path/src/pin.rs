//! Queue pairs on chosen paths: the interface between the policy `qp-pin` and what knows the paths.

use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::choice::{Flow, Remote};
use crate::path_id::{CounterId, PathId};
use crate::policy::Policy;
use crate::range::SourcePortRange;
use crate::record::{self, Counts, Packet, Record, Records};
use crate::spraying::{PoolNumber, Spraying, Sprays};
use crate::version::Version;

mod known;
mod only_sprays;

use known::KnownPins;

/// The path of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// Next hop and source port.
    pub path: PathId,
    /// Where its frames are counted.
    pub counter: CounterId,
    /// The version of [`Usage::changes`] for which it was told.
    pub changes: Version<Self>,
}

/// What is known of a queue pair by the worker that asks for its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nothing: this is its first frame.
    New,
    /// Frames before this one have left by the path of `qp-hash`.
    Hashed,
    /// It had a path.
    Pinned,
}

/// The answer about the path of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is to have this path.
    Pinned(Pin),
    /// It is to have that of `qp-hash`.
    Hashed,
    /// There is no answer now. It keeps the path that it has, or has that of `qp-hash`, and its next
    /// frame asks again.
    Busy,
}

/// Places queue pairs on paths. All workers share one.
pub trait Pinning: fmt::Debug + Send + Sync {
    /// The path of a queue pair. `hashed` is its path by `qp-hash`. It is
    /// asked about the first frame of a queue pair, and again after [`Usage::changes`] of its counters or,
    /// without one, [`Self::version`] has changed. It does not wait for others.
    fn pin(&self, flow: &Flow, to: &Remote<'_>, hashed: PathId, before: Before) -> Answer;

    /// Takes a RoCE frame that is sent to a remote VTEP for a management queue pair, from its base
    /// transport header on. `hosts` are its inner source and destination. It does not wait for others.
    fn observe(&self, _hosts: (IpAddr, IpAddr), _to: &Remote<'_>, _packet: &[u8]) {}

    /// The version of all paths. It changes when a queue pair may have to leave its path, after
    /// [`Usage::changes`] of its counters has.
    fn version(&self) -> Version<Policy>;

    /// Where frames of pinned queue pairs are counted.
    fn usage(&self) -> &Usage;

    /// Over which paths packets are sprayed. `None`: none are.
    fn spraying(&self) -> Option<Arc<Spraying>> {
        None
    }
}

/// The state of `qp-pin` and `spray`: what places its queue pairs, and what that has said. Without it, `qp-pin` is
/// `qp-hash`.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    pinning: Option<Arc<dyn Pinning>>,
    known: KnownPins,
    sprays: Sprays,
}

impl Pins {
    /// Queue pairs are placed by `pinning`, if there is one.
    #[must_use]
    pub fn new(pinning: Option<Arc<dyn Pinning>>) -> Self {
        let sprays = Sprays::new(pinning.as_ref().and_then(|pinning| pinning.spraying()));
        Self { pinning, known: KnownPins::default(), sprays }
    }

    /// What is known of sprayed packets, if any are.
    #[must_use]
    pub fn spraying(&self) -> Option<Arc<Spraying>> {
        self.pinning.as_ref()?.spraying()
    }

    /// Begins a batch at this time.
    #[inline]
    pub fn begin(&mut self, now: Instant) {
        self.sprays.begin(now);
    }

    /// Ends a batch.
    #[inline]
    pub fn end(&mut self) {
        self.sprays.end();
    }

    /// As [`Sprays::pool`].
    pub(crate) fn pool(&self, to: &Remote<'_>, range: SourcePortRange) -> Option<PoolNumber> {
        self.sprays.pool(to, range)
    }

    /// What knows the paths of sprayed packets.
    pub(crate) const fn sprays(&mut self) -> &mut Sprays {
        &mut self.sprays
    }

    /// The most queue pairs that are counted; 0 if nothing places queue pairs.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.pinning.as_ref().map_or(0, |pinning| pinning.usage().most())
    }

    /// Whether something places queue pairs.
    pub(crate) const fn is_placing(&self) -> bool {
        self.pinning.is_some()
    }

    /// As [`Pinning::pin`], which is asked once for each queue pair until something changes. Also
    /// tells whether the answer holds for the next frame.
    pub(crate) fn pin(
        &mut self,
        flow: &Flow,
        to: &Remote<'_>,
        hashed: PathId,
    ) -> (Option<Pin>, bool) {
        let Some(pinning) = &self.pinning else { return (None, true) };
        let version = pinning.version();
        let ask = |before| pinning.pin(flow, to, hashed, before);
        self.known.get_or((flow, to), (version, pinning.usage()), ask)
    }

    /// Changes with [`Pinning::version`] and with the pools: the sum of two numbers that only grow.
    #[inline]
    #[must_use]
    pub fn version(&self) -> Version<Policy> {
        let placed = self.pinning.as_ref().map_or(Version::NONE, |pinning| pinning.version());
        Version::of(placed.number() + self.sprays.version())
    }

    /// As [`Pinning::observe`].
    pub fn observe(&self, hosts: (IpAddr, IpAddr), to: &Remote<'_>, packet: &[u8]) {
        if let Some(pinning) = &self.pinning {
            pinning.observe(hosts, to, packet);
        }
    }

    /// Counts frames of pinned queue pairs that are sent at `now`.
    #[inline]
    #[must_use]
    pub fn counting(&self, now: Instant) -> Counting<'_> {
        Counting::of(self.pinning.as_deref(), now)
    }

    /// As [`Self::counting`], with what knows the paths of sprayed packets.
    #[inline]
    pub fn sending(&mut self, now: Instant) -> (Counting<'_>, &mut Sprays) {
        (Counting::of(self.pinning.as_deref(), now), &mut self.sprays)
    }
}

/// The traffic of each pinned queue pair.
#[derive(Debug)]
pub struct Usage {
    start: Instant,
    traffic: Box<[Traffic]>,
    /// Absent until [`Usage::record_in`].
    records: OnceLock<Arc<dyn Records>>,
}

/// One writer at a time: all frames of a queue pair come to one worker.
#[derive(Debug, Default)]
struct Traffic {
    bytes: AtomicU64,
    frames: AtomicU64,
    /// When the last frame was sent, in nanoseconds since the start.
    last: AtomicU64,
    /// As [`Usage::changes`].
    changes: AtomicU64,
}

impl Usage {
    /// No traffic of at most `most` queue pairs. Times are counted from `start`.
    #[must_use]
    pub fn new(most: u32, start: Instant) -> Self {
        // Entry 0 is not used.
        Self {
            start,
            traffic: (0..=most).map(|_| Traffic::default()).collect(),
            records: OnceLock::new(),
        }
    }

    /// Has frames recorded in `records`, which other datapaths may use too. Only the first call
    /// counts.
    pub fn record_in(&self, records: Arc<dyn Records>) {
        let _ = self.records.set(records);
    }

    #[inline]
    fn record(&self, counter: CounterId) -> Option<&Record> {
        self.records.get()?.record(counter)
    }

    /// What all datapaths have recorded of a queue pair since the start, and the number of recorded frames
    /// modulo 2³². To be read after the numbers of frames: if it is less than these, figures are
    /// approximate.
    #[must_use]
    pub fn recorded(&self, counter: CounterId) -> (Counts, u32) {
        self.record(counter).map_or_else(Default::default, record::read)
    }

    /// The counters now belong to another queue pair, whose sequence is not known.
    pub fn restart(&self, counter: CounterId) {
        self.record(counter).inspect(|record| record::restart(record));
    }

    /// Has workers ask again for the path of a queue pair.
    pub fn change(&self, counter: CounterId) {
        if let Some(traffic) = self.traffic.get(counter.index()) {
            traffic.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// A version that changes when the path of a queue pair may have changed, or when the
    /// counters have got another queue pair.
    #[must_use]
    pub fn changes(&self, counter: CounterId) -> Version<Pin> {
        let traffic = self.traffic.get(counter.index());
        Version::of(traffic.map_or(0, |traffic| traffic.changes.load(Ordering::Acquire)))
    }

    /// The most queue pairs.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.traffic.len() as u32 - 1
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Bytes and frames of a queue pair since the start, and when the last frame was sent (time since the
    /// start); `None` if none was.
    #[must_use]
    pub fn read(&self, counter: CounterId) -> (u64, u64, Option<Duration>) {
        let Some(traffic) = self.traffic.get(counter.index()) else { return (0, 0, None) };
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let last = load(&traffic.last);
        let last = (last > 0).then(|| Duration::from_nanos(last));
        (load(&traffic.bytes), load(&traffic.frames), last)
    }
}

/// Counts frames that are sent at one time.
#[derive(Debug, Clone, Copy)]
pub struct Counting<'u> {
    usage: Option<&'u Usage>,
    now: u64,
}

impl<'u> Counting<'u> {
    /// Counts nothing.
    pub const NONE: Self = Self { usage: None, now: 0 };

    #[inline]
    fn of(pinning: Option<&'u dyn Pinning>, now: Instant) -> Self {
        let usage = pinning.map(Pinning::usage);
        Self { usage, now: usage.map_or(0, |usage| usage.nanoseconds(now)) }
    }

    /// Counts a frame of `bytes` bytes, and records what its headers tell.
    #[inline]
    pub fn count(self, counter: CounterId, bytes: usize, packet: Option<Packet>) {
        let Some(usage) = self.usage else { return };
        let Some(traffic) = usage.traffic.get(counter.index()) else { return };
        // Before the frame is counted: see `Usage::recorded`.
        if let (Some(record), Some(packet)) = (usage.record(counter), packet) {
            record::update(record, packet);
        }
        // Loading and storing suffices for one writer, and does not lock the bus.
        let add = |to: &AtomicU64, number: u64| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
        };
        add(&traffic.bytes, bytes as u64);
        add(&traffic.frames, 1);
        traffic.last.store(self.now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_each_queue_pair_are_counted() {
        let start = Instant::now();
        let usage = Usage::new(2, start);
        let counting = Counting {
            usage: Some(&usage),
            now: usage.nanoseconds(start + Duration::from_secs(3)),
        };
        let counter = |number| CounterId::new(number).unwrap();
        usage.record_in(Arc::new(Vec::from_iter((0..3).map(|_| Record::default()))));
        let packet = |sequence| Some(Packet { opcode: 4, sequence, syndrome: 0, is_marked: false });
        counting.count(counter(2), 100, packet(5));
        counting.count(counter(2), 50, packet(8));
        counting.count(counter(3), 1, packet(9));
        Counting::NONE.count(counter(1), 1, packet(1));
        assert_eq!(usage.recorded(counter(2)), (Counts { gaps: 2, ..Counts::default() }, 2));
        assert_eq!(usage.recorded(counter(1)), (Counts::default(), 0));
        usage.restart(counter(2));
        counting.count(counter(2), 0, packet(100));
        counting.count(counter(2), 0, None);
        assert_eq!(usage.recorded(counter(2)), (Counts { gaps: 2, ..Counts::default() }, 3));
        assert_eq!(usage.read(counter(2)), (150, 4, Some(Duration::from_secs(3))));
        assert_eq!((usage.read(counter(1)), usage.read(counter(3))), ((0, 0, None), (0, 0, None)));
    }
}
