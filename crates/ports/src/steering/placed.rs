//! Entry programs that stand behind filters of others, wherever those are (see
//! [`crate::foreign_programs`]).

use std::collections::BTreeSet;

use aya::programs::TcAttachType;
use aya::programs::tc::SchedClassifierLink;
use netlink::Direction;

use super::{Entry, Hook, Steering, SteeringError, UPLINK, VXLAN, attach_by_index};
use crate::foreign_programs::hook_behind;

/// An entry program whose place depends on filters of others.
pub(super) struct Placed {
    hook: Hook,
    /// Detaches it when dropped.
    _link: SchedClassifierLink,
}

impl Steering {
    /// Attaches a program so that filters of others come first; by this hook, if it is known
    /// already.
    pub(super) fn attach_behind(
        &mut self,
        ifindex: u32,
        entry: Entry,
        hook: Option<Hook>,
    ) -> Result<Placed, SteeringError> {
        let direction = match entry.direction {
            TcAttachType::Egress => Direction::Egress,
            _ => Direction::Ingress,
        };
        let hook = hook.unwrap_or_else(|| hook_behind(ifindex, direction, self.hook));
        Ok(Placed { hook, _link: attach_by_index(&mut self.ebpf, hook, ifindex, entry)? })
    }

    /// Where programs are attached whose place depends on filters of others, of these interfaces:
    /// for [`crate::foreign_programs::hook_behind`], which waits for the kernel.
    #[must_use]
    pub fn placed_at(&self, interfaces: &BTreeSet<u32>) -> Vec<(u32, Direction)> {
        let uplinks = self.uplinks.keys().map(|ifindex| (*ifindex, Direction::Ingress));
        let netdevs = self.netdevs.keys().map(|ifindex| (*ifindex, Direction::Egress));
        uplinks.chain(netdevs).filter(|(ifindex, _)| interfaces.contains(ifindex)).collect()
    }

    /// Goes by what [`crate::foreign_programs::hook_behind`] has said. A program is attached in its
    /// new place before it leaves the old one: the first of the two takes a frame, and the other
    /// does not see it.
    ///
    /// # Errors
    /// When the kernel refuses; the rest is done all the same.
    pub fn place_behind(
        &mut self,
        found: Vec<(u32, Direction, Hook)>,
    ) -> Result<(), SteeringError> {
        let mut first = Ok(());
        for (ifindex, direction, hook) in found {
            let (entry, old) = match direction {
                Direction::Ingress => {
                    (UPLINK, self.uplinks.get(&ifindex).map(|(placed, _)| placed.hook))
                }
                Direction::Egress => (VXLAN, self.netdevs.get(&ifindex).map(|placed| placed.hook)),
            };
            // It may have gone meanwhile.
            if old.is_none_or(|old| old == hook) {
                continue;
            }
            match (self.attach_behind(ifindex, entry, Some(hook)), direction) {
                (Ok(placed), Direction::Egress) => drop(self.netdevs.insert(ifindex, placed)),
                (Ok(placed), Direction::Ingress) => {
                    if let Some((known, _)) = self.uplinks.get_mut(&ifindex) {
                        *known = placed;
                    }
                }
                (Err(error), _) => first = first.and(Err(error)),
            }
        }
        first
    }
}
