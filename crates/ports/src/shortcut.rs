//! The shortcut's ports and places (`bpf/shortcut.bpf.h`): attached, and told what takes it.
//!
//! An address leaves its place before workers get the snapshot in which it has moved, and comes to a new one after: in between its
//! frames go by the bridge, which knows best. Addresses that find no room go by the bridge too.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::tc::SchedClassifierLink;
use aya::{Ebpf, Pod};
use netlink::Direction;
use tables::{Place, PlaceChange, ShortcutPort, SteeringPlan};

use crate::foreign;
use crate::steering::{Entry, Hook, SteeringError, absent, attach_by_index, map};

/// `struct shortcut_port` of the programs.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct PortEntry {
    refresh: u64,
    frame_limit: u32,
    slot: u32,
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

/// What the shortcut goes by now.
#[derive(Default)]
pub(crate) struct Shortcut {
    ports: BTreeMap<u32, (ShortcutPort, SchedClassifierLink)>,
    /// Ports that stay with the bridge because of programs of others, which would not see what takes the shortcut.
    refused: BTreeMap<u32, (ShortcutPort, String)>,
    known: usize,
    /// Addresses for which there was no room.
    waiting: BTreeSet<PlaceKey>,
}

/// How the shortcut is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShortcutState {
    /// Names of the ports that have it.
    pub ports: Vec<String>,
    /// Names of ports that could have it, but for programs of others.
    pub refused: Vec<(String, String)>,
    /// Addresses known.
    pub places: usize,
    /// Addresses for which there is no room.
    pub waiting: usize,
}

impl Shortcut {
    /// Takes the shortcut from ports that are not to have it, or otherwise.
    pub(crate) fn shrink(&mut self, ebpf: &mut Ebpf, plan: &SteeringPlan) -> Result<(), SteeringError> {
        let stays = |old: &ShortcutPort| plan.ports.get(&old.ifindex).is_some_and(|new| new.slot == old.slot);
        self.refused.retain(|ifindex, (old, _)| plan.ports.get(ifindex) == Some(old));
        let gone: Vec<u32> =
            self.ports.iter().filter(|(_, (old, _))| !stays(old)).map(|(ifindex, _)| *ifindex).collect();
        for ifindex in gone {
            ports(ebpf)?
                .remove(&ifindex)
                .or_else(absent)
                .map_err(|e| SteeringError::Map("shortcut_ports", e))?;
            self.ports.remove(&ifindex);
        }
        Ok(())
    }

    /// Gives the shortcut to ports that are to have it; the first error, after all that could be done.
    pub(crate) fn grow(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        plan: &SteeringPlan,
    ) -> Result<(), SteeringError> {
        let mut first = Ok(());
        for port in plan.ports.values() {
            let had = self.ports.get(&port.ifindex).map(|(had, _)| had);
            if had == Some(port) || self.refused.contains_key(&port.ifindex) {
                continue;
            }
            if had.is_none()
                && let Some(reason) = shortcut_obstacle(port.ifindex, hook)
            {
                self.refused.insert(port.ifindex, (port.clone(), reason));
                continue;
            }
            if let Err(error) = self.give(ebpf, hook, entry, port) {
                first = first.and(Err(error));
            }
        }
        first
    }

    fn give(
        &mut self,
        ebpf: &mut Ebpf,
        hook: Hook,
        entry: Entry,
        port: &ShortcutPort,
    ) -> Result<(), SteeringError> {
        let link = match self.ports.remove(&port.ifindex) {
            Some((_, link)) => link,
            None => attach_by_index(ebpf, hook, port.ifindex, entry)?,
        };
        let value = PortEntry {
            refresh: u64::try_from(port.refresh.as_nanos()).unwrap_or(u64::MAX),
            frame_limit: port.frame_limit,
            slot: port.slot.get().into(),
        };
        ports(ebpf)?.insert(port.ifindex, value, 0).map_err(|e| SteeringError::Map("shortcut_ports", e))?;
        self.ports.insert(port.ifindex, (port.clone(), link));
        Ok(())
    }

    /// Forgets the addresses that have left their places.
    pub(crate) fn forget(&mut self, ebpf: &mut Ebpf, changes: &[PlaceChange]) -> Result<(), SteeringError> {
        let (mut places, mut first) = (places(ebpf)?, Ok(()));
        for change in changes.iter().filter(|change| !change.there) {
            let key = change.place.into();
            if self.waiting.remove(&key) {
                continue;
            }
            match places.remove(&key) {
                Ok(()) => self.known = self.known.saturating_sub(1),
                Err(error) => first = first.and(absent(error).map_err(|e| SteeringError::Map("places", e))),
            }
        }
        first
    }

    /// Remembers the addresses that are at new places, as many as there is room for.
    pub(crate) fn remember(&mut self, ebpf: &mut Ebpf, changes: &[PlaceChange]) -> Result<(), SteeringError> {
        let mut places = places(ebpf)?;
        self.waiting
            .extend(changes.iter().filter(|change| change.there).map(|change| PlaceKey::from(change.place)));
        while let Some(key) = self.waiting.pop_first() {
            match places.insert(key, 0, NO_EXIST) {
                Ok(()) => self.known += 1,
                Err(error) if errno(&error) == Some(libc::EEXIST) => {}
                Err(error) if errno(&error) == Some(libc::E2BIG) => {
                    self.waiting.insert(key);
                    return Ok(());
                }
                Err(error) => return Err(SteeringError::Map("places", error)),
            }
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> ShortcutState {
        ShortcutState {
            ports: self.ports.values().map(|(port, _)| port.name.clone()).collect(),
            refused: self.refused.values().map(|(port, why)| (port.name.clone(), why.clone())).collect(),
            places: self.known,
            waiting: self.waiting.len(),
        }
    }
}

/// Why a port has no shortcut although the bridge would allow it: a program of somebody else looks at what it receives.
#[must_use]
pub fn shortcut_obstacle(ifindex: u32, hook: Hook) -> Option<String> {
    let programs = foreign::find(ifindex, Direction::Ingress, hook);
    programs.first().map(|program| format!("{} is on its {}", program.program, program.hook))
}

/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}

fn ports(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, u32, PortEntry>, SteeringError> {
    map(ebpf, "shortcut_ports")
}

fn places(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, PlaceKey, u64>, SteeringError> {
    map(ebpf, "places")
}
