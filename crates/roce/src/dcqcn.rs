//! DCQCN: the rate of a queue pair follows congestion notifications (Zhu et al., "Congestion
//! Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::congestion::Congestion;

/// Parameters. Those that the paper names have its values (section 5.2 and figure 14).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Parameters {
    /// Weight of a new observation in α.
    pub g: f64,
    /// Time after which α decreases without a notification, in nanoseconds (the paper's K).
    #[serde(deserialize_with = "quantity::nanoseconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub alpha_timer: u64,
    /// Time between two rate increases, in nanoseconds (the paper's T).
    #[serde(deserialize_with = "quantity::nanoseconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub increase_timer: u64,
    /// Bytes between two rate increases (the paper's B).
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "quantity::NumberOrText")]
    pub byte_counter: u64,
    /// Increases of each kind that belong to fast recovery (the paper's F).
    pub fast_recovery: u32,
    /// Step of additive increase in bits per second (the paper's R_AI).
    #[serde(deserialize_with = "quantity::bit_rate")]
    #[schemars(with = "quantity::NumberOrText")]
    pub additive_increase: f64,
    /// Step of hyper increase in bits per second. The paper does not give it; NICs have ten times
    /// the step of additive increase.
    #[serde(deserialize_with = "quantity::bit_rate")]
    #[schemars(with = "quantity::NumberOrText")]
    pub hyper_increase: f64,
    /// Minimum rate in bits per second. The paper does not give it.
    #[serde(deserialize_with = "quantity::bit_rate")]
    #[schemars(with = "quantity::NumberOrText")]
    pub minimum_rate: f64,
    /// Time between two notifications of a connection, in nanoseconds (the paper's N).
    #[serde(deserialize_with = "quantity::nanoseconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub notification_interval: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            g: 1.0 / 256.0,
            alpha_timer: 55_000,
            increase_timer: 55_000,
            byte_counter: 10_000_000,
            fast_recovery: 5,
            additive_increase: 40e6,
            hyper_increase: 400e6,
            minimum_rate: 1e6,
            notification_interval: 50_000,
        }
    }
}

/// The reaction point: the rate of one queue pair.
#[derive(Debug, Clone)]
pub struct Reaction {
    parameters: Parameters,
    line_rate: f64,
    current: f64,
    target: f64,
    alpha: f64,
    /// Whether the rate is below the line rate. Otherwise no timer runs.
    limited: bool,
    alpha_at: u64,
    increase_at: u64,
    bytes: u64,
    /// Increases since the last decrease, by the timer and by the byte counter.
    by_time: u32,
    by_bytes: u32,
}

impl Reaction {
    /// A queue pair that starts at the line rate, in bits per second.
    #[must_use]
    pub const fn new(parameters: Parameters, line_rate: f64) -> Self {
        Self {
            parameters,
            line_rate,
            current: line_rate,
            target: line_rate,
            alpha: 1.0,
            limited: false,
            alpha_at: u64::MAX,
            increase_at: 0,
            bytes: 0,
            by_time: 0,
            by_bytes: 0,
        }
    }

    /// The estimate of the congestion, 0 to 1.
    #[must_use]
    pub const fn alpha(&self) -> f64 {
        self.alpha
    }

    /// The rate that fast recovery approaches, in bits per second.
    #[must_use]
    pub const fn target(&self) -> f64 {
        self.target
    }

    /// One increase (equations 3 and 4; hyper increase as in QCN, IEEE 802.1Q-2018 32.2.2).
    fn increase(&mut self) {
        let Parameters { fast_recovery, additive_increase, hyper_increase, .. } = self.parameters;
        let (least, most) = (self.by_time.min(self.by_bytes), self.by_time.max(self.by_bytes));
        if least > fast_recovery {
            self.target += hyper_increase * f64::from(least - fast_recovery);
        } else if most >= fast_recovery {
            self.target += additive_increase;
        }
        self.target = self.target.min(self.line_rate);
        self.current = f64::midpoint(self.target, self.current);
        // The last bit per second would never be reached by halving.
        if self.line_rate - self.current < 1.0 {
            self.current = self.line_rate;
            self.limited = false;
        }
    }
}

impl Congestion for Reaction {
    fn rate(&self) -> Option<f64> {
        self.limited.then_some(self.current)
    }

    /// Equation 1.
    fn notified(&mut self, now: u64) {
        self.advance(now);
        let Parameters { g, minimum_rate, alpha_timer, increase_timer, .. } = self.parameters;
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(minimum_rate);
        self.alpha = (1.0 - g) * self.alpha + g;
        self.limited = true;
        self.alpha_at = now.saturating_add(alpha_timer);
        self.increase_at = now.saturating_add(increase_timer);
        (self.bytes, self.by_time, self.by_bytes) = (0, 0, 0);
    }

