//! The remote VTEPs that overlays refer to, with their indices and routes. An index stays the same
//! while any overlay refers to the VTEP. An index that is free again is used last, so that programs
//! and workers that have just read it are long done.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;
use std::sync::Arc;

use tables::hash::TableHasher;
use tables::{Paths, VtepIndex};

use crate::stores::intern::Shared;
use crate::stores::resolved_route::ResolvedRoute;

/// Indices that are used before a free one is used again. VTEPs with higher indices have no counters
/// of their own (`pipeline::counters::PEERS`).
const FRESH: usize = 4096;

/// A remote VTEP.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) address: IpAddr,
    /// Number of overlays that refer to it.
    overlays: u32,
    /// Number of them that are taken over.
    taken: u32,
    /// The resolved route; `None` until it was looked up.
    pub(crate) route: Option<Arc<ResolvedRoute>>,
    /// The path MTU in the kernel's route cache, if there is one.
    pub(crate) path_mtu: Option<u32>,
    /// The next hops; `None` until an overlay that is taken over refers to it.
    pub(crate) paths: Option<Arc<Paths>>,
}

impl Known {
    /// Whether an overlay that is taken over refers to it.
    pub(crate) const fn is_taken(&self) -> bool {
        self.taken > 0
    }
}

/// All remote VTEPs, by index and by address.
#[derive(Debug, Default)]
pub(crate) struct Vteps {
    entries: Vec<Option<Known>>,
    by_address: HashMap<IpAddr, VtepIndex, BuildHasherDefault<TableHasher>>,
    /// Indices that are free again, oldest first.
    free: VecDeque<VtepIndex>,
    /// The resolved routes to them; equal ones are stored once.
    pub(crate) routes: Shared<ResolvedRoute>,
    /// VTEPs that were added and not looked up yet.
    pub(crate) new: Vec<VtepIndex>,
    /// Whether [`Known::is_taken`] of any VTEP has changed since this was last reset.
    pub(crate) taken_changed: bool,
}

impl Vteps {
    pub(crate) fn get(&self, index: VtepIndex) -> Option<&Known> {
        self.entries.get(index.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: VtepIndex) -> Option<&mut Known> {
        self.entries.get_mut(index.0 as usize)?.as_mut()
    }

    pub(crate) fn find(&self, address: IpAddr) -> Option<VtepIndex> {
        self.by_address.get(&address).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// The VTEPs that overlays taken over refer to.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (VtepIndex, &Known)> {
        self.iter().filter(|(_, known)| known.is_taken())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (VtepIndex, &Known)> {
        (0..)
            .zip(&self.entries)
            .filter_map(|(index, known)| Some((VtepIndex(index), known.as_ref()?)))
    }

    /// All indices ever used, with the VTEPs that have them now.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (VtepIndex, Option<&Known>)> {
        (0..).map(VtepIndex).zip(self.entries.iter().map(Option::as_ref))
    }

    pub(crate) fn indices(&self) -> Vec<VtepIndex> {
        self.iter().map(|(index, _)| index).collect()
    }

    /// Adds a reference of an overlay to this VTEP. `taken`: whether the overlay is taken over.
    pub(crate) fn acquire(&mut self, address: IpAddr, taken: bool) -> VtepIndex {
        if let Some(&index) = self.by_address.get(&address) {
            if let Some(known) = self.get_mut(index) {
                known.overlays += 1;
            }
            self.count(index, 0, u32::from(taken));
            return index;
        }
        let known = Some(Known {
            address,
            overlays: 1,
            taken: 0,
            route: None,
            path_mtu: None,
            paths: None,
        });
        let oldest = if self.entries.len() < FRESH { None } else { self.free.pop_front() };
        let reused =
            oldest.and_then(|index| Some((index, self.entries.get_mut(index.0 as usize)?)));
        let index = match reused {
            Some((index, place)) => {
                *place = known;
                index
            }
            None => {
                self.entries.push(known);
                VtepIndex(u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.by_address.insert(address, index);
        self.new.push(index);
        self.count(index, 0, u32::from(taken));
        index
    }

    /// An overlay that refers to this VTEP is taken over, or is not any more.
    pub(crate) fn take(&mut self, index: VtepIndex, taken: bool) {
        self.count(index, u32::from(!taken), u32::from(taken));
    }

    fn count(&mut self, index: VtepIndex, less: u32, more: u32) {
        let Some(known) = self.get_mut(index) else { return };
        let before = known.is_taken();
        known.taken = known.taken.saturating_sub(less) + more;
        let changed = before != known.is_taken();
        self.taken_changed |= changed;
    }

    /// Removes a reference of an overlay to this VTEP. `taken`: whether the overlay was taken over.
    pub(crate) fn release(&mut self, index: VtepIndex, taken: bool) {
        self.count(index, u32::from(taken), 0);
        let Some(place) = self.entries.get_mut(index.0 as usize) else { return };
        let Some(known) = place else { return };
        known.overlays = known.overlays.saturating_sub(1);
        if known.overlays == 0 {
            self.by_address.remove(&known.address);
            *place = None;
            self.free.push_back(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[test]
    fn free_indices_are_used_last_and_the_oldest_first() {
        let mut vteps = Vteps::default();
        let all = FRESH as u32;
        assert_eq!(vteps.acquire(address(0), true), VtepIndex(0));
        for number in 1..all {
            vteps.release(VtepIndex(number - 1), true);
            assert_eq!(vteps.acquire(address(number), true), VtepIndex(number), "not a free one");
        }
        assert_eq!(vteps.acquire(address(all), true), VtepIndex(0), "the one that is free longest");
        vteps.release(VtepIndex(0), true);
        assert_eq!(vteps.acquire(address(0), true), VtepIndex(1));
        // Without a free one there is always another.
        let others = (1..=all).map(|number| vteps.acquire(address(all + number), true));
        let others: std::collections::BTreeSet<_> = others.collect();
        assert_eq!(others.len(), all as usize);
        assert!(vteps.iter().all(|(index, known)| vteps.find(known.address) == Some(index)));
    }
}
