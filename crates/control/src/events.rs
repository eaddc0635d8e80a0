//! Events, for users who watch what happens.
//!
//! The control task writes events into a [`Journal`], which keeps the last [`CAPACITY`]. Any number
//! of readers read it, each at its own pace. No reader delays the task: a slow one gets the number
//! of events that it lost.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::iter::repeat;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use entropy::Entropy;
use tables::{BUCKETS, Paths, Snapshot, TakenVni, VniTable, Vtep};
use tokio::sync::watch;
use wire::{MacAddr, Vni};

use crate::eligibility::ineligible::LeftToKernel;
use crate::events::mac_mobility::Flap;
use crate::publish::Update;
use crate::sources::SourceState;
use crate::state::{FpmSweep, Resync};

pub mod mac_mobility;

/// Number of events that the journal keeps.
pub const CAPACITY: usize = 8192;

/// Something that happened. Its text is a sentence without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A VNI is taken over: its frames are redirected.
    Attached {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
    },
    /// A VNI is given back to the kernel, or is gone.
    Detached {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
    },
    /// A vxlan netdev stays with the kernel, for this reason.
    Left(LeftToKernel),
    /// The state of a source has changed.
    Source {
        /// `kernel` or `fpm`.
        name: &'static str,
        /// Its new state.
        state: SourceState,
    },
    /// The kernel's tables of these kinds were dumped.
    Resynced(Vec<(&'static str, Resync)>),
    /// Entries that zebra reported over an earlier FPM connection were removed.
    FpmSwept(FpmSweep),
    /// A MAC address of a VNI that is taken over is behind another VTEP, or behind none.
    Mac {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// What changed.
        change: MacChange,
    },
    /// A MAC address moves too often, or has stopped doing so.
    Flapping {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// The address.
        mac: MacAddr,
        /// The VTEP that it is behind.
        vtep: Option<Ipv4Addr>,
        /// Number of moves while it flapped, if it has stopped.
        over: Option<u64>,
    },
    /// A VTEP was added to a flood list or removed from it.
    Flood {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// The VTEP.
        vtep: Ipv4Addr,
        /// Whether it was added.
        added: bool,
    },
    /// The source port policy of a VNI, or its settings, changed.
    Policy {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// The new policy.
        entropy: Entropy,
    },
    /// A next hop is used, or is not used any more.
    NextHop {
        /// The uplink's name.
        uplink: String,
        /// The gateway.
        gateway: IpAddr,
        /// Whether it is used now.
        up: bool,
    },
    /// Buckets of VTEPs have another next hop, so flows moved.
    Placement {
        /// How many of the [`tables::BUCKETS`] buckets of these VTEPs have another next hop.
        buckets: usize,
        /// One of the VTEPs.
        vtep: Ipv4Addr,
        /// Number of such VTEPs.
        vteps: usize,
        /// Whether next hops are missing, so that others have their buckets.
        reduced: bool,
    },
    /// Only the default route leads to a VTEP, or the VTEP has a route of its own again.
    ByDefault {
        /// The VTEP.
        vtep: Ipv4Addr,
        /// Whether only the default route leads to it now.
        begins: bool,
    },
    /// A queueing discipline of an uplink shapes or impairs packets, so frames leave one by one; or
    /// it is gone.
    Impaired {
        /// The uplink's name.
        uplink: String,
        /// Whether the uplink is impaired now.
        begins: bool,
    },
    /// A worker hung for so long that the kernel took over.
    Stalled {
        /// How long the frames had waited.
        waited: Duration,
        /// How many of them were dropped.
        dropped: u64,
    },
    /// The configuration was read again.
    Reloaded,
    /// A warning for the user.
    Warning(String),
}

/// A change of a MAC address. At least one of `from` and `to` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacChange {
    /// The address.
    pub mac: MacAddr,
    /// The previous VTEP.
    pub from: Option<Ipv4Addr>,
    /// The new VTEP.
    pub to: Option<Ipv4Addr>,
    /// Whether it left its VTEP because the bridge has it on a host port.
    pub local: bool,
}

