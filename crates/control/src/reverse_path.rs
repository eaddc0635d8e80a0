//! Reverse path filters (`rp_filter`): from which VTEPs packets certainly pass at which uplink.
//!
//! The kernel looks up the route to a received packet's source (`__fib_validate_source()`,
//! `net/ipv4/fib_frontend.c`) and accepts the packet if that route has the receiving interface as a
//! next hop, strict or loose. So the steering program takes such packets. All others at an uplink
//! with a filter are left to kernel VXLAN, which drops them or delivers them: by the filter's mode,
//! the interface's addresses and routes that no table here has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use netlink::{Message, Operation, ReversePathFilter};
use tables::steering::Uplink;

use crate::state::State;

/// `NETCONFA_IFINDEX_ALL`.
const ALL: i32 = -1;

/// The values of `rp_filter`, by interface index, without those that are off.
#[derive(Debug, Default)]
pub(crate) struct ReversePaths(BTreeMap<i32, i32>);

impl ReversePaths {
    /// The kernel said a value; says whether that is new.
    pub(crate) fn hear(&mut self, operation: Operation, filter: ReversePathFilter) -> bool {
        let ReversePathFilter { ifindex, value } = filter;
        if operation == Operation::New && value > 0 {
            self.0.insert(ifindex, value) != Some(value)
        } else {
            self.0.remove(&ifindex).is_some()
        }
    }

    /// The kernel said all values; says whether any is new.
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
    /// The uplinks with a reverse path filter, and the VTEPs whose packets certainly pass it there.
    pub(crate) fn checked_sources(
        &self,
        uplinks: &BTreeSet<Uplink>,
    ) -> BTreeMap<u32, BTreeSet<Ipv4Addr>> {
        // Without netdevs there is no kernel VXLAN that packets could be left to.
        if !self.settings.standalone.is_empty() {
            return BTreeMap::new();
        }
        let on = uplinks
            .iter()
            .map(|uplink| uplink.ifindex)
            .filter(|ifindex| self.reverse_paths.is_on(*ifindex));
        let mut checked: BTreeMap<u32, BTreeSet<Ipv4Addr>> =
            on.map(|ifindex| (ifindex, BTreeSet::new())).collect();
        // Rules may send packets back another way, and the reverse route depends on the TOS.
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
