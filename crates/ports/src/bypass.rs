//! The bypass's ports and places (`bpf/bypass.bpf.h`): attached, and told what takes it.
//!
//! An address leaves its place before workers get the snapshot in which it has moved, and comes to
//! a new one after: in between its frames go by the bridge, which knows best. Addresses that find
//! no room go by the bridge too.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData, MapError};
use aya::programs::tc::SchedClassifierLink;
use aya::{Ebpf, Pod};
use netlink::Direction;
use tables::{BypassPort, OpenPort, Place, PlaceChange, Slot, SteeringPlan};

use crate::foreign_programs;
use crate::port_counts::{Numbers, PortCounts};
use crate::rcu_expedite::ExpeditedRcu;
use crate::steering::{Entry, Hook, SteeringError, absent, attach_by_index, map};

/// `struct bypass_port` of the programs.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct PortEntry {
    refresh: u64,
    frame_limit: u32,
    slot: u16,
    number: u16,
}

/// `struct place` of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct PlaceKey {
    scope: u32,
    kind: u16,
    mac: [u8; 6],
}

// SAFETY: plain integers without padding.
unsafe impl Pod for PortEntry {}
// SAFETY: plain integers without padding.
unsafe impl Pod for PlaceKey {}

impl From<Place> for PlaceKey {
    fn from(place: Place) -> Self {
        match place {
            Place::Port { port, mac } => Self { scope: port, kind: 0, mac: mac.0 },
            Place::Remote { slot, mac } => Self { scope: slot.get().into(), kind: 1, mac: mac.0 },
        }
    }
}

/// A port that has the bypass, or only listens.
struct Attached {
    port: BypassPort,
    number: u16,
    link: SchedClassifierLink,
}

impl Attached {
    /// Has the port's frames take the bypass from now on, if they may.
    fn engage(&self, ebpf: &mut Ebpf) -> Result<(), SteeringError> {
        self.write(ebpf, if self.port.sends { self.port.frame_limit } else { LISTENS })
    }

    /// Leaves the port's frames to the bridge; who speaks there is heard of all the same.
    fn pause(&self, ebpf: &mut Ebpf) -> Result<(), SteeringError> {
        self.write(ebpf, LISTENS)
    }

    fn write(&self, ebpf: &mut Ebpf, frame_limit: u32) -> Result<(), SteeringError> {
        let Self { port, number, .. } = self;
        let entry = PortEntry {
            refresh: u64::try_from(port.refresh.as_nanos()).unwrap_or(u64::MAX),
            frame_limit,
            slot: port.slot.get(),
            number: *number,
        };
        ports(ebpf)?
            .insert(port.ifindex, entry, 0)
            .map_err(|e| SteeringError::Map("bypass_ports", e))
    }
}

/// What the bypass goes by now.
#[derive(Default)]
pub(crate) struct Bypass {
    ports: BTreeMap<u32, Attached>,
    numbers: Numbers,
    /// Ports that stay with the bridge, and why: programs of others, which would not see what takes
    /// the bypass; or no number is left.
    refused: BTreeMap<u32, (BypassPort, String)>,
    /// Ports that have left everything to the bridge since control was last heard of, and those
    /// that have for longer.
    paused: BTreeSet<u32>,
    due: BTreeSet<u32>,
    /// When ports were last paused.
    paused_at: Option<Instant>,
    /// The last port that was looked at again in turn.
    reviewed: u32,
    known: usize,
    /// Addresses for which there was no room.
    waiting: BTreeSet<PlaceKey>,
    no_room: u64,
}

/// How the bypass is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BypassState {
    /// The ports that have it, by interface index, and what became of their frames since they have.
    pub ports: BTreeMap<u32, PortCounts>,
    /// Ports that could have it, by interface index, but for what is said here (the end of a
    /// sentence).
    pub refused: BTreeMap<u32, String>,
    /// Addresses known.
    pub places: usize,
    /// Addresses for which there is room, those known included.
    pub capacity: usize,
    /// Addresses for which there is no room now.
    pub waiting: usize,
    /// How many addresses have found no room so far.
    pub no_room: u64,
}