impl MacChange {
    /// Whether a known address moved.
    pub(crate) const fn is_move(&self) -> bool {
        self.from.is_some() && (self.to.is_some() || self.local)
    }
}

impl Event {
    /// Every kind of event, and when it happens.
    pub const KINDS: &[(&str, &str)] = &[
        ("attached", "A VNI is taken over: a worker forwards its frames"),
        ("detached", "A VNI is the kernel's again, or is gone"),
        ("left", "A vxlan netdev stays with the kernel, for the reason given"),
        ("source", "A source (`kernel`, `fpm`) has another state"),
        ("resync", "The kernel's tables were read again"),
        ("swept", "What zebra had said over an earlier FPM connection was removed"),
        ("mac-added", "A MAC address is behind a remote VTEP"),
        ("mac-removed", "A MAC address is behind no remote VTEP any more"),
        ("mac-moved", "A MAC address is behind another remote VTEP"),
        (
            "mac-flapping",
            "A MAC address moves too often; its moves are no longer reported one by one",
        ),
        ("mac-settled", "A MAC address that moved too often has stopped"),
        ("flood-added", "A VTEP is new in a flood list"),
        ("flood-removed", "A VTEP has left a flood list"),
        ("policy", "The source port policy of a VNI has changed"),
        ("next-hop-up", "A next hop is used"),
        ("next-hop-down", "A next hop is no longer used"),
        ("flows-moved", "Buckets of one or more VTEPs have another next hop, so flows moved"),
        ("default-route", "Only the default route leads to a VTEP"),
        ("own-route", "A VTEP has a route of its own again"),
        (
            "uplink-impaired",
            "A queueing discipline acts on single packets of an uplink: frames leave one by one",
        ),
        ("uplink-restored", "Frames may leave together over an uplink again"),
        ("worker-stalled", "A worker hung, and the kernel forwarded meanwhile"),
        ("reload", "The configuration was read again"),
        ("warning", "Something that the user should know"),
    ];

