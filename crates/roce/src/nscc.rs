//! NSCC, the sender's congestion control of Ultra Ethernet: a window from ECN marks and queueing
//! delay.
//!
//! Delay is the round trip time beyond that without load. Without a mark, the window grows: fast
//! while there is no queue, in proportion to what is missing to the target, or slowly beyond it. A
//! mark with an average delay beyond the target shrinks it. A trimmed packet takes its length off.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::congestion::{Acknowledged, Congestion};

/// A time in picoseconds.
pub type Picos = u64;

/// Parameters of a queue pair's NSCC. All else follows from them and the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Parameters {
    /// Round trip time without load in nanoseconds; a shorter one that is measured replaces it. The
    /// queueing delay that is wanted is three quarters of this.
    #[serde(deserialize_with = "quantity::nanoseconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub round_trip: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { round_trip: 100_000 }
    }
}

impl Parameters {
    /// The network of a host with this rate in bits per second and this path MTU.
    fn network(self, rate: u64, mtu: u32) -> Network {
        let round_trip = self.round_trip.saturating_mul(1000);
        Network {
            round_trip,
            product: round_trip as f64 * rate as f64 / 8e12,
            packet: u16::try_from(mtu).unwrap_or(u16::MAX),
            header: 0,
            target: round_trip / 4 * 3,
        }
    }
}

/// The window of a queue pair. It counts bytes of payload.
#[derive(Debug, Clone)]
pub struct Reaction {
    nscc: Nscc,
    /// The time of the first event: picoseconds since then do not overflow.
    origin: Option<u64>,
}

impl Reaction {
    /// A queue pair of a host with this rate in bits per second and this path MTU.
    #[must_use]
    pub fn new(parameters: Parameters, rate: u64, mtu: u32) -> Self {
        Self { nscc: Nscc::new(parameters.network(rate, mtu)), origin: None }
    }

    fn time(&mut self, now: u64) -> Picos {
        let origin = *self.origin.get_or_insert(now);
        now.saturating_sub(origin).saturating_mul(1000)
    }
}

impl Congestion for Reaction {
    fn window(&self) -> Option<u64> {
        Some(self.nscc.window().max(0).cast_unsigned())
    }

    fn acknowledged(&mut self, now: u64, news: &Acknowledged) {
        let now = self.time(now);
        let round_trip = news.round_trip.map(|time| time.saturating_mul(1000));
        let under_way = news.under_way.try_into().unwrap_or(i64::MAX);
        self.nscc.on_ack(now, news.marked, round_trip, news.bytes, under_way);
    }

    fn lost(&mut self, now: u64, bytes: u32, under_way: u64) {
        let now = self.time(now);
        let bytes = bytes.try_into().unwrap_or(u16::MAX);
        let under_way = under_way.try_into().unwrap_or(i64::MAX);
        self.nscc.on_nack(now, self.nscc.base(), bytes, under_way);
    }
}

/// The figures of a network, the same for all flows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// The round trip time between the most distant hosts, with a data packet out and an
    /// acknowledgement back.
    pub round_trip: Picos,
    /// Bytes that a host sends in this time.
    pub product: f64,
    /// The length of a full packet.
    pub packet: u16,
    /// Its part that is not data.
    pub header: u16,
    /// The queueing delay that is wanted.
    pub target: Picos,
}

impl Network {
    /// The time that a host needs to send a full packet.
    #[must_use]
    pub fn packet_time(&self) -> Picos {
        (self.round_trip as f64 * f64::from(self.packet) / self.product.max(1.0)) as Picos
    }
}

/// The weight of a new delay in the average.
const WEIGHT: f64 = 0.0125;
/// The largest window, as a multiple of the bandwidth-delay product.
const LARGEST: f64 = 1.5;
/// The strength of a decrease.
const DECREASE: f64 = 0.8;
/// With a delay below this there is no queue.
const NO_QUEUE: Picos = 1_000_000;
/// The bandwidth-delay product of the network for which the constants were chosen: 100 Gbit/s, 12 µs.
const REFERENCE_PRODUCT: f64 = 150_000.0;
const REFERENCE_ROUND_TRIP: f64 = 12_000_000.0;

/// The window of a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct Nscc {
    network: Network,
    /// Bytes a picosecond, to make a bandwidth-delay product of a round trip time.
    rate: f64,
    /// The least round trip time that was seen.
    base: Picos,
    /// Bytes that may be under way.
    window: i64,
    largest: i64,
    average: f64,
    /// The increase that waits for its turn, times the window.
    waiting: f64,
    /// Bytes that arrived since increases were applied.
    arrived: u64,
    applied_at: Picos,
    decreased_at: Picos,
    /// Bytes that arrived without a queue in a row.
    no_queue: u64,
    fast: bool,
    /// The measurement of what was achieved.
    achieved: u64,
    measured_until: Picos,
    /// After a window was set to what was achieved, marks for what was under way do not count.
    ignore: i64,
    ignored: i64,
    lost: bool,
}