impl Bypass {
    /// Takes the bypass from ports that are not to have it, or otherwise.
    pub(crate) fn shrink(
        &mut self,
        ebpf: &mut Ebpf,
        plan: &SteeringPlan,
    ) -> Result<(), SteeringError> {
        let stays =
            |old: &BypassPort| plan.ports.get(&old.ifindex).is_some_and(|new| new.slot == old.slot);
        self.refused.retain(|ifindex, (old, _)| plan.ports.get(ifindex) == Some(old));
        let gone = self.ports.values().map(|attached| &attached.port).filter(|old| !stays(old));
        let gone: Vec<u32> = gone.map(|old| old.ifindex).collect();
        self.take(ebpf, &gone)?;
        for attached in self.ports.values_mut().filter(|attached| attached.port.sends) {
            if let Some(new) = plan.ports.get(&attached.port.ifindex).filter(|new| !new.sends) {
                attached.port = new.clone();
                attached.engage(ebpf)?;
            }
        }
        Ok(())
    }

    /// No frame of these ports takes the bypass any more; then their hooks go, one by one.
    fn take(&mut self, ebpf: &mut Ebpf, gone: &[u32]) -> Result<(), SteeringError> {
        let mut map = ports(ebpf)?;
        for ifindex in gone {
            map.remove(ifindex)
                .or_else(absent)
                .map_err(|e| SteeringError::Map("bypass_ports", e))?;
        }
        let _haste = ExpeditedRcu::for_ports(gone.len());
        for attached in gone.iter().filter_map(|ifindex| self.ports.remove(ifindex)) {
            self.numbers.give_back(attached.number);
        }
        Ok(())
    }

    /// Gives the bypass to ports that are to have it; the first error, after all that could be
    /// done.
    pub(crate) fn grow(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        plan: &SteeringPlan,
    ) -> Result<(), SteeringError> {
        let has =
            |port: &BypassPort| self.ports.get(&port.ifindex).is_some_and(|had| had.port == *port);
        let wanted = plan
            .ports
            .values()
            .filter(|port| !has(port) && !self.refused.contains_key(&port.ifindex));
        let wanted: Vec<BypassPort> = wanted.cloned().collect();
        self.give(ebpf, hook, entry, wanted)
    }

    /// Gives these ports the bypass, or what changed of it, unless something is in the way.
    fn give(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        wanted: Vec<BypassPort>,
    ) -> Result<(), SteeringError> {
        let new = || wanted.iter().filter(|port| !self.ports.contains_key(&port.ifindex));
        let _haste = ExpeditedRcu::for_ports(new().count());
        // While a hook is attached nobody here hears of a host that comes to its port, but the
        // bridge does: until control has heard, too, it has all frames. It takes milliseconds, so
        // ports are to listen before they forward.
        let slots: BTreeSet<Slot> = new().map(|port| port.slot).collect();
        let others = self.ports.values().filter(|attached| slots.contains(&attached.port.slot));
        let others: Vec<u32> = others.map(|attached| attached.port.ifindex).collect();
        if !others.is_empty() {
            self.paused_at = Some(Instant::now());
        }
        self.paused.extend(&others);
        for attached in others.iter().filter_map(|ifindex| self.ports.get(ifindex)) {
            attached.pause(ebpf)?;
        }
        let mut first = Ok(());
        for port in wanted {
            if let Err(error) = self.give_one(ebpf, hook, entry, port) {
                first = first.and(Err(error));
            }
        }
        first
    }

    /// Control has heard what was said before the call before this one: ports that were paused by
    /// then go on.
    fn resume(&mut self, ebpf: &mut Ebpf) -> Result<(), SteeringError> {
        let paused = std::mem::take(&mut self.paused);
        let due = std::mem::replace(&mut self.due, paused);
        let mut first = Ok(());
        for attached in due.difference(&self.due).filter_map(|ifindex| self.ports.get(ifindex)) {
            first = first.and(attached.engage(ebpf));
        }
        first
    }

