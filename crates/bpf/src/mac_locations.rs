//! The map of MAC address locations, which the bridge bypass forwards by
//! (`programs/bypass.bpf.h`).
//!
//! A MAC address is behind a local port or behind a remote VTEP ([`MacLocation`]). When it moves, it
//! leaves its old location before the workers get the new snapshot, and appears at its new location
//! afterwards. In between its frames pass the bridge, which has the current entry. Addresses that do
//! not fit the map pass the bridge, too.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError};
use tables::{MacLocation, MacLocationChange, Slot};

use crate::error::SteeringError;
use crate::maps::{absent, map};

shared! {
    /// `struct mac_location` of the programs.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Key {
        pub(crate) scope: u32,
        pub(crate) kind: u16,
        pub(crate) mac: [u8; 6],
    }

    /// `struct location_entry` of the programs.
    pub(crate) struct Entry {
        pub(crate) seen: u64,
        pub(crate) index: u32,
        pub(crate) learned: u32,
    }
}

impl Key {
    /// Kinds of locations (`LOCATION_PORT` and so on in the programs).
    pub(crate) const PORT: u16 = 0;
    pub(crate) const REMOTE: u16 = 1;
    pub(crate) const HOST: u16 = 2;

    /// Whether this is the first entry of an address. A local host has a second one.
    const fn is_address(&self) -> bool {
        self.kind != Self::HOST
    }
}

/// The entries of a location: the key, and the index that the programs find there.
fn entries(location: MacLocation) -> impl Iterator<Item = (Key, u32)> {
    let slot = |index| u32::from(Slot::of(index).get());
    let (first, second) = match location {
        MacLocation::Port { port, index, mac } => (
            (Key { scope: port, kind: Key::PORT, mac: mac.0 }, 0),
            Some((Key { scope: slot(index), kind: Key::HOST, mac: mac.0 }, port)),
        ),
        MacLocation::Remote { index, vtep, mac } => {
            ((Key { scope: slot(index), kind: Key::REMOTE, mac: mac.0 }, vtep.0), None)
        }
    };
    std::iter::once(first).chain(second)
}

const NAME: &str = "mac_locations";
/// `BPF_NOEXIST` of bpf(2).
const NO_EXIST: u64 = 1;

/// Which addresses are in the map.
#[derive(Debug, Default)]
pub(crate) struct MacLocations {
    /// How many addresses are in the map.
    pub(crate) known: usize,
    /// Entries that do not fit the map.
    waiting: BTreeMap<Key, u32>,
    /// How many addresses have not fitted so far.
    pub(crate) no_room: u64,
}

impl MacLocations {
    /// How many addresses do not fit the map now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.keys().filter(|key| key.is_address()).count()
    }

    /// Removes the addresses that have left their locations.
    pub(crate) fn remove(
        &mut self,
        ebpf: &mut Ebpf,
        changes: &[MacLocationChange],
    ) -> Result<(), SteeringError> {
        let (mut locations, mut first) = (locations(ebpf)?, Ok(()));
        let left = changes.iter().filter(|change| !change.there);
        for (key, _) in left.flat_map(|change| entries(change.location)) {
            // It may be in the map as well: if it left and returned within one update while the map
            // was full.
            self.waiting.remove(&key);
            match locations.remove(&key) {
                Ok(()) => self.known = self.known.saturating_sub(key.is_address().into()),
                Err(error) => first = first.and(absent(error).map_err(failed)),
            }
        }
        first
    }

    /// Adds the addresses that are at new locations, as many as fit.
    pub(crate) fn add(
        &mut self,
        ebpf: &mut Ebpf,
        changes: &[MacLocationChange],
    ) -> Result<(), SteeringError> {
        let mut locations = locations(ebpf)?;
        let new = || {
            changes.iter().filter(|change| change.there).flat_map(|change| entries(change.location))
        };
        self.waiting.extend(new());
        while let Some((key, index)) = self.waiting.pop_first() {
            match locations.insert(key, Entry { seen: 0, index, learned: 0 }, NO_EXIST) {
                Ok(()) => self.known += usize::from(key.is_address()),
                Err(error) if errno(&error) == Some(libc::EEXIST) => {}
                Err(error) => {
                    self.waiting.insert(key, index);
                    let missing =
                        new().filter(|(key, _)| key.is_address() && self.waiting.contains_key(key));
                    self.no_room += missing.count() as u64;
                    return match errno(&error) {
                        Some(libc::E2BIG | libc::ENOMEM) => Ok(()),
                        _ => Err(failed(error)),
                    };
                }
            }
        }
        Ok(())
    }
}

/// How many addresses the map can hold.
pub(crate) fn capacity(ebpf: &Ebpf) -> Result<usize, SteeringError> {
    let Some(Map::HashMap(data)) = ebpf.map(NAME) else {
        return Err(SteeringError::Missing(NAME));
    };
    let information = data.info().map_err(failed)?;
    Ok(usize::try_from(information.max_entries()).unwrap_or(usize::MAX))
}

fn locations(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, Key, Entry>, SteeringError> {
    map(ebpf, NAME)
}

fn failed(error: MapError) -> SteeringError {
    SteeringError::Map(NAME, error)
}

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}
