//! Everything that the sources said, without any I/O: events in, tables out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use netlink::{Dump, FdbEntry, Message};
use tables::hash::TableHasher;
use wire::MacAddr;

use crate::bypass::{self, Bypass};
use crate::epoch_map::{Epoch, Swept};
use crate::events::MacChange;
use crate::fpm_session::FpmSession;
use crate::learn::LearnCounts;
use crate::links::Links;
use crate::mac_mobility::{Flap, Flapping, MoveCounts};
use crate::overlay::Overlay;
use crate::packet_filters::PacketFilters;
use crate::policies::Policies;
use crate::publication::Publication;
use crate::resolver::Resolver;
use crate::reverse_path::ReversePaths;
use crate::route_table::Identity;
use crate::settings::{Filters, Namespace, Settings};
use crate::source::SourceState;
use crate::standalone;
use crate::underlay::{LinkLocal, Routes, Underlay};
use crate::vteps::Vteps;

/// `NUD_NOARP` (`include/uapi/linux/neighbour.h`).
const NUD_NOARP: u16 = 0x40;
/// `NTF_EXT_LEARNED`.
const NTF_EXT_LEARNED: u32 = 0x10;

/// See the module's description.
#[derive(Debug)]
pub struct State {
    pub(crate) settings: Settings,
    pub(crate) namespace: Namespace,
    pub(crate) packet_filters: PacketFilters,

    pub(crate) links: Links,
    pub(crate) addresses: Swept<(u32, IpAddr), u8>,
    pub(crate) own: BTreeSet<IpAddr>,
    /// What each bridge knows of MAC addresses.
    pub(crate) bridges: HashMap<u32, Swept<MacAddr, Port>, BuildHasherDefault<TableHasher>>,
    /// The bridges of which not all addresses are followed.
    pub(crate) crowded: BTreeSet<u32>,
    /// The FDB of each vxlan netdev, and of interfaces that may yet turn out to be one.
    pub(crate) overlays: BTreeMap<u32, Overlay>,
    /// The vxlan netdevs that have multicast entries of their own, and interfaces that may yet turn
    /// out to be one.
    pub(crate) multicast: BTreeSet<u32>,
    pub(crate) neighbours: Swept<(u32, IpAddr), Adjacent>,
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
    /// What the kernel may have changed without telling.
    pub(crate) doubtful: Vec<Dump>,
    /// Addresses of bridges whose last event may not be the last word.
    pub(crate) moved: BTreeSet<(u32, MacAddr)>,
    /// When the kernel is to be asked about MAC addresses of which only zebra has told.
    pub(crate) confirm_at: Option<Instant>,
    pub(crate) publication: Publication,
    pub(crate) resolver: Resolver,
    pub(crate) learning: LearnCounts,
    /// Addresses of all netdevs that learn, once somebody wanted to know since the last
    /// [`State::build`].
    pub(crate) learned: Option<usize>,
    pub(crate) moves: MoveCounts,
    pub(crate) flapping: Flapping,
    pub(crate) mac_changes: Vec<(u32, MacChange)>,
    pub(crate) bypass: Bypass,
}

/// Where a bridge has a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) ifindex: u32,
    /// An address of the bridge or of a port itself.
    pub(crate) permanent: bool,
    /// Seen on a locked port and not admitted.
    pub(crate) locked: bool,
}

/// What is known of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Adjacent {
    /// Absent while frames may not be sent to it.
    pub(crate) mac: Option<MacAddr>,
    pub(crate) state: u16,
    pub(crate) flags: u32,
    /// It did not answer, and has not since: while it is asked again, frames still had better go
    /// elsewhere.
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

/// What the next publication has to look at.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// These overlays.
    pub(crate) overlays: BTreeSet<u32>,
    /// All overlays: the settings changed.
    pub(crate) all: bool,
    /// What is taken over: something changed that no single overlay has.
    pub(crate) decisions: bool,
    /// The way to every VTEP.
    pub(crate) underlay: bool,
    /// The way to the VTEPs in these prefixes.
    pub(crate) prefixes: BTreeSet<(Ipv4Addr, u8)>,
    /// The MAC addresses of next hops.
    pub(crate) adjacencies: bool,
    /// What the bypass goes by.
    pub(crate) bypass: bypass::Dirty,
}

/// What a dump changed beside the entries it confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resync {
    /// Messages of the dump.
    pub dumped: usize,
    /// Entries that were known and are not there any more.
    pub swept: usize,
}

