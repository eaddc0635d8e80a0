//! The control plane without any I/O: messages in, publications out.
//!
//! [`State`] holds the stages and calls them in order. It has no logic of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink::{Dump, FdbEntry, FdbWrite, Message, RuleSet};
use tables::{Learned, MacLocationChange, VniIndex, VniSource};
use wire::MacAddr;

use crate::change::Change;
use crate::hosts::{self, Host};
use crate::learn::{LearnCounts, Learning};
use crate::mac_mobility::{Flap, MacMobility, MoveCounts};
use crate::publish::Publication;
use crate::publish::decisions::Configuration;
use crate::publish::update::Update;
use crate::resolve::neighbour_requests::{NeighbourRequests, UNRESOLVED};
use crate::resolve::path_mtu::{self, Path};
use crate::settings::{Defaults, Filters, Namespace, Settings};
use crate::sources::SourceState;
use crate::sources::fpm_session::{FpmHazard, FpmSession, FpmSweep};
use crate::sources::resync::{self, Resync};
use crate::sources::{fdb, fpm_session, kernel, standalone, zebra};
use crate::stores::Stores;
use crate::stores::ipv6_interface::Ipv6Interface;
use crate::stores::neighbours::Adjacency;
use crate::stores::overlay::{MacChange, Overlay};

/// How long after zebra's report of an entry the kernel's is expected. They usually arrive within a
/// millisecond of each other. If the kernel has already deleted the entry when zebra's report
/// arrives, only a dump removes it.
const CONFIRMATION: Duration = Duration::from_secs(1);

/// Everything that the kernel and zebra have reported, and the last publication.
#[derive(Debug)]
pub struct State {
    settings: Settings,
    namespace: Namespace,
    stores: Stores,
    publication: Publication,
    kernel_state: SourceState,
    session: FpmSession,
    /// When the kernel's FDB is dumped because of MAC addresses that only zebra has reported.
    confirm_at: Option<Instant>,
    requests: NeighbourRequests,
    learning: Learning,
    mobility: MacMobility,
}

impl State {
    /// A state without any facts.
    #[must_use]
    pub fn new(settings: Settings, namespace: Namespace) -> Self {
        let mut stores = Stores::default();
        stores.changes.bypass.off = !settings.bypass;
        standalone::add(&mut stores, &settings.standalone);
        Self {
            settings,
            namespace,
            stores,
            publication: Publication::default(),
            kernel_state: SourceState::Disconnected,
            session: FpmSession::default(),
            confirm_at: None,
            requests: NeighbourRequests::default(),
            learning: Learning::default(),
            mobility: MacMobility::default(),
        }
    }

    /// Sets new settings, which the next [`State::build`] applies. Detached VNIs stay detached, and
    /// standalone VNIs do not change.
    pub fn reload(&mut self, settings: Settings, namespace: Namespace) {
        let detached = std::mem::take(&mut self.settings.detached);
        let standalone = std::mem::take(&mut self.settings.standalone);
        self.settings = Settings { detached, standalone, ..settings };
        self.namespace = namespace;
        self.stores.changes.bypass.off = !self.settings.bypass;
        self.stores.changes.all = true;
    }

    /// Changes the settings, which the next [`State::build`] applies.
    ///
    /// # Errors
    /// If the policy's settings contradict each other. Nothing changes then.
    pub fn change(&mut self, change: &Change) -> Result<(), path::SettingsError> {
        change.apply(&mut self.settings)?;
        let stores = &self.stores;
        // A netdev that serves many VNIs may serve this one.
        let serves_many = |source: &VniSource| {
            stores.vxlan(*source).is_some_and(|vxlan| vxlan.external || vxlan.vni_filter)
        };
        let affected = stores.sources_of(change.vni().get());
        let affected: Vec<_> = affected.chain(stores.sources().filter(serves_many)).collect();
        self.stores.changes.overlays.extend(affected);
        Ok(())
    }

    /// Sets the rules of packet filters.
    pub fn set_packet_filters(&mut self, filters: RuleSet) {
        if self.stores.packet_filters != filters {
            self.stores.packet_filters = filters;
            self.stores.changes.decisions = true;
        }
    }