    fn sent(&mut self, bytes: u64) {
        if !self.limited {
            return;
        }
        self.bytes += bytes;
        if self.bytes >= self.parameters.byte_counter {
            self.bytes -= self.parameters.byte_counter;
            self.by_bytes += 1;
            self.increase();
        }
    }

    fn advance(&mut self, now: u64) {
        let timer = self.parameters.alpha_timer.max(1);
        if !self.limited && self.alpha_at <= now {
            let periods = (now - self.alpha_at) / timer + 1;
            let count = i32::try_from(periods).unwrap_or(i32::MAX);
            self.alpha *= (1.0 - self.parameters.g).powi(count);
            self.alpha_at = self.alpha_at.saturating_add(periods.saturating_mul(timer));
        }
        while self.limited && self.alpha_at.min(self.increase_at) <= now {
            if self.alpha_at <= self.increase_at {
                // Equation 2.
                self.alpha *= 1.0 - self.parameters.g;
                self.alpha_at += timer;
            } else {
                self.by_time += 1;
                self.increase_at += self.parameters.increase_timer.max(1);
                self.increase();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 40e9;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() <= expected.abs() * 1e-9, "{found} {expected}");
    }

    #[test]
    fn a_notification_lowers_the_rate_and_raises_alpha() {
        let mut reaction = Reaction::new(Parameters::default(), LINE);
        assert_eq!(reaction.rate(), None);
        // Alpha starts at 1: the first notification halves the rate (equation 1).
        reaction.notified(0);
        near(reaction.rate().unwrap(), LINE / 2.0);
        near(reaction.target(), LINE);
        near(reaction.alpha(), 1.0);
        // After 10 quiet periods, alpha is (1 - g)^10 (equation 2).
        let mut later = Reaction::new(
            Parameters { increase_timer: u64::MAX / 4, ..Parameters::default() },
            LINE,
        );
        later.notified(0);
        later.advance(550_000);
        let alpha = (255.0_f64 / 256.0).powi(10);
        near(later.alpha(), alpha);
        later.notified(550_000);
        near(later.rate().unwrap(), LINE / 2.0 * (1.0 - alpha / 2.0));
        near(later.alpha(), alpha * 255.0 / 256.0 + 1.0 / 256.0);
        near(later.target(), LINE / 2.0);
    }

    #[test]
    fn fast_recovery_halves_the_distance_five_times() {
        let mut reaction = Reaction::new(Parameters::default(), LINE);
        reaction.notified(0);
        reaction.notified(1000);
        let (target, mut rate) = (LINE / 2.0, LINE / 4.0);
        near(reaction.rate().unwrap(), rate);
        for period in 1..=4 {
            reaction.advance(1000 + period * 55_000);
            rate = f64::midpoint(rate, target);
            near(reaction.rate().unwrap(), rate);
            near(reaction.target(), target);
        }
        // The fifth increase is additive: max(T, BC) is no longer below F.
        reaction.advance(1000 + 5 * 55_000);
        near(reaction.target(), target + 40e6);
        near(reaction.rate().unwrap(), f64::midpoint(rate, target + 40e6));
    }

    #[test]
    fn hyper_increase_needs_both_timer_and_bytes() {
        let mut reaction = Reaction::new(Parameters::default(), LINE);
        reaction.notified(0);
        reaction.notified(0);
        for _ in 0..6 {
            reaction.sent(10_000_000);
        }
        // Five byte counters: additive from the fifth on.
        near(reaction.target(), LINE / 2.0 + 2.0 * 40e6);
        reaction.advance(6 * 55_000 - 1);
        let before = reaction.target();
        near(before, LINE / 2.0 + 7.0 * 40e6);
        // The sixth of both kinds: i = 1.
        reaction.advance(6 * 55_000);
        near(reaction.target(), before + 400e6);
        reaction.sent(10_000_000);
        near(reaction.target(), before + 800e6);
        reaction.advance(7 * 55_000);
        near(reaction.target(), before + 1600e6);
    }

    #[test]
    fn the_rate_stays_between_minimum_and_line_rate() {
        let mut reaction = Reaction::new(Parameters::default(), 1e9);
        (0..100).for_each(|_| reaction.notified(0));
        near(reaction.rate().unwrap(), 1e6);
        reaction.advance(1_000_000_000);
        assert_eq!(reaction.rate(), None);
        near(reaction.target(), 1e9);
    }
}