    /// The kind of event, as one word.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Attached { .. } => "attached",
            Self::Detached { .. } => "detached",
            Self::Left(_) => "left",
            Self::Source { .. } => "source",
            Self::Resynced(_) => "resync",
            Self::FpmSwept(_) => "swept",
            Self::Mac { change: MacChange { from: None, .. }, .. } => "mac-added",
            Self::Mac { change: MacChange { to: None, .. }, .. } => "mac-removed",
            Self::Mac { .. } => "mac-moved",
            Self::Flapping { over: None, .. } => "mac-flapping",
            Self::Flapping { .. } => "mac-settled",
            Self::Flood { added: true, .. } => "flood-added",
            Self::Flood { added: false, .. } => "flood-removed",
            Self::Policy { .. } => "policy",
            Self::NextHop { up: true, .. } => "next-hop-up",
            Self::NextHop { up: false, .. } => "next-hop-down",
            Self::Placement { .. } => "flows-moved",
            Self::ByDefault { begins: true, .. } => "default-route",
            Self::ByDefault { begins: false, .. } => "own-route",
            Self::Impaired { begins: true, .. } => "uplink-impaired",
            Self::Impaired { begins: false, .. } => "uplink-restored",
            Self::Stalled { .. } => "worker-stalled",
            Self::Reloaded => "reload",
            Self::Warning(_) => "warning",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached { vni, netdev } => write!(f, "VNI {vni} ({netdev}) is taken over"),
            Self::Detached { vni, netdev } => {
                write!(f, "VNI {vni} ({netdev}) is no longer taken over")
            }
            Self::Left(LeftToKernel { name, reason, .. }) if reason.is_external() => {
                write!(f, "{name} (external) stays with the kernel: {reason} [{}]", reason.slug())
            }
            Self::Left(left) if left.is_standalone() => {
                write!(
                    f,
                    "VNI {} ({}) is forwarded by nobody: {}",
                    left.vni, left.name, left.reason
                )
            }
            Self::Left(LeftToKernel { name, vni, reason, .. }) => {
                write!(f, "VNI {vni} ({name}) stays with the kernel: {reason} [{}]", reason.slug())
            }
            Self::Source { name, state } => write!(f, "source {name} is {state}"),
            Self::Resynced(dumps) => {
                f.write_str("read from the kernel")?;
                for ((what, Resync { dumped, swept }), mark) in
                    dumps.iter().zip([":"].into_iter().chain(repeat(",")))
                {
                    write!(f, "{mark} {dumped} {what}")?;
                    if *swept > 0 {
                        write!(f, " ({swept} gone)")?;
                    }
                }
                Ok(())
            }
            Self::FpmSwept(FpmSweep { entries, returned: true }) => {
                write!(
                    f,
                    "zebra is back and has not repeated {entries} entries, which were removed"
                )
            }
            Self::FpmSwept(FpmSweep { entries, returned: false }) => {
                write!(
                    f,
                    "zebra has not come back, and the {entries} entries that it had sent were removed"
                )
            }
            Self::Mac { vni, netdev, change: MacChange { mac, from, to, local } } => {
                write!(f, "{mac} in VNI {vni} ({netdev}) is behind ")?;
                match (from, to) {
                    (Some(from), None) if *local => {
                        write!(f, "{from} no more: it is on a port of the bridge")
                    }
                    (None, Some(to)) => write!(f, "{to}"),
                    (Some(from), Some(to)) => write!(f, "{to}, not {from} any more"),
                    (Some(from), None) => write!(f, "{from} no more"),
                    (None, None) => f.write_str("nobody"),
                }
            }
            Self::Flapping { vni, netdev, mac, vtep, over } => {
                write!(f, "{mac} in VNI {vni} ({netdev}) ")?;
                match over {
                    None => {
                        f.write_str("moves too often: its moves are no longer reported one by one")?
                    }
                    Some(moves) => write!(f, "stopped moving after {moves} moves")?,
                }
                match vtep {
                    Some(vtep) => write!(f, "; it is behind {vtep}"),
                    None => f.write_str("; it is behind nobody"),
                }
            }
            Self::Flood { vni, netdev, vtep, added } => {
                write!(
                    f,
                    "flood list of VNI {vni} ({netdev}): {vtep} {}",
                    if *added { "joined" } else { "left" }
                )
            }
            Self::Policy { vni, netdev, entropy } => {
                write!(f, "policy of VNI {vni} ({netdev}): {}", entropy.policy())?;
                if let Some(bins) = entropy.bins() {
                    write!(f, " with {} bins", bins.get())?;
                }
                write!(f, ", outer source ports {}", entropy.range())
            }
            Self::NextHop { uplink, gateway, up } => {
                write!(
                    f,
                    "next hop {gateway} on {uplink} is {}",
                    if *up { "used" } else { "no longer used" }
                )
            }
            Self::Placement { buckets, vtep, vteps, reduced } => {
                write!(f, "{buckets} of {BUCKETS} buckets of VTEP {vtep}")?;
                if *vteps > 1 {
                    write!(f, " and of {} more VTEPs", vteps - 1)?;
                }
                f.write_str(" have another next hop")?;
                f.write_str(if *reduced { ", while next hops are missing" } else { "" })
            }
            Self::ByDefault { vtep, begins: true } => {
                write!(f, "only the default route leads to VTEP {vtep}")
            }
            Self::ByDefault { vtep, begins: false } => {
                write!(f, "VTEP {vtep} is no longer reached by the default route")
            }
            Self::Impaired { uplink, begins: true } => write!(
                f,
                "uplink {uplink} is impaired: its queueing discipline acts on single packets, so frames leave one by \
                 one there"
            ),
            Self::Impaired { uplink, begins: false } => {
                write!(f, "uplink {uplink} is no longer impaired: frames may leave together there")
            }
            Self::Stalled { waited, dropped } => write!(
                f,
                "the worker hung, and the kernel forwarded meanwhile: {dropped} frames, which had waited for {waited:.1?}, \
                 were dropped"
            ),
            Self::Reloaded => f.write_str("the configuration was read again"),
            Self::Warning(text) => f.write_str(text),
        }
    }
}

