//! What identifies a path, and what identifies the counters of a queue pair.

use core::fmt;
use core::num::NonZeroU32;

/// A path to a remote VTEP, as the sender decides it: a next hop and an outer source port. The
/// routers behind the next hop hash the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    /// Identity of the next hop ([`crate::NextHop::identity`]).
    pub hop: u64,
    /// Outer UDP source port.
    pub source_port: u16,
}

/// The counters of a placed queue pair, in all datapaths: its entry in [`crate::Usage`] and in the
/// BPF map `offload_usage`. A queue pair has the same ones as long as it is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterId(NonZeroU32);

impl CounterId {
    /// The first one.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// The counters with this number. `None` for 0, which means none in BPF maps.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, from 1.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The number as an index of a table whose entry 0 is not used.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0.get() as usize
    }
}

impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