/// What zebra had said over an FPM connection and is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FpmSweep {
    /// Routes, next-hop objects and MAC addresses.
    pub entries: usize,
    /// Whether zebra is here and did not repeat them; else it has been away for too long.
    pub returned: bool,
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
            packet_filters: PacketFilters::default(),
            links: Links::default(),
            addresses: Swept::default(),
            own: BTreeSet::new(),
            bridges: HashMap::default(),
            crowded: BTreeSet::new(),
            overlays: BTreeMap::new(),
            multicast: BTreeSet::new(),
            neighbours: Swept::default(),
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

    /// Takes new settings; the next [`State::build`] follows them. VNIs that were detached stay so,
    /// and those without netdevs are as they were.
    pub fn reload(&mut self, settings: Settings, namespace: Namespace) {
        let detached = std::mem::take(&mut self.settings.detached);
        let standalone = std::mem::take(&mut self.settings.standalone);
        self.settings = Settings { detached, standalone, ..settings };
        self.namespace = namespace;
        self.dirty.all = true;
    }

    /// The rules of packet filters are these now.
    pub fn set_packet_filters(&mut self, filters: PacketFilters) {
        if self.packet_filters != filters {
            self.packet_filters = filters;
            self.dirty.decisions = true;
        }
    }

    /// These packet filters are there now.
    pub fn set_filters(&mut self, filters: Filters) {
        if self.namespace.filters != filters {
            self.namespace.filters = filters;
            self.dirty.bypass.bridges.extend(self.links.bridges_with_vxlan());
        }
    }

    /// The kernel said everything that there is of one kind: what it did not name is gone.
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

    /// Whether [`State::take_moved`] has anything.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Up to `most` addresses, each of a bridge, of which the kernel's last event may not be the
    /// last word: ask it, and tell [`State::bridge_has`]. They are not named again until they have
    /// moved again.
    ///
    /// A frame moves a bridge's entry without a lock (`br_fdb_update()` in `net/bridge/br_fdb.c`).
    /// Where that meets another move, as zebra's, the events may come in the other order, and after
    /// the last one the kernel says nothing more.
    pub fn take_moved(&mut self, most: usize) -> Vec<(u32, MacAddr)> {
        std::iter::from_fn(|| self.moved.pop_first()).take(most).collect()
    }

    /// The kernel was asked what a bridge has of an address, after everything was heard that this
    /// state has heard.
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

    /// zebra connected: what it said before is unconfirmed until it says it again. The kernel is to
    /// be dumped again, for zebra never replays MAC addresses.
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
        for message in transaction {
            self.hear_zebra(message, now);
        }
    }

    /// Time has passed. Sweeps what zebra has not said again once its replay has gone quiet, and
    /// everything that it said once it has been away for too long. Doubts MAC addresses of which
    /// the kernel has never told.
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

    /// Removes what zebra has not said since the epoch began.
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

    /// How many entries are kept of what zebra said.
    pub(crate) fn fpm_entries(&self) -> usize {
        let overlays: usize = self.overlays.values().map(Overlay::fpm_entries).sum();
        self.fpm.fib.prefixes() + self.fpm.next_hops.len() + overlays
    }

    /// zebra is gone, and nothing is kept of what it said.
    pub(crate) fn forget_fpm(&mut self, now: Instant) {
        self.fpm_disconnected(now);
        self.epochs.fpm.advance();
        self.sweep_fpm();
    }

    /// When [`State::tick`] has something to sweep, if nothing else is heard.
    pub(crate) fn fpm_sweep_at(&self) -> Option<Instant> {
        self.session.sweep_at(self.settings.stale_time.0)
    }

    /// Since when zebra has been away, where that is so long that nothing is kept of what it said.
    #[must_use]
    pub fn fpm_forgotten(&self) -> Option<Instant> {
        self.session.forgotten()
    }

    /// Set when the connected zebra does not survive a reconnect: it knows a router MAC, and its
    /// messages, which name no VNI, are those of a version before 9.0.
    #[must_use]
    pub fn fpm_hazard(&self) -> Option<FpmHazard> {
        if self.session.is_fragile() { self.router_mac() } else { None }
    }

    /// A remote router MAC (L3VNI) that the kernel knows from zebra: a neighbour on an SVI whose
    /// address is the VTEP's.
    ///
    /// zebra up to 8.4.6, 8.5.6, 9.0.4, 9.1.2, 10.0.2 and 10.1.1 crashes when an FPM connection is
    /// made, the first one included, while it knows one. Nothing tells its version before it
    /// connects.
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

    /// Draws the consequences of what was said of an overlay.
    pub(crate) fn settle(&mut self, ifindex: u32) -> crate::overlay::Settled {
        let Some(overlay) = self.overlays.get_mut(&ifindex) else {
            return crate::overlay::Settled::default();
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

    /// What the last [`State::build`] changed in the FDB of each vxlan netdev, by interface index;
    /// without the moves of addresses that flap.
    pub fn take_mac_changes(&mut self, now: Instant) -> Vec<(u32, MacChange)> {
        let mut changes = std::mem::take(&mut self.mac_changes);
        let limit = self.settings.learning.moves;
        changes.retain(|(ifindex, change)| {
            let moved = change.is_move() && self.publication.takes(*ifindex);
            !moved || !self.flapping.moved((*ifindex, change.mac), limit, now)
        });
        changes
    }

    /// Which addresses began to flap and which came to rest since the last call.
    pub fn take_flaps(&mut self) -> Vec<Flap> {
        let flaps = self.flapping.take_news();
        self.moves.flapping += flaps.iter().filter(|flap| flap.over.is_none()).count() as u64;
        flaps
    }

    /// What became of addresses' moves so far.
    #[must_use]
    pub const fn move_counts(&self) -> MoveCounts {
        self.moves
    }
}
