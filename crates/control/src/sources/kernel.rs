//! Applies messages of the kernel to the stores.

use netlink::{Address, Dump, Link, Message, NextHop, Operation, Route};
use tables::VniSource;

use crate::sources::fdb;
use crate::stores::Stores;
use crate::stores::links::LinkChange;

/// Applies a message from the kernel.
pub(crate) fn apply(stores: &mut Stores, message: Message) {
    match message {
        Message::Link(operation, message) => link(stores, operation, message),
        Message::Address(operation, message) => address(stores, operation, &message),
        Message::Fdb(operation, entry) => fdb::apply_kernel(stores, operation, &entry),
        Message::Neighbour(operation, neighbour) => {
            stores.neighbours.apply(operation, &neighbour, stores.epochs.neighbours);
        }
        Message::Route(operation, message) => route(stores, operation, &message),
        Message::NextHop(operation, hop) => next_hop(stores, operation, hop),
        Message::Qdisc(operation, qdisc) => {
            let kind = if operation == Operation::New { qdisc.kind } else { String::new() };
            root_qdisc(stores, qdisc.ifindex, kind);
        }
        // The order of the rules matters, and a notification does not contain it.
        Message::Rule(..) => stores.changes.want_dumps(&[Dump::Rules]),
        Message::IpsecChanged => stores.changes.want_dumps(&[Dump::IpsecPolicies]),
        Message::Mdb(operation, mdb) => fdb::apply_multicast(stores, operation, mdb.ifindex),
        Message::ReversePathFilter(operation, filter) => {
            stores.changes.underlay |= stores.reverse_paths.apply(operation, filter);
        }
        // These appear in dumps only ([`super::resync`]).
        Message::IpsecPolicy(_) | Message::IpsecDefault { .. } | Message::Other(_) => {}
    }
}

fn next_hop(stores: &mut Stores, operation: Operation, hop: NextHop) {
    let (id, epoch) = (hop.id, stores.epochs.next_hops);
    stores.changes.underlay |= stores.routes.kernel.apply_next_hop(operation, hop, epoch);
    if operation == Operation::Delete {
        // The kernel also removes its routes, and says nothing (`__remove_nexthop_fib()`).
        // The same for entries of FDBs (`vxlan_fdb_nh_flush()`).
        if stores.overlays.values().any(|overlay| overlay.follows(id)) {
            stores.changes.want_dumps(&[Dump::Fdb]);
        }
        let (removed, emptied) = stores.routes.kernel.fib.object_gone(id);
        stores.routes.withdraw(emptied);
        if removed {
            stores.changes.underlay = true;
            stores.changes.want_dumps(&[Dump::Routes]);
        }
    }
}

fn root_qdisc(stores: &mut Stores, ifindex: u32, kind: String) {
    if !stores.links.set_qdisc(ifindex, kind, stores.epochs.links) {
        return;
    }
    stores.changes.underlay = true;
    if stores.links.vxlan(ifindex).is_some() {
        stores.changes.netdevs([ifindex]);
    }
    let master = stores.links.get(ifindex).and_then(|link| link.master);
    stores.changes.bypass.bridges.extend(master);
}

fn link(stores: &mut Stores, operation: Operation, link: Link) {
    if link.bridge_port_only {
        // For a port that leaves its bridge there is also an ordinary link message.
        let port = link.bridge_port.filter(|_| operation == Operation::New);
        let leads = stores.links.leads_to_netdev(link.ifindex);
        let bridge =
            port.and_then(|port| stores.links.set_port(link.ifindex, port, stores.epochs.links));
        stores.changes.bypass.bridges.extend(bridge);
        mark_behind(stores, link.ifindex, leads);
        return;
    }
    if operation == Operation::Delete {
        remove_link(stores, link.ifindex);
        return;
    }
    let ifindex = link.ifindex;
    let old_master = stores.links.get(ifindex).and_then(|link| link.master);
    let old_vni = stores.links.vxlan(ifindex).map(|vxlan| vxlan.id);
    let leads = stores.links.leads_to_netdev(ifindex);
    let change = stores.links.insert(link, stores.epochs.links);
    if !change.relevant {
        return;
    }
    mark_behind(stores, ifindex, leads);
    let own = stores.links.get(ifindex);
    let (lower, master) = own.map_or((None, None), |link| (below(link), link.master));
    read_bridge_below(stores, lower);
    let bridges = [Some(ifindex), old_master, master];
    stores.changes.bypass.bridges.extend(bridges.into_iter().flatten());
    let vxlan = stores.links.vxlan(ifindex).map(|vxlan| (vxlan.id, vxlan.learning));
    let vni = vxlan.map(|(vni, _)| vni);
    if let Some((_, learning)) = vxlan {
        let overlay = stores.overlays.entry(VniSource::Netdev(ifindex)).or_default();
        overlay.set_learns(learning);
        if old_master != master || old_vni.is_none() {
            overlay.mark_all();
        }
        if old_vni.is_none() {
            // It may come from another namespace, with its entries.
            stores.changes.want_dumps(&[Dump::Fdb, Dump::Mdb]);
        }
    } else if let Some(mistaken) = stores.overlays.remove(&VniSource::Netdev(ifindex)) {
        mistaken.release(&mut stores.vteps);
    }
    mark_affected(stores, ifindex, old_vni.or(vni), change);
}