impl Nscc {
    /// The window at the start of a flow.
    #[must_use]
    pub fn new(network: Network) -> Self {
        let largest = (LARGEST * network.product) as i64;
        Self {
            network,
            rate: network.product / network.round_trip.max(1) as f64,
            base: network.round_trip,
            window: largest,
            largest,
            average: 0.0,
            waiting: 0.0,
            arrived: 0,
            applied_at: 0,
            decreased_at: 0,
            no_queue: 0,
            fast: false,
            achieved: 0,
            measured_until: 0,
            ignore: 0,
            ignored: 0,
            lost: false,
        }
    }

    /// Bytes that may be under way.
    #[must_use]
    pub const fn window(&self) -> i64 {
        self.window
    }

    /// The least round trip time that was seen.
    #[must_use]
    pub const fn base(&self) -> Picos {
        self.base
    }

    fn scale(&self) -> f64 {
        self.network.product / REFERENCE_PRODUCT
    }

    /// Bytes of data in a full packet.
    fn payload(&self) -> f64 {
        f64::from(self.network.packet.saturating_sub(self.network.header))
    }

    fn bound(&mut self) {
        self.window = self.window.min(self.largest).max(self.network.packet.into());
    }

    fn update_base(&mut self, round_trip: Picos) {
        if round_trip < self.base {
            self.base = round_trip;
            self.largest = (LARGEST * self.rate * round_trip as f64) as i64;
        }
    }

    fn average_in(&mut self, delay: Picos, marked: bool) {
        let sample = if !marked && delay > self.network.target {
            self.base as f64 * 0.25
        } else {
            delay as f64
        };
        self.average += WEIGHT * (sample - self.average);
    }

    /// An acknowledgement. `round_trip`: of the packet that caused it, if it was sent once. `bytes`:
    /// how many it newly covers. `under_way`: how many are left.
    pub fn on_ack(
        &mut self,
        now: Picos,
        marked: bool,
        round_trip: Option<Picos>,
        bytes: u32,
        under_way: i64,
    ) {
        self.achieved += u64::from(bytes);
        self.arrived += u64::from(bytes);
        self.ignored += i64::from(bytes);
        if let Some(round_trip) = round_trip {
            self.update_base(round_trip);
            self.average_in(round_trip - self.base, marked);
        }
        let delay = round_trip.map_or(self.average as Picos, |round_trip| round_trip - self.base);
        if self.adapt(now, marked, false, delay, under_way) {
            return;
        }
        let target = self.network.target;
        match (marked, delay < target) {
            (false, false) => {
                self.waiting += 5.0 * self.payload() * self.scale() * f64::from(bytes)
            }
            (false, true) => self.increase(bytes, delay),
            (true, false) => self.decrease(now),
            (true, true) => {}
        }
        self.bound();
        let eight = 8 * u64::from(self.network.packet);
        if self.arrived > eight || now - self.applied_at > self.network.round_trip {
            self.apply(now);
        }
        self.bound();
    }

    /// The increase below the target.
    fn increase(&mut self, bytes: u32, delay: Picos) {
        if delay < NO_QUEUE {
            self.no_queue += u64::from(bytes);
            if self.fast || self.no_queue > self.window as u64 {
                self.window += (f64::from(bytes) * 0.25 * self.scale()) as i64;
                self.fast = true;
                return;
            }
        } else {
            self.no_queue = 0;
        }
        self.fast = false;
        let target = self.network.target as f64;
        let each = 4.0 * self.payload() * self.scale() * (target / REFERENCE_ROUND_TRIP) / target;
        self.waiting += each * f64::from(bytes) * (target - delay as f64);
    }

    fn decrease(&mut self, now: Picos) {
        (self.fast, self.no_queue) = (false, 0);
        let excess = self.average - self.network.target as f64;
        if excess > 0.0 && now - self.decreased_at > self.base {
            let factor = (1.0 - DECREASE * excess / self.average).max(0.5);
            self.window = (self.window as f64 * factor) as i64;
            self.bound();
            self.decreased_at = now;
        }
    }

    /// Applies increases, and once a round trip a small one.
    fn apply(&mut self, now: Picos) {
        self.window += (self.waiting / self.window as f64) as i64;
        if now - self.applied_at >= self.network.round_trip {
            self.window += (0.15 * self.payload() * self.scale()) as i64;
            self.applied_at = now;
        }
        (self.waiting, self.arrived) = (0.0, 0);
    }

