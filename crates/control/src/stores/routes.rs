//! The routes and next-hop objects of both sources.

use netlink::{NextHop, NextHopKind, Operation};

use crate::stores::epoch_map::{Epoch, EpochMap};
use crate::stores::route_table::{Identity, Prefix, RouteTable};

/// The routes of one source, and the next-hop objects that they refer to.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) fib: RouteTable,
    pub(crate) next_hops: EpochMap<u32, NextHopKind>,
}

impl Routes {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { fib: RouteTable::new(identity), next_hops: EpochMap::default() }
    }

    /// Applies a message about a next-hop object. Returns whether anything changed.
    pub(crate) fn apply_next_hop(
        &mut self,
        operation: Operation,
        hop: NextHop,
        epoch: Epoch,
    ) -> bool {
        match operation {
            Operation::New => self.next_hops.insert(hop.id, hop.kind, epoch),
            Operation::Delete => {
                // Groups lose a deleted member without a notification.
                let removed = self.next_hops.remove(&hop.id);
                removed.is_some_and(|kind: NextHopKind| kind != NextHopKind::Other)
            }
        }
    }
}

/// The routes of the kernel and of zebra.
#[derive(Debug)]
pub(crate) struct RouteSources {
    pub(crate) kernel: Routes,
    pub(crate) fpm: Routes,
    /// Whether zebra's version of a prefix comes first: its FPM session is live.
    pub(crate) fpm_first: bool,
}

impl Default for RouteSources {
    fn default() -> Self {
        let (kernel, fpm) = (Routes::new(Identity::Metric), Routes::new(Identity::Prefix));
        Self { kernel, fpm, fpm_first: false }
    }
}

impl RouteSources {
    /// Both sources, the preferred one first.
    pub(crate) const fn by_preference(&self) -> [&Routes; 2] {
        if self.fpm_first { [&self.fpm, &self.kernel] } else { [&self.kernel, &self.fpm] }
    }

    /// The kernel has no route to these prefixes any more. zebra reports only what the kernel has,
    /// so its routes are removed as well. If zebra's were newer, the kernel would report them next.
    pub(crate) fn withdraw(&mut self, prefixes: impl IntoIterator<Item = Prefix>) -> bool {
        prefixes
            .into_iter()
            .fold(false, |changed, prefix| self.fpm.fib.remove_prefix(prefix) | changed)
    }
}
