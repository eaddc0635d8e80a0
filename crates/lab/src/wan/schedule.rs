//! When a frame leaves a circuit, if it does: no clock, no sockets.

use std::time::Duration;

use crate::random::Random;

/// How far apart the delays are that are drawn, at least; and at least so many jitters, so that no
/// frame overtakes another.
const PERIOD: Duration = Duration::from_millis(10);
const PERIOD_JITTERS: u32 = 4;

/// What a circuit does to each of its directions. The names and units are `containerlab tools
/// netem`'s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impairment {
    /// How long a frame is on its way, on average.
    pub delay: Duration,
    /// How far the delay goes from that, up and down; at most `delay`.
    ///
    /// A delay is drawn every 10 ms (or every four jitters, if that is longer), each in `delay` ±
    /// `jitter` as likely as any other, and in between it goes from one to the next evenly. So
    /// frames that are near in time have similar delays, whatever their rate, and none overtakes
    /// another.
    pub jitter: Duration,
    /// The probability that a frame is lost, 0 to 1, each for itself. A TCP super-frame is one
    /// frame.
    pub loss: f64,
    /// Bits per second of Ethernet frames (without preamble and FCS); super-frames count as the
    /// segments that they stand for.
    pub rate: Option<u64>,
    /// Bytes that may wait for their turn where there is a rate.
    pub queue: u64,
}

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It leaves then.
    Leaves(Duration),
    /// By [`Impairment::loss`].
    Lost,
    /// By [`Impairment::queue`].
    QueueFull,
}

/// One direction of a circuit. All times count from the same moment.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    impairment: Impairment,
    random: Random,
    /// The delay goes from one value to another between two times.
    since: Duration,
    from: Duration,
    until: Duration,
    to: Duration,
    /// When the last frame has been put on the circuit.
    free: Duration,
    /// When the last frame leaves.
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

    /// What becomes of a frame of so many bytes that arrives now, or not before the frame that was
    /// asked about last.
    pub(super) fn fate(&mut self, now: Duration, bytes: u64) -> Fate {
        if self.loses() {
            return Fate::Lost;
        }
        let mut sent = now;
        if let Some(rate) = self.impairment.rate.filter(|rate| *rate > 0) {
            let start = now.max(self.free);
            let waiting = bytes_in(start.saturating_sub(now), rate);
            // A frame that finds nobody waiting is taken whatever its size.
            if waiting > 0 && waiting.saturating_add(bytes) > self.impairment.queue {
                return Fate::QueueFull;
            }
            sent = start + time_of(bytes, rate);
            self.free = sent;
        }
        self.last = self.last.max(sent + self.delay(sent));
        Fate::Leaves(self.last)
    }

    fn loses(&mut self) -> bool {
        // 53 bits: what an f64 holds exactly.
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
            // After a pause nobody asks how the delay has wandered meanwhile.
            self.since = if at >= self.until + 2 * period { at } else { self.until };
            self.until = self.since + period;
        }
        let way = at.saturating_sub(self.since).as_secs_f64() / period.as_secs_f64();
        let (from, to) = (self.from.as_secs_f64(), self.to.as_secs_f64());
        Duration::from_secs_f64((from + (to - from) * way).max(0.0))
    }

    /// As likely as any other within the jitter.
    fn draw(&mut self) -> Duration {
        let Impairment { delay, jitter, .. } = self.impairment;
        let width = u64::try_from(2 * jitter.as_nanos()).unwrap_or(u64::MAX);
        delay.saturating_sub(jitter)
            + Duration::from_nanos(self.random.below(width.saturating_add(1)))
    }
}

/// Bytes that a circuit takes in that time.
fn bytes_in(time: Duration, rate: u64) -> u64 {
    u64::try_from(time.as_nanos().saturating_mul(u128::from(rate)) / 8_000_000_000)
        .unwrap_or(u64::MAX)
}

/// How long a circuit takes for so many bytes.
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 8_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SEED;

    const MS: Duration = Duration::from_millis(1);
    const WAN: Impairment = Impairment {
        delay: Duration::from_millis(5),
        jitter: MS,
        loss: 0.0,
        rate: None,
        queue: 1 << 20,
    };

    fn schedule(impairment: Impairment) -> Schedule {
        Schedule::new(impairment, Random::new(SEED))
    }

    fn leaves(fate: Fate) -> Duration {
        match fate {
            Fate::Leaves(at) => at,
            other => panic!("{other:?}"),
        }
    }

    /// The delays in ms of frames that arrive so far apart.
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
        // Five standard deviations of a binomial distribution.
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
        assert_eq!(schedule.fate(Duration::ZERO, 1000), Fate::Leaves(3 * MS));
        assert_eq!(schedule.fate(Duration::ZERO, 1000), Fate::Leaves(4 * MS));
        assert_eq!(schedule.fate(Duration::ZERO, 1000), Fate::Leaves(5 * MS));
        // Three are on the circuit or wait: 3,000 bytes.
        assert_eq!(schedule.fate(Duration::ZERO, 1000), Fate::QueueFull);
        assert_eq!(schedule.fate(MS, 1000), Fate::Leaves(6 * MS));
        // The circuit was idle: nobody has saved up time.
        assert_eq!(schedule.fate(100 * MS, 1000), Fate::Leaves(103 * MS));
        // Larger than the queue, but nobody waits.
        assert_eq!(schedule.fate(200 * MS, 9000), Fate::Leaves(211 * MS));
    }
}
