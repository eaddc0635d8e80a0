//! One queue pair.

use std::time::Duration;

use path::record::Counts;
use path::{CounterId, PathId};
use wire::QueuePair;

use super::sums::{Counted, Load, Position};

/// Time without a frame after which a queue pair hardly counts for new ones.
const PAUSE: Duration = Duration::from_millis(100);
/// Time without a frame after which it does not count at all, unless it has had longer pauses. It is
/// at most `rebalance::HOLD`, the time for which a new queue pair does not move for balance. Otherwise
/// queue pairs that have ended would make new ones move; those with longer pauses still do.
const IDLE: Duration = Duration::from_secs(1);
/// The longest pause from which a queue pair is expected to come back. After a longer one, it is
/// taken to belong to another job.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A paused queue pair counts this part of its load for new ones: it decides among equal paths.
const PAUSED_PART: u64 = 1024;

/// After so many intervals in a row that had a pause, and whose rate was not taken, the rate of the
/// next one is taken.
const MOST_SKIPPED: u8 = 3;

/// Whether a queue pair sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// It does, or it is expected to: it has come back from pauses half as long.
    Active,
    /// Not for [`PAUSE`].
    Paused,
    /// Not for [`IDLE`].
    Idle,
}

/// The counts of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// Bytes so far.
    pub bytes: u64,
    /// Frames so far.
    pub frames: u64,
    /// When the last frame was sent; `None` if none was.
    pub last: Option<Duration>,
    /// What was recorded so far.
    pub counts: Counts,
    /// Frames recorded so far, modulo 2³². To be read after `frames`.
    pub recorded: u32,
}

impl Reading {
    /// Frames that were not recorded, modulo 2³². Less than 0 while frames arrive.
    const fn unrecorded(&self) -> i32 {
        (self.frames as u32).wrapping_sub(self.recorded) as i32
    }
}

/// The other direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partner {
    /// Its queue pair.
    pub queue_pair: QueuePair,
    /// Whether both directions use the same links. `None` if that is not known.
    pub same_links: Option<bool>,
    /// Whether the other direction takes its path from this one.
    pub leads: bool,
}

/// A queue pair and its path.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Its path.
    pub path: PathId,
    /// The path to which it moves after a pause.
    pub wanted: Option<PathId>,
    /// Whether `qp-hash` chose its path, because none was known.
    pub hashed: bool,
    /// Its index in the table of counts.
    pub counter: CounterId,
    /// What it counts for, in 1000 bytes a second.
    pub load: u64,
    /// Its rate while it sends, in 1000 bytes a second. 0 while it is not measured.
    pub rate: u64,
    /// Its rate in the last interval.
    pub rate_now: u64,
    /// Bytes since it was placed.
    pub bytes: u64,
    /// Frames since it was placed.
    pub frames: u64,
    /// What its frames told since it was placed.
    pub counts: Counts,
    /// Whether all of its frames were recorded, so that `counts` is exact.
    pub is_exact: bool,
    /// When it was placed.
    pub first: Duration,
    /// When it was found active last.
    pub active: Duration,
    /// Whether it sends.
    activity: Activity,
    /// For how long it has not sent, and the longest such pause that came to an end, up to
    /// [`LONGEST_PAUSE`].
    silent: Duration,
    longest_pause: Duration,
    /// Whether it was paused at any time since the last measurement.
    has_paused: bool,
    /// Intervals with a pause whose rate was not taken, one after the other.
    skipped: u8,
    /// How often it moved.
    pub moves: u32,
    /// Inner UDP source port.
    pub port: u16,
    /// The other direction of the connection, if that is known.
    pub partner: Option<Partner>,
    /// Whether it follows the path of the other direction.
    pub(super) follows: bool,
    /// Whether programs leave its frames to the worker, because it may move now.
    pub(super) is_released: bool,
    /// What the sums include of it.
    pub(super) counted: Option<Counted>,
    /// When its last move for balance was decided.
    pub(super) decided: Option<Duration>,
    /// The counters at the last measurement. They include those of the counters' former
    /// owners.
    read: Reading,
    /// Frames that were not recorded when it was placed.
    unrecorded: i32,
}

impl Flow {
    /// It is placed with these counters, which have this reading.
    pub(super) const fn new(
        (path, hashed): (PathId, bool),
        (counter, read): (CounterId, Reading),
        load: u64,
        now: Duration,
    ) -> Self {
        Self {
            path,
            wanted: None,
            hashed,
            counter,
            load,
            rate: 0,
            rate_now: 0,
            bytes: 0,
            frames: 0,
            counts: Counts::NONE,
            is_exact: true,
            first: now,
            active: now,
            activity: Activity::Active,
            silent: Duration::ZERO,
            longest_pause: Duration::ZERO,
            has_paused: false,
            skipped: 0,
            moves: 0,
            port: 0,
            partner: None,
            follows: false,
            is_released: false,
            counted: None,
            decided: None,
            unrecorded: read.unrecorded(),
            read,
        }
    }

