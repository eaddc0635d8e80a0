//! A token bucket: limits how often something happens.

use std::time::Duration;

/// Allows `rate` events in a second on average, and `burst` at once.
#[derive(Debug, Clone)]
pub struct Limit {
    rate: u32,
    burst: u32,
    /// Tokens in billionths of an event.
    tokens: u64,
    at: Duration,
}

const ONE: u64 = 1_000_000_000;

impl Limit {
    /// A full bucket.
    #[must_use]
    pub fn new(rate: u32, burst: u32) -> Self {
        Self { rate, burst, tokens: u64::from(burst) * ONE, at: Duration::ZERO }
    }

    /// Whether one more event is allowed now. If so, it is counted.
    pub fn take(&mut self, now: Duration) -> bool {
        self.take_many(now, 1)
    }

    /// Whether one more event is allowed now.
    pub fn has(&mut self, now: Duration) -> bool {
        self.refill(now);
        self.tokens >= ONE
    }

    /// Whether as many events as at first are allowed at once.
    pub fn is_full(&mut self, now: Duration) -> bool {
        self.refill(now);
        self.tokens >= u64::from(self.burst) * ONE
    }

    fn refill(&mut self, now: Duration) {
        let nanoseconds = now.saturating_sub(self.at).as_nanos();
        self.at = self.at.max(now);
        let added = nanoseconds.saturating_mul(u128::from(self.rate));
        let full = u64::from(self.burst) * ONE;
        self.tokens = u64::try_from(added).unwrap_or(u64::MAX).saturating_add(self.tokens);
        self.tokens = self.tokens.min(full);
    }

    /// Whether this many events are allowed now. If so, they are counted; if not, none is.
    pub fn take_many(&mut self, now: Duration, events: u32) -> bool {
        self.refill(now);
        let wanted = u64::from(events) * ONE;
        let allowed = self.tokens >= wanted;
        if allowed {
            self.tokens -= wanted;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut limit = Limit::new(10, 3);
        let at = Duration::from_millis;
        assert_eq!([0, 0, 0, 0].map(|ms| limit.take(at(ms))), [true, true, true, false]);
        assert_eq!([50, 100, 150, 200].map(|ms| limit.take(at(ms))), [false, true, false, true]);
        // A clock that goes back gives nothing.
        assert!(!limit.take(at(0)) && !limit.take(at(200)));
        assert_eq!([9000; 4].map(|ms| limit.take(at(ms))), [true, true, true, false]);
        let two = |ms, limit: &mut Limit| limit.take_many(at(ms), 2);
        assert!(!two(9100, &mut limit) && two(9200, &mut limit) && !limit.take(at(9200)));
    }
}
