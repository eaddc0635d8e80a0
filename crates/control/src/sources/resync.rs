//! Applies complete dumps of the kernel to the stores: entries that a dump does not have are
//! removed.

use std::collections::BTreeSet;

use netlink::{Dump, Message};

use crate::sources::standalone::{self, StandaloneVni};
use crate::sources::{fdb, kernel};
use crate::stores::Stores;
use crate::stores::epoch_map::Epoch;

/// The result of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resync {
    /// Messages of the dump.
    pub dumped: usize,
    /// Entries that were known and are gone.
    pub swept: usize,
}

/// Applies a complete dump of one kind.
pub(crate) fn apply(
    stores: &mut Stores,
    what: Dump,
    dump: Vec<Message>,
    standalone: &[StandaloneVni],
) -> Resync {
    let dumped = dump.len();
    let epochs = &mut stores.epochs;
    let epoch = match what {
        Dump::Links => &mut epochs.links,
        Dump::Addresses => &mut epochs.addresses,
        Dump::Fdb => &mut epochs.fdb,
        Dump::Neighbours => &mut epochs.neighbours,
        Dump::NextHops => &mut epochs.next_hops,
        Dump::Routes => &mut epochs.routes,
        Dump::Mdb => return Resync { dumped, swept: multicast(stores, dump) },
        Dump::Rules | Dump::IpsecPolicies => {
            stores.changes.decisions |= policies(stores, what, dump);
            return Resync { dumped, swept: 0 };
        }
        Dump::ReversePathFilters => {
            stores.changes.underlay |= stores.reverse_paths.resync(dump);
            return Resync { dumped, swept: 0 };
        }
    };
    epoch.advance();
    let epoch = *epoch;
    dump.into_iter().for_each(|message| kernel::apply(stores, message));
    if what == Dump::Fdb {
        // Their entries are in no dump of the kernel.
        standalone::apply_entries(stores, standalone);
    }
    // A message about one of several IPv6 routes asks for a dump. Messages of that dump must not.
    stores.changes.has_dump(what);
    Resync { dumped, swept: sweep(stores, what, epoch) }
}

/// Removes the entries of one kind that `epoch` has not confirmed, and returns their number.
fn sweep(stores: &mut Stores, what: Dump, epoch: Epoch) -> usize {
    match what {
        Dump::Links => {
            let gone = stores.links.unconfirmed(epoch);
            gone.iter().for_each(|ifindex| kernel::remove_link(stores, *ifindex));
            gone.len()
        }
        Dump::Addresses => {
            let gone = stores.addresses.sweep(epoch);
            stores.changes.underlay |= gone > 0;
            gone
        }
        Dump::Fdb => fdb::sweep_kernel(stores, epoch),
        Dump::Neighbours => {
            let gone = stores.neighbours.sweep(epoch);
            stores.changes.adjacencies |= gone > 0;
            gone
        }
        Dump::NextHops => {
            let gone = stores.routes.kernel.next_hops.sweep(epoch).len();
            stores.changes.underlay |= gone > 0;
            gone
        }
        Dump::Routes => {
            let (gone, emptied) = stores.routes.kernel.fib.sweep(epoch);
            stores.changes.underlay |= gone > 0;
            stores.routes.withdraw(emptied);
            gone
        }
        Dump::Mdb | Dump::ReversePathFilters | Dump::Rules | Dump::IpsecPolicies => 0,
    }
}

/// Applies a dump of all multicast entries. Returns how many netdevs have none any more.
fn multicast(stores: &mut Stores, dump: Vec<Message>) -> usize {
    let before = std::mem::take(&mut stores.multicast);
    dump.into_iter().for_each(|message| kernel::apply(stores, message));
    let gone: BTreeSet<u32> = before.difference(&stores.multicast).copied().collect();
    stores.changes.netdevs(gone.iter().copied());
    gone.len()
}

/// Applies a dump of all routing rules or all IPsec policies. Returns whether anything changed.
fn policies(stores: &mut Stores, what: Dump, dump: Vec<Message>) -> bool {
    let (mut rules, mut policies, mut blocks) = (Vec::new(), Vec::new(), false);
    for message in dump {
        match message {
            Message::Rule(_, rule) => rules.push(rule),
            Message::IpsecPolicy(policy) => policies.push(policy),
            Message::IpsecDefault { block } => blocks = block,
            _ => {}
        }
    }
    match what {
        Dump::Rules => stores.policies.set_rules(rules),
        _ => stores.policies.set_ipsec(policies, blocks),
    }
}
