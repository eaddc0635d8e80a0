//! Applies each event to the state, and marks what has to be computed again.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink::{
    Address, Dump, FdbEntry, Link, Message, Neighbour, NextHop, NextHopKind, Operation, Route,
};
use wire::MacAddr;

use crate::resolve::resolver::Adjacency;
use crate::resolve::underlay::Routes;
use crate::state::{Adjacent, Dirty, Port, State};
use crate::stores::epoch_map::Epoch;
use crate::stores::links::LinkChange;
use crate::stores::route_table::Prefix;

/// `NUD_PERMANENT` (`include/uapi/linux/neighbour.h`).
const NUD_PERMANENT: u16 = 0x80;
/// `NTF_EXT_LOCKED`.
const NTF_EXT_LOCKED: u32 = 0x2 << 8;
/// `NUD_FAILED`.
const NUD_FAILED: u16 = 0x20;
/// How long after zebra's report of an entry the kernel's is expected. They usually arrive within a
/// millisecond of each other. If the kernel has already deleted the entry when zebra's report
/// arrives, only a dump removes it.
const CONFIRMATION: Duration = Duration::from_secs(1);

impl State {
    /// Applies a message from the kernel.
    pub fn apply_kernel(&mut self, message: Message) {
        match message {
            Message::Link(operation, link) => self.link(operation, link),
            Message::Address(operation, address) => self.address(operation, &address),
            Message::Fdb(operation, entry) => self.kernel_fdb(operation, &entry),
            Message::Neighbour(operation, neighbour) => self.neighbour(operation, &neighbour),
            Message::Route(operation, route) => self.kernel_route(operation, &route),
            Message::NextHop(operation, hop) => {
                let changed = next_hop(&mut self.kernel, operation, hop, self.epochs.next_hops);
                self.dirty.underlay |= changed;
            }
            Message::Qdisc(operation, qdisc) => {
                let kind = if operation == Operation::New { qdisc.kind } else { String::new() };
                if self.links.set_qdisc(qdisc.ifindex, kind, self.epochs.links) {
                    self.dirty.underlay = true;
                    if self.links.vxlan(qdisc.ifindex).is_some() {
                        self.dirty.overlays.insert(qdisc.ifindex);
                    }
                    let master = self.links.get(qdisc.ifindex).and_then(|link| link.master);
                    self.dirty.bypass.bridges.extend(master);
                }
            }
            // The order of the rules matters, and a notification does not contain it.
            Message::Rule(..) => self.doubt(&[Dump::Rules]),
            Message::IpsecChanged => self.doubt(&[Dump::IpsecPolicies]),
            // These appear in dumps only ([`State::resync`]).
            Message::Mdb(operation, mdb) => self.multicast(operation, mdb.ifindex),
            Message::ReversePathFilter(operation, filter) => {
                self.dirty.underlay |= self.reverse_paths.hear(operation, filter);
            }
            Message::IpsecPolicy(_) | Message::IpsecDefault { .. } | Message::Other(_) => {}
        }
    }