/// Writes the events of one publication, by comparing it with the previous one. `macs` is the
/// result of [`crate::State::take_mac_changes`]. Changes of VNIs that were not taken over before,
/// or are not any more, are left out: all their entries appear or disappear together.
pub(crate) fn between(
    before: &Update,
    after: &Update,
    macs: &[(u32, MacChange)],
    mut write: impl FnMut(Event),
) {
    let (old, new) = (&before.plan.vnis, &after.plan.vnis);
    if !Arc::ptr_eq(&before.plan, &after.plan) {
        let netdev = |vni: &TakenVni| (vni.vni, vni.name.clone());
        for (vni, netdev) in
            old.iter().filter(|(ifindex, _)| !new.contains_key(ifindex)).map(|(_, v)| netdev(v))
        {
            write(Event::Detached { vni, netdev });
        }
        for (vni, netdev) in
            new.iter().filter(|(ifindex, _)| !old.contains_key(ifindex)).map(|(_, v)| netdev(v))
        {
            write(Event::Attached { vni, netdev });
        }
    }
    if !Arc::ptr_eq(&before.left, &after.left) {
        let known: HashMap<u32, &LeftToKernel> =
            before.left.iter().map(|left| (left.ifindex, left)).collect();
        for left in after.left.iter().filter(|left| known.get(&left.ifindex) != Some(left)) {
            write(Event::Left(left.clone()));
        }
    }
    next_hops(before, after, &mut write);
    if !Arc::ptr_eq(&before.by_default, &after.by_default) {
        let mut tell = |vtep: &Ipv4Addr, begins| write(Event::ByDefault { vtep: *vtep, begins });
        before.by_default.difference(&after.by_default).for_each(|vtep| tell(vtep, false));
        after.by_default.difference(&before.by_default).for_each(|vtep| tell(vtep, true));
    }
    tables(&before.snapshot, &after.snapshot, &mut write);
    for (ifindex, change) in macs {
        if let (Some(_), Some(vni)) = (old.get(ifindex), new.get(ifindex)) {
            write(Event::Mac { vni: vni.vni, netdev: vni.name.clone(), change: *change });
        }
    }
}

/// The event for an address that began or stopped flapping; `None` if its VNI is not taken over.
pub(crate) fn flapping(update: &Update, flap: &Flap) -> Option<Event> {
    let taken = update.plan.vnis.get(&flap.ifindex)?;
    let table = update.snapshot.vni(taken.slot.get())?;
    let vtep = table.fdb.get(&flap.mac).and_then(|index| update.snapshot.vtep(*index));
    Some(Event::Flapping {
        vni: taken.vni,
        netdev: taken.name.clone(),
        mac: flap.mac,
        vtep: vtep.map(|vtep| vtep.address),
        over: flap.over,
    })
}

fn next_hops(before: &Update, after: &Update, write: &mut impl FnMut(Event)) {
    let (old, new) = (&before.snapshot, &after.snapshot);
    if new.has_vteps_of(old) {
        return;
    }
    let hops = |snapshot: &Snapshot| -> (BTreeSet<(u32, IpAddr)>, BTreeMap<u32, bool>) {
        let mut seen = HashSet::new();
        let paths = snapshot
            .vteps()
            .map(|vtep| &vtep.paths)
            .filter(|paths| seen.insert(Arc::as_ptr(paths)));
        let hops = paths.flat_map(|paths| paths.next_hops());
        hops.map(|hop| ((hop.ifindex, hop.gateway), (hop.ifindex, hop.impaired))).unzip()
    };
    let ((old, old_uplinks), (new, uplinks)) = (hops(old), hops(new));
    let name = |ifindex: u32, update: &Update| {
        let found = update.plan.uplinks.iter().find(|uplink| uplink.ifindex == ifindex);
        found.map_or_else(|| ifindex.to_string(), |uplink| uplink.name.clone())
    };
    let mut tell = |(ifindex, gateway): (u32, IpAddr), update: &Update, up| {
        write(Event::NextHop { uplink: name(ifindex, update), gateway, up });
    };
    old.difference(&new).for_each(|hop| tell(*hop, before, false));
    new.difference(&old).for_each(|hop| tell(*hop, after, true));
    placement(&before.snapshot, &after.snapshot, write);
    for (ifindex, impaired) in uplinks {
        // An uplink that was not used before counts as not impaired.
        if impaired != old_uplinks.get(&ifindex).copied().unwrap_or_default() {
            write(Event::Impaired { uplink: name(ifindex, after), begins: impaired });
        }
    }
}

