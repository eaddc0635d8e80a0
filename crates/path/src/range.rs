//! Ranges of outer UDP source ports.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

/// An inclusive range of UDP source ports. It has at least one port and does not contain port 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourcePortRange {
    min: u16,
    max: u16,
}

/// An invalid range of source ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The lower bound exceeds the upper, or a bound is 0.
    #[error(
        "source port range {0}-{1} is empty or contains port 0 (expected 1 <= MIN <= MAX <= 65535)"
    )]
    Bounds(u16, u16),
    /// The text is not two port numbers.
    #[error("'{0}' is no source port range (expected MIN-MAX, for example 49152-65535)")]
    Text(String),
}

impl SourcePortRange {
    /// 49152 to 65535: the dynamic ports, as recommended by RFC 7348 section 5.
    pub const DEFAULT: Self = Self { min: 49152, max: 65535 };
    /// 32768 to 60999: the default of Linux's `net.ipv4.ip_local_port_range`.
    pub const KERNEL_DEFAULT: Self = Self { min: 32768, max: 60999 };

    /// The range that kernel VXLAN uses for a netdev with `srcport low high`. If the range is empty
    /// or a single port, the kernel uses the `local` port range of the namespace
    /// (`udp_flow_src_port()`, include/net/udp.h).
    #[must_use]
    pub const fn of_netdev(low: u16, high: u16, local: Self) -> Self {
        if low >= high {
            return local;
        }
        // The kernel accepts a lower bound of 0, but port 0 is not a valid source port.
        Self { min: if low == 0 { 1 } else { low }, max: high }
    }

    /// The lowest port.
    #[must_use]
    pub const fn min(self) -> u16 {
        self.min
    }

    /// The highest port.
    #[must_use]
    pub const fn max(self) -> u16 {
        self.max
    }

    /// Number of ports, 1 to 65535.
    #[must_use]
    pub const fn ports(self) -> u16 {
        // Cannot overflow, because `min` is at least 1.
        self.max - self.min + 1
    }

    /// Whether `port` lies in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.min <= port && port <= self.max
    }
}

impl Default for SourcePortRange {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<(u16, u16)> for SourcePortRange {
    type Error = RangeError;

    fn try_from((min, max): (u16, u16)) -> Result<Self, RangeError> {
        if min >= 1 && min <= max {
            Ok(Self { min, max })
        } else {
            Err(RangeError::Bounds(min, max))
        }
    }
}

impl From<SourcePortRange> for RangeInclusive<u16> {
    fn from(range: SourcePortRange) -> Self {
        range.min..=range.max
    }
}

impl FromStr for SourcePortRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let wrong = || RangeError::Text(text.to_owned());
        let (min, max) = text.split_once('-').ok_or_else(wrong)?;
        let port = |digits: &str| digits.trim().parse().map_err(|_| wrong());
        Self::try_from((port(min)?, port(max)?))
    }
}

impl fmt::Display for SourcePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
}

impl fmt::Debug for SourcePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourcePortRange({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn defaults() {
        assert_eq!(SourcePortRange::default().to_string(), "49152-65535");
        assert_eq!(SourcePortRange::default().ports(), 16384);
        assert_eq!(SourcePortRange::KERNEL_DEFAULT.to_string(), "32768-60999");
        assert_eq!(SourcePortRange::try_from((1, 65535)).unwrap().ports(), 65535);
    }

    #[test]
    fn ranges_that_are_none() {
        assert_eq!(SourcePortRange::try_from((0, 5)), Err(RangeError::Bounds(0, 5)));
        assert_eq!(SourcePortRange::try_from((6, 5)), Err(RangeError::Bounds(6, 5)));
        for text in ["", "-", "1", "1-", "-2", "1-70000", "1-2-3", "a-b", "1 2"] {
            assert_eq!(
                text.parse::<SourcePortRange>(),
                Err(RangeError::Text(text.to_owned())),
                "{text}"
            );
        }
        assert_eq!("9-8".parse::<SourcePortRange>(), Err(RangeError::Bounds(9, 8)));
    }

    #[test]
    fn netdev_without_a_range_of_its_own_uses_the_local_one() {
        let local = SourcePortRange::KERNEL_DEFAULT;
        for (low, high) in [(0, 0), (5000, 5000), (5001, 5000)] {
            assert_eq!(SourcePortRange::of_netdev(low, high, local), local);
        }
        assert_eq!(SourcePortRange::of_netdev(5000, 5001, local).to_string(), "5000-5001");
        assert_eq!(SourcePortRange::of_netdev(0, 7, local).to_string(), "1-7");
    }

    proptest! {
        #[test]
        fn text_round_trip(a in 1..=u16::MAX, b in 1..=u16::MAX, port: u16) {
            let range = SourcePortRange::try_from((a.min(b), a.max(b))).unwrap();
            prop_assert_eq!(range.to_string().parse(), Ok(range));
            prop_assert_eq!(range.contains(port), RangeInclusive::from(range).contains(&port));
        }
    }
}
