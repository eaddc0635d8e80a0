//! Which of the leaf's own next hops an encapsulated frame takes.

use core::net::IpAddr;

use crate::hash::hash;
use crate::key::address_words;

/// Sets path hashes apart from the hashes of flow keys, whose tags are small numbers.
const TAG: u64 = 0x7061_7468_0000_0000;

/// The hash by which the next hop towards `remote` is chosen, with [`crate::choose`] over the (weighted) next hops.
/// It sees only what the outer header shows, so that one outer five-tuple always takes one path.
#[inline]
#[must_use]
pub fn path_hash(seed: u64, local: IpAddr, remote: IpAddr, source_port: u16, destination_port: u16) -> u64 {
    let ports = u64::from(source_port) << 16 | u64::from(destination_port);
    match (local, remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let addresses = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
            hash(seed, [addresses, TAG | ports])
        }
        _ => {
            let ([a, b], [c, d]) = (address_words(local), address_words(remote));
            hash(seed, [a, b, c, d, TAG | ports])
        }
    }
}
