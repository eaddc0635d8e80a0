//! Numbers of ports with the bypass, and the counters of each number (`struct port_counts`).
//!
//! The counters are never reset. If a number is given to another port, its counters go on, so that
//! the sum over all numbers only grows.

use std::collections::BTreeMap;

use aya::Ebpf;

use crate::error::SteeringError;
use crate::maps::per_cpu;

shared! {
    /// Counts of a port's frames. A super-frame counts as one.
    #[derive(Default, PartialEq, Eq)]
    pub struct PortCounts {
        /// Frames redirected to the worker past the bridge.
        pub bypass: u64,
        /// Frames that could take the bypass but were left to the bridge, so that it refreshes its
        /// entry of the host.
        pub refreshed: u64,
        /// Other frames, left to the bridge.
        pub passed: u64,
        /// Frames left to the bridge because the worker hung.
        pub stalled: u64,
    }
}

impl PortCounts {
    /// Combines each count with that of `other`.
    fn with(self, other: Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            bypass: join(self.bypass, other.bypass),
            refreshed: join(self.refreshed, other.refreshed),
            passed: join(self.passed, other.passed),
            stalled: join(self.stalled, other.stalled),
        }
    }
}

/// Allocates the numbers.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The counters of each number when it was taken.
    taken: BTreeMap<u16, PortCounts>,
    free: Vec<u16>,
    /// All numbers below this have been taken at some time.
    ever: u16,
}

impl Numbers {
    /// Entries of the programs' map.
    pub(crate) const MOST: u16 = 4096;

    /// Takes a free number, if there is one.
    pub(crate) fn take(&mut self, ebpf: &Ebpf) -> Result<Option<u16>, SteeringError> {
        let Some(number) =
            self.free.last().copied().or((self.ever < Self::MOST).then_some(self.ever))
        else {
            return Ok(None);
        };
        self.taken.insert(number, counted(ebpf, number)?);
        if self.free.pop().is_none() {
            self.ever += 1;
        }
        Ok(Some(number))
    }

    pub(crate) fn give_back(&mut self, number: u16) {
        self.taken.remove(&number);
        self.free.push(number);
    }

    /// Counts of a number since it was taken.
    pub(crate) fn counts(&self, ebpf: &Ebpf, number: u16) -> Result<PortCounts, SteeringError> {
        let before = self.taken.get(&number).copied().unwrap_or_default();
        Ok(counted(ebpf, number)?.with(before, u64::saturating_sub))
    }

    /// The sum of the counts of all numbers.
    pub(crate) fn counts_of_all(&self, ebpf: &Ebpf) -> Result<PortCounts, SteeringError> {
        (0..self.ever).try_fold(PortCounts::default(), |sum, number| {
            Ok(sum.with(counted(ebpf, number)?, u64::wrapping_add))
        })
    }
}

fn counted(ebpf: &Ebpf, number: u16) -> Result<PortCounts, SteeringError> {
    let values = per_cpu::<PortCounts>(ebpf, "port_counts", number.into())?;
    Ok(values.iter().fold(PortCounts::default(), |sum, value| sum.with(*value, u64::wrapping_add)))
}
