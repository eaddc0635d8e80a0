//! IP addresses: the leaf's own, and those that VTEPs can have.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use crate::stores::epoch_map::{Epoch, EpochMap};

/// The addresses of all interfaces.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Prefix lengths, by interface index and address.
    entries: EpochMap<(u32, IpAddr), u8>,
    /// The addresses of `entries`.
    own: BTreeSet<IpAddr>,
    /// The broadcast addresses of their subnets.
    broadcasts: BTreeSet<IpAddr>,
}

impl Addresses {
    /// Adds or confirms an address of an interface. Returns whether anything changed, as the other
    /// methods do.
    pub(crate) fn insert(
        &mut self,
        ifindex: u32,
        address: IpAddr,
        length: u8,
        epoch: Epoch,
    ) -> bool {
        let changed = self.entries.insert((ifindex, address), length, epoch);
        self.update(changed)
    }

    pub(crate) fn remove(&mut self, ifindex: u32, address: IpAddr) -> bool {
        let changed = self.entries.remove(&(ifindex, address)).is_some();
        self.update(changed)
    }

    /// Removes all addresses of an interface.
    pub(crate) fn remove_interface(&mut self, ifindex: u32) -> bool {
        let gone = self.entries.remove_if(|(of, _), _| *of == ifindex);
        self.update(!gone.is_empty())
    }

    /// Removes the addresses that the last dump did not have, and returns their number.
    pub(crate) fn sweep(&mut self, epoch: Epoch) -> usize {
        let gone = self.entries.sweep(epoch).len();
        self.update(gone > 0);
        gone
    }

    fn update(&mut self, changed: bool) -> bool {
        if changed {
            self.own = self.entries.keys().map(|(_, address)| address).collect();
            let entries = self.entries.iter();
            let broadcasts = entries.filter_map(|((_, own), length)| broadcast(own, *length));
            self.broadcasts = broadcasts.collect();
        }
        changed
    }

    /// All addresses.
    pub(crate) const fn own(&self) -> &BTreeSet<IpAddr> {
        &self.own
    }

    /// The broadcast addresses of the subnets that the leaf's own addresses are in.
    pub(crate) const fn broadcasts(&self) -> &BTreeSet<IpAddr> {
        &self.broadcasts
    }

    /// The interfaces that have an address.
    pub(crate) fn interfaces_with(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        let all = self.entries.keys().filter(move |(_, own)| *own == address);
        all.map(|(ifindex, _)| ifindex)
    }
}

/// The broadcast address of an address' subnet (`fib_add_ifaddr()`, net/ipv4/fib_frontend.c).
fn broadcast(own: IpAddr, length: u8) -> Option<IpAddr> {
    match own {
        IpAddr::V4(own) if length < 31 => {
            Some(Ipv4Addr::from_bits(own.to_bits() | u32::MAX >> length).into())
        }
        _ => None,
    }
}

/// Whether packets to an address go to many: a multicast group, or 255.255.255.255, for which the
/// kernel looks up no route (`ip_route_output_key_hash_rcu()`).
pub(crate) fn is_group(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Whether an address can be a VTEP's. A link-local one is valid on one interface only, and the
/// kernel drops received packets from an IPv4-mapped one (`ip6_rcv_core()`).
pub(crate) const fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => {
            // The upper half of IPv4-mapped addresses is zero, as that of ::1.
            address.to_bits() >> 64 != 0 && !address.is_unicast_link_local()
        }
    }
}
