//! Oblivious spraying: all paths in turn, whatever happens to packets.

use crate::order::{Order, Tiers};
use crate::random::Random;
use crate::signal::{Entropy, Nanos, Signal, Spray};

/// Each path once a round, in an order that changes with each round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oblivious(Order);

impl Oblivious {
    /// Sprays over these paths.
    #[must_use]
    pub fn new(tiers: Tiers, random: &mut Random) -> Self {
        Self(Order::new(tiers, random))
    }
}

impl Spray for Oblivious {
    fn next(&mut self, _now: Nanos, random: &mut Random) -> Entropy {
        self.0.next(random)
    }

    fn feedback(&mut self, _now: Nanos, _entropy: Entropy, _signal: Signal) {}
}
