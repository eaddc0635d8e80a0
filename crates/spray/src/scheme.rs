//! Schemes by their names.

use std::fmt;
use std::str::FromStr;

use crate::bitmap::Bitmap;
use crate::mixed::Mixed;
use crate::oblivious::Oblivious;
use crate::order::Tiers;
use crate::prime_like::{PrimeLike, Times};
use crate::random::Random;
use crate::reps::Reps;
use crate::signal::{Entropy, Nanos, Signal, Spray, Values};

/// A scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// One path for all packets of a flow.
    Ecmp,
    /// [`Oblivious`].
    Oblivious,
    /// [`Reps`].
    Reps,
    /// [`Bitmap`].
    Bitmap,
    /// [`Mixed`].
    Mixed,
    /// [`PrimeLike`], a reconstruction of PRIME from its abstract.
    PrimeLike,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 6] =
        [Self::Ecmp, Self::Oblivious, Self::Reps, Self::Bitmap, Self::Mixed, Self::PrimeLike];

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ecmp => "ecmp",
            Self::Oblivious => "oblivious",
            Self::Reps => "reps",
            Self::Bitmap => "bitmap",
            Self::Mixed => "mixed",
            Self::PrimeLike => "prime-like",
        }
    }

    /// Whether the state belongs to two hosts, and outlives their flows.
    #[must_use]
    pub const fn outlives_flows(self) -> bool {
        matches!(self, Self::PrimeLike)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name of no scheme.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no scheme: use ecmp, oblivious, reps, bitmap, mixed or prime-like")]
pub struct UnknownScheme(pub String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        let named = Self::ALL.into_iter().find(|scheme| scheme.name() == text);
        named.ok_or_else(|| UnknownScheme(text.to_owned()))
    }
}

/// The state of a scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sprayer {
    /// One path for all packets.
    Fixed(Entropy),
    /// [`Oblivious`].
    Oblivious(Oblivious),
    /// [`Reps`].
    Reps(Reps),
    /// [`Bitmap`].
    Bitmap(Bitmap),
    /// [`Mixed`].
    Mixed(Mixed),
    /// [`PrimeLike`].
    PrimeLike(PrimeLike),
}

impl Sprayer {
    /// The state of a scheme over these paths. They have this round trip time without load, and a
    /// packet takes so long at full rate.
    #[must_use]
    pub fn new(
        scheme: Scheme,
        tiers: Tiers,
        (round_trip, packet): (Nanos, Nanos),
        random: &mut Random,
    ) -> Self {
        match scheme {
            Scheme::Ecmp => Self::Fixed(Entropy(random.below_u16(tiers.paths()))),
            Scheme::Oblivious => Self::Oblivious(Oblivious::new(tiers, random)),
            // The product of tiers is a power of two in range.
            Scheme::Reps => Values::new(tiers.paths().into())
                .map_or(Self::Fixed(Entropy(0)), |values| Self::Reps(Reps::new(values))),
            Scheme::Bitmap => Self::Bitmap(Bitmap::new(tiers, random)),
            Scheme::Mixed => Self::Mixed(Mixed::new(tiers, random)),
            Scheme::PrimeLike => {
                let times = Times::new(tiers.paths(), round_trip, packet);
                Self::PrimeLike(PrimeLike::new(tiers, times, random))
            }
        }
    }
}

impl Spray for Sprayer {
    #[inline]
    fn next(&mut self, now: Nanos, random: &mut Random) -> Entropy {
        match self {
            Self::Fixed(entropy) => *entropy,
            Self::Oblivious(scheme) => scheme.next(now, random),
            Self::Reps(scheme) => scheme.next(now, random),
            Self::Bitmap(scheme) => scheme.next(now, random),
            Self::Mixed(scheme) => scheme.next(now, random),
            Self::PrimeLike(scheme) => scheme.next(now, random),
        }
    }

    fn feedback(&mut self, now: Nanos, entropy: Entropy, signal: Signal) {
        match self {
            Self::Fixed(_) => {}
            Self::Oblivious(scheme) => scheme.feedback(now, entropy, signal),
            Self::Reps(scheme) => scheme.feedback(now, entropy, signal),
            Self::Bitmap(scheme) => scheme.feedback(now, entropy, signal),
            Self::Mixed(scheme) => scheme.feedback(now, entropy, signal),
            Self::PrimeLike(scheme) => scheme.feedback(now, entropy, signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        assert_eq!("prime".parse::<Scheme>(), Err(UnknownScheme("prime".into())));
    }
}
