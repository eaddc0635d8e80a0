//! Computes whether and when a frame leaves a circuit, without clock and sockets.

use std::time::Duration;

use experiment::random::Random;

/// The minimum interval between two drawn delays. It is at least [`PERIOD_JITTERS`] times the
/// jitter, so that no frame overtakes another.
const PERIOD: Duration = Duration::from_millis(10);
const PERIOD_JITTERS: u32 = 4;

/// The properties of each direction of a circuit. Names and units are those of `containerlab tools
/// netem`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impairment {
    /// The average delay.
    pub delay: Duration,
    /// The maximum deviation from the average delay; at most `delay`.
    ///
    /// A delay is drawn every 10 ms, or every four jitters if that is longer. It is uniformly
    /// distributed in `delay` ± `jitter`. In between, the delay changes linearly. Frames that are
    /// close in time therefore have similar delays, and none overtakes another.
    pub jitter: Duration,
    /// The probability that a frame is lost, 0 to 1, independently of others. A TCP super-frame is
    /// one frame.
    pub loss: f64,
    /// The rate limit in bits per second of Ethernet frames, without preamble and FCS. Super-frames
    /// count as their segments.
    pub rate: Option<u64>,
    /// The maximum number of bytes that wait for the rate limiter.
    pub queue: u64,
    /// The number of bytes that wait for the rate limiter above which frames get the ECN mark
    /// "congestion experienced", if they are ECN-capable.
    pub ecn: Option<u64>,
}

impl Impairment {
    /// The rate limit; 0 is none.
    fn limit(&self) -> Option<u64> {
        self.rate.filter(|rate| *rate > 0)
    }
}

/// The times of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    /// When the rate limiter has transmitted it.
    pub(super) transmitted: Duration,
    /// When it leaves the circuit.
    pub(super) leaves: Duration,
}

/// The result for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The frame leaves the circuit.
    Leaves(Times),
    /// The frame is lost ([`Impairment::loss`]).
    Lost,
    /// The queue of the rate limiter is full ([`Impairment::queue`]).
    QueueFull,
}

/// The schedule of one direction of a circuit. All times have the same origin.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    impairment: Impairment,
    random: Random,
    /// The delay changes linearly from `from` at `since` to `to` at `until`.
    since: Duration,
    from: Duration,
    until: Duration,
    to: Duration,
    /// When the rate limiter has transmitted the previous frame.
    free: Duration,
    /// When the previous frame leaves.
    last: Duration,
}

impl Schedule {
    pub(super) fn new(impairment: Impairment, random: Random) -> Self {
        let mut schedule = Self {
            impairment,
            random,
            since: Duration::ZERO,
            from: Duration::ZERO,
            until: Duration::ZERO,
            to: Duration::ZERO,
            free: Duration::ZERO,
            last: Duration::ZERO,
        };
        schedule.to = schedule.draw();
        schedule
    }

    pub(super) const fn impairment(&self) -> &Impairment {
        &self.impairment
    }

    /// Changes the properties. `frames` are those on the circuit in their order, each with its bytes.
    /// Where the rate changes, frames that wait for the rate limiter get the new rate and delay.
    /// Others keep their times, and no frame overtakes another.
    pub(super) fn set<'a>(
        &mut self,
        now: Duration,
        impairment: Impairment,
        frames: impl Iterator<Item = (u64, &'a mut Times)>,
    ) {
        let before = std::mem::replace(&mut self.impairment, impairment);
        self.to = self.draw();
        self.until = Duration::ZERO;
        let Some(rate) = before.limit().filter(|_| before.rate != impairment.rate) else { return };
        (self.free, self.last) = (self.free.min(now), self.last.min(now));
        for (bytes, times) in frames {
            if times.transmitted > now {
                // The rate limiter has transmitted a part of the first one.
                let rest = bytes.min(bytes_in(times.transmitted - now, rate));
                let start = self.free.max(now);
                self.free =
                    start + impairment.limit().map_or(Duration::ZERO, |rate| time_of(rest, rate));
                *times = self.times(self.free);
            }
            self.last = times.leaves;
        }
    }

    /// Decides about a frame of `bytes` bytes that arrives at `now`. `now` must not be before that
    /// of the previous call.
    pub(super) fn fate(&mut self, now: Duration, bytes: u64) -> Fate {
        if self.loses() {
            return Fate::Lost;
        }
        let mut sent = now;
        if let Some(rate) = self.impairment.limit() {
            let start = now.max(self.free);
            let waiting = bytes_in(start.saturating_sub(now), rate);
            // If no frame waits, a frame of any size is accepted.
            if waiting > 0 && waiting.saturating_add(bytes) > self.impairment.queue {
                return Fate::QueueFull;
            }
            sent = start + time_of(bytes, rate);
            self.free = sent;
        }
        let times = self.times(sent);
        self.last = times.leaves;
        Fate::Leaves(times)
    }

