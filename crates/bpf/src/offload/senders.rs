//! The VTEPs whose packets the programs decapsulate. The worker drops packets from an address that is
//! the leaf's own, or that no VTEP can have.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aya::maps::{HashMap, MapData};
use aya::{Ebpf, Pod};
use tables::Snapshot;

use super::entries::{AddressEntry, words_of_ipv6};
use super::{ADDRESSES, VTEPS};
use crate::error::SteeringError;
use crate::maps::{absent, map};

/// The index of each VTEP in the snapshot, by its address.
#[derive(Debug, Default)]
pub(super) struct Senders {
    ipv4: BTreeMap<u32, u32>,
    ipv6: BTreeMap<AddressEntry, u32>,
}

impl Senders {
    /// Writes what differs between this snapshot and the one before.
    ///
    /// # Errors
    /// The first error.
    pub(super) fn follow(
        &mut self,
        ebpf: &mut Ebpf,
        snapshot: &Snapshot,
    ) -> Result<(), SteeringError> {
        let mut wanted = Self::default();
        for (index, vtep) in snapshot.indexed_vteps() {
            let address = vtep.address;
            let is_sender = index.0 < VTEPS
                && snapshot.find_vtep(address) == Some(index)
                && !snapshot.is_martian_source(address);
            match address {
                IpAddr::V4(address) if is_sender => {
                    wanted.ipv4.insert(u32::from_ne_bytes(address.octets()), index.0);
                }
                IpAddr::V6(address) if is_sender && wanted.ipv6.len() < ADDRESSES as usize => {
                    wanted.ipv6.insert(AddressEntry { words: words_of_ipv6(address) }, index.0);
                }
                _ => {}
            }
        }
        write(ebpf, "offload_senders", &mut self.ipv4, wanted.ipv4)?;
        write(ebpf, "offload_senders_ipv6", &mut self.ipv6, wanted.ipv6)
    }
}

fn write<K: Pod + Ord>(
    ebpf: &mut Ebpf,
    name: &'static str,
    known: &mut BTreeMap<K, u32>,
    wanted: BTreeMap<K, u32>,
) -> Result<(), SteeringError> {
    let failed = |error| SteeringError::Map(name, error);
    let mut senders: HashMap<&mut MapData, K, u32> = map(ebpf, name)?;
    let gone: Vec<K> = known.keys().filter(|of| !wanted.contains_key(of)).copied().collect();
    for address in gone {
        senders.remove(&address).or_else(absent).map_err(failed)?;
        known.remove(&address);
    }
    for (address, index) in wanted {
        if known.get(&address) != Some(&index) {
            senders.insert(address, index, 0).map_err(failed)?;
            known.insert(address, index);
        }
    }
    Ok(())
}
