//! Whether this host has the `local` addresses of vxlan netdevs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tables::VniSource;

use crate::stores::Stores;
use crate::stores::links::is_up;
use crate::stores::route_table;

/// `RTN_LOCAL` (`include/uapi/linux/rtnetlink.h`).
const RTN_LOCAL: u8 = 2;

/// The `local` addresses that were asked for, and whether this host has them.
#[derive(Debug, Default)]
pub(crate) struct LocalAddresses(BTreeMap<IpAddr, bool>);

impl LocalAddresses {
    /// Whether this host has the `local` address of a VNI.
    pub(crate) fn has_that_of(&mut self, stores: &Stores, source: VniSource) -> bool {
        let Some(local) = stores.vxlan(source).and_then(|vxlan| vxlan.local) else {
            return false;
        };
        *self.0.entry(local).or_insert_with(|| is_present(stores, local))
    }

    /// Checks all addresses again. Returns whether any appeared or disappeared.
    pub(crate) fn check(&mut self, stores: &Stores) -> bool {
        let mut changed = false;
        for (local, present) in &mut self.0 {
            let now = is_present(stores, *local);
            changed |= std::mem::replace(present, now) != now;
        }
        changed
    }
}

/// Whether packets may be sent from this address, and packets to it are delivered here. When its
/// interface goes down, the kernel removes the address from table local, and both end. A route of
/// type 'local' is as good as an address (`__ip_dev_find()`, `net/ipv4/devinet.c`).
fn is_present(stores: &Stores, local: IpAddr) -> bool {
    let mut interfaces = stores.addresses.interfaces_with(local);
    interfaces.any(|ifindex| stores.links.get(ifindex).is_none_or(is_up))
        || stores.routes.kernel.fib.matching(route_table::LOCAL, local).next().is_some_and(
            |(_, routes)| routes.first().is_some_and(|route| route.route_type == RTN_LOCAL),
        )
}
