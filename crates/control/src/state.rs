//! The state of all sources, without any I/O: events in, tables out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use netlink::{Dump, FdbEntry, Message};
use tables::hash::TableHasher;
use wire::MacAddr;

use crate::events::MacChange;
use crate::events::mac_mobility::{Flap, Flapping, MoveCounts};
use crate::learn::LearnCounts;
use crate::publish::Publication;
use crate::publish::bypass::{self, Bypass};
use crate::resolve::resolver::Resolver;
use crate::resolve::underlay::{LinkLocal, Routes, Underlay};
use crate::settings::{Filters, Namespace, Settings};
use crate::sources::SourceState;
use crate::sources::fpm_session::FpmSession;
use crate::sources::standalone;
use crate::stores::epoch_map::{Epoch, EpochMap};
use crate::stores::links::Links;
use crate::stores::overlay::Overlay;
use crate::stores::packet_filters::PacketFilters;
use crate::stores::policies::Policies;
use crate::stores::reverse_paths::ReversePaths;
use crate::stores::route_table::Identity;
use crate::stores::vteps::Vteps;

/// `NUD_NOARP` (`include/uapi/linux/neighbour.h`).
const NUD_NOARP: u16 = 0x40;
/// `NTF_EXT_LEARNED`.
const NTF_EXT_LEARNED: u32 = 0x10;

/// Everything that the kernel and zebra have reported, and the last publication.
#[derive(Debug)]
pub struct State {
    pub(crate) settings: Settings,
    pub(crate) namespace: Namespace,
    pub(crate) packet_filters: PacketFilters,

    pub(crate) links: Links,
    pub(crate) addresses: EpochMap<(u32, IpAddr), u8>,
    pub(crate) own: BTreeSet<IpAddr>,
    /// The FDB of each bridge, by the bridge's interface index.
    pub(crate) bridges: HashMap<u32, EpochMap<MacAddr, Port>, BuildHasherDefault<TableHasher>>,
    /// Bridges with more addresses than are followed.
    pub(crate) crowded: BTreeSet<u32>,
    /// The FDB of each vxlan netdev, and of interfaces whose link message has not arrived yet.
    pub(crate) overlays: BTreeMap<u32, Overlay>,
    /// The vxlan netdevs with multicast entries (`bridge mdb`), and interfaces whose link message
    /// has not arrived yet.
    pub(crate) multicast: BTreeSet<u32>,
    pub(crate) neighbours: EpochMap<(u32, IpAddr), Adjacent>,
    pub(crate) kernel: Routes,
    pub(crate) fpm: Routes,
    pub(crate) vteps: Vteps,
    pub(crate) policies: Policies,
    pub(crate) reverse_paths: ReversePaths,
    /// The `local` addresses of vxlan netdevs, and whether this host has them.
    pub(crate) locals: BTreeMap<Ipv4Addr, bool>,

    pub(crate) epochs: Epochs,
    kernel_state: SourceState,
    pub(crate) session: FpmSession,
    pub(crate) dirty: Dirty,
    /// What the kernel may have changed without a notification.
    pub(crate) doubtful: Vec<Dump>,
    /// MAC addresses of bridges whose last notification may be out of order.
    pub(crate) moved: BTreeSet<(u32, MacAddr)>,
    /// When the kernel's FDB is dumped because of MAC addresses that only zebra has reported.
    pub(crate) confirm_at: Option<Instant>,
    pub(crate) publication: Publication,
    pub(crate) resolver: Resolver,
    pub(crate) learning: LearnCounts,
    /// Number of addresses of all netdevs that learn. Computed on demand, and reset by
    /// [`State::build`].
    pub(crate) learned: Option<usize>,
    pub(crate) moves: MoveCounts,
    pub(crate) flapping: Flapping,
    pub(crate) mac_changes: Vec<(u32, MacChange)>,
    pub(crate) bypass: Bypass,
}

/// The port behind which a bridge has a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) ifindex: u32,
    /// The bridge's own address, or that of one of its ports.
    pub(crate) permanent: bool,
    /// Seen on a locked port and not authorised.
    pub(crate) locked: bool,
}

/// What is known of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Adjacent {
    /// `None` while no frames may be sent to it.
    pub(crate) mac: Option<MacAddr>,
    pub(crate) state: u16,
    pub(crate) flags: u32,
    /// It did not answer, and has not answered since. Frames avoid it even while it is probed
    /// again.
    pub(crate) failed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    pub(crate) links: Epoch,
    pub(crate) addresses: Epoch,
    pub(crate) fdb: Epoch,
    pub(crate) neighbours: Epoch,
    pub(crate) next_hops: Epoch,
    pub(crate) routes: Epoch,
    pub(crate) fpm: Epoch,
}

