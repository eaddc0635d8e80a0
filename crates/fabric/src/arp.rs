//! ARP on a link: the MAC address of an IPv4 address, and announcements.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use wire::number::ETHERTYPE_ARP;
use wire::{Arp, Ethernet, MacAddr};

use crate::packet::{Interface, PacketError, PacketSocket};
use crate::process::wait_until;

/// An address could not be resolved or announced.
#[derive(Debug, thiserror::Error)]
pub enum ArpError {
    /// The interface cannot be used.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The interface has no IPv4 address.
    #[error("{0} has no IPv4 address to announce")]
    NoAddress(String),
    /// The address does not answer ARP.
    #[error("no MAC address for {0}: it does not answer ARP")]
    Unresolved(Ipv4Addr),
    /// No UDP socket could be opened.
    #[error("cannot open a UDP socket")]
    Socket(#[source] io::Error),
}

/// Resolves an IPv4 address on a link of the calling thread's namespace to a MAC address.
///
/// # Errors
/// [`ArpError::Unresolved`] if there is no answer within `limit`.
pub fn resolve(address: Ipv4Addr, limit: Duration) -> Result<MacAddr, ArpError> {
    const DISCARD_PORT: u16 = 9;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(ArpError::Socket)?;
    let mut found = None;
    wait_until(limit, || {
        found = neighbour(address);
        // The datagram only triggers ARP. An ICMP port unreachable is reported as an error by the
        // next send, and is ignored.
        let _ = found.is_none() && socket.send_to(&[], (address, DISCARD_PORT)).is_ok();
        found.is_some()
    });
    found.ok_or(ArpError::Unresolved(address))
}

/// Reads a complete entry of the ARP table in the calling thread's namespace.
fn neighbour(address: Ipv4Addr) -> Option<MacAddr> {
    let table = std::fs::read_to_string("/proc/thread-self/net/arp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let found = fields.next()?.parse::<Ipv4Addr>().ok()? == address;
        let (_kind, flags, mac) = (fields.next()?, fields.next()?, fields.next()?);
        // ATF_COM of linux/if_arp.h: the entry is complete.
        (found && flags != "0x0").then(|| mac.parse().ok()).flatten()
    })
}

/// Sends a gratuitous ARP (RFC 5227 section 2.3), so that bridges learn the interface's MAC
/// address.
///
/// # Errors
/// If the interface cannot send or has no IPv4 address.
pub fn announce(interface: &str) -> Result<(), ArpError> {
    let interface = Interface::find(interface)?;
    let address = interface.ipv4.ok_or_else(|| ArpError::NoAddress(interface.name.clone()))?;
    let frame = gratuitous_arp(interface.mac, address);
    PacketSocket::sender(&interface)?.send(&[&frame])?;
    Ok(())
}

/// An ARP request for the sender's own address.
fn gratuitous_arp(mac: MacAddr, address: Ipv4Addr) -> Vec<u8> {
    let ethernet = Ethernet::new(MacAddr::BROADCAST, mac, ETHERTYPE_ARP);
    let mut request = Arp::new(Arp::REQUEST);
    request.set_sender_mac(mac).set_sender(address).set_target(address);
    [&ethernet.as_bytes()[..], request.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use etherparse::{
        ArpHardwareId, ArpOperation, ArpPacketSlice, EtherType, Ethernet2HeaderSlice,
    };

    use super::*;

    #[test]
    fn an_announcement_asks_for_its_own_address() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let frame = gratuitous_arp(mac, Ipv4Addr::new(10, 0, 0, 7));
        let ethernet = Ethernet2HeaderSlice::from_slice(&frame).unwrap();
        assert_eq!((ethernet.destination(), ethernet.source()), ([0xff; 6], mac.0));
        assert_eq!(ethernet.ether_type(), EtherType::ARP);
        let request = ArpPacketSlice::from_slice(&frame[14..]).unwrap();
        assert_eq!(
            (request.operation(), request.hw_addr_type()),
            (ArpOperation(1), ArpHardwareId(1))
        );
        assert_eq!((request.sender_hw_addr(), request.target_hw_addr()), (&mac.0[..], &[0; 6][..]));
        assert_eq!(request.sender_protocol_addr(), [10, 0, 0, 7]);
        assert_eq!(request.target_protocol_addr(), [10, 0, 0, 7]);
    }
}
