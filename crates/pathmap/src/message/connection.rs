//! The part of an answer about connections: queue pairs with their paths, and handshakes of the
//! communication manager.
//!
//! ```text
//!  queue pair                          handshake
//! +---------------+-------------------+---------------+-------------------+
//! | flags         | VNI               | flags         | VNI               |
//! | R addresses   | queue pair        | 0             | queue pair        |
//! | inner source port | routers | 0   | own number of the exchange        |
//! | kB/s                              | number of the request             |
//! | uplink                            | source and destination            |
//! | arrival uplink                    +-----------------------------------+
//! | source and destination            |
//! | R recorded addresses              |
//! +-----------------------------------+
//! ```
//!
//! Each row of a column has 4 bytes, addresses 4 or 16.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use wire::QueuePair;

use super::{MOST_RECORDED, MessageError, Reader};
use crate::way::Way;

/// The most queue pairs in one answer. An answer fits an Ethernet frame of 1500 bytes.
pub const MOST_FLOWS: usize = 6;
/// The most handshakes in one answer.
pub const MOST_HANDSHAKES: usize = 4;

const IPV6: u8 = 1;
const KNOWN: u8 = 2;
const RECORDED: u8 = 4;
const REPLY: u8 = 2;

/// Inner source and destination.
pub type Hosts = (IpAddr, IpAddr);

/// A queue pair that the sender of the answer sends to its receiver, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowReport {
    /// The VNI, 24 bits.
    pub vni: u32,
    /// Inner source and destination, of one family.
    pub hosts: Hosts,
    /// Destination queue pair.
    pub queue_pair: QueuePair,
    /// Inner UDP source port.
    pub port: u16,
    /// Its rate in 1000 bytes a second; 0 while it is not measured.
    pub kilobytes: u32,
    /// Its path, if that is known.
    pub way: Option<Way>,
}

/// Half of what begins a connection: what one host told the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handshake {
    /// The VNI, 24 bits.
    pub vni: u32,
    /// The host that sent it, and the one that receives it; of one family.
    pub hosts: Hosts,
    /// The queue pair of the host that sent it.
    pub queue_pair: QueuePair,
    /// The sender's number for the exchange.
    pub id: u32,
    /// For a reply, the number of the request.
    pub of: Option<u32>,
}

impl Reader<'_> {
    /// A byte of flags, and 24 bits.
    fn flagged(&mut self) -> Option<(u8, u32)> {
        self.word().map(|word| ((word >> 24) as u8, word & QueuePair::MAX))
    }

    fn numbered(&mut self) -> Option<(u8, QueuePair)> {
        let [first, rest @ ..] = self.take::<4>()?;
        Some((first, QueuePair::from_be_bytes(rest)))
    }

    fn hosts(&mut self, flags: u8) -> Option<Hosts> {
        if flags & IPV6 == 0 {
            return Some((self.address()?.into(), self.address()?.into()));
        }
        let mut address = || self.take::<16>().map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
        Some((address()?, address()?))
    }

    pub(super) fn flow(&mut self, short: MessageError) -> Result<FlowReport, MessageError> {
        let (flags, vni) = self.flagged().ok_or(short)?;
        let (addresses, queue_pair) = self.numbered().ok_or(short)?;
        let port = self.half().ok_or(short)?;
        let [routers, zero] = self.take::<2>().ok_or(short)?;
        let kilobytes = self.word().ok_or(short)?;
        let (uplink, arrival) = (self.word().ok_or(short)?, self.word().ok_or(short)?);
        let hosts = self.hosts(flags).ok_or(short)?;
        let is_known = flags & KNOWN != 0;
        let is_recorded = flags & RECORDED != 0;
        if usize::from(addresses) > MOST_RECORDED
            || !is_recorded && addresses > 0
            || !is_known && (is_recorded || (uplink, arrival, routers) != (0, 0, 0))
            || flags & !(IPV6 | KNOWN | RECORDED) != 0
            || zero != 0
        {
            return Err(MessageError::Range);
        }
        let recorded: Arc<[Ipv4Addr]> = self.addresses(addresses).ok_or(short)?;
        let recorded = is_recorded.then_some(recorded);
        let way = is_known.then_some(Way { uplink, arrival, routers, recorded });
        Ok(FlowReport { vni, hosts, queue_pair, port, kilobytes, way })
    }

    pub(super) fn handshake(&mut self, short: MessageError) -> Result<Handshake, MessageError> {
        let (flags, vni) = self.flagged().ok_or(short)?;
        let (zero, queue_pair) = self.numbered().ok_or(short)?;
        let (id, of) = (self.word().ok_or(short)?, self.word().ok_or(short)?);
        let hosts = self.hosts(flags).ok_or(short)?;
        let is_reply = flags & REPLY != 0;
        if zero != 0 || flags & !(IPV6 | REPLY) != 0 || !is_reply && of != 0 {
            return Err(MessageError::Range);
        }
        Ok(Handshake { vni, hosts, queue_pair, id, of: is_reply.then_some(of) })
    }
}