/// What the next publication has to compute again.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// These overlays.
    pub(crate) overlays: BTreeSet<u32>,
    /// All overlays: the settings changed.
    pub(crate) all: bool,
    /// Which VNIs are taken over: something changed that belongs to no single overlay.
    pub(crate) decisions: bool,
    /// The routes to all VTEPs.
    pub(crate) underlay: bool,
    /// The routes to the VTEPs in these prefixes.
    pub(crate) prefixes: BTreeSet<(Ipv4Addr, u8)>,
    /// The MAC addresses of next hops.
    pub(crate) adjacencies: bool,
    /// Bridges and addresses of the bridge bypass.
    pub(crate) bypass: bypass::Dirty,
}

/// The result of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resync {
    /// Messages of the dump.
    pub dumped: usize,
    /// Entries that were known and are gone.
    pub swept: usize,
}

/// Entries of zebra that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FpmSweep {
    /// Routes, next-hop objects and MAC addresses.
    pub entries: usize,
    /// Whether zebra is connected and did not repeat them. If not, it was away for too long.
    pub returned: bool,
}

/// A condition under which zebra crashes when its FPM connection is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FpmHazard {
    /// The router MAC address that makes its replay crash.
    pub router_mac: MacAddr,
    /// The VTEP of that address.
    pub vtep: Ipv4Addr,
}

impl State {
    /// A state without any facts.
    #[must_use]
    pub fn new(settings: Settings, namespace: Namespace) -> Self {
        Self {
            settings,
            namespace,
            packet_filters: PacketFilters::default(),
            links: Links::default(),
            addresses: EpochMap::default(),
            own: BTreeSet::new(),
            bridges: HashMap::default(),
            crowded: BTreeSet::new(),
            overlays: BTreeMap::new(),
            multicast: BTreeSet::new(),
            neighbours: EpochMap::default(),
            kernel: Routes::new(Identity::Metric),
            fpm: Routes::new(Identity::Prefix),
            vteps: Vteps::default(),
            policies: Policies::default(),
            reverse_paths: ReversePaths::default(),
            locals: BTreeMap::new(),
            epochs: Epochs::default(),
            kernel_state: SourceState::Disconnected,
            session: FpmSession::default(),
            dirty: Dirty::default(),
            doubtful: Vec::new(),
            moved: BTreeSet::new(),
            confirm_at: None,
            publication: Publication::default(),
            resolver: Resolver::default(),
            learning: LearnCounts::default(),
            learned: None,
            moves: MoveCounts::default(),
            flapping: Flapping::default(),
            mac_changes: Vec::new(),
            bypass: Bypass::default(),
        }
    }

    /// Sets new settings, which the next [`State::build`] applies. Detached VNIs stay detached, and
    /// standalone VNIs do not change.
    pub fn reload(&mut self, settings: Settings, namespace: Namespace) {
        let detached = std::mem::take(&mut self.settings.detached);
        let standalone = std::mem::take(&mut self.settings.standalone);
        self.settings = Settings { detached, standalone, ..settings };
        self.namespace = namespace;
        self.dirty.all = true;
    }

    /// Sets the rules of packet filters.
    pub fn set_packet_filters(&mut self, filters: PacketFilters) {
        if self.packet_filters != filters {
            self.packet_filters = filters;
            self.dirty.decisions = true;
        }
    }

    /// Sets which packet filters see bridged frames.
    pub fn set_filters(&mut self, filters: Filters) {
        if self.namespace.filters != filters {
            self.namespace.filters = filters;
            self.dirty.bypass.bridges.extend(self.links.bridges_with_vxlan());
        }
    }

    /// Applies a complete dump of one kind. Entries that it does not have are removed.
    pub fn resync(&mut self, what: Dump, dump: Vec<Message>) -> Resync {
        let dumped = dump.len();
        if matches!(what, Dump::Rules | Dump::IpsecPolicies) {
            self.resync_policies(what, dump);
            return Resync { dumped, swept: 0 };
        }
        let epochs = &mut self.epochs;
        let epoch = match what {
            Dump::Links => &mut epochs.links,
            Dump::Addresses => &mut epochs.addresses,
            Dump::Fdb => &mut epochs.fdb,
            Dump::Neighbours => &mut epochs.neighbours,
            Dump::NextHops => &mut epochs.next_hops,
            Dump::Routes => &mut epochs.routes,
            Dump::Rules | Dump::IpsecPolicies => return Resync { dumped, swept: 0 },
            Dump::Mdb => return Resync { dumped, swept: self.resync_multicast(dump) },
            Dump::ReversePathFilters => {
                self.dirty.underlay |= self.reverse_paths.resync(dump);
                return Resync { dumped, swept: 0 };
            }
        };
        epoch.advance();
        let epoch = *epoch;
        for message in dump.into_iter().chain(standalone::messages(&self.settings.standalone, what))
        {
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
            Dump::Mdb | Dump::ReversePathFilters => 0,
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
            Dump::Rules | Dump::IpsecPolicies => 0,
        };
        Resync { dumped, swept }
    }