/// Writes how many buckets have another next hop. VTEPs with equal numbers share one event. VTEPs
/// that had no next hop, or have none now, had no flows to move.
fn placement(before: &Snapshot, after: &Snapshot, write: &mut impl FnMut(Event)) {
    let old: HashMap<Ipv4Addr, &Arc<Paths>> =
        before.vteps().map(|vtep| (vtep.address, &vtep.paths)).collect();
    let mut counted = HashMap::new();
    let mut told: BTreeMap<(usize, bool), (Ipv4Addr, usize)> = BTreeMap::new();
    for Vtep { address, paths: new } in after.vteps() {
        let Some(old) = old.get(address).filter(|old| !Arc::ptr_eq(old, new)) else { continue };
        if old.next_hops().is_empty() || new.next_hops().is_empty() {
            continue;
        }
        let pair = (Arc::as_ptr(old), Arc::as_ptr(new));
        let buckets = *counted.entry(pair).or_insert_with(|| new.moved_since(old));
        if buckets > 0 {
            let (vtep, vteps) = told.entry((buckets, new.is_reduced())).or_insert((*address, 0));
            (*vtep, *vteps) = (*address.min(vtep), *vteps + 1);
        }
    }
    for ((buckets, reduced), (vtep, vteps)) in told {
        write(Event::Placement { buckets, vtep, vteps, reduced });
    }
}

/// Writes changes of policies and flood lists.
fn tables(before: &Snapshot, after: &Snapshot, write: &mut impl FnMut(Event)) {
    for new in after.vnis() {
        let Some(old) = before.vni(new.slot.get()).filter(|old| old.tunnel.vni == new.tunnel.vni)
        else {
            continue;
        };
        if Arc::ptr_eq(old, new) {
            continue;
        }
        if old.entropy != new.entropy {
            let (vni, netdev) = (new.tunnel.vni, new.netdev.clone());
            write(Event::Policy { vni, netdev, entropy: new.entropy });
        }
        let addresses = |table: &VniTable, snapshot: &Snapshot| -> BTreeSet<Ipv4Addr> {
            table
                .flood
                .iter()
                .filter_map(|index| snapshot.vtep(*index))
                .map(|vtep| vtep.address)
                .collect()
        };
        let (was, is) = (addresses(old, before), addresses(new, after));
        let (vni, netdev) = (new.tunnel.vni, &new.netdev);
        let mut tell = |vtep: &Ipv4Addr, added| {
            write(Event::Flood { vni, netdev: netdev.clone(), vtep: *vtep, added })
        };
        was.difference(&is).for_each(|vtep| tell(vtep, false));
        is.difference(&was).for_each(|vtep| tell(vtep, true));
    }
}

/// An event in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamped {
    /// Counts from 1, without gaps.
    pub sequence: u64,
    /// When it was written.
    pub time: SystemTime,
    /// What happened.
    pub event: Event,
}

/// The last events. Clones share one journal.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ring: Mutex<VecDeque<Arc<Stamped>>>,
    /// The sequence number of the last event.
    last: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self(Arc::new(Shared { ring: Mutex::default(), last: watch::Sender::new(0) }))
    }
}