    /// Sets which packet filters see bridged frames.
    pub fn set_filters(&mut self, filters: Filters) {
        if self.namespace.filters != filters {
            self.stores.changes.decisions |= self.namespace.filters.ipv6 != filters.ipv6;
            self.namespace.filters = filters;
            let bridges = self.stores.links.bridges_with_vxlan();
            self.stores.changes.bypass.bridges.extend(bridges);
        }
    }

    /// Sets the current default values of the namespace. The kernel sends no notification when they
    /// change.
    pub fn set_defaults(&mut self, defaults: Defaults) {
        if self.namespace.defaults != defaults {
            self.namespace.defaults = defaults;
            self.stores.changes.decisions = true;
        }
    }

    /// Applies a message from the kernel.
    pub fn apply_kernel(&mut self, message: Message) {
        if let Message::Fdb(_, entry) = &message {
            self.learning.told(entry.ifindex, entry.mac);
        }
        kernel::apply(&mut self.stores, message);
        self.follow_neighbours();
    }

    /// Applies a complete dump of one kind. Entries that it does not have are removed.
    pub fn resync(&mut self, what: Dump, dump: Vec<Message>) -> Resync {
        if what == Dump::Fdb {
            self.learning.told_all();
        }
        let resync = resync::apply(&mut self.stores, what, dump, &self.settings.standalone);
        self.follow_neighbours();
        resync
    }

    fn follow_neighbours(&mut self) {
        for change in self.stores.neighbours.take_changes() {
            if change.answered {
                // If it is lost again, it may be asked for immediately.
                self.requests.forget(change.neighbour);
            }
            self.stores.changes.adjacencies |=
                self.publication.next_hops.contains(change.neighbour);
        }
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

    /// Whether [`State::take_wanted_dumps`] would return anything.
    #[must_use]
    pub const fn wants_dumps(&self) -> bool {
        self.stores.changes.wants_dumps()
    }

    /// The kinds of dumps to make, because the kernel may have changed something without a
    /// notification. Returned once.
    pub fn take_wanted_dumps(&mut self) -> Vec<Dump> {
        self.stores.changes.take_dumps()
    }

    /// Whether [`State::take_moved`] would return anything.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.stores.bridges.has_moved()
    }

    /// Up to `most` pairs of a bridge and a MAC address whose last notification may be out of
    /// order. The caller reads each entry from the kernel and calls [`State::bridge_has`]. A pair
    /// is returned again only after another move.
    ///
    /// The kernel moves a bridge's entry without a lock when a frame arrives (`br_fdb_update()` in
    /// `net/bridge/br_fdb.c`). If zebra moves the entry at the same moment, the notifications may
    /// arrive in the wrong order, and no further one follows.
    pub fn take_moved(&mut self, most: usize) -> Vec<(u32, MacAddr)> {
        self.stores.bridges.take_moved(most)
    }

    /// Applies a bridge's FDB entry for an address. It was read from the kernel after all
    /// notifications that this state has.
    pub fn bridge_has(&mut self, bridge: u32, mac: MacAddr, entry: Option<&FdbEntry>) {
        fdb::apply_read(&mut self.stores, bridge, mac, entry);
    }

    /// zebra connected. What it reported before is unconfirmed until it repeats it. All kernel
    /// tables have to be dumped, because zebra never replays MAC addresses.
    pub fn fpm_connected(&mut self) {
        self.stores.epochs.fpm.advance();
        self.session.connected();
        self.session_changed();
        self.stores.changes.take_dumps();
        self.stores.changes.want_dumps(&Dump::ALL);
    }

    /// zebra disconnected. What it reported is kept, but the kernel's routes are preferred.
    pub fn fpm_disconnected(&mut self, now: Instant) {
        self.session.disconnected(now);
        self.session_changed();
    }

    fn session_changed(&mut self) {
        self.stores.routes.fpm_first = self.session.state == SourceState::Live;
        self.stores.changes.underlay = true;
    }

    /// Applies the messages of one FPM frame, which belong together.
    pub fn apply_fpm(&mut self, transaction: Vec<Message>, now: Instant) {
        self.session.received(&transaction, now);
        for message in transaction {
            if zebra::apply(&mut self.stores, message) {
                self.confirm_at.get_or_insert(now + CONFIRMATION);
            }
        }
    }

