//! Times, rates and lengths in time.

/// A time in picoseconds: at 100 Gbit/s a byte takes 80.
pub type Picos = u64;

/// Picoseconds of a microsecond.
pub const MICROSECOND: Picos = 1_000_000;
/// Picoseconds of a millisecond.
pub const MILLISECOND: Picos = 1_000 * MICROSECOND;
/// Picoseconds of a second.
pub const SECOND: Picos = 1_000 * MILLISECOND;

/// Microseconds, for results.
#[must_use]
pub fn microseconds(time: Picos) -> f64 {
    time as f64 / MICROSECOND as f64
}

/// The bits after the point of [`Rate::per_byte`].
const POINT: u32 = 20;

/// The rate of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// Picoseconds for a byte, as a fixed-point number.
    per_byte: u64,
}

impl Rate {
    /// A rate at which bytes take no time.
    pub const ENDLESS: Self = Self { per_byte: 0 };

    /// So many bits a second, at least 8,000 (a byte takes at most a millisecond).
    #[must_use]
    pub fn new(bits_per_second: f64) -> Self {
        let picos = 8e12 / bits_per_second.max(8e3);
        Self { per_byte: (picos * f64::from(1 << POINT)).round() as u64 }
    }

    /// This rate times a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self::new(self.bits_per_second() * factor)
    }

    /// Bits a second.
    #[must_use]
    pub fn bits_per_second(self) -> f64 {
        8e12 * f64::from(1 << POINT) / self.per_byte.max(1) as f64
    }

    /// How long so many bytes take.
    #[inline]
    #[must_use]
    pub const fn time(self, bytes: u32) -> Picos {
        (self.per_byte * bytes as u64) >> POINT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(Rate::new(100e9).time(4150), 332_000);
        assert_eq!(Rate::new(25e9).time(64), 20_480);
        assert_eq!(Rate::new(100e9).times(0.25), Rate::new(25e9));
        assert_eq!(Rate::new(800e9).bits_per_second(), 800e9);
        // A byte takes no whole number of picoseconds.
        assert_eq!(Rate::new(30e9).time(9000), 2_400_000);
    }
}
