//! The interface of all schemes.

use crate::random::Random;

/// A time in nanoseconds, from any start.
pub type Nanos = u64;

/// The number of a path of a flow, from 0. A VTEP gives each number a source port. Switches hash
/// it, or the sender knows the path behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entropy(pub u16);

impl Entropy {
    /// The number, as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What happened to packets on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// So many packets arrived without an ECN mark.
    Good(u16),
    /// So many packets arrived with an ECN mark.
    Marked(u16),
    /// So many packets were lost, or trimmed by a full queue.
    Lost(u16),
    /// Nothing was heard for a retransmission timeout.
    Silent,
}

/// A scheme: chooses the path of each packet, and learns from what happened to earlier ones.
pub trait Spray {
    /// The path of the next packet.
    fn next(&mut self, now: Nanos, random: &mut Random) -> Entropy;

    /// What happened to packets on a path. Numbers of other schemes are ignored.
    fn feedback(&mut self, now: Nanos, entropy: Entropy, signal: Signal);
}

/// A number of paths: a power of two from 1 to 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Values(u16);

/// A number that is no power of two from 1 to 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} paths: use a power of two from 1 to 4096")]
pub struct ValuesError(pub u32);

impl Values {
    /// The largest number.
    pub const MAX: u16 = 4096;

    /// This number of paths.
    ///
    /// # Errors
    /// [`ValuesError`] if it is no power of two, or too large.
    pub fn new(number: u32) -> Result<Self, ValuesError> {
        match u16::try_from(number) {
            Ok(small) if small.is_power_of_two() && small <= Self::MAX => Ok(Self(small)),
            _ => Err(ValuesError(number)),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two() {
        for number in [1, 2, 64, 4096] {
            assert_eq!(u32::from(Values::new(number).unwrap().get()), number);
        }
        for number in [0, 3, 65, 8192, 65_536, u32::MAX] {
            assert_eq!(Values::new(number), Err(ValuesError(number)));
        }
    }
}