    /// Does what is due by time. When zebra's replay has ended, what it did not repeat is removed.
    /// When zebra has been away for too long, everything that it reported is removed. MAC addresses
    /// that the kernel has never reported cause an FDB dump.
    pub fn tick(&mut self, now: Instant) -> Option<FpmSweep> {
        self.mobility.flapping.tick(self.settings.learning.moves, now);
        if self.confirm_at.take_if(|at| now >= *at).is_some()
            && self.stores.overlays.values().any(Overlay::is_unconfirmed)
        {
            self.stores.changes.want_dumps(&[Dump::Fdb]);
        }
        self.fpm_sweep_at().filter(|at| now >= *at)?;
        if !self.session.repeats() {
            self.stores.epochs.fpm.advance();
        }
        Some(self.sweep_fpm())
    }

    /// Removes what zebra has not repeated in the current epoch.
    fn sweep_fpm(&mut self) -> FpmSweep {
        let entries = zebra::sweep(&mut self.stores);
        let returned = self.session.swept(entries);
        self.session_changed();
        FpmSweep { entries, returned }
    }

    /// Number of entries that zebra has reported.
    pub(crate) fn fpm_entries(&self) -> usize {
        zebra::entries(&self.stores)
    }

    /// Disconnects zebra and removes everything that it reported.
    pub(crate) fn forget_fpm(&mut self, now: Instant) {
        self.fpm_disconnected(now);
        self.stores.epochs.fpm.advance();
        self.sweep_fpm();
    }

    /// When [`State::tick`] will sweep zebra's entries, if zebra sends nothing until then.
    fn fpm_sweep_at(&self) -> Option<Instant> {
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

    /// A remote router MAC address (L3VNI) that zebra wrote into the kernel. Some versions of zebra
    /// crash when an FPM connection is made while they have one.
    #[must_use]
    pub fn router_mac(&self) -> Option<FpmHazard> {
        fpm_session::router_mac(&self.stores)
    }

    /// Whether anything changed that [`State::build`] has not applied yet.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.stores.changes.is_empty()
    }

    /// Builds a publication if anything changed, or if there is none yet.
    pub fn build_if_dirty(&mut self) {
        if self.is_dirty() || self.published().snapshot.generation() == 0 {
            self.build();
        }
    }

    /// Builds a publication from everything reported so far.
    pub fn build(&mut self) -> Update {
        let (settings, namespace) = (&self.settings, &self.namespace);
        let configuration = Configuration { settings, namespace };
        self.learning.entries_changed();
        self.publication.build(&mut self.stores, configuration, &mut self.mobility);
        self.published().clone()
    }

    /// The last publication.
    #[must_use]
    pub const fn published(&self) -> &Update {
        &self.publication.last
    }

    /// The addresses that appeared at a location or left one since the last call.
    ///
    /// The caller removes those that left before the workers use the new snapshot, and adds the new
    /// ones after.
    pub fn take_mac_locations(&mut self) -> Arc<[MacLocationChange]> {
        self.publication.bypass.take_mac_locations()
    }

    /// Whether all next hops of VNIs taken over have a MAC address.
    #[must_use]
    pub fn next_hops_resolved(&self) -> bool {
        self.publication.next_hops.are_resolved(&self.stores.neighbours)
    }

    /// The neighbours that are to be resolved now. They are recorded as asked for.
    pub fn resolve_due(&mut self, now: Instant) -> Vec<Adjacency> {
        let wanted = self.publication.next_hops.unresolved(&self.stores.neighbours);
        let requests = &mut self.requests;
        wanted
            .filter(|(adjacency, interval)| requests.ask(*adjacency, *interval, now))
            .map(|(adjacency, _)| adjacency)
            .collect()
    }

    /// A worker needs this neighbour. Returns whether to ask the kernel now, which is then
    /// recorded.
    pub fn resolve(&mut self, adjacency: Adjacency, now: Instant) -> bool {
        !self.stores.neighbours.is_resolved(adjacency)
            && self.requests.ask(adjacency, UNRESOLVED, now)
    }

