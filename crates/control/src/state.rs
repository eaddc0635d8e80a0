//! Everything that the sources said, without any I/O: events in, tables out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use netlink::{Address, Dump, FdbEntry, Link, Message, Neighbour, NextHop, NextHopKind, Operation, Route};
use tables::hash::TableHasher;
use wire::MacAddr;

use crate::fib::{Identity, Prefix};
use crate::fpm_session::FpmSession;
use crate::links::{LinkChange, Links};
use crate::overlay::Overlay;
use crate::publication::Publication;
use crate::resolver::Resolver;
use crate::settings::{Namespace, Settings};
use crate::source::SourceState;
use crate::swept::{Epoch, Swept};
use crate::underlay::{Routes, Underlay};
use crate::vteps::Vteps;

/// `NUD_NOARP` (`include/uapi/linux/neighbour.h`).
const NUD_NOARP: u16 = 0x40;
/// `NUD_PERMANENT`.
const NUD_PERMANENT: u16 = 0x80;
/// `NTF_EXT_LEARNED`.
const NTF_EXT_LEARNED: u32 = 0x10;

/// See the module's description.
#[derive(Debug)]
pub struct State {
    pub(crate) settings: Settings,
    pub(crate) namespace: Namespace,

    pub(crate) links: Links,
    addresses: Swept<(u32, IpAddr), u8>,
    own: BTreeSet<IpAddr>,
    /// What each bridge knows of MAC addresses.
    bridges: HashMap<u32, Swept<MacAddr, Port>, BuildHasherDefault<TableHasher>>,
    /// The FDB of each vxlan netdev, and of interfaces that may yet turn out to be one.
    pub(crate) overlays: BTreeMap<u32, Overlay>,
    pub(crate) neighbours: Swept<(u32, IpAddr), Adjacent>,
    kernel: Routes,
    fpm: Routes,
    pub(crate) vteps: Vteps,

    epochs: Epochs,
    kernel_state: SourceState,
    pub(crate) session: FpmSession,
    pub(crate) dirty: Dirty,
    /// What the kernel may have changed without telling.
    doubtful: Vec<Dump>,
    pub(crate) publication: Publication,
    pub(crate) resolver: Resolver,
}

/// Where a bridge has a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Port {
    ifindex: u32,
    /// An address of the bridge or of a port itself.
    permanent: bool,
}

/// What is known of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Adjacent {
    /// Absent while frames may not be sent to it.
    pub(crate) mac: Option<MacAddr>,
    pub(crate) state: u16,
    flags: u32,
}

#[derive(Debug, Default)]
struct Epochs {
    links: Epoch,
    addresses: Epoch,
    fdb: Epoch,
    neighbours: Epoch,
    next_hops: Epoch,
    routes: Epoch,
    fpm: Epoch,
}

/// What the next publication has to look at.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// These overlays.
    pub(crate) overlays: BTreeSet<u32>,
    /// All overlays: the settings changed.
    pub(crate) all: bool,
    /// The way to every VTEP.
    pub(crate) underlay: bool,
    /// The MAC addresses of next hops.
    pub(crate) adjacencies: bool,
}

/// What a dump changed beside the entries it confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resync {
    /// Messages of the dump.
    pub dumped: usize,
    /// Entries that were known and are not there any more.
    pub swept: usize,
}

/// A zebra that crashes when its FPM connection is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FpmHazard {
    /// The router MAC whose replay it does not survive.
    pub router_mac: MacAddr,
    /// The VTEP that it belongs to.
    pub vtep: Ipv4Addr,
}

impl State {
    /// Nothing known yet.
    #[must_use]
    pub fn new(settings: Settings, namespace: Namespace) -> Self {
        Self {
            settings,
            namespace,
            links: Links::default(),
            addresses: Swept::default(),
            own: BTreeSet::new(),
            bridges: HashMap::default(),
            overlays: BTreeMap::new(),
            neighbours: Swept::default(),
            kernel: Routes::new(Identity::Metric),
            fpm: Routes::new(Identity::Prefix),
            vteps: Vteps::default(),
            epochs: Epochs::default(),
            kernel_state: SourceState::Disconnected,
            session: FpmSession::default(),
            dirty: Dirty::default(),
            doubtful: Vec::new(),
            publication: Publication::default(),
            resolver: Resolver::default(),
        }
    }