    /// Sets the state of the kernel as a source.
    pub fn set_kernel_state(&mut self, state: SourceState) {
        self.kernel_state = state;
    }

    /// The state of the kernel as a source.
    #[must_use]
    pub const fn kernel_state(&self) -> SourceState {
        self.kernel_state
    }

    /// The state of zebra's FPM as a source.
    #[must_use]
    pub const fn fpm_state(&self) -> SourceState {
        self.session.state
    }

    /// Number of entries that zebra's last replay did not repeat.
    #[must_use]
    pub const fn fpm_swept(&self) -> usize {
        self.session.swept
    }

    /// Whether [`State::take_doubtful`] would return anything.
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// The kinds of dumps to make, because the kernel may have changed something without a
    /// notification. Returned once.
    pub fn take_doubtful(&mut self) -> Vec<Dump> {
        std::mem::take(&mut self.doubtful)
    }

    /// Whether [`State::take_moved`] would return anything.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Up to `most` pairs of a bridge and a MAC address whose last notification may be out of
    /// order. The caller reads each entry from the kernel and calls [`State::bridge_has`]. A pair
    /// is returned again only after another move.
    ///
    /// The kernel moves a bridge's entry without a lock when a frame arrives (`br_fdb_update()` in
    /// `net/bridge/br_fdb.c`). If zebra moves the entry at the same moment, the notifications may
    /// arrive in the wrong order, and no further one follows.
    pub fn take_moved(&mut self, most: usize) -> Vec<(u32, MacAddr)> {
        std::iter::from_fn(|| self.moved.pop_first()).take(most).collect()
    }

    /// Applies a bridge's FDB entry for an address. It was read from the kernel after all
    /// notifications that this state has.
    pub fn bridge_has(&mut self, bridge: u32, mac: MacAddr, entry: Option<&FdbEntry>) {
        if !self.links.is_bridge(bridge) {
            return;
        }
        let ports = self.bridges.entry(bridge).or_default();
        let changed = match entry {
            Some(entry) => ports.insert(mac, Port::of(entry), self.epochs.fdb),
            None => ports.remove(&mac).is_some(),
        };
        if changed {
            tracing::debug!(bridge, %mac, "the bridge's last event was not its last word");
            self.touch(bridge, std::iter::once(mac));
        }
    }

    /// zebra connected. What it reported before is unconfirmed until it repeats it. All kernel
    /// tables have to be dumped, because zebra never replays MAC addresses.
    pub fn fpm_connected(&mut self) {
        self.epochs.fpm.advance();
        self.session.connected();
        self.dirty.underlay = true;
        self.doubtful = Dump::ALL.to_vec();
    }

    /// zebra disconnected. What it reported is kept, but the kernel's routes are preferred.
    pub fn fpm_disconnected(&mut self, now: Instant) {
        self.session.disconnected(now);
        self.dirty.underlay = true;
    }

    /// Applies the messages of one FPM frame, which belong together.
    pub fn apply_fpm(&mut self, transaction: Vec<Message>, now: Instant) {
        self.session.heard(&transaction, now);
        for message in transaction {
            self.hear_zebra(message, now);
        }
    }

    /// Does what is due by time. When zebra's replay has ended, what it did not repeat is removed.
    /// When zebra has been away for too long, everything that it reported is removed. MAC addresses
    /// that the kernel has never reported cause an FDB dump.
    pub fn tick(&mut self, now: Instant) -> Option<FpmSweep> {
        self.flapping.tick(self.settings.learning.moves, now);
        if self.confirm_at.take_if(|at| now >= *at).is_some()
            && self.overlays.values().any(Overlay::is_unconfirmed)
        {
            self.doubt(&[Dump::Fdb]);
        }
        self.fpm_sweep_at().filter(|at| now >= *at)?;
        if !self.session.repeats() {
            self.epochs.fpm.advance();
        }
        Some(self.sweep_fpm())
    }

    /// Removes what zebra has not repeated in the current epoch.
    fn sweep_fpm(&mut self) -> FpmSweep {
        let epoch = self.epochs.fpm;
        let mut swept = self.fpm.fib.sweep(epoch).0 + self.fpm.next_hops.sweep(epoch).len();
        for (ifindex, overlay) in &mut self.overlays {
            let gone = overlay.sweep_fpm(epoch);
            if gone > 0 {
                self.dirty.overlays.insert(*ifindex);
            }
            swept += gone;
        }
        let returned = self.session.swept(swept);
        self.dirty.underlay = true;
        FpmSweep { entries: swept, returned }
    }

