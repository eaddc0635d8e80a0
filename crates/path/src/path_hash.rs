//! The choice of a next hop for an encapsulated frame.

use core::net::IpAddr;

use crate::key::hash_addresses;

/// Separates path hashes from the hashes of flow keys, whose tags are small numbers.
const TAG: u64 = 0x7061_7468_0000_0000;

/// The hash that selects the next hop towards `remote`, with [`crate::choose`] over the weighted
/// next hops. It depends on the outer header only, so one outer five-tuple always takes one path.
#[inline(always)]
#[must_use]
pub fn path_hash(
    seed: u64,
    local: IpAddr,
    remote: IpAddr,
    source_port: u16,
    destination_port: u16,
) -> u64 {
    let ports = u64::from(source_port) << 16 | u64::from(destination_port);
    hash_addresses(seed, local, remote, TAG | ports)
}