    /// Takes new settings; the next [`State::build`] follows them.
    pub fn reload(&mut self, settings: Settings, namespace: Namespace) {
        self.settings = settings;
        self.namespace = namespace;
        self.dirty.all = true;
    }

    /// The kernel said something.
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
            Message::Other(_) => {}
        }
    }

    /// The kernel said everything that there is of one kind: what it did not name is gone.
    pub fn resync(&mut self, what: Dump, dump: Vec<Message>) -> Resync {
        let dumped = dump.len();
        let epochs = &mut self.epochs;
        let epoch = match what {
            Dump::Links => &mut epochs.links,
            Dump::Addresses => &mut epochs.addresses,
            Dump::Fdb => &mut epochs.fdb,
            Dump::Neighbours => &mut epochs.neighbours,
            Dump::NextHops => &mut epochs.next_hops,
            Dump::Routes => &mut epochs.routes,
        };
        epoch.advance();
        let epoch = *epoch;
        for message in dump {
            self.apply_kernel(message);
        }
        let swept = match what {
            Dump::Links => {
                let gone = self.links.unconfirmed(epoch);
                gone.iter().for_each(|ifindex| self.remove_link(*ifindex));
                gone.len()
            }
            Dump::Addresses => {
                let gone = self.addresses.sweep(epoch).len();
                self.own_changed(gone > 0);
                gone
            }
            Dump::Fdb => self.sweep_fdb(epoch),
            Dump::Neighbours => {
                let gone = self.neighbours.sweep(epoch);
                self.dirty.adjacencies |= !gone.is_empty();
                gone.len()
            }
            Dump::NextHops => {
                let gone = self.kernel.next_hops.sweep(epoch).len();
                self.dirty.underlay |= gone > 0;
                gone
            }
            Dump::Routes => {
                let (gone, emptied) = self.kernel.fib.sweep(epoch);
                self.dirty.underlay |= gone > 0;
                self.orphan(emptied);
                gone
            }
        };
        Resync { dumped, swept }
    }

    /// Whether the kernel is being listened to, and how well.
    pub fn set_kernel_state(&mut self, state: SourceState) {
        self.kernel_state = state;
    }

    /// What is known of the kernel as a source.
    #[must_use]
    pub const fn kernel_state(&self) -> SourceState {
        self.kernel_state
    }

    /// What is known of zebra's FPM as a source.
    #[must_use]
    pub const fn fpm_state(&self) -> SourceState {
        self.session.state
    }

    /// How many entries zebra's last replay did not confirm.
    #[must_use]
    pub const fn fpm_swept(&self) -> usize {
        self.session.swept
    }

    /// Whether [`State::take_doubtful`] has anything.
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// What the kernel may have changed without telling: dump it again. Emptied by this call.
    pub fn take_doubtful(&mut self) -> Vec<Dump> {
        std::mem::take(&mut self.doubtful)
    }

    /// zebra connected: what it said before is unconfirmed until it says it again. The kernel is to be dumped again,
    /// for zebra never replays MAC addresses.
    pub fn fpm_connected(&mut self) {
        self.epochs.fpm.advance();
        self.session.connected();
        self.dirty.underlay = true;
        self.doubtful = Dump::ALL.to_vec();
    }

    /// zebra is gone: what it said stays, but the kernel's word comes first.
    pub fn fpm_disconnected(&mut self, now: Instant) {
        self.session.disconnected(now);
        self.dirty.underlay = true;
    }

    /// zebra said something. The messages of one frame belong together.
    pub fn apply_fpm(&mut self, transaction: Vec<Message>, now: Instant) {
        self.session.heard(&transaction, now);
        let epoch = self.epochs.fpm;
        for message in transaction {
            match message {
                Message::Fdb(operation, entry) => self.fpm_fdb(operation, &entry),
                Message::Route(Operation::New, route) => {
                    self.dirty.underlay |= self.fpm.fib.insert(&route, epoch);
                }
                Message::Route(Operation::Delete, route) => {
                    self.dirty.underlay |= self.fpm.fib.remove(&route);
                }
                Message::NextHop(operation, hop) => {
                    self.dirty.underlay |= next_hop(&mut self.fpm, operation, hop, epoch);
                }
                // zebra never tells of these; the kernel does.
                Message::Link(..) | Message::Address(..) | Message::Neighbour(..) | Message::Other(_) => {}
            }
        }
    }

    /// Time has passed. Sweeps what zebra has not said again once its replay has gone quiet.
    pub fn tick(&mut self, now: Instant) {
        if !self.session.replay_ended(now) {
            return;
        }
        let epoch = self.epochs.fpm;
        let mut swept = self.fpm.fib.sweep(epoch).0 + self.fpm.next_hops.sweep(epoch).len();
        for (ifindex, overlay) in &mut self.overlays {
            let gone = overlay.sweep_fpm(epoch);
            if gone > 0 {
                self.dirty.overlays.insert(*ifindex);
            }
            swept += gone;
        }
        self.session.live(swept);
        self.dirty.underlay = true;
    }

    /// Set when the connected zebra may not survive a reconnect: releases before 8.4.7 and 8.5.7 crash when they replay
    /// a router MAC. (So do some of 9.0 to 10.1, which nothing tells from the good ones.)
    #[must_use]
    pub fn fpm_hazard(&self) -> Option<FpmHazard> {
        if !self.session.is_fragile() {
            return None;
        }
        self.neighbours.iter().find_map(|((ifindex, address), neighbour)| {
            let IpAddr::V4(vtep) = address else { return None };
            let router_mac = neighbour
                .mac
                .filter(|_| neighbour.state & NUD_NOARP != 0 && neighbour.flags & NTF_EXT_LEARNED != 0)?;
            // The SVI is the bridge, or a VLAN interface on it.
            let svi = self.links.get(ifindex)?;
            let bridge = if self.links.is_bridge(ifindex) { ifindex } else { svi.link? };
            self.links
                .vxlans_in(bridge)
                .filter_map(|vxlan| self.overlays.get(&vxlan))
                .any(|overlay| overlay.says(router_mac, vtep))
                .then_some(FpmHazard { router_mac, vtep })
        })
    }

    pub(crate) fn underlay(&self) -> Underlay<'_> {
        let sources = match self.session.state {
            SourceState::Live => [&self.fpm, &self.kernel],
            _ => [&self.kernel, &self.fpm],
        };
        Underlay { links: &self.links, own: &self.own, sources }
    }

    /// Draws the consequences of what was said of an overlay.
    pub(crate) fn settle(&mut self, ifindex: u32) -> crate::overlay::Settled {
        let Some(overlay) = self.overlays.get_mut(&ifindex) else {
            return crate::overlay::Settled::default();
        };
        let bridge = self.links.get(ifindex).and_then(|link| link.master);
        let ports = bridge.and_then(|bridge| self.bridges.get(&bridge));
        let links = &self.links;
        overlay.settle(&mut self.vteps, |mac| {
            ports
                .and_then(|ports| ports.get(&mac))
                .is_some_and(|port| !port.permanent && links.vxlan(port.ifindex).is_none())
        })
    }

    fn link(&mut self, operation: Operation, link: Link) {
        if link.bridge_port_only {
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
        let vni = self.links.vxlan(ifindex).map(|vxlan| vxlan.id);
        if vni.is_some() {
            let overlay = self.overlays.entry(ifindex).or_default();
            if old_master != master || old_vni.is_none() {
                overlay.touch_all();
            }
        } else if let Some(mistaken) = self.overlays.remove(&ifindex) {
            mistaken.release(&mut self.vteps);
        }
        self.link_affects(ifindex, old_vni.or(vni), change);
    }

    fn remove_link(&mut self, ifindex: u32) {
        let vni = self.links.vxlan(ifindex).map(|vxlan| vxlan.id);
        if self.links.get(ifindex).is_none() {
            return;
        }
        self.link_affects(ifindex, vni, LinkChange { relevant: true, went_down: true, state: true });
        let link = self.links.remove(ifindex);
        if let Some(overlay) = self.overlays.remove(&ifindex) {
            overlay.release(&mut self.vteps);
        }
        self.bridges.remove(&ifindex);
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

    /// The kernel may have changed these without telling.
    fn doubt(&mut self, dumps: &[Dump]) {
        for dump in dumps {
            if !self.doubtful.contains(dump) {
                self.doubtful.push(*dump);
            }
        }
    }

    fn address(&mut self, operation: Operation, address: &Address) {
        let key = (address.ifindex, address.address);
        let changed = match operation {
            Operation::New => self.addresses.insert(key, address.prefix_length, self.epochs.addresses),
            Operation::Delete => {
                // Routes that preferred it as their source went with it, silently (`fib_sync_down_addr()`).
                self.doubt(&[Dump::Routes]);
                self.addresses.remove(&key).is_some()
            }
        };
        self.own_changed(changed);
    }

    fn own_changed(&mut self, changed: bool) {
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
        // An entry with a VLAN is one of a VLAN-aware bridge, whose VNIs stay with the kernel.
        if entry.vlan.is_some() {
            return;
        }
        let ports = self.bridges.entry(bridge).or_default();
        let changed = match operation {
            Operation::New => {
                let port = Port { ifindex: entry.ifindex, permanent: entry.state & NUD_PERMANENT != 0 };
                ports.insert(entry.mac, port, self.epochs.fdb)
            }
            // A late delete of where it was before is none.
            Operation::Delete if ports.get(&entry.mac).is_some_and(|port| port.ifindex == entry.ifindex) => {
                ports.remove(&entry.mac).is_some()
            }
            Operation::Delete => false,
        };
        if changed {
            self.touch(bridge, std::iter::once(entry.mac));
        }
    }

    /// A bridge said something about these addresses.
    fn touch(&mut self, bridge: u32, macs: impl Iterator<Item = MacAddr>) {
        for mac in macs {
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
        let overlay = self.overlays.entry(entry.ifindex).or_default();
        match operation {
            Operation::New => overlay.kernel_new(entry, self.epochs.fdb),
            Operation::Delete => overlay.kernel_delete(entry),
        }
        self.dirty.overlays.insert(entry.ifindex);
    }

    fn fpm_fdb(&mut self, operation: Operation, entry: &FdbEntry) {
        if entry.mac.is_group() || entry.mac == MacAddr::ZERO {
            return;
        }
        // zebra names the vxlan netdev; where that is unknown, the VNI tells it.
        let known = self.links.vxlan(entry.ifindex).map(|_| entry.ifindex);
        let by_vni = || entry.source_vni.and_then(|vni| self.links.vxlans_of(vni).next());
        let ifindex = known.or_else(by_vni).unwrap_or(entry.ifindex);
        let overlay = self.overlays.entry(ifindex).or_default();
        match (operation, entry.destination) {
            (Operation::New, Some(IpAddr::V4(vtep))) => overlay.fpm_new(entry.mac, vtep, self.epochs.fpm),
            (Operation::Delete, _) => overlay.fpm_delete(entry.mac),
            (Operation::New, _) => {}
        }
        self.dirty.overlays.insert(ifindex);
    }

    fn sweep_fdb(&mut self, epoch: Epoch) -> usize {
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
        let links = &self.links;
        self.overlays.retain(|ifindex, overlay| links.get(*ifindex).is_some() || !overlay.is_empty());
        swept
    }

    fn neighbour(&mut self, operation: Operation, neighbour: &Neighbour) {
        let key = (neighbour.ifindex, neighbour.address);
        let mac_before = self.neighbours.get(&key).and_then(|adjacent| adjacent.mac);
        match operation {
            Operation::New => {
                let mac = neighbour.mac.filter(|_| neighbour.is_valid());
                let adjacent = Adjacent { mac, state: neighbour.state, flags: neighbour.flags };
                self.neighbours.insert(key, adjacent, self.epochs.neighbours);
            }
            Operation::Delete => {
                self.neighbours.remove(&key);
            }
        }
        let mac = self.neighbours.get(&key).and_then(|adjacent| adjacent.mac);
        if mac != mac_before && self.publication.uses(neighbour.ifindex, neighbour.address) {
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
        self.dirty.underlay |= changed;
    }

    /// The kernel has no route to these any more. zebra tells only what the kernel has, so its version goes too: if
    /// it is newer, the kernel says so next.
    fn orphan(&mut self, prefixes: impl IntoIterator<Item = Prefix>) -> bool {
        prefixes.into_iter().fold(false, |changed, prefix| self.fpm.fib.remove_prefix(prefix) | changed)
    }
}

/// Follows a next-hop object; says whether anything changed.
fn next_hop(routes: &mut Routes, operation: Operation, hop: NextHop, epoch: Epoch) -> bool {
    match operation {
        Operation::New => routes.next_hops.insert(hop.id, hop.kind, epoch),
        Operation::Delete => {
            // A group loses the member silently.
            routes.next_hops.remove(&hop.id).is_some_and(|kind: NextHopKind| kind != NextHopKind::Other)
        }
    }
}