/// The interface below, if it is in this namespace.
fn below(link: &Link) -> Option<u32> {
    link.link.filter(|_| link.link_namespace.is_none())
}

/// Reads a bridge again when an interface on it changes: it may have the bridge listen to all frames,
/// of which the kernel says nothing.
fn read_bridge_below(stores: &mut Stores, lower: Option<u32>) {
    if lower.is_some_and(|lower| stores.links.is_bridge(lower)) {
        stores.changes.want_dumps(&[Dump::Links]);
    }
}

/// Marks the addresses behind a port of a bridge if frames to it lead elsewhere than before.
fn mark_behind(stores: &mut Stores, port: u32, led_to_netdev: bool) {
    if stores.links.leads_to_netdev(port) != led_to_netdev
        && let Some(bridge) = stores.links.get(port).and_then(|link| link.master)
    {
        let macs = stores.bridges.behind(bridge, port);
        fdb::mark(stores, bridge, macs);
    }
}

/// Removes an interface, with everything that the stores have for it.
pub(crate) fn remove_link(stores: &mut Stores, ifindex: u32) {
    let vni = stores.links.vxlan(ifindex).map(|vxlan| vxlan.id);
    let Some(lower) = stores.links.get(ifindex).map(below) else { return };
    read_bridge_below(stores, lower);
    let change = LinkChange { relevant: true, went_down: true, state: true };
    mark_affected(stores, ifindex, vni, change);
    let master = stores.links.remove(ifindex).and_then(|link| link.master);
    stores.changes.bypass.bridges.extend([Some(ifindex), master].into_iter().flatten());
    if let Some(overlay) = stores.overlays.remove(&VniSource::Netdev(ifindex)) {
        overlay.release(&mut stores.vteps);
    }
    stores.bridges.remove_bridge(ifindex);
    stores.multicast.remove(&ifindex);
    if let Some(bridge) = master {
        let gone = stores.bridges.remove_port(bridge, ifindex);
        fdb::mark(stores, bridge, gone);
    }
    stores.changes.underlay |= stores.addresses.remove_interface(ifindex);
    stores.neighbours.remove_interface(ifindex);
}

/// Marks what depends on an interface.
fn mark_affected(stores: &mut Stores, ifindex: u32, vni: Option<u32>, change: LinkChange) {
    let same_vni: Vec<VniSource> = vni.into_iter().flat_map(|vni| stores.sources_of(vni)).collect();
    let Stores { links, routes, changes, .. } = stores;
    changes.netdevs([ifindex]);
    changes.netdevs(links.vxlans_in(ifindex));
    if vni.is_some() {
        changes.overlays.extend(same_vni);
        return;
    }
    changes.underlay = true;
    if change.went_down {
        let emptied = routes.kernel.fib.interface_down(ifindex);
        routes.withdraw(emptied);
    }
    if change.state {
        changes.want_dumps(&[Dump::NextHops, Dump::Routes, Dump::Neighbours]);
    }
}

fn address(stores: &mut Stores, operation: Operation, message: &Address) {
    let Address { ifindex, address, prefix_length } = *message;
    stores.changes.underlay |= match operation {
        Operation::New => {
            stores.addresses.insert(ifindex, address, prefix_length, stores.epochs.addresses)
        }
        Operation::Delete => {
            // The kernel also removes routes with this preferred source, without a notification
            // (`fib_sync_down_addr()`).
            stores.changes.want_dumps(&[Dump::Routes]);
            stores.addresses.remove(ifindex, address)
        }
    };
}

fn route(stores: &mut Stores, operation: Operation, route: &Route) {
    let routes = &mut stores.routes;
    if routes.kernel.fib.is_ambiguous(route) {
        stores.changes.want_dumps(&[Dump::Routes]);
    }
    let changed = match operation {
        Operation::New => routes.kernel.fib.insert(route, stores.epochs.routes),
        Operation::Delete => {
            let removed = routes.kernel.fib.remove(route);
            let emptied = routes.kernel.fib.prefix_without_route(route);
            removed | routes.withdraw(emptied)
        }
    };
    stores.changes.route(route, changed);
}
