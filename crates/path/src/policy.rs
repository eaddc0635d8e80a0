//! The policies, and the number of bins of `qp-bins`.

use core::fmt;
use core::num::NonZeroU16;
use core::str::FromStr;

/// How the outer source port of a frame is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// As kernel VXLAN: a hash of the inner addresses, protocol and ports, scaled to the netdev's
    /// `srcport` range without its last port.
    FiveTuple,
    /// A hash of the inner addresses and the destination queue pair, scaled to the whole range.
    #[default]
    QpHash,
    /// The same hash, scaled to a few fixed ports of the range.
    QpBins,
    /// A path that probes have found and that has the least load; `qp-hash` while none is known.
    QpPin,
    /// All paths that probes have found, in turns for the packets of a queue pair; `qp-pin` for what is
    /// not sprayed.
    Spray,
}

/// An unknown policy name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no policy (expected five-tuple, qp-hash, qp-bins, qp-pin or spray)")]
pub struct UnknownPolicy(pub String);

impl Policy {
    /// All policies, in the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::FiveTuple, Self::QpHash, Self::QpBins, Self::QpPin, Self::Spray];

    /// The name in the configuration and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FiveTuple => "five-tuple",
            Self::QpHash => "qp-hash",
            Self::QpBins => "qp-bins",
            Self::QpPin => "qp-pin",
            Self::Spray => "spray",
        }
    }

    /// Whether it has queue pairs placed on paths that probes have found.
    #[must_use]
    pub const fn places_queue_pairs(self) -> bool {
        matches!(self, Self::QpPin | Self::Spray)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// The number of ports that `qp-bins` uses, 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bins(NonZeroU16);

/// An invalid number of bins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there cannot be {0} bins: expected a number from 1 to 65535")]
pub struct BinsError(pub String);

impl Bins {
    /// Four bins, as in the ScaleAcross experiment.
    pub const DEFAULT: Self = Self(NonZeroU16::MIN.saturating_add(3));

    /// The number of bins.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for Bins {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<u16> for Bins {
    type Error = BinsError;

    fn try_from(number: u16) -> Result<Self, BinsError> {
        NonZeroU16::new(number).map(Self).ok_or_else(|| BinsError(number.to_string()))
    }
}

impl FromStr for Bins {
    type Err = BinsError;

    fn from_str(text: &str) -> Result<Self, BinsError> {
        text.parse().map(Self).map_err(|_| BinsError(text.to_owned()))
    }
}

impl fmt::Display for Bins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (policy, name) in
            Policy::ALL.into_iter().zip(["five-tuple", "qp-hash", "qp-bins", "qp-pin", "spray"])
        {
            assert_eq!(policy.to_string(), name);
            assert_eq!(name.parse(), Ok(policy));
        }
        let error = "least-load".parse::<Policy>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "'least-load' is no policy (expected five-tuple, qp-hash, qp-bins, qp-pin or spray)"
        );
    }

    #[test]
    fn bins_are_4_by_default_and_never_0() {
        assert_eq!(Bins::default().get(), 4);
        assert_eq!("65535".parse::<Bins>().unwrap().get(), 65535);
        for text in ["0", "65536", "-1", "", "four"] {
            assert_eq!(text.parse::<Bins>(), Err(BinsError(text.to_owned())));
        }
        assert!(Bins::try_from(0).is_err());
    }
}