    /// The times of the next frame, by when it is transmitted.
    fn times(&mut self, transmitted: Duration) -> Times {
        let leaves = self.last.max(transmitted + self.delay(transmitted));
        Times { transmitted, leaves }
    }

    /// Whether a frame that arrives at `now` is to be marked.
    pub(super) fn marks(&self, now: Duration) -> bool {
        let Impairment { rate, ecn, .. } = self.impairment;
        rate.zip(ecn)
            .is_some_and(|(rate, limit)| bytes_in(self.free.saturating_sub(now), rate) > limit)
    }

    fn loses(&mut self) -> bool {
        // 53 bits are what an `f64` represents exactly.
        self.impairment.loss > 0.0
            && ((self.random.next() >> 11) as f64) / ((1_u64 << 53) as f64) < self.impairment.loss
    }

    fn delay(&mut self, at: Duration) -> Duration {
        if self.impairment.jitter.is_zero() {
            return self.impairment.delay;
        }
        let period = PERIOD.max(self.impairment.jitter * PERIOD_JITTERS);
        while at >= self.until {
            self.from = self.to;
            self.to = self.draw();
            // After a long pause, the intermediate delays are skipped.
            self.since = if at >= self.until + 2 * period { at } else { self.until };
            self.until = self.since + period;
        }
        let way = at.saturating_sub(self.since).as_secs_f64() / period.as_secs_f64();
        let (from, to) = (self.from.as_secs_f64(), self.to.as_secs_f64());
        Duration::from_secs_f64((from + (to - from) * way).max(0.0))
    }

    /// Draws a delay, uniformly distributed in `delay` ± `jitter`.
    fn draw(&mut self) -> Duration {
        let Impairment { delay, jitter, .. } = self.impairment;
        let width = u64::try_from(2 * jitter.as_nanos()).unwrap_or(u64::MAX);
        delay.saturating_sub(jitter)
            + Duration::from_nanos(self.random.below(width.saturating_add(1)))
    }
}

/// The number of bytes that a circuit transmits in this time.
fn bytes_in(time: Duration, rate: u64) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(u128::from(rate)) / 8_000_000_000)
        .unwrap_or(u64::MAX)
}

