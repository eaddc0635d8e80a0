//! Applies what zebra sends over FPM to the stores.

use netlink::{Message, Operation};

use crate::sources::fdb;
use crate::stores::Stores;
use crate::stores::overlay::Overlay;

/// Applies one message of an FPM frame. Returns whether it has a MAC address that the kernel has
/// not reported yet.
pub(crate) fn apply(stores: &mut Stores, message: Message) -> bool {
    let epoch = stores.epochs.fpm;
    match message {
        Message::Fdb(operation, entry) => return fdb::apply_zebra(stores, operation, &entry),
        Message::Route(operation, route) => {
            let fib = &mut stores.routes.fpm.fib;
            let changed = match operation {
                Operation::New => fib.insert(&route, epoch),
                Operation::Delete => fib.remove(&route),
            };
            stores.changes.route(&route, changed);
        }
        Message::NextHop(operation, hop) => {
            stores.changes.underlay |= stores.routes.fpm.apply_next_hop(operation, hop, epoch);
        }
        // zebra never sends these.
        Message::Link(..)
        | Message::Address(..)
        | Message::Neighbour(..)
        | Message::Qdisc(..)
        | Message::Rule(..)
        | Message::IpsecPolicy(_)
        | Message::IpsecDefault { .. }
        | Message::IpsecChanged
        | Message::Mdb(..)
        | Message::ReversePathFilter(..)
        | Message::Other(_) => {}
    }
    false
}

/// Removes what zebra has not repeated in its current replay, and returns the number of entries.
pub(crate) fn sweep(stores: &mut Stores) -> usize {
    let epoch = stores.epochs.fpm;
    let routes = &mut stores.routes.fpm;
    let mut swept = routes.fib.sweep(epoch).0 + routes.next_hops.sweep(epoch).len();
    for (source, overlay) in &mut stores.overlays {
        let gone = overlay.sweep_fpm(epoch);
        if gone > 0 {
            stores.changes.overlays.insert(*source);
        }
        swept += gone;
    }
    stores.changes.underlay = true;
    swept
}

/// Number of entries that zebra has reported.
pub(crate) fn entries(stores: &Stores) -> usize {
    let overlays: usize = stores.overlays.values().map(Overlay::fpm_entries).sum();
    stores.routes.fpm.fib.prefixes() + stores.routes.fpm.next_hops.len() + overlays
}
