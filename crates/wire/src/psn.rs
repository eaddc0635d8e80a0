//! Packet sequence numbers: 24 bits, modulo 2²⁴ (InfiniBand architecture 9.7.1).

const MASK: u32 = 0x00ff_ffff;
const HALF: u32 = 1 << 23;

/// A packet sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `number`.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// The number, 0 to 2²⁴ − 1.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that is `count` further.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    /// The number before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        self.plus(MASK)
    }

    /// How far this number is behind `start`: −2²³ to 2²³ − 1. Negative if it is before `start`.
    #[must_use]
    pub const fn since(self, start: Self) -> i32 {
        let distance = self.0.wrapping_sub(start.0) & MASK;
        if distance < HALF { distance as i32 } else { distance as i32 - (1 << 24) }
    }

    /// Whether this number is before `other`.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        let last = Psn::new(MASK);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(3).since(last), 4);
        assert_eq!(last.since(Psn::new(3)), -4);
        assert!(last.is_before(Psn::new(0)) && !Psn::new(0).is_before(last));
        assert_eq!(Psn::new(HALF).since(Psn::new(0)), -(1 << 23));
        assert_eq!(Psn::new(0x0100_0005), Psn::new(5));
    }
}