/// The time that a circuit needs to transmit this number of bytes.
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 8_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::random::SEED;

    const MS: Duration = Duration::from_millis(1);
    const WAN: Impairment = Impairment {
        delay: Duration::from_millis(5),
        jitter: MS,
        loss: 0.0,
        rate: None,
        queue: 1 << 20,
        ecn: None,
    };

    fn schedule(impairment: Impairment) -> Schedule {
        Schedule::new(impairment, Random::new(SEED))
    }

    fn leaves(fate: Fate) -> Duration {
        match fate {
            Fate::Leaves(times) => times.leaves,
            other => panic!("{other:?}"),
        }
    }

    /// The delays in ms of frames that arrive at intervals of `apart`.
    fn delays(impairment: Impairment, apart: Duration, count: u32) -> Vec<f64> {
        let mut schedule = schedule(impairment);
        let delay = |index| {
            let now = apart * index;
            (leaves(schedule.fate(now, 100)) - now).as_secs_f64() * 1e3
        };
        (0..count).map(delay).collect()
    }

    #[test]
    fn delays_are_within_the_jitter_and_around_the_delay_whatever_the_rate() {
        for apart in [Duration::from_micros(50), 3 * MS, 200 * MS] {
            let delays = delays(WAN, apart, 40_000);
            let (least, most) =
                delays.iter().fold((9.0_f64, 0.0_f64), |(l, m), d| (l.min(*d), m.max(*d)));
            assert!(
                (4.0..4.1).contains(&least) && (5.9..=6.000_001).contains(&most),
                "{least} {most}"
            );
            let mean = delays.iter().sum::<f64>() / 40_000.0;
            assert!((4.9..5.1).contains(&mean), "{apart:?}: {mean}");
        }
    }

    #[test]
    fn no_frame_overtakes_another() {
        for jitter in [MS, 5 * MS] {
            let mut schedule = schedule(Impairment { jitter, ..WAN });
            let mut last = Duration::ZERO;
            for index in 0..100_000 {
                let at = leaves(schedule.fate(Duration::from_micros(7) * index, 100));
                assert!(at >= last, "{index}");
                last = at;
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_and_another_does_not() {
        let lossy = Impairment { loss: 0.3, ..WAN };
        let fates = |seed| {
            let mut schedule = Schedule::new(lossy, Random::new(seed));
            (0..1000).map(|index| schedule.fate(MS * index, 100)).collect::<Vec<_>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
    }

    #[test]
    fn as_many_are_lost_as_asked() {
        let lost = |loss| {
            let mut schedule = schedule(Impairment { loss, ..WAN });
            (0..100_000).filter(|index| schedule.fate(MS * *index, 100) == Fate::Lost).count()
        };
        assert_eq!((lost(0.0), lost(1.0)), (0, 100_000));
        // Within five standard deviations of the binomial distribution.
        assert!((850..1150).contains(&lost(0.01)), "{}", lost(0.01));
    }

    #[test]
    fn a_rate_makes_frames_wait_and_a_full_queue_drops() {
        // 1,000 bytes take a millisecond.
        let impairment = Impairment {
            delay: 2 * MS,
            jitter: Duration::ZERO,
            rate: Some(8_000_000),
            queue: 3000,
            ..WAN
        };
        let mut schedule = schedule(impairment);
        let mut at = |now| leaves(schedule.fate(now, 1000));
        assert_eq!(
            [at(Duration::ZERO), at(Duration::ZERO), at(Duration::ZERO)],
            [3 * MS, 4 * MS, 5 * MS]
        );
        // Three frames, 3,000 bytes, are in the rate limiter.
        assert_eq!(schedule.fate(Duration::ZERO, 1000), Fate::QueueFull);
        let mut at = |now, bytes| leaves(schedule.fate(now, bytes));
        assert_eq!(at(MS, 1000), 6 * MS);
        // After a pause, the rate limiter allows no burst.
        assert_eq!(at(100 * MS, 1000), 103 * MS);
        // The frame is larger than the queue, but the queue is empty.
        assert_eq!(at(200 * MS, 9000), 211 * MS);
    }

    #[test]
    fn frames_that_wait_get_a_new_rate() {
        // 1,000 bytes take a millisecond.
        let fast = Impairment {
            delay: 2 * MS,
            jitter: Duration::ZERO,
            rate: Some(8_000_000),
            queue: 4000,
            ecn: Some(2500),
            ..WAN
        };
        let changed = |rate| {
            let mut schedule = schedule(fast);
            let mut frames: Vec<Times> = (0..4)
                .map(|_| match schedule.fate(Duration::ZERO, 1000) {
                    Fate::Leaves(times) => times,
                    other => panic!("{other:?}"),
                })
                .collect();
            // The first frame is on the circuit, and half of the second one.
            let now = MS * 3 / 2;
            let slow = Impairment { rate, ..fast };
            schedule.set(now, slow, frames.iter_mut().map(|times| (1000, times)));
            (schedule, frames.iter().map(|times| times.leaves).collect::<Vec<_>>(), now)
        };
        let (mut slow, frames, now) = changed(Some(2_000_000));
        assert_eq!(frames, [3 * MS, MS * 11 / 2, MS * 19 / 2, MS * 27 / 2]);
        // 2,500 bytes wait, as before the change.
        assert!(!slow.marks(now) && slow.marks(now - MS / 100));
        assert_eq!(leaves(slow.fate(now, 1000)), MS * 35 / 2);
        assert_eq!(slow.fate(now, 1000), Fate::QueueFull);
        // Without a rate, none waits; with the same rate, nothing changes.
        assert_eq!(changed(None).1, [3 * MS, MS * 7 / 2, MS * 7 / 2, MS * 7 / 2]);
        assert_eq!(changed(fast.rate).1, [3 * MS, 4 * MS, 5 * MS, 6 * MS]);
    }

    #[test]
    fn frames_are_marked_while_the_queue_is_longer_than_the_limit() {
        let impairment =
            Impairment { rate: Some(8_000_000), queue: 10_000, ecn: Some(2500), ..WAN };
        let mut schedule = schedule(impairment);
        let mut marks = Vec::new();
        for _ in 0..5 {
            marks.push(schedule.marks(MS));
            schedule.fate(MS, 1000);
        }
        // A byte lasts 1 µs.
        assert_eq!(marks, [false, false, false, true, true]);
        assert!(schedule.marks(MS * 3) && !schedule.marks(MS * 4));
        assert!(!self::schedule(Impairment { ecn: Some(0), ..WAN }).marks(MS));
    }
}
