//! Reverse path filters (`rp_filter`): the VTEPs whose packets certainly pass the filter of an
//! uplink.
//!
//! The kernel looks up the route to the source of a received packet (`__fib_validate_source()`,
//! `net/ipv4/fib_frontend.c`). Strict or loose, it accepts the packet if this route has the
//! receiving interface as a next hop. The BPF program redirects such packets. All others at an
//! uplink with a filter stay with kernel VXLAN. It drops or delivers them, depending on the
//! filter's mode, the interface's addresses and routes that vtepd does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use netlink::{Message, Operation, ReversePathFilter};
use tables::steering::Uplink;

use crate::state::State;

/// `NETCONFA_IFINDEX_ALL`.
const ALL: i32 = -1;

/// The values of `rp_filter` that are not 0, by interface index.
#[derive(Debug, Default)]
pub(crate) struct ReversePaths(BTreeMap<i32, i32>);

impl ReversePaths {
    /// Applies a value from the kernel. Returns whether it changed.
    pub(crate) fn hear(&mut self, operation: Operation, filter: ReversePathFilter) -> bool {
        let ReversePathFilter { ifindex, value } = filter;
        if operation == Operation::New && value > 0 {
            self.0.insert(ifindex, value) != Some(value)
        } else {
            self.0.remove(&ifindex).is_some()
        }
    }

    /// Applies a dump of all values. Returns whether any changed.
    pub(crate) fn resync(&mut self, dump: Vec<Message>) -> bool {
        let mut now = Self::default();
        for message in dump {
            if let Message::ReversePathFilter(operation, filter) = message {
                now.hear(operation, filter);
            }
        }
        std::mem::replace(&mut self.0, now.0) != self.0
    }

    fn is_on(&self, ifindex: u32) -> bool {
        let own = i32::try_from(ifindex).is_ok_and(|ifindex| self.0.contains_key(&ifindex));
        own || self.0.contains_key(&ALL)
    }
}

impl State {
    /// The uplinks with a reverse path filter, each with the VTEPs whose packets certainly pass it.
    pub(crate) fn checked_sources(
        &self,
        uplinks: &BTreeSet<Uplink>,
    ) -> BTreeMap<u32, BTreeSet<Ipv4Addr>> {
        // Without netdevs there is no kernel VXLAN with which packets could stay.
        if !self.settings.standalone.is_empty() {
            return BTreeMap::new();
        }
        let on = uplinks
            .iter()
            .map(|uplink| uplink.ifindex)
            .filter(|ifindex| self.reverse_paths.is_on(*ifindex));
        let mut checked: BTreeMap<u32, BTreeSet<Ipv4Addr>> =
            on.map(|ifindex| (ifindex, BTreeSet::new())).collect();
        // Rules may change the reverse route, and it may depend on the TOS.
        if checked.is_empty() || !self.policies.has_default_rules() {
            return checked;
        }
        for (_, known) in self.vteps.taken() {
            let Some(reach) =
                known.reach.as_ref().filter(|reach| !reach.by_tos && reach.obstacle.is_none())
            else {
                continue;
            };
            for hop in &reach.hops {
                if let Some(sources) = checked.get_mut(&hop.ifindex) {
                    sources.insert(known.address);
                }
            }
        }
        checked
    }
}