    /// Number of entries that zebra has reported.
    pub(crate) fn fpm_entries(&self) -> usize {
        let overlays: usize = self.overlays.values().map(Overlay::fpm_entries).sum();
        self.fpm.fib.prefixes() + self.fpm.next_hops.len() + overlays
    }

    /// Disconnects zebra and removes everything that it reported.
    pub(crate) fn forget_fpm(&mut self, now: Instant) {
        self.fpm_disconnected(now);
        self.epochs.fpm.advance();
        self.sweep_fpm();
    }

    /// When [`State::tick`] will sweep zebra's entries, if zebra sends nothing until then.
    pub(crate) fn fpm_sweep_at(&self) -> Option<Instant> {
        self.session.sweep_at(self.settings.stale_time.0)
    }

    /// When zebra left, if it has been away for so long that its entries were removed.
    #[must_use]
    pub fn fpm_forgotten(&self) -> Option<Instant> {
        self.session.forgotten()
    }

    /// Set if the connected zebra would crash at a reconnect: it has a router MAC address, and its
    /// messages are those of a version before 9.0 (MAC addresses without a VNI).
    #[must_use]
    pub fn fpm_hazard(&self) -> Option<FpmHazard> {
        if self.session.is_fragile() { self.router_mac() } else { None }
    }

    /// A remote router MAC address (L3VNI) that zebra wrote into the kernel: a neighbour on an SVI
    /// whose address is that of the VTEP.
    ///
    /// zebra up to 8.4.6, 8.5.6, 9.0.4, 9.1.2, 10.0.2 and 10.1.1 crashes when an FPM connection is
    /// made while it has such an address. The first connection counts as well. Its version is
    /// unknown before it connects.
    #[must_use]
    pub fn router_mac(&self) -> Option<FpmHazard> {
        self.neighbours.iter().find_map(|((ifindex, address), neighbour)| {
            let IpAddr::V4(vtep) = address else { return None };
            let router_mac = neighbour.mac.filter(|_| {
                neighbour.state & NUD_NOARP != 0 && neighbour.flags & NTF_EXT_LEARNED != 0
            })?;
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

    pub(crate) fn underlay<'a>(&'a self, link_local: &'a LinkLocal<'a>) -> Underlay<'a> {
        let sources = match self.session.state {
            SourceState::Live => [&self.fpm, &self.kernel],
            _ => [&self.kernel, &self.fpm],
        };
        Underlay { links: &self.links, own: &self.own, sources, link_local }
    }

    /// Applies what was reported for an overlay to its FDB.
    pub(crate) fn settle(&mut self, ifindex: u32) -> crate::stores::overlay::Settled {
        let Some(overlay) = self.overlays.get_mut(&ifindex) else {
            return crate::stores::overlay::Settled::default();
        };
        let bridge = self.links.get(ifindex).and_then(|link| link.master);
        let ports = bridge.and_then(|bridge| self.bridges.get(&bridge));
        let links = &self.links;
        let settled = overlay.settle(&mut self.vteps, |mac| {
            ports
                .and_then(|ports| ports.get(&mac))
                .is_some_and(|port| !port.permanent && links.vxlan(port.ifindex).is_none())
        });
        if let Some(bridge) = bridge {
            self.dirty
                .bypass
                .addresses
                .extend(overlay.changes.iter().map(|change| (bridge, change.mac)));
        }
        if self.publication.takes(ifindex) {
            self.moves.followed += settled.followed;
            self.moves.coalesced += settled.moves.saturating_sub(settled.followed);
        }
        self.mac_changes.extend(overlay.changes.drain(..).map(|change| (ifindex, change)));
        settled
    }

    /// The changes that the last [`State::build`] made to the FDB of each vxlan netdev, by
    /// interface index. Moves of flapping addresses are left out.
    pub fn take_mac_changes(&mut self, now: Instant) -> Vec<(u32, MacChange)> {
        let mut changes = std::mem::take(&mut self.mac_changes);
        let limit = self.settings.learning.moves;
        changes.retain(|(ifindex, change)| {
            let moved = change.is_move() && self.publication.takes(*ifindex);
            !moved || !self.flapping.moved((*ifindex, change.mac), limit, now)
        });
        changes
    }

    /// The addresses that began or stopped flapping since the last call.
    pub fn take_flaps(&mut self) -> Vec<Flap> {
        let flaps = self.flapping.take_news();
        self.moves.flapping += flaps.iter().filter(|flap| flap.over.is_none()).count() as u64;
        flaps
    }

    /// Counters of the moves of MAC addresses.
    #[must_use]
    pub const fn move_counts(&self) -> MoveCounts {
        self.moves
    }
}