const fn family((source, _): &Hosts) -> u8 {
    if source.is_ipv6() { IPV6 } else { 0 }
}

fn push_hosts(bytes: &mut Vec<u8>, (source, destination): &Hosts) {
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
        }
    }
}

/// Appends a byte and the low 24 bits of a number.
fn push_flagged(bytes: &mut Vec<u8>, flags: u8, number: u32) {
    bytes.extend_from_slice(&(u32::from(flags) << 24 | number & QueuePair::MAX).to_be_bytes());
}

impl FlowReport {
    pub(super) fn append(&self, bytes: &mut Vec<u8>) {
        let (way, known) = (self.way.clone().unwrap_or_default(), self.way.is_some());
        let recorded = way.recorded.as_deref().unwrap_or_default();
        let recorded = recorded.get(..MOST_RECORDED).unwrap_or(recorded);
        let flags = family(&self.hosts)
            | if known { KNOWN } else { 0 }
            | if way.recorded.is_some() { RECORDED } else { 0 };
        push_flagged(bytes, flags, self.vni);
        push_flagged(bytes, recorded.len() as u8, self.queue_pair.get());
        bytes.extend_from_slice(&self.port.to_be_bytes());
        bytes.extend_from_slice(&[way.routers, 0]);
        for word in [self.kilobytes, way.uplink, way.arrival] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        push_hosts(bytes, &self.hosts);
        recorded.iter().for_each(|address| bytes.extend_from_slice(&address.octets()));
    }
}

impl Handshake {
    pub(super) fn append(&self, bytes: &mut Vec<u8>) {
        let reply = if self.of.is_some() { REPLY } else { 0 };
        push_flagged(bytes, family(&self.hosts) | reply, self.vni);
        push_flagged(bytes, 0, self.queue_pair.get());
        bytes.extend_from_slice(&self.id.to_be_bytes());
        bytes.extend_from_slice(&self.of.unwrap_or(0).to_be_bytes());
        push_hosts(bytes, &self.hosts);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hosts() -> impl Strategy<Value = Hosts> {
        any::<(bool, u128, u128)>().prop_map(|(v6, a, b)| {
            let address = |bits: u128| match v6 {
                true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
                false => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            };
            (address(a), address(b))
        })
    }

    fn way() -> impl Strategy<Value = Way> {
        let recorded = prop::option::of(prop::collection::vec(any::<u32>(), 0..=MOST_RECORDED));
        (any::<(u32, u32, u8)>(), recorded).prop_map(|((uplink, arrival, routers), recorded)| {
            let recorded = recorded.map(|bits| bits.into_iter().map(Ipv4Addr::from_bits).collect());
            Way { uplink, arrival, routers, recorded }
        })
    }

    fn numbers() -> impl Strategy<Value = (u32, QueuePair)> {
        let bits = || 0..=QueuePair::MAX;
        (bits(), bits()).prop_map(|(vni, pair)| (vni, pair.try_into().unwrap()))
    }

    prop_compose! {
        pub(in crate::message) fn flow()(
            (vni, queue_pair) in numbers(),
            hosts in hosts(),
            port: u16,
            kilobytes: u32,
            way in prop::option::of(way()),
        ) -> FlowReport {
            FlowReport { vni, hosts, queue_pair, port, kilobytes, way }
        }
    }

    prop_compose! {
        pub(in crate::message) fn handshake()(
            (vni, queue_pair) in numbers(),
            hosts in hosts(),
            id: u32,
            of: Option<u32>,
        ) -> Handshake {
            Handshake { vni, hosts, queue_pair, id, of }
        }
    }
}