    fn give_one(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        port: BypassPort,
    ) -> Result<(), SteeringError> {
        let (number, link) = match self.ports.remove(&port.ifindex) {
            Some(Attached { number, link, .. }) => (number, link),
            None => {
                if let Some(reason) = bypass_obstacle(&port) {
                    self.refused.insert(port.ifindex, (port, reason));
                    return Ok(());
                }
                let Some(number) = self.numbers.take(ebpf)? else {
                    let reason = format!("{} other ports have it", Numbers::MOST);
                    self.refused.insert(port.ifindex, (port, reason));
                    return Ok(());
                };
                match attach_by_index(ebpf, hook, port.ifindex, entry) {
                    Ok(link) => (number, link),
                    Err(error) => {
                        self.numbers.give_back(number);
                        return Err(error);
                    }
                }
            }
        };
        let attached = Attached { port, number, link };
        match self.waits(attached.port.ifindex) {
            true => attached.pause(ebpf)?,
            false => attached.engage(ebpf)?,
        }
        self.ports.insert(attached.port.ifindex, attached);
        Ok(())
    }

    /// All ports that may have the bypass, whether programs of others are in the way or not.
    fn candidates(&self) -> impl Iterator<Item = &BypassPort> {
        self.ports
            .values()
            .map(|attached| &attached.port)
            .chain(self.refused.values().map(|(port, _)| port))
    }

    /// The ports at these interfaces, which are their own or their vxlan netdev's.
    pub(crate) fn at(&self, interfaces: &BTreeSet<u32>) -> Vec<BypassPort> {
        let concerns = |port: &&BypassPort| {
            interfaces.contains(&port.ifindex) || interfaces.contains(&port.netdev)
        };
        self.candidates().filter(concerns).cloned().collect()
    }

    /// The ports whose turn it is to be looked at again.
    pub(crate) fn next(&mut self) -> Vec<BypassPort> {
        let all: BTreeMap<u32, &BypassPort> =
            self.candidates().map(|port| (port.ifindex, port)).collect();
        let after = all.range((Bound::Excluded(self.reviewed), Bound::Unbounded));
        let turn = after.chain(all.range(..=self.reviewed)).take(AT_ONCE);
        let turn: Vec<BypassPort> = turn.map(|(_, port)| (*port).clone()).collect();
        self.reviewed = turn.last().map_or(0, |port| port.ifindex);
        turn
    }

    /// Goes by what [`bypass_obstacle`] has said of ports. What is not as it was then is left
    /// alone.
    pub(crate) fn review(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        found: Vec<(BypassPort, Option<String>)>,
    ) -> Result<(), SteeringError> {
        let (mut refused, mut again) = (BTreeMap::new(), Vec::new());
        for (port, obstacle) in found {
            let attached =
                self.ports.get(&port.ifindex).is_some_and(|attached| attached.port == port);
            let waits = self.refused.get(&port.ifindex).is_some_and(|(waits, _)| *waits == port);
            match obstacle {
                Some(reason) if attached || waits => {
                    refused.insert(port.ifindex, (port, reason));
                }
                None if waits => {
                    self.refused.remove(&port.ifindex);
                    again.push(port);
                }
                _ => {}
            }
        }
        let gone: Vec<u32> = refused.keys().copied().collect();
        // Who looks at ports does not know what control has heard, but control does not take so
        // long.
        let heard = self.paused_at.is_none_or(|at| at.elapsed() >= DEAF);
        let resumed = if heard { self.resume(ebpf) } else { Ok(()) };
        let taken = self.take(ebpf, &gone).and(resumed);
        self.refused.extend(refused);
        taken.and(self.give(ebpf, hook, entry, again))
    }

    /// Forgets the addresses that have left their places.
    pub(crate) fn forget(
        &mut self,
        ebpf: &mut Ebpf,
        changes: &[PlaceChange],
    ) -> Result<(), SteeringError> {
        let (mut places, mut first) = (places(ebpf)?, Ok(()));
        for change in changes.iter().filter(|change| !change.there) {
            let key = change.place.into();
            // It may be known all the same: where it left and came back at once, and there was no
            // room then.
            self.waiting.remove(&key);
            match places.remove(&key) {
                Ok(()) => self.known = self.known.saturating_sub(1),
                Err(error) => {
                    first = first.and(absent(error).map_err(|e| SteeringError::Map("places", e)))
                }
            }
        }
        first
    }

