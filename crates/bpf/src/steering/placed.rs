//! Entry programs that have to run after filters of other tools, on tcx or clsact (see
//! [`crate::foreign_programs`]).

use std::collections::BTreeSet;

use aya::programs::TcAttachType;
use aya::programs::tc::SchedClassifierLink;
use netlink::Direction;

use super::Steering;
use crate::attach::{attach_by_index, exists};
use crate::error::SteeringError;
use crate::foreign_programs::{has_own, hook_behind};
use crate::hook::Hook;
use crate::programs::{Entry, UPLINK, VXLAN};

/// An entry program at an interface.
pub(super) struct Placed {
    hook: Hook,
    entry: Entry,
    /// Detaches the program when dropped. `None` while filters that come first leave no room for it:
    /// the kernel forwards then.
    link: Option<SchedClassifierLink>,
}

impl Placed {
    pub(super) const fn new(hook: Hook, entry: Entry, link: SchedClassifierLink) -> Self {
        Self { hook, entry, link: Some(link) }
    }
}

impl Steering {
    /// Attaches a program so that filters of other tools run first. `hook` is used if the caller
    /// knows it.
    pub(super) fn attach_behind(
        &mut self,
        ifindex: u32,
        entry: Entry,
        hook: Option<Hook>,
    ) -> Result<Placed, SteeringError> {
        let hook = hook.unwrap_or_else(|| hook_behind(ifindex, direction(entry), self.hook));
        Ok(Placed::new(hook, entry, attach_by_index(&mut self.ebpf, hook, ifindex, entry)?))
    }

    /// Attaches the program at a vxlan netdev's egress, unless it is attached already.
    pub(super) fn hook_netdev(&mut self, ifindex: u32) -> Result<(), SteeringError> {
        if self.netdevs.get(&ifindex).is_some_and(|placed| placed.link.is_some()) {
            return Ok(());
        }
        let hook = hook_behind(ifindex, Direction::Egress, self.hook);
        // Another netdev may have the index of a deleted one.
        let is_there =
            |placed: &Placed| placed.hook == hook && has_own(ifindex, Direction::Egress, hook);
        let placed = match self.unused.remove(&ifindex).filter(is_there) {
            Some(placed) => placed,
            None => self.attach_behind(ifindex, VXLAN, Some(hook))?,
        };
        self.netdevs.insert(ifindex, placed);
        Ok(())
    }

    /// Keeps the programs of netdevs that need none any more for later.
    pub(super) fn leave_netdevs(&mut self, left: &BTreeSet<u32>) {
        self.unused.extend(left.iter().filter_map(|ifindex| self.netdevs.remove_entry(ifindex)));
        self.unused.retain(|ifindex, _| exists(*ifindex));
    }

    /// The interfaces and directions, among `interfaces`, of programs whose hook depends on filters
    /// of other tools. For [`crate::foreign_programs::hook_behind`], which sends netlink requests
    /// and therefore runs on another thread.
    #[must_use]
    pub fn placed_at(&self, interfaces: &BTreeSet<u32>) -> Vec<(u32, Direction)> {
        let uplinks = self.uplinks.keys().map(|ifindex| (*ifindex, Direction::Ingress));
        let netdevs = self.netdevs.keys().map(|ifindex| (*ifindex, Direction::Egress));
        uplinks.chain(netdevs).filter(|(ifindex, _)| interfaces.contains(ifindex)).collect()
    }

    /// Applies what [`crate::foreign_programs::hook_behind`] found. A program is attached at its
    /// new hook before it is detached from the old one. The first of the two that runs redirects
    /// the frame, and the other does not see it.
    ///
    /// # Errors
    /// When the kernel refuses, as for a filter block that interfaces share. A program that would then
    /// come before filters of other tools is detached until there is room again. The remaining programs
    /// are still moved.
    pub fn place_behind(
        &mut self,
        found: Vec<(u32, Direction, Hook)>,
    ) -> Result<(), SteeringError> {
        let mut first = Ok(());
        for (ifindex, direction, hook) in found {
            let (entry, all) = match direction {
                Direction::Ingress => (UPLINK, &self.uplinks),
                Direction::Egress => (VXLAN, &self.netdevs),
            };
            // It may have been detached meanwhile.
            let is_right = |placed: &Placed| placed.link.is_some() && placed.hook == hook;
            if all.get(&ifindex).is_none_or(is_right) {
                continue;
            }
            let moved = self.attach_behind(ifindex, entry, Some(hook));
            let all = match direction {
                Direction::Ingress => &mut self.uplinks,
                Direction::Egress => &mut self.netdevs,
            };
            match moved {
                Ok(placed) => drop(all.insert(ifindex, placed)),
                Err(error) => {
                    if let Some(placed) = all.get_mut(&ifindex).filter(|_| hook == Hook::Clsact) {
                        placed.link = None;
                    }
                    first = first.and(Err(error));
                }
            }
        }
        first
    }

    /// Where vtepd has clsact filters among these interfaces. For
    /// [`crate::foreign_programs::without_own`], which sends netlink requests and therefore runs on
    /// another thread.
    #[must_use]
    pub fn filters_at(&self, interfaces: &BTreeSet<u32>) -> Vec<(u32, Direction)> {
        let all = [&self.uplinks, &self.netdevs, &self.arrivals, &self.punts].into_iter().flatten();
        let filters =
            all.filter(|(_, placed)| placed.link.is_some() && placed.hook == Hook::Clsact);
        filters
            .map(|(ifindex, placed)| (*ifindex, direction(placed.entry)))
            .chain(self.bypass.filters())
            .filter(|(ifindex, _)| interfaces.contains(ifindex))
            .collect()
    }

    /// Attaches clsact filters again that other software has deleted, alone or with their qdisc.
    ///
    /// # Errors
    /// When the kernel refuses. The remaining filters are still attached.
    pub fn attach_again(&mut self, lost: &[(u32, Direction)]) -> Result<(), SteeringError> {
        let mut first = self.bypass.attach_again(&mut self.ebpf, lost);
        for (ifindex, lost) in lost {
            let all = [&mut self.uplinks, &mut self.netdevs, &mut self.arrivals, &mut self.punts];
            let mut found = all.into_iter().filter_map(|all| all.get_mut(ifindex));
            let Some(placed) = found.find(|placed| direction(placed.entry) == *lost) else {
                continue;
            };
            let Placed { hook, entry, .. } = *placed;
            match attach_by_index(&mut self.ebpf, hook, *ifindex, entry) {
                // Dropping the old link would detach the new filter, which has the same number.
                Ok(link) => {
                    std::mem::forget(std::mem::replace(placed, Placed::new(hook, entry, link)));
                }
                Err(SteeringError::NoInterface(_)) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }
}

/// The direction of the traffic that an entry program sees.
const fn direction(entry: Entry) -> Direction {
    match entry.direction {
        TcAttachType::Egress => Direction::Egress,
        _ => Direction::Ingress,
    }
}