    /// Applies one message of an FPM frame from zebra.
    pub(crate) fn hear_zebra(&mut self, message: Message, now: Instant) {
        let epoch = self.epochs.fpm;
        match message {
            Message::Fdb(operation, entry) => self.fpm_fdb(operation, &entry, now),
            Message::Route(Operation::New, route) => {
                let changed = self.fpm.fib.insert(&route, epoch);
                self.dirty.route(&route, changed);
            }
            Message::Route(Operation::Delete, route) => {
                let changed = self.fpm.fib.remove(&route);
                self.dirty.route(&route, changed);
            }
            Message::NextHop(operation, hop) => {
                self.dirty.underlay |= next_hop(&mut self.fpm, operation, hop, epoch);
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
    }

    fn link(&mut self, operation: Operation, link: Link) {
        if link.bridge_port_only {
            // For a port that leaves its bridge there is also an ordinary link message.
            let port = link.bridge_port.filter(|_| operation == Operation::New);
            let bridge =
                port.and_then(|port| self.links.set_port(link.ifindex, port, self.epochs.links));
            self.dirty.bypass.bridges.extend(bridge);
            return;
        }
        if operation == Operation::Delete {
            self.remove_link(link.ifindex);
            return;
        }
        let ifindex = link.ifindex;
        let old = self.links.get(ifindex);
        let old_master = old.and_then(|link| link.master);
        let old_vni = self.links.vxlan(ifindex).map(|vxlan| vxlan.id);
        let change = self.links.insert(link, self.epochs.links);
        if !change.relevant {
            return;
        }
        let master = self.links.get(ifindex).and_then(|link| link.master);
        self.dirty.bypass.bridges.extend([Some(ifindex), old_master, master].into_iter().flatten());
        let vxlan = self.links.vxlan(ifindex).map(|vxlan| (vxlan.id, vxlan.learning));
        let vni = vxlan.map(|(vni, _)| vni);
        if let Some((_, learning)) = vxlan {
            let overlay = self.overlays.entry(ifindex).or_default();
            overlay.set_learns(learning);
            if old_master != master || old_vni.is_none() {
                overlay.touch_all();
            }
        } else if let Some(mistaken) = self.overlays.remove(&ifindex) {
            mistaken.release(&mut self.vteps);
        }
        self.link_affects(ifindex, old_vni.or(vni), change);
    }

    pub(crate) fn remove_link(&mut self, ifindex: u32) {
        let vni = self.links.vxlan(ifindex).map(|vxlan| vxlan.id);
        if self.links.get(ifindex).is_none() {
            return;
        }
        self.link_affects(
            ifindex,
            vni,
            LinkChange { relevant: true, went_down: true, state: true },
        );
        let link = self.links.remove(ifindex);
        self.dirty.bypass.bridges.extend(
            [Some(ifindex), link.as_ref().and_then(|link| link.master)].into_iter().flatten(),
        );
        if let Some(overlay) = self.overlays.remove(&ifindex) {
            overlay.release(&mut self.vteps);
        }
        self.bridges.remove(&ifindex);
        self.crowded.remove(&ifindex);
        self.multicast.remove(&ifindex);
        if let Some(bridge) = link.and_then(|link| link.master)
            && let Some(ports) = self.bridges.get_mut(&bridge)
        {
            let gone = ports.remove_if(|_, port| port.ifindex == ifindex);
            self.touch(bridge, gone.into_iter().map(|(mac, _)| mac));
        }
        let gone = self.addresses.remove_if(|(of, _), _| *of == ifindex);
        self.own_changed(!gone.is_empty());
        self.neighbours.remove_if(|(of, _), _| *of == ifindex);
    }

    fn link_affects(&mut self, ifindex: u32, vni: Option<u32>, change: LinkChange) {
        self.dirty.overlays.insert(ifindex);
        self.dirty.overlays.extend(self.links.vxlans_in(ifindex));
        if let Some(vni) = vni {
            self.dirty.overlays.extend(self.links.vxlans_of(vni));
            return;
        }
        self.dirty.underlay = true;
        if change.went_down {
            let emptied = self.kernel.fib.interface_down(ifindex);
            self.orphan(emptied);
        }
        if change.state {
            self.doubt(&[Dump::NextHops, Dump::Routes, Dump::Neighbours]);
        }
    }

    /// Marks kinds of dumps to repeat, because the kernel may have changed something without a
    /// notification.
    pub(crate) fn doubt(&mut self, dumps: &[Dump]) {
        for dump in dumps {
            if !self.doubtful.contains(dump) {
                self.doubtful.push(*dump);
            }
        }
    }

    fn address(&mut self, operation: Operation, address: &Address) {
        let key = (address.ifindex, address.address);
        let changed = match operation {
            Operation::New => {
                self.addresses.insert(key, address.prefix_length, self.epochs.addresses)
            }
            Operation::Delete => {
                // The kernel also removes routes with this preferred source, without a notification
                // (`fib_sync_down_addr()`).
                self.doubt(&[Dump::Routes]);
                self.addresses.remove(&key).is_some()
            }
        };
        self.own_changed(changed);
    }

    pub(crate) fn own_changed(&mut self, changed: bool) {
        if changed {
            self.own = self.addresses.keys().map(|(_, address)| address).collect();
            self.dirty.underlay = true;
        }
    }

    fn kernel_fdb(&mut self, operation: Operation, entry: &FdbEntry) {
        match entry.master {
            Some(bridge) => self.bridge_fdb(operation, bridge, entry),
            None => self.vxlan_fdb(operation, entry),
        }
    }

    fn bridge_fdb(&mut self, operation: Operation, bridge: u32, entry: &FdbEntry) {
        // An entry with a VLAN belongs to a VLAN-aware bridge, whose VNIs stay with the kernel.
        if entry.vlan.is_some() {
            return;
        }
        if operation == Operation::New && self.is_too_many(bridge, entry) {
            return;
        }
        let ports = self.bridges.entry(bridge).or_default();
        let elsewhere = ports.get(&entry.mac).is_some_and(|port| port.ifindex != entry.ifindex);
        let changed = match operation {
            Operation::New => ports.insert(entry.mac, Port::of(entry), self.epochs.fdb),
            // A late deletion for its previous port does not remove the address.
            Operation::Delete if elsewhere => false,
            Operation::Delete => ports.remove(&entry.mac).is_some(),
        };
        if elsewhere {
            // Also in bridges without a vxlan netdev, because one may be added later.
            self.moved.insert((bridge, entry.mac));
        }
        if changed {
            self.touch(bridge, std::iter::once(entry.mac));
        }
        if operation == Operation::Delete && self.crowded.contains(&bridge) {
            self.fill_room();
        }
    }

    /// Marks these addresses of a bridge as changed.
    pub(crate) fn touch(&mut self, bridge: u32, macs: impl Iterator<Item = MacAddr>) {
        for mac in macs {
            if self.settings.bypass {
                self.dirty.bypass.addresses.push((bridge, mac));
            }
            for vxlan in self.links.vxlans_in(bridge) {
                if self.overlays.get_mut(&vxlan).is_some_and(|overlay| overlay.touch(mac)) {
                    self.dirty.overlays.insert(vxlan);
                }
            }
        }
    }

    fn vxlan_fdb(&mut self, operation: Operation, entry: &FdbEntry) {
        let other_device =
            self.links.get(entry.ifindex).is_some() && self.links.vxlan(entry.ifindex).is_none();
        if other_device {
            return;
        }
        match operation {
            Operation::New => {
                self.overlays.entry(entry.ifindex).or_default().kernel_new(entry, self.epochs.fdb);
            }
            Operation::Delete => {
                if let Some(overlay) = self.overlays.get_mut(&entry.ifindex) {
                    overlay.kernel_delete(entry);
                }
            }
        }
        self.dirty.overlays.insert(entry.ifindex);
    }

    /// A bridge or a vxlan netdev gained or lost multicast entries. Only a dump shows how many are
    /// left.
    fn multicast(&mut self, operation: Operation, ifindex: u32) {
        let other_device = self.links.get(ifindex).is_some() && self.links.vxlan(ifindex).is_none();
        if other_device {
            return;
        }
        match operation {
            Operation::New if self.multicast.insert(ifindex) => {
                self.dirty.overlays.insert(ifindex);
            }
            Operation::New => {}
            Operation::Delete => self.doubt(&[Dump::Mdb]),
        }
    }

    /// Applies a dump of all multicast entries. Returns how many netdevs have none any more.
    pub(crate) fn resync_multicast(&mut self, dump: Vec<Message>) -> usize {
        let before = std::mem::take(&mut self.multicast);
        dump.into_iter().for_each(|message| self.apply_kernel(message));
        let gone: BTreeSet<u32> = before.difference(&self.multicast).copied().collect();
        self.dirty.overlays.extend(&gone);
        gone.len()
    }

    fn fpm_fdb(&mut self, operation: Operation, entry: &FdbEntry, now: Instant) {
        if entry.mac.is_group() || entry.mac == MacAddr::ZERO {
            return;
        }
        // zebra sends the index of the vxlan netdev. If that index is unknown, the netdev follows
        // from the VNI, and from the bridge if several netdevs have the VNI. Otherwise the entry
        // waits for a netdev with this index.
        let known = self.links.vxlan(entry.ifindex).map(|_| entry.ifindex);
        let by_vni = || self.only_netdev(entry.source_vni?, entry.master);
        let ifindex = known.or_else(by_vni).unwrap_or(entry.ifindex);
        match (operation, entry.destination) {
            (Operation::New, Some(IpAddr::V4(vtep))) => {
                let overlay = self.overlays.entry(ifindex).or_default();
                if !overlay.fpm_new(entry.mac, vtep, self.epochs.fpm) {
                    self.confirm_at.get_or_insert(now + CONFIRMATION);
                }
            }
            (Operation::New, _) => {}
            (Operation::Delete, _) => {
                if let Some(overlay) = self.overlays.get_mut(&ifindex) {
                    overlay.fpm_delete(entry.mac);
                }
            }
        }
        self.dirty.overlays.insert(ifindex);
    }

    /// The only netdev with this VNI. If there are several, the only one in `bridge`.
    fn only_netdev(&self, vni: u32, bridge: Option<u32>) -> Option<u32> {
        let only = |netdevs: &mut dyn Iterator<Item = u32>| {
            let first = netdevs.next()?;
            netdevs.next().is_none().then_some(first)
        };
        let inside = |ifindex: &u32| {
            bridge.is_some() && self.links.get(*ifindex).and_then(|link| link.master) == bridge
        };
        only(&mut self.links.vxlans_of(vni))
            .or_else(|| only(&mut self.links.vxlans_of(vni).filter(inside)))
    }

    pub(crate) fn sweep_fdb(&mut self, epoch: Epoch) -> usize {
        let mut swept = 0;
        let mut moved = Vec::new();
        for (bridge, ports) in &mut self.bridges {
            let gone = ports.sweep(epoch);
            swept += gone.len();
            moved.extend(gone.into_iter().map(|(mac, _)| (*bridge, mac)));
        }
        for (bridge, mac) in moved {
            self.touch(bridge, std::iter::once(mac));
        }
        for (ifindex, overlay) in &mut self.overlays {
            let gone = overlay.sweep_kernel(epoch);
            if gone > 0 {
                self.dirty.overlays.insert(*ifindex);
            }
            swept += gone;
        }
        self.bridges.retain(|_, ports| !ports.is_empty());
        self.fill_room();
        let links = &self.links;
        self.overlays
            .retain(|ifindex, overlay| links.get(*ifindex).is_some() || !overlay.is_empty());
        swept
    }

    fn neighbour(&mut self, operation: Operation, neighbour: &Neighbour) {
        let key = (neighbour.ifindex, neighbour.address);
        let known = |state: &Self| {
            state
                .neighbours
                .get(&key)
                .map_or((None, false), |adjacent| (adjacent.mac, adjacent.failed))
        };
        let before @ (mac_before, failed_before) = known(self);
        match operation {
            Operation::New => {
                let mac = neighbour.mac.filter(|_| neighbour.is_valid());
                let failed = mac.is_none() && (failed_before || neighbour.state & NUD_FAILED != 0);
                let adjacent =
                    Adjacent { mac, state: neighbour.state, flags: neighbour.flags, failed };
                self.neighbours.insert(key, adjacent, self.epochs.neighbours);
            }
            Operation::Delete => {
                self.neighbours.remove(&key);
            }
        }
        let after @ (mac, _) = known(self);
        if mac.is_some() && mac_before.is_none() {
            // It has answered: if it is lost again, it may be asked for immediately.
            self.resolver
                .forget(Adjacency { ifindex: neighbour.ifindex, address: neighbour.address });
        }
        if after != before && self.publication.uses(neighbour.ifindex, neighbour.address) {
            self.dirty.adjacencies = true;
        }
    }

    fn kernel_route(&mut self, operation: Operation, route: &Route) {
        let changed = match operation {
            Operation::New => self.kernel.fib.insert(route, self.epochs.routes),
            Operation::Delete => {
                let removed = self.kernel.fib.remove(route);
                removed | self.orphan(self.kernel.fib.prefix_without_route(route))
            }
        };
        self.dirty.route(route, changed);
    }

    /// The kernel has no route to these prefixes any more. zebra reports only what the kernel has,
    /// so its routes are removed as well. If zebra's were newer, the kernel would report them next.
    pub(crate) fn orphan(&mut self, prefixes: impl IntoIterator<Item = Prefix>) -> bool {
        prefixes
            .into_iter()
            .fold(false, |changed, prefix| self.fpm.fib.remove_prefix(prefix) | changed)
    }
}

impl Port {
    /// The port of a bridge's FDB entry.
    pub(crate) const fn of(entry: &FdbEntry) -> Self {
        Self {
            ifindex: entry.ifindex,
            permanent: entry.state & NUD_PERMANENT != 0,
            locked: entry.flags & NTF_EXT_LOCKED != 0,
        }
    }
}

impl Dirty {
    /// Marks the prefix of a route if the route changed.
    fn route(&mut self, route: &Route, changed: bool) {
        match route.destination {
            IpAddr::V4(destination) if changed => {
                self.prefixes.insert((destination, route.prefix_length));
            }
            _ => {}
        }
    }
}

/// Applies a message about a next-hop object. Returns whether anything changed.
fn next_hop(routes: &mut Routes, operation: Operation, hop: NextHop, epoch: Epoch) -> bool {
    match operation {
        Operation::New => routes.next_hops.insert(hop.id, hop.kind, epoch),
        Operation::Delete => {
            // Groups lose a deleted member without a notification.
            routes
                .next_hops
                .remove(&hop.id)
                .is_some_and(|kind: NextHopKind| kind != NextHopKind::Other)
        }
    }
}