    /// When [`State::tick`] or [`State::resolve_due`] have something to do next, if there is no
    /// event before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let unresolved = self.publication.next_hops.unresolved(&self.stores.neighbours);
        let asks =
            unresolved.filter_map(|(adjacency, interval)| self.requests.due(adjacency, interval));
        let flapping = self.mobility.flapping.ends();
        asks.chain(self.fpm_sweep_at()).chain(self.confirm_at).chain(flapping).min()
    }

    /// The paths to read from the kernel, because their MTU may be smaller than that of their
    /// interface: all of them, or those to some VTEPs.
    #[must_use]
    pub fn paths(&self, vteps: Option<&BTreeSet<IpAddr>>) -> BTreeSet<Path> {
        path_mtu::paths(&self.stores, self.publication.decisions.tunnels(), vteps)
    }

    /// Whether an address is one of a remote VTEP.
    pub(crate) fn knows_vtep(&self, address: IpAddr) -> bool {
        self.stores.vteps.find(address).is_some()
    }

    /// Sets the path MTUs of the kernel's route cache. VTEPs that are absent have none.
    pub fn set_path_mtus(&mut self, mtus: &BTreeMap<IpAddr, u32>) {
        path_mtu::set(&mut self.stores, mtus);
    }

    /// The interfaces that routes to VTEPs with IPv6 addresses use.
    #[must_use]
    pub fn ipv6_uplinks(&self) -> BTreeMap<u32, String> {
        let over_ipv6 = self.stores.vteps.iter().filter(|(_, known)| known.address.is_ipv6());
        let routes = over_ipv6.filter_map(|(_, known)| known.route.as_ref());
        let uplinks = routes.flat_map(|route| &route.uplinks);
        uplinks.map(|ifindex| (*ifindex, self.stores.links.name(*ifindex))).collect()
    }

    /// Sets the IPv6 settings of these interfaces.
    pub fn set_ipv6_interfaces(&mut self, interfaces: BTreeMap<u32, Ipv6Interface>) {
        if self.stores.ipv6_interfaces != interfaces {
            self.stores.ipv6_interfaces = interfaces;
            self.stores.changes.decisions = true;
        }
    }

    /// Handles a worker's report of a MAC address. Returns the entry to write into the kernel's
    /// FDB, or `None` if there is nothing to write. Refused reports are counted.
    pub fn learn(&mut self, learned: &Learned) -> Option<FdbWrite> {
        let Self { stores, settings, publication, mobility, .. } = self;
        let taken = publication.decisions.takes(VniSource::Netdev(learned.ifindex));
        self.learning.learn(learned, stores, settings, taken, &mut mobility.flapping)
    }

    /// Counts the result of a write: 0, or the error's number.
    pub fn written(&mut self, write: &FdbWrite, outcome: i32) {
        self.learning.written(write, outcome);
    }

    /// The counters of learning.
    #[must_use]
    pub const fn learn_counts(&self) -> LearnCounts {
        self.learning.counts
    }

    /// The changes that the last [`State::build`] made to the FDB of each VNI. Moves of flapping addresses are left out.
    pub fn take_mac_changes(&mut self, now: Instant) -> Vec<(VniSource, MacChange)> {
        let decisions = &self.publication.decisions;
        let limit = self.settings.learning.moves;
        self.mobility.take_changes(|source| decisions.takes(source), limit, now)
    }

    /// The addresses that began or stopped flapping since the last call. To be called after
    /// [`Self::take_mac_changes`].
    pub fn take_flaps(&mut self, now: Instant) -> Vec<Flap> {
        self.mobility.take_flaps(self.settings.learning.moves, now)
    }

    /// Counters of the moves of MAC addresses.
    #[must_use]
    pub const fn move_counts(&self) -> MoveCounts {
        self.mobility.counts
    }

    /// The host port behind which the bridge of the VNI in this index has an address.
    #[must_use]
    pub fn port_of(&self, index: VniIndex, mac: MacAddr) -> Option<String> {
        hosts::port_of(&self.stores, &self.published().plan, index, mac)
    }

    /// All known hosts.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        hosts::hosts(&self.stores, &self.published().plan)
    }
}