    /// Where it is, or is to be.
    #[must_use]
    pub fn goal(&self) -> PathId {
        self.wanted.unwrap_or(self.path)
    }

    /// It is on this path now.
    pub(super) const fn settle(&mut self, path: PathId) {
        (self.path, self.wanted, self.hashed) = (path, None, false);
        self.moves += 1;
    }

    /// Whether it is on the path of `qp-hash` and does not leave it soon: it has no other path to
    /// move to, or it has not moved until its rate was measured.
    pub(super) const fn stays_hashed(&self) -> bool {
        self.hashed && (self.wanted.is_none() || self.rate > 0)
    }

    pub(super) fn may_move(&self, now: Duration, hold: Duration) -> bool {
        self.wanted.is_none()
            && self.decided.is_none_or(|decided| now.saturating_sub(decided) >= hold)
    }

    /// Whether it may move to make the load more even. An idle one adds no load. A new one was placed
    /// where the load was least, unless `qp-hash` chose its path.
    pub(super) fn may_balance(&self, now: Duration, hold: Duration) -> bool {
        self.may_move(now, hold)
            && !self.is_idle()
            && (self.hashed || now.saturating_sub(self.first) >= hold)
    }

    /// Notes when its last frame was sent. Returns whether its activity changed.
    pub(super) fn note_last(&mut self, last: Option<Duration>, now: Duration) -> bool {
        let silent = now.saturating_sub(last.unwrap_or_default().max(self.first));
        let before = std::mem::replace(&mut self.silent, silent);
        if silent < before {
            let is_pause = before <= LONGEST_PAUSE;
            self.longest_pause =
                if is_pause { self.longest_pause.max(before) } else { Duration::ZERO };
        }
        self.has_paused |= silent.max(before) >= PAUSE;
        let expected = 2 * self.longest_pause;
        let activity = match silent {
            _ if silent >= IDLE.max(expected) => Activity::Idle,
            _ if silent >= PAUSE.max(expected) => Activity::Paused,
            _ => Activity::Active,
        };
        std::mem::replace(&mut self.activity, activity) != activity
    }

    /// Whether it has not sent for so long that it is placed like a new one when it does.
    pub(super) fn is_idle(&self) -> bool {
        self.activity == Activity::Idle
    }

    /// What it counts for where new queue pairs are placed.
    pub(super) fn load_for_new(&self) -> u64 {
        match self.activity {
            Activity::Active => self.load,
            Activity::Paused => (self.load / PAUSED_PART).max(1),
            Activity::Idle => 0,
        }
    }

    /// What it counts for in moves, and for other VTEPs.
    pub(super) fn load_for_moves(&self) -> u64 {
        if self.is_idle() { 0 } else { self.load }
    }

    /// What the sums are to include of it.
    pub(super) fn to_count(&self) -> Counted {
        Counted {
            position: Position {
                path: self.path,
                wanted: self.wanted,
                is_idle: self.is_idle(),
                is_hashed: self.hashed,
                stays_hashed: self.stays_hashed(),
            },
            load: Load {
                for_moves: self.load_for_moves(),
                for_new: self.load_for_new(),
                rate_now: self.rate_now,
                measured: (self.rate > 0).then_some((self.rate, self.load)),
            },
            same_links: self.partner.and_then(|partner| partner.same_links),
        }
    }

    /// Takes a reading after `passed`.
    pub(super) fn measure(&mut self, reading: &Reading, passed: Duration, now: Duration) {
        let before = std::mem::replace(&mut self.read, *reading);
        let (bytes, frames) = (
            reading.bytes.saturating_sub(before.bytes),
            reading.frames.saturating_sub(before.frames),
        );
        self.counts += reading.counts.since(before.counts);
        self.is_exact &= reading.unrecorded().wrapping_sub(self.unrecorded) <= 0;
        self.bytes += bytes;
        self.frames += frames;
        if self.first > now.saturating_sub(passed) {
            // It was there for a part of the interval only.
            return;
        }
        let milliseconds = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
        self.rate_now = bytes / milliseconds;
        if frames == 0 {
            return;
        }
        self.active = now;
        // The rate is that while it sends. If it pauses in each interval, that is how it sends.
        if std::mem::take(&mut self.has_paused) && self.skipped < MOST_SKIPPED {
            self.skipped += 1;
            return;
        }
        self.skipped = 0;
        // A rate of a few bytes is not 0, which means that it is not known.
        let rate = self.rate_now.max(1);
        self.rate = if self.rate == 0 { rate } else { (self.rate * 3 + rate).div_ceil(4) };
    }

    /// Rounds the load to a part of the mean. Returns whether it changed.
    pub(super) fn round(&mut self, mean: u64, steps: u64) -> bool {
        let step = (mean / steps).max(1);
        let rate = if self.rate == 0 { mean } else { self.rate };
        // Measuring errors change nothing.
        if rate.abs_diff(self.load) * 10 <= self.load {
            return false;
        }
        let load = ((rate + step / 2) / step).max(1) * step;
        std::mem::replace(&mut self.load, load) != load
    }
}