impl Journal {
    /// Appends an event. The oldest one is dropped if the journal is full.
    pub fn write(&self, event: Event) {
        let mut ring = self.ring();
        let sequence = *self.0.last.borrow() + 1;
        if ring.len() >= CAPACITY {
            ring.pop_front();
        }
        ring.push_back(Arc::new(Stamped { sequence, time: SystemTime::now(), event }));
        drop(ring);
        self.0.last.send_replace(sequence);
    }

    /// The sequence number of the last event, 0 before the first.
    #[must_use]
    pub fn last(&self) -> u64 {
        *self.0.last.borrow()
    }

    /// A reader that starts after the event with this number. It reads events that the journal
    /// still has first.
    #[must_use]
    pub fn read_after(&self, sequence: u64) -> Reader {
        Reader { journal: self.clone(), last: self.0.last.subscribe(), read: sequence }
    }

    fn ring(&self) -> MutexGuard<'_, VecDeque<Arc<Stamped>>> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A position in a [`Journal`].
#[derive(Debug)]
pub struct Reader {
    journal: Journal,
    last: watch::Receiver<u64>,
    read: u64,
}

/// What a [`Reader`] returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// The next event.
    Event(Arc<Stamped>),
    /// This many events were dropped before they were read.
    Lost(u64),
}

impl Reader {
    /// The next event, if there is one.
    pub fn try_next(&mut self) -> Option<Read> {
        let ring = self.journal.ring();
        let first = ring.front()?.sequence;
        let lost = first.saturating_sub(self.read + 1);
        if lost > 0 {
            self.read += lost;
            return Some(Read::Lost(lost));
        }
        let place = usize::try_from(self.read + 1 - first).ok()?;
        let event = Arc::clone(ring.get(place)?);
        self.read = event.sequence;
        Some(Read::Event(event))
    }

    /// Waits for the next event. Cancel-safe: no event is lost if the future is dropped.
    pub async fn next(&mut self) -> Read {
        loop {
            self.last.mark_unchanged();
            if let Some(read) = self.try_next() {
                return read;
            }
            // The sender lives in the journal that this reader holds.
            let _ = self.last.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(number: usize) -> Event {
        Event::Warning(number.to_string())
    }

    #[test]
    fn every_reader_reads_everything_in_order() {
        let journal = Journal::default();
        let mut early = journal.read_after(0);
        assert_eq!(early.try_next(), None);
        (0..3).for_each(|number| journal.write(warning(number)));
        let mut late = journal.read_after(journal.last());
        journal.write(warning(3));
        let read = |reader: &mut Reader| {
            std::iter::from_fn(|| reader.try_next())
                .map(|read| match read {
                    Read::Event(stamped) => (stamped.sequence, stamped.event.to_string()),
                    Read::Lost(lost) => panic!("{lost} lost"),
                })
                .collect::<Vec<_>>()
        };
        let expected = (1..).zip(["0", "1", "2", "3"].map(str::to_owned)).collect::<Vec<_>>();
        assert_eq!(read(&mut early), expected);
        assert_eq!(read(&mut late), expected[3..]);
        assert_eq!(read(&mut journal.read_after(2)), expected[2..]);
        assert_eq!(journal.read_after(99).try_next(), None);
    }

    #[test]
    fn a_slow_reader_is_told_how_many_events_it_lost() {
        let journal = Journal::default();
        let mut reader = journal.read_after(0);
        journal.write(warning(0));
        assert!(matches!(reader.try_next(), Some(Read::Event(_))));
        (0..CAPACITY + 10).for_each(|number| journal.write(warning(number)));
        assert_eq!(reader.try_next(), Some(Read::Lost(10)));
        let Some(Read::Event(next)) = reader.try_next() else { panic!("an event") };
        assert_eq!(next.sequence, 12);
        assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), CAPACITY - 1);
    }

    #[tokio::test]
    async fn a_reader_sleeps_until_something_happens() {
        let journal = Journal::default();
        let mut reader = journal.read_after(0);
        let (read, ()) = tokio::join!(reader.next(), async { journal.write(warning(7)) });
        let Read::Event(stamped) = read else { panic!("an event") };
        assert_eq!((stamped.sequence, stamped.event.kind()), (1, "warning"));
    }
}