    /// Remembers the addresses that are at new places, as many as there is room for.
    pub(crate) fn remember(
        &mut self,
        ebpf: &mut Ebpf,
        changes: &[PlaceChange],
    ) -> Result<(), SteeringError> {
        self.resume(ebpf)?;
        let mut places = places(ebpf)?;
        let new = || {
            changes.iter().filter(|change| change.there).map(|change| PlaceKey::from(change.place))
        };
        self.waiting.extend(new());
        while let Some(key) = self.waiting.pop_first() {
            match places.insert(key, 0, NO_EXIST) {
                Ok(()) => self.known += 1,
                Err(error) if errno(&error) == Some(libc::EEXIST) => {}
                Err(error) => {
                    self.waiting.insert(key);
                    self.no_room += new().filter(|key| self.waiting.contains(key)).count() as u64;
                    return match errno(&error) {
                        Some(libc::E2BIG | libc::ENOMEM) => Ok(()),
                        _ => Err(SteeringError::Map("places", error)),
                    };
                }
            }
        }
        Ok(())
    }

    /// What became of the frames of all ports that have or had the bypass.
    pub(crate) fn counts_of_all(&self, ebpf: &Ebpf) -> Result<PortCounts, SteeringError> {
        self.numbers.counts_of_all(ebpf)
    }

    pub(crate) fn state(&self, ebpf: &Ebpf) -> Result<BypassState, SteeringError> {
        let counted = |(ifindex, attached): (&u32, &Attached)| {
            Ok((*ifindex, self.numbers.counts(ebpf, attached.number)?))
        };
        let ports = self.ports.iter().filter(|(_, attached)| attached.port.sends);
        Ok(BypassState {
            ports: ports.map(counted).collect::<Result<_, SteeringError>>()?,
            refused: self
                .refused
                .iter()
                .map(|(ifindex, (_, why))| (*ifindex, why.clone()))
                .collect(),
            places: self.known,
            capacity: capacity(ebpf)?,
            waiting: self.waiting.len(),
            no_room: self.no_room,
        })
    }

    /// The ports to which frames may be sent past the bridge.
    pub(crate) fn delivering(&self) -> impl Iterator<Item = OpenPort> {
        let ports = self.ports.values().map(|attached| &attached.port).filter(|port| port.delivers);
        let open = ports.filter(|port| !self.waits(port.ifindex));
        open.map(|port| OpenPort { ifindex: port.ifindex, mtu: port.mtu })
    }

    /// Whether the port leaves everything to the bridge until control has heard what it is to hear.
    fn waits(&self, ifindex: u32) -> bool {
        self.paused.contains(&ifindex) || self.due.contains(&ifindex)
    }

    /// How many ports have a hook.
    pub(crate) fn hooks(&self) -> usize {
        self.ports.len()
    }

    /// Takes all hooks away.
    pub(crate) fn clear(&mut self) {
        self.ports.clear();
    }
}

/// Why a port has no bypass although the bridge would allow it: a program of somebody else looks at
/// what the port receives, or at what the vxlan netdev sends or receives.
#[must_use]
pub fn bypass_obstacle(port: &BypassPort) -> Option<String> {
    let places = [
        (port.ifindex, Direction::Ingress),
        (port.netdev, Direction::Egress),
        (port.netdev, Direction::Ingress),
    ];
    let program = places
        .into_iter()
        .flat_map(|(at, direction)| foreign_programs::find(at, direction))
        .next()?;
    Some(format!("{} is on {} of {}", program.program, program.hook, program.interface))
}

/// Ports that are looked at again at once; each takes tens of microseconds.
const AT_ONCE: usize = 32;
/// How long control may not have heard what was said while a hook was attached.
const DEAF: Duration = Duration::from_millis(200);
/// The frame limit of a port that only listens: no frame is so short.
const LISTENS: u32 = 0;
/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}

fn ports(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, u32, PortEntry>, SteeringError> {
    map(ebpf, "bypass_ports")
}

fn places(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, PlaceKey, u64>, SteeringError> {
    map(ebpf, "places")
}

/// How many places there may be.
fn capacity(ebpf: &Ebpf) -> Result<usize, SteeringError> {
    let Some(Map::HashMap(data)) = ebpf.map("places") else {
        return Err(SteeringError::Missing("places"));
    };
    let information = data.info().map_err(|error| SteeringError::Map("places", error))?;
    Ok(usize::try_from(information.max_entries()).unwrap_or(usize::MAX))
}
