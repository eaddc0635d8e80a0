//! The kernel's neighbour entries.

use std::net::IpAddr;

use netlink::{Neighbour, Operation};
use wire::MacAddr;

use crate::stores::epoch_map::{Epoch, EpochMap};

/// `NUD_FAILED` (`include/uapi/linux/neighbour.h`).
const NUD_FAILED: u16 = 0x20;

/// A neighbour on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adjacency {
    /// The interface's index.
    pub ifindex: u32,
    /// The neighbour's address.
    pub address: IpAddr,
}

/// What is known of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Adjacent {
    /// `None` while no frames may be sent to it.
    pub(crate) mac: Option<MacAddr>,
    /// `NUD_*`.
    pub(crate) state: u16,
    /// `NTF_*`.
    pub(crate) flags: u32,
    /// It did not answer, and has not answered since. Frames avoid it even while it is probed
    /// again.
    pub(crate) failed: bool,
}

/// A change of a neighbour on which forwarding to it depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeighbourChange {
    pub(crate) neighbour: Adjacency,
    /// Whether its MAC address was unknown and is known now.
    pub(crate) answered: bool,
}

/// All neighbour entries.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: EpochMap<Adjacency, Adjacent>,
    /// Since [`Neighbours::take_changes`].
    changes: Vec<NeighbourChange>,
}

impl Neighbours {
    /// Applies a message.
    pub(crate) fn apply(&mut self, operation: Operation, neighbour: &Neighbour, epoch: Epoch) {
        let key = Adjacency { ifindex: neighbour.ifindex, address: neighbour.address };
        let before @ (mac_before, failed_before) = self.reachability(key);
        match operation {
            Operation::New => {
                let mac = neighbour.mac.filter(|_| neighbour.is_valid());
                let failed = mac.is_none() && (failed_before || neighbour.state & NUD_FAILED != 0);
                let (state, flags) = (neighbour.state, neighbour.flags);
                self.entries.insert(key, Adjacent { mac, state, flags, failed }, epoch);
            }
            Operation::Delete => {
                self.entries.remove(&key);
            }
        }
        let after @ (mac, _) = self.reachability(key);
        if after != before {
            let answered = mac.is_some() && mac_before.is_none();
            self.changes.push(NeighbourChange { neighbour: key, answered });
        }
    }

    fn reachability(&self, key: Adjacency) -> (Option<MacAddr>, bool) {
        self.get(key).map_or((None, false), |adjacent| (adjacent.mac, adjacent.failed))
    }

    /// The changes by messages since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<NeighbourChange> {
        std::mem::take(&mut self.changes)
    }

    pub(crate) fn get(&self, neighbour: Adjacency) -> Option<&Adjacent> {
        self.entries.get(&neighbour)
    }

    /// Whether its MAC address is known.
    pub(crate) fn is_resolved(&self, neighbour: Adjacency) -> bool {
        self.get(neighbour).is_some_and(|adjacent| adjacent.mac.is_some())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Adjacency, &Adjacent)> {
        self.entries.iter()
    }

    /// Removes all neighbours on an interface.
    pub(crate) fn remove_interface(&mut self, ifindex: u32) {
        self.entries.remove_if(|neighbour, _| neighbour.ifindex == ifindex);
    }

    /// Removes the neighbours that the last dump did not have, and returns their number.
    pub(crate) fn sweep(&mut self, epoch: Epoch) -> usize {
        self.entries.sweep(epoch).len()
    }
}