    /// Sets the window to what was achieved if that is very little. Whether this signal counts for
    /// nothing else.
    fn adapt(
        &mut self,
        now: Picos,
        marked: bool,
        lost: bool,
        delay: Picos,
        under_way: i64,
    ) -> bool {
        let mut done = false;
        if self.ignored < self.ignore && marked {
            done = true;
        } else if now > self.measured_until {
            let bad = self.lost || lost || delay > 4 * self.network.target;
            if self.measured_until != 0 && bad && (self.achieved as i64) < self.largest >> 3 {
                self.window = (self.achieved as i64).max(self.network.packet.into());
                (self.ignore, self.ignored, self.lost) = (under_way, 0, false);
                done = true;
            }
            self.achieved = 0;
            self.measured_until = now + self.base + self.network.target;
        }
        if done {
            (self.waiting, self.arrived) = (0.0, 0);
        }
        done
    }

    /// A packet of so many bytes was trimmed, and the news took this round trip.
    pub fn on_nack(&mut self, now: Picos, round_trip: Picos, bytes: u16, under_way: i64) {
        self.update_base(round_trip);
        self.ignored += i64::from(bytes);
        self.average_in(self.network.round_trip, true);
        self.lost = true;
        if !self.adapt(now, true, true, 0, under_way) {
            self.window -= i64::from(bytes);
            self.bound();
        }
    }

    /// A packet of so many bytes was not acknowledged in time.
    pub fn on_timeout(&mut self, bytes: u16) {
        self.window = (self.window - i64::from(bytes)).max(self.network.packet.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The network of the reference runs.
    fn nscc() -> Nscc {
        let network = Network {
            round_trip: 14_022_700,
            product: 175_284.0,
            packet: 4150,
            header: 64,
            target: 10_517_000,
        };
        Nscc::new(network)
    }

    #[test]
    fn the_window_begins_at_its_largest_and_stays_in_its_bounds() {
        let mut nscc = nscc();
        assert_eq!(nscc.window(), 262_926);
        nscc.on_ack(14_100_000, false, Some(14_100_000), 16_600, 0);
        assert_eq!(nscc.window(), 262_926);
        for at in 0..200_u64 {
            nscc.on_nack(20_000_000 + at, 14_100_000, 4150, 0);
        }
        assert_eq!(nscc.window(), 4150);
    }

    #[test]
    fn a_mark_alone_changes_nothing_but_a_long_queue_shrinks_the_window() {
        let mut nscc = nscc();
        nscc.on_ack(20_000_000, true, Some(16_000_000), 4150, 0);
        assert_eq!(nscc.window(), 262_926);
        let mut now = 20_000_000;
        for _ in 0..300 {
            now += 332_000;
            nscc.on_ack(now, true, Some(40_000_000), 4150, 0);
        }
        // At most one decrease a round trip, each to a half or more.
        assert!((4150..100_000).contains(&nscc.window()), "{}", nscc.window());
        assert!(nscc.average > 10_517_000.0);
    }

    #[test]
    fn below_the_target_the_window_grows() {
        let mut nscc = nscc();
        nscc.window = 50_000;
        let mut now = 20_000_000;
        for _ in 0..10 {
            now += 332_000;
            nscc.on_ack(now, false, Some(18_000_000), 4150, 0);
        }
        // 0.00159158 B/ps × 9 × 4150 B × (target − delay) / window, then 716 B more.
        let expected = 50_000.0 + 716.0 + 0.001_591_58 * 9.0 * 4150.0 * 6_539_700.0 / 50_000.0;
        assert!((nscc.window() as f64 - expected).abs() < 900.0, "{} {expected}", nscc.window());
    }

    #[test]
    fn a_shorter_way_makes_the_largest_window_smaller() {
        let mut nscc = nscc();
        nscc.on_ack(20_000_000, false, Some(7_011_350), 4150, 0);
        assert_eq!((nscc.base(), nscc.window()), (7_011_350, 131_463));
    }

    #[test]
    fn a_queue_pair_counts_nanoseconds_from_its_first_event() {
        let mut reaction = Reaction::new(Parameters::default(), 10_000_000_000, 1024);
        // 10 Gbit/s for 100 µs, times 1.5.
        assert_eq!(reaction.window(), Some(187_500));
        let late = u64::MAX / 2;
        let news =
            Acknowledged { bytes: 1024, round_trip: Some(50_000), marked: false, under_way: 0 };
        reaction.acknowledged(late, &news);
        assert_eq!((reaction.nscc.base(), reaction.window()), (50_000_000, Some(93_750)));
        reaction.lost(late + 1000, 1024, 0);
        assert_eq!(reaction.window(), Some(93_750 - 1024));
    }
}
