//! Orders in which each path comes once a round.
//!
//! A path is a number with a digit for each tier: the uplink that a packet takes there. The digit
//! of the first tier changes with each packet, so consecutive packets leave by different links. A
//! digit is masked, and its mask is drawn again whenever it wraps. Without known tiers, a path is
//! one digit: this is the order of oblivious spraying.

use crate::random::Random;
use crate::signal::{Entropy, Values};

/// The most tiers.
pub const TIERS: usize = 4;

/// The number of uplinks at each tier that a packet passes on its way up, the first tier first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiers {
    uplinks: [u16; TIERS],
    count: usize,
}

/// Numbers of uplinks that make no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "use 1 to {TIERS} tiers, each with a power of two of uplinks, and at most {max} paths",
    max = Values::MAX
)]
pub struct TiersError;

impl Tiers {
    /// Tiers with these numbers of uplinks.
    ///
    /// # Errors
    /// [`TiersError`] if a number is no power of two, or if there are too many.
    pub fn new(uplinks: &[u16]) -> Result<Self, TiersError> {
        let mut own = Self { uplinks: [1; TIERS], count: uplinks.len() };
        let paths =
            uplinks.iter().fold(1_u32, |paths, &number| paths.saturating_mul(number.into()));
        if own.count == 0 || Values::new(paths).is_err() {
            return Err(TiersError);
        }
        // Factors of a power of two are powers of two.
        own.uplinks.get_mut(..own.count).ok_or(TiersError)?.copy_from_slice(uplinks);
        Ok(own)
    }

    /// One tier: nothing is known but the number of paths.
    #[must_use]
    pub const fn unknown(values: Values) -> Self {
        Self { uplinks: [values.get(), 1, 1, 1], count: 1 }
    }

    /// The number of paths.
    #[must_use]
    pub fn paths(&self) -> u16 {
        self.uplinks.iter().product()
    }

    /// The numbers of uplinks.
    #[must_use]
    pub fn uplinks(&self) -> &[u16] {
        self.uplinks.get(..self.count).unwrap_or_default()
    }
}

/// The state of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The bits of the digit of each tier.
    digits: [u16; TIERS],
    /// The bits of all digits: the highest number of a path.
    last: u16,
    /// How often a path was given in this round.
    given: u16,
    /// The masks of all digits.
    mask: u16,
}

impl Order {
    /// An order that starts with drawn masks.
    #[must_use]
    pub fn new(tiers: Tiers, random: &mut Random) -> Self {
        let mut own = Self::at_zero(tiers);
        own.draw(random, own.last);
        own
    }

    fn at_zero(tiers: Tiers) -> Self {
        let mut shift = 0;
        let digits = tiers.uplinks.map(|uplinks| {
            let digit = (uplinks - 1) << shift;
            shift += uplinks.trailing_zeros();
            digit
        });
        Self { digits, last: tiers.paths() - 1, given: 0, mask: 0 }
    }

    /// The number of paths.
    #[must_use]
    pub const fn paths(&self) -> u16 {
        self.last + 1
    }

    /// The next path.
    #[inline]
    pub fn next(&mut self, random: &mut Random) -> Entropy {
        let (path, before) = (self.given ^ self.mask, self.given);
        self.given = (before + 1) & self.last;
        // The lowest digit wraps first.
        if before & 1 == 1 {
            self.draw(random, before);
        }
        Entropy(path)
    }

    /// Draws the mask of each digit that wraps behind `before`: it and all below it are at their end.
    fn draw(&mut self, random: &mut Random, before: u16) {
        for digit in self.digits {
            if before & digit != digit {
                break;
            }
            if digit > 0 {
                let shift = digit.trailing_zeros();
                let drawn = random.below_u16((digit >> shift) + 1);
                self.mask = self.mask & !digit | drawn << shift;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_tier_by_hand() {
        let tiers = Tiers::unknown(Values::new(8).unwrap());
        let mut order = Order { mask: 0b101, ..Order::at_zero(tiers) };
        let mut random = Random::new(1);
        let round: Vec<u16> = (0..8).map(|_| order.next(&mut random).0).collect();
        assert_eq!(round, [5, 4, 7, 6, 1, 0, 3, 2]);
        let mask = Random::new(1).below_u16(8);
        let next: Vec<u16> = (0..8).map(|_| order.next(&mut random).0).collect();
        assert_eq!(next, [0, 1, 2, 3, 4, 5, 6, 7].map(|n| n ^ mask));
    }

    #[test]
    fn two_tiers_by_hand() {
        let tiers = Tiers::new(&[4, 2]).unwrap();
        let mut order = Order { mask: 0b1_10, ..Order::at_zero(tiers) };
        let mut random = Random::new(9);
        let mask = Random::new(9).below_u16(4);
        // The first digit is in the two low bits; the second starts at 0 ^ 1.
        let first: Vec<u16> = (0..4).map(|_| order.next(&mut random).0).collect();
        assert_eq!(first, [0b1_10, 0b1_11, 0b1_00, 0b1_01]);
        let second: Vec<u16> = (0..4).map(|_| order.next(&mut random).0).collect();
        assert_eq!(second, [0, 1, 2, 3].map(|digit| digit ^ mask));
    }

    #[test]
    fn wrong_tiers() {
        // The product of the last is 2³² + 4.
        for uplinks in [&[][..], &[3], &[0], &[2; 5], &[4096, 2], &[33_025, 2501, 52]] {
            assert_eq!(Tiers::new(uplinks), Err(TiersError), "{uplinks:?}");
        }
    }

    proptest! {
        #[test]
        fn each_path_once_a_round(seed: u64, bits in prop::collection::vec(0_u32..4, 1..=4)) {
            prop_assume!(bits.iter().sum::<u32>() <= 12);
            let uplinks: Vec<u16> = bits.iter().map(|bits| 1 << bits).collect();
            let tiers = Tiers::new(&uplinks).unwrap();
            let mut random = Random::new(seed);
            let mut order = Order::new(tiers, &mut random);
            for _ in 0..3 {
                let round: Vec<u16> =
                    (0..tiers.paths()).map(|_| order.next(&mut random).0).collect();
                let different: BTreeSet<u16> = round.iter().copied().collect();
                prop_assert_eq!(different.len(), usize::from(tiers.paths()));
                // So many consecutive packets leave by different links.
                for group in round.chunks(usize::from(uplinks[0])) {
                    let links: BTreeSet<u16> =
                        group.iter().map(|path| path & (uplinks[0] - 1)).collect();
                    prop_assert_eq!(links.len(), usize::from(uplinks[0]));
                }
            }
        }
    }
}
