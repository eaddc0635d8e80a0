//! Numbers of ports with the bypass, and what the programs count under each (`struct port_counts`).
//!
//! Nobody resets what is counted: a number that is given to another port goes on from where it was,
//! so that the sum of all only grows.

use std::collections::BTreeMap;

use aya::maps::PerCpuArray;
use aya::{Ebpf, Pod};

use crate::steering::SteeringError;

/// What became of a port's frames; a super-frame is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortCounts {
    /// Redirected to the worker without the bridge.
    pub bypass: u64,
    /// Could have been, and were left to the bridge so that it sees who is talking.
    pub refreshed: u64,
    /// Others, left to the bridge.
    pub passed: u64,
    /// Left to the bridge because the worker hung.
    pub stalled: u64,
}

// SAFETY: plain integers without padding.
unsafe impl Pod for PortCounts {}

impl PortCounts {
    /// Each of the counts, joined with that of another.
    fn with(self, other: Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            bypass: join(self.bypass, other.bypass),
            refreshed: join(self.refreshed, other.refreshed),
            passed: join(self.passed, other.passed),
            stalled: join(self.stalled, other.stalled),
        }
    }
}

/// Which numbers are in use.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// What stood under each number when it was taken.
    taken: BTreeMap<u16, PortCounts>,
    free: Vec<u16>,
    /// Numbers ever taken: all below this.
    ever: u16,
}

impl Numbers {
    /// Entries of the programs' map.
    pub(crate) const MOST: u16 = 4096;

    /// A number that nobody has, if there is one.
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

    /// What was counted under a number since it was taken.
    pub(crate) fn counts(&self, ebpf: &Ebpf, number: u16) -> Result<PortCounts, SteeringError> {
        let before = self.taken.get(&number).copied().unwrap_or_default();
        Ok(counted(ebpf, number)?.with(before, u64::saturating_sub))
    }

    /// What was counted under all numbers.
    pub(crate) fn counts_of_all(&self, ebpf: &Ebpf) -> Result<PortCounts, SteeringError> {
        (0..self.ever).try_fold(PortCounts::default(), |sum, number| {
            Ok(sum.with(counted(ebpf, number)?, u64::wrapping_add))
        })
    }
}

fn counted(ebpf: &Ebpf, number: u16) -> Result<PortCounts, SteeringError> {
    let name = "port_counts";
    let map = ebpf.map(name).ok_or(SteeringError::Missing(name))?;
    let map: PerCpuArray<_, PortCounts> =
        map.try_into().map_err(|e| SteeringError::Map(name, e))?;
    let values = map.get(&number.into(), 0).map_err(|e| SteeringError::Map(name, e))?;
    Ok(values.iter().fold(PortCounts::default(), |sum, value| sum.with(*value, u64::wrapping_add)))
}
